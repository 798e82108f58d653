"""Who attended to whom, for every head above a firing? Rows, columns and weighted sums of attention, on demand.

Nothing of size T x T is kept for long prompts: one log-sum-exp per row is enough to rebuild any entry.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from keyhole.models.recording.attention import AttentionRule
from keyhole.models.recording.stacks import cut_attention
from keyhole.tracing.writes.rows import adjoining, by_number

if TYPE_CHECKING:
    from keyhole.models.run import AttentionRun

_KEPT_FLOATS = 4_000_000  # keep all attention of a run if it is no more than this (16 MB)


class Patterns:
    """Attention of all heads of runs side by side. Layers are counted among the attention layers only, in order."""

    def __init__(self, records: "Sequence[AttentionRun]") -> None:
        self.records = list(records)
        self.n_heads, self.n = len(self.records[0].heads), len(self.records[0].first)
        self.small = len(self.records) * self.n_heads * self.n**2 <= _KEPT_FLOATS

    def keep(self) -> bool:
        """Keep all attention in place of what it is made of, where that is not much; whether it is so."""
        if self.small:
            assert self._all.ndim
            self.records = []
        return self.small

    @cached_property
    def _all(self) -> Float[Tensor, "runs layers heads pos pos"]:
        return torch.stack([r.weights(r.heads, range(self.n)) for r in self.records], dim=1)

    def rows(
        self, n_layers: int, run: Int[Tensor, "row"], dest: Int[Tensor, "row"]
    ) -> Float[Tensor, "row layers heads pos"]:
        """A_{dest, b} of the first layers."""
        if self.small:
            return self._all[run, :n_layers, :, dest]
        return torch.stack([_rows(record, run, dest) for record in self.records[:n_layers]], dim=1)

    def weights(
        self,
        layers: Int[Tensor, "pick"],
        runs: Int[Tensor, "pick"],
        heads: Int[Tensor, "pick"],
        *,
        dest: Int[Tensor, "pick"],
        src: Int[Tensor, "pick"],
    ) -> Float[Tensor, "pick"]:
        """Single attention weights."""
        if self.small:
            return self._all[runs, layers, heads, dest, src]
        out = torch.zeros(len(layers), dtype=self.records[0].norm_scale.dtype, device=dest.device)
        for index, at in by_number(layers):
            out[at] = self._entries(index, runs[at], heads[at], dest=dest[at], src=src[at])
        return out

    def _entries(self, index: int, runs: Tensor, heads: Tensor, *, dest: Tensor, src: Tensor) -> Tensor:
        record = self.records[index]
        dtype = record.norm_scale.dtype
        q, k = record.q[runs, heads, dest].to(dtype), record.k[runs, record.kv(heads), src].to(dtype)
        weights = (_logits(record.rule, (q * k).sum(-1), heads, src) - self._lse[index][runs, heads, dest]).exp()
        return torch.where((src >= record.first[dest]) & (src <= dest), weights, 0.0)

    def push(
        self, n_layers: int, u: Float[Tensor, "vector layers pos"], run: Int[Tensor, "vector"]
    ) -> Float[Tensor, "vector layers heads pos"]:
        """Sum over t of u_t A_tb: what a weighting of destinations means for the sources. Vectors of a run adjoin."""
        found = [self._push(n_layers, u[own], row) for row, own in adjoining(run)]
        return found[0] if len(found) == 1 else torch.cat(found)

    def _push(self, n_layers: int, u: Tensor, run: int) -> Float[Tensor, "vector layers heads pos"]:
        if self.small:
            return torch.einsum("plt,lhtb->plhb", u, self._all[run, :n_layers])
        out = u.new_zeros(len(u), n_layers, self.n_heads, self.n)
        for index, record in enumerate(self.records[:n_layers]):
            for dests in record.blocks:
                A = cut_attention(record, run, self.n).weights(record.heads, dests)
                out[:, index] += torch.einsum("pt,htb->phb", u[:, index, dests.start : dests.stop], A)
        return out

    def columns(
        self,
        layers: Int[Tensor, "pick"],
        runs: Int[Tensor, "pick"],
        heads: Int[Tensor, "pick"],
        sources: Int[Tensor, "pick"],
    ) -> Float[Tensor, "pick pos"]:
        """A_{t, b} over all t, for chosen heads and sources b."""
        if self.small:
            return self._all[runs, layers, heads, :, sources]
        out = torch.zeros(len(layers), self.n, dtype=self.records[0].norm_scale.dtype, device=layers.device)
        for index, at in by_number(layers):
            out[at] = self._column(index, runs[at], heads[at], sources[at])
        return out

    def _column(self, index: int, runs: Tensor, heads: Tensor, sources: Tensor) -> Tensor:
        record = self.records[index]
        dtype = record.norm_scale.dtype
        q, k = record.q[runs, heads].to(dtype), record.k[runs, record.kv(heads), sources].to(dtype)
        logits = _logits(record.rule, (q @ k[:, :, None])[:, :, 0], heads[:, None], sources[:, None])
        return torch.where(record.visible(keys=sources).T, (logits - self._lse[index][runs, heads]).exp(), 0.0)

    @cached_property
    def _lse(self) -> list[Float[Tensor, "runs heads pos"]]:
        """The log-sum-exp of every row's logits, sinks included."""
        return [_log_sums(record) for record in self.records]


def _logits(
    rule: AttentionRule, scores: Float[Tensor, "*pick"], heads: Int[Tensor, "*#pick"], sources: Int[Tensor, "*#pick"]
) -> Float[Tensor, "*pick"]:
    """What softmax is taken of, of chosen heads and sources; scores are unscaled."""
    logits = rule.cap(scores * rule.scaling)
    return logits if rule.key_bias is None else logits + rule.key_bias[heads, sources]


def _rows(record: "AttentionRun", run: Tensor, dest: Tensor) -> Float[Tensor, "row heads pos"]:
    """The attention of every head from chosen tokens, run by run: keys are not copied for each of them."""
    n = len(record.first)
    out = torch.empty(len(dest), len(record.heads), n, dtype=record.norm_scale.dtype, device=record.q.device)
    for row, own in by_number(run):
        out[own] = cut_attention(record, row, n).weights(record.heads, dest[own].tolist()).transpose(0, 1)
    return out


def _log_sums(record: "AttentionRun") -> Float[Tensor, "runs heads pos"]:
    logits = (record.rule.logits(record.scores(record.heads, at), record.visible(at)) for at in record.blocks)
    return torch.cat([block.logsumexp(-1) for block in logits], dim=-1)
