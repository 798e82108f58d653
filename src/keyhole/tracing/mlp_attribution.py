"""How much of what is read at a token does each writer account for? g . o_w, for every writer of the stream there."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from keyhole.circuits.records import Writer
from keyhole.tracing.writers import adjoining

if TYPE_CHECKING:
    from keyhole.tracing.upstream import Writes

Spot = tuple[int, int]  # a token of a run: (run, token)


@dataclass(frozen=True)
class Parts:
    """Every writer's part of g . x at some spots: head writes (layer, head, source) first, then local writers."""

    writes: "Writes"
    spots: tuple[Spot, ...]
    n_moved: int
    values: Float[Tensor, "spot component"]  # float64

    def writer(self, spot: int, component: int) -> Writer:
        """Who is it?"""
        _, t = self.spots[spot]
        if component >= self.n_moved:
            kind, layer = self.writes.local_slots[component - self.n_moved]
            return Writer(kind, layer, None, t, t)
        index, head, source = self.writes.moved_by(component)
        return Writer("head", self.writes.attention_layers[index], head, t, source)

    def without_constants(self) -> "Parts":
        """The same, but for what biases write whatever the prompt says."""
        local = self.writes.local_slots[: self.values.shape[1] - self.n_moved]
        constant = torch.tensor([kind == "bias" for kind, _ in local], device=self.values.device)
        values = self.values.clone()
        values[:, self.n_moved :][:, constant] = 0.0
        return replace(self, values=values)


def parts_at(
    writes: "Writes", spots: Sequence[Spot], g: Float[Tensor, "spot d_model"], *, layer: int, attended: bool
) -> Parts:
    """All writers of a layer's residual stream at spots, each along its own g; after its attention, or before.

    Spots of a run adjoin.
    """
    n_layers, n_local = _below(writes, layer, attended)
    g, (run, token) = g.to(writes.dtype), index_of(spots, writes)
    local = (writes.local[run, :n_local, token] @ g[:, :, None])[..., 0]
    return _gathered(writes, spots, _moved(writes, n_layers, run, g), local)


def norms_at(writes: "Writes", spot: Spot, *, layer: int, attended: bool) -> Parts:
    """How much each writer of a layer's residual stream wrote at a token."""
    (n_layers, n_local), (run, token) = _below(writes, layer, attended), spot
    weights = [writes.folded(index).W_O for index in writes.attention_layers[:n_layers]]
    moved = [(v @ W_O).norm(dim=-1) for v, W_O in zip(writes.values[run], weights, strict=False)]
    stacked = torch.stack(moved) if moved else writes.values[run, :0, ..., 0]
    return _gathered(writes, [spot], stacked[None], writes.local[run, :n_local, token].norm(dim=1)[None])


def index_of(spots: Sequence[Spot], writes: "Writes") -> tuple[Int[Tensor, "spot"], Int[Tensor, "spot"]]:
    """Which run and which token each spot is, to choose by."""
    run, token = torch.tensor(spots, dtype=torch.long, device=writes.device).view(-1, 2).T
    return run, token


def _below(writes: "Writes", layer: int, attended: bool) -> tuple[int, int]:
    """How many attention layers, and how many local writers, a layer's stream has; after its attention, or before."""
    n_layers, n_local = writes.below(layer)
    if attended:
        n_layers += layer in writes.attention_layers
        n_local += sum(1 for kind, of in writes.local_slots if of == layer and kind in ("bias", "mixer"))
    return n_layers, n_local


def _gathered(
    writes: "Writes",
    spots: Sequence[Spot],
    moved: Float[Tensor, "spot layers heads pos"],
    local: Float[Tensor, "spot local"],
) -> Parts:
    """What was moved, by how much of it came to the token, and what was written there."""
    n_layers, n_local, (run, token) = moved.shape[1], local.shape[1], index_of(spots, writes)
    if n_layers:
        A = writes.patterns.rows(n_layers, run, token) / writes.out_scale[run, :n_layers, token][:, :, None, None]
        local = torch.cat([(A * moved).flatten(1), local], dim=1)
    return Parts(writes, tuple(spots), local.shape[1] - n_local, local.double())


def _moved(
    writes: "Writes", n_layers: int, run: Int[Tensor, "spot"], g: Float[Tensor, "spot d_model"]
) -> Float[Tensor, "spot layers heads pos"]:
    """(v_b W_O) . g of every head and source; writes themselves for short prompts, W_O g first for long ones."""
    parts = []  # run by run: what was moved is not copied for each spot
    if writes.n <= writes.values.shape[-1]:
        parts = [writes.moved[row, :n_layers] @ g[at].T for row, at in adjoining(run)]
    else:
        W_O = [writes.folded(layer).W_O for layer in writes.attention_layers[:n_layers]]
        for row, at in adjoining(run):
            moved = [v @ (W @ g[at].T) for v, W in zip(writes.values[row], W_O, strict=False)]
            parts.append(torch.stack(moved) if moved else g.new_zeros(0, 0, 0, len(g[at])))
    return torch.cat(parts, dim=-1).permute(3, 0, 1, 2)
