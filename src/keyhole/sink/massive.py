"""Which coordinates of the first token's stream are massive, since which layer, and who writes them?

A coordinate is massive if it is more than a hundred times the median magnitude of its layer's streams, as a few are in
many models at the first token alone.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.writer import Component
from keyhole.models.run import Run
from keyhole.tracing.writes.writers import split

MASSIVE = 100.0  # times the median magnitude


@dataclass(frozen=True)
class Massive:
    """One coordinate that is massive at the first token."""

    coordinate: int
    first: int  # the layers whose input has it so large
    last: int
    peak: int  # where it is largest beside the median
    times: float  # the median magnitude, there
    elsewhere: float  # the same of the largest other token
    value: float  # what it is there, on average over prompts
    maker: Component  # who writes the largest share of it where it is massive first
    made: float
    writer: Component  # and at its peak
    share: float


def massive(runs: Sequence[Run], times: float = MASSIVE) -> tuple[Massive, ...]:
    """The massive coordinates of these runs' first tokens, largest first; medians over runs."""
    layers = len(runs[0].layers)
    first = np.stack([np.median([_times(run, layer)[0] for run in runs], axis=0) for layer in range(layers)])
    found = []
    for coordinate in np.nonzero((first > times).any(0))[0].tolist():
        at = np.nonzero(first[:, coordinate] > times)[0]
        peak = int(first[:, coordinate].argmax())
        other = np.median([_times(run, peak)[1:, coordinate].max(initial=0.0) for run in runs])
        value = float(np.mean([float(run.layers[peak].resid[0, coordinate]) for run in runs]))
        top = float(first[peak, coordinate])
        authors = (*_author(runs, int(at[0]), coordinate), *_author(runs, peak, coordinate))
        found.append(Massive(coordinate, int(at[0]), int(at[-1]), peak, top, float(other), value, *authors))
    return tuple(sorted(found, key=lambda one: -one.times))


def _times(run: Run, layer: int) -> Float[np.ndarray, "pos d_model"]:
    """Magnitudes of a layer's streams, in units of their median."""
    x = run.layers[layer].resid.double().abs().cpu().numpy()
    middle = float(np.median(x))
    return np.asarray(x / middle if middle > 0 else np.zeros_like(x))


def _author(runs: Sequence[Run], layer: int, coordinate: int) -> tuple[Component, float]:
    """Who writes most of a coordinate at the first token, and its share of it, on average over runs."""
    shares: dict[Component, float] = defaultdict(float)
    for run in runs:
        found = split(run, layer, 0)
        values: list[float] = found.vectors[:, coordinate].double().tolist()
        whole = sum(values)
        for writer, value in zip(found.writers, values, strict=True):
            shares[Component.of(writer)] += value / whole / len(runs)
    author = max(shares, key=lambda one: shares[one])
    return author, shares[author]


def along(vectors: Float[Tensor, "heads d_model"], found: Sequence[Massive]) -> float:
    """Which share of directions (of length 1) lies along the massive coordinates?"""
    if not found or not len(vectors):
        return 0.0
    at = torch.tensor([one.coordinate for one in found])
    return float(vectors[:, at].square().sum(1).mean())
