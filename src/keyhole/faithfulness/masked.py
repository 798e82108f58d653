"""What is the answer when edges are masked, and what has been written so far in such a pass?

What was written so far, and what does each reader read of it? The state of one pass with masks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.errors import KeyholeError
from keyhole.faithfulness.blocks import Block, blocks_of, mlps_of
from keyhole.faithfulness.token_masks import Mask, Rows, as_ground
from keyhole.faithfulness.wiring import Wiring, wiring_of
from keyhole.models.facts import Norm, read_norm
from keyhole.models.numbers import exact_matmul, require_exact, working_dtype
from keyhole.models.weights import submodule
from keyhole.models.widened import widened_run

if TYPE_CHECKING:
    from keyhole.faithfulness.blocks import Side
    from keyhole.models.model import Model
    from keyhole.models.run import Run

Writes = Float[Tensor, "writer prompt pos d_model"]


class Stream:
    """The one thing here that changes: writers write into it in their order, and readers read when it is their turn."""

    def __init__(
        self, masked: "Masked", mask: Float[Tensor, "writer reader"] | Sequence[Mask], *, keep: bool = False
    ) -> None:
        words, baseline = masked.words, masked.baseline
        self._heads = list(range(masked.model.dims.heads))
        self._mask: Tensor | None = None
        self._rows: Rows | None = None
        if isinstance(mask, Tensor):
            self._mask = mask.to(words)
        else:
            self._rows = Rows(mask, words, len(self._heads), [block.separable for block in masked.blocks])
            words = words[self._rows.prompt]
            if baseline is not None and baseline.ndim == words.ndim + 1:
                baseline = baseline[:, self._rows.prompt]
        if baseline is not None and baseline.ndim == words.ndim:
            baseline = baseline[:, None]
        self.words, self._baseline = words, baseline
        self.constant = torch.zeros_like(words)  # what every reader reads, whatever the mask
        self._total = torch.zeros_like(words)  # of all changes, for copies with a ground
        self.reads: list[tuple[list[int], Tensor]] | None = [] if keep else None  # which readers read what, if kept
        # Writes less baselines, of all who wrote; lists hand them on as they are written, and need them no more.
        needed = self._rows is None or bool(self._rows.dense) or keep
        self._next = 0
        self._room = words.new_empty(len(masked.wiring.writers) if needed else 0, *words.shape)
        # A gradient by the mask itself goes through all that was written: then they are put together anew each time.
        self._joined = words.new_empty(0, *words.shape) if self._rows is None and torch.is_grad_enabled() else None

    def heads(self, layer: int) -> list[int]:
        """Heads of a layer that anybody reads; all, where they cannot be taken apart."""
        return self._heads if self._rows is None else self._rows.heads[layer]

    def write(self, writes: Float[Tensor, "some row pos d_model"] | None, n: int, some: Sequence[int] = (0,)) -> None:
        """The next n writers, of which some write this; the others, which nobody reads, write their baseline."""
        start, self._next = self._next, self._next + n
        if self._baseline is not None:
            instead = self._baseline[start : self._next]
            self.constant = self.constant + instead.sum(0)
            if writes is not None:
                writes = writes - (instead if len(writes) == n else instead[list(some)])
        if writes is None:
            return
        if self._rows is not None:
            if self._rows.ground is not None:
                self._total = self._total + writes.sum(0)
            self._rows.hand_on(start, writes)
        if self._joined is not None:
            self._joined = torch.cat([self._joined, writes])
        elif len(self._room):
            place = slice(start, self._next) if len(writes) == n else [start + row for row in some]
            self._room[place] = writes.detach()

    def at_mlp(self, reader: int, layer: int) -> Float[Tensor, "group place d_model"] | None:
        """What an MLP reads, wherever anybody reads what it writes; None: nowhere."""
        places = None if self._rows is None else self._rows.fed[layer]
        if places is None:
            return self.at(range(reader, reader + 1))[0]
        return self.at(range(reader, reader + 1))[0][places][None] if len(places[0]) else None

    def write_mlp(self, writes: Float[Tensor, "group place d_model"] | None, layer: int) -> None:
        """What it makes of that."""
        places = None if self._rows is None else self._rows.fed[layer]
        if writes is None or places is None:
            self.write(None if writes is None else writes[None], 1)
            return
        assert self._rows is not None
        start = self._next
        self.write(None, 1)
        if self._baseline is not None:
            writes = writes - self._baseline[start].expand_as(self.words)[places]
        self._rows.hand_on(start, writes)
        if len(self._room):
            self._room[start][places] = writes[0].detach()

    def at(self, readers: range, heads: Sequence[int] | None = None) -> Float[Tensor, "reader row pos d_model"]:
        """What some readers read now; `heads` picks some of a layer's."""
        numbers = list(readers) if heads is None else [readers[head] for head in heads]
        if self._rows is None:
            assert self._mask is not None
            mask = self._mask[: self._next, readers.start : readers.stop]
            read = (mask.T @ self.changes.flatten(1)).view(-1, *self.constant.shape) + self.constant
        else:
            base = self.constant
            if self._rows.ground is not None:
                base = base + self._rows.ground[:, None, None] * self._total
            read = self._rows.received(readers.start, len(numbers), base)
            if self._rows.dense:
                read = read.clone()
                read[:, self._rows.dense] += self._rows.scattered(self.changes, readers)
        if self.reads is not None:
            self.reads.append((numbers, read if read.requires_grad else read.requires_grad_()))
        return read

    def lost(self, first: int, side: "Side", heads: Sequence[int]) -> Float[Tensor, "head row pos d_head"] | None:
        """What the queries or keys of a layer go without: `first` is the first of these readers."""
        return None if self._rows is None or not heads else self._rows.lost(first, side.W, heads)

    @property
    def changes(self) -> Writes:
        """What all have written so far, less their baselines; where only some are read, of these."""
        return self._room[: self._next] if self._joined is None else self._joined

    @property
    def written(self) -> Writes:
        """What all have written."""
        return self.changes if self._baseline is None else self.changes + self._baseline


