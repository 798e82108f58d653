"""Can signals be named? The share of names that are right, beside names of random directions and shuffled ones.

The signals are those of the published prompts' circuits, fewer of them; they are named and judged once for all slides,
by statistics and a rule or by a model behind an endpoint.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TypeVar

from matplotlib.figure import Figure

from keyhole.figures.style import BLUE, GREY
from keyhole.naming.beside.representatives import Side, side_by_side
from keyhole.naming.judging.controls import RANDOM, RANDOM_PASS, SHUFFLED
from keyhole.naming.judging.scores import LEVEL, Share
from keyhole.naming.named import LANDMARKS, Naming
from keyhole.naming.namers import Namers, name_by
from keyhole.naming.naming import seek
from keyhole.progress import part_of
from keyhole.stats import fisher
from keyhole_papers.choices import NAMERS
from keyhole_papers.experiment import Experiment
from keyhole_papers.finding import NO_CLAIM, Finding, Findings, Interval, of_part
from keyhole_papers.job import Asked, Attempt, Job
from keyhole_papers.svt.panels import spreads
from keyhole_papers.talk.signals import published_name
from keyhole_papers.talk.study import Prompts, traced_store
from keyhole_papers.talk.ways import Way, way_of

SHARES = {"GPT-2 small": 0.63, "Pythia-160M": 0.50, "Gemma-2-2B": 0.31}  # published, by other judges
_PROMPTS, _SIGNALS, _RANDOM, _TOKENS = 600, 200, 200, 250_000
_QUICK = (60, 12, 12, 4000)
Record = TypeVar("Record")


@dataclass(frozen=True)
class NameStudy:
    """Named signals of a model's right answers. Equal if made for the same settings, so that it can stand for them."""

    asked: Asked
    of: Prompts = field(compare=False)
    naming: Naming = field(compare=False)
    sides: tuple[Side, ...] = field(compare=False)  # ABBA's representative and BABA's, in names
    ways: tuple[Way, ...] = field(compare=False)  # how both find IO


@dataclass(frozen=True)
class NamedShares:
    """How many names are right, of signals and of what is none."""

    of: Prompts
    right: Share  # above chance
    passed: Share  # and beyond random directions' names
    controls: Mapping[str, Share]
    by: Namers = field(default_factory=Namers)


def of_names(make: Callable[[NameStudy], Record], job: Job) -> Record:
    """What is made of the names of a job's model: `partial(of_names, make)` measures."""
    return make(_names(job.asked, job.folder.parent))


@lru_cache(maxsize=1)
def _names(asked: Asked, workshop: Path) -> NameStudy:
    """The study; what a model was asked and answered is kept in the workshop, so that a second call pays nothing."""
    n, most, random, tokens = _QUICK if asked.quick else (_PROMPTS, _SIGNALS, _RANDOM, _TOKENS)
    with traced_store(asked, n, part_of(asked.progress, 0, 0.4)) as (model, store, of):
        sought = seek(
            store,
            model,
            most=most,
            random=random,
            tokens=tokens,
            seed=asked.seed,
            progress=part_of(asked.progress, 0.4, 0.8),
        )
        by, told = asked.choices.namers, part_of(asked.progress, 0.8, 0.9)
        by = replace(by, transcript=workshop / by.transcript.name)
        naming = name_by(sought, by, stage=lambda part: nullcontext(told))
        sides = side_by_side(store, naming, model, by="order")
        ways = tuple(way_of(store, side, naming, model, quick=asked.quick) for side in sides)
    return NameStudy(asked, of, naming, sides, ways)


def shares_of(seen: NameStudy) -> NamedShares:
    """The shares alone."""
    naming = seen.naming
    controls = {one.group: one for one in naming.controls}
    return NamedShares(seen.of, naming.above_chance(), naming.share(), controls, seen.asked.choices.namers)


def findings(record: NamedShares) -> Findings:
    """Are names right of their own signals, and more often than random directions' names?

    Explainer and judge are others than the published ones, also where a language model is asked: a share that is near
    to the published one reproduces nothing, and one that is far from it refutes nothing.
    """
    of = record.of.provenance(*SHARES)
    verdict = of.verdict([True], first=own_names(record) and beyond_random(record))
    asked = (
        "above that of shuffled names (intervals apart), and above that of random directions of the same heads, made "
        f"and judged in the same way (Fisher's exact test, {LEVEL:g})"
    )
    rows: list[Finding] = []
    for group, share in {"above chance": record.right, "pass": record.passed, **record.controls}.items():
        claim = (asked, own_names(record) and beyond_random(record)) if share is record.right else NO_CLAIM
        rows += of_part(
            group,
            Finding("signals", share.signals),
            Finding("share", _interval(share), *claim),
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
    return Findings(rows, of, remark=remark, judged="partly" if verdict == "reproduced" else verdict)


def _interval(share: Share) -> Interval:
    return Interval(share.share, share.low, share.high)


def own_names(record: NamedShares) -> bool:
    """Are more names right than names of other signals would be?"""
    other = record.controls.get(SHUFFLED)
    return other is not None and other.signals > 0 and record.right.low > other.high


def beyond_random(record: NamedShares) -> bool:
    """Are more names right than those of random directions?"""
    other = record.controls.get(RANDOM)
    counts = None if other is None else (record.right.passed, record.right.signals, other.passed, other.signals)
    return counts is not None and other is not None and other.signals > 0 and fisher(*counts) <= LEVEL


def _draw(record: NamedShares) -> Mapping[str, Figure]:
    groups = {"names": record.right} | {name: own for name, own in record.controls.items() if name != RANDOM_PASS}
    rows = {
        f"{name} ({share.signals})": [(_interval(share), BLUE if name == "names" else GREY)]
        for name, share in groups.items()
    }
    title = "Names that are right at a false discovery rate of 5 %"
    figure, axis = spreads(rows, title, (7.5, 0.5), "share (95 % interval)")
    axis.set_xlim(0, 1)
    return {"shares": figure}


RUNS: dict[str, Attempt] = {"talk-19": Experiment(partial(of_names, shares_of), findings, _draw, heeds=NAMERS)}
