"""How does one look at a circuit in a notebook or browser? In a widget that asks the kernel, or on one page."""

import html
import json
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from keyhole.circuits.circuit import Circuit
from keyhole.circuits.shown import strongest
from keyhole.errors import KeyholeError
from keyhole.requests.bodies import read_body, spell
from keyhole.requests.jobs import Reporter
from keyhole.requests.kept import Given, Kept, Ran
from keyhole.web.page import EDGES, page_data, script, style, to_html
from keyhole.web.server.circuits import CircuitBody, circuit_of
from keyhole.web.server.kinds import KINDS
from keyhole.web.server.prompt import document

if TYPE_CHECKING:
    from keyhole.faithfulness.routes import Story
    from keyhole.models.model import Model
    from keyhole.models.run import Run
    from keyhole.progress import Progress
    from keyhole.tracing.candidates import Keys
    from keyhole.tracing.firing import Firing

# How does a notebook ask? As the explorer's page does, but about one run that exists: the same work, the same JSON.

Tell = Callable[[int, int], None]  # how far long work is
_NAME = "this"  # what the one model is called here


class Live:
    """One run, and answers to requests about it."""

    def __init__(self, run: "Run") -> None:
        self._kept = Kept(Given(tokens=len(run)))
        self._kept.models.get(_NAME, lambda: run.model)
        self._kept.runs.get((_NAME, run.token_ids), lambda: Ran(_NAME, run))
        self.model = {"model": _NAME}
        self.place = {**self.model, "prompt": list(run.token_ids)}

    def ask(self, kind: str, request: dict[str, Any], tell: Tell = lambda done, total: None) -> Any:
        """What the server would answer to this request."""
        return json.loads(KINDS[kind].work(self._kept, request)(_reporter(tell)))

    def trace(self, request: dict[str, Any], tell: Tell = lambda done, total: None) -> "Circuit":
        """The circuit of a request to trace, with its run."""
        return circuit_of(self._kept, read_body(CircuitBody, {**self.place, **request}), _reporter(tell))[0]


def _reporter(tell: Tell) -> Reporter:
    return Reporter(threading.Event(), lambda part, done, total: tell(done, total), lambda: None)  # nobody else waits


# How does one look at a circuit or a firing in a notebook? In a widget: the explorer's views, answered by the kernel.
#
# What the views ask for (remove, boost, trace from here, ...) is computed on the run that the result came from. What
# the user does to a circuit (pins, groups, new names) can be read in `widget.view`.

try:
    from anywidget import AnyWidget
    from traitlets import Bool, Dict, Int, List, Unicode
except ImportError as missing:
    raise KeyholeError("widgets need anywidget, which is missing: pip install 'keyhole[notebook]'") from missing


_NEAR = 1e-5  # between attention weights that count as equal
_ASIDE: dict[str, Any] = {"effects": [], "mlp": None, "where": None}  # what belongs to one firing alone


