"""Can signals be named? The share of names that are right, beside names of random directions and shuffled ones.

The signals are those of the published prompts' circuits, fewer of them; they are named and judged once for all slides,
by statistics and a rule or by a model behind an endpoint.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from matplotlib.figure import Figure

from keyhole.figures.style import BLUE, GREY, INK
from keyhole.many.driver import bulk
from keyhole.naming.beside.representatives import Side, side_by_side
from keyhole.naming.judging.controls import ALONE, RANDOM, RANDOM_PASS, SHUFFLED
from keyhole.naming.judging.scores import LEVEL, Share
from keyhole.naming.named import LANDMARKS, Naming
from keyhole.naming.namers import Namers, name_by
from keyhole.naming.naming import seek
from keyhole.progress import part_of
from keyhole.stats import fisher
from keyhole.tasks.prompt_sets import prompts_for
from keyhole_papers.choices import NAMERS
from keyhole_papers.job import Asked, Attempt, Job, loaded
from keyhole_papers.results import Numbers, Verdict
from keyhole_papers.svt.panels import panels
from keyhole_papers.talk.signals import published_name
from keyhole_papers.talk.study import TRACING, Prompts, prompts_of
from keyhole_papers.talk.ways import Way, way_of
from keyhole_papers.told import Experiment, Told, judged, stood_in

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
    model = loaded(asked.model, asked.device, asked.choices.dtype)
    n, most, random, tokens = _QUICK if asked.quick else (_PROMPTS, _SIGNALS, _RANDOM, _TOKENS)
    prompts = prompts_for("ioi", model, n, asked.seed, design="balanced")
    with TemporaryDirectory() as folder:
        out, traced = Path(folder) / "ioi.store", part_of(asked.progress, 0, 0.4)
        store = bulk(prompts.examples, model, out=out, tracing=TRACING, progress=traced)
        of = prompts_of(asked.model, store, prompts)
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


def judge(record: NamedShares) -> Verdict:
    """Are names right of their own signals, and more often than random directions' names?

    Explainer and judge are others than the published ones, also where a language model is asked: a share that is near
    to the published one reproduces nothing, and one that is far from it refutes nothing.
    """
    found = judged(record.of, [True], first=own_names(record) and beyond_random(record), real=_is_published)
    return "partly" if found == "reproduced" else found


def own_names(record: NamedShares) -> bool:
    """Are more names right than names of other signals would be?"""
    other = record.controls.get(SHUFFLED)
    return other is not None and other.signals > 0 and record.right.low > other.high


def beyond_random(record: NamedShares) -> bool:
    """Are more names right than those of random directions?"""
    other = record.controls.get(RANDOM)
    counts = None if other is None else (record.right.passed, record.right.signals, other.passed, other.signals)
    return counts is not None and other is not None and other.signals > 0 and fisher(*counts) <= LEVEL


def _is_published(model: str | None) -> bool:
    return published_name(model) is not None


def _tell(record: NamedShares) -> Told:
    own = published_name(record.of.model)
    mark = f" (published of {own}: {SHARES[own]:.0%})" if own in SHARES else ""
    lines = [
        f"Above chance at a false discovery rate of 5 %: {record.right}{mark}.",
        f"Beyond random directions' names as well: {record.passed}.",
        "Beside them, above chance: "
        + "; ".join(
            f"{group} {record.controls[group]}" for group in (RANDOM, SHUFFLED, ALONE) if group in record.controls
        )
        + (f". Random directions that pass: {record.controls[RANDOM_PASS]}" if RANDOM_PASS in record.controls else "")
        + ".",
    ]
    note = (
        "Asked: names, made from one half of the texts and judged on the other, are right more often than names of "
        "other signals (intervals apart), and than names of random directions of the same heads, made and judged in "
        f"the same way (Fisher's exact test, {LEVEL:g}). {record.by} Published shares are by other language models "
        f"with other prompts, without random directions beside them: landmarks ({LANDMARKS}). So the verdict is in "
        f"part at most. {record.of.note} "
    ) + stood_in(record.of, "the published models", real=_is_published)
    return Told("\n".join(lines), _numbers(record), note.strip())


def _numbers(record: NamedShares) -> Numbers:
    groups = {"above chance": record.right, "pass": record.passed, **record.controls}
    numbers: Numbers = {}
    for group, one in groups.items():
        numbers |= {f"{group}: signals": one.signals, f"{group}: share": one.share}
        numbers |= {f"{group}: interval": [one.low, one.high], f"{group}: without a name": one.nameless}
    return numbers


def _draw(record: NamedShares) -> Mapping[str, Figure]:
    rows = [
        replace(record.right, group="names"),
        *(one for group, one in record.controls.items() if group != RANDOM_PASS),
    ]
    title = "Names that are right at a false discovery rate of 5 %"
    figure, (axis,) = panels([""], title, (7.5, 0.5 * len(rows) + 1.8), x="share (95 % interval)")
    for at, one in enumerate(rows):
        axis.plot([one.low, one.high], [at] * 2, color=INK, linewidth=1)
        axis.plot([one.share], [at], "o", color=BLUE if at == 0 else GREY, markersize=7)
    axis.set_yticks(range(len(rows)), [f"{one.group} ({one.signals})" for one in rows])
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.set_xlim(0, 1)
    return {"shares": figure}


RUNS: dict[str, Attempt] = {"talk-19": Experiment(partial(of_names, shares_of), judge, _tell, _draw, heeds=NAMERS)}
