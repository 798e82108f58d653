"""One pass over all prompts gives every head's contrast: sites are read batch by batch, and sequences never kept."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypedDict, Unpack

import torch
from jaxtyping import Bool
from torch import Tensor

from keyhole.brief import Head, brief
from keyhole.errors import KeyholeError
from keyhole.features.contrast.places import Resolved, Slots, islands, resolve
from keyhole.features.contrast.sites import Contrast
from keyhole.features.contrast.sums import (
    Frame,
    LayerSamples,
    Sums,
    Turns,
    by_kv_head,
    check_frame,
    frame_turns,
    joined,
    tally,
    turns_at,
)
from keyhole.models.attention import AttentionRule, visible_mask
from keyhole.models.numbers import exact_matmul, working_dtype
from keyhole.models.stacks import Seen, visit
from keyhole.progress import Progress
from keyhole.settings.fields import chosen as settings_with
from keyhole.settings.fields import option

if TYPE_CHECKING:
    from keyhole.models.model import Model

_BLOCK_BYTES = 256e6  # of keys gathered for rows of attention at once


class Here:
    """Which slots and keys are in the current batch?"""

    def __init__(self, slots: Slots, prompts: list[int], *, longest: int, device: torch.device) -> None:
        row_of = torch.full((max(int(slots.query[:, 0].max()), int(slots.keys[..., 0].max()), *prompts) + 1,), -1)
        row_of[torch.tensor(prompts)] = torch.arange(len(prompts))
        q_row, k_row = row_of[slots.query[:, 0]], row_of[slots.keys[..., 0]]
        self.slot = (q_row >= 0).nonzero()[:, 0]
        self.key = ((k_row >= 0) & (slots.sign != 0)).nonzero(as_tuple=True)
        self.q_row, self.q_at = (x[self.slot].to(device) for x in (q_row, slots.query[:, 1]))
        self.k_row, self.k_at = (x[self.key].to(device) for x in (k_row, slots.keys[..., 1]))
        same_prompt = torch.zeros(
            len(self.slot), longest + 1, dtype=torch.bool
        )  # with one extra column, for keys of other prompts
        at = torch.where(slots.together, slots.keys[..., 1], longest)[self.slot]
        self.own: Bool[Tensor, "here pos"] = same_prompt.scatter_(1, at, True)[:, :longest].to(device)


class Reading:
    """The queries and keys of one layer that were read so far."""

    def __init__(self, slots: Slots, states: Seen, frame: Frame) -> None:
        self.slots, self.frame = slots, frame
        n, m = slots.sign.shape
        heads, kv, d = states.q.shape[1], states.k.shape[1], states.q.shape[-1]
        empty = torch.zeros((), dtype=working_dtype(states.q.dtype), device=states.q.device)
        self.q, self.k = empty.new_zeros(n, heads, d), empty.new_zeros(n, m, kv, d)
        self.rest, self.top = empty.new_zeros(n, heads), empty.new_zeros(n, heads)
        self.first = torch.zeros(n, dtype=torch.long, device=states.q.device)
        self.bias = None if states.rule.key_bias is None else empty.new_zeros(n, m, heads)
        self.rule = AttentionRule(states.rule.scaling, states.rule.softcap)
        self.q_turns = self.k_turns = None
        if states.rotary is not None and frame != "post_rope":
            freq, pairing = states.rotary.cos.shape[-1], states.rotary.pairing
            self.q_turns = Turns(empty.new_zeros(n, freq), empty.new_zeros(n, freq), pairing)
            self.k_turns = Turns(empty.new_zeros(n, m, freq), empty.new_zeros(n, m, freq), pairing)

    def read(self, states: Seen, here: Here) -> None:
        """Read the slots of this batch."""
        self.q[here.slot] = states.q[here.q_row, :, here.q_at].to(self.q.dtype)
        self.k[here.key] = states.k[here.k_row, :, here.k_at].to(self.k.dtype)
        self.first[here.slot] = states.first[here.q_at]
        if self.bias is not None and states.rule.key_bias is not None:
            self.bias[here.key] = states.rule.key_bias[:, here.k_at].T.to(self.bias.dtype)
        rows = max(1, int(_BLOCK_BYTES / (states.k[0].numel() * self.k.element_size())))
        for block in torch.split(torch.arange(len(here.slot)), rows):
            self.rest[here.slot[block]], self.top[here.slot[block]] = _rest_of_rows(states, here, block, self.q.dtype)
        if self.q_turns is not None and self.k_turns is not None and states.rotary is not None:
            for turns, where, at in ((self.q_turns, here.slot, here.q_at), (self.k_turns, here.key, here.k_at)):
                new = turns_at(states.rotary, at)
                turns.cos[where], turns.sin[where] = new.cos.to(turns.cos.dtype), new.sin.to(turns.sin.dtype)

    def samples(self) -> LayerSamples:
        """All samples, once every prompt of the chunk was run."""
        slots, device = self.slots, self.q.device
        visible = slots.together.to(device) & (slots.keys[..., 1].to(device) >= self.first[:, None])
        turns: tuple[Turns | None, Turns | None] = (None, None)
        if self.q_turns is not None and self.k_turns is not None:
            turns = frame_turns(self.frame, self.q_turns, self.k_turns)
        return LayerSamples(self.q, self.k, self.rest, self.top, visible, self.rule, self.bias, *turns)


def _rest_of_rows(states: Seen, here: Here, block: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Take logsumexp and maximum of each row's logits without the slot's own keys; sinks count to the rest."""
    row, at = here.q_row[block], here.q_at[block]
    q = by_kv_head(states.q[row, :, at].to(dtype), states.k.shape[1])
    scores = torch.einsum("nagd,nasd->nags", q, states.k[row].to(dtype)).flatten(1, 2) * states.rule.scaling
    visible = visible_mask(states.first[at], at, scores.shape[-1]) & ~here.own[block]
    logits = states.rule.logits(scores[:, :, None], visible[:, None, None])[:, :, 0]
    return logits.logsumexp(-1), logits[..., : scores.shape[-1]].amax(-1)


