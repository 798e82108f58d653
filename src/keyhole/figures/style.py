"""The common style of all figures: colours, blank figures, axes, saving. matplotlib's global state is untouched."""

from collections.abc import Iterable, Sequence
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from textwrap import fill
from typing import Any

from matplotlib import colormaps
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.textpath import TextPath

from keyhole.errors import KeyholeError
from keyhole.files import require_file, write_at_once, xml_text
from keyhole.report.report import DPI, PICTURES

BLUE, RED, GREY, INK, FAINT = "#3465a4", "#cc4b37", "#9a9a96", "#333333", "#d9d9d6"
# Chosen greedily for the largest distance in CIELAB to all earlier colours, under normal, red-blind and green-blind
# vision: prefixes are good palettes too.
PALETTE = (
    *("#3465a4", "#e08a1e", "#3fb38f", "#9c1f4f", "#6cc5ee", "#872d00", "#d2c378"),
    *("#8796ff", "#69005a", "#a5784b", "#008796", "#002d87", "#69d2d2"),
)
SUFFIXES = PICTURES
KINDS = ("png",)  # formats of pictures written into a folder, unless others are requested
_TITLE = 10.5  # points of a title; so many of its letters stand in an inch, too
_LEGEND = 9.0  # points of a legend's text
_HANDLE, _BETWEEN, _MARGIN = 2.4, 1.2, 0.25  # of a legend: a sample and its gap, a column's gap (in font sizes), inches


class HouseFigure(Figure):
    """A Figure that a notebook shows by itself: pyplot, which would do so, keeps global state."""

    def _repr_png_(self) -> bytes:
        buffer = BytesIO()
        self.savefig(buffer, format="png", dpi=DPI)
        return buffer.getvalue()


def blank(width: float, height: float) -> Figure:
    """An empty figure, in inches, whose parts make room for each other."""
    layout = ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.06, wspace=0.04, hspace=0.04)
    return HouseFigure(figsize=(width, height), layout=layout, facecolor="white")


def tidy(axis: Any, title: str = "", *, x: str = "", y: str = "") -> None:
    """Light spines, a title on the left, labels: the look of every two-dimensional panel."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set(color=INK, linewidth=0.8)
    axis.tick_params(colors=INK, labelsize=9, width=0.8)
    axis.set_title(title, loc="left", fontsize=10.5, color="black")
    axis.set_xlabel(x, fontsize=10)
    axis.set_ylabel(y, fontsize=10)
    axis.set_axisbelow(True)


def heading(figure: Figure, title: str) -> None:
    """A title above several panels, aligned with their left edge."""
    figure.suptitle(wrapped(figure, title), x=0.01, ha="left", fontsize=11.5)


def panels(
    names: Iterable[str], title: str, size: tuple[float, float], *, x: str = "", y: str = "", sharey: bool = True
) -> tuple[Figure, list[Any]]:
    """A figure with a panel for each name, side by side; the first names the vertical axis."""
    named, figure = list(names), blank(*size)
    heading(figure, title)
    axes = list(figure.subplots(1, len(named), sharey=sharey, squeeze=False)[0])
    for axis, name in zip(axes, named, strict=True):
        tidy(axis, name, x=x, y=y if axis is axes[0] else "")
    return figure, axes


def wrapped(figure: Figure, title: str, room: float = 1.0, *, size: float = _TITLE) -> str:
    """The title in lines that fit into the share `room` of the figure's width: longer ones would be cut off."""
    return fill(title, max(12, int(_TITLE * _TITLE / size * room * figure.get_figwidth())))


