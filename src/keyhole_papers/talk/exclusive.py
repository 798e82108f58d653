"""Do edges that one order's representative has alone act on prompts of that order? Removed in both, beside controls."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from matplotlib.figure import Figure

from keyhole.comparison.compare import Comparison
from keyhole.comparison.exclusive import WHATS, Exclusive, Which, remove_exclusive
from keyhole.figures.store.comparison import removals_figure
from keyhole.figures.style import heading
from keyhole_papers.finding import Interval
from keyhole_papers.job import Attempt
from keyhole_papers.results import Verdict
from keyhole_papers.svt.ioi import LEAST
from keyhole_papers.talk.study import ORDERS, Prompts, Study, of_study
from keyhole_papers.told import Experiment, Told, judged, numbered, stood_in

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


def judge(record: Removed) -> Verdict:
    """Does each representative's removal hurt its own order more, and more than random channels?"""
    found = record.found
    holds = [found.verdict(which)[0] is True and beyond_places(found, which) for which in _SIDES]
    enough = all(len(found.cell(one, other).measured) >= LEAST for one in _SIDES for other in _SIDES)
    return judged(record.of, holds, first=enough and found.interaction[2] < 0)


def beyond_places(found: Exclusive, which: Which) -> bool:
    """Would the own order be hurt more if as many edges had a place in the other? Fewer have: an order moves tokens."""
    own, other = found.cell(which, which), found.cell(which, _OTHER[which])
    return own.spread[2] < other.spread[1] * max(1.0, own.placed / max(other.placed, 1e-9))


def _tell(record: Removed) -> Told:
    found, lines, numbers = record.found, [], {}
    for which, order in _SIDES.items():
        number, edges = record.prompts[0 if which == "a" else 1], found.a if which == "a" else found.b
        held, why = found.verdict(which)
        told = "Yes" if held else "No" if held is False else "Untold"
        changes = _changes_text(found, which) if found.cell(which, which).measured else ""
        lines.append(
            f"{len(edges)} edges of the {order} representative alone (prompt {number}){changes}. {told}: {why}."
        )
        cells = {f"{_SIDES[on]} prompts, {what}": found.cell(which, on, what) for on in _SIDES for what in WHATS}
        measured = {name: Interval(*cell.spread) for name, cell in cells.items() if cell.measured}
        placed = {f"placed in {_SIDES[on]} prompts": found.cell(which, on).placed for on in _SIDES}
        numbers[f"{order} edges"] = {"edges": len(edges), **placed, **measured}
    interaction = Interval(*found.interaction)
    if not math.isnan(interaction.mean):
        lines.append(f"On the own order less on the other, both together: {interaction}.")
        numbers[""] = {"interaction": interaction}
    note = (
        f"Asked: edges that one representative has alone (writer, head, side and channel) hurt the answers to {LEAST} "
        "or more other prompts of its own order more than those of the other order, and more than random channels of "
        "the same writers and heads do, intervals over prompts apart; and so both together, and if the effect on the "
        "other order is scaled up by the share of edges that have no place there. An edge is placed in other "
        "prompts by the roles of its tokens and removed from its head alone; the effect is the change of the logit of "
        f"IO against S over its size. {record.of.note} {stood_in(record.of)}"
    )
    return Told("\n".join(lines), numbered(numbers), note)


def _changes_text(found: Exclusive, which: Which) -> str:
    own, its = (found.cell(which, on) for on in (which, _OTHER[which]))
    random = Interval(*found.cell(which, which, "random").spread)
    here = f"the answer changes by {Interval(*own.spread)} of its size in {_SIDES[which]} prompts"
    there = f"by {Interval(*its.spread)} in the others" if its.measured else "none has a place in the others"
    more = "" if beyond_places(found, which) else ", no more than for want of places there"
    return f": {here} ({own.placed:.0%} have a place), {there} ({its.placed:.0%}){more}; random channels {random}"


def _draw(record: Removed) -> Mapping[str, Figure]:
    if not any(cell.measured for cell in record.found.cells):
        return {}
    names = [f"{order} (prompt {prompt})" for order, prompt in zip(ORDERS, record.prompts, strict=True)]
    figure = removals_figure(Comparison(names[0], names[1], (1, 1), exclusive=record.found))
    heading(figure, f"Edges that one representative has alone: a is {names[0]}, b is {names[1]}")
    return {"removed": figure}


RUNS: dict[str, Attempt] = {"talk-26": Experiment(partial(of_study, removed_of), judge, _tell, _draw)}
