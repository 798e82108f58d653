"""What is a part of an edge in a basis, and which pairs of tokens does a head fire on?

What does an edge add to a query or key, channel by channel? In the singular basis of a head, or in another.

A basis is an invertible G of head space: query coordinates q G, key coordinates k G^-T, and the same scores. Of what an
edge adds, some coordinates are kept and the others withheld (`Mask.withheld`), whatever the basis.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from keyhole.brief import Head
from keyhole.errors import KeyholeError
from keyhole.faithfulness.blocks import Block
from keyhole.faithfulness.shares import MaskedQuestion
from keyhole.faithfulness.token_masks import EdgeList, Mask
from keyhole.models.numbers import exact_matmul, require_exact
from keyhole.qk.channels import in_channels
from keyhole.qk.controls import haar
from keyhole.qk.omega import Basis, omega

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.models.run import Run

BasisName = Literal["singular", "refactored", "raw", "rotated"]
OTHERS: tuple[BasisName, ...] = ("refactored", "raw", "rotated")
Matrix = Float[Tensor, "d_head d_head"]


@dataclass(frozen=True)
class Space:
    """A basis of one side of a head: coordinates of what it reads are y @ into, and y = coordinates @ back."""

    into: Matrix
    back: Matrix


def top_edges(asked: MaskedQuestion, n: int) -> EdgeList:
    """The n token-level edges into queries and keys with the largest |share|."""
    values = np.abs(asked.shares.values)
    values[:, [reader.side not in ("dest", "src") for reader in asked.masked.wiring.readers]] = 0.0
    first = np.argsort(-values, axis=None, kind="stable")[:n]
    return np.stack(np.unravel_index(first, values.shape), 1)


@dataclass(frozen=True, eq=False)
class EdgeParts:
    """What each edge adds to the query or key it ends at, in head space, and the scores that this makes."""

    asked: MaskedQuestion
    edges: EdgeList
    added: Float[Tensor, "edge d_head"]  # (w - base) W / n
    # Of every edge, how a change y of its query or key changes scores (y @ effect), and with which weights these count.
    effect: tuple[Float[Tensor, "d_head _score"], ...]
    weights: tuple[Float[Tensor, "_score"], ...]
    query: tuple[bool, ...]  # ends at a query: its scores are of one softmax, and those of a key of one each

    @classmethod
    def of(cls, asked: MaskedQuestion, edges: EdgeList) -> "EdgeParts":
        """Read off the model's own run."""
        made, run = asked.masked, asked.run
        with exact_matmul(), torch.no_grad():
            written = made.written()[:, 0]
        added, effects, weights, queries = [], [], [], []
        for writer, reader, token in edges.tolist():
            place = made.wiring.readers[reader]
            assert place.layer is not None and place.head is not None
            block, query = made.blocks[place.layer], place.side == "dest"
            side = block.query if query else block.key
            change = (written[writer, token] - asked.baseline.writes[writer, token]).double()
            stream = run.layers[place.layer].resid[token][None].to(side.W)
            scale = 1.0 if side.norm is None else float(side.norm.scale(stream)[0])
            added.append(change @ side.W[place.head].double() / scale)
            effect, weight = _scores(run, block, (place.layer, place.head), token, query=query)
            effects.append(effect)
            weights.append(weight)
            queries.append(query)
        return cls(asked, edges, torch.stack(added), tuple(effects), tuple(weights), tuple(queries))

    def sizes(self, edge: int, space: Space) -> Float[Tensor, "channel"]:
        """How much each channel of an edge changes attention: the mean |change of a score|, by attention.

        Only differences between the scores of one query count, so their mean by attention is taken off.
        """
        coordinates = self.added[edge] @ space.into
        scores = coordinates[:, None] * (space.back @ self.effect[edge])  # channel score
        weights = self.weights[edge]
        if self.query[edge]:
            return ((scores - (scores * weights).sum(1, keepdim=True)).abs() * weights).sum(1)
        return (2 * scores.abs() * weights * (1 - weights)).sum(1)  # the same, where one score of a softmax changes


