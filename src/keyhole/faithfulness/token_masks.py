"""Which edges are kept, token by token? Masks as lists of edges, for several copies of the prompts side by side.

A token-level edge (u, r, t) is what writer u wrote at token t, read by reader r there. A model has millions of them,
and a mask of interest differs from a constant on a few. So a copy has a ground for all edges, and a list of others:

    only S            ground 0, the edges of S at 1          all but S     ground 1, the edges of S at 0
    everything at a   ground a, no list                      a times S     ground 0, the edges of S at a
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

LONG = 1 << 14  # edges: what they carry would fill the memory, each by itself
EdgeList = Int[np.ndarray, "_ 3"]  # of any length: writer, reader (their numbers in a wiring), token


@dataclass(frozen=True)
class Mask:
    """One copy: a prompt, the mask of every edge, and of the edges that have another."""

    edges: EdgeList
    value: float = 1.0  # of these edges
    ground: float | Bool[np.ndarray, "writer reader pos"] = 0.0  # of all others: one value, or one each
    prompt: int = 0
    # Of each of these edges, the part that has its value: what lies in an orthonormal basis (columns), such as some
    # channels of the query or key it ends at. The rest of it stays at the ground. None: all of it; empty: all of all.
    channels: tuple[Float[Tensor, "d_model _channel"] | None, ...] = ()
    # Of each of these edges, all into queries and keys, what the head's query or key goes without: a projector of head
    # space, applied to what the edge adds there, before positions. Norms still see the whole edge. Empty: nothing.
    withheld: tuple[Float[Tensor, "d_head d_head"], ...] = ()


def only(edges: EdgeList, prompt: int = 0) -> Mask:
    """These edges, and no other."""
    return Mask(edges, 1.0, 0.0, prompt)


def all_but(edges: EdgeList, prompt: int = 0) -> Mask:
    """All edges but these."""
    return Mask(edges, 0.0, 1.0, prompt)


def everything(value: float = 1.0, prompt: int = 0) -> Mask:
    """All edges at one value: 1 is the model, 0 the baseline."""
    return Mask(no_edges(), value, value, prompt)


def no_edges() -> EdgeList:
    """The empty list of edges."""
    return np.zeros((0, 3), dtype=np.int64)


def as_ground(mask: Mask, shape: tuple[int, int, int]) -> Mask:
    """The same mask with its list, if that is long and all of it is kept or cut, as a value for every edge."""
    parts = mask.channels or mask.withheld
    whole = not parts and not isinstance(mask.ground, np.ndarray) and {mask.value, mask.ground} == {0.0, 1.0}
    if len(mask.edges) <= LONG or not whole:
        return mask
    ground = np.full(shape, bool(mask.ground))
    ground[tuple(mask.edges.T)] = bool(mask.value)
    return Mask(no_edges(), mask.value, ground, mask.prompt)


class Rows:
    """Masks side by side, sorted for one pass: what writers hand to readers, and whom nobody reads.

    A pass writes and reads in groups of neighbours: the heads of a layer, or an MLP; one of three sides of all heads. A
    group goes by the number of its first writer or reader.
    """

    def __init__(
        self, masks: Sequence[Mask], like: Float[Tensor, "prompt pos d_model"], heads: int, separable: Sequence[bool]
    ) -> None:
        self.masks, self._shape = masks, (len(masks), like.shape[1])
        self.prompt = torch.tensor([mask.prompt for mask in masks], device=like.device)
        self.dense = [i for i, mask in enumerate(masks) if isinstance(mask.ground, np.ndarray)]
        constant = [0.0 if isinstance(mask.ground, np.ndarray) else mask.ground for mask in masks]
        self.ground = like.new_tensor(constant) if any(constant) else None
        sizes = [len(mask.edges) for mask in masks]
        row = np.repeat(np.arange(len(masks)), sizes)
        writer, reader, token = np.concatenate([mask.edges for mask in masks]).T
        sparse = self.ground is None and not self.dense
        reads = _needed(writer, heads, separable) if sparse else [list(range(heads))] * len(separable)
        self.heads = reads  # of each layer, those that anybody reads; all, where they cannot be taken apart
        place = row * like.shape[1] + token
        source = _slots(writer, heads, reads) * len(masks) * like.shape[1] + place
        # of each layer, the places (row, token) where anybody reads its MLP; None: everywhere
        self.fed: list[tuple[Tensor, Tensor] | None] = [None] * len(separable)
        if sparse:
            for layer in range(len(separable)):
                here = writer == (layer + 1) * (heads + 1)
                places, source[here] = np.unique(place[here], return_inverse=True)
                at = torch.from_numpy(places).to(like.device)
                self.fed[layer] = at // like.shape[1], at % like.shape[1]
        slot = _reader_slots(reader, heads, reads)
        order = np.lexsort((_reader_group(reader, heads), _writer_group(writer, heads)))
        order = order[slot[order] >= 0]  # what only a head reads that nobody reads goes nowhere
        self._pieces = _pieces(_writer_group(writer, heads)[order], _reader_group(reader, heads)[order])
        into = slot * len(masks) * like.shape[1] + place
        self._source, self._into = (torch.from_numpy(index[order]).to(like.device) for index in (source, into))
        ground = np.concatenate([_ground_of(mask) for mask in masks])
        change = (np.repeat([mask.value for mask in masks], sizes) - ground)[order]
        self._change = None if (change == 1).all() else torch.from_numpy(change).to(like)[:, None]
        bases = [basis for mask in masks for basis in mask.channels or (None,) * len(mask.edges)]
        self._channels = [bases[i] for i in order] if any(mask.channels for mask in masks) else None
        self._withheld = _withheld(masks, order, like)
        self._inbox: dict[int, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        self._losses: dict[int, list[tuple[Tensor, Tensor, Tensor]]] = defaultdict(list)

    def hand_on(self, first: int, changes: Float[Tensor, "some *place d_model"]) -> None:
        """What a group of writers writes, less its baseline, to everybody who has an edge from it."""
        if first not in self._pieces:
            return
        start, stop, groups, sizes = self._pieces[first]
        parts = changes.reshape(-1, changes.shape[-1])[self._source[start:stop]]
        if self._channels is not None:
            bases = self._channels[start:stop]
            parts = torch.stack([x if B is None else x @ B @ B.T for x, B in zip(parts, bases, strict=True)])
        whole = parts
        if self._change is not None:
            parts = parts * self._change[start:stop]
        places, pieces = torch.split(self._into[start:stop], sizes), torch.split(parts, sizes)
        for group, into, part in zip(groups, places, pieces, strict=True):
            self._inbox[group].append((into, part))
        if self._withheld is not None:
            projectors = torch.split(self._withheld[start:stop], sizes)
            for losing in zip(groups, places, torch.split(whole, sizes), projectors, strict=True):
                self._losses[losing[0]].append(losing[1:])

    def received(
        self, first: int, n: int, base: Float[Tensor, "row pos d_model"]
    ) -> Float[Tensor, "reader row pos d_model"]:
        """What a group of n readers reads: what all read, and what was handed to each."""
        received = self._inbox.pop(first, None)
        if received is None:
            return base.expand(n, *base.shape)
        into, parts = (torch.cat(tensors) for tensors in zip(*received, strict=True))
        return base.repeat(n, 1, 1, 1).view(-1, base.shape[-1]).index_add_(0, into, parts).view(n, *base.shape)

    def lost(
        self, first: int, W: Float[Tensor, "all_heads d_model d_head"], heads: Sequence[int]
    ) -> Float[Tensor, "head row pos d_head"] | None:
        """What the queries or keys of some heads go without, before the norm's scale; None: nothing."""
        losses = self._losses.pop(first, None)
        if losses is None:
            return None
        into, parts, projectors = (torch.cat(tensors) for tensors in zip(*losses, strict=True))
        rows, pos = self._shape
        head = into // (rows * pos)
        lost = parts.new_zeros(len(heads) * rows * pos, W.shape[-1])
        for number in sorted(set(head.tolist())):
            here = head == number
            added = (parts[here] @ W[heads[number]])[:, None] @ projectors[here]
            lost.index_add_(0, into[here], added[:, 0])
        return lost.view(len(heads), rows, pos, -1)

    def scattered(
        self, changes: Float[Tensor, "writer row pos d_model"], readers: range
    ) -> Float[Tensor, "reader dense_row pos d_model"]:
        """What copies with a mask for every single edge read, before their lists."""
        grounds = [self.masks[i].ground for i in self.dense]
        masks = np.stack([ground[: len(changes), readers.start : readers.stop] for ground in grounds])  # type: ignore[index]
        mask = torch.from_numpy(masks).to(changes)
        return torch.einsum("bwrt,wbtd->rbtd", mask, changes[:, self.dense])


