"""What is the answer when only some edges between components are kept? A forward pass with a mask on every edge.

    reader r reads  sum_u M_ur write_u + (1 - M_ur) baseline_u + constants,      M in [0, 1]

with baseline_u nothing, or what u writes on average. Every norm is taken of what its reader reads, attention follows
the model's own rule, and a component writes what it makes of what it reads here. Attention biases always stay. With all
masks 1 this is the model itself, and that is checked before anything is told. The pass can be gone back through: the
slope by M_ur is attribution to the edge, (write_u - baseline_u) . gradient at r.
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
from keyhole.faithfulness.token_masks import Mask, Rows
from keyhole.faithfulness.wiring import Wiring, wiring_of
from keyhole.models.architecture.norms import Norm, read_norm
from keyhole.models.architecture.weights import submodule
from keyhole.models.numbers.precision import exact_matmul, working_dtype
from keyhole.models.numbers.tolerance import require_exact

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.models.run import Run

Writes = Float[Tensor, "writer prompt pos d_model"]
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

    def logits(self, mask: Float[Tensor, "writer reader"]) -> Float[Tensor, "prompt vocab"]:
        """The logits at the last token with this mask on all edges; those that do not exist are not looked at."""
        return self._forward(Stream(self, mask))

    def written(self) -> Writes:
        """What every component writes in the model itself."""
        stream = Stream(self, torch.ones(self.wiring.joined.shape))
        self._forward(stream)
        return stream.written

    def masked_logits(self, masks: Sequence[Mask]) -> Float[Tensor, "mask vocab"]:
        """The logits at the last token of copies with these masks, token by token; as many at a time as fit."""
        size = rows_at_once(self)
        parts = [self._forward(Stream(self, masks[i : i + size])) for i in range(0, len(masks), size)]
        return torch.cat(parts)

    def read(self, masks: Sequence[Mask]) -> tuple[Float[Tensor, "mask vocab"], "Stream"]:
        """The same for copies at once, with everything that was written and read in them, to take gradients of."""
        stream = Stream(self, masks, keep=True)
        return self._forward(stream), stream

    def _forward(self, stream: "Stream") -> Float[Tensor, "row vocab"]:
        stream.write(stream.words[None])
        n = self.model.dims.heads
        first = 0  # reader of the layer
        for layer, block in enumerate(self.blocks):
            mlp = range(first + 3 * n, first + 3 * n + 1)
            heads = stream.needed_heads(layer, block)
            sides = [range(first + side * n, first + (side + 1) * n) for side in range(3)]
            q, k, v = (stream.at(readers, heads) for readers in sides) if heads else (None, None, None)
            feeds = stream.needs_mlp(layer)
            x = stream.at(mlp)[0] if feeds and block.mlp.parallel else None
            if q is None or k is None or v is None:
                moved, constant = None, block.constant().expand_as(stream.words)
            else:
                moved, constant = block.attend(q, k, v, heads)
            stream.write_heads(moved, heads)
            stream.constant = stream.constant + constant
            if feeds and x is None:
                x = stream.at(mlp)[0]
            stream.write(stream.rest() if x is None else block.feed(x)[None])
            first += 3 * n + 1
        last = stream.at(range(first, first + 1))[0, :, -1]
        out = self.model.head_out()
        return out.logits(last @ out.W_U / self.final_norm.scale(last)[:, None])

    def kept(self, edges: np.ndarray) -> Float[Tensor, "writer reader"]:
        """A mask that keeps these edges (their numbers in `wiring.edges`) and no other."""
        mask = torch.zeros(self.wiring.joined.shape, dtype=self.words.dtype, device=self.words.device)
        mask[tuple(torch.from_numpy(self.wiring.edges[edges].T))] = 1.0
        return mask


def rows_at_once(masked: Masked) -> int:
    """How many copies of a prompt go through side by side: as many as there is room for what all components write."""
    return max(1, FLOATS // (len(masked.wiring.writers) * masked.words[0].numel()))


class Stream:
    """What was written so far, for readers to read of; the one thing here that changes."""

    def __init__(
        self, masked: Masked, mask: Float[Tensor, "writer reader"] | Sequence[Mask], *, keep: bool = False
    ) -> None:
        words, baseline = masked.words, masked.baseline
        self._mask = mask.to(words) if isinstance(mask, Tensor) else Rows(mask, words)
        if isinstance(self._mask, Rows):
            words = words[self._mask.prompt]
            if baseline is not None and baseline.ndim == words.ndim + 1:
                baseline = baseline[:, self._mask.prompt]
        if baseline is not None and baseline.ndim == words.ndim:
            baseline = baseline[:, None]
        self.words, self._baseline = words, baseline
        self._heads = masked.model.dims.heads
        self.constant = torch.zeros_like(words)  # what every reader reads, whatever the mask
        self._total = torch.zeros_like(words)
        self.changes = words.new_zeros(0, *words.shape)  # writes less baselines
        self.reads: list[tuple[list[int], Tensor]] | None = [] if keep else None  # which readers read what, if kept
        # Without gradients there is room made once: putting tensors together anew for each layer copies all below.
        size = 0 if torch.is_grad_enabled() else len(masked.wiring.writers)
        self._room = words.new_empty(size, *words.shape)

    def needed_heads(self, layer: int, block: Block) -> list[int]:
        """Heads of a layer that anybody reads; all, where they cannot be taken apart."""
        if not isinstance(self._mask, Rows) or self._mask.writers is None or not block.separable:
            return list(range(self._heads))
        start = 1 + layer * (self._heads + 1)
        return [head for head in range(self._heads) if start + head in self._mask.writers]

    def needs_mlp(self, layer: int) -> bool:
        """Does anybody read what this layer's MLP writes?"""
        if not isinstance(self._mask, Rows) or self._mask.writers is None:
            return True
        return (layer + 1) * (self._heads + 1) in self._mask.writers

    def write_heads(self, moved: Float[Tensor, "some row pos d_model"] | None, heads: Sequence[int]) -> None:
        """What some heads of a layer write; the others, which nobody reads, write their baseline."""
        if moved is not None and len(heads) == self._heads:
            self.write(moved)
            return
        whole = self.rest(self._heads)
        self.write(whole if moved is None else whole.index_copy(0, torch.tensor(heads, device=whole.device), moved))

    def rest(self, n: int = 1) -> Float[Tensor, "some row pos d_model"]:
        """The baseline of the next writers."""
        start = len(self.changes)
        if self._baseline is None:
            return self.words.new_zeros(n, *self.words.shape)
        return self._baseline[start : start + n].expand(n, *self.words.shape)

    def write(self, what: Float[Tensor, "some row pos d_model"]) -> None:
        """Some writers more, in their order."""
        start = len(self.changes)
        stop = start + len(what)
        if self._baseline is not None:
            instead = self._baseline[start:stop]
            self.constant, what = self.constant + instead.sum(0), what - instead
        if isinstance(self._mask, Rows) and self._mask.ground is not None:
            self._total = self._total + what.sum(0)
        if len(self._room):
            self._room[start:stop] = what
            self.changes = self._room[:stop]
        else:
            self.changes = torch.cat([self.changes, what])

    def at(self, readers: range, heads: Sequence[int] | None = None) -> Float[Tensor, "reader row pos d_model"]:
        """What some readers read now; `heads` picks some of a layer's."""
        read, numbers = self._masked(readers) + self.constant, list(readers)
        if heads is not None and len(heads) < len(readers):
            read, numbers = read[list(heads)], [numbers[head] for head in heads]
        if self.reads is not None:
            self.reads.append((numbers, read if read.requires_grad else read.requires_grad_()))
        return read

    def _masked(self, readers: range) -> Float[Tensor, "reader row pos d_model"]:
        if isinstance(self._mask, Tensor):
            mask = self._mask[: len(self.changes), readers.start : readers.stop]
            return (mask.T @ self.changes.flatten(1)).view(-1, *self.constant.shape)
        read = self._mask.listed(self.changes, readers)
        if self._mask.ground is not None:
            read = read + self._mask.ground[:, None, None] * self._total
        if self._mask.dense:
            read[:, self._mask.dense] += self._mask.scattered(self.changes, readers)
        return read

    @property
    def written(self) -> Writes:
        """What all have written."""
        return self.changes if self._baseline is None else self.changes + self._baseline


