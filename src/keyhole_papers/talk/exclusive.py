"""Do edges that one order's representative has alone act on prompts of that order? Removed in both, beside controls."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from matplotlib.figure import Figure

from keyhole.comparison.compare import Comparison
from keyhole.comparison.exclusive import WHATS, Exclusive, Which, remove_exclusive
from keyhole.figures.store.comparison import removals_figure
from keyhole.figures.style import heading
from keyhole_papers.experiment import Experiment
from keyhole_papers.finding import Finding, Findings, Interval, of_part
from keyhole_papers.job import Attempt
from keyhole_papers.svt.ioi import LEAST
from keyhole_papers.talk.study import ORDERS, Prompts, Study, of_study

_SIDES: dict[Which, str] = {"a": ORDERS[0], "b": ORDERS[1]}
_OTHER: dict[Which, Which] = {"a": "b", "b": "a"}


@dataclass(frozen=True)
class Removed:
    """The two by two."""

    of: Prompts
    prompts: tuple[int | None, int | None]  # the representatives
    found: Exclusive


def removed_of(seen: Study) -> Removed:
    """Edges of each representative alone, removed in other prompts of both orders."""
    draws, told = 1 if seen.asked.quick else 3, seen.asked.progress
    found = remove_exclusive(seen.pair, seen.others, seen.model, draws=draws, seed=seen.asked.seed, progress=told)
    return Removed(seen.of, (seen.pair[0].prompt, seen.pair[1].prompt), found)


def findings(record: Removed) -> Findings:
    """Does each representative's removal hurt its own order more, and more than random channels?"""
    found, interaction = record.found, Interval(*record.found.interaction)
    rows = [Finding("interaction", interaction)]
    for which, order in _SIDES.items():
        rows += of_part(f"{order} edges", *_of_edges(found, which))
    enough = all(len(found.cell(one, other).measured) >= LEAST for one in _SIDES for other in _SIDES)
    numbers = " and ".join(f"{number} ({order})" for number, order in zip(record.prompts, ORDERS, strict=True))
    remark = (
        f"Edges (writer, head, side and channel) that one representative has alone, of prompts {numbers}. An edge is "
        "placed in other prompts by the roles of its tokens and removed from its head alone; the effect is the change "
        "of the logit of IO against S over its size. Interaction: the effect on the own order less that on the other, "
        "both together."
    )
    unless = f"it was measured in {LEAST} or more prompts of either order, and the interaction is below 0"
    first = enough and interaction.high < 0
    return Findings(rows, record.of.provenance(), first=first, unless=unless, remark=remark)


def _of_edges(found: Exclusive, which: Which) -> list[Finding]:
    """What one representative's own edges do to prompts of both orders, beside controls."""
    held, why = found.verdict(which)
    asked = (
        "a loss on the own order beyond that on the other, and beyond that by random channels of the same writers and "
        "heads, intervals apart; also if the effect on the other order is scaled up by the edges without a place there"
    )
    rows = [
        Finding("edges", len(found.a if which == "a" else found.b)),
        Finding("alone", why, asked, held is True and beyond_places(found, which)),
    ]
    for on, order in _SIDES.items():
        rows.append(Finding(f"placed in {order} prompts", found.cell(which, on).placed, percent=True))
        for what in WHATS:
            cell = found.cell(which, on, what)
            if cell.measured:
                rows.append(Finding(f"{order} prompts, {what}", Interval(*cell.spread)))
    return rows


def beyond_places(found: Exclusive, which: Which) -> bool:
    """Would the own order be hurt more if as many edges had a place in the other? Fewer have: an order moves tokens."""
    own, other = found.cell(which, which), found.cell(which, _OTHER[which])
    return own.spread[2] < other.spread[1] * max(1.0, own.placed / max(other.placed, 1e-9))


def _draw(record: Removed) -> Mapping[str, Figure]:
    if not any(cell.measured for cell in record.found.cells):
        return {}
    names = [f"{order} (prompt {prompt})" for order, prompt in zip(ORDERS, record.prompts, strict=True)]
    figure = removals_figure(Comparison(names[0], names[1], (1, 1), exclusive=record.found))
    heading(figure, f"Edges that one representative has alone: a is {names[0]}, b is {names[1]}")
    return {"removed": figure}


RUNS: dict[str, Attempt] = {"talk-26": Experiment(partial(of_study, removed_of), findings, _draw)}
