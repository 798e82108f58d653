"""Do few slices or channels make up the attention of single heads? GPT-2 on IOI prompts, or what stands in for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import mean

import torch
from jaxtyping import Bool
from torch import Tensor

from keyhole.errors import MissingModelError
from keyhole.figures import save
from keyhole.figures.network import name_of
from keyhole.lab.heads.figures import contributions_figure, slice_counts_figure, slice_map_figure
from keyhole.lab.heads.sparse import Head
from keyhole.lab.heads.summary import agreement, pooled, spread
from keyhole.models.precision import exact_matmul
from keyhole.models.run import Run
from keyhole.qk.channels import Channels, score_row
from keyhole.qk.controls import refactored, rotations
from keyhole.qk.omega import omega
from keyhole.qk.slices import slice_sets
from keyhole.reproduce.job import Attempt, Job, Numbers
from keyhole.reproduce.outcome import Outcome
from keyhole.reproduce.svt.ioi import Measured, judged, measured, stood_in, unrelated

_FEW = 1 / 3  # of a head's slices
_OFTEN = 1 / 4  # of the firings
_SELDOM = 0.05  # of rotated bases, in which as few slices would do
_CLEARLY = 1.5  # times as alike as reshuffled sets
_DRAWS = 100  # rotated bases of one score


@dataclass(frozen=True)
class Split:
    """One score over the slices of its head, and how many of them it would take in rotated bases."""

    channels: Channels
    rotated: tuple[int, ...]

    @property
    def used(self) -> Bool[Tensor, "slice"]:
        """The slices that make up the score."""
        return slice_sets(self.channels.terms[None])[0]


def contributed(job: Job) -> Outcome:
    """Do a few slices make up a negative and a positive score, and not those of the largest singular values?"""
    seen = measured(job)
    heads = dict.fromkeys([*seen.roles.get("S-inhibition", ()), *_heads(seen, 8)])
    both = [_extremes(seen, head) for head in heads]
    splits = next((two for two in both if two[0].channels.score < 0 < two[1].channels.score), both[0])
    head = splits[0].channels.layer, splits[0].channels.head
    numbers: Numbers = {}
    lines, holds = [], []
    for sign, split in zip(("negative", "positive"), splits, strict=True):
        score, used = split.channels.score, split.used
        n, size = int(used.sum()), len(used)
        first = int(used[:n].sum())
        found = few_and_elsewhere(n, first, size, split.rotated)
        holds += found if (score < 0) == (sign == "negative") else [False, False]
        numbers |= {f"{sign} score": score, f"{sign} slices": n, f"{sign} among the largest": first}
        numbers |= {f"{sign} among the largest, chance": n * n / size, f"{sign} rotated": mean(split.rotated)}
        lines.append(
            f"{'Lowest' if sign == 'negative' else 'Highest'} score {score:.1f} (weight "
            f"{split.channels.attention:.2f}): {n} of {size} slices make it up (as few in "
            f"{_as_few(n, split.rotated):.0%} of rotated bases, which take {mean(split.rotated):.1f}), {first} of them "
            f"among the {n} largest singular values (by chance {n * n / size:.1f})."
        )
    title = f"What each slice adds to a score of head {name_of(head)}"
    path = save(contributions_figure([split.channels for split in splits], title=title), job.folder / "slices.png")
    played = [role for role, own in seen.roles.items() if head in own]
    note = (
        f"Few: a third of the slices or less, and as few in {_SELDOM:.0%} of rotated bases of the head at most. Head "
        f"{name_of(head)} ({', '.join(played)}), at END; the paper's 8.6 is for S-inhibition. {stood_in(job)}"
    )
    return Outcome(judged(job, holds, first=holds[0] and holds[2]), "\n".join(lines), numbers, (path,), note)


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


def _heads(seen: Measured, most: int = 4) -> list[Head]:
    """Heads with a role, which must be there."""
    heads = seen.heads(most)
    if not heads:
        raise MissingModelError(
            f"no head of {seen.model.name} that looks clearly where a role of IOI prompts needs it fires there: give "
            "another model."
        )
    return heads


def _extremes(seen: Measured, head: Head) -> tuple[Split, Split]:
    """The lowest and the highest score that the head gives at END, over the first prompts."""
    places = []
    for example in seen.examples[:16]:
        run = seen.model.run(example.text)
        end = example.position(run, "END")
        scores = run.layer(head[0]).scores([head[1]], [end])[0, 0, 1 : end + 1]
        places += [(float(scores[at]), run, end, at + 1) for at in (int(scores.argmin()), int(scores.argmax()))]
    lowest, highest = (extreme(places, key=lambda place: place[0]) for extreme in (min, max))
    return _split(*lowest[1:], head), _split(*highest[1:], head)


def _split(run: Run, dest: int, src: int, head: Head) -> Split:
    with exact_matmul():
        row = score_row(run, *head, dest, basis="homogeneous")
    n = len(row.a)
    sigma = omega(run.model, head[0], "homogeneous").sigma[head[1], :n].cpu()
    a, b = row.a.cpu(), row.B[src - row.first].cpu()
    terms = refactored(a[None], b[None], sigma, rotations(n, _DRAWS))[:, 0]
    counts = slice_sets(terms).sum(-1)
    return Split(run.channels(head, dest, src, basis="homogeneous"), tuple(int(count) for count in counts))


def mapped(job: Job, firing: bool) -> Outcome:
    """Does a head use the same slices again and again, and others when it does not fire?"""
    seen = measured(job)
    heads = _heads(seen)
    numbers: Numbers = {}
    lines, again, others = [], [], []
    for head in heads:
        alike, table = agreement(seen.ioi, head, seed=job.seed), seen.ioi.of(head, firing=firing)
        own, chance = (alike.firing, alike.chance) if firing else (alike.quiet, alike.chance_quiet)
        rotated = max(alike.rotated if firing else alike.rotated_quiet)
        again.append(own > _CLEARLY * chance and own > rotated)
        others.append(alike.between < own)
        name = name_of(head)
        sizes = spread(table.slices, table.pairs[:, 0])
        often = int((table.usage >= 0.5).sum())
        numbers |= {f"{name} slices": sizes.mean, f"{name} in half of the pairs": often, f"{name} alike": own}
        numbers |= {f"{name} alike, chance": chance, f"{name} alike, firing and not": alike.between}
        numbers[f"{name} alike, rotated"] = rotated
        lines.append(
            f"{name}: {sizes} of {table.used.shape[1]} slices, {often} of them in half of the {len(table)} "
            f"pairs; sets are alike by {own:.2f} (reshuffled {chance:.2f}, in rotated bases up to {rotated:.2f}, "
            f"firing against not {alike.between:.2f})."
        )
    path = save(slice_map_figure(seen.ioi, heads), job.folder / "slices.png")
    roles = ", ".join(f"{role} {name_of(h)}" for role, own in seen.roles.items() for h in own if h in heads)
    recurs = sum(again) > len(again) / 2
    holds = [recurs] + ([] if firing else [sum(others) > len(others) / 2])
    note = (
        f"Asked of most heads: sets {_CLEARLY:g} times as alike as reshuffled ones, and more alike than in each of "
        f"{seen.ioi.draws} rotated bases (prompts that are alike use alike slices in any basis)"
        f"{'' if firing else '; and more alike than with firings; nothing without the first'}. Alike: shared slices "
        f"over all slices of two pairs from different prompts. Heads: {roles}. {stood_in(job)}"
    )
    return Outcome(judged(job, holds, first=recurs), "\n".join(lines), numbers, (path,), note)


def sizes(job: Job) -> Outcome:
    """How many slices does a firing use, on IOI and on unrelated text, and how many in rotated bases?"""
    elsewhere, what = unrelated(job)
    studies = measured(job).ioi, elsewhere
    numbers: Numbers = {}
    lines, holds, fewer = [], [], []
    for study in studies:
        whole = pooled(study)
        n = max(table.used.shape[1] for table in study.tables)
        counts = torch.cat([table.slices for table in study.tables if table.firing])
        often = float(((counts == 2) | (counts == 3)).double().mean())
        fewer.append(whole.slices_fewer.high < 0)
        holds += [fewer[-1] and whole.slices.quantiles[-2] <= n * _FEW, fewer[-1] and often >= _OFTEN]
        numbers |= {f"{study.name}: slices": whole.slices.mean, f"{study.name}: rotated": whole.slices_rotated.mean}
        numbers |= {f"{study.name}: upper quartile": whole.slices.quantiles[-2], f"{study.name}: 2 or 3": often}
        numbers[f"{study.name}: fewer than rotated"] = -whole.slices_fewer.mean
        lines.append(
            f"{study.name}: {whole.slices} of {n} slices in {whole.pairs} firings (median "
            f"{whole.slices.median:.0f}, upper quartile {whole.slices.quantiles[-2]:.0f}), 2 or 3 in {often:.0%}; in "
            f"rotated bases {whole.slices_rotated}, a difference of {whole.slices_fewer}."
        )
    path = save(slice_counts_figure(studies), job.folder / "counts.png")
    note = (
        "20 of 64 slices are about a third, which is asked of the upper quartile here; often means a quarter of the "
        "firings or more. The paper names no control; here neither counts unless firings take fewer slices than in "
        f"rotated bases, with an interval below 0. {what} {stood_in(job)}"
    )
    return Outcome(judged(job, holds, first=all(fewer)), "\n".join(lines), numbers, (path,), note)


RUNS: dict[str, Attempt] = {
    "svt-fig1": contributed,
    "svt-fig2": partial(mapped, firing=True),
    "svt-fig3": sizes,
    "svt-fig8": partial(mapped, firing=False),
}
