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
from keyhole.faithfulness.stream import Stream, Writes
from keyhole.faithfulness.token_masks import Mask, as_ground
from keyhole.faithfulness.wiring import Wiring, wiring_of
from keyhole.models.architecture.norms import Norm, read_norm
from keyhole.models.architecture.weights import submodule
from keyhole.models.numbers.precision import exact_matmul, working_dtype
from keyhole.models.numbers.tolerance import require_exact

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.models.run import Run

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
        shape = (*self.wiring.joined.shape, self.words.shape[1])
        masks = [as_ground(mask, shape) for mask in masks]
        size = rows_at_once(self, masks)
        parts = [self._forward(Stream(self, masks[i : i + size])) for i in range(0, len(masks), size)]
        return torch.cat(parts)

    def read(self, masks: Sequence[Mask]) -> tuple[Float[Tensor, "mask vocab"], Stream]:
        """The same for copies at once, with everything that was written and read in them, to take gradients of."""
        stream = Stream(self, masks, keep=True)
        return self._forward(stream), stream

    def _forward(self, stream: Stream) -> Float[Tensor, "row vocab"]:
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
        last = stream.at(range(first, first + 1))[0, :, -1]
        out = self.model.head_out()
        return out.logits(last @ out.W_U / self.final_norm.scale(last)[:, None])

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