# What is the answer when only some edges between components are kept? A forward pass with a mask on every edge.
#
#     reader r reads  sum_u M_ur write_u + (1 - M_ur) baseline_u + constants,      M in [0, 1]
#
# with baseline_u nothing, or what u writes on average. Every norm is taken of what its reader reads, attention
# follows the model's own rule, and a component writes what it makes of what it reads here. Attention biases always
# stay. With all masks 1 this is the model itself, and that is checked before anything is told. The pass can be gone
# back through: the slope by M_ur is attribution to the edge, (write_u - baseline_u) . gradient at r.

FLOATS = 1 << 25  # of what all components write, held at once


@dataclass(frozen=True, eq=False)
class Masked:
    """Prompts of equal length through a model whose edges can be cut."""

    model: "Model"
    wiring: Wiring
    words: Float[Tensor, "prompt pos d_model"]  # what the embedding writes
    blocks: tuple[Block, ...]
    final_norm: Norm
    baseline: Float[Tensor, "writer *prompt pos d_model"] | None = None  # for all prompts, or of each; None: nothing
    error: float = 0.0  # of the logits with all edges kept, relative to the largest
    answers: int | Sequence[int] = -1  # the token that predicts the answer; of a continuation, those that predict its

    def logits(self, mask: Float[Tensor, "writer reader"]) -> Float[Tensor, "prompt *answer vocab"]:
        """The logits at the answer with this mask on all edges; those that do not exist are not looked at."""
        return self._forward(Stream(self, mask))

    def written(self) -> Writes:
        """What every component writes in the model itself."""
        stream = Stream(self, torch.ones(self.wiring.joined.shape))
        self._forward(stream)
        return stream.written

    def masked_logits(self, masks: Sequence[Mask]) -> Float[Tensor, "mask *answer vocab"]:
        """The logits at the answer in copies with these masks, token by token; as many at a time as fit."""
        shape = (*self.wiring.joined.shape, self.words.shape[1])
        masks = [as_ground(mask, shape) for mask in masks]
        size = rows_at_once(self, masks)
        parts = [self._forward(Stream(self, masks[i : i + size])) for i in range(0, len(masks), size)]
        return torch.cat(parts)

    def read(self, masks: Sequence[Mask]) -> tuple[Float[Tensor, "mask *answer vocab"], Stream]:
        """The same for copies at once, with everything that was written and read in them, to take gradients of."""
        stream = Stream(self, masks, keep=True)
        return self._forward(stream), stream

    def _forward(self, stream: Stream) -> Float[Tensor, "row *answer vocab"]:
        stream.write(stream.words[None], 1)
        n = self.model.dims.heads
        first = 0  # reader of the layer
        for layer, block in enumerate(self.blocks):
            heads, mlp = stream.heads(layer), first + 3 * n
            sides = [range(first + side * n, first + (side + 1) * n) for side in range(3)]
            q, k, v = (stream.at(readers, heads) if heads else None for readers in sides)
            x = stream.at_mlp(mlp, layer) if block.mlp.parallel else None
            if q is None or k is None or v is None:
                moved, constant = None, block.constant.expand_as(stream.words)
            else:
                lost = stream.lost(first, block.query, heads), stream.lost(first + n, block.key, heads)
                moved, constant = block.attend(q, k, v, heads, lost)
            stream.write(moved, n, heads)
            stream.constant = stream.constant + constant
            if not block.mlp.parallel:
                x = stream.at_mlp(mlp, layer)
            stream.write_mlp(None if x is None else block.feed(x), layer)
            first = mlp + 1
        last = stream.at(range(first, first + 1))[0, :, self.answers]
        out = self.model.head_out()
        return out.logits(last @ out.W_U / self.final_norm.scale(last)[..., None])

    def kept(self, edges: np.ndarray) -> Float[Tensor, "writer reader"]:
        """A mask that keeps these edges (their numbers in `wiring.edges`) and no other."""
        mask = torch.zeros(self.wiring.joined.shape, dtype=self.words.dtype, device=self.words.device)
        mask[tuple(torch.from_numpy(self.wiring.edges[edges].T))] = 1.0
        return mask


