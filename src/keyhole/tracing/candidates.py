"""How much does each (writer, channel) matter to each firing of a head? The rows of C, without ever building C.

A candidate's row is what it adds to the scores of the firing's destination, one entry per key. On the dest side a row
is a scalar times B[:, k]; on the src side it is a_k times what the writer offers each key. Both have rank-one
structure, so attributions C w need only coordinates:

    attribution of (component c, channel k) = factor_c * coord_ck * gain_k
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from keyhole.models.rotary import Rotary, turn

if TYPE_CHECKING:
    from keyhole.tracing.upstream import Reads, Writes

Keys = Literal["all", "source"]


@dataclass(frozen=True)
class Candidates:
    """All candidates on one side of some firings of one head.

    Components are numbered: head writes (layer, head, source) first, then local writers, then the head's own offset.
    """

    factor: Float[Tensor, "firing moved"]
    coord: Float[Tensor, "#firing moved channel"]
    local: Float[Tensor, "firing local channel"]
    gain: Float[Tensor, "firing channel"]
    firing: Int[Tensor, "firing"]  # which firings of the batch these are
    build: Callable[[Tensor, Tensor, Tensor], Tensor]  # firings, components, channels -> rows

    @property
    def n(self) -> int:
        """Number of candidates."""
        return (self.factor.shape[1] + self.local.shape[1]) * self.gain.shape[1]

    def rows(
        self, components: Int[Tensor, "firing pick"], channels: Int[Tensor, "firing pick"]
    ) -> Float[Tensor, "firing pick key"]:
        """What chosen candidates add to the scores of their firing."""
        return self.build(self.firing, components, channels)

    def top(
        self, m: int
    ) -> tuple[Float[Tensor, "firing pick"], Int[Tensor, "firing pick"], Int[Tensor, "firing pick"]]:
        """The m highest attributions in order, with their components and channels.

        The m best candidates lie in the m components with the best channel, so only those are looked at closely.
        """
        pulled = self.coord * self.gain[:, None]
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
        """The same for some of the firings."""
        coord = self.coord if len(self.coord) == 1 else self.coord[firings]
        parts = (self.factor[firings], coord, self.local[firings], self.gain[firings])
        return Candidates(*parts, self.firing[firings], self.build)


@dataclass(frozen=True)
class Places:
    """Some firings of one head of one run: destinations, sources and their vectors w."""

    writes: "Writes"
    layer: int
    dest: Int[Tensor, "firing"]
    src: Int[Tensor, "firing"]
    w: Float[Tensor, "firing pos"]


def dest_candidates(places: Places, reads: "Reads") -> Candidates:
    """What was written at dest: coordinates a^(c) = R_d (W_Q^T o_c s_d / n_d) G_d, rows a_k^(c) B_tk."""
    writes, layer, head = places.writes, places.layer, reads.head
    record, om = writes.run.layer(layer), writes.omega(layer)
    w = writes.weights(layer)
    n_layers = len(reads.q_moved)
    B = record.k[w.kv(head)].to(writes.dtype) @ om.G_s[head].T
    dests = places.dest.tolist()
    scale = record.q_scale[head, places.dest] / record.norm_scale[places.dest]
    rows = torch.stack([writes.patterns.rows(n_layers, d) for d in dests]) if n_layers else None
    if rows is None:
        factor = B.new_zeros(len(dests), 0)
    else:
        factor = (rows / writes.out_scale[:n_layers, places.dest].T[:, :, None, None]).flatten(1) * scale[:, None]
    local = reads.q_local[:, places.dest].transpose(0, 1) * scale[:, None, None]
    offset = record.q_scale[head, places.dest][:, None] * w.b_Q[head] + w.c_Q[head]
    if record.rotary is None:
        coord = reads.q_moved.flatten(0, 2)[None]
        offset = offset @ om.G_d[head]
    else:
        at = record.rotary.at(places.dest)
        coord = _turned_at(reads.q_moved.flatten(0, 2), at) @ om.G_d[head]
        local = at.rotate(local.transpose(0, 1)).transpose(0, 1) @ om.G_d[head]
        offset = at.rotate(offset) @ om.G_d[head]
    local = torch.cat([local, offset[:, None]], dim=1)
    gain = record.rule.scaling * (places.w.to(B.dtype) @ B)

    def build(firings: Tensor, components: Tensor, channels: Tensor) -> Tensor:
        shared = coord if len(coord) == 1 else coord[firings]
        value = _pick(factor[firings], shared, local[firings], components=components, channels=channels)
        return record.rule.scaling * value[..., None] * B.T[channels]

    return Candidates(factor, coord, local, gain, torch.arange(len(gain), device=gain.device), build)


def src_candidates(places: Places, reads: "Reads", keys: Keys = "all") -> Candidates:
    """What was written at the keys: rows a_k (G_s R_t W_K^T o_c,t s_t / n_t)_k, at all keys or at the source alone."""
    writes, layer, head = places.writes, places.layer, reads.head
    record, om = writes.run.layer(layer), writes.omega(layer)
    w, n = writes.weights(layer), len(writes.run)
    kv, n_layers = w.kv(head), len(reads.k_moved)
    touched = torch.ones_like(places.w) if keys == "all" else _only(places.src, places.w)
    pull = (places.w * touched).to(writes.dtype)
    per_key = record.k_scale[kv] / record.norm_scale
    a = record.rule.scaling * (record.q[head, places.dest].to(writes.dtype) @ om.G_d[head])
    offered = _offered(reads, record.rotary, per_key=per_key, G_s=om.G_s[head])
    offset = record.k_scale[kv][:, None] * w.b_K[kv] + w.c_K[kv]
    offset = (offset if record.rotary is None else record.rotary.rotate(offset)) @ om.G_s[head].T
    offered = torch.cat([offered, offset[None]])  # [local, pos, channel]
    local = torch.einsum("ft,ctk->fck", pull, offered)
    per_move = per_key / writes.out_scale[:n_layers]  # [layers, pos]
    moved = reads.k_moved.flatten(0, 2)
    if record.rotary is None or n_layers == 0:
        coord = moved[None]
        factor = writes.patterns.push(n_layers, pull[:, None] * per_move).flatten(1) if n_layers else coord[:, :, 0]
        factor = factor.expand(len(pull), -1)
    else:
        coord = _turned_sum(writes, reads, pull[:, None] * per_move, record.rotary) @ om.G_s[head].T
        factor = coord.new_ones(coord.shape[:2])

    def build(firings: Tensor, components: Tensor, channels: Tensor) -> Tensor:
        value = offered[(components - len(moved)).clamp_min(0), :, channels]
        is_moved = components < len(moved)
        if bool(is_moved.any()):
            picks, k = components[is_moved], channels[is_moved]
            index, rest = picks // (writes.patterns.n_heads * n), picks % (writes.patterns.n_heads * n)
            column = writes.patterns.columns(index, rest // n, rest % n) * per_move[index]
            value[is_moved] = column * _along_keys(moved[picks], k, record.rotary, om.G_s[head])
        value = value * a[firings].gather(1, channels)[..., None]
        return value if keys == "all" else value * touched[firings][:, None].to(value.dtype)

    return Candidates(factor, coord, local, a, torch.arange(len(a), device=a.device), build)


def _pick(factor: Tensor, coord: Tensor, local: Tensor, *, components: Tensor, channels: Tensor) -> Tensor:
    """The coordinate of chosen candidates, whatever kind their component is."""
    n_moved = factor.shape[1]
    firing = torch.arange(len(local), device=local.device)[:, None]
    value = local[firing, (components - n_moved).clamp_min(0), channels]
    if n_moved == 0:
        return value
    at = components.clamp_max(n_moved - 1)
    shared = firing if len(coord) > 1 else torch.zeros_like(firing)
    return torch.where(components < n_moved, factor.gather(1, at) * coord[shared, at, channels], value)


def _only(src: Tensor, like: Tensor) -> Tensor:
    return torch.zeros_like(like).scatter(1, src[:, None], 1.0)


def _turned_at(x: Float[Tensor, "moved d_head"], at: Rotary) -> Float[Tensor, "firing moved d_head"]:
    """R_d x for the destination of each firing."""
    return turn(x[None], at.cos[:, None], at.sin[:, None], at.pairing)


def _offered(reads: "Reads", rotary: Rotary | None, *, per_key: Tensor, G_s: Tensor) -> Tensor:
    """What each local writer offers each key, in channel coordinates: [local, pos, channel]."""
    x = reads.k_local * per_key[:, None]
    return x if rotary is None else rotary.rotate(x) @ G_s.T


def _turned_sum(
    writes: "Writes", reads: "Reads", u: Float[Tensor, "firing layers pos"], rotary: Rotary
) -> Float[Tensor, "firing moved d_head"]:
    """Sum over t of u_t A_tb R_t y for every moved write y: per frequency, sums of u A cos and u A sin are enough."""
    layers, firings = u.shape[1], len(u)
    n_freq = rotary.cos.shape[1]
    waves = torch.cat([rotary.cos.T, rotary.sin.T, torch.ones_like(rotary.cos[:, :1]).T]).to(u.dtype)
    sums = writes.patterns.push(layers, (u[:, None] * waves[None, :, None]).flatten(0, 1))
    sums = sums.reshape(firings, len(waves), -1).transpose(1, 2)  # [firing, moved, waves]
    moved = reads.k_moved.flatten(0, 2)[None]
    out = turn(moved, sums[..., :n_freq], sums[..., n_freq : 2 * n_freq], rotary.pairing)
    passing = out.shape[-1] - 2 * n_freq
    if passing:
        out[..., 2 * n_freq :] *= sums[..., -1:]
    return out


def _along_keys(y: Tensor, channels: Tensor, rotary: Rotary | None, G_s: Tensor) -> Float[Tensor, "pick pos"]:
    """(G_s R_t y)_k over all keys t, for chosen writes and channels."""
    if rotary is None:
        return y.gather(1, channels[:, None])
    # R_t turns y; equivalently R_t^T turns the channel's direction, and the dot product is the same.
    turned = rotary.transpose(G_s[channels][:, None].expand(-1, len(rotary.cos), -1))
    return (turned @ y[:, :, None])[..., 0]
