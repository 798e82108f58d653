"""Do few slices or channels make up the attention of single heads? GPT-2 on IOI prompts, or what stands in for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from statistics import mean
from typing import NamedTuple

import torch
from matplotlib.figure import Figure

from keyhole.brief import Head, head_name
from keyhole.lab.head_figures import contributions_figure, slice_counts_figure, slice_map_figure
from keyhole.lab.head_summary import Spread, Summary, agreement, pooled, spread
from keyhole.lab.sparse import HeadPairs, SparseStudy
from keyhole.models.numbers import exact_matmul
from keyhole.models.run import Run
from keyhole.qk.channels import Channels, score_row
from keyhole.qk.controls import refactored, rotations, slice_sets
from keyhole.qk.omega import omega
from keyhole.stats import Interval
from keyhole.tasks.example import Example
from keyhole_papers.experiment import Attempt, Experiment, Job
from keyhole_papers.finding import Finding, Findings, Provenance, of_part, rows_of
from keyhole_papers.svt import Subject, measured, of_gpt2, prompted, unrelated

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

    of: Provenance
    head: Head
    roles: tuple[str, ...]
    lowest: Split
    highest: Split


def measure_extremes(job: Job) -> Extremes:
    """Of a head whose scores have both signs, rather one for S-inhibition."""
    of_job = prompted(job)
    heads = dict.fromkeys([*of_job.roles.get("S-inhibition", ()), *of_job.looking(measured(job), 8)])
    places = _extremes(of_job, list(heads))
    head = next((head for head, (low, high) in places.items() if low.score < 0 < high.score), next(iter(places)))
    lowest, highest = (_split(of_job.model.run(at.example.text), at.dest, at.src, head) for at in places[head])
    roles = tuple(role for role, heads_of_role in of_job.roles.items() if head in heads_of_role)
    return Extremes(of_job.of, head, roles, lowest, highest)


class _Place(NamedTuple):
    """One score of a head; the runs of all prompts would not fit into memory."""

    score: float
    example: Example
    dest: int
    src: int


def _extremes(of_job: Subject, heads: Sequence[Head]) -> dict[Head, tuple[_Place, _Place]]:
    """The lowest and the highest score that each head gives at END, over the prompts."""
    places: dict[Head, list[_Place]] = {head: [] for head in heads}
    for example in of_job.examples:
        run = of_job.model.run(example.text)
        end = example.position(run, "END")
        for head, of_head in places.items():
            scores = run.attention_run(head[0]).scores([head[1]], [end])[0, 0, 1 : end + 1]
            for at in (int(scores.argmin()), int(scores.argmax())):
                of_head.append(_Place(float(scores[at]), example, end, at + 1))
    by_score = attrgetter("score")
    return {head: (min(of_head, key=by_score), max(of_head, key=by_score)) for head, of_head in places.items()}


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


def found_extremes(record: Extremes) -> Findings:
    """Do a few slices make up a negative and a positive score, and not those of the largest singular values?"""
    rows, few = list[Finding](), list[bool]()
    for sign, split in (("negative", record.lowest), ("positive", record.highest)):
        n, size, score = split.n, len(split.channels.terms), split.channels.score
        holds = split.few if (score < 0) == (sign == "negative") else [False, False]
        few.append(holds[0])
        rows += of_part(
            sign,
            Finding("score", score, digits=1),
            Finding("weight", split.channels.attention, digits=2),
            Finding("slices", n, _ASKED, holds[0]),
            Finding("of", size),
            Finding("as few in rotated bases", _as_few(n, split.rotated), percent=True),
            Finding("rotated", mean(split.rotated), digits=1),
            Finding("among the largest", split.first, "few, and no more than by chance", holds[1]),
            Finding("among the largest, chance", n * n / size, digits=1),
        )
    remark = (
        f"Head {head_name(record.head)} ({', '.join(record.roles)}), at END; the paper's 8.6 is for S-inhibition. "
        "Among the largest: as many of the largest singular values as there are slices."
    )
    return Findings(rows, record.of, first=all(few), unless="slices are few in both", remark=remark)


_ASKED = f"a third or less, and as few in {_SELDOM:.0%} of rotated bases of the head at most"


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


def _draw_extremes(record: Extremes) -> Mapping[str, Figure]:
    title = f"What each slice adds to a score of head {head_name(record.head)}"
    return {"slices": contributions_figure([record.lowest.channels, record.highest.channels], title=title)}


@dataclass(frozen=True)
class Alike:
    """The pairs of one head, and how alike their sets of slices are."""

    table: HeadPairs
    sizes: Spread
    value: float
    chance: float  # reshuffled
    rotated: float  # the most, in rotated bases
    between: float  # firing against not


@dataclass(frozen=True)
class Mapped:
    """Heads with a role, firing or not."""

    of: Provenance
    firing: bool
    study: SparseStudy
    roles: Mapping[str, tuple[Head, ...]]
    heads: Mapping[Head, Alike]


def measure_map(job: Job, firing: bool) -> Mapped:
    """The slices of each head in many pairs."""
    of_job, study, heads = prompted(job), measured(job), {}
    for head in of_job.looking(study):
        alike, table = agreement(study, head, seed=job.seed), study.of(head, firing=firing)
        value, chance = (alike.firing, alike.chance) if firing else (alike.quiet, alike.chance_quiet)
        rotated = max(alike.rotated if firing else alike.rotated_quiet)
        heads[head] = Alike(table, spread(table.slices, table.pairs[:, 0]), value, chance, rotated, alike.between)
    return Mapped(of_job.of, firing, study, of_job.roles, heads)


def found_map(record: Mapped) -> Findings:
    """Does a head use the same slices again and again, and others when it does not fire?"""
    rows = list[Finding]()
    for head, alike in record.heads.items():
        shared = {"alike": alike.value, "alike, chance": alike.chance, "alike, rotated": alike.rotated}
        rows += of_part(
            head_name(head),
            Finding("pairs", len(alike.table)),
            Finding("slices", Interval.of(alike.sizes), digits=1),
            Finding("of", alike.table.used.shape[1]),
            Finding("in half of the pairs", int((alike.table.usage >= 0.5).sum())),
            *rows_of({**shared, "alike, firing and not": alike.between}, digits=2),
        )
    heads, half = record.heads.values(), len(record.heads) / 2
    recurs = sum(alike.value > _CLEARLY * alike.chance and alike.value > alike.rotated for alike in heads)
    others = sum(alike.between < alike.value for alike in heads)
    claim = (
        f"most, by sets {_CLEARLY:g} times as alike as reshuffled ones, and more alike than in each of "
        f"{record.study.draws} rotated bases (prompts that are alike use alike slices in any basis)"
    )
    rows.append(Finding("heads with the same slices again", recurs, claim, recurs > half))
    if not record.firing:
        rows.append(Finding("heads with others when they fire", others, "most, by sets less alike", others > half))
    played = [(role, head) for role, in_role in record.roles.items() for head in in_role if head in record.heads]
    roles = ", ".join(f"{role} {head_name(head)}" for role, head in played)
    remark = f"Alike: shared slices over all slices of two pairs from different prompts. Heads: {roles}."
    return Findings(rows, record.of, first=recurs > half, unless="the same slices recur", remark=remark)


def _draw_map(record: Mapped) -> Mapping[str, Figure]:
    return {"slices": slice_map_figure(record.study, list(record.heads))}


def mapped(*, firing: bool) -> Experiment[Mapped]:
    """Pairs that fire, or do not."""
    return Experiment(partial(measure_map, firing=firing), found_map, _draw_map)


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

    of: Provenance
    text: str  # the unrelated text is
    texts: tuple[Counted, ...]


def measure_sizes(job: Job) -> Sizes:
    """All firings of all heads."""
    elsewhere, kind = unrelated(job)
    return Sizes(of_gpt2(job.model, prompted(job).prompts.about), kind, (_counted(measured(job)), _counted(elsewhere)))


def _counted(study: SparseStudy) -> Counted:
    whole, size = pooled(study), max(table.used.shape[1] for table in study.tables)
    counts = torch.cat([table.slices for table in study.tables if table.firing])
    often = float(((counts == 2) | (counts == 3)).double().mean())
    return Counted(study, whole, size, whole.slices.quantiles[-2], often, whole.slices_fewer.high < 0)


def found_sizes(record: Sizes) -> Findings:
    """How many slices does a firing use, on IOI and on unrelated text, and how many in rotated bases?"""
    rows = list[Finding]()
    for counted in record.texts:
        whole = counted.whole
        few, often = counted.fewer and counted.upper <= counted.slices * _FEW, counted.fewer and counted.often >= _OFTEN
        rows += of_part(
            counted.study.name,
            Finding("firings", whole.pairs),
            Finding("slices", Interval.of(whole.slices), digits=2),
            Finding("of", counted.slices),
            Finding("rotated", Interval.of(whole.slices_rotated), digits=2),
            Finding("median", whole.slices.median, digits=0),
            Finding("upper quartile", counted.upper, "a third or less (20 of 64)", few, digits=0),
            Finding("2 or 3", counted.often, "a quarter of the firings or more", often, percent=True),
            Finding("beyond rotated", Interval.of(whole.slices_fewer), digits=2),
        )
    first = all(counted.fewer for counted in record.texts)
    unless = "firings take fewer slices than in rotated bases, with an interval below 0 (the paper names no control)"
    return Findings(rows, record.of, first=first, unless=unless, remark=record.text)


def _draw_sizes(record: Sizes) -> Mapping[str, Figure]:
    return {"counts": slice_counts_figure([counted.study for counted in record.texts])}


RUNS: dict[str, Attempt] = {
    "svt-fig1": Experiment(measure_extremes, found_extremes, _draw_extremes),
    "svt-fig2": mapped(firing=True),
    "svt-fig3": Experiment(measure_sizes, found_sizes, _draw_sizes),
    "svt-fig8": mapped(firing=False),
}
