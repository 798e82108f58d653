"""Which rows belong together? Those of a layer, a head, a run, in the order of its number."""

from collections.abc import Iterator

import torch
from jaxtyping import Int
from torch import Tensor


def by_number(numbers: Int[Tensor, "row"]) -> Iterator[tuple[int, Int[Tensor, "own"]]]:
    """Each number (a layer, a head, a run), and which rows have it."""
    return ((number, torch.nonzero(numbers == number).flatten()) for number in sorted(set(numbers.tolist())))


def adjoining(runs: Int[Tensor, "row"]) -> Iterator[tuple[int, slice]]:
    """Each run, and where its rows are, which adjoin: a slice copies nothing."""
    start = 0
    for run, size in zip(*(x.tolist() for x in torch.unique_consecutive(runs, return_counts=True)), strict=True):
        yield run, slice(start, start + size)
        start += size