def legend(
    figure: Figure, handles: Sequence[Any], *, columns: int = 1, beneath: bool = False, size: float = _LEGEND
) -> int:
    """A legend outside the panels, to the right or beneath: it hides no data however many entries it has.

    Beneath, it has at most so many columns as fit into the figure's width: a wider one would be clipped on both sides.
    Returns how many rows it has.
    """
    look: dict[str, Any] = {"frameon": False, "fontsize": size, "handletextpad": 0.4, "columnspacing": _BETWEEN}
    if beneath:
        columns = _columns(figure, [str(handle.get_label()) for handle in handles], columns, size)
    place = "outside lower center" if beneath else "outside right center"
    figure.legend(handles=list(handles), loc=place, ncols=columns, **look)
    return -(-len(handles) // columns)


def text_width(text: str, size: float) -> float:
    """The width of a text's widest line, in inches."""
    lines = [line for line in text.split("\n") if line.strip()]
    font = FontProperties(size=size)
    return max((TextPath((0, 0), line, prop=font).get_extents().width for line in lines), default=0.0) / 72


def _columns(figure: Figure, labels: Sequence[str], most: int, size: float) -> int:
    """The largest number of columns, at most `most`, that fits into the figure's width; matplotlib fills columns."""
    widths = [text_width(label, size) + (_HANDLE + _BETWEEN) * size / 72 for label in labels]
    for n in range(min(most, len(widths)), 1, -1):
        rows, longer = divmod(len(widths), n)  # the first columns have an entry more
        ends = [sum(rows + (i < longer) for i in range(column)) for column in range(n + 1)]
        if sum(max(widths[a:b]) for a, b in pairwise(ends)) <= figure.get_figwidth() - _MARGIN:
            return n
    return 1


def scale(figure: Figure, axis: Any, image: Any, label: str) -> None:
    """A colour bar beside a picture of numbers."""
    bar = figure.colorbar(image, ax=axis, shrink=0.85, pad=0.02)
    bar.set_label(label, fontsize=9)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)


def colours(n: int, *, ordered: bool = False) -> list[str]:
    """Colours that can be distinguished, also by readers who are blind to red or green.

    Args:
        n: How many.
        ordered: Do they stand for ordered values? Then they go from dark to light. Default: a palette.

    >>> colours(2)
    ['#3465a4', '#e08a1e']
    """
    if ordered:  # the ramp stops before its pale end, which vanishes on white paper
        ramp = colormaps["viridis"]
        return [to_hex(ramp(0.92 * i / max(n - 1, 1))) for i in range(n)]
    if n > len(PALETTE):
        raise KeyholeError(
            f"{n} colours are needed, but only {len(PALETTE)} can be distinguished: merge some labels, draw fewer, or, "
            "where labels have an order, pass ordered=True."
        )
    return list(PALETTE[:n])


def plain(text: str) -> str:
    r"""The text of a token as a label: visible line breaks, no mathematics between dollar signs, no control characters.

    >>> print(plain("$a$ \n"))
    \$a\$ ↵
    >>> plain("\x07") == "\ufffd"
    True
    """
    return xml_text(text.replace("\r", "").replace("\n", "↵").replace("\t", "⇥").replace("$", r"\$"))


def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure; equal figures give equal files.

    Args:
        figure: The figure.
        path: A file .png, .svg or .pdf, which is returned.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     save(blank(2, 1), f"{folder}/empty.png").name
    'empty.png'
    """
    path = require_file(path, SUFFIXES)
    suffix = path.suffix.lower()
    # Dates in files would make equal figures differ.
    dates: dict[str, dict[str, None]] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    drawn = BytesIO()
    figure.savefig(drawn, format=suffix[1:], dpi=DPI, metadata=dates.get(suffix, {}))
    content = drawn.getvalue()
    write_at_once(path, xml_text(content.decode()) if suffix == ".svg" else content)
    return path


def save_as(figure: Figure, stem: Path, kinds: Sequence[str]) -> list[Path]:
    """The figure in each of these formats: stem.png, stem.svg. A stem may contain dots, as names of heads do."""
    return [save(figure, stem.with_name(f"{stem.name}.{kind}")) for kind in kinds]
