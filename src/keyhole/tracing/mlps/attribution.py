"""How much of an MLP's write does each writer of its input account for? g . o_w, for every writer at the place."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.writer import Writer
from keyhole.tracing.writers import bias_writes, moved_values

if TYPE_CHECKING:
    from keyhole.tracing.mlps.places import Places


def attributions(places: "Places", index: int, g: Float[Tensor, "d_model"]) -> list[tuple[Writer, float]]:
    """Every writer below the MLP at one of its places, with its part of g . x."""
    run, layer, t = places.run, places.layer, places.tokens[index]
    found = [(Writer("embedding", 0, None, t, t), float(run.layers[0].resid[t].to(g) @ g))]
    for upper in range(layer + 1):
        record, own = run.layers[upper], upper == layer
        if record.attention is not None and not (own and places.weights.parallel):
            values = _moved(places, upper, t, g)
            heads, sources = values.shape
            parts = values.tolist()
            found += [(Writer("head", upper, h, t, b), parts[h][b]) for h in range(heads) for b in range(sources)]
            found.append((Writer("bias", upper, None, t, t), float(bias_writes(run, upper, [t])[0].to(g) @ g)))
        if record.mixer is not None and not (own and places.weights.parallel):
            found.append((Writer("mixer", upper, None, t, t), float(record.mixer[t].to(g) @ g)))
        if not own:
            found.append((Writer("mlp", upper, None, t, t), float(record.mlp[t].to(g) @ g)))
    return found


def _moved(places: "Places", layer: int, t: int, g: Tensor) -> Float[Tensor, "heads src"]:
    """A_tb (v_b W_O) . g / m_t of every head and source; W_O g first, so that no write is built."""
    run = places.run
    record, w = run.layer(layer), run.model.weights(layer)
    along = w.W_O.to(g) @ g  # [heads, d_head]
    A = record.weights(record.heads, [t])[:, 0, : t + 1].to(g)
    v = moved_values(run, layer)[:, : t + 1].to(g)
    return A * torch.einsum("hbr,hr->hb", v, along) / record.out_scale[t].to(g)
