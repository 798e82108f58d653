"""Along which direction does one firing read one signal? For tests, which look at one at a time."""

import torch

from keyhole.circuits.records import Signal, Writer
from keyhole.tracing.candidates import Sites
from keyhole.tracing.firing import Firing
from keyhole.tracing.mlp_directions import Readings, values_along
from keyhole.tracing.upstream import Writes


def direction_of(firing: Firing, signal: Signal, writes: Writes) -> torch.Tensor:
    """At the signal's token."""
    return Readings(writes, firing.layer, _site(firing, writes)).along(signal.side, [0], [signal.channels])[0]


def value_direction(firing: Firing, writes: Writes, d: torch.Tensor) -> torch.Tensor:
    """At src, of what the firing moves, if that is read along d."""
    return values_along(writes, firing.layer, _site(firing, writes), torch.tensor([firing.attention]), d[None])[0]


def written(writes: Writes, writer: Writer) -> torch.Tensor:
    """What one writer writes in the only run."""
    return writes.written([0], [writer])[0]


def _site(firing: Firing, writes: Writes) -> Sites:
    return Sites.of([(0, firing.head, firing.dest, firing.src)], writes.device)
