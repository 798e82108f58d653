"""Does attention follow features? Key coordinates swapped, and rows of logits split over features.

Swaps are of categories, places and things, in heads selected on other prompts. Split rows are of boxes, in one head.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from matplotlib.figure import Figure
from torch import Tensor

from keyhole.brief import Head, head_name
from keyhole.features.contrast.attribution import Attribution, attribute
from keyhole.features.contrast.boxes import boxes_test
from keyhole.features.contrast.figures import attribution_figure, intervention_figure
from keyhole.features.contrast.finding import Feature
from keyhole.features.contrast.moves import Effect, pair_keys, two_keys
from keyhole.features.contrast.places import resolve
from keyhole.features.contrast.studies import Study
from keyhole.features.contrast.subspace import random_bases
from keyhole.features.contrast.swaps import key_bases, swap
from keyhole.models.model import Model
from keyhole.models.numbers import exact_matmul
from keyhole.models.tokens import one_token_words
from keyhole.stats import Interval
from keyhole.tasks.words import THINGS
from keyhole_papers.catalogue import CATALOGUE
from keyhole_papers.cc import CROSSED, DRAWS, Subject, Task, boxes_of, studied, subject, wording
from keyhole_papers.experiment import AS_PRINTED, Attempt, Experiment, Job
from keyhole_papers.finding import Finding, Findings, Value, holds_of, of_part, rows_of

_LEAST = 0.1  # attention that must move for anything to be said
_MOST = 0.5  # of what whole keys move: "most of it"
_NOTHING = 0.1  # of what whole keys move: "next to nothing"
_FAR_MORE = 2.0  # times a random swap
_OTHERS = 1_000  # added to the seed of random subspaces: not those that made the mean
_DRAWN = 8  # heads
_SAME = {  # items that are about another model, and share the run of a stand-in
    "cc-fig7": "cc-fig19",
    "cc-fig9": "cc-fig20, which has all heads",
    "cc-fig18": "cc-fig9, without its heads",  # this of the published model, too
    "cc-fig19": "cc-fig7",
    "cc-fig20": "cc-fig9 and cc-fig18 together",
}
Held = Literal["all", "part", "none"]


@dataclass(frozen=True)
class Swapped:
    """What swaps do to one head."""

    head: Head
    whole: Effect  # all features together
    parts: tuple[Effect, ...]  # each alone, where there are several
    more: tuple[Interval, ...]  # whole minus each part
    short: Interval  # whole keys minus whole
    random: tuple[float, ...]  # what each of many random subspaces of the same rank moves


@dataclass(frozen=True)
class Swaps:
    """Some of the heads of a task, and the effects that are drawn of the first of them."""

    subject: Subject
    task: Task
    heads: Sequence[Swapped]
    shown: Mapping[str, Sequence[Effect]]


def measure(job: Job, id: str, task: Task, heads: slice) -> Swaps:
    """Swaps in these of the selected heads."""
    study = studied(job, task)
    chosen = study.selected[heads]
    shown = {head_name(head): study.swaps[head] for head in chosen[:_DRAWN]}
    return Swaps(subject(job, task, id), task, [swapped(study, head, seed=job.seed) for head in chosen], shown)


def swapped(study: Study, head: Head, *, seed: int) -> Swapped:
    """A head's effects, and how they differ sample by sample."""
    effects = {effect.name: effect for effect in study.swaps[head]}
    whole = effects["both" if "both" in effects else "category"]
    parts = tuple(effects[name] for name in study.features if name in effects and effects[name] is not whole)
    moved, random = _shifts(study, head, whole, seed)

    def gain(more: str, less: str) -> Interval:
        return Interval.over((moved[more] - moved[less]).tolist())

    return Swapped(
        head, whole, parts, tuple(gain(whole.name, part.name) for part in parts), gain("full", whole.name), random
    )


def _shifts(study: Study, head: Head, whole: Effect, seed: int) -> tuple[dict[str, Tensor], tuple[float, ...]]:
    """How much attention every test sample moves, by condition (with the study's own targets); random ones' means."""
    pairing = pair_keys(study.test, half=study.half, seed=seed)
    with exact_matmul():
        edit = swap(two_keys(study.test.layer(head[0]).of(pairing.slots), pairing), head[1])
        bases = key_bases(study.of(head))
        moved = {name: edit(basis).shift.double().cpu() for name, basis in bases.items()}
        moved["full"] = edit(None).shift.double().cpu()
        others = random_bases(len(bases[whole.name]), whole.rank, DRAWS, seed + _OTHERS)
        return moved, tuple(float(edit(basis).shift.double().mean()) for basis in others)