# Prompts that share a sample are run in the same chunk, so that a chunk's samples are complete when it has been run.
# They are then added to the accumulators and, unless `keep=False`, kept for nulls and interventions.

_CHUNK_TOKENS = 16_384  # of prompts that are run before their samples are summed up


@dataclass(frozen=True, eq=False)
class Collected:
    """A contrast run through a model: sums for every head and, if kept, the samples themselves."""

    __repr__ = brief

    model: "Model" = field(repr=False)
    resolved: Resolved = field(repr=False)
    frame: Frame
    sums: dict[int, Sums] = field(repr=False)  # by layer
    kept: dict[int, LayerSamples] = field(repr=False)  # by layer; empty without `keep`

    @property
    def name(self) -> str:
        """The name of the contrast."""
        return self.resolved.contrast.name

    @property
    def slots(self) -> Slots:
        """Which query meets which keys."""
        return self.resolved.slots

    def layer(self, layer: int) -> LayerSamples:
        """The kept samples of a layer.

        Args:
            layer: Index of the layer.
        """
        if not self.kept:
            raise KeyholeError("only sums were kept: collect the contrast with keep=True.")
        if layer not in self.kept:
            raise KeyholeError(f"layer {layer} has no attention heads; those that have: {list(self.kept)}.")
        return self.kept[layer]

    def check_head(self, head: Head) -> None:
        """Refuse a head that the model does not have.

        Args:
            head: Layer and head.
        """
        layer, index = head
        if layer not in self.sums:
            raise KeyholeError(f"there is no head {layer}.{index}: attention layers are {_ranges(sorted(self.sums))}.")
        n = self.sums[layer].qk.shape[2]
        if not 0 <= index < n:
            raise KeyholeError(f"there is no head {layer}.{index}: layer {layer} has heads 0 to {n - 1}.")


