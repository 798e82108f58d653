"""Which (writer, channel) pairs could cause a firing? Integrated gradients of its attention weight, for all pairs.

The path goes from zero scores to the model's own: alpha S, for alpha from 0 to 1. With softcap c and
p = softmax(c(alpha S)), the integrated gradients of the weight p_s of src s are one vector w with an entry per key:

    w = integral of p_s (e_s - p) c'(alpha S) d alpha

A pair i adds a row C_i to the scores S, and its attribution is C_i . w. All rows add up to S, so the attributions add
up to S . w = p_s(S) - p_s(0).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from keyhole.models.attention import AttentionRule, visible_mask
from keyhole.models.numbers import working_dtype
from keyhole.settings.tracing import Keys as Keys
from keyhole.tracing.bounds import Bounded
from keyhole.tracing.upstream import Reads, Writes

if TYPE_CHECKING:
    from keyhole.models.run import AttentionRun

INTERVALS = 64  # of the trapezoid rule, as in the reference implementation of ACC++
_NO_IG = 1e-12  # an attribution up to this, or up to the rounding of its dtype, counts as zero


def no_attribution(dtype: torch.dtype) -> float:
    """Attributions of this dtype up to this are none."""
    return max(torch.finfo(dtype).eps, _NO_IG)


def ig_vectors(
    scores: Float[Tensor, "firing key"],
    visible: Bool[Tensor, "firing key"],
    src: Int[Tensor, "firing"],
    rule: AttentionRule,
    *,
    heads: Int[Tensor, "firing"],
) -> Float[Tensor, "firing key"]:
    """The vector w of each firing; zero at keys that are not visible from dest.

    >>> S = torch.tensor([[2.0, 0.0, 1.0]], dtype=torch.float64)
    >>> first = torch.tensor([0])
    >>> w = ig_vectors(S, torch.ones(1, 3, dtype=torch.bool), first, AttentionRule(1.0), heads=first)
    >>> bool(abs((S * w).sum() - (S.softmax(-1)[0, 0] - 1 / 3)) < 1e-3)
    True
    """
    scores = scores.double().masked_fill(~visible, 0.0)
    alphas = torch.linspace(0, 1, INTERVALS + 1, dtype=torch.float64, device=scores.device)
    step = torch.full_like(alphas, 1 / INTERVALS)
    step[[0, -1]] /= 2
    path = alphas[:, None] * scores[:, None, :]
    p = rule.of_heads(path, visible, heads)
    at_src = p.gather(-1, src[:, None, None].expand(-1, len(alphas), 1))
    pull = -p
    pull.scatter_add_(-1, src[:, None, None].expand(-1, len(alphas), 1), torch.ones_like(at_src))
    if rule.softcap is not None:
        pull = pull * (1 - torch.tanh(path / rule.softcap).square())
    return torch.einsum("a,faq->fq", step, at_src * pull).masked_fill(~visible, 0.0)


# Which firings are explained in one batch? All firings of one layer, over its heads and over all runs.


@dataclass(frozen=True)
class Sites:
    """Firings of one layer, each with its run, head, dest and src."""

    run: Int[Tensor, "firing"]
    head: Int[Tensor, "firing"]
    dest: Int[Tensor, "firing"]
    src: Int[Tensor, "firing"]

    @classmethod
    def of(cls, places: Sequence[tuple[int, int, int, int]], device: torch.device) -> "Sites":
        """From a tuple (run, head, dest, src) for each firing."""
        return cls(*torch.tensor(places, dtype=torch.long, device=device).view(-1, 4).T.contiguous())

    def __len__(self) -> int:
        return len(self.run)

    def __getitem__(self, firings: Tensor | slice) -> "Sites":
        return Sites(*(getattr(self, field.name)[firings] for field in fields(self)))

    def scores(self, record: "AttentionRun") -> Float[Tensor, "firing key"]:
        """Scaled, uncapped scores of each firing's dest against every key, visible or not."""
        dtype = working_dtype(record.q.dtype)
        q, k = record.q[self.run, self.head, self.dest].to(dtype), record.k[self.run, record.kv(self.head)].to(dtype)
        return (k @ q[:, :, None])[..., 0] * record.rule.scaling

    def visible(self, record: "AttentionRun") -> Bool[Tensor, "firing key"]:
        """Which keys does each dest see?"""
        return visible_mask(record.first[self.dest], self.dest, len(record.first))


# How much does each (writer, channel) pair matter to each firing? Attributions C w, without building C.
#
# A pair is a candidate; its row of C is what it adds to the scores of the firing's dest, one entry per key. On the dest
# side the row is a scalar times B[:, k], the coordinates of all keys in channel k. On the src side it is a_k, the
# query's coordinate, times the writer's coordinates at each key. Both have rank-one structure, so attributions
# need only coordinates:
#
#     attribution of (component c, channel k) = factor_c * coord_ck * gain_k


