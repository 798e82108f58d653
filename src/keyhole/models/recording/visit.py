"""How can attention be read in passing? One forward pass whose layers are shown as they happen, and not kept.

`Model.run` keeps everything that happened; work over thousands of prompts looks at each layer's queries and keys once,
takes what it needs, and lets the rest go.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from keyhole.models.architecture.rotary import Rotary
from keyhole.models.numbers.finite import require_finite_heads
from keyhole.models.recording.attention import AttentionRule
from keyhole.models.recording.capture import Notes, capture
from keyhole.models.recording.records import read_attention
from keyhole.models.tokens.prompts import Encoded

if TYPE_CHECKING:
    from keyhole.models.model import Model


@dataclass(frozen=True)
class Seen:
    """One layer's attention for a batch of prompts padded on the right; q and k as the scores use them."""

    q: Float[Tensor, "batch heads pos d_head"]
    k: Float[Tensor, "batch kv_heads pos d_head"]
    first: Int[Tensor, "pos"]
    rule: AttentionRule
    rotary: Rotary | None


See = Callable[[int, Seen], None]


def visit(model: "Model", batch: Sequence[Encoded], see: See) -> None:
    """Run one batch and show `see` every attention layer as it is computed: see(layer, what was seen)."""
    longest = max(len(encoded.ids) for encoded in batch)
    rows = [[*encoded.ids, *[0] * (longest - len(encoded.ids))] for encoded in batch]

    def prepare(stack: ExitStack, layers: tuple[Notes, ...]) -> None:
        for layer, notes in enumerate(layers):
            hook = notes.block.register_forward_hook(lambda *_, layer=layer, notes=notes: show(layer, notes))
            stack.callback(hook.remove)

    def show(layer: int, notes: Notes) -> None:
        if notes.attn is not None:
            q, k, _, first, rule, rotary = read_attention(notes, notes.attn, model.family, model.dims)
            require_finite_heads(layer, q, k)
            see(layer, Seen(q, k, first, rule, rotary))
        notes.resid = notes.mlp = notes.mixer = notes.attn_out = notes.qkv = None
        notes.projected.clear()
        notes.attn_kwargs.clear()

    capture(model.hf, model.family, torch.tensor(rows, device=model.hf.device), prepare, all_logits=False)
