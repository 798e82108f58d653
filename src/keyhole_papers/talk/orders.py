"""What sets both orders of names apart? The signals that the same heads get in each, and the edges of one alone."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from statistics import median
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from keyhole.brief import Head, head_name
from keyhole.figures.style import heading
from keyhole.stats import Interval
from keyhole.studies.comparison.compare import Comparison
from keyhole.studies.comparison.exclusive import WHATS, Exclusive, Which, remove_exclusive
from keyhole.studies.comparison.figure import removals_figure, signals_figure
from keyhole.studies.comparison.signals import (
    SIDES,
    Aggregated,
    HeadRow,
    Place,
    SignalComparison,
    aggregated,
    compare_aggregated,
)
from keyhole.studies.families.agreement import Agreement
from keyhole_papers.experiment import Attempt, Experiment, Job
from keyhole_papers.finding import NO_CLAIM, Finding, Findings, of_part
from keyhole_papers.svt import LEAST, is_gpt2, listed, role_rule, roles_of
from keyhole_papers.talk import ORDERS, Prompts, Study, of_study, sets_apart

ALIKE: tuple[Head, ...] = ((2, 8), (5, 9), (7, 0))  # published, of GPT-2
MOVER: Head = (9, 9)
_NEAR = 0.9  # cosine
_SHUFFLES = 19  # splits of the same prompts that pay no heed to order: the real one must beat all, p 0.05


@dataclass(frozen=True)
class Compared:
    """Signals of heads in the representatives of ABBA and BABA, and in splits of the prompts at random."""

    of: Prompts
    order: Agreement  # how far it sets circuits apart
    prompts: tuple[int | None, int | None]  # the representatives
    real: SignalComparison
    bare: Mapping[tuple[Place, str], float]  # cosines of the representatives without the heads' own biases
    shuffled: tuple[SignalComparison, ...]
    name_movers: frozenset[Head]  # the published one of GPT-2; of another model, those that play the role

    def rows(self, head: Head | None = None, side: str | None = None) -> list[HeadRow]:
        """Of one head, or one side."""
        rows = [row for row in self.real.rows if head in (None, (row.place.layer, row.place.head))]
        return [row for row in rows if side in (None, row.side)]

    @property
    def alike(self) -> list[Head]:
        """Heads with like signals on both sides of a firing, as within one order, also without their biases."""
        held: dict[Place, set[str]] = {}
        for row in self.real.rows:
            near = min(row.cosine, self.bare.get((row.place, row.side), -1.0)) >= _NEAR
            if near and row.verdict == "as within":
                held.setdefault(row.place, set()).add(row.side)
        return sorted({(place.layer, place.head) for place, sides in held.items() if len(sides) == len(SIDES)})


@lru_cache(maxsize=1)
def compared_of(study: Study, job: Job) -> Compared:
    """Made once for both slides."""
    everyone = [*study.pair, *study.others[0], *study.others[1]]
    signals = []
    for done, member in enumerate(everyone):
        signals.append(aggregated(member, study.model))
        job.progress(done + 1, len(everyone))
    count = len(study.others[0])
    others = signals[2 : 2 + count], signals[2 + count :]
    bare = [aggregated(member, study.model, offsets=False) for member in study.pair]
    shared = ((side, place) for side in SIDES for place in set(bare[0].side(side)) & set(bare[1].side(side)))
    movers = [MOVER] if is_gpt2(job.model) else roles_of(job, study.model).get("name mover", ())
    return Compared(
        of=study.of,
        order=study.order,
        prompts=(study.pair[0].prompt, study.pair[1].prompt),
        real=compare_aggregated((signals[0], signals[1]), others, roles=True),
        bare={(at, side): float(bare[0].side(side)[at] @ bare[1].side(side)[at]) for side, at in shared},
        shuffled=shuffled_of(others, seed=job.seed),
        name_movers=frozenset(movers),
    )


def shuffled_of(
    others: tuple[Sequence[Aggregated], Sequence[Aggregated]], *, seed: int, draws: int = _SHUFFLES
) -> tuple[SignalComparison, ...]:
    """The same of prompts that are dealt to two groups whatever their order, with one of each as its representative."""
    rng, pool, splits = np.random.default_rng(seed), [*others[0], *others[1]], []
    for _ in range(draws if len(pool) >= 4 else 0):
        dealt = [pool[i] for i in rng.permutation(len(pool))]
        half = len(dealt) // 2
        groups = dealt[1:half], dealt[half + 1 :]
        splits.append(compare_aggregated((dealt[0], dealt[half]), groups, roles=True))
    return tuple(splits)


def movers(comparison: SignalComparison) -> list[HeadRow]:
    """Heads that attend from the end to IO, on the side that says where to look from."""
    return [row for row in comparison.rows if (row.place.dest, row.place.src) == ("END", "IO") and row.side == "dest"]


def different(rows: Sequence[HeadRow]) -> list[HeadRow]:
    """Those that get another signal, beyond the noise."""
    return [row for row in rows if row.verdict == "different"]


def found_alike(record: Compared) -> Findings:
    """Published: three heads. Do they get the same signals in both orders, or as many heads of another model?"""
    known = [row for row in record.real.rows if row.verdict != "no floor"]
    published = is_gpt2(record.of.model)
    as_many = f"{len(ALIKE)} or more, whatever they are, on a model other than GPT-2", len(record.alike) >= len(ALIKE)
    rows = [
        *_compared(record),
        Finding("signals with a noise floor", len(known)),
        Finding("as within", sum(row.verdict == "as within" for row in known)),
        Finding("heads alike", len(record.alike), *(NO_CLAIM if published else as_many)),
        Finding("these are", listed(record.alike) or "none"),
    ]
    claim = f"median cosines of {_NEAR:g} or more on each side, none different beyond the noise"
    for head in ALIKE if published else ():
        places = record.rows(head)
        rows.append(Finding(f"signals of {head_name(head)}", len(places), claim, _near(record, head)))
        rows += [row for place in places for row in _at(place, f"{place.place}, {place.side}")]
    remark = (
        f"As within: as alike between orders as within them. Heads alike: with cosines of {_NEAR:g} or more on both "
        f"sides, also without their own biases. {_how(record)}"
    )
    return Findings(rows, record.of.provenance(), first=sets_apart(record.order), unless=_APART, remark=remark)


def found_mover(record: Compared) -> Findings:
    """Published: 9.9. Is its cosine negative, and below the noise; or is that of a name mover of another model?"""
    attending = sorted(movers(record.real), key=lambda row: row.cosine)
    rows = [row for row in attending if _head(row) in record.name_movers]
    beyond = different(rows)
    chance = [len(different(movers(split))) for split in record.shuffled]
    many = len(different(attending)) > max(chance, default=0) and bool(beyond)
    claim = "more than in any random split of the same prompts, and a name mover (of GPT-2, 9.9) among them"
    lowest = min((row.cosine for row in beyond), default=math.nan)
    findings = [
        *_compared(record),
        Finding("movers", len(attending)),
        Finding("movers told something else", len(different(attending)), claim, many),
        Finding("in random splits", [float(count) for count in chance], digits=1),
        Finding("movers with a negative cosine", sum(row.cosine < 0 for row in attending)),
        Finding("lowest cosine of a name mover told something else", lowest, "below 0", lowest < 0),
        *(row for place in attending for row in _at(place, str(place.place))),
    ]
    remark = (
        "Movers: heads that attend from the end to IO in both; their signals are compared at the end, on the side "
        f"that says where to look from. Name movers: {listed(sorted(record.name_movers)) or 'none'}. Told something "
        "else: lower than within either order (below 5 % of its pairs, means of pairs apart). Random splits of the "
        f"same prompts: {_SHUFFLES}. {_how(record)}"
    )
    of = replace(record.of.provenance(), heads=role_rule(record.of.model))
    first = sets_apart(record.order) and many
    unless = f"{_APART}, and more movers get another signal than in random splits"
    return Findings(findings, of, first=first, unless=unless, remark=remark)


_APART = "orders set circuits apart, so that both representatives are not of one family"


def _near(record: Compared, head: Head) -> bool:
    """Near 1 on every side that both representatives have, and nowhere different."""
    rows = record.rows(head)
    sides = [[row.cosine for row in rows if row.side == side] for side in SIDES]
    return bool(rows) and not different(rows) and all(median(cosines) >= _NEAR for cosines in sides if cosines)


def _at(row: HeadRow, part: str) -> list[Finding]:
    """The signals of one head at one place: how alike, against pairs of prompts within an order and between orders."""
    between = [] if row.between is None else [Finding("mean between orders", Interval(*row.between), digits=2)]
    cosine, floor = Finding("cosine", row.cosine, digits=2), Finding("floor", row.floor, digits=2)
    return of_part(part, cosine, floor, *between, Finding("verdict", row.verdict))


def _compared(record: Compared) -> list[Finding]:
    """How many signals, and how far the order of names sets circuits apart."""
    order = record.order
    return [
        Finding("signals compared", len(record.real.rows)),
        Finding("explained by order", order.explained.value),
        Finding("p of that", order.explained.p),
        Finding("nearest circuit of the same order", order.nearest.value, percent=True),
        Finding("p of the nearest", order.nearest.p),
    ]


def _how(record: Compared) -> str:
    (a, b), members = record.prompts, record.real.members
    return (
        f"Representatives: prompt {a} ({ORDERS[0]}) and {b} ({ORDERS[1]}). A head's signals are summed on each side of "
        f"a firing, firings matched by the roles of their tokens; the floor is of {members[0]} and {members[1]} other "
        "prompts. Order explains a part of the squared distances of circuits."
    )


def _draw_signals(record: Compared, *, ends: bool) -> Mapping[str, Figure]:
    """Rows at the end, or those whose floor is known; the heads of the claim first where there are many."""
    rows = [row for row in record.real.rows if (row.place.dest == "END" if ends else not np.isnan(row.floor))]
    if not rows:
        return {}
    names = [f"{order} (prompt {prompt})" for order, prompt in zip(ORDERS, record.prompts, strict=True)]
    shown = Comparison(names[0], names[1], (1, 1), signals=replace(record.real, rows=tuple(rows)))
    return {"signals": signals_figure(shown)}


def _head(row: HeadRow) -> Head:
    return row.place.layer, row.place.head


_SIDES: dict[Which, str] = {"a": ORDERS[0], "b": ORDERS[1]}


@dataclass(frozen=True)
class Removed:
    """The two by two."""

    of: Prompts
    prompts: tuple[int | None, int | None]  # the representatives
    exclusive: Exclusive


def removed_of(study: Study, job: Job) -> Removed:
    """Edges of each representative alone, removed in other prompts of both orders."""
    how: dict[str, Any] = {"draws": 1 if job.quick else 3, "seed": job.seed, "progress": job.progress}
    exclusive = remove_exclusive(study.pair, study.others, study.model, **how)
    return Removed(study.of, (study.pair[0].prompt, study.pair[1].prompt), exclusive)


def found_exclusive(record: Removed) -> Findings:
    """Does each representative's removal hurt its own order more, and more than random channels?"""
    exclusive, interaction = record.exclusive, Interval(*record.exclusive.interaction)
    rows = [Finding("interaction", interaction)]
    for which, order in _SIDES.items():
        rows += of_part(f"{order} edges", *_of_edges(exclusive, which))
    enough = all(len(exclusive.cell(edges, order_of).measured) >= LEAST for edges in _SIDES for order_of in _SIDES)
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


