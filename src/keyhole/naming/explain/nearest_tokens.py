"""Which tokens does a signal look like? Those whose embeddings and unembeddings lie nearest to what the head reads.

    u = W_Q q        v = W_K k        (lifted to residual space: ask = x_d . u, offer = x_s . v, before any rotation)

Cosines of u and v with every token's embedding (what the token is) and unembedding (what is written to predict it). In
many dimensions some token is near to any direction, so beside them stands what random directions of the same head
reach: `chance`, the largest cosine that one in twenty of these exceeds.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.errors import KeyholeError
from keyhole.models.numbers.precision import exact_matmul
from keyhole.models.tokens.vocabulary import all_tokens
from keyhole.naming.subject import Subject

if TYPE_CHECKING:
    from keyhole.models.model import Model

_BEYOND = 0.95


@dataclass(frozen=True)
class Near:
    """The tokens nearest to one direction, and the cosine that random ones reach."""

    tokens: tuple[tuple[str, float], ...]  # each with its cosine, largest first
    chance: float

    def __str__(self) -> str:
        told = ", ".join(f"{token!r} {cosine:.2f}" for token, cosine in self.tokens)
        return f"{told} (random: {self.chance:.2f})"


@dataclass(frozen=True)
class Lens:
    """What dest (u) and src (v) of a signal look like."""

    dest: Near
    dest_predicts: Near
    src: Near
    src_predicts: Near

    def __str__(self) -> str:
        names = ("dest looks like", "dest predicts", "src looks like", "src predicts")
        found = (self.dest, self.dest_predicts, self.src, self.src_predicts)
        return "\n".join(f"{name:>16}  {near}" for name, near in zip(names, found, strict=True))


def lens(model: "Model", subject: Subject, *, tokens: int = 8, draws: int = 100, seed: int = 0) -> Lens:
    """The tokens nearest to a signal's two directions."""
    layer, head = subject.head
    if draws < 1 or tokens < 1:
        raise KeyholeError("a lens shows at least one token, beside at least one random direction.")
    w, known = model.weights(layer), all_tokens(model)
    ids = [token.id for token in known]
    embedded = model.hf.get_input_embeddings().weight.detach().to(w.W_Q)[ids]
    predicted = model.head_out().W_U.to(w.W_Q).T[ids]
    generator, found = torch.Generator().manual_seed(seed), []
    with exact_matmul():
        for W, own in ((w.W_Q[head], subject.query), (w.W_K[w.kv(head)], subject.key)):
            others = torch.randn(draws, len(own), generator=generator).to(W)
            lifted = torch.cat([own.to(W)[None], others]) @ W.T
            found += [
                _near(cosines(lifted, rows), [one.text for one in known], tokens) for rows in (embedded, predicted)
            ]
    return Lens(*found)


def cosines(
    x: Float[Tensor, "directions d_model"], rows: Float[Tensor, "tokens d_model"]
) -> Float[Tensor, "directions tokens"]:
    """Of each direction with each row; with nothing, none."""
    return torch.nn.functional.normalize(x, dim=-1) @ torch.nn.functional.normalize(rows, dim=-1).T


def _near(cosines: Float[Tensor, "directions tokens"], texts: list[str], most: int) -> Near:
    best = torch.topk(cosines[0], min(most, len(texts)))
    chance = torch.quantile(cosines[1:].amax(1).double(), _BEYOND)
    return Near(
        tuple((texts[i], value) for i, value in zip(best.indices.tolist(), best.values.tolist(), strict=True)),
        float(chance),
    )
