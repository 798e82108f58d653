"""Which moved writes of a long prompt can be among the best? Upper bounds for all of them, exact numbers for a few.

With RoPE a write y moved from source b reaches every key t turned by another angle, so that its exact coordinates take
a sum over all keys per frequency, for every source of every head below: the square of the prompt's length. But a turn
changes no amplitude. With |y|_f the length of the pair of dimensions of frequency f, and m the share that arrives,

    |sum over t of u_t A_tb (G_k R_t y)|  <=  m * sum over f of |G_k|_f |y|_f        m >= sum over t of |u_t| A_tb

and m is cheap to bound: exact over the keys with the largest |u_t|, and beyond these the largest |u_t| left times all
the attention that b gets. The best few by the bound are computed exactly; then every write whose bound exceeds the last
attribution that is asked for. What is left out cannot be among them, so the search finds what it finds without bounds.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from keyhole.models.facts import Rotary
from keyhole.tracing.writers import Patterns

_NEAR = 24  # keys whose rows of attention are rebuilt for a bound
_AHEAD = 4  # times as many writes are computed first as attributions are asked for
_FEW = 8  # if more than one in so many writes has to be computed, all are
_SLACK = 1e-4  # bounds are rounded, too
_PICK_FLOATS = 4_000_000  # of columns of attention held at once

Numbers = Float[Tensor, "pick channel"]


@dataclass(frozen=True)
class Bounded:
    """Moved writes of some firings, bounded: what each comes to is computed for those alone that are asked for."""

    mass: Float[Tensor, "firing moved"]  # how much of each write arrives at most
    size: Float[Tensor, "pair moved wave"]  # its amplitudes as the head reads it
    pair: Int[Tensor, "firing"]  # row of `size` for each firing
    reach: Float[Tensor, "firing channel wave"]  # amplitudes of each channel, times its gain
    exact: Callable[[int, Tensor], Numbers]  # attributions of chosen writes of a firing, in all channels
    every: Callable[[int], Numbers]  # and of all

    @property
    def n(self) -> int:
        """How many writes are moved to each firing."""
        return self.mass.shape[1]

    def best(
        self, firing: int, m: int, least: Float[Tensor, ""], local: Float[Tensor, "writer channel"]
    ) -> tuple[Tensor, Numbers]:
        """Writes of a firing among which are all that belong to the m best, with their attributions.

        `local` has the attributions of other writers, which may be better; up to `least` an attribution is none.
        """
        first = self.mass[firing] * (self.size[self.pair[firing]] @ self.reach[firing].amax(0))
        chosen = first.topk(min(_AHEAD * m, self.n)).indices
        values = self.exact(firing, chosen)
        known = torch.cat([values.flatten(), local.flatten()])
        floor = torch.maximum(known.topk(m).values[-1], least) if len(known) >= m else least
        left = first * (1 + _SLACK) > floor
        left[chosen] = False
        more = torch.nonzero(left).flatten()
        if len(more) * _FEW <= self.n:
            closer = (self.size[self.pair[firing], more] @ self.reach[firing].T).amax(-1)
            more = more[self.mass[firing, more] * closer * (1 + _SLACK) > floor]
        if len(more) * _FEW > self.n:
            return torch.arange(self.n, device=more.device), self.every(firing)
        return torch.cat([chosen, more]), torch.cat([values, self.exact(firing, more)])

    def subset(self, firings: Tensor) -> "Bounded":
        """The same for some of the firings."""
        numbers = firings.tolist()
        return Bounded(
            self.mass[firings],
            self.size,
            self.pair[firings],
            self.reach[firings],
            lambda firing, chosen: self.exact(numbers[firing], chosen),
            lambda firing: self.every(numbers[firing]),
        )


def reach_of(
    rotary: Rotary, G: Float[Tensor, "firing channel d_head"], gain: Float[Tensor, "firing channel"]
) -> Float[Tensor, "firing channel wave"]:
    """How strongly each channel of a firing can answer to a write, by frequency."""
    sizes = rotary.amplitudes(G)
    sizes[..., : rotary.cos.shape[1]] *= rotary.stretch.to(sizes.dtype)
    return sizes * gain.abs()[..., None]


def arriving(
    patterns: Patterns, u: Float[Tensor, "firing layers pos"], run: Int[Tensor, "firing"]
) -> Float[Tensor, "firing moved"]:
    """At least the sum over t of |u_t| A_tb, for every head below and every source b."""
    n_layers, parts = u.shape[1], []
    for weights, of in zip(u.abs(), run, strict=True):
        near = weights.amax(0).topk(min(_NEAR, weights.shape[1])).indices
        rows = patterns.rows(n_layers, of.expand(len(near)), near)  # [key, layers, heads, source]
        exact = torch.einsum("kl,klhb->lhb", weights[:, near].T, rows)
        far = weights.index_fill(1, near, 0.0).amax(1)
        parts.append((exact + far[:, None, None] * patterns.totals[of, :n_layers]).flatten())
    return torch.stack(parts)


def turned_sums(
    patterns: Patterns,
    u: Float[Tensor, "layers pos"],
    run: int,
    y: Float[Tensor, "pick d_head"],
    *,
    places: tuple[Int[Tensor, "pick"], Int[Tensor, "pick"], Int[Tensor, "pick"]],
    rotary: Rotary,
) -> Float[Tensor, "pick d_head"]:
    """Sum over t of u_t A_tb R_t y, for chosen writes y, each with its layer, head and source b."""
    cos, sin = rotary.cos.to(u.dtype), rotary.sin.to(u.dtype)
    out = torch.empty_like(y)
    size = max(1, _PICK_FLOATS // u.shape[1])
    for part in (slice(start, start + size) for start in range(0, len(y), size)):
        layer, head, source = (column[part] for column in places)
        arrives = patterns.columns(layer, torch.full_like(layer, run), head, source) * u[layer]
        out[part] = rotary.summed(y[part], arrives @ cos, arrives @ sin, arrives.sum(-1))
    return out
