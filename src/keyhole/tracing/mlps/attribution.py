"""How much of what is read at a token does each writer account for? g . o_w, for every writer of the stream there."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.writer import Writer
from keyhole.tracing.mlps.spots import Spot, by_run

if TYPE_CHECKING:
    from keyhole.tracing.upstream import Writes


@dataclass(frozen=True)
class Parts:
    """Every writer's part of g . x at one token: head writes (layer, head, source) first, then local writers."""

    writes: "Writes"
    token: int
    n_moved: int
    values: Float[Tensor, "component"]  # float64

    def writer(self, component: int) -> Writer:
        """Who is it?"""
        t, n = self.token, len(self.writes.run)
        if component >= self.n_moved:
            kind, layer = self.writes.local_slots[component - self.n_moved]
            return Writer(kind, layer, None, t, t)
        index, rest = divmod(component, self.writes.patterns.n_heads * n)
        return Writer("head", self.writes.attention_layers[index], rest // n, t, rest % n)

    def without_constants(self) -> "Parts":
        """The same, but for what biases write whatever the prompt says."""
        local = self.writes.local_slots[: len(self.values) - self.n_moved]
        constant = torch.tensor([kind == "bias" for kind, _ in local], device=self.values.device)
        values = self.values.clone()
        values[self.n_moved :][constant] = 0.0
        return Parts(self.writes, self.token, self.n_moved, values)


def parts_at(spots: Sequence[Spot], g: Float[Tensor, "spot d_model"], *, layer: int, attended: bool) -> list[Parts]:
    """All writers of a layer's residual stream at some spots, each along its own g; after its attention, or before."""
    found, start = list[Parts](), 0
    for writes, tokens in by_run(spots):
        found += _parts_of(writes, tokens, g[start : start + len(tokens)], layer=layer, attended=attended)
        start += len(tokens)
    return found


def _parts_of(
    writes: "Writes", tokens: Sequence[int], g: Float[Tensor, "token d_model"], *, layer: int, attended: bool
) -> list[Parts]:
    n_layers, n_local = _below(writes, layer, attended)
    g = g.to(writes.dtype)
    moved = _moved(writes, n_layers, g)
    local = [writes.local[:n_local, t] @ g[i] for i, t in enumerate(tokens)]
    return [_gathered(writes, t, moved[i], local[i]) for i, t in enumerate(tokens)]


def norms_at(spot: Spot, *, layer: int, attended: bool) -> Parts:
    """How much each writer of a layer's residual stream wrote at a token."""
    n_layers, n_local = _below(spot.writes, layer, attended)
    return _gathered(
        spot.writes, spot.token, spot.writes.moved_norms[:n_layers], spot.writes.local[:n_local, spot.token].norm(dim=1)
    )


def _below(writes: "Writes", layer: int, attended: bool) -> tuple[int, int]:
    """How many attention layers, and how many local writers, a layer's stream has; after its attention, or before."""
    n_layers, n_local = writes.below(layer)
    if attended:
        n_layers += layer in writes.attention_layers
        n_local += sum(1 for kind, own in writes.local_slots if own == layer and kind in ("bias", "mixer"))
    return n_layers, n_local


def _gathered(writes: "Writes", t: int, moved: Float[Tensor, "layers heads pos"], local: Float[Tensor, "n"]) -> Parts:
    """What was moved, by how much of it came to the token, and what was written there."""
    n_layers, n_local = len(moved), len(local)
    if n_layers:
        A = writes.patterns.rows(n_layers, t) / writes.out_scale[:n_layers, t][:, None, None]
        local = torch.cat([(A * moved).flatten(), local])
    return Parts(writes, t, len(local) - n_local, local.double())


def _moved(writes: "Writes", n_layers: int, g: Tensor) -> Float[Tensor, "token layers heads pos"]:
    """(v_b W_O) . g of every head and source; writes themselves for short prompts, W_O g first for long ones."""
    if len(writes.run) <= writes.values.shape[-1]:
        return (writes.moved[:n_layers] @ g.T).permute(3, 0, 1, 2)
    found = []
    for index, layer in enumerate(writes.attention_layers[:n_layers]):
        along = torch.einsum("hrd,nd->nhr", writes.weights(layer).W_O, g)
        found.append(torch.einsum("hbr,nhr->nhb", writes.values[index], along))
    return torch.stack(found, dim=1) if found else g.new_zeros(len(g), 0, 0, 0)
