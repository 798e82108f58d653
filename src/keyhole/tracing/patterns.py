"""Who attended to whom, for every head above a firing? Rows, columns and weighted sums of attention, on demand.

Nothing of size T x T is kept for long prompts: one log-sum-exp per row is enough to rebuild any entry.
"""

from functools import cached_property
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

if TYPE_CHECKING:
    from keyhole.models.run import AttentionRun, Run

_KEPT_FLOATS = 4_000_000  # keep all attention of a run if it is no more than this (16 MB)


class Patterns:
    """Attention of all heads of a run. Layers are counted among the attention layers only, in order."""

    def __init__(self, run: "Run") -> None:
        self.records: list[AttentionRun] = [layer.attention for layer in run.layers if layer.attention is not None]
        self.n_heads, self.n = self.records[0].q.shape[0], len(run)
        self.small = len(self.records) * self.n_heads * self.n**2 <= _KEPT_FLOATS

    @cached_property
    def _all(self) -> Float[Tensor, "layers heads pos pos"]:
        return torch.stack([r.weights(range(self.n_heads), range(self.n)) for r in self.records])

    def rows(self, n_layers: int, dest: int) -> Float[Tensor, "layers heads pos"]:
        """A_{dest, b} of the first layers."""
        if self.small:
            return self._all[:n_layers, :, dest]
        return torch.stack([r.weights(range(self.n_heads), [dest])[:, 0] for r in self.records[:n_layers]])

    def weight(self, layer: int, head: int, dest: int, src: int) -> float:
        """One attention weight."""
        if self.small:
            return float(self._all[layer, head, dest, src])
        return float(self.records[layer].weights([head], [dest])[0, 0, src])

    def push(self, n_layers: int, u: Float[Tensor, "vector layers pos"]) -> Float[Tensor, "vector layers heads pos"]:
        """Sum over t of u_t A_tb: what a weighting of destinations means for the sources."""
        if self.small:
            return torch.einsum("plt,lhtb->plhb", u, self._all[:n_layers])
        out = u.new_zeros(len(u), n_layers, self.n_heads, self.n)
        for index, record in enumerate(self.records[:n_layers]):
            for dests in record.blocks:
                A = record.weights(record.heads, dests)
                out[:, index] += torch.einsum("pt,htb->phb", u[:, index, dests.start : dests.stop], A)
        return out

    def columns(
        self, layers: Int[Tensor, "pick"], heads: Int[Tensor, "pick"], sources: Int[Tensor, "pick"]
    ) -> Float[Tensor, "pick pos"]:
        """A_{t, b} over all t, for chosen heads and sources b."""
        if self.small:
            return self._all[layers, heads, :, sources]
        out = torch.zeros(len(layers), self.n, dtype=self.records[0].norm_scale.dtype, device=layers.device)
        for index in sorted(set(layers.tolist())):
            at = torch.nonzero(layers == index).flatten()
            out[at] = self._column(index, heads[at], sources[at])
        return out

    def _column(self, index: int, heads: Tensor, sources: Tensor) -> Tensor:
        record = self.records[index]
        dtype = record.norm_scale.dtype
        q, k = record.q[heads].to(dtype), record.k[record.kv(heads), sources].to(dtype)
        logits = record.rule.cap((q @ k[:, :, None])[:, :, 0] * record.rule.scaling)
        if record.rule.key_bias is not None:
            logits = logits + record.rule.key_bias[heads, sources, None]
        return torch.where(record.visible(keys=sources).T, (logits - self._lse[index][heads]).exp(), 0.0)

    @cached_property
    def _lse(self) -> list[Float[Tensor, "heads pos"]]:
        """The log-sum-exp of every row's logits, sinks included."""
        return [_log_sums(record) for record in self.records]


def _log_sums(record: "AttentionRun") -> Float[Tensor, "heads pos"]:
    logits = (record.rule.logits(record.scores(record.heads, at), record.visible(at)) for at in record.blocks)
    return torch.cat([block.logsumexp(-1) for block in logits], dim=1)
