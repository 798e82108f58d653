"""How much of the answer do the best edges carry? Faithfulness over the share of edges kept, a line for each method."""

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from keyhole.figures.style import FAINT, GREY, PALETTE, blank, colours, heading, legend, plain, tidy
from keyhole.report import Cell, Picture, Report, Section, Table
from keyhole.studies.curves.record import Curves
from keyhole.studies.curves.settings import METHODS
from keyhole.studies.curves.split_record import Splits

_MOST = 1.6  # beyond this an answer is so far above 1 that the rest of the picture would be flat


def curves_figure(curves: Curves) -> Figure:
    """Faithfulness over the share of edges, on a logarithmic axis; bands are 95 % intervals over prompts.

    A dot marks where a method's own edges end: what comes after it is in random order.
    """
    figure = blank(7.6, 4.3)
    heading(figure, f"Edges kept, best first: what is left of the answer ({curves.model}, {curves.task})")
    axis = figure.subplots()
    methods = [row["method"] for row in curves.rows()]
    others = [method for method in methods if method not in METHODS]
    known = [*METHODS, *others]  # a method has one colour everywhere, if there are enough of them
    known = methods if len(others) == len(methods) or len(known) > len(PALETTE) else known
    shades = dict(zip(known, colours(len(known)), strict=True)) | {"random": GREY}
    for level in (0, 1):
        axis.axhline(level, color=FAINT, linewidth=1, zorder=0)
    handles: list[Line2D | Patch] = []
    for method in methods:
        intervals = curves.faithfulness(method)
        value, low, high = zip(*intervals, strict=True)
        dashed = "--" if method == "random" else "-"
        axis.fill_between(curves.shares, low, high, color=shades[method], alpha=0.13, linewidth=0)
        axis.plot(curves.shares, value, color=shades[method], linestyle=dashed, linewidth=1.7)
        curve, alone = curves[method], curves.alone(method)
        if curve.found and alone is not None:
            axis.plot([curve.found / curves.edges], [alone[0]], "o", color=shades[method], markersize=6)
        label = f"{plain(method)}  CPR {curves.cpr(method)[0]:.2f}, CMD {curves.cmd(method)[0]:.2f}"
        handles.append(Line2D([], [], color=shades[method], linestyle=dashed, linewidth=1.7, label=label))
    handles.append(Line2D([], [], color=GREY, marker="o", linestyle="", label="all that a method found, alone"))
    axis.set_xscale("log")
    axis.set_xlim(curves.shares[0], 1)
    ticks = [share for share in curves.shares if share in (0.001, 0.01, 0.1, 1.0)]
    axis.set_xticks(ticks, [f"{share:g}" for share in ticks])
    axis.set_ylim(*_limits(curves))
    tidy(axis, x=f"share of {curves.edges:,} edges kept", y="faithfulness f")
    legend(figure, handles)
    return figure


def _limits(curves: Curves) -> tuple[float, float]:
    """All lines, and the bands of all but wild ones."""
    values = [value for curve in curves.curves for interval in curves.faithfulness(curve.method) for value in interval]
    return max(min(min(values), -0.1) - 0.05, -_MOST), min(max(max(values), 1.0) + 0.08, 1 + _MOST)


def curves_report(curves: Curves) -> Report:
    """The picture and its numbers."""
    names = [row["method"] for row in curves.rows()]
    faithfulness = {name: curves.faithfulness(name) for name in names}
    by_share: list[tuple[Cell, ...]] = []
    for i, share in enumerate(curves.shares):
        by_share.append((f"{share:g}", *(faithfulness[name][i][0] for name in names)))
    picture = Picture(lambda: curves_figure(curves), "faithfulness of each method over the share of edges kept")
    return Report(
        f"Which edges carry the answer? {curves.model}, {curves.task}",
        curves.summary,
        [
            Section("Faithfulness over the share of edges", [_AREAS, curves.own_text, picture, curves.cells]),
            Section("At every share", [Table(("share", *(f">{name}" for name in names)), by_share)], page_only=True),
        ],
        _by_share(curves, "method"),
        picture,
    )


_AREAS = (
    "CPR is the area under a line, CMD the area between it and 1: by trapezoids over the shares, as in MIB. A perfect "
    "method has CPR about 1 and CMD 0.\n\nAttention-only circuits (heads, svt) have no edges into values and MLPs, so "
    "they cannot carry an answer alone: their edges explain attention."
)


def splits_report(splits: Splits) -> Report:
    """One circuit, and circuits of groups: the picture and its numbers."""
    curves, alt = splits.curves, "faithfulness of one circuit and of circuits for each group, over the share of edges"
    picture = Picture(lambda: curves_figure(curves), f"{alt} kept")
    return Report(
        f"One circuit for each group? {curves.model}, {curves.task}",
        splits.summary,
        [Section("Faithfulness over the share of edges", ["\n\n".join(splits.notes), picture, splits.cells])],
        _by_share(curves, "circuits"),
        picture,
    )


def _by_share(curves: Curves, name: str) -> Table:
    """A row for each method (or each split) and share."""
    rows = [
        (curve.method, share, *interval)
        for curve in curves.curves
        for share, interval in zip(curves.shares, curves.faithfulness(curve.method), strict=True)
    ]
    return Table((name, ">share", ">faithfulness", ">low", ">high"), rows)