@dataclass(frozen=True)
class CollectSettings:
    """How a contrast is run through a model."""

    frame: Frame = option("post_rope", "Coordinates in which queries and keys are compared.")
    keep: bool = option(True, "Keep the samples, for nulls and interventions; without, memory does not grow with them.")
    negatives: int | None = option(None, "Negative keys of each sample, drawn at random; default: all.")
    seed: int = option(0, "Seed of the two halves and of the negatives.")
    max_batch_tokens: int = option(4096, "Tokens that are run at once.", least=1)

    def __post_init__(self) -> None:
        check_frame(self.frame)


class CollectOptions(TypedDict, total=False):
    """The fields of `CollectSettings`, as keywords."""

    frame: Frame
    keep: bool
    negatives: int | None
    seed: int
    max_batch_tokens: int


def collect(
    model: "Model",
    contrast: Contrast,
    *,
    settings: CollectSettings | None = None,
    progress: Progress | None = None,
    **options: Unpack[CollectOptions],
) -> Collected:
    """Run every prompt of a contrast once and sum up the contrast of every head.

    Args:
        model: The model that is run.
        contrast: Prompts, and in each the query and its keys.
        settings: How samples are taken. Default: those of `CollectSettings`.
        progress: Called with how many prompts are done, and of how many.
        **options: Fields of `CollectSettings`: `frame`, `keep`, `negatives`, `seed`, `max_batch_tokens`.

    >>> import keyhole
    >>> from keyhole.features.contrast import find
    >>> texts = [f"Mary brought {word} to John" for word in ("a drink", "the book")]
    >>> contrast = Contrast.from_texts("giver", texts, positive=find("Mary"), negative=find("brought"))
    >>> collect(keyhole.load(), contrast, keep=False).name
    'giver'
    """
    how = settings_with(settings, CollectSettings, options)
    resolved = resolve(model, contrast, negatives=how.negatives, seed=how.seed)
    lengths = [len(prompt.ids) for prompt in resolved.prompts]
    sums: dict[int, Sums] = {}
    pieces: dict[int, list[LayerSamples]] = {}
    order: list[Tensor] = []
    done = 0
    for prompts, chosen in _chunks(resolved.slots, lengths):
        slots = resolved.slots.of(chosen)
        with exact_matmul():
            by_layer = _run_chunk(model, resolved, prompts, slots, how)
            for layer, samples in by_layer.items():
                added = tally(samples.queries, samples.keys, slots.sign, slots.weight, slots.half)
                sums[layer] = sums[layer] + added if layer in sums else added
                if how.keep:
                    pieces.setdefault(layer, []).append(samples)
        order.append(chosen)
        done += len(prompts)
        if progress is not None:
            progress(done, len(lengths))
    back = torch.cat(order).argsort()
    kept = {layer: joined(parts).of(back) for layer, parts in pieces.items()}
    return Collected(model, resolved, how.frame, sums, kept)


def _chunks(slots: Slots, lengths: Sequence[int]) -> Iterator[tuple[list[int], Tensor]]:
    """(prompts, slots) that are complete together: prompts joined by a sample are in one chunk."""
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
    model: "Model", resolved: Resolved, prompts: list[int], slots: Slots, how: CollectSettings
) -> dict[int, LayerSamples]:
    """Run a chunk's prompts in batches and read its slots."""
    readings: dict[int, Reading] = {}
    encoded = [resolved.prompts[i] for i in prompts]
    for batch in model._batches([len(e.ids) for e in encoded], how.max_batch_tokens):
        numbers = [prompts[i] for i in batch]
        here = Here(slots, numbers, longest=max(len(encoded[i].ids) for i in batch), device=model.device)

        def see(layer: int, states: Seen, here: Here = here) -> None:
            if layer not in readings:
                readings[layer] = Reading(slots, states, how.frame)
            readings[layer].read(states, here)

        visit(model, [encoded[i] for i in batch], see)
    return {layer: reading.samples() for layer, reading in readings.items()}


def _ranges(layers: list[int]) -> str:
    """Numbers of layers in words: 0 to 3, or 1, 5, 9."""
    if layers == list(range(layers[0], layers[-1] + 1)):
        return f"{layers[0]} to {layers[-1]}"
    return ", ".join(map(str, layers))
