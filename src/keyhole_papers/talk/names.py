"""Can signals be named, and how do they find IO? Those of the published prompts' circuits, named once for all slides.

Names are by statistics and a rule, or by a model behind an endpoint. Beside those that are right stand names of random
directions and shuffled ones.

Whether IO is found by its place in the pair, or whoever it is, the same prompts tell when they are turned. In an intact
prompt and in the same one with the two names in the other order, a signal that follows a place fires at IO in the one
and at S in the other; one that follows the person, at IO in both. Random directions of the same heads stand beside the
signals: they are no signals, and some of them follow something, too.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TypeVar

from matplotlib.figure import Figure

from keyhole.circuits.circuit import Circuit, Node
from keyhole.figures.style import BLUE, GREY
from keyhole.models.model import Model
from keyhole.naming.attached import edge_names
from keyhole.naming.cues import EXTRA, Break, break_cue
from keyhole.naming.judge.judge import LEVEL, RANDOM, RANDOM_PASS, SHUFFLED, Share
from keyhole.naming.naming import Namers, name_by, randoms, seek
from keyhole.naming.record import LANDMARKS, Naming
from keyhole.naming.representatives import Side, side_by_side
from keyhole.naming.subjects.kinds import signal_subjects
from keyhole.naming.subjects.operands import strength
from keyhole.naming.subjects.subject import Subject, distinct
from keyhole.progress import part_of
from keyhole.stats import Interval, fisher
from keyhole.store.store import Store
from keyhole.studies.families.families import RIGHT
from keyhole_papers.experiment import NAMERS, Attempt, Experiment, Job, spreads
from keyhole_papers.finding import NO_CLAIM, Claim, Finding, Findings, of_part
from keyhole_papers.talk import Prompts, published_name, traced_store

_CLEAR = 0.5  # of the prompts: so many more fire where it should than where it should not
_WAY_SIGNALS, _WAY_RANDOM, _WAY_PROMPTS = 12, 60, 40
_QUICK_WAY = (4, 4, 6)


@dataclass(frozen=True)
class Follows:
    """One direction: in what share of prompts it fires at a role, by how the prompt was broken."""

    signal: str
    fires: Mapping[tuple[Break, str], float]

    def at(self, how: Break, role: str) -> float:
        """0 where the prompts have no such token."""
        return self.fires.get((how, role), 0.0)

    @property
    def place(self) -> bool:
        """Does it stay at IO's place when the names change places?"""
        stays = min(self.at("intact", "IO"), self.at("order", "S1"))
        return stays - max(self.at("intact", "S1"), self.at("order", "IO")) >= _CLEAR

    @property
    def person(self) -> bool:
        """Does it stay with IO?"""
        stays = min(self.at("intact", "IO"), self.at("order", "IO"))
        return stays - max(self.at("intact", "S1"), self.at("order", "S1")) >= _CLEAR

    @property
    def anywhere(self) -> bool:
        """Does it fire as well when a sentence stands before it all, so that all positions are others?"""
        return self.at("position", "IO") >= _CLEAR

    @property
    def extra(self) -> bool:
        """Does a third name between both take its place?"""
        return self.at("extra name", EXTRA) - self.at("extra name", "IO") >= _CLEAR


@dataclass(frozen=True, kw_only=True)
class Way:
    """What the representative of one order shows."""

    order: str
    prompt: int
    signals: tuple[Follows, ...]  # into heads that look from the end at IO
    random: tuple[Follows, ...]
    names: Mapping[str, str]  # of those signals that have a name above chance
    movers: tuple[str, ...]  # heads that look from the end at IO and write into the answer
    inhibition: tuple[str, ...]  # heads that look from the end at S2, and tell one of these where to look
    directions: tuple[Subject, ...]

    def beyond(self, kind: str) -> bool:
        """Do more of the signals follow it than of random directions, by Fisher's test?"""
        signals, random = ([getattr(follows, kind) for follows in group] for group in (self.signals, self.random))
        return any(signals) and bool(random) and fisher(sum(signals), len(signals), sum(random), len(random)) <= 0.05


