"""Which pairs of tokens does a head fire on, and what are they in its channels? All heads of a layer at once.

Firing is the 2024 paper's: weight >= threshold, score >= 0, source not the first token. Quiet pairs, below the
threshold, leave that source out too, lest the two differ by the sink alone. Terms and counts are those of `qk.channels`
and `qk.slices`, computed together so that one pass over many prompts serves every head.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from keyhole.models.numbers.tolerance import require_exact
from keyhole.qk.coordinates import in_channels
from keyhole.qk.omega import Basis

if TYPE_CHECKING:
    from keyhole.models.run import Run


@dataclass(frozen=True)
class Coordinates:
    """Pairs of one head in channel coordinates; the relative attention of a pair is a . b + rest."""

    pairs: Int[Tensor, "pair 3"]  # prompt, dest, src
    attention: Float[Tensor, "pair"]
    a: Float[Tensor, "pair channel"]  # what the query asks, scaling included
    b: Float[Tensor, "pair channel"]  # what the key offers beyond the mean of the other visible ones; NaN if none
    rest: Float[Tensor, "pair"]  # of the relative attention, outside the channels of a rank-deficient head
    slice_a: Float[Tensor, "pair slice"]  # the same query in the basis of the slices
    slice_B: Float[Tensor, "pair slice"]  # the key itself there: the score is slice_a . slice_B


@dataclass(frozen=True)
class Rule:
    """Which pairs are taken, and in which bases they are split."""

    threshold: float = 0.5  # a weight that fires
    quiet: int = 1  # pairs per prompt that do not
    relative: Basis = "linear"  # basis of the terms of relative attention
    slices: Basis = "homogeneous"  # basis of the terms of the score


@dataclass(frozen=True)
class _Layer:
    """One layer of one run: every query and key in the channels of every head."""

    a: Float[Tensor, "heads pos channel"]
    B: Float[Tensor, "heads pos channel"]
    rest: Float[Tensor, "heads dest pos"]  # of every score, outside the channels
    rank: Int[Tensor, "heads"]
    error: float


def layer_coordinates(
    run: "Run", layer: int, generators: Mapping[int, torch.Generator], rule: Rule, *, prompt: int
) -> tuple[dict[int, tuple[Coordinates, Coordinates]], float]:
    """(firing, quiet) pairs of each head of one layer, and the largest error of the rebuilt scores.

    `generators` maps each wanted head to what draws its quiet pairs; `prompt` is the number that goes into the pairs.
    """
    record, n, heads = run.layer(layer), len(run), list(generators)
    visible = record.visible()
    beyond = visible.clone()
    beyond[:, 0] = False
    weights, scores = record.weights(heads, range(n)), record.scores(heads, range(n))
    split = _in_channels(run, layer, rule.relative), _in_channels(run, layer, rule.slices)
    found = {}
    for i, (head, generator) in enumerate(generators.items()):
        fires = (weights[i] >= rule.threshold) & (scores[i] >= 0) & beyond
        others = (beyond & (weights[i] < rule.threshold)).nonzero()
        # one call of the generator, as in `slice_use`, so that both draw the same pairs
        drawn = torch.randint(max(1, len(others)), (rule.quiet,), generator=generator)[: rule.quiet * len(others)]
        firing, quiet = (
            _coordinates(split, head, at, visible, weights=weights[i], prompt=prompt)
            for at in (fires.nonzero(), others[drawn.to(others.device)])
        )
        found[head] = firing, quiet
    return found, max(split[0].error, split[1].error)


def _in_channels(run: "Run", layer: int, basis: Basis) -> _Layer:
    record, found = run.layer(layer), in_channels(run, layer, basis=basis)
    own = record.scores(range(len(found.a)), range(len(run)))
    miss = (found.scores() - own).abs().amax((1, 2)) / own.abs().amax((1, 2)).clamp_min(1e-30)
    require_exact(float(miss.max()), record.q.dtype, f"the scores of layer {layer}")
    return _Layer(found.a, found.B, found.rest(), found.rank, float(miss.max()))


def _coordinates(
    split: tuple[_Layer, _Layer], head: int, at: Tensor, visible: Tensor, *, weights: Tensor, prompt: int
) -> Coordinates:
    (relative, slices), (dest, src) = split, at.unbind(-1)
    n, m = int(relative.rank[head]), int(slices.rank[head])
    B, seen = relative.B[head, :, :n], visible[dest].to(relative.B.dtype)
    a, own = relative.a[head, dest, :n], B[src]
    rest = relative.rest[head, dest]
    others = seen.sum(-1) - 1  # no others: 0/0 is NaN, as it should be
    sums = (rest * seen).sum(-1)
    rest_own = rest.gather(-1, src[:, None])[:, 0]
    return Coordinates(
        pairs=torch.stack([torch.full_like(dest, prompt), dest, src], dim=-1).cpu(),
        attention=weights[dest, src].cpu(),
        a=a.cpu(),
        b=(own - (seen @ B - own) / others[:, None]).cpu(),
        rest=(rest_own - (sums - rest_own) / others).cpu(),
        slice_a=slices.a[head, dest, :m].cpu(),
        slice_B=slices.B[head, src, :m].cpu(),
    )


def joined(parts: Sequence[Coordinates]) -> Coordinates:
    """The pairs of several runs as one."""
    fields = ("pairs", "attention", "a", "b", "rest", "slice_a", "slice_B")
    return Coordinates(*(torch.cat([getattr(part, name) for part in parts]) for name in fields))