def _scores(
    run: "Run", block: Block, head: Head, token: int, *, query: bool
) -> tuple[Float[Tensor, "d_head score"], Float[Tensor, "score"]]:
    """How a change of a query (or key) at a token changes scores, and the attention there."""
    record = run.attention_run(head[0])
    others = record.k[record.kv(head[1])][: token + 1] if query else record.q[head[1]][token:]
    others = others.double()
    if block.rotary is not None:  # the change is turned by its own position: take that off the other side instead
        others = block.rotary.at(torch.full((len(others),), token)).transpose(others)
    factor = block.rule.scaling
    if query and block.factor is not None:
        factor = factor * float(block.factor[token])
    A = record.weights([head[1]], list(range(len(run))))[0].double()  # dest src
    return (others * factor).T, A[token, : token + 1] if query else A[token:, token]


def channel_masks(parts: EdgeParts, name: BasisName, sizes: Sequence[int], seed: int) -> list[Mask]:
    """Masks that keep the first channels of every edge in one basis, so many each."""
    spaces = head_spaces(parts.asked.run.model, name, seed)
    withheld: list[list[Matrix]] = [[] for _ in sizes]
    for i, (_, reader, _) in enumerate(parts.edges.tolist()):
        place = parts.asked.masked.wiring.readers[reader]
        assert place.layer is not None and place.head is not None
        space = spaces(place.layer, place.head, place.side == "dest")
        order = parts.sizes(i, space).argsort(descending=True)
        for row, n in zip(withheld, sizes, strict=True):
            rest = order[n:]
            row.append(space.into[:, rest] @ space.back[rest])
    return [Mask(parts.edges, 1.0, 1.0, 0, (), tuple(row)) for row in withheld]


def head_spaces(model: "Model", name: BasisName, seed: int) -> Callable[[int, int, bool], Space]:
    """The basis of each head's query or key; random ones are drawn anew for every head."""
    made: dict[tuple[int, int], Matrix] = {}

    def space(layer: int, head: int, query: bool) -> Space:
        if (layer, head) not in made:
            made[layer, head] = head_basis(model, layer, head, name, seed)
        G = made[layer, head]
        inverse = torch.linalg.inv(G)
        return Space(G, inverse) if query else Space(inverse.T, G.T)

    return space


def head_basis(model: "Model", layer: int, head: int, name: BasisName, seed: int = 0) -> Matrix:
    """G: query coordinates are q G, key coordinates k G^-T, and (q G) . (k G^-T) = q . k.

    Channels beyond the rank of W_Q W_K^T complete the singular basis; they carry no score but through positions.
    """
    d_head = model.dims.d_head
    generator = torch.Generator().manual_seed(1_000_003 * seed + 1_009 * layer + head)
    if name == "raw":
        return torch.eye(d_head, dtype=torch.float64)
    if name == "rotated":
        return haar(d_head, d_head, generator)
    channels = omega(model, layer)
    r = int(channels.rank[head])
    sigma = channels.sigma[head, :r].double().cpu()
    lifted, G_s = channels.lift_d[head, :, :r].double().cpu(), channels.lift_s[head, :, :r].double().cpu().T
    G = lifted * sigma  # G_d, in float64
    if name == "refactored":
        G = (G / sigma.sqrt()) @ haar(r, r, generator)
    if r < d_head:
        rest = torch.eye(d_head, dtype=torch.float64) - lifted * sigma @ G_s
        G = torch.cat([G, torch.linalg.svd(rest)[0][:, : d_head - r]], 1)
    return G


def require_plain(blocks: Sequence[Block]) -> None:
    """Refuse a norm on queries and keys."""
    if any(block.query.qk_norm is not None for block in blocks):
        raise KeyholeError(
            "this model has a norm on queries and keys, under which they are not sums of coordinates: the test of the "
            "singular basis needs one without."
        )


# Which pairs of tokens does a head fire on, and what are they in its channels? All heads of a layer at once.
#
# Firing is the 2024 paper's: weight >= threshold, score >= 0, source not the first token. Quiet pairs, below the
# threshold, leave that source out too, lest the two differ by the sink alone. Terms and counts are those of
# `qk.channels` and `qk.slices`, computed together so that one pass over many prompts serves every head.


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
    record, n, heads = run.attention_run(layer), len(run), list(generators)
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
    record, found = run.attention_run(layer), in_channels(run, layer, basis=basis)
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