def _of_edges(exclusive: Exclusive, which: Which) -> list[Finding]:
    """What one representative's own edges do to prompts of both orders, beside controls."""
    held, why = exclusive.verdict(which)
    claim = (
        "a loss on the own order beyond that on the other, and beyond that by random channels of the same writers and "
        "heads, intervals apart; also if the effect on the other order is scaled up by the edges without a place there"
    )
    rows = [
        Finding("edges", len(exclusive.a if which == "a" else exclusive.b)),
        Finding("alone", why, claim, held is True and beyond_places(exclusive, which)),
    ]
    for on, order in _SIDES.items():
        rows.append(Finding(f"placed in {order} prompts", exclusive.cell(which, on).placed, percent=True))
        for kind in WHATS:
            cell = exclusive.cell(which, on, kind)
            if cell.measured:
                rows.append(Finding(f"{order} prompts, {kind}", Interval(*cell.spread)))
    return rows


def beyond_places(exclusive: Exclusive, which: Which) -> bool:
    """Would the own order be hurt more if as many edges had a place in the other? Fewer have: an order moves tokens."""
    home, away = exclusive.cell(which, which), exclusive.cell(which, "b" if which == "a" else "a")
    return home.spread[2] < away.spread[1] * max(1.0, home.placed / max(away.placed, 1e-9))


def _draw_exclusive(record: Removed) -> Mapping[str, Figure]:
    if not any(cell.measured for cell in record.exclusive.cells):
        return {}
    names = [f"{order} (prompt {prompt})" for order, prompt in zip(ORDERS, record.prompts, strict=True)]
    figure = removals_figure(Comparison(names[0], names[1], (1, 1), exclusive=record.exclusive))
    heading(figure, f"Edges that one representative has alone: a is {names[0]}, b is {names[1]}")
    return {"removed": figure}


RUNS: dict[str, Attempt] = {
    "talk-17": Experiment(partial(of_study, compared_of), found_alike, partial(_draw_signals, ends=False)),
    "talk-18": Experiment(partial(of_study, compared_of), found_mover, partial(_draw_signals, ends=True)),
    "talk-26": Experiment(partial(of_study, removed_of), found_exclusive, _draw_exclusive),
}
