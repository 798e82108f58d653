"""Along which direction is each writer read? What all its readers read, weighted by influence, added up.

What an MLP (or a head) writes is read by several consumers, each along a direction of its own; weighted by influence
these are one direction D, so that each (layer, token) is explained once.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.writer import Writer
from keyhole.tracing.mlps.flow import EXPLAINED

Key = tuple[int, Writer]  # a writer of a run
Reader = tuple[int, Writer, float, float]  # of a run's writer: which share of influence it hands on, for which value


class Directions:
    """D of every writer that is read and could be explained, in all runs."""

    def __init__(self, d_model: int, device: torch.device) -> None:
        self._slots: dict[Key, int] = {}
        self._sums = torch.zeros(256, d_model, dtype=torch.float64, device=device)

    def add(
        self,
        readers: Sequence[Reader],
        vectors: Float[Tensor, "vector d_model"],
        rows: Sequence[int] | None = None,
    ) -> None:
        """Each reader reads along one of the vectors, in their order or that of `rows`.

        Where nothing is read, or against the direction, nothing is added.
        """
        which = range(len(readers)) if rows is None else rows
        told = [(own, row) for own, row in zip(readers, which, strict=True) if own[3] > 0 and own[1].kind in EXPLAINED]
        if not told:
            return
        slots = [self._slots.setdefault((run, writer), len(self._slots)) for (run, writer, _, _), _ in told]
        while len(self._slots) > len(self._sums):
            self._sums = torch.cat([self._sums, torch.zeros_like(self._sums)])
        factors = self._sums.new_tensor([share / value for (_, _, share, value), _ in told])
        read = vectors[[row for _, row in told]].double() * factors[:, None]
        self._sums.index_add_(0, torch.tensor(slots, device=read.device), read)

    def __contains__(self, key: Key) -> bool:
        return key in self._slots

    def of(self, keys: Sequence[Key]) -> Float[Tensor, "key d_model"]:
        """The directions of some writers."""
        return self._sums[[self._slots[key] for key in keys]]