@dataclass(frozen=True)
class Candidates:
    """All candidates on one side of some firings.

    Components are numbered in this order: head writes (layer, head, source), which are *moved* from a source token;
    then local writers, which write at their own token; then the offset (query or key bias) of the head.
    """

    factor: Float[Tensor, "firing moved"]
    coord: Float[Tensor, "own moved channel"] | None  # None: too many for all to be computed, and `bounded`
    at: Int[Tensor, "firing"] | None  # row of `coord` for each firing; None: row i is that of firing i
    local: Float[Tensor, "firing local channel"]
    gain: Float[Tensor, "firing channel"]
    firing: Int[Tensor, "firing"]  # indices of these firings in the batch
    build: Callable[[Tensor, Tensor, Tensor], Tensor]  # firings, components, channels -> rows
    bounded: Bounded | None = None

    @property
    def components(self) -> int:
        """Number of components: moved writes, local writers, and the offset."""
        return self.factor.shape[1] + self.local.shape[1]

    @property
    def n(self) -> int:
        """Number of candidates."""
        return self.components * self.gain.shape[1]

    def row_floats(self, keys: int) -> int:
        """Memory for building one row, in floats: the larger of its entries per key and its coordinates per channel."""
        return max(keys, self.gain.shape[1])

    def rows(
        self, components: Int[Tensor, "firing pick"], channels: Int[Tensor, "firing pick"]
    ) -> Float[Tensor, "firing pick key"]:
        """The rows of chosen candidates: what each adds to the scores of its firing."""
        return self.build(self.firing, components, channels)

    def single_rows(
        self, firing: Int[Tensor, "pick"], component: Int[Tensor, "pick"], channel: Int[Tensor, "pick"]
    ) -> Float[Tensor, "pick key"]:
        """The rows of candidates given one by one, each with its firing."""
        return self.build(self.firing[firing], component[:, None], channel[:, None])[:, 0]

    def top(
        self, m: int
    ) -> tuple[Float[Tensor, "firing pick"], Int[Tensor, "firing pick"], Int[Tensor, "firing pick"]]:
        """The m highest attributions in order, with their components and channels.

        The m best candidates lie in the m components whose best channel ranks highest, so only those are expanded.
        """
        local = self.local * self.gain[:, None]
        if self.bounded is not None:
            return _top_of_bounded(self.bounded, local, m)
        assert self.coord is not None
        coord = self.coord if self.at is None or len(self.coord) == 1 else self.coord[self.at]
        pulled = coord * self.gain[:, None]
        best = torch.where(self.factor >= 0, pulled.amax(-1), pulled.amin(-1)) * self.factor
        components = torch.cat([best, local.amax(-1)], dim=1)
        chosen = components.topk(min(m, components.shape[1]), dim=1).indices
        n_moved, channels = self.factor.shape[1], self.gain.shape[1]
        ig = local.gather(1, (chosen - n_moved).clamp_min(0)[..., None].expand(-1, -1, channels))
        if n_moved:
            at = chosen.clamp_max(n_moved - 1)
            moved = pulled.gather(1, at[..., None].expand(-1, -1, channels)) * self.factor.gather(1, at)[..., None]
            ig = torch.where((chosen < n_moved)[..., None], moved, ig)
        values, flat = ig.flatten(1).topk(min(m, ig.shape[1] * channels), dim=1)
        return values, chosen.gather(1, flat // channels), flat % channels

    def subset(self, firings: Tensor) -> "Candidates":
        """The candidates of some of the firings."""
        coord, at = self.coord, None if self.at is None else self.at[firings]
        if coord is not None and at is None:
            coord = coord[firings]
        bounded = None if self.bounded is None else self.bounded.subset(firings)
        parts = (self.factor[firings], coord, at, self.local[firings], self.gain[firings])
        return Candidates(*parts, self.firing[firings], self.build, bounded)


def _top_of_bounded(
    bounded: Bounded, local: Float[Tensor, "firing local channel"], m: int
) -> tuple[Float[Tensor, "firing pick"], Int[Tensor, "firing pick"], Int[Tensor, "firing pick"]]:
    """The same of bounded writes, firing by firing; where fewer than m may be attributions, zeros follow."""
    least, channels = local.new_tensor(no_attribution(local.dtype)), local.shape[2]
    width = min(m, (bounded.n + local.shape[1]) * channels)
    others = bounded.n + torch.arange(local.shape[1], device=local.device)
    out = local.new_zeros(len(local), width)
    component, channel = (torch.zeros_like(out, dtype=torch.long) for _ in range(2))
    for firing, written in enumerate(local):
        moved, values = bounded.best(firing, m, least, written)
        best = torch.cat([values, written]).flatten()
        ig, flat = best.topk(min(width, len(best)))
        out[firing, : len(ig)] = ig
        component[firing, : len(ig)] = torch.cat([moved, others])[flat // channels]
        channel[firing, : len(ig)] = flat % channels
    return out, component, channel


@dataclass(frozen=True)
class Places:
    """Some firings of a layer: their sites, their vectors w, and their rows in the tables of `reads`."""

    writes: Writes
    layer: int
    sites: Sites
    w: Float[Tensor, "firing pos"]
    reads: Reads
    pair: Int[Tensor, "firing"]
