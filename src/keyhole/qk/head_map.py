"""What does each head do in a prompt, at a glance? Its strongest firing, how spread it is, and how much it rests."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.models.precision import exact_matmul
from keyhole.qk.coordinates import in_channels
from keyhole.qk.sparsity import sparsity_each

if TYPE_CHECKING:
    from keyhole.models.run import AttentionRun, Run


@dataclass(frozen=True)
class HeadGlance:
    """One head in one prompt."""

    layer: int
    head: int
    dest: int  # of the strongest firing: most above uniform, with a src after the first token where there is one
    src: int
    attention: float  # its weight
    times_uniform: float  # weight x visible keys
    sparsity: float  # S(v) of its score
    entropy: float  # of tokens that see two keys or more, on average, as a share of that of uniform attention
    sink: float  # mean weight of later tokens on the first one


def head_map(run: "Run") -> tuple[HeadGlance, ...]:
    """Every head of a run, by layer and head. Memory is linear in the prompt's length."""
    run.require_fresh()
    with exact_matmul():
        return tuple(one for layer in run.model.attention_layers for one in _of_layer(run, layer))


def _of_layer(run: "Run", layer: int) -> list[HeadGlance]:
    record = run.layer(layer)
    entropy, sink, best = _read(record)
    times, dests, srcs = best
    sparse = _sparsities(run, layer, dests, srcs)
    n = record.visible(dests.tolist()).sum(-1)
    columns = (dests, srcs, times / n, times, sparse, entropy, sink)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [HeadGlance(layer, head, *numbers) for head, numbers in enumerate(rows)]


def _read(record: "AttentionRun") -> tuple[Tensor, Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Entropy and sink share of every head, and its strongest place: times uniform, dest, src."""
    heads, tokens = len(record.heads), len(record.first)
    spread = rests = torch.zeros(heads, dtype=torch.float64)
    seen = 0
    nowhere = torch.zeros(heads, dtype=torch.long)
    best = (torch.full((heads,), -1.0, dtype=torch.float64), nowhere, nowhere)
    for dests in record.blocks:
        weights = record.weights(record.heads, dests).double().cpu()
        counts = record.visible(dests).sum(-1).cpu()
        several = counts > 1
        own = torch.special.entr(weights[:, several]).sum(-1) / counts[several].double().log()
        spread, seen = spread + own.sum(-1), seen + int(several.sum())
        later = torch.tensor([dest > 0 for dest in dests])
        rests = rests + weights[:, later, 0].sum(-1)
        best = _better(best, weights, counts, dests)
    nothing = torch.full_like(spread, float("nan"))
    return spread / seen if seen else nothing, rests / (tokens - 1) if tokens > 1 else nothing, best


def _better(
    best: tuple[Tensor, Tensor, Tensor], weights: Float[Tensor, "heads dest pos"], counts: Tensor, dests: range
) -> tuple[Tensor, Tensor, Tensor]:
    """The strongest place so far; the first token is no src, where tokens begin after it."""
    times = weights * counts[:, None]
    times[..., 0] = -0.5 if weights.shape[-1] > 1 else 0.0
    found, at = times.flatten(1).max(1)
    more = found > best[0]
    dest, src = at // weights.shape[-1] + dests.start, at % weights.shape[-1]
    return torch.where(more, found, best[0]), torch.where(more, dest, best[1]), torch.where(more, src, best[2])


def _sparsities(run: "Run", layer: int, dests: Tensor, srcs: Tensor) -> Float[Tensor, "heads"]:
    """S(v) of one place of every head: the relative terms of `channels`, of all heads at once."""
    found, record = in_channels(run, layer), run.layer(layer)
    heads = torch.arange(len(dests), device=found.a.device)
    dests, srcs = dests.to(found.a.device), srcs.to(found.a.device)
    sees = record.visible(dests.tolist()).to(found.B.dtype)
    offered = found.B[heads, srcs]
    others = torch.einsum("hk,hkc->hc", sees, found.B) - offered
    terms = found.a[heads, dests] * (offered - others / (sees.sum(-1, keepdim=True) - 1))
    told = [sparsity_each(terms[h, : int(rank)]) for h, rank in enumerate(found.rank.tolist())]
    return torch.stack(told)
