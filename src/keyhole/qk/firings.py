"""Which heads fire where? Attention weights well above what uniform attention would give."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.errors import KeyholeError
from keyhole.models.precision import exact_matmul

if TYPE_CHECKING:
    from keyhole.models.run import AttentionRun, Run

DYNAMIC_SCALE = 2.5  # how many times uniform a weight must be to count as a firing
_DEST_BLOCK = 256


@dataclass(frozen=True)
class Site:
    """One (head, dest, src) that fires, with its attention weight."""

    layer: int
    head: int
    dest: int
    src: int
    attention: float
    visible: int  # number of keys that dest sees

    @property
    def times_uniform(self) -> float:
        """How many times more than uniform attention: weight x number of visible keys."""
        return self.attention * self.visible


def find_firings(run: "Run", tau: float | None = None, *, dest: int | str | None = None) -> list[Site]:
    """Every firing of a run, most above uniform first.

    `tau=None` is the dynamic threshold min(1, 2.5 / visible keys); `dest` restricts to one destination.
    """
    run.require_fresh()
    if tau is not None:
        check_tau(tau)
    dests = range(len(run)) if dest is None else [run.position(dest, "dest")]
    sites: list[Site] = []
    with exact_matmul():
        for layer in run.model.attention_layers:
            for start in range(0, len(dests), _DEST_BLOCK):
                sites += _of_layer(run.layer(layer), layer, list(dests[start : start + _DEST_BLOCK]), tau)
    return sorted(sites, key=lambda s: (-s.times_uniform, s.layer, s.head, s.dest, s.src))


def check_tau(tau: float) -> float:
    """The threshold as a number, or why it is none: no weight is below 0, and none above 1."""
    try:
        value = float(tau)
    except (TypeError, ValueError) as error:
        raise KeyholeError(f"tau is 'dynamic' or a number such as 0.2, not {tau!r}.") from error
    if not 0 < value <= 1:
        raise KeyholeError(f"tau is {value}, but a threshold lies between 0 and 1 and is not 0: no weight is below 0.")
    return value


def thresholds(record: "AttentionRun", dests: list[int], tau: float | None) -> Float[Tensor, "dest"]:
    """The threshold at each destination."""
    visible = record.visible(dests).sum(-1).to(torch.float64)
    return (DYNAMIC_SCALE / visible).clamp_max(1.0) if tau is None else torch.full_like(visible, tau)


def _of_layer(record: "AttentionRun", layer: int, dests: list[int], tau: float | None) -> list[Site]:
    weights = record.weights(range(record.q.shape[0]), dests)
    visible = record.visible(dests)
    counts = visible.sum(-1).tolist()
    fires = (weights.double() >= thresholds(record, dests, tau)[None, :, None]) & visible
    heads, rows, sources = fires.nonzero(as_tuple=True)
    values = weights[heads, rows, sources].tolist()
    found = []
    for h, r, s, weight in zip(heads.tolist(), rows.tolist(), sources.tolist(), values, strict=True):
        found.append(Site(layer, h, dests[r], s, weight, counts[r]))
    return found
