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
from keyhole.models.facts import Rotary, turn
from keyhole.models.numbers import working_dtype
from keyhole.settings.tracing import Keys as Keys
from keyhole.tracing.upstream import Reads, Writes

if TYPE_CHECKING:
    from keyhole.models.run import AttentionRun

INTERVALS = 64  # of the trapezoid rule, as in the reference implementation of ACC++


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
    coord: Float[Tensor, "own moved channel"]
    at: Int[Tensor, "firing"] | None  # row of `coord` for each firing; None: row i is that of firing i
    local: Float[Tensor, "firing local channel"]
    gain: Float[Tensor, "firing channel"]
    firing: Int[Tensor, "firing"]  # indices of these firings in the batch
    build: Callable[[Tensor, Tensor, Tensor], Tensor]  # firings, components, channels -> rows

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

    @property
    def _coord(self) -> Float[Tensor, "#firing moved channel"]:
        return self.coord if self.at is None or len(self.coord) == 1 else self.coord[self.at]

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
        pulled = self._coord * self.gain[:, None]
        best = torch.where(self.factor >= 0, pulled.amax(-1), pulled.amin(-1)) * self.factor
        local = self.local * self.gain[:, None]
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
        coord, at = (self.coord[firings], None) if self.at is None else (self.coord, self.at[firings])
        parts = (self.factor[firings], coord, at, self.local[firings], self.gain[firings])
        return Candidates(*parts, self.firing[firings], self.build)


@dataclass(frozen=True)
class Places:
    """Some firings of a layer: their sites, their vectors w, and their rows in the tables of `reads`."""

    writes: Writes
    layer: int
    sites: Sites
    w: Float[Tensor, "firing pos"]
    reads: Reads
    pair: Int[Tensor, "firing"]


def dest_candidates(places: Places) -> Candidates:
    """Candidates on the dest side: writes at dest, a^(c) = R_d (W_Q^T o_c s_d / n_d) G_d, rows a_k^(c) B_tk."""
    writes, layer, reads, pair = places.writes, places.layer, places.reads, places.pair
    run, head, dest = places.sites.run, places.sites.head, places.sites.dest
    record, om, w = writes.record(layer), writes.omega(layer), writes.folded(layer)
    n_layers, G_d = writes.below(layer)[0], om.G_d[head]
    B = record.k[run, record.kv(head)].to(writes.dtype) @ om.G_s[head].mT  # [firing, key, channel]
    scale = record.q_scale[run, head, dest] / record.norm_scale[run, dest]
    factor = B.new_zeros(len(run), 0)
    if n_layers:
        rows = writes.patterns.rows(n_layers, run, dest) / writes.out_scale[run, :n_layers, dest][:, :, None, None]
        factor = rows.flatten(1) * scale[:, None]
    local = reads.q_local[pair, :, dest] * scale[:, None, None]
    offset = (record.q_scale[run, head, dest][:, None] * w.b_Q[head] + w.c_Q[head])[:, None]
    if record.rotary is None:
        coord, at = reads.q_moved, pair
        local = torch.cat([local, offset @ G_d], dim=1)
    else:
        turning, at = record.rotary.at(dest), None
        coord = _turned_at(reads.q_moved[pair], turning) @ G_d
        local = _turned_at(torch.cat([local, offset], dim=1), turning) @ G_d
    if (missed := writes.rounded_in(layer, "dest")) is not None:
        local[:, -1] += (missed[run, head, dest][:, None] @ G_d)[:, 0]
    gain = record.rule.scaling * (places.w.to(B.dtype)[:, None] @ B)[:, 0]

    def build(firings: Tensor, components: Tensor, channels: Tensor) -> Tensor:
        rows = firings if at is None else at[firings]
        value = local[firings[:, None], (components - factor.shape[1]).clamp_min(0), channels]
        if n_layers:
            c = components.clamp_max(factor.shape[1] - 1)
            moved = factor[firings[:, None], c] * coord[rows[:, None], c, channels]
            value = torch.where(components < factor.shape[1], moved, value)
        return record.rule.scaling * value[..., None] * B[firings[:, None], :, channels]

    return Candidates(factor, coord, at, local, gain, torch.arange(len(gain), device=gain.device), build)


