"""What does every query of a head attend to, and what does it leave? Read from runs, in any frame.

    k_att = sum_j a_j k_j,   k_rest = sum_j (1 - a_j) k_j / (visible - 1)        a sums to one over the keys that count

The first token is left out by default: many heads rest there when nothing matches, and resting says nothing about
features.

With RoPE, features are read in the relative frame: in post_rope a head that matches positions shows up as
pairs of sinusoids (kurtosis -1.5), in the relative frame as a preference of the average query.
"""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from keyhole.brief import brief
from keyhole.errors import KeyholeError
from keyhole.features.contrast.sums import Frame, check_frame, turns_at
from keyhole.features.discovery.ica import mean_error
from keyhole.models.attention import visible_mask
from keyhole.models.tokens import Prompt, encode
from keyhole.progress import Progress

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.models.run import AttentionRun, Run

_DEST_BLOCK = 256  # rows of attention held at once: keeps memory linear in the prompt length


@dataclass(frozen=True)
class View:
    """How attention is read: the frame of queries and keys, and which attention counts."""

    frame: Frame = "relative"
    skip_first: bool = True  # leave out attention to the first token
    active: float = (
        0.1  # a query must give the keys that count at least this much attention, or the head counts as resting
    )

    def __post_init__(self) -> None:
        check_frame(self.frame)
        if not 0 <= self.active <= 1:
            raise KeyholeError(f"active is {self.active}, but it is a sum of attention weights: give 0 to 1.")


@dataclass(frozen=True)
class Attended:
    """Some heads of one layer on one prompt, in float64."""

    __repr__ = brief

    q: Float[Tensor, "heads pos d_head"]
    attended: Float[Tensor, "heads pos d_head"]
    rest: Float[Tensor, "heads pos d_head"]
    top: Int[Tensor, "heads pos"]  # the most attended key that counts
    top_key: Float[Tensor, "heads pos d_head"]
    used: Bool[Tensor, "heads pos"]  # False where the head rests or where fewer than two keys are visible