class Widget(AnyWidget):
    """A circuit, a firing, or both. Everything it shows is plain data; `view` is what the user did to the circuit."""

    _esm = script("widget.js", module=True)
    _css = style("style.css", "circuit.css", "firing.css", "widget.css")
    first = Unicode("circuit").tag(sync=True)  # which of the two is at the top
    actions = Bool(False).tag(sync=True)  # is there a run to compute on?
    circuit: Any = Dict(default_value=None, allow_none=True).tag(sync=True)  # as in a circuit's file
    names = Dict().tag(sync=True)
    story: Any = List().tag(sync=True)
    left_out = Unicode("").tag(sync=True)
    view = Dict().tag(sync=True)
    verified = Dict().tag(sync=True)  # what removals of edges did, by edge
    firing: Any = Dict(default_value=None, allow_none=True).tag(sync=True)
    effects: Any = List().tag(sync=True)  # what removals of signals did, in the order of the clicks
    mlp: Any = Dict(default_value=None, allow_none=True).tag(sync=True)
    where: Any = Dict(default_value=None, allow_none=True).tag(sync=True)
    mode = Unicode("exact").tag(sync=True)  # of removals
    tokens = Int(20_000)  # how much text "where else does it fire?" reads
    busy = Dict().tag(sync=True)
    errors = Dict().tag(sync=True)

    _doing: ClassVar[dict[str, tuple[str, str]]] = {  # a wish's type: what does it, and where its error is shown
        "open-firing": ("_open", "firing"),
        "trace-from": ("_trace", "circuit"),
        "verify-edge": ("_verify", "circuit"),
        "explain-mlp": ("_explain_mlp", "mlp"),
        "where": ("_find", "where"),
        **dict.fromkeys(("remove", "boost", "random"), ("_intervene", "effects")),
        "forget": ("_forget", "effects"),
        "close": ("_close", "effects"),
    }

    def __init__(self, run: "Run | None", **shown: Any) -> None:
        super().__init__(actions=run is not None, **shown)
        self._live = None if run is None else Live(run)
        self._circuit: Circuit | None = None  # the one that is shown
        self._keys: Keys = "all"
        self.on_msg(lambda _, content, buffers: self.do(content))

    def __repr__(self) -> str:
        shown = [name for name in ("circuit", "firing") if getattr(self, name) is not None]
        return f"<Widget of a {' and a '.join(shown)}>"

    def do(self, wish: dict[str, Any]) -> None:
        """Do what a click asks for; an error is shown in place of its result."""
        if wish.get("type") not in self._doing:
            raise KeyholeError(f"a widget does one of {', '.join(self._doing)}, not {wish.get('type')!r}.")
        name, slot = self._doing[wish["type"]]
        self.errors = {key: text for key, text in self.errors.items() if key != slot}
        self.busy = {**self.busy, slot: {}}
        try:
            getattr(self, name)(wish)
        except KeyholeError as error:
            self.errors = {**self.errors, slot: str(error)}
        except Exception as error:
            self.errors = {**self.errors, slot: f"{type(error).__name__}: {error}"}
            raise
        finally:
            self.busy = {key: value for key, value in self.busy.items() if key != slot}

    @property
    def live(self) -> Live:
        """The run, and answers about it."""
        if self._live is None:
            raise KeyholeError("this circuit was read from a file: give the model that made it, circuit.widget(model).")
        return self._live

    def show_circuit(self, circuit: "Circuit", progress: "Progress | None" = None) -> None:
        """Show this circuit, with a measured story where there is a run; results of the last one are cleared."""
        self._circuit = strongest(circuit, EDGES)
        data = page_data(circuit, story=self._measured(circuit, progress))
        self.view, self.verified, self.names, self.story = {}, {}, data["names"], data["story"]
        self.left_out, self.circuit = data.get("left_out", ""), data["circuit"]

    def _measured(self, circuit: "Circuit", progress: "Progress | None") -> "Story | None":
        """The story with the effect of each step; None: there is none, or nothing to measure it with."""
        if not circuit.influence or circuit.run is None:
            return None
        try:
            return circuit.story(progress=progress)
        except KeyholeError as error:  # as when the weights have changed: the circuit is still true
            self.errors = {**self.errors, "circuit": str(error)}
            return None

    def show_firing(self, firing: dict[str, Any], keys: "Keys" = "all") -> None:
        """Show this firing, as the explorer's JSON has it; effects of the last one are cleared."""
        self._keys = keys
        for name, value in {**_ASIDE, "firing": firing}.items():
            setattr(self, name, value)

    def _place(self) -> dict[str, Any]:
        """The firing that is shown, as a request names it."""
        shown = self.firing or {}
        names = ("layer", "head", "dest", "src", "why", "tau")
        return {**self.live.place, **{name: shown[name] for name in names}, "keys": self._keys}

    def _tell(self, slot: str) -> Any:
        def tell(done: int, total: int) -> None:
            self.busy = {**self.busy, slot: {"done": done, "total": total}}

        return tell

    def _open(self, wish: dict[str, Any]) -> None:
        at = {name: wish[name] for name in ("layer", "head", "dest", "src")}
        self.show_firing(self.live.ask("firing", {**self.live.place, **at}))

    def _trace(self, wish: dict[str, Any]) -> None:
        at = {name: (self.firing or {})[name] for name in ("layer", "head", "dest", "src")}
        tell = self._tell("circuit")
        self.show_circuit(self.live.trace({"from": at}, tell), tell)

    def _verify(self, wish: dict[str, Any]) -> None:
        if self._circuit is None or self._circuit.run is None:
            raise KeyholeError("this circuit was read from a file: give the model that made it, circuit.widget(model).")
        [row] = json.loads(spell(self._circuit.verify(edges=[wish["edge"]]).record()))["rows"]
        self.verified = {**self.verified, str(wish["edge"]): row}

    def _intervene(self, wish: dict[str, Any]) -> None:
        side, signal, mode = wish["side"], wish["signal"], wish.get("mode") or self.mode
        effect = {"id": 1 + max([0, *(known["id"] for known in self.effects)]), "outcome": None, "error": None}
        effect |= {"type": wish["type"], "side": side, "signal": signal, "mode": mode}
        # Doing the same again replaces what it did before.
        same = {name: effect[name] for name in ("type", "side", "signal")}
        others = [known for known in self.effects if {name: known[name] for name in same} != same]
        self.effects = [*others, {**effect}]
        request = {"action": wish["type"], "side": side, "signals": None if signal is None else [signal], "mode": mode}
        try:
            effect["outcome"] = self.live.ask("intervene", {**self._place(), **request})
        except KeyholeError as error:
            effect["error"] = str(error)
        except BaseException:
            effect["error"] = "This was stopped, or failed: the notebook's log says why."
            raise
        finally:
            self.effects = [*others, {**effect}]

    def _explain_mlp(self, wish: dict[str, Any]) -> None:
        self.mlp = None
        self.mlp = self.live.ask("mlp", {**self.live.place, "layer": wish["layer"], "pos": wish["pos"]})

    def _find(self, wish: dict[str, Any]) -> None:
        self.where = None
        shown = self.firing or {}
        head = {**self.live.model, "what": f"{shown['layer']}.{shown['head']}"}
        signal = {**self._place(), "side": wish["side"], "signal": wish["signal"]}
        request = {**(head if wish["side"] is None else signal), "tokens": self.tokens}
        self.where = self.live.ask("where", request, self._tell("where"))

    def _forget(self, wish: dict[str, Any]) -> None:
        self.effects = [effect for effect in self.effects if effect["id"] != wish["id"]]

    def _close(self, wish: dict[str, Any]) -> None:
        slot = wish["what"]
        if slot not in ("circuit", "firing", "mlp", "where"):
            raise KeyholeError(f"there is no {slot!r} to close.")
        setattr(self, slot, None)
        self.errors = {key: text for key, text in self.errors.items() if key != slot}


