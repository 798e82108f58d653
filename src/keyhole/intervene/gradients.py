"""What would the answer lose without each writer, to first order? All writers at once, from one pass back.

    loss of w = g . (o_w - o'_w),   g = d metric / d (what is written at that place)

with o'_w nothing ("gradient times write"), or what the same writer wrote in another run ("attribution patching"). It is
exact for a change that is small; taking all of a write away is not.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.brief import brief
from keyhole.circuits.writer import Kind, Writer
from keyhole.errors import KeyholeError
from keyhole.intervene.remove import Metric
from keyhole.intervene.rerun import Edits, WriterEdit, rerun
from keyhole.models.numbers.precision import exact_matmul
from keyhole.tracing.writes.upstream import Writes

if TYPE_CHECKING:
    from keyhole.models.run import Run

Gradients = dict[tuple[str, int], Float[Tensor, "pos d_model"]]  # by block (as in WriterEdit) and layer


@dataclass(frozen=True)
class Estimates:
    """Every writer's loss, to first order: heads by layer (of those with attention), head, dest and src."""

    __repr__ = brief

    attention_layers: tuple[int, ...]
    slots: tuple[tuple[Kind, int], ...]  # (kind, layer) of the writers with one write per token
    heads: Float[Tensor, "layers heads dest src"]
    local: Float[Tensor, "slot pos"]

    def of(self, writer: Writer) -> float:
        """One writer's loss."""
        if writer.kind == "head":
            index = self.attention_layers.index(writer.layer)
            return float(self.heads[index, writer.head, writer.dest, writer.src])
        if (writer.kind, writer.layer) not in self.slots:
            raise KeyholeError(f"there is no {writer.kind} in layer {writer.layer} that writes.")
        return float(self.local[self.slots.index((writer.kind, writer.layer)), writer.dest])


def estimate(run: "Run", metric: Metric, other: "Run | None" = None) -> Estimates:
    """What the answer would lose if each writer wrote nothing, or what it wrote in the run `other`, to first order."""
    if not metric.targets:
        raise KeyholeError("without targets there is no answer that could lose anything: name some.")
    if other is not None and len(other) != len(run):
        raise KeyholeError(
            f"the runs have {len(run)} and {len(other)} tokens: their writers are matched token by token, so that both "
            "must be as long."
        )
    own, gradients = Writes([run]), _gradients(run, metric)
    with exact_matmul():
        heads, local = _along(own, gradients)
        if other is not None:
            other.require_fresh()
            heads_there, local_there = _along(Writes([other]), gradients)
            heads, local = heads - heads_there, local - local_there
    return Estimates(tuple(own.attention_layers), tuple(own.local_slots), heads, local)


def _gradients(run: "Run", metric: Metric) -> Gradients:
    """The metric's gradient by what each block writes at each token: a pass with nothing added, and one back."""
    run.require_fresh()
    blocks = [("embedding", 0)]
    for layer, record in enumerate(run.layers):
        blocks += [("attention", layer)] if record.attention is not None else []
        blocks += [("mixer", layer)] if record.mixer is not None else []
        blocks += [("mlp", layer)]
    with torch.inference_mode(False), torch.enable_grad():
        nothing = [torch.zeros_like(run.layers[0].resid, dtype=run.final_scale.dtype) for _ in blocks]
        edits = [WriterEdit(*block, zero.requires_grad_()) for block, zero in zip(blocks, nothing, strict=True)]
        result = rerun(run, [Edits(writers=tuple(edits))], gradients=True)
        found = torch.autograd.grad(metric.value(result.captured.logits[0, metric.end]), nothing)
    return dict(zip(blocks, found, strict=True))


def _along(writes: Writes, gradients: Gradients) -> tuple[Tensor, Tensor]:
    """Every writer of a run read along the gradient at its place, g . o_w: heads, and others."""
    block = {"bias": "attention"}
    local = [
        (vectors * gradients[block.get(kind, kind), layer]).sum(-1)
        for (kind, layer), vectors in zip(writes.local_slots, writes.local[0], strict=True)
    ]
    run = writes.runs[0]
    heads = []
    for index, layer in enumerate(writes.attention_layers):
        record, g = run.layer(layer), gradients["attention", layer]
        read = torch.einsum("hrd,td->htr", writes.weights(layer).W_O, g) @ writes.values[0, index].mT
        heads.append(record.weights(record.heads, range(len(run))) * read / record.out_scale[:, None])
    return torch.stack(heads).double(), torch.stack(local).double()