def src_candidates(places: Places, keys: Keys = "all") -> Candidates:
    """Candidates on the src side: writes at all keys or at src alone, rows a_k (G_s R_t W_K^T o_c,t s_t / n_t)_k."""
    writes, layer, reads, key = places.writes, places.layer, places.reads, places.reads.key[places.pair]
    run, head, dest = places.sites.run, places.sites.head, places.sites.dest
    record, om, w = writes.record(layer), writes.omega(layer), writes.folded(layer)
    kv, n_layers, n_moved, G_s = record.kv(head), writes.below(layer)[0], writes.moved_below(layer), om.G_s[head]
    touched = torch.ones_like(places.w) if keys == "all" else _only(places.sites.src, places.w)
    pull = (places.w * touched).to(writes.dtype)
    per_key = record.k_scale[run, kv] / record.norm_scale[run]
    a = record.rule.scaling * (record.q[run, head, dest].to(writes.dtype)[:, None] @ om.G_d[head])[:, 0]
    offset = (record.k_scale[run, kv][..., None] * w.b_K[kv][:, None] + w.c_K[kv][:, None])[:, None]
    offered = reads.k_local[key] * per_key[:, None, :, None]
    if record.rotary is None:
        offered = torch.cat([offered, offset @ G_s[:, None].mT], dim=1)  # [firing, local, pos, channel]
    else:
        offered = record.rotary.rotate(torch.cat([offered, offset], dim=1)) @ G_s[:, None].mT
    if (missed := writes.rounded_in(layer, "src")) is not None:
        offered[:, -1] += missed[run, kv] @ G_s.mT
    local = torch.einsum("ft,fctk->fck", pull, offered)
    per_move = per_key[:, None] / writes.out_scale[run, :n_layers]  # [firing, layers, pos]
    coord, factor = reads.k_moved, a.new_zeros(len(a), 0)
    at: Tensor | None = key
    if n_layers and record.rotary is None:
        factor = writes.patterns.push(n_layers, pull[:, None] * per_move, run).flatten(1)
    elif n_layers and record.rotary is not None:
        coord, at = _turned_sum(places, pull[:, None] * per_move, record.rotary) @ G_s.mT, None
        factor = coord.new_ones(coord.shape[:2])

    def build(firings: Tensor, components: Tensor, channels: Tensor) -> Tensor:
        f = firings[:, None].expand_as(components)
        value = offered[f, (components - n_moved).clamp_min(0), :, channels]
        is_moved = components < n_moved
        if n_moved and bool(is_moved.any()):
            picks, k, moved = components[is_moved], channels[is_moved], f[is_moved]
            index, mover, source = writes.moved_by(picks)
            column = writes.patterns.columns(index, run[moved], mover, source) * per_move[moved, index]
            y = reads.k_moved[key[moved], picks]
            value[is_moved] = column * _along_keys(y, k, record.rotary, om.G_s[head[moved], k])
        value = value * a[firings].gather(1, channels)[..., None]
        return value if keys == "all" else value * touched[firings][:, None].to(value.dtype)

    return Candidates(factor, coord, at, local, a, torch.arange(len(a), device=a.device), build)


def _only(src: Tensor, like: Tensor) -> Tensor:
    return torch.zeros_like(like).scatter(1, src[:, None], 1.0)


def _turned_at(x: Float[Tensor, "firing any d_head"], at: Rotary) -> Float[Tensor, "firing any d_head"]:
    """RoPE at the dest d of each firing: R_d x."""
    return turn(x, at.cos[:, None], at.sin[:, None], at.pairing)


def _turned_sum(
    places: Places, u: Float[Tensor, "firing layers pos"], rotary: Rotary
) -> Float[Tensor, "firing moved d_head"]:
    """Sum over t of u_t A_tb R_t y, for every write y moved from token b.

    Per frequency, the sums over t of u A cos and u A sin are enough: y does not depend on t.
    """
    layers, firings, n_freq = u.shape[1], len(u), rotary.cos.shape[1]
    waves = torch.cat([rotary.cos.T, rotary.sin.T, torch.ones_like(rotary.cos[:, :1]).T]).to(u.dtype)
    turning = (u[:, None] * waves[None, :, None]).flatten(0, 1)
    sums = places.writes.patterns.push(layers, turning, places.sites.run.repeat_interleave(len(waves)))
    sums = sums.reshape(firings, len(waves), -1).transpose(1, 2)  # [firing, moved, waves]
    moved = places.reads.k_moved[places.reads.key[places.pair]]
    out = turn(moved, sums[..., :n_freq], sums[..., n_freq : 2 * n_freq], rotary.pairing)
    passing = out.shape[-1] - 2 * n_freq
    if passing:
        out[..., 2 * n_freq :] *= sums[..., -1:]
    return out


def _along_keys(
    y: Float[Tensor, "pick d_head"], k: Int[Tensor, "pick"], rotary: Rotary | None, G_s: Float[Tensor, "pick d_head"]
) -> Float[Tensor, "pick pos"]:
    """(G_s R_t y)_k at every key t, for chosen writes y and channels k."""
    return y.gather(1, k[:, None]) if rotary is None else rotary.dots(G_s, y)