def rows_at_once(masked: Masked, masks: Sequence[Mask] | None = None) -> int:
    """How many copies of a prompt go through side by side: as many as there is room for what is held of each.

    That is what all components write; or, of copies whose masks are lists, what the heads of a layer read.
    """
    held = len(masked.wiring.writers)
    if masks is not None and not any(isinstance(mask.ground, np.ndarray) for mask in masks):
        held = min(held, 6 * masked.model.dims.heads)
    return max(1, FLOATS // (held * masked.words[0].numel()))


def masked(runs: Sequence["Run"], *, check: bool = True) -> Masked:
    """Runs of one model that have as many tokens, with all edges there; what is cut is replaced by nothing."""
    if not runs or len({len(run) for run in runs}) > 1 or any(run.model is not runs[0].model for run in runs):
        raise KeyholeError("give at least one run, all of one model and of as many tokens.")
    model = runs[0].model
    for run in runs:
        run._require_fresh()
    # Edge by edge it is computed in float32, which a pass in half precision would differ from by all that it rounds.
    runs = [widened_run(model, run) if run.is_rounded else run for run in runs]
    with exact_matmul(), model._steady():
        mlps = mlps_of(model)
        words = torch.stack([run.layers[0].resid for run in runs])
        result = Masked(
            model=model,
            wiring=wiring_of(model, parallel=[mlp.parallel for mlp in mlps]),
            words=words.to(working_dtype(words.dtype)),
            blocks=blocks_of(runs[0], mlps),
            final_norm=read_norm(
                submodule(model.hf, model.family.final_norm), model.family.norm, model.family.norm_adds_one
            ),
        )
        return replace(result, error=_error(result, runs)) if check else result


def _error(result: Masked, runs: Sequence["Run"]) -> float:
    """How far the pass with all edges is from the model's own logits; refused where rounding does not explain it."""
    logits = torch.stack([run.logits[-1] for run in runs])
    ours = result.logits(torch.ones(result.wiring.joined.shape))
    error = float(((ours - logits.to(ours)).abs().amax(1) / logits.to(ours).abs().amax(1)).max())
    require_exact(error, logits.dtype, "the logits of a pass edge by edge")
    return error
