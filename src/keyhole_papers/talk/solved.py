"""How is each order of names solved? By what its representative's signals follow when the order is turned."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from matplotlib.figure import Figure

from keyhole.figures.style import BLUE, GREY
from keyhole.naming.attached.same import same_direction
from keyhole.naming.namers import Namers
from keyhole_papers.choices import NAMERS
from keyhole_papers.job import Attempt
from keyhole_papers.results import Numbers, Verdict
from keyhole_papers.svt.panels import panels
from keyhole_papers.talk.names import NameStudy, of_names
from keyhole_papers.talk.study import Prompts
from keyhole_papers.talk.ways import Way
from keyhole_papers.told import Experiment, Told, judged, stood_in

_SHOWN = 4  # signals that are told
_WORDS: dict[str, tuple[str, ...]] = {  # what a name would say
    "BABA": ("second",),
    "ABBA": ("first", "second", "latest", "tokens before dest"),
}


@dataclass(frozen=True)
class Solved:
    """One order's way, and the other's."""

    of: Prompts
    way: Way
    other: Way
    by: Namers = field(default_factory=Namers)

    @property
    def said(self) -> list[str]:
        """Signals whose name, above chance, speaks of a place."""
        words = _WORDS[self.way.order]
        return [key for key, name in self.way.names.items() if any(word in name for word in words)]

    @property
    def shared(self) -> int:
        """Signals that follow a place and are among those of the other order's representative."""
        placed = {one.signal for one in self.way.signals if one.place}
        own = [one for one in self.way.directions if one.id in placed]
        return sum(any(a.head == b.head and same_direction(a, b) for b in self.other.directions) for a in own)


def solved_of(order: str, seen: NameStudy) -> Solved:
    """One of the two."""
    way = next(one for one in seen.ways if one.order == order)
    other = next(one for one in seen.ways if one.order != order)
    return Solved(seen.of, way, other, seen.asked.choices.namers)


def judge_baba(record: Solved) -> Verdict:
    """Is IO marked by its place, do S-inhibition heads tell name movers, and do these write the answer?"""
    way = record.way
    return judged(record.of, [way.beyond("place"), bool(way.inhibition), bool(way.movers)], first=way.beyond("place"))


def judge_abba(record: Solved) -> Verdict:
    """Is IO found by its place here, too, and by other signals than in the other order?"""
    placed = sum(one.place for one in record.way.signals)
    return judged(record.of, [record.way.beyond("place"), 2 * record.shared < placed], first=record.way.beyond("place"))


def _tell(record: Solved, *, asked: str) -> Told:
    way = record.way
    counts = {
        what: (sum(getattr(one, what) for one in way.signals), sum(getattr(one, what) for one in way.random))
        for what in ("place", "person")
    }
    ends = "; ".join(
        f"with IO's {what} {own} (of {len(way.random)} random directions of the same heads {other})"
        for what, (own, other) in counts.items()
    )
    lines = [
        f"{way.order}, prompt {way.prompt}: {len(way.signals)} signals into heads that look from the end at IO. When "
        f"the names change places, these stay: {ends}. Name movers: {', '.join(way.movers) or 'none'}; heads that look "
        f"at S2 and tell them where to look: {', '.join(way.inhibition) or 'none'}.",
        f"Of the signals that stay with the place, {record.shared} are the other order's, too. Names above chance: "
        f"{len(way.names)}, of which {len(record.said)} speak of such a place.",
    ]
    for one in way.signals[:_SHOWN]:
        shares = ", ".join(
            f"{how} {one.at(how, 'IO'):.0%} at IO and {one.at(how, 'S1'):.0%} at S"  # type: ignore[arg-type]
            for how in ("intact", "order", "extra name", "position")
        )
        named = way.names.get(one.signal)
        lines.append(f"{one.signal}: fires in {shares}{f'; named: {named}' if named else ''}.")
    note = (
        f"{asked} A signal fires with half of its usual value or more. It follows a place if it fires at IO in intact "
        "prompts, and at S where the two names changed places, in half of the prompts more than the other way round; a "
        "person, if at IO in both. More signals than random directions have to (Fisher's exact test, 0.05). "
        f"{record.by} {record.of.note} {stood_in(record.of)}"
    )
    return Told("\n".join(lines), _numbers(record), note)


def _numbers(record: Solved) -> Numbers:
    numbers: Numbers = {"names above chance": len(record.way.names), "names of a place": len(record.said)}
    numbers |= {"shared with the other order": record.shared}
    for group, own in (("signals", record.way.signals), ("random", record.way.random)):
        numbers |= {group: len(own)}
        for what in ("place", "person", "anywhere", "extra"):
            numbers |= {f"{group}: {what}": sum(getattr(one, what) for one in own)}
    return numbers | {"name movers": len(record.way.movers), "S-inhibition heads": len(record.way.inhibition)}


def _draw(record: Solved) -> Mapping[str, Figure]:
    if not record.way.signals:
        return {}
    names = ("intact", "names in the other order")
    figure, axes = panels(names, f"{record.way.order}: where do signals fire?", (8.5, 3.6), x="share of prompts, at IO")
    for axis, how in zip(axes, ("intact", "order"), strict=True):
        for group, shade, size in ((record.way.random, GREY, 16), (record.way.signals, BLUE, 30)):
            x, y = ([one.at(how, role) for one in group] for role in ("IO", "S1"))  # type: ignore[arg-type]
            axis.scatter(x, y, s=size, color=shade, alpha=0.7, linewidths=0)
        axis.set_xlim(-0.05, 1.05)
        axis.set_ylim(-0.05, 1.05)
    axes[0].set_ylabel("at S (signals blue, random directions grey)")
    return {"cues": figure}


_BABA = (
    "Asked: more of the signals follow IO's place (the second of the two names) than of random directions; a head that "
    "looks at S2 tells a name mover where to look; a name mover writes the answer."
)
_ABBA = (
    "Asked: more of the signals follow IO's place (the first of the two names) than of random directions; and most of "
    "these are not those by which the other order's representative finds it."
)
RUNS: dict[str, Attempt] = {
    "talk-20": Experiment(
        partial(of_names, partial(solved_of, "BABA")), judge_baba, partial(_tell, asked=_BABA), _draw, heeds=NAMERS
    ),
    "talk-21": Experiment(
        partial(of_names, partial(solved_of, "ABBA")), judge_abba, partial(_tell, asked=_ABBA), _draw, heeds=NAMERS
    ),
}
