"""Who writes what? The exact split of the residual stream, what heads read of it, sums over attention.

Who wrote the residual stream? Its exact split into embedding, heads per source token, MLPs and biases.

    x^l_t = e_t + sum over l' < l of [ sum_h sum_b A_tb (v_b - b_V) W_O / m_t  +  bias_t  +  mlp_t ]

with m_t the frozen scale of a norm on the attention output (1 where there is none). A value bias reaches t
through every key at once, so it belongs to the layer's bias: weighted by the row sum of A, which is 1 unless
the head has a sink.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from keyhole.brief import Head, brief
from keyhole.circuits.records import SideName, Signal, Writer
from keyhole.errors import KeyholeError
from keyhole.models.attention import AttentionRule
from keyhole.models.numbers import exact_matmul, require_exact
from keyhole.models.stacks import cut_attention

if TYPE_CHECKING:
    from keyhole.models.run import AttentionRun, Run
    from keyhole.models.weights import LayerWeights


@dataclass(frozen=True)
class Split:
    """The residual stream that a layer reads at one token, as a sum of what was written."""

    __repr__ = brief

    layer: int
    pos: int
    writers: tuple[Writer, ...]
    vectors: Float[Tensor, "writer d_model"]
    residual: Float[Tensor, "d_model"]
    error: float  # of the sum, relative to the largest entry of the residual


def split(run: "Run", layer: int, pos: int | str) -> Split:
    """Who wrote what this layer reads at this token?

    Args:
        run: The run of the prompt.
        layer: The layer that reads. The number of layers stands for the final norm.
        pos: The token: a position or the text of one token.

    >>> import keyhole
    >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
    >>> split(run, 3, "Mary").error < 1e-5
    True
    """
    run._require_fresh()
    t = run.position(pos)
    if not 0 <= layer <= len(run.layers):
        raise KeyholeError(f"there is no layer {layer}: give 0 to {len(run.layers)} (the last: the final norm).")
    with exact_matmul():
        first = run.layers[0].resid[t]
        residual = (run.layers[layer].resid if layer < len(run.layers) else run.final_resid)[t]
        writers, vectors = [Writer("embedding", 0, None, t, t)], [first[None]]
        for index, record in enumerate(run.layers[:layer]):
            if record.attention is not None:
                moved = head_writes(run, index, t)
                heads, sources = moved.shape[:2]
                writers += [Writer("head", index, h, t, b) for h in range(heads) for b in range(sources)]
                writers.append(Writer("bias", index, None, t, t))
                vectors += [moved.flatten(0, 1), bias_writes(run, index, [t])]
            if record.mixer is not None:
                writers.append(Writer("mixer", index, None, t, t))
                vectors.append(record.mixer[t][None])
            writers.append(Writer("mlp", index, None, t, t))
            vectors.append(record.mlp[t][None])
        stacked = torch.cat([v.to(residual.device, vectors[-1].dtype) for v in vectors])
        difference = stacked.sum(0).to(residual.dtype) - residual
        error = float(difference.abs().max() / residual.abs().max())
    require_exact(error, residual.dtype, f"the writers at layer {layer}, token {t}")
    return Split(layer, t, tuple(writers), stacked, residual, error)


def head_writes(run: "Run", layer: int, dest: int) -> Float[Tensor, "heads src d_model"]:
    """What each head moved from each source token 0..dest to `dest`: A_tb (v_b - b_V) W_O / m_t."""
    record, w = run.attention_run(layer), run.model.folded(layer)
    A = record.weights(record.heads, [dest])[:, 0, : dest + 1]
    return (A[:, :, None] * moved_values(run, layer)[:, : dest + 1]) @ w.W_O / record.out_scale[dest]


def moved_values(run: "Run", layer: int) -> Float[Tensor, "heads pos d_head"]:
    """v_b - b_V of every query head: what depends on the source token."""
    return values_of(run.attention_run(layer), run.model.folded(layer))


def values_of(record: "AttentionRun", w: "LayerWeights") -> Float[Tensor, "*runs heads pos d_head"]:
    """The same, of any pass through the layer."""
    return (record.v.to(w.b_V.dtype) - w.b_V[:, None]).repeat_interleave(record.group, dim=-3)


def bias_writes(run: "Run", layer: int, dests: list[int]) -> Float[Tensor, "dest d_model"]:
    """What the attention block adds whatever it attends to: (b_O + sum_h (sum_b A_tb) b_V W_O) / m_t."""
    return biases_of(run.attention_run(layer), run.model.folded(layer), dests)


def biases_of(record: "AttentionRun", w: "LayerWeights", dests: list[int]) -> Float[Tensor, "*runs dest d_model"]:
    """The same, of any pass through the layer."""
    per_head = (w.b_V.repeat_interleave(w.group, dim=0)[:, None] @ w.W_O)[:, 0]
    if record.rule.sinks is None:
        total = (w.b_O + per_head.sum(0)).expand(len(dests), -1)
    else:
        mass = record.weights(record.heads, dests).sum(-1)
        total = w.b_O + mass.mT @ per_head
    return total / record.out_scale[..., dests, None]


def attention_writes(run: "Run", layer: int) -> Float[Tensor, "pos d_model"]:
    """Everything a layer's attention writes, summed over heads and sources."""
    return attention_of(run.attention_run(layer), run.model.folded(layer))