def masked(runs: Sequence["Run"], *, check: bool = True) -> Masked:
    """Runs of one model that have as many tokens, with all edges there; what is cut is replaced by nothing."""
    if not runs or len({len(run) for run in runs}) > 1 or any(run.model is not runs[0].model for run in runs):
        raise KeyholeError("give at least one run, all of one model and of as many tokens.")
    model = runs[0].model
    for run in runs:
        run.require_fresh()
    with exact_matmul(), model.steady():
        mlps = mlps_of(model)
        words = torch.stack([run.layers[0].resid for run in runs])
        made = Masked(
            model=model,
            wiring=wiring_of(model, parallel=[mlp.parallel for mlp in mlps]),
            words=words.to(working_dtype(words.dtype)),
            blocks=blocks_of(runs[0], mlps),
            final_norm=read_norm(
                submodule(model.hf, model.family.final_norm), model.family.norm, model.family.norm_adds_one
            ),
        )
        return replace(made, error=_error(made, runs)) if check else made


def _error(made: Masked, runs: Sequence["Run"]) -> float:
    """How far the pass with all edges is from the model's own logits; refused where rounding does not explain it."""
    own = torch.stack([run.logits[-1] for run in runs])
    ours = made.logits(torch.ones(made.wiring.joined.shape))
    error = float(((ours - own.to(ours)).abs().amax(1) / own.to(ours).abs().amax(1)).max())
    require_exact(error, own.dtype, "the logits of a pass edge by edge")
    return error