def held(moved: Swapped, task: Task) -> Held:
    """Does a head do what is claimed: in kind, and in size?"""
    whole = moved.whole
    beyond = whole.interval[0] > 0 and whole.shift > max(moved.random)
    kind = beyond and whole.shift >= _LEAST and all(gain.low > 0 for gain in moved.more)
    if not kind:
        return "none"
    if task == "lists":
        size = whole.shift >= _FAR_MORE * whole.random and moved.short.low > 0
    else:
        some = all(part.shift_interval[0] > 0 for part in moved.parts)
        size = some and whole.shift >= _MOST * whole.full and whole.random <= _NOTHING * whole.full
    return "all" if size else "part"


def findings(record: Swaps) -> Findings:
    """Does attention follow swapped features in most heads, more than random ones, and more with all of them?"""
    about, holds = record.subject, [held(moved, record.task) for moved in record.heads]
    if not record.heads:
        names, needs = ", ".join(map(head_name, about.heads)), CATALOGUE[about.id]
        none = f"nothing to measure: none was selected but those of cc-fig9 ({names})"
        return about.findings([Finding("heads", none)], holds=False, remark=f"Needs {needs.needs}: `{needs.command}`.")
    rows = [Finding("heads selected", len(about.heads))]
    for moved, kept in zip(record.heads, holds, strict=True):
        rows += of_part(head_name(moved.head), *_rows_of(moved, _claim(record.task), kept == "all"), joint=" ")
    every, some = (2 * sum(kept in enough for kept in holds) > len(holds) for enough in (("all",), ("all", "part")))
    same = f"The same run as {_SAME[about.id]}. " if not about.published or about.id == "cc-fig18" else ""
    remark = (
        f"{same}The claims are made of most heads, and hold of nothing where a contrast is a mere difference of means. "
        f"{CROSSED if record.task == 'boxes' else ''} Brackets: 95 % over samples. {about.means}"
    )
    real = not about.mere
    return about.findings(rows, holds=every and about.passed and real, part=some and real, remark=remark)


def _rows_of(moved: Swapped, claim: str, holds: bool) -> list[Finding]:
    whole, parts = moved.whole, zip(moved.parts, moved.more, strict=True)
    controls: dict[str, Value] = {
        "random": whole.random,
        "largest random": max(moved.random),
        "full": whole.full,
        "short": moved.short,
    }
    return [
        Finding(whole.name, whole.shift, claim, holds),
        *(row for part, gain in parts for row in rows_of({part.name: part.shift, f"beyond {part.name}": gain})),
        *rows_of(controls),
        Finding("between random and full", Interval(whole.normalised, *whole.interval)),
        Finding("rank", whole.rank),
    ]


def _claim(task: Task) -> str:
    common = (
        f"{_LEAST} of attention, more than the mean of random ones (95 % over samples) and each of {DRAWS} random ones"
    )
    if task == "lists":
        return f"{common}, at least {_FAR_MORE:.0f} times as much as they do, but less than whole keys"
    return (
        f"{common}, and than each feature alone (95 %, sample by sample); that each alone moves some, both {_MOST} of "
        f"what whole keys move, and random ones at most {_NOTHING} of it"
    )


def draw(record: Swaps) -> dict[str, Figure]:
    """Bars of every condition, a panel for each head."""
    title = f"Attention after swaps of key coordinates, {record.subject.model}"
    return {"swaps": intervention_figure(record.shown, title=title)} if record.shown else {}


_HEAD = (16, 1)  # published, of the split row
_BOXES = 4  # of its example


@dataclass(frozen=True)
class Row:
    """One row of logits: what features explain, and how they part the right box from the others."""

    explained: float
    differences: float
    order: float  # the right box against the mean of the others
    lexical: float
    wrong: float  # largest lexical part of a wrong box
    random: float  # explained differences of random subspaces of the same ranks
    random_lexical: float  # their gap
    random_wrong: float  # and their largest part of a wrong box


@dataclass(frozen=True)
class Attributed:
    """The rows of one head, one per prompt, and the first as it is drawn."""

    subject: Subject
    head: Head
    boxes: int  # of the prompts that made the features
    rows: Sequence[Row]
    tokens: Sequence[str]
    split: Attribution
    right: Sequence[int]  # boxes, by position


