"""What do all subjects of a layer ask and offer, at every token of a batch? One product per head.

    ask[b, d, i] = query_i . q_bd + offset        offer[b, s, i] = key_i . k_bs + offset

Queries and keys are as the scores use them. A pair is worth ask x offer where both are positive, and else nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from keyhole.brief import brief
from keyhole.errors import KeyholeError
from keyhole.models.model import Model
from keyhole.models.numbers.precision import working_dtype
from keyhole.models.recording.attention import visible_mask
from keyhole.models.recording.visit import Seen
from keyhole.naming.subject import Subject


@dataclass(frozen=True)
class Readers:
    """The subjects of one layer, those of a head together."""

    __repr__ = brief

    numbers: Int[np.ndarray, "readers"]  # of each among all subjects
    heads: tuple[int, ...]  # the distinct ones
    of_head: Int[Tensor, "readers"]  # which of them each belongs to
    query: Float[Tensor, "d_head readers"]
    key: Float[Tensor, "d_head readers"]
    query_offset: Float[Tensor, "readers"]
    key_offset: Float[Tensor, "readers"]

    def read(self, seen: Seen) -> tuple[Float[Tensor, "batch pos readers"], Float[Tensor, "batch pos readers"]]:
        """What every subject asks and offers at every token."""
        group = seen.q.shape[1] // seen.k.shape[1]
        asks, offers = [], []
        for number, head in enumerate(self.heads):
            own = self.of_head == number  # one stretch of them
            asks.append(seen.q[:, head].to(self.query.dtype) @ self.query[:, own])
            offers.append(seen.k[:, head // group].to(self.key.dtype) @ self.key[:, own])
        return torch.cat(asks, -1) + self.query_offset, torch.cat(offers, -1) + self.key_offset

    def weights(self, seen: Seen) -> Float[Tensor, "batch heads pos pos"]:
        """Attention weights of the heads that have subjects."""
        return head_weights(seen, self.heads)


def head_weights(seen: Seen, heads: Sequence[int]) -> Float[Tensor, "batch heads pos pos"]:
    """Attention weights of some heads."""
    group, dtype = seen.q.shape[1] // seen.k.shape[1], working_dtype(seen.q.dtype)
    q, k = seen.q[:, list(heads)].to(dtype), seen.k[:, [head // group for head in heads]].to(dtype)
    return seen.rule.heads(list(heads)).weights(q @ k.mT * seen.rule.scaling, visible(seen))


def visible(seen: Seen) -> Bool[Tensor, "pos pos"]:
    """Which keys each position of a layer sees."""
    n = len(seen.first)
    return visible_mask(seen.first, torch.arange(n, device=seen.first.device), n)


def readers_of(model: Model, subjects: Sequence[Subject]) -> dict[int, Readers]:
    """All subjects by layer; those that are not of this model's heads are refused."""
    _require(model, subjects)
    layers: dict[int, list[int]] = {}
    for number, subject in enumerate(subjects):
        layers.setdefault(subject.head[0], []).append(number)
    return {layer: _of_layer(model, subjects, numbers) for layer, numbers in sorted(layers.items())}


def _of_layer(model: Model, subjects: Sequence[Subject], numbers: list[int]) -> Readers:
    ordered = sorted(numbers, key=lambda number: (subjects[number].head[1], number))
    own = [subjects[number] for number in ordered]
    heads = tuple(sorted({subject.head[1] for subject in own}))
    device, dtype = model.hf.device, working_dtype(model.hf.dtype)
    return Readers(
        np.array(ordered),
        heads,
        torch.tensor([heads.index(subject.head[1]) for subject in own], device=device),
        torch.stack([subject.query for subject in own], 1).to(device, dtype),
        torch.stack([subject.key for subject in own], 1).to(device, dtype),
        torch.tensor([subject.query_offset for subject in own], device=device, dtype=dtype),
        torch.tensor([subject.key_offset for subject in own], device=device, dtype=dtype),
    )


def _require(model: Model, subjects: Sequence[Subject]) -> None:
    if not subjects:
        raise KeyholeError("there is nothing to find examples of: give at least one subject.")
    seen: set[str] = set()
    layers = set(model.attention_layers)
    for one in subjects:
        if one.id in seen:
            raise KeyholeError(f"two subjects are called {one.id!r}: give each an id of its own.")
        seen.add(one.id)
        layer, head = one.head
        if layer not in layers or not 0 <= head < model.dims.heads:
            raise KeyholeError(f"{one.id!r} is of head {layer}.{head}, which {model.name} does not have.")
        if one.query.shape != one.key.shape or len(one.query) != model.dims.d_head:
            raise KeyholeError(
                f"{one.id!r} has directions of {len(one.query)} and {len(one.key)} numbers, where heads of "
                f"{model.name} compare {model.dims.d_head}: it is of another model."
            )
        if not bool(torch.isfinite(one.query).all() and torch.isfinite(one.key).all()):
            raise KeyholeError(f"{one.id!r} has directions that are NaN or infinite.")
