"""How is a writer silenced? What it writes in the edited pass is removed, whatever it reads there.

To subtract what a writer wrote in the clean pass is not enough once a writer below is changed too: the writer then
reads, and writes, something else. Here its write in the edited pass itself is subtracted.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jaxtyping import Bool, Float
from torch import Tensor, nn

from keyhole.circuits.records import Kind
from keyhole.models.capture import Notes, attention_batch
from keyhole.models.run import AttentionRun
from keyhole.models.stacks import cut_attention
from keyhole.models.weights import LayerWeights, optional
from keyhole.tracing.writers import biases_of, values_of

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.models.run import Run

Change = Callable[[Tensor, float], Tensor]  # (output of a block, factor before it joins the residual stream) -> output


@dataclass(frozen=True)
class Silence:
    """Writers of one kind and layer that are silent in one copy of the prompt, and what is written instead."""

    kind: Kind
    layer: int
    off: Bool[Tensor, "heads dest src"] | Bool[Tensor, "pos"]  # the former of heads
    instead: Float[Tensor, "pos d_model"] | None = None  # of all of them together


def silence_layer(stack: ExitStack, run: "Run", notes: Notes, silent: list[tuple[int, Silence]]) -> None:
    """Silence writers of one kind and layer in several copies."""
    kind, layer = silent[0][1].kind, silent[0][1].layer
    shape = (-1, len(run), run.model.dims.d_model)
    attn = notes.attn if kind in ("head", "bias") else None

    def changed(x: Tensor, by: float) -> Tensor:
        x = x.clone()
        batch = None if attn is None else attention_batch(notes, attn, run.model.family, run.model.dims)
        for copy, silence in silent:
            write = x.view(shape)[copy]
            if batch is None:
                lost = by * write * silence.off[:, None]
            else:
                lost = _lost(cut_attention(batch, copy, len(run)), run.model.folded(layer), silence)
            change = -lost if silence.instead is None else silence.instead.to(lost.device) - lost
            write += (change / by).to(x.dtype)
        return x

    on_write(stack, run.model, notes, kind if attn is None else "attention", changed)


def _lost(record: AttentionRun, w: LayerWeights, silence: Silence) -> Float[Tensor, "pos d_model"]:
    """What silent heads, or a silent bias, would have written in this pass."""
    every = list(range(len(record.first)))
    if silence.kind == "bias":
        return biases_of(record, w, every) * silence.off[:, None]
    heads = [head for head in record.heads if bool(silence.off[head].any())]
    A = record.weights(heads, every) * silence.off[heads].to(record.out_scale)
    return (A @ values_of(record, w)[heads] @ w.W_O[heads]).sum(0) / record.out_scale[:, None]


def on_write(stack: ExitStack, model: "Model", notes: Notes, kind: str, change: Change) -> None:
    """Let `change` replace what a block of a layer adds to the residual stream, for a whole batch."""
    family = model.family
    factor = getattr(model.hf.config, family.residual_multiplier) if family.residual_multiplier else 1.0
    if kind == "embedding":

        def before(module: nn.Module, args: Any, kwargs: Any) -> Any:
            if args:
                return (change(args[0], 1.0), *args[1:]), kwargs
            return args, {**kwargs, "hidden_states": change(kwargs["hidden_states"], 1.0)}

        hook = notes.block.register_forward_pre_hook(before, with_kwargs=True)
    else:
        paths = {"mlp": family.mlp, "mixer": family.mixer, "attention": family.post_attn_norm or family.attn}
        module = optional(notes.block, paths[kind])
        assert module is not None

        def after(_: nn.Module, args: Any, out: Any) -> Any:
            return (change(out[0], factor), *out[1:]) if isinstance(out, tuple) else change(out, factor)

        hook = module.register_forward_hook(after, prepend=True)
    stack.callback(hook.remove)