Numbers = Int[np.ndarray, "edge"]


def _needed(writer: Numbers, heads: int, separable: Sequence[bool]) -> list[list[int]]:
    """Of each layer, the heads that are read by an edge; all of a layer whose heads cannot be taken apart."""
    read = set(writer.tolist())
    layers = [range(1 + layer * (heads + 1), (layer + 1) * (heads + 1)) for layer in range(len(separable))]
    return [
        [head for head, number in enumerate(layer) if number in read or not apart]
        for layer, apart in zip(layers, separable, strict=True)
    ]


def _writer_group(writer: Numbers, heads: int) -> Numbers:
    """The first writer of each one's group: words, then heads and MLP of each layer."""
    place = (writer - 1) % (heads + 1)
    return np.where((writer == 0) | (place == heads), writer, writer - place)


def _reader_group(reader: Numbers, heads: int) -> Numbers:
    """The first reader of each one's group: queries, keys, values and MLP of each layer, then the answer."""
    place = reader % (3 * heads + 1)
    return reader - np.where(place < 3 * heads, place % heads, 0)


def _slots(writer: Numbers, heads: int, reads: Sequence[Sequence[int]]) -> Numbers:
    """Where a writer stands in its group, if the heads of each layer are these alone."""
    layer, place = (writer - 1) // (heads + 1), (writer - 1) % (heads + 1)
    table = _head_slots(heads, reads)
    return np.where((writer == 0) | (place == heads), 0, table[np.maximum(layer, 0), np.minimum(place, heads - 1)])


