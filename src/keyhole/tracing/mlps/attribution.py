"""How much of a value read at a token does each writer account for? g . o_w, for every writer of the stream there."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.writer import Writer
from keyhole.tracing.writers import bias_writes, moved_values

if TYPE_CHECKING:
    from keyhole.models.run import Run


def attributions(
    run: "Run", t: int, g: Float[Tensor, "d_model"], *, layer: int, attended: bool
) -> list[tuple[Writer, float]]:
    """Every writer of a layer's residual stream at a token, with its part of g . x; after its attention, or before."""
    found = [(Writer("embedding", 0, None, t, t), float(run.layers[0].resid[t].to(g) @ g))]
    for upper in range(layer + attended):
        record = run.layers[upper]
        if record.attention is not None:
            rows = _moved(run, upper, t, g).tolist()
            found += [
                (Writer("head", upper, h, t, b), part) for h, row in enumerate(rows) for b, part in enumerate(row)
            ]
            found.append((Writer("bias", upper, None, t, t), float(bias_writes(run, upper, [t])[0].to(g) @ g)))
        if record.mixer is not None:
            found.append((Writer("mixer", upper, None, t, t), float(record.mixer[t].to(g) @ g)))
        if upper < layer:
            found.append((Writer("mlp", upper, None, t, t), float(record.mlp[t].to(g) @ g)))
    return found


def _moved(run: "Run", layer: int, t: int, g: Tensor) -> Float[Tensor, "heads src"]:
    """A_tb (v_b W_O) . g / m_t of every head and source; W_O g first, so that no write is built."""
    record, w = run.layer(layer), run.model.weights(layer)
    along = w.W_O.to(g) @ g  # [heads, d_head]
    A = record.weights(record.heads, [t])[:, 0, : t + 1].to(g)
    v = moved_values(run, layer)[:, : t + 1].to(g)
    return A * torch.einsum("hbr,hr->hb", v, along) / record.out_scale[t].to(g)
