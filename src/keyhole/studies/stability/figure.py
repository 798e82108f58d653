"""How much of a circuit stays when something small changes? A dot for each change and measure, above the floors."""

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from keyhole.errors import KeyholeError
from keyhole.figures.style import FAINT, blank, colours, heading, legend, plain, tidy
from keyhole.report import Picture, Report, Section, Table
from keyhole.studies.stability.stability import MEASURES, Stability

_APART = 0.17  # of a row: dots of one change do not hide each other


def stability_figure(stability: Stability) -> Figure:
    """Mean Jaccard with 95 % intervals: changes above, floors beneath a line."""
    if not stability.rows:
        raise KeyholeError("nothing was compared, so that there is nothing to draw.")
    figure = blank(7.4, 0.42 * len(stability.rows) + 1.7)
    heading(figure, f"What stays of a circuit ({stability.model}, {stability.task}, {stability.prompts} prompts)")
    axis = figure.subplots()
    shades = dict(zip(MEASURES, colours(len(MEASURES)), strict=True))
    for place, row in enumerate(stability.rows):
        for i, measure in enumerate(MEASURES):
            interval = row.spread(measure)
            if interval is None:
                continue
            mean, low, high = interval
            y = place + _APART * (i - (len(MEASURES) - 1) / 2)
            if low == low:  # a single pair has no interval
                axis.plot([low, high], [y, y], color=shades[measure], linewidth=1.6, solid_capstyle="butt")
            axis.plot([mean], [y], "o", color=shades[measure], markersize=4.5)
    floors = [place for place, row in enumerate(stability.rows) if row.floor]
    if floors and floors[0] > 0:
        axis.axhline(floors[0] - 0.5, color=FAINT, linewidth=1)
    axis.set_yticks(range(len(stability.rows)), [f"{plain(row.name)} ({row.n})" for row in stability.rows])
    axis.set_ylim(len(stability.rows) - 0.4, -0.6)
    axis.set_xlim(-0.02, 1.02)
    tidy(axis, x="Jaccard with the circuit as it is")
    axis.tick_params(axis="y", length=0)
    dot = {"marker": "o", "linestyle": "", "markersize": 5}
    legend(figure, [Line2D([], [], color=shade, label=name, **dot) for name, shade in shades.items()])  # type: ignore[arg-type]
    return figure


def stability_report(stability: Stability) -> Report:
    """The picture and its numbers."""
    text = (
        "1: the circuit is the same; 0: nothing is in common. Circuits of other prompts have much in common, too: a "
        "change keeps a circuit only as far as it lies above these floors."
    )
    picture = Picture(lambda: stability_figure(stability), "Jaccard under each change")
    every = [(row, measure, row.spread(measure)) for row in stability.rows for measure in MEASURES]
    rows = [(row.name, row.n, measure, *interval) for row, measure, interval in every if interval is not None]
    return Report(
        f"How stable are circuits? {stability.model}, {stability.task}",
        stability.summary,
        [Section("What stays", [text, picture, stability.cells])],
        Table(("change", ">n", "measure", ">jaccard", ">low", ">high"), rows),
        picture,
    )
