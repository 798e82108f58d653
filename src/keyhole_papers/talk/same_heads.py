"""Are the same heads told the same in both orders of names? Cosines of summed signals beside a noise floor."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from statistics import median

import numpy as np
from matplotlib.figure import Figure

from keyhole.comparison.compare import Comparison
from keyhole.comparison.signals import (
    SIDES,
    Aggregated,
    HeadRow,
    Place,
    SignalComparison,
    aggregated,
    compare_aggregated,
)
from keyhole.family import Agreement
from keyhole.figures.store.comparison import signals_figure
from keyhole.models.heads import Head
from keyhole_papers.job import Attempt
from keyhole_papers.results import Numbers, Verdict
from keyhole_papers.svt.ioi import is_gpt2, listed, role_rule, roles_of
from keyhole_papers.talk.study import ORDERS, Prompts, Study, of_study, sets_apart
from keyhole_papers.told import Experiment, Told, judged, stood_in

ALIKE: tuple[Head, ...] = ((2, 8), (5, 9), (7, 0))  # published, of GPT-2
MOVER: Head = (9, 9)
_NEAR = 0.9  # cosine
_SHUFFLES = 19  # splits of the same prompts that pay no heed to order: the real one must beat all, p 0.05


@dataclass(frozen=True)
class Compared:
    """What heads are told in the representatives of ABBA and BABA, and in splits of the prompts at random."""

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
        """Heads told the same on both sides of a firing, as much as within one order, also without their biases."""
        held: dict[Place, set[str]] = {}
        for row in self.real.rows:
            near = min(row.cosine, self.bare.get((row.place, row.side), -1.0)) >= _NEAR
            if near and row.verdict == "as within":
                held.setdefault(row.place, set()).add(row.side)
        return sorted({(place.layer, place.head) for place, sides in held.items() if len(sides) == len(SIDES)})


@lru_cache(maxsize=1)
def compared_of(seen: Study) -> Compared:
    """Made once for both slides."""
    everyone = [*seen.pair, *seen.others[0], *seen.others[1]]
    told = []
    for done, one in enumerate(everyone):
        told.append(aggregated(one, seen.model))
        seen.asked.progress(done + 1, len(everyone))
    count = len(seen.others[0])
    others = told[2 : 2 + count], told[2 + count :]
    bare = [aggregated(one, seen.model, offsets=False) for one in seen.pair]
    return Compared(
        of=seen.of,
        order=seen.order,
        prompts=(seen.pair[0].prompt, seen.pair[1].prompt),
        real=compare_aggregated((told[0], told[1]), others, roles=True),
        bare=_cosines(bare[0], bare[1]),
        shuffled=shuffled_of(others, seed=seen.asked.seed),
        name_movers=frozenset([MOVER] if is_gpt2(seen.asked.model) else _movers_of(seen)),
    )


def _movers_of(seen: Study) -> tuple[Head, ...]:
    return roles_of(seen.asked, seen.model).get("name mover", ())


def shuffled_of(
    others: tuple[Sequence[Aggregated], Sequence[Aggregated]], *, seed: int, draws: int = _SHUFFLES
) -> tuple[SignalComparison, ...]:
    """The same of prompts that are dealt to two groups whatever their order, with one of each as its representative."""
    rng, pool, found = np.random.default_rng(seed), [*others[0], *others[1]], []
    for _ in range(draws if len(pool) >= 4 else 0):
        dealt = [pool[i] for i in rng.permutation(len(pool))]
        half = len(dealt) // 2
        groups = dealt[1:half], dealt[half + 1 :]
        found.append(compare_aggregated((dealt[0], dealt[half]), groups, roles=True))
    return tuple(found)


def movers(comparison: SignalComparison) -> list[HeadRow]:
    """Heads that attend from the end to IO, on the side that says where to look from."""
    return [row for row in comparison.rows if (row.place.dest, row.place.src) == ("END", "IO") and row.side == "dest"]


def different(rows: Sequence[HeadRow]) -> list[HeadRow]:
    """Those that are told something else, beyond the noise."""
    return [row for row in rows if row.verdict == "different"]


def judge_alike(record: Compared) -> Verdict:
    """Published: three heads. Are they told the same, or are as many of another model?"""
    many = [len(record.alike) >= len(ALIKE)]
    holds = [_near(record, head) for head in ALIKE] if is_gpt2(record.of.model) else many
    return judged(record.of, holds, first=sets_apart(record.order))


def judge_mover(record: Compared) -> Verdict:
    """Published: 9.9. Is its cosine negative, and below the noise; or is that of a name mover of another model?"""
    rows = [row for row in movers(record.real) if _head(row) in record.name_movers]
    beyond = different(rows)
    chance = max((len(different(movers(one))) for one in record.shuffled), default=0)
    holds = [any(row.cosine < 0 for row in beyond), len(different(movers(record.real))) > chance and bool(beyond)]
    return judged(record.of, holds, first=sets_apart(record.order) and holds[1])


def _near(record: Compared, head: Head) -> bool:
    """Near 1 on every side that both representatives have, and nowhere different."""
    rows = record.rows(head)
    sides = [[row.cosine for row in rows if row.side == side] for side in SIDES]
    return bool(rows) and not different(rows) and all(median(own) >= _NEAR for own in sides if own)


def _tell_alike(record: Compared) -> Told:
    known = [row for row in record.real.rows if row.verdict != "no floor"]
    within = [row for row in known if row.verdict == "as within"]
    text = (
        f"{_compared_text(record)} Of {len(known)} signals with a noise floor, {len(within)} are as alike between "
        f"orders as within; heads with cosines of {_NEAR:g} or more on both sides, also without their own biases: "
        f"{listed(record.alike) or 'none'}."
    )
    lines = [text, *(_row_text(row) for head in ALIKE if is_gpt2(record.of.model) for row in record.rows(head))]
    note = (
        f"Asked of GPT-2: median cosines of {_NEAR:g} or more for 2.8, 5.9 and 7.0 on each side, none different beyond "
        "the noise; of another model: as many heads, each as alike between orders as within. Either way, orders must "
        f"set circuits apart, or both representatives are of one family. {_note(record)}"
    )
    numbers: Numbers = {**_numbers(record), "as within": len(within), "heads alike": len(record.alike)}
    return Told("\n".join(lines), numbers, note)


def _tell_mover(record: Compared) -> Told:
    rows = sorted(movers(record.real), key=lambda row: row.cosine)
    chance = [len(different(movers(one))) for one in record.shuffled]
    text = (
        f"{_compared_text(record)} Heads that attend from the end to IO in both: {len(rows)}; told something else at "
        f"the end, beyond the noise: {len(different(rows))} (in random splits of the prompts at most "
        f"{max(chance, default=0)}), negative {sum(row.cosine < 0 for row in rows)}. Name movers: "
        f"{listed(sorted(record.name_movers)) or 'none'}."
    )
    note = (
        "Asked: the cosine of a name mover at the end (of GPT-2, 9.9) is negative, and lower than within either order "
        "(below 5 % of its pairs, means of pairs apart); and more heads that attend from the end to IO are told "
        f"something else than in any of {_SHUFFLES} random splits of the same prompts. Orders must set circuits apart. "
        f"{role_rule(record.of.model)} {_note(record)}"
    )
    numbers: Numbers = {**_numbers(record), "movers": len(rows), "movers told something else": len(different(rows))}
    numbers |= {"in random splits": [float(one) for one in chance]}
    numbers |= {f"{row.place}: cosine": row.cosine for row in rows}
    return Told("\n".join([text, *map(_row_text, rows[:6])]), numbers, note)


def _compared_text(record: Compared) -> str:
    a, b = record.prompts
    return f"Representatives: prompt {a} ({ORDERS[0]}) and {b} ({ORDERS[1]})."


def _row_text(row: HeadRow) -> str:
    floor = "no floor" if np.isnan(row.floor) else f"floor {row.floor:.2f}"
    between = "" if row.between is None else f", mean between orders {row.between[0]:.2f}"
    return f"{row.place}, {row.side}: cosine {row.cosine:.2f} ({floor}{between}): {row.verdict}."


def _numbers(record: Compared) -> Numbers:
    return {
        "signals compared": len(record.real.rows),
        "explained by order": record.order.explained.value,
        "p of that": record.order.explained.p,
        "nearest circuit of the same order": record.order.nearest.value,
    }


def _note(record: Compared) -> str:
    members = record.real.members
    return (
        f"A head's signals are summed on each side of a firing, firings matched by the roles of their tokens; the "
        f"floor is of {members[0]} and {members[1]} other prompts. Order explains {record.order.explained.value:.3f} "
        f"of the squared distances of circuits (p {record.order.explained.p:.2g}), and the nearest circuit is of the "
        f"same order in {record.order.nearest.value:.0%} (p {record.order.nearest.p:.2g}). "
        f"{record.of.note} {stood_in(record.of)}"
    )


def _draw(record: Compared, *, ends: bool) -> Mapping[str, Figure]:
    """Rows at the end, or those whose floor is known; the heads of the claim first where there are many."""
    rows = [row for row in record.real.rows if (row.place.dest == "END" if ends else not np.isnan(row.floor))]
    if not rows:
        return {}
    names = [f"{order} (prompt {prompt})" for order, prompt in zip(ORDERS, record.prompts, strict=True)]
    shown = Comparison(names[0], names[1], (1, 1), signals=replace(record.real, rows=tuple(rows)))
    return {"signals": signals_figure(shown)}


def _head(row: HeadRow) -> Head:
    return row.place.layer, row.place.head


def _cosines(a: Aggregated, b: Aggregated) -> dict[tuple[Place, str], float]:
    shared = ((side, place) for side in SIDES for place in set(a.side(side)) & set(b.side(side)))
    return {(place, side): float(a.side(side)[place] @ b.side(side)[place]) for side, place in shared}


RUNS: dict[str, Attempt] = {
    "talk-17": Experiment(partial(of_study, compared_of), judge_alike, _tell_alike, partial(_draw, ends=False)),
    "talk-18": Experiment(partial(of_study, compared_of), judge_mover, _tell_mover, partial(_draw, ends=True)),
}
