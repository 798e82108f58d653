"""What does an edge add to a query or key, channel by channel? In the singular basis of a head, or in another.

A basis is an invertible G of head space: query coordinates q G, key coordinates k G^-T, and the same scores. Of what an
edge adds, some coordinates are kept and the others withheld (`Mask.withheld`), whatever the basis.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.errors import KeyholeError
from keyhole.faithfulness.blocks import Block
from keyhole.faithfulness.question import MaskedQuestion
from keyhole.faithfulness.token_masks import EdgeList, Mask
from keyhole.models.heads import Head
from keyhole.models.numbers.precision import exact_matmul
from keyhole.qk.controls import haar
from keyhole.qk.omega import omega

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
    record = run.layer(head[0])
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
    if any(block.query.own is not None for block in blocks):
        raise KeyholeError(
            "this model has a norm on queries and keys, under which they are not sums of coordinates: the test of the "
            "singular basis needs one without."
        )
