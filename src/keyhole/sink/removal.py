"""What happens to sinks and answers without a subspace? Head by head, and in the model's own forward pass.

alone    the subspace is taken out of what each head reads, on one side of its scores: of the query's stream, or of
         every key's (a vector that all keys have in common then makes no difference, as it should). Frozen norms.
passing  it is taken out of the stream before every block from a layer on, at the tokens after the first (dest) or at
         the first (src): everything downstream feels it.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from keyhole.circuits.writer import SideName
from keyhole.models.model import Model
from keyhole.models.numbers.precision import exact_matmul
from keyhole.models.recording.capture import Captured, Notes, capture
from keyhole.models.recording.reading import read_keys, read_queries
from keyhole.models.recording.records import attention_batch
from keyhole.models.run import AttentionRun
from keyhole.sink.firings import StoredQuestion, batches, fires_in, layers_of
from keyhole.tracing.firings.firing import Tau
from keyhole.tracing.writes.upstream import Writes

Basis = Float[Tensor, "d_model rank"]
_TOKENS = 1024  # of a batch


@dataclass(frozen=True)
class Passed:
    """What one pass came to, a number per prompt."""

    sinks: tuple[float, ...]  # mean weight on the first token, over heads from the layer on and tokens after the first
    answers: tuple[float, ...]  # the metric of each prompt


def explained(
    model: Model, asked: Sequence[StoredQuestion], cuts: Sequence[tuple[SideName, Basis]], tau: Tau
) -> list[tuple[float, ...]]:
    """Of each cut and prompt: the share of firings on the first token that are below tau once the subspace is gone."""
    gone = [list[float]() for _ in cuts]
    with exact_matmul(), model.steady():
        for own, writes in batches(model, asked):
            lost, total = torch.zeros(len(cuts), len(own)), torch.zeros(len(own))
            for layer in layers_of(model):
                record = writes.record(layer)
                weights = record.weights(record.heads, range(writes.n))
                before = fires_in(record, writes.runs, weights, tau)[..., 0]
                total += before.sum((1, 2)).cpu()
                for number, (side, basis) in enumerate(cuts):
                    after = _without(writes, layer, side, basis)
                    still = fires_in(after, writes.runs, after.weights(after.heads, range(writes.n)), tau)[..., 0]
                    lost[number] += (before & ~still).sum((1, 2)).cpu()
            for number, values in enumerate(lost):
                gone[number] += [float(a / b) for a, b in zip(values, total, strict=True) if b > 0]
    return [tuple(values) for values in gone]


def _without(writes: Writes, layer: int, side: SideName, basis: Basis) -> AttentionRun:
    """A layer's attention with a subspace taken out of the streams that queries, or all keys, are read from."""
    own, w, record = writes.layer(layer), writes.weights(layer), writes.record(layer)
    B = basis.to(own.resid)
    less = replace(own, resid=own.resid - own.resid @ B @ B.T)
    if side == "dest":
        return replace(record, q=read_queries(less, w).to(record.q))
    return replace(record, k=read_keys(less, w).to(record.k))


def passed(
    model: Model, asked: Sequence[StoredQuestion], cuts: Sequence[tuple[SideName, Basis] | None], layer: int
) -> list[Passed]:
    """The model's own passes, each with a cut from a layer on, or with none."""
    return [_passed(model, asked, cut, layer) for cut in cuts]


def _passed(model: Model, asked: Sequence[StoredQuestion], cut: tuple[SideName, Basis] | None, layer: int) -> Passed:
    sinks, answers = [0.0] * len(asked), [0.0] * len(asked)
    for batch in model.batches([len(one.token_ids) for one in asked], _TOKENS):
        lengths = [len(asked[i].token_ids) for i in batch]
        rows = [[*asked[i].token_ids, *[0] * (max(lengths) - n)] for i, n in zip(batch, lengths, strict=True)]
        captured = _pass(model, torch.tensor(rows, device=model.hf.device), cut, layer)
        for row, (i, weight) in enumerate(zip(batch, _resting(model, captured, lengths, layer), strict=True)):
            sinks[i], answers[i] = weight, asked[i].metric.of(captured.logits[row, asked[i].metric.end])
    return Passed(tuple(sinks), tuple(answers))


def _pass(model: Model, ids: Tensor, cut: tuple[SideName, Basis] | None, layer: int) -> Captured:
    def prepare(stack: ExitStack, layers: tuple[Notes, ...]) -> None:
        for notes in layers[layer:] if cut is not None else ():
            assert cut is not None
            _take_out(stack, notes.block, *cut)

    with torch.no_grad():
        return capture(model.hf, model.family, ids, prepare)


def _take_out(stack: ExitStack, block: nn.Module, side: SideName, basis: Basis) -> None:
    at = slice(1, None) if side == "dest" else slice(0, 1)

    def less(x: Tensor) -> Tensor:
        x, B = x.clone(), basis.to(x)
        x[:, at] = x[:, at] - x[:, at] @ B @ B.T
        return x

    def before(module: nn.Module, args: Any, kwargs: Any) -> Any:
        if args:
            return (less(args[0]), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": less(kwargs["hidden_states"])}

    # prepended, so that what is noted is what the block reads
    hook = block.register_forward_pre_hook(before, with_kwargs=True, prepend=True)
    stack.callback(hook.remove)


def _resting(model: Model, captured: Captured, lengths: Sequence[int], layer: int) -> list[float]:
    """How much of its attention does each prompt rest on the first token?"""
    total, count = torch.zeros(len(lengths), dtype=torch.float64), 0
    inside = _inside(lengths)
    with exact_matmul():
        for notes in captured.layers[layer:]:
            if notes.attn is None:
                continue
            record = attention_batch(notes, notes.attn, model.family, model.dims)
            weights = record.weights(record.heads, range(inside.shape[1]))[..., 0].double().cpu()
            total += (weights * inside[:, None]).sum((1, 2))
            count += weights.shape[1]
    return (total / (count * inside.sum(1))).tolist()


def _inside(lengths: Sequence[int]) -> Bool[Tensor, "runs pos"]:
    """The tokens after the first, of each prompt."""
    at = torch.arange(max(lengths))
    return (at[None] < torch.tensor(lengths)[:, None]) & (at[None] > 0)


def energy(model: Model, asked: Sequence[StoredQuestion], cuts: Sequence[tuple[SideName, Basis]]) -> list[float]:
    """How much of the stream's squared length lies in each subspace, at its tokens, on average over layers?"""
    found = torch.zeros(len(cuts), dtype=torch.float64)
    count = 0
    for _, writes in batches(model, asked):
        for run in writes.runs:
            for layer in layers_of(model):
                x = run.layers[layer].resid.double().cpu()
                share = [_share(x[1:] if side == "dest" else x[:1], basis) for side, basis in cuts]
                found += torch.tensor(share, dtype=torch.float64)
                count += 1
    return (found / count).tolist()


def _share(x: Float[Tensor, "pos d_model"], basis: Basis) -> float:
    return float(((x @ basis.to(x)).square().sum(1) / x.square().sum(1).clamp_min(1e-300)).mean())