def circuit_widget(circuit: "Circuit", model: "Model | None" = None) -> Widget:
    """A circuit to walk through.

    Args:
        circuit: The circuit. What a click asks for is computed on its run.
        model: The model that made the circuit, if it was read from a file; without it nothing can be computed.
    """
    from dataclasses import replace

    from keyhole.intervene.cuts import run_of

    run = circuit.run if model is None else run_of(circuit, model)
    widget = Widget(run, first="circuit")
    widget.show_circuit(replace(circuit, run=run))
    return widget


def firing_widget(firing: "Firing") -> Widget:
    """A firing with buttons that remove its signals and measure what happens.

    Args:
        firing: An explanation, as `run.explain` returns it.
    """
    widget = Widget(firing.run, first="firing")
    widget.show_firing(json.loads(spell(document(firing))), _keys(firing))
    return widget


def _keys(firing: "Firing") -> "Keys":
    """Which keys were considered when it was explained? A firing does not record it: it is explained again."""
    from keyhole.tracing.why import explain

    choices: tuple[Keys, ...] = ("all", "source")
    for keys in choices:
        again = explain(
            firing.run,
            (firing.layer, firing.head),
            firing.dest,
            firing.src,
            tau=firing.tau,
            keys=keys,
            why_not=firing.why_not,
        )
        if _alike(again, firing):
            return keys
    raise KeyholeError("this firing cannot be explained again in the same way: has it been changed?")


def _alike(a: "Firing", b: "Firing") -> bool:
    """The same signals, and the same attention without them?"""

    def signals(firing: "Firing") -> list[Any]:
        return [(signal.writer, side.side, signal.channels) for side in firing.sides for signal in side.signals]

    near = all(abs(x.after - y.after) < _NEAR for x, y in zip(a.sides, b.sides, strict=True))
    return near and signals(a) == signals(b)


# Where does one look at a circuit? In the browser or in a notebook; both show the same page.

_HEIGHT = 640  # pixels of the frame in a notebook
_STORY = 980  # the same, where the circuit has a story, so that it is not cut off


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
    """The circuit's page: a notebook shows it below the cell; elsewhere it opens in the browser.

    Args:
        circuit: The circuit to look at.
    """
    page = circuit_page(circuit)
    if not in_notebook():
        page.open()
    return page


def circuit_page(circuit: Circuit) -> Page:
    """A circuit's page, with a frame that has room for its story."""
    return Page(repr(circuit).strip("<>"), to_html(circuit), _STORY if circuit.influence else _HEIGHT)


def in_notebook() -> bool:
    """Does what a cell returns appear below it? It does in Jupyter and the like, but not in IPython's terminal."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")