def attention_of(record: "AttentionRun", w: "LayerWeights") -> Float[Tensor, "*runs pos d_model"]:
    """The same, of any pass through the layer; in blocks of destinations."""
    written, v, W_O = [], values_of(record, w), w.W_O.flatten(0, 1)
    for dests in record.blocks:
        mixed = (record.weights(record.heads, dests) @ v).transpose(-3, -2).flatten(-2)  # heads side by side, as in W_O
        moved = mixed @ W_O / record.out_scale[..., list(dests), None]
        written.append(moved + biases_of(record, w, list(dests)))
    return torch.cat(written, dim=-2)


# What does one writer write at some tokens, and what does a head read of it?


def read_of(run: "Run", head: Head, signal: Signal, tokens: Sequence[int]) -> Float[Tensor, "token d_head"]:
    """A signal's writer in a head's rotated query (dest) or key (src) at some tokens, in all channels."""
    writer, side = signal.writer, signal.side
    if writer.kind != "offset":
        return read_vectors(run, head, written_by(run, writer, tokens, whole=signal.whole), tokens, side=side)
    layer, index = head
    record, w = run.attention_run(layer), run.model.folded(layer)
    at, kv, dest = list(tokens), w.kv(index), side == "dest"
    scale = (record.q_scale[index] if dest else record.k_scale[kv])[at][:, None]
    read = scale * (w.b_Q[index] if dest else w.b_K[kv]) + (w.c_Q[index] if dest else w.c_K[kv])
    return read if record.rotary is None else record.rotary.at(torch.tensor(at)).rotate(read)


def read_vectors(
    run: "Run", head: Head, vectors: Float[Tensor, "token d_model"], tokens: Sequence[int], *, side: SideName
) -> Float[Tensor, "token d_head"]:
    """What a head's rotated query (dest) or key (src) has of vectors in the residual stream at some tokens."""
    layer, index = head
    record, w = run.attention_run(layer), run.model.folded(layer)
    at, kv = list(tokens), w.kv(index)
    scale, W = (record.q_scale[index], w.W_Q[index]) if side == "dest" else (record.k_scale[kv], w.W_K[kv])
    read = scale[at][:, None] * (vectors @ W) / record.norm_scale[at][:, None]
    return read if record.rotary is None else record.rotary.at(torch.tensor(at)).rotate(read)


