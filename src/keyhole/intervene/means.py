"""What do writers write on average over prompts that are alike, token by token? For writing that instead of nothing."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.writer import Kind, Writer
from keyhole.errors import KeyholeError
from keyhole.intervene.writers import places
from keyhole.models.numbers.precision import exact_matmul
from keyhole.tracing.writes.writers import values_of
from keyhole.tracing.writes.written import written_by

if TYPE_CHECKING:
    from keyhole.models.run import Run


def mean_writes(runs: Sequence["Run"]) -> dict[Writer, Float[Tensor, "d_model"]]:
    """The mean write of every place over runs of one model that have as many tokens.

    A vector for each head and pair of tokens: for prompts of tens of tokens, not of hundreds.
    """
    if not runs:
        raise KeyholeError("there are no runs to take a mean of.")
    lengths = sorted({len(run) for run in runs})
    if len(lengths) > 1:
        raise KeyholeError(f"the runs have {lengths} tokens: writers are matched token by token, so give equal ones.")
    for run in runs:
        run.require_fresh()
    every = places(runs[0])
    kinds = {(writer.kind, writer.layer) for writer in every if writer.kind != "head"}
    with exact_matmul():
        heads = {layer: _heads(runs, layer) for layer in runs[0].model.attention_layers}
        others = {(kind, layer): _others(runs, kind, layer) for kind, layer in kinds}
    return {
        w: heads[w.layer][w.head, w.dest, w.src] if w.kind == "head" else others[w.kind, w.layer][w.dest] for w in every
    }


def _heads(runs: Sequence["Run"], layer: int) -> Float[Tensor, "heads dest src d_model"]:
    """Means of A_tb (v_b - b_V) W_O / m_t, which is linear in what stands before W_O."""
    w = runs[0].model.weights(layer)
    mixed = []
    for run in runs:
        record = run.layer(layer)
        A = record.weights(record.heads, range(len(run))) / record.out_scale[:, None]
        mixed.append(A[..., None] * values_of(record, w)[:, None])
    return torch.stack(mixed).mean(0) @ w.W_O[:, None]


def _others(runs: Sequence["Run"], kind: Kind, layer: int) -> Float[Tensor, "pos d_model"]:
    every = range(len(runs[0]))
    return torch.stack([written_by(run, Writer(kind, layer, None, 0, 0), every) for run in runs]).mean(0)
