"""What is an answer without some writers? Their writes go in the model's own pass, and everything after is free.

This is the effect of a place, not the claim of a circuit: other paths may make up for what is gone.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.writer import OFFSETS, Writer
from keyhole.errors import KeyholeError
from keyhole.intervene.remove import Metric
from keyhole.intervene.rerun import Edits, WriterEdit, rerun_each
from keyhole.models.precision import exact_matmul
from keyhole.progress import Progress
from keyhole.tracing.written import written_by

if TYPE_CHECKING:
    from keyhole.models.run import Run


def answers_without(
    run: "Run",
    sets: Sequence[Sequence[Writer]],
    metric: Metric,
    *,
    instead: Mapping[Writer, Float[Tensor, "d_model"]] | None = None,
    progress: Progress | None = None,
) -> list[float]:
    """The metric with each set of writers gone, or writing what is given `instead` of what they wrote."""
    run.require_fresh()
    with exact_matmul():
        copies = [Edits(writers=tuple(_edit(run, writer, instead or {}) for writer in members)) for members in sets]
        found = dict[int, float]()
        for i, result, copy in rerun_each(run, copies, progress):
            found[i] = metric.of(result.captured.logits[copy, metric.end])
    return [found[i] for i in range(len(sets))]


def _edit(run: "Run", writer: Writer, instead: Mapping[Writer, Tensor]) -> WriterEdit:
    """What takes one write away, at its token."""
    if writer.kind in OFFSETS:
        raise KeyholeError("an offset is its reader's own constant and is written nowhere: it cannot be taken away.")
    delta = torch.zeros_like(run.layers[0].resid, dtype=run.final_scale.dtype)
    delta[writer.dest] = -written_by(run, writer, [writer.dest])[0]
    if writer in instead:
        delta[writer.dest] += instead[writer].to(delta)
    return WriterEdit("attention" if writer.kind in ("head", "bias") else writer.kind, writer.layer, delta)
