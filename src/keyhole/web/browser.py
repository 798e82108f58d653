"""Where does one look at a circuit? In the browser, or in the notebook one works in; both show the same page."""

import html
import sys
import tempfile
import webbrowser
from dataclasses import dataclass, field
from pathlib import Path

from keyhole.circuits.circuit import Circuit
from keyhole.errors import KeyholeError
from keyhole.web.page import to_html

_HEIGHT = 640  # pixels of the frame in a notebook
_STORY = 980  # of one whose circuit has a story, so that it is not cut off


@dataclass(frozen=True)
class Page:
    """One self-contained page, which a notebook shows by itself."""

    title: str
    html: str = field(repr=False)
    height: int = field(default=_HEIGHT, repr=False)  # of its frame: a page in a sandbox cannot set it itself

    def _repr_html_(self) -> str:
        # A frame of its own: the page's styles and script touch nothing else in the notebook.
        look = f'width="100%" height="{self.height}" style="border: none" sandbox="allow-scripts allow-downloads"'
        return f'<iframe title="{html.escape(self.title)}" srcdoc="{html.escape(self.html)}" {look}></iframe>'

    def open(self) -> Path:
        """Open the page in the browser; it lies in the folder for temporary files, which the system empties."""
        with tempfile.NamedTemporaryFile("wb", prefix="keyhole-", suffix=".html", delete=False) as out:
            out.write(self.html.encode())
        path = Path(out.name)
        if not webbrowser.open(path.as_uri()):
            path.unlink()
            raise KeyholeError("there is no browser to show the page: write it with circuit.save('circuit.html').")
        return path


def show(circuit: Circuit) -> Page:
    """The circuit's page; opened in the browser, unless a notebook will show it where it is returned."""
    page = circuit_page(circuit)
    if not in_notebook():
        page.open()
    return page


def circuit_page(circuit: Circuit) -> Page:
    """A circuit's page, with a frame that has room for its story."""
    return Page(repr(circuit).strip("<>"), to_html(circuit), _STORY if circuit.influence else _HEIGHT)


def in_notebook() -> bool:
    """Does what a cell returns appear below it? So in Jupyter and its kin, but not in IPython's terminal."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")