def measure_logits(job: Job) -> Attributed:
    """Split rows of logits over the features of the published head, or of the best head."""
    about, study = subject(job, "boxes", "cc-fig10"), studied(job, "boxes")
    model, frame = study.test.model, study.test.frame
    head = _HEAD if about.published else about.heads[0]
    features = study.of(head)
    queries = resolve(model, boxes_test(model, 4 if job.quick else 32, seed=2 * job.seed + 1, **_four(model, job)))
    rows, drawn = [], []
    for slot in range(len(queries.slots)):
        prompt, at = queries.slots.query[slot].tolist()
        run = model.run(queries.prompts[prompt].ids)
        split = attribute(run, features, at, frame=frame)
        other = attribute(run, [_random(feature, slot) for feature in features], at, frame=frame)
        keys, sign = queries.slots.keys[slot][:, 1] - split.first, queries.slots.sign[slot]
        right, wrong = keys[sign == 1].tolist(), keys[sign == -1].tolist()
        rows.append(_row(split, other, right, wrong))
        drawn.append(([token.strip() or "·" for token in run.tokens[split.first : at + 1]], split, right))
    return Attributed(about, head, boxes_of(job), rows, *drawn[0])


def _row(split: Attribution, other: Attribution, right: list[int], wrong: list[int]) -> Row:
    """Read one row; parts are order and lexical, in this order."""

    def gap(of: Attribution, part: int) -> float:
        return float(of.parts[part][right].mean() - of.parts[part][wrong].mean())

    return Row(
        explained=split.explained,
        differences=split.explained_differences,
        order=gap(split, 0),
        lexical=gap(split, 1),
        wrong=float(split.parts[1][wrong].max()),
        random=other.explained_differences,
        random_lexical=gap(other, 1),
        random_wrong=float(other.parts[1][wrong].max()),
    )


def _random(feature: Feature, seed: int) -> Feature:
    (basis,) = random_bases(len(feature.U), feature.rank, 1, 2 * seed + (feature.name == "order"))
    return Feature(feature.name, feature.head, basis, basis, feature.S)


def _four(model: Model, job: Job) -> dict[str, Any]:
    """Fewer boxes, with things that the study's test asks for and its features never saw."""
    usable = one_token_words(model, THINGS)
    things = (*usable[:_BOXES], *usable[boxes_of(job) :])
    return {"n_boxes": _BOXES, "things": things, **wording(model, job.model)}


def logits(record: Attributed) -> Findings:
    """Is more explained than at random, most by the thing, and some of that at wrong boxes?"""
    about, split = record.subject, record.rows
    gains = {
        "lexical beyond order": [row.lexical - row.order for row in split],
        "lexical beyond random": [row.lexical - row.random_lexical for row in split],
        "differences beyond random": [row.differences - row.random for row in split],
        "some of it at a wrong box": [row.wrong for row in split],
        "that beyond random": [row.wrong - row.random_wrong for row in split],
    }
    rows = rows_of({name: [getattr(row, name) for row in split] for name in vars(split[0])}, digits=2)
    for name, gain in ((name, Interval.over(values)) for name, values in gains.items()):
        rows.append(Finding(name, gain, "above 0 (95 % over prompts)", gain.low > 0, digits=2))
    remark = (
        f"Head {head_name(record.head)}, {len(split)} prompts with {_BOXES} boxes, as in the published example; "
        f"features of {record.boxes} boxes. Explained: of the logits, and of their differences. Order and lexical: how "
        "they part the right box from the others. Wrong: largest lexical part of a wrong box. Random: of random "
        "subspaces of the same ranks, drawn anew for each prompt. That parts sum to the logit is exact by design. All "
        f"claims must hold, and none does where a contrast is a mere difference of means. {CROSSED} {about.means} "
        "Brackets: smallest and largest of the prompts."
    )
    chosen = about.passed or record.head == _HEAD
    return about.findings(rows, holds=all(holds_of(rows)) and chosen and not about.mere, remark=remark)


def draw_logits(record: Attributed) -> dict[str, Figure]:
    """The first row."""
    split, title = record.split, f"Logits of head {head_name(record.head)} of {record.subject.model}"
    names = list(split.names)
    figure = attribution_figure(record.tokens, split.parts, split.logits, names, marked=record.right, title=title)
    return {"attribution": figure}


_SWAPS: dict[str, tuple[Task, slice]] = {
    "cc-fig7": ("lists", slice(3)),
    "cc-fig9": ("boxes", slice(2)),
    "cc-fig18": ("boxes", slice(2, None)),
    "cc-fig19": ("lists", slice(3)),
    "cc-fig20": ("boxes", slice(None)),
}
RUNS: dict[str, Attempt] = {
    id: Experiment(partial(measure, id=id, task=task, heads=heads), findings, draw, heeds=AS_PRINTED)
    for id, (task, heads) in _SWAPS.items()
}
RUNS["cc-fig10"] = Experiment(measure_logits, logits, draw_logits, heeds=AS_PRINTED)
