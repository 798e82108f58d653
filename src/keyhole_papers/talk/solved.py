"""How is each order of names solved? By what its representative's signals follow when the order is turned."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from matplotlib.figure import Figure

from keyhole.figures.style import BLUE, GREY
from keyhole.naming.cues import BREAKS, Break
from keyhole.naming.naming import Namers
from keyhole.naming.subjects.subject import same_direction
from keyhole_papers.experiment import NAMERS, Attempt, Experiment
from keyhole_papers.finding import NO_CLAIM, Claim, Finding, Findings, of_part
from keyhole_papers.svt.answers import panels
from keyhole_papers.talk.families import Prompts
from keyhole_papers.talk.names import Follows, NameStudy, Way, of_names

_SHOWN = 4  # signals of which it is said where they fire
_MORE = "more of the signals than of random directions (Fisher's exact test, 0.05)"
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


def found_baba(record: Solved) -> Findings:
    """Is IO marked by its place, do S-inhibition heads tell name movers, and do these write the answer?"""
    way = record.way
    claims: dict[str, Claim] = {
        "name movers": ("one that writes the answer", bool(way.movers)),
        "S-inhibition heads": ("one that looks at S2 and tells a name mover where to look", bool(way.inhibition)),
    }
    return _findings(record, "second", claims)


def found_abba(record: Solved) -> Findings:
    """Is IO found by its place here, too, and by other signals than in the other order?"""
    placed = sum(one.place for one in record.way.signals)
    asked = "less than half of the signals that follow a place"
    return _findings(record, "first", {"shared with the other order": (asked, 2 * record.shared < placed)})


def _findings(record: Solved, place: str, claims: Mapping[str, Claim]) -> Findings:
    """What the signals follow, and what is asked of other numbers by their names."""
    way, placed = record.way, record.way.beyond("place")
    counts = {
        "names above chance": len(way.names),
        "names of a place": len(record.said),
        "shared with the other order": record.shared,
        "name movers": len(way.movers),
        "S-inhibition heads": len(way.inhibition),
    }
    rows = [Finding(name, count, *claims.get(name, NO_CLAIM)) for name, count in counts.items()]
    for group, signals in (("signals", way.signals), ("random", way.random)):
        rows.append(Finding(group, len(signals)))
        claim = (_MORE, placed) if group == "signals" else NO_CLAIM
        rows += of_part(
            group,
            Finding("place", sum(one.place for one in signals), *claim),
            *(Finding(what, sum(getattr(one, what) for one in signals)) for what in ("person", "anywhere", "extra")),
        )
    for signal in way.signals[:_SHOWN]:
        rows += of_part(signal.signal, *_fires(signal), *_named(way, signal))
    remark = (
        f"Of {way.order}, prompt {way.prompt}: signals into heads that look from the end at IO, and random directions "
        f"of the same heads. Name movers: {', '.join(way.movers) or 'none'}; heads that look at S2 and tell them where "
        f"to look: {', '.join(way.inhibition) or 'none'}. A signal fires with half of its usual value or more. It "
        f"follows a place (IO's is the {place} of the two names) if it fires at IO in intact prompts, and at S where "
        "the two names changed places, in half of the prompts more than the other way round; a person, if at IO in "
        f"both. {record.by}"
    )
    unless = "more of the signals follow a place than of random directions"
    return Findings(rows, record.of.provenance(), first=placed, unless=unless, remark=remark)


def _fires(signal: Follows) -> list[Finding]:
    """In what share of prompts, by how these are broken."""
    shares = {how: f"{signal.at(how, 'IO'):.0%} at IO and {signal.at(how, 'S1'):.0%} at S" for how in BREAKS}
    return [Finding(f"fires in {how}", share) for how, share in shares.items()]


def _named(way: Way, signal: Follows) -> list[Finding]:
    name = way.names.get(signal.signal)
    return [Finding("is named", name)] if name else []


def _draw(record: Solved) -> Mapping[str, Figure]:
    if not record.way.signals:
        return {}
    names: dict[Break, str] = {"intact": "intact", "order": "names in the other order"}
    title = f"{record.way.order}: where do signals fire?"
    figure, axes = panels(names.values(), title, (8.5, 3.6), x="share of prompts, at IO")
    for axis, how in zip(axes, names, strict=True):
        for group, shade, size in ((record.way.random, GREY, 16), (record.way.signals, BLUE, 30)):
            x, y = ([one.at(how, role) for one in group] for role in ("IO", "S1"))
            axis.scatter(x, y, s=size, color=shade, alpha=0.7, linewidths=0)
        axis.set_xlim(-0.05, 1.05)
        axis.set_ylim(-0.05, 1.05)
    axes[0].set_ylabel("at S (signals blue, random directions grey)")
    return {"cues": figure}


def _solved(order: str, findings: Callable[[Solved], Findings]) -> Experiment[Solved]:
    return Experiment(partial(of_names, partial(solved_of, order)), findings, _draw, heeds=NAMERS)


RUNS: dict[str, Attempt] = {"talk-20": _solved("BABA", found_baba), "talk-21": _solved("ABBA", found_abba)}