def way_of(store: Store, side: Side, naming: Naming, model: Model, *, quick: bool = False) -> Way:
    """One representative: its signals into name movers, and prompts of its order that are broken."""
    most, random, prompts = _QUICK_WAY if quick else (_WAY_SIGNALS, _WAY_RANDOM, _WAY_PROMPTS)
    circuit, example = store.circuit(side.prompt), store[side.prompt].example
    assert example is not None
    order = side.group.partition("=")[2]
    places = example.places(circuit.tokens)
    every = sorted(signal_subjects(circuit, model), key=lambda subject: -strength(circuit, subject))
    signals = distinct([subject for subject in every if _looks(_into(circuit, subject), places, "IO")])[:most]
    right = [outcome.example for outcome in store.outcomes(RIGHT) if outcome.example is not None]
    examples = [shown for shown in right if shown.labels.get("order") == order]
    examples = examples[:: max(1, len(examples) // prompts)][:prompts]
    texts = edge_names(circuit, naming, model)
    edges = {subject.id: circuit.edges[int(subject.about["edge"])] for subject in signals}
    names = {key: texts[edge] for key, edge in edges.items() if edge in texts}
    movers, inhibition = _heads(circuit, places)
    nulls = randoms(model, signals, random, naming.seed) if signals else []
    cues = break_cue(model, [*signals, *nulls], examples, seed=naming.seed) if signals else ()
    followed = [
        Follows(subject.id, {(cue.how, cue.src): cue.fires / cue.prompts for cue in cues if cue.signal == subject.id})
        for subject in (*signals, *nulls)
    ]
    return Way(
        order=order,
        prompt=side.prompt,
        signals=tuple(followed[: len(signals)]),
        random=tuple(followed[len(signals) :]),
        names=names,
        movers=movers,
        inhibition=inhibition,
        directions=tuple(signals),
    )


def _into(circuit: Circuit, subject: Subject) -> Node:
    return circuit.nodes[circuit.edges[int(subject.about["edge"])].receiver]


def _looks(node: Node, places: Mapping[str, int], role: str) -> bool:
    return node.kind == "head" and (node.dest, node.src) == (places.get("END"), places.get(role, -1))


def _heads(circuit: Circuit, places: Mapping[str, int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(Name movers, S-inhibition heads), as this circuit has them."""
    nodes = circuit.nodes
    movers = {
        e.sender for e in circuit.edges if nodes[e.receiver].kind == "target" and _looks(nodes[e.sender], places, "IO")
    }
    tellers = {
        e.sender
        for e in circuit.edges
        if e.side == "dest" and _looks(nodes[e.receiver], places, "IO") and _looks(nodes[e.sender], places, "S2")
    }
    named = [tuple(sorted({f"{nodes[i].layer}.{nodes[i].head}" for i in some})) for some in (movers, tellers)]
    return named[0], named[1]


SHARES = {"GPT-2 small": 0.63, "Pythia-160M": 0.50, "Gemma-2-2B": 0.31}  # published, by other judges
_PROMPTS, _SIGNALS, _RANDOM, _TOKENS = 600, 200, 200, 250_000
_QUICK = (60, 12, 12, 4000)
Record = TypeVar("Record")


@dataclass(frozen=True)
class NameStudy:
    """Named signals of a model's right answers."""

    of: Prompts
    naming: Naming
    ways: tuple[Way, ...]  # how the representatives of ABBA and BABA find IO
    by: Namers


@dataclass(frozen=True)
class NamedShares:
    """How many names are right, of signals and of what is none."""

    of: Prompts
    right: Share  # above chance
    passed: Share  # and beyond random directions' names
    controls: Mapping[str, Share]
    by: Namers = field(default_factory=Namers)


def of_names(make: Callable[[NameStudy], Record], job: Job) -> Record:
    """A record of the names of a job's model: `partial(of_names, make)` measures."""
    return make(_names(job, job.folder.parent))


@lru_cache(maxsize=1)
def _names(job: Job, workshop: Path) -> NameStudy:
    """The study; the answers of a model behind an endpoint are kept in the workshop: a second call pays nothing."""
    n, most, random, tokens = _QUICK if job.quick else (_PROMPTS, _SIGNALS, _RANDOM, _TOKENS)
    with traced_store(job, n, part_of(job.progress, 0, 0.4)) as (model, store, of):
        reading, naming_progress = part_of(job.progress, 0.4, 0.8), part_of(job.progress, 0.8, 0.9)
        sought = seek(store, model, most=most, random=random, tokens=tokens, seed=job.seed, progress=reading)
        by = replace(job.namers, transcript=workshop / job.namers.transcript.name)
        naming = name_by(sought, by, stage=lambda part: nullcontext(naming_progress))
        sides = side_by_side(store, naming, model, by="order")
        ways = tuple(way_of(store, side, naming, model, quick=job.quick) for side in sides)
    return NameStudy(of, naming, ways, job.namers)


def shares_of(study: NameStudy) -> NamedShares:
    """The shares alone."""
    naming = study.naming
    controls = {share.group: share for share in naming.controls}
    return NamedShares(study.of, naming.above_chance(), naming.share(), controls, study.by)


def findings(record: NamedShares) -> Findings:
    """Are names right of their own signals, and more often than random directions' names?

    Explainer and judge are others than the published ones, also where they are language models: a share that is near
    to the published one reproduces nothing, and one that is far from it refutes nothing.
    """
    of, holds = record.of.provenance(*SHARES), own_names(record) and beyond_random(record)
    claim: Claim = (
        "above that of shuffled names (intervals apart), and above that of random directions of the same heads, made "
        f"and judged in the same way (Fisher's exact test, {LEVEL:g})",
        holds,
    )
    rows: list[Finding] = []
    for group, share in {"above chance": record.right, "pass": record.passed, **record.controls}.items():
        rows += of_part(
            group,
            Finding("signals", share.signals),
            Finding("share", _interval(share), *(claim if share is record.right else NO_CLAIM)),
            Finding("without a name", share.nameless),
        )
    name = published_name(record.of.model)
    published = f"Published of {name}: {SHARES[name]:.0%}. " if name in SHARES else ""
    remark = (
        "Names are made from one half of the texts and judged on the other. Above chance: at a false discovery rate of "
        f"5 %; pass: beyond random directions' names as well. {published}{record.by} Published shares are by other "
        f"language models with other prompts, without random directions beside them: landmarks ({LANDMARKS}). So the "
        "verdict is in part at most."
    )
    verdict = of.verdict([True], first=holds)
    return Findings(rows, of, remark=remark, judged="partly" if verdict == "reproduced" else verdict)


def _interval(share: Share) -> Interval:
    return Interval(share.share, share.low, share.high)


def own_names(record: NamedShares) -> bool:
    """Are more names right than names of other signals would be?"""
    shuffled = record.controls.get(SHUFFLED)
    return shuffled is not None and shuffled.signals > 0 and record.right.low > shuffled.high


def beyond_random(record: NamedShares) -> bool:
    """Are more names right than those of random directions?"""
    random = record.controls.get(RANDOM)
    counts = None if random is None else (record.right.passed, record.right.signals, random.passed, random.signals)
    return counts is not None and random is not None and random.signals > 0 and fisher(*counts) <= LEVEL


def _draw(record: NamedShares) -> Mapping[str, Figure]:
    groups = {"names": record.right} | {name: share for name, share in record.controls.items() if name != RANDOM_PASS}
    rows = {
        f"{name} ({share.signals})": [(_interval(share), BLUE if name == "names" else GREY)]
        for name, share in groups.items()
    }
    title = "Names that are right at a false discovery rate of 5 %"
    figure, axis = spreads(rows, title, (7.5, 0.5), "share (95 % interval)")
    axis.set_xlim(0, 1)
    return {"shares": figure}


RUNS: dict[str, Attempt] = {
    "talk-19": Experiment(partial(of_names, shares_of), findings, _draw, heeds=NAMERS),
}
