"""How does one pass over all prompts give every head's contrast? Sites are read in passing, and sequences never kept.

Prompts that share a sample are run in the same chunk, so a chunk's samples are complete when it has been run: they are
added to the accumulators and, unless `keep=False`, their queries and keys are kept for nulls and interventions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from keyhole.brief import brief
from keyhole.contrast.data.resolve import Resolved, Slots, resolve
from keyhole.contrast.data.sites import Contrast
from keyhole.contrast.islands import islands
from keyhole.contrast.onepass.frames import Frame, check_frame
from keyhole.contrast.onepass.reading import Here, Reading
from keyhole.contrast.onepass.samples import LayerSamples, joined
from keyhole.contrast.onepass.sums import Sums, tally
from keyhole.errors import KeyholeError
from keyhole.models.heads import Head
from keyhole.models.numbers.precision import exact_matmul
from keyhole.models.recording.visit import Seen, visit
from keyhole.progress import Progress

if TYPE_CHECKING:
    from keyhole.models.model import Model

_CHUNK_TOKENS = 16_384  # prompts run before their samples are summed up


@dataclass(frozen=True, eq=False)
class Collected:
    """A contrast seen by a model: sums for every head, and (if kept) the samples themselves."""

    __repr__ = brief

    model: "Model" = field(repr=False)
    resolved: Resolved = field(repr=False)
    frame: Frame
    sums: dict[int, Sums] = field(repr=False)  # by layer
    kept: dict[int, LayerSamples] = field(repr=False)  # by layer; empty without `keep`

    @property
    def name(self) -> str:
        """Of the contrast."""
        return self.resolved.contrast.name

    @property
    def slots(self) -> Slots:
        """Which query meets which keys."""
        return self.resolved.slots

    def layer(self, layer: int) -> LayerSamples:
        """The kept samples of a layer."""
        if not self.kept:
            raise KeyholeError("only sums were kept: collect the contrast with keep=True.")
        if layer not in self.kept:
            raise KeyholeError(f"layer {layer} has no attention heads; those that have: {list(self.kept)}.")
        return self.kept[layer]

    def check_head(self, head: Head) -> None:
        """Refuse a head that the model does not have."""
        layer, index = head
        if layer not in self.sums:
            raise KeyholeError(f"there is no head {layer}.{index}: attention layers are {_told(sorted(self.sums))}.")
        n = self.sums[layer].qk.shape[2]
        if not 0 <= index < n:
            raise KeyholeError(f"there is no head {layer}.{index}: layer {layer} has heads 0 to {n - 1}.")


def collect(
    model: "Model",
    contrast: Contrast,
    *,
    frame: Frame = "post_rope",
    keep: bool = True,
    negatives: int | None = None,
    seed: int = 0,
    max_batch_tokens: int = 4096,
    progress: Progress | None = None,
) -> Collected:
    """Run every prompt once and sum up the contrast of every head.

    `seed` splits the halves and samples the `negatives`. Without `keep`, memory does not grow with the samples.
    """
    check_frame(frame)
    resolved = resolve(model, contrast, negatives=negatives, seed=seed)
    lengths = [len(prompt.ids) for prompt in resolved.prompts]
    sums: dict[int, Sums] = {}
    pieces: dict[int, list[LayerSamples]] = {}
    order: list[Tensor] = []
    done = 0
    for prompts, chosen in _chunks(resolved.slots, lengths):
        slots = resolved.slots.of(chosen)
        with exact_matmul():
            found = _run_chunk(model, resolved, prompts, slots, frame=frame, max_batch_tokens=max_batch_tokens)
            for layer, samples in found.items():
                added = tally(samples.queries, samples.keys, slots.sign, slots.weight, slots.half)
                sums[layer] = sums[layer] + added if layer in sums else added
                if keep:
                    pieces.setdefault(layer, []).append(samples)
        order.append(chosen)
        done += len(prompts)
        if progress is not None:
            progress(done, len(lengths))
    back = torch.cat(order).argsort()
    kept = {layer: joined(parts).of(back) for layer, parts in pieces.items()}
    return Collected(model, resolved, frame, sums, kept)


def _chunks(slots: Slots, lengths: Sequence[int]) -> Iterator[tuple[list[int], Tensor]]:
    """(prompts, slots) that can be finished together: prompts joined by a sample are never parted."""
    met = zip(slots.query[:, 0].tolist(), slots.keys[..., 0].tolist(), slots.sign.tolist(), strict=True)
    links = [(q, k) for q, keys, sign in met for k, side in zip(keys, sign, strict=True) if side]
    root = islands(len(lengths), links)
    parts: dict[int, list[int]] = {}
    for prompt in sorted({prompt for link in links for prompt in link}):
        parts.setdefault(root[prompt], []).append(prompt)
    island_of = torch.tensor([root[prompt] for prompt in slots.query[:, 0].tolist()])
    chunk: list[int] = []
    roots: list[int] = []
    for top, prompts in parts.items():
        if chunk and sum(lengths[i] for i in (*chunk, *prompts)) > _CHUNK_TOKENS:
            yield chunk, torch.isin(island_of, torch.tensor(roots)).nonzero()[:, 0]
            chunk, roots = [], []
        chunk, roots = chunk + prompts, [*roots, top]
    yield chunk, torch.isin(island_of, torch.tensor(roots)).nonzero()[:, 0]


def _run_chunk(
    model: "Model", resolved: Resolved, prompts: list[int], slots: Slots, *, frame: Frame, max_batch_tokens: int
) -> dict[int, LayerSamples]:
    """Run a chunk's prompts in batches and read its slots off."""
    found: dict[int, Reading] = {}
    encoded = [resolved.prompts[i] for i in prompts]
    for batch in model.batches([len(e.ids) for e in encoded], max_batch_tokens):
        numbers = [prompts[i] for i in batch]
        here = Here(slots, numbers, longest=max(len(encoded[i].ids) for i in batch), device=model.hf.device)

        def see(layer: int, seen: Seen, here: Here = here) -> None:
            if layer not in found:
                found[layer] = Reading(slots, seen, frame)
            found[layer].read(seen, here)

        visit(model, [encoded[i] for i in batch], see)
    return {layer: reading.samples() for layer, reading in found.items()}


def _told(layers: list[int]) -> str:
    if layers == list(range(layers[0], layers[-1] + 1)):
        return f"{layers[0]} to {layers[-1]}"
    return ", ".join(map(str, layers))