def _reader_slots(reader: Numbers, heads: int, reads: Sequence[Sequence[int]]) -> Numbers:
    """The same for readers; -1: of a head that is not among these."""
    layer, place = reader // (3 * heads + 1), reader % (3 * heads + 1)
    table = _head_slots(heads, reads)
    alone = (place == 3 * heads) | (layer == len(reads))
    return np.where(alone, 0, table[np.minimum(layer, len(reads) - 1), place % heads])


def _head_slots(heads: int, reads: Sequence[Sequence[int]]) -> Int[np.ndarray, "layer head"]:
    table = np.full((len(reads), heads), -1)
    for layer, some in enumerate(reads):
        table[layer, some] = np.arange(len(some))
    return table


def _pieces(writers: Numbers, readers: Numbers) -> dict[int, tuple[int, int, list[int], list[int]]]:
    """For each group of writers, where its edges begin and end, and to which groups of readers so many of them go."""
    ends = np.flatnonzero(np.diff(writers, append=-1) | np.diff(readers, append=-1)) + 1
    pieces: dict[int, tuple[int, int, list[int], list[int]]] = {}
    start = 0
    for end in ends.tolist():
        writer, reader = int(writers[start]), int(readers[start])
        first, _, groups, sizes = pieces.get(writer, (start, start, [], []))
        pieces[writer] = (first, end, [*groups, reader], [*sizes, end - start])
        start = end
    return pieces


def _withheld(
    masks: Sequence[Mask], order: Numbers, like: Float[Tensor, "prompt pos d_model"]
) -> Float[Tensor, "edge d_head d_head"] | None:
    """What each edge withholds, in the order in which edges are handed on."""
    sample = next((mask.withheld[0] for mask in masks if mask.withheld), None)
    if sample is None:
        return None
    none = torch.zeros_like(sample)
    projectors = [projector for mask in masks for projector in mask.withheld or (none,) * len(mask.edges)]
    values = torch.cat([like.new_full((len(mask.edges), 1, 1), mask.value) for mask in masks])
    return (torch.stack(projectors).to(like) * values)[torch.from_numpy(order).to(like.device)]


def _ground_of(mask: Mask) -> Float[np.ndarray, "edge"]:
    """What the listed edges would have without the list."""
    if isinstance(mask.ground, np.ndarray):
        return np.asarray(mask.ground[tuple(mask.edges.T)], dtype=np.float64)
    return np.full(len(mask.edges), mask.ground, dtype=np.float64)
