"""Which edges of a set lie on a way from a token to the answer? The rest goes: orphans are not silent.

A component that reads only baselines does not write its baseline, so an edge out of it adds noise; one whose write
nobody reads does nothing. Two sweeps, from the answer down and from the tokens up, until nothing changes.

A query edge at t is read by its head at t. A key or value edge at s is read by its head wherever that attends to s.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Int

from keyhole.faithfulness.token_masks import EdgeList
from keyhole.faithfulness.wiring import Wiring

if TYPE_CHECKING:
    from keyhole.models.run import Run

LOOKS, USUAL = 0.05, 2.5  # a head looks at a key of at least this weight, or of this multiple of the uniform weight
_ANSWER = -1


@dataclass(frozen=True, eq=False)
class Reach:
    """What joins edges to each other in one prompt."""

    looks: Bool[np.ndarray, "writer dest src"]  # does this head attend there? False for all that are no heads
    component: Int[np.ndarray, "reader"]  # the writer that a reader belongs to; -1: the answer
    moves: Bool[np.ndarray, "reader"]  # is it a key or a value, read wherever its head attends to it?

    def connected(self, edges: EdgeList) -> EdgeList:
        """The edges of this list that lie on a way from a token to the answer."""
        return self.connected_sets([edges])[0]

    def connected_sets(self, sets: Sequence[EdgeList]) -> list[EdgeList]:
        """The same of each of several lists."""
        which = np.repeat(np.arange(len(sets)), [len(edges) for edges in sets])
        edges = np.concatenate(sets)
        before = -1
        while len(edges) != before:
            before = len(edges)
            for kept_by in (self._is_read, self._fed):
                kept = kept_by(edges, which, len(sets))
                edges, which = edges[kept], which[kept]
        return np.split(edges, np.searchsorted(which, np.arange(1, len(sets))))

    def _fed(self, edges: EdgeList, which: Int[np.ndarray, "edge"], n: int) -> Bool[np.ndarray, "edge"]:
        """Which edges come from a writer that reads one of these edges for what it writes there?"""
        reads = np.zeros((n, *self.looks.shape[:2]), dtype=bool)
        reads[:, 0] = True  # embeddings
        component, moves, token = self.component[edges[:, 1]], self.moves[edges[:, 1]], edges[:, 2]
        here = ~moves & (component != _ANSWER)
        reads[which[here], component[here], token[here]] = True
        heads, at = _numbered(component[moves], len(self.looks))
        moved = np.zeros((n, len(heads), self.looks.shape[2]), dtype=bool)
        moved[which[moves], at, token[moves]] = True
        reads[:, heads] |= (self.looks[heads] & moved[:, :, None]).any(3)
        return np.asarray(reads[which, edges[:, 0], edges[:, 2]])

    def _is_read(self, edges: EdgeList, which: Int[np.ndarray, "edge"], n: int) -> Bool[np.ndarray, "edge"]:
        """Which edges end at a component that somebody reads, at the token that it writes to with them?"""
        writes = np.zeros((n, *self.looks.shape[:2]), dtype=bool)
        writes[which, edges[:, 0], edges[:, 2]] = True
        component, moves, token = self.component[edges[:, 1]], self.moves[edges[:, 1]], edges[:, 2]
        read = component == _ANSWER
        here = ~moves & ~read
        read[here] = writes[which[here], component[here], token[here]]
        # at token s by its head anywhere that it looks at s from, and is read at
        heads, at = _numbered(component[moves], len(self.looks))
        read[moves] = (self.looks[heads] & writes[:, heads, :, None]).any(2)[which[moves], at, token[moves]]
        return np.asarray(read)


def _numbered(values: Int[np.ndarray, "edge"], most: int) -> tuple[Int[np.ndarray, "value"], Int[np.ndarray, "edge"]]:
    """Which values there are, and which of these each one is; as np.unique, without sorting."""
    there = np.zeros(most, dtype=bool)
    there[values] = True
    return np.flatnonzero(there), (there.cumsum() - 1)[values]


def reach_of(run: "Run", wiring: Wiring) -> Reach:
    """What joins the edges of a prompt, by the attention weights of its run."""
    n, heads = len(run), run.model.dims.heads
    looks = np.zeros((len(wiring.writers), n, n), dtype=bool)
    usual = np.minimum(LOOKS, USUAL / np.arange(1, n + 1))[:, None]
    for layer in range(run.model.dims.layers):
        record = run.layer(layer)
        weights = torch.cat([record.weights(record.heads, dests) for dests in record.blocks], 1).float().cpu().numpy()
        first = 1 + layer * (heads + 1)
        looks[first : first + heads] = weights >= usual
    numbers = {writer: i for i, writer in enumerate(wiring.writers)}
    component = [_ANSWER if reader.layer is None else numbers[reader.component] for reader in wiring.readers]
    moves = [reader.side in ("src", "value") for reader in wiring.readers]
    return Reach(looks, np.array(component), np.array(moves))
