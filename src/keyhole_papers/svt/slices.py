"""Do few slices or channels make up the attention of single heads? GPT-2 on IOI prompts, or what stands in for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from statistics import mean
from typing import NamedTuple

import torch
from matplotlib.figure import Figure

from keyhole.errors import MissingModelError
from keyhole.lab.heads.figures import contributions_figure, slice_counts_figure, slice_map_figure
from keyhole.lab.heads.sparse import HeadPairs, SparseStudy
from keyhole.lab.heads.summary import Spread, Summary, agreement, pooled, spread
from keyhole.models.heads import Head, head_name
from keyhole.models.numbers.precision import exact_matmul
from keyhole.models.run import Run
from keyhole.qk.channels import Channels, score_row
from keyhole.qk.controls import refactored, rotations
from keyhole.qk.omega import omega
from keyhole.qk.slices import slice_sets
from keyhole.tasks.example import Example
from keyhole_papers.experiment import Experiment, Told
from keyhole_papers.job import Attempt, Job, Numbers
from keyhole_papers.outcome import Verdict
from keyhole_papers.svt.intervals import numbered
from keyhole_papers.svt.ioi import Measured, judged, measured, measured_on, unrelated

_FEW = 1 / 3  # of a head's slices
_OFTEN = 1 / 4  # of the firings
_SELDOM = 0.05  # of rotated bases, in which as few slices would do
_CLEARLY = 1.5  # times as alike as reshuffled sets
_DRAWS = 100  # rotated bases of one score


@dataclass(frozen=True)
class Split:
    """One score over the slices of its head."""

    channels: Channels
    n: int  # slices that make it up
    first: int  # of those, among the n largest singular values
    rotated: tuple[int, ...]  # how many it would take in rotated bases

    @property
    def few(self) -> list[bool]:
        """Are they few, and elsewhere?"""
        return few_and_elsewhere(self.n, self.first, len(self.channels.terms), self.rotated)


@dataclass(frozen=True)
class Extremes:
    """The lowest and the highest score of one head."""

    model: str | None  # as it was asked for
    about: str  # which prompts
    head: Head
    roles: tuple[str, ...]
    lowest: Split
    highest: Split


def measure_extremes(job: Job) -> Extremes:
    """Of a head whose scores have both signs, rather one for S-inhibition."""
    seen = measured(job)
    heads = dict.fromkeys([*seen.roles.get("S-inhibition", ()), *_heads(seen, 8)])
    places = _extremes(seen, list(heads))
    head = next((head for head, (low, high) in places.items() if low.score < 0 < high.score), next(iter(places)))
    lowest, highest = (_split(seen.model.run(one.example.text), one.dest, one.src, head) for one in places[head])
    roles = tuple(role for role, own in seen.roles.items() if head in own)
    return Extremes(job.model, seen.prompts.about, head, roles, lowest, highest)


def _heads(seen: Measured, most: int = 4) -> list[Head]:
    """Heads with a role, which must be there."""
    heads = seen.heads(most)
    if not heads:
        raise MissingModelError(
            f"no head of {seen.model.name} that looks clearly where a role of IOI prompts needs it fires there: give "
            "another model."
        )
    return heads


class _Place(NamedTuple):
    """One score of a head; the runs of all prompts would not fit into memory."""

    score: float
    example: Example
    dest: int
    src: int


def _extremes(seen: Measured, heads: Sequence[Head]) -> dict[Head, tuple[_Place, _Place]]:
    """The lowest and the highest score that each head gives at END, over the prompts."""
    places: dict[Head, list[_Place]] = {head: [] for head in heads}
    for example in seen.examples:
        run = seen.model.run(example.text)
        end = example.position(run, "END")
        for head, own in places.items():
            scores = run.layer(head[0]).scores([head[1]], [end])[0, 0, 1 : end + 1]
            for at in (int(scores.argmin()), int(scores.argmax())):
                own.append(_Place(float(scores[at]), example, end, at + 1))
    by_score = attrgetter("score")
    return {head: (min(own, key=by_score), max(own, key=by_score)) for head, own in places.items()}


def _split(run: Run, dest: int, src: int, head: Head) -> Split:
    with exact_matmul():
        row = score_row(run, *head, dest, basis="homogeneous")
    n = len(row.a)
    sigma = omega(run.model, head[0], "homogeneous").sigma[head[1], :n].cpu()
    a, b = row.a.cpu(), row.B[src - row.first].cpu()
    terms = refactored(a[None], b[None], sigma, rotations(n, _DRAWS))[:, 0]
    channels = run.channels(head, dest, src, basis="homogeneous")
    used = slice_sets(channels.terms[None])[0]
    size = int(used.sum())
    return Split(channels, size, int(used[:size].sum()), tuple(map(int, slice_sets(terms).sum(-1))))


def judge_extremes(record: Extremes) -> Verdict:
    """Do a few slices make up a negative and a positive score, and not those of the largest singular values?"""
    low, high = record.lowest, record.highest
    holds = low.few if low.channels.score < 0 else [False, False]
    holds += high.few if high.channels.score >= 0 else [False, False]
    return judged(record, holds, first=holds[0] and holds[2])


def few_and_elsewhere(n: int, first: int, size: int, rotated: Sequence[int]) -> list[bool]:
    """Are n of `size` slices few, and no more among the n largest (`first`) than n random ones would be, n^2 / size?

    Few is also fewer than nearly all rotated bases of the head take for the same score.

    >>> few_and_elsewhere(3, 0, 16, [5, 6]), few_and_elsewhere(3, 1, 16, [5, 6]), few_and_elsewhere(3, 0, 16, [3, 4])
    ([True, True], [True, False], [False, False])
    """
    few = n <= _FEW * size and _as_few(n, rotated) <= _SELDOM
    return [few, few and first <= n * n / size]


def _as_few(n: int, rotated: Sequence[int]) -> float:
    return sum(other <= n for other in rotated) / len(rotated)


def _tell_extremes(record: Extremes) -> Told:
    numbers: Numbers = {}
    lines = []
    for sign, what, split in (("negative", "Lowest", record.lowest), ("positive", "Highest", record.highest)):
        n, first, size, score = split.n, split.first, len(split.channels.terms), split.channels.score
        numbers |= {f"{sign} score": score, f"{sign} slices": n, f"{sign} among the largest": first}
        numbers |= {f"{sign} among the largest, chance": n * n / size, f"{sign} rotated": mean(split.rotated)}
        lines.append(
            f"{what} score {score:.1f} (weight {split.channels.attention:.2f}): {n} of {size} slices make it up (as "
            f"few in {_as_few(n, split.rotated):.0%} of rotated bases, which take {mean(split.rotated):.1f}), {first} "
            f"of them among the {n} largest singular values (by chance {n * n / size:.1f})."
        )
    note = (
        f"Few: a third of the slices or less, and as few in {_SELDOM:.0%} of rotated bases of the head at most. Head "
        f"{head_name(record.head)} ({', '.join(record.roles)}), at END; the paper's 8.6 is for S-inhibition. "
        f"{measured_on(record, roles=True)}"
    )
    return Told("\n".join(lines), numbers, note)


def _draw_extremes(record: Extremes) -> Mapping[str, Figure]:
    title = f"What each slice adds to a score of head {head_name(record.head)}"
    return {"slices": contributions_figure([record.lowest.channels, record.highest.channels], title=title)}


@dataclass(frozen=True)
class Alike:
    """The pairs of one head, and how alike their sets of slices are."""

    table: HeadPairs
    sizes: Spread
    own: float
    chance: float  # reshuffled
    rotated: float  # the most, in rotated bases
    between: float  # firing against not


@dataclass(frozen=True)
class Mapped:
    """Heads with a role, firing or not."""

    model: str | None  # as it was asked for
    about: str  # which prompts
    firing: bool
    study: SparseStudy
    roles: Mapping[str, tuple[Head, ...]]
    heads: Mapping[Head, Alike]


def measure_map(job: Job, firing: bool) -> Mapped:
    """The slices of each head in many pairs."""
    seen, heads = measured(job), {}
    for head in _heads(seen):
        found, table = agreement(seen.ioi, head, seed=job.seed), seen.ioi.of(head, firing=firing)
        own, chance = (found.firing, found.chance) if firing else (found.quiet, found.chance_quiet)
        rotated = max(found.rotated if firing else found.rotated_quiet)
        heads[head] = Alike(table, spread(table.slices, table.pairs[:, 0]), own, chance, rotated, found.between)
    return Mapped(job.model, seen.prompts.about, firing, seen.ioi, seen.roles, heads)


def judge_map(record: Mapped) -> Verdict:
    """Does a head use the same slices again and again, and others when it does not fire?"""
    heads, half = record.heads.values(), len(record.heads) / 2
    recurs = sum(one.own > _CLEARLY * one.chance and one.own > one.rotated for one in heads) > half
    others = [] if record.firing else [sum(one.between < one.own for one in heads) > half]
    return judged(record, [recurs, *others], first=recurs)


def _tell_map(record: Mapped) -> Told:
    numbers: Numbers = {}
    lines = []
    for head, one in record.heads.items():
        name, often = head_name(head), int((one.table.usage >= 0.5).sum())
        numbers |= {f"{name} slices": one.sizes.mean, f"{name} in half of the pairs": often, f"{name} alike": one.own}
        numbers |= {f"{name} alike, chance": one.chance, f"{name} alike, firing and not": one.between}
        numbers[f"{name} alike, rotated"] = one.rotated
        lines.append(
            f"{name}: {one.sizes} of {one.table.used.shape[1]} slices, {often} of them in half of the {len(one.table)} "
            f"pairs; sets are alike by {one.own:.2f} (reshuffled {one.chance:.2f}, in rotated bases up to "
            f"{one.rotated:.2f}, firing against not {one.between:.2f})."
        )
    roles = ", ".join(f"{role} {head_name(h)}" for role, own in record.roles.items() for h in own if h in record.heads)
    note = (
        f"Asked of most heads: sets {_CLEARLY:g} times as alike as reshuffled ones, and more alike than in each of "
        f"{record.study.draws} rotated bases (prompts that are alike use alike slices in any basis)"
        f"{'' if record.firing else '; and more alike than with firings; nothing without the first'}. Alike: shared "
        f"slices over all slices of two pairs from different prompts. Heads: {roles}. "
        f"{measured_on(record, roles=True)}"
    )
    return Told("\n".join(lines), numbers, note)


def _draw_map(record: Mapped) -> Mapping[str, Figure]:
    return {"slices": slice_map_figure(record.study, list(record.heads))}


def mapped(*, firing: bool) -> Experiment[Mapped]:
    """Pairs that fire, or do not."""
    return Experiment(partial(measure_map, firing=firing), judge_map, _tell_map, _draw_map)


@dataclass(frozen=True)
class Counted:
    """How many slices firings use in one kind of text."""

    study: SparseStudy
    whole: Summary
    slices: int  # of a head
    upper: float  # quartile
    often: float  # share of firings that use two or three
    fewer: bool  # than in rotated bases, beyond doubt


@dataclass(frozen=True)
class Sizes:
    """IOI prompts and unrelated text."""

    model: str | None  # as it was asked for
    about: str  # which prompts
    what: str  # the unrelated text is
    texts: tuple[Counted, ...]


def measure_sizes(job: Job) -> Sizes:
    """All firings of all heads."""
    seen, (elsewhere, what) = measured(job), unrelated(job)
    return Sizes(job.model, seen.prompts.about, what, (_counted(seen.ioi), _counted(elsewhere)))


def _counted(study: SparseStudy) -> Counted:
    whole, size = pooled(study), max(table.used.shape[1] for table in study.tables)
    counts = torch.cat([table.slices for table in study.tables if table.firing])
    often = float(((counts == 2) | (counts == 3)).double().mean())
    return Counted(study, whole, size, whole.slices.quantiles[-2], often, whole.slices_fewer.high < 0)


def judge_sizes(record: Sizes) -> Verdict:
    """How many slices does a firing use, on IOI and on unrelated text, and how many in rotated bases?"""
    texts, holds = record.texts, []
    for one in texts:
        holds += [one.fewer and one.upper <= one.slices * _FEW, one.fewer and one.often >= _OFTEN]
    return judged(record, holds, first=all(one.fewer for one in texts))


def _tell_sizes(record: Sizes) -> Told:
    lines, numbers = [], {}
    for one in record.texts:
        whole = one.whole
        own = {"slices": whole.slices.mean, "rotated": whole.slices_rotated.mean, "upper quartile": one.upper}
        numbers[one.study.name] = own | {"2 or 3": one.often, "fewer than rotated": -whole.slices_fewer.mean}
        lines.append(
            f"{one.study.name}: {whole.slices} of {one.slices} slices in {whole.pairs} firings (median "
            f"{whole.slices.median:.0f}, upper quartile {one.upper:.0f}), 2 or 3 in {one.often:.0%}; in "
            f"rotated bases {whole.slices_rotated}, a difference of {whole.slices_fewer}."
        )
    note = (
        "20 of 64 slices are about a third, which is asked of the upper quartile here; often means a quarter of the "
        "firings or more. The paper names no control; here neither counts unless firings take fewer slices than in "
        f"rotated bases, with an interval below 0. {record.what} {measured_on(record)}"
    )
    return Told("\n".join(lines), numbered(numbers), note)


def _draw_sizes(record: Sizes) -> Mapping[str, Figure]:
    return {"counts": slice_counts_figure([one.study for one in record.texts])}


RUNS: dict[str, Attempt] = {
    "svt-fig1": Experiment(measure_extremes, judge_extremes, _tell_extremes, _draw_extremes),
    "svt-fig2": mapped(firing=True),
    "svt-fig3": Experiment(measure_sizes, judge_sizes, _tell_sizes, _draw_sizes),
    "svt-fig8": mapped(firing=False),
}
