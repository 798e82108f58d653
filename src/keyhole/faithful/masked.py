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
from keyhole.faithful.blocks import Block, blocks_of, mlps_of
from keyhole.faithful.wiring import Wiring, wiring_of
from keyhole.models.architecture.norms import Norm, read_norm
from keyhole.models.architecture.weights import submodule
from keyhole.models.numbers.precision import exact_matmul, working_dtype
from keyhole.models.numbers.tolerance import require_exact

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.models.run import Run

Writes = Float[Tensor, "writer prompt pos d_model"]


@dataclass(frozen=True, eq=False)
class Masked:
    """Prompts of equal length through a model whose edges can be cut."""

    model: "Model"
    wiring: Wiring
    words: Float[Tensor, "prompt pos d_model"]  # what the embedding writes
    blocks: tuple[Block, ...]
    final_norm: Norm
    baseline: Float[Tensor, "writer pos d_model"] | None = None  # None: nothing
    error: float = 0.0  # of the logits with all edges kept, relative to the largest

    def logits(self, mask: Float[Tensor, "writer reader"]) -> Float[Tensor, "prompt vocab"]:
        """The logits at the last token with this mask on all edges; those that do not exist are not looked at."""
        return self._forward(mask)[0]

    def written(self) -> Writes:
        """What every component writes in the model itself."""
        return self._forward(torch.ones(self.wiring.joined.shape))[1].written

    def _forward(self, mask: Float[Tensor, "writer reader"]) -> tuple[Float[Tensor, "prompt vocab"], "_Stream"]:
        mask = mask.to(self.words)
        read = _Stream(self, mask)
        read.write(self.words[None])
        heads = self.model.dims.heads
        first = 0  # reader of the layer
        for block in self.blocks:
            q, k, v = (read.at(range(first + i * heads, first + (i + 1) * heads)) for i in range(3))
            (x,) = read.at([first + 3 * heads]) if block.mlp.parallel else (None,)
            moved, constant = block.attend(q, k, v)
            read.write(moved)
            read.constant = read.constant + constant
            if x is None:
                (x,) = read.at([first + 3 * heads])
            read.write(block.feed(x)[None])
            first += 3 * heads + 1
        (x,) = read.at([first])
        out, last = self.model.head_out(), x[:, -1]
        return out.logits(last @ out.W_U / self.final_norm.scale(last)[:, None]), read

    def kept(self, edges: np.ndarray) -> Float[Tensor, "writer reader"]:
        """A mask that keeps these edges (their numbers in `wiring.edges`) and no other."""
        mask = torch.zeros(self.wiring.joined.shape, dtype=self.words.dtype, device=self.words.device)
        mask[tuple(torch.from_numpy(self.wiring.edges[edges].T))] = 1.0
        return mask


class _Stream:
    """What was written so far, for readers to read of; the one thing here that changes."""

    def __init__(self, masked: Masked, mask: Float[Tensor, "writer reader"]) -> None:
        self.masked, self.mask = masked, mask
        self.constant = torch.zeros_like(masked.words)  # what every reader reads, whatever the mask
        self._changes = masked.words.new_zeros(0, *masked.words.shape)  # writes less baselines
        # Without gradients there is room made once: putting tensors together anew for each layer copies all below.
        size = 0 if torch.is_grad_enabled() else len(masked.wiring.writers)
        self._room = masked.words.new_empty(size, *masked.words.shape)

    def write(self, what: Float[Tensor, "some prompt pos d_model"]) -> None:
        """Some writers more, in their order."""
        start, baseline = len(self._changes), self.masked.baseline
        stop = start + len(what)
        if baseline is not None:
            instead = baseline[start:stop, None]
            self.constant, what = self.constant + instead.sum(0), what - instead
        if len(self._room):
            self._room[start:stop] = what
            self._changes = self._room[:stop]
        else:
            self._changes = torch.cat([self._changes, what])

    def at(self, readers: Sequence[int]) -> Float[Tensor, "reader prompt pos d_model"]:
        """What some readers read now."""
        mask = self.mask[: len(self._changes), list(readers)]
        read = mask.T @ self._changes.flatten(1)
        return read.view(-1, *self.constant.shape) + self.constant

    @property
    def written(self) -> Writes:
        """What all have written."""
        baseline = self.masked.baseline
        return self._changes if baseline is None else self._changes + baseline[:, None]


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
