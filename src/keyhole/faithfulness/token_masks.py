"""Which edges are kept, token by token? Masks as lists of edges, for several copies of the prompts side by side.

A token-level edge (u, r, t) is what writer u wrote at token t, read by reader r there. A model has millions of them,
and a mask of interest differs from a constant on a few. So a copy has a ground for all edges, and a list of others:

    only S            ground 0, the edges of S at 1          all but S     ground 1, the edges of S at 0
    everything at a   ground a, no list                      a times S     ground 0, the edges of S at a
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

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


class Rows:
    """Masks side by side, laid out for readers: which edges end at the readers of a block, in order of readers."""

    def __init__(self, masks: Sequence[Mask], like: Float[Tensor, "prompt pos d_model"]) -> None:
        lists = [mask.edges for mask in masks]
        self.masks = masks
        self.prompt = torch.tensor([mask.prompt for mask in masks], device=like.device)
        copy = np.repeat(np.arange(len(masks)), [len(edges) for edges in lists])
        edges = np.concatenate(lists)
        order = np.argsort(edges[:, 1], kind="stable")
        self._readers = edges[order, 1]
        self._edges = torch.from_numpy(np.column_stack([edges, copy])[order]).to(like.device)
        ground = np.concatenate([_ground_of(mask) for mask in masks])[order]
        values = np.repeat([mask.value for mask in masks], [len(edges) for edges in lists])[order]
        self._change = torch.from_numpy(values - ground).to(like)
        bases = [basis for mask in masks for basis in mask.channels or (None,) * len(mask.edges)]
        self._channels = [bases[i] for i in order] if any(mask.channels for mask in masks) else None
        self.dense = [i for i, mask in enumerate(masks) if isinstance(mask.ground, np.ndarray)]
        constant = [0.0 if isinstance(mask.ground, np.ndarray) else mask.ground for mask in masks]
        self.ground = like.new_tensor(constant) if any(constant) else None

    @cached_property
    def writers(self) -> frozenset[int] | None:
        """Writers that anybody reads in any copy; None: all of them."""
        sparse = self.ground is None and not self.dense
        return frozenset(self._edges[:, 0].tolist()) if sparse else None

    def listed(
        self, changes: Float[Tensor, "writer row pos d_model"], readers: range
    ) -> Float[Tensor, "reader row pos d_model"]:
        """What the listed edges add to what these readers read."""
        first, last = np.searchsorted(self._readers, (readers.start, readers.stop))
        writer, reader, token, row = self._edges[first:last].unbind(1)
        parts = changes[writer, row, token]
        if self._channels is not None and last > first:
            bases = self._channels[first:last]
            parts = torch.stack([x if B is None else x @ B @ B.T for x, B in zip(parts, bases, strict=True)])
        parts = parts * self._change[first:last, None]
        read = changes.new_zeros(len(readers) * changes.shape[1] * changes.shape[2], changes.shape[3])
        at = ((reader - readers.start) * changes.shape[1] + row) * changes.shape[2] + token
        return read.index_add(0, at, parts).view(len(readers), *changes.shape[1:])

    def scattered(
        self, changes: Float[Tensor, "writer row pos d_model"], readers: range
    ) -> Float[Tensor, "reader dense_row pos d_model"]:
        """What copies with a mask for every single edge read, before their lists."""
        grounds = [self.masks[i].ground for i in self.dense]
        masks = np.stack([ground[: len(changes), readers.start : readers.stop] for ground in grounds])  # type: ignore[index]
        mask = torch.from_numpy(masks).to(changes)
        return torch.einsum("bwrt,wbtd->rbtd", mask, changes[:, self.dense])


def _ground_of(mask: Mask) -> Float[np.ndarray, "edge"]:
    """What the listed edges would have without the list."""
    if isinstance(mask.ground, np.ndarray):
        return mask.ground[tuple(mask.edges.T)].astype(np.float64)
    return np.full(len(mask.edges), mask.ground)