def attended(record: "AttentionRun", heads: Sequence[int], view: View) -> Attended:
    """What each query of these heads attends to, and what it leaves."""
    n, group = record.q.shape[1], record.q.shape[0] // record.k.shape[0]
    q, k = record.q[list(heads)].double(), record.k[[h // group for h in heads]].double()
    turned = record.rotary is not None and view.frame != "post_rope"
    if turned:
        q = _into(record, q)
        k = _into(record, k) if view.frame == "pre_rope" else k
    blocks = [_block(record, k, heads, range(i, min(i + _DEST_BLOCK, n)), view=view) for i in range(0, n, _DEST_BLOCK)]
    att, rest, top_key, top, used = (torch.cat(parts, dim=1) for parts in zip(*blocks, strict=True))
    if turned and view.frame == "relative":  # a rotation is linear: turning the sums turns every key in them
        att, rest, top_key = (_into(record, x) for x in (att, rest, top_key))
    return Attended(q, att, rest, top, top_key, used)


def _into(record: "AttentionRun", x: Tensor) -> Tensor:
    """Vectors of every position, rotated back by that position."""
    assert record.rotary is not None
    turns = turns_at(record.rotary, torch.arange(x.shape[1], device=x.device))
    return turns.into(x.transpose(0, 1)).transpose(0, 1)


def _block(
    record: "AttentionRun", k: Tensor, heads: Sequence[int], dests: range, *, view: View
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    at = torch.arange(dests.start, dests.stop, device=k.device)
    visible = visible_mask(record.first[at], at, k.shape[1])
    if view.skip_first:
        visible[:, 0] = False
    a = record.weights(heads, dests).double() * visible
    mass, count = a.sum(-1), visible.sum(-1)
    used = (mass >= max(view.active, 1e-12)) & (count > 1)
    a = a / mass.clamp_min(1e-12)[..., None]
    att = a @ k
    rest = (visible.double() @ k - att) / (count - 1).clamp_min(1)[:, None]  # sum_j (1 - a_j) = count - 1
    top = a.argmax(-1)
    return att, rest, k.gather(1, top[..., None].expand(-1, -1, k.shape[2])), top, used


def groups_of(model: "Model", prompts: Sequence[Prompt], bos: bool | None = None) -> Int[Tensor, "prompt"]:
    """A group number per prompt: the same for equal prompts, and independent of the order of prompts."""
    if isinstance(prompts, str) or not len(prompts):
        raise KeyholeError("give a list of prompts, at least two: one half is fitted and the other held out.")
    ids = [encode(model, prompt, bos).ids for prompt in prompts]
    order = sorted(set(ids), key=lambda row: (zlib.crc32(repr(row).encode()), row))
    if len(order) < 2:
        raise KeyholeError("all prompts are the same: one half must be held out, so give two different ones or more.")
    number = {row: i for i, row in enumerate(order)}
    return torch.tensor([number[row] for row in ids])


def each_run(
    model: "Model", prompts: Sequence[Prompt], *, bos: bool | None, batch: int, progress: Progress | None
) -> Iterator[tuple[int, "Run"]]:
    """Every prompt's number and run, with `batch` prompts in memory at a time."""
    if batch < 1:
        raise KeyholeError(f"batch is {batch}, but at least one prompt must run at a time.")
    for start in range(0, len(prompts), batch):
        some = list(prompts[start : start + batch])
        yield from enumerate(model.run_many(some, bos=bos), start)
        if progress is not None:
            progress(start + len(some), len(prompts))


@dataclass(frozen=True)
class Samples:
    """Queries of one head, each with what it attends to and what it leaves; float64, in main memory."""

    __repr__ = brief

    q: Float[Tensor, "samples d_head"]
    attended: Float[Tensor, "samples d_head"]
    rest: Float[Tensor, "samples d_head"]
    group: Int[Tensor, "samples"]  # samples of one group (prompt) stay on one side of the split
    scaling: float

    @property
    def gap(self) -> Float[Tensor, "samples"]:
        """The score of what is attended minus the score of the rest."""
        return self.scaling * (self.q * (self.attended - self.rest)).sum(-1)

    def where(self, chosen: Bool[Tensor, "samples"]) -> "Samples":
        """Some of the samples.

        Args:
            chosen: A mask over the samples.
        """
        return Samples(self.q[chosen], self.attended[chosen], self.rest[chosen], self.group[chosen], self.scaling)

    def shares(self, parts: Float[Tensor, "samples part"]) -> tuple[Float[Tensor, "part"], Float[Tensor, "part"]]:
        """The share of the mean gap that is each part's mean, with its error (of a ratio of two means).

        Args:
            parts: The parts of each sample's gap.
        """
        gap = self.gap.mean()
        shares = parts.mean(0) / gap
        return shares, mean_error((parts - shares * self.gap[:, None]) / gap, self.group)


def samples_of(
    q: Float[Tensor, "samples d_head"],
    keys: Float[Tensor, "samples keys d_head"],
    attention: Float[Tensor, "samples keys"],
    *,
    visible: Bool[Tensor, "samples keys"] | None = None,
    groups: Int[Tensor, "samples"] | None = None,
    scaling: float | None = None,
) -> Samples:
    """Samples from plain tensors: what each query attends to, and what it leaves.

    Queries with fewer than two visible keys, or
    without attention to these, have no contrast and are left out.

    Args:
        q: A query per sample.
        keys: The keys that each could attend to.
        attention: Its weights, which are normalised over the visible keys.
        visible: Which keys are visible. Default: all.
        groups: Samples of one group stay on one side of the split. Default: each is a group.
        scaling: Of scores. Default: 1 / sqrt(d_head).

    >>> q, keys = torch.eye(2), torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]).expand(2, -1, -1)
    >>> samples_of(q, keys, torch.tensor([[1.0, 0.0], [0.0, 1.0]])).attended.tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    if not bool(torch.isfinite(q).all() and torch.isfinite(keys).all()):
        raise KeyholeError("queries or keys hold NaN or infinite numbers: fill padded keys with zeros.")
    shown = torch.ones_like(attention, dtype=torch.bool) if visible is None else visible
    a = attention.double().masked_fill(~shown, 0.0)
    mass, count = a.sum(1), shown.sum(1)
    usable = (mass > 0) & (count > 1)
    a, shown, k = a[usable] / mass[usable, None], shown[usable].double(), keys[usable].double()
    attended = (a[:, None] @ k)[:, 0]
    rest = ((shown - a)[:, None] @ k)[:, 0] / (count[usable, None] - 1)  # sum_j (1 - a_j) = count - 1
    group = torch.arange(len(q), device=q.device) if groups is None else groups
    c = q.shape[1] ** -0.5 if scaling is None else scaling
    return Samples(q[usable].double().cpu(), attended.cpu(), rest.cpu(), group[usable].cpu(), c)


def contrast_of(samples: Samples, *, centre: bool = False) -> Float[Tensor, "d_head d_head"]:
    """E[q (k_att - k_rest)^T]; centred: the covariance, without what the average query prefers."""
    q, d = samples.q, samples.attended - samples.rest
    return q.T @ d / len(q) - (mean_part(samples) if centre else 0.0)


def mean_part(samples: Samples) -> Float[Tensor, "d_head d_head"]:
    """E[q] E[k_att - k_rest]^T: the preference that all queries share."""
    return torch.outer(samples.q.mean(0), (samples.attended - samples.rest).mean(0))