def written_by(
    run: "Run", writer: Writer, tokens: Sequence[int], *, whole: bool = False
) -> Float[Tensor, "token d_model"]:
    """What a writer adds to the residual stream at some tokens.

    A head: what it moves there from its source, or if `whole` from all sources, sum over b of A_tb (v_b - b_V) W_O.
    """
    at, dtype = list(tokens), run.final_scale.dtype
    if writer.kind == "head":
        assert writer.head is not None
        record, w = run.attention_run(writer.layer), run.model.folded(writer.layer)
        sources = slice(None) if whole else slice(writer.src, writer.src + 1)
        A = record.weights([writer.head], at)[0, :, sources]
        v = record.v[w.kv(writer.head), sources].to(dtype) - w.b_V[w.kv(writer.head)]
        return (A @ v) @ w.W_O[writer.head] / record.out_scale[at][:, None]
    if writer.kind == "bias":
        return bias_writes(run, writer.layer, at)
    layer = run.layers[writer.layer]
    written = {"embedding": run.layers[0].resid, "mlp": layer.mlp, "mixer": layer.mixer}.get(writer.kind)
    assert written is not None, writer.kind
    return written[at].to(dtype)


# Which rows belong together? Those of a layer, a head, a run, in the order of its number.


def by_number(numbers: Int[Tensor, "row"]) -> Iterator[tuple[int, Int[Tensor, "own"]]]:
    """Each number (a layer, a head, a run), and which rows have it."""
    return ((number, torch.nonzero(numbers == number).flatten()) for number in sorted(set(numbers.tolist())))


def adjoining(runs: Int[Tensor, "row"]) -> Iterator[tuple[int, slice]]:
    """Each run, and where its rows are, which adjoin: a slice copies nothing."""
    start = 0
    for run, size in zip(*(x.tolist() for x in torch.unique_consecutive(runs, return_counts=True)), strict=True):
        yield run, slice(start, start + size)
        start += size


# Who attended to whom, for every head above a firing? Rows, columns and weighted sums of attention, on demand.
#
# Nothing of size T x T is kept for long prompts: one log-sum-exp per row is enough to rebuild any entry.

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

    def from_dests(self, layer: int, dests: list[int]) -> Float[Tensor, "runs heads dest pos"]:
        """A_{dest, b} of all heads of one layer."""
        if self.small:
            return self._all[:, layer, :, dests]
        record = self.records[layer]
        return record.weights(record.heads, dests)

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
        sums = [self._push(n_layers, u[rows], row) for row, rows in adjoining(run)]
        return sums[0] if len(sums) == 1 else torch.cat(sums)

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
        k = record.k[runs, record.kv(heads), sources].to(dtype)
        scores = k.new_empty(len(k), self.n)
        for head, at in by_number(runs * self.n_heads + heads):  # the queries of a head are not copied for each source
            scores[at] = k[at] @ record.q[head // self.n_heads, head % self.n_heads].to(dtype).T
        logits = _logits(record.rule, scores, heads[:, None], sources[:, None])
        return torch.where(record.visible(keys=sources).T, (logits - self._lse[index][runs, heads]).exp(), 0.0)

    @cached_property
    def _lse(self) -> list[Float[Tensor, "runs heads pos"]]:
        """The log-sum-exp of every row's logits, sinks included."""
        return [_log_sums(record) for record in self.records]

    @cached_property
    def totals(self) -> Float[Tensor, "runs layers heads pos"]:
        """Sum over t of A_tb: how much every source is attended to in all."""
        sums = [sum(r.weights(r.heads, at).sum(-2) for at in r.blocks) for r in self.records]
        return torch.stack(sums, dim=1)  # type: ignore[arg-type]  # every prompt has a block


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
    for row, rows in by_number(run):
        out[rows] = cut_attention(record, row, n).weights(record.heads, dest[rows].tolist()).transpose(0, 1)
    return out


def _log_sums(record: "AttentionRun") -> Float[Tensor, "runs heads pos"]:
    logits = (record.rule.logits(record.scores(record.heads, at), record.visible(at)) for at in record.blocks)
    return torch.cat([block.logsumexp(-1) for block in logits], dim=-1)
