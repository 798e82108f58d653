"""How is a run recorded? One forward pass of the model's own code, with ordinary hooks around it.

The attention function (see `attention.py`) hands over q, k and v; hooks keep references to residual streams and
block outputs. Nothing is copied unless the model writes into it later. `records.py` turns these notes into runs.
"""

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from keyhole.errors import KeyholeError
from keyhole.models.architecture.families import Family
from keyhole.models.architecture.weights import optional, submodule
from keyhole.models.numbers.precision import exact_matmul
from keyhole.models.recording import attention
from keyhole.models.recording.attention import AttentionRule


@dataclass
class Notes:
    """What the hooks saw in one layer, for a whole batch; filled during the forward pass."""

    block: nn.Module
    attn: nn.Module | None
    resid: Tensor | None = None
    mlp: Tensor | None = None
    mixer: Tensor | None = None
    attn_out: Tensor | None = None  # the input of a norm on the attention output
    attn_kwargs: dict[str, Any] = field(default_factory=dict)
    projected: dict[str, Tensor] = field(default_factory=dict)  # outputs of the q, k, v projections
    qkv: tuple[Tensor, Tensor, Tensor] | None = None
    first: Tensor | None = None
    rule: AttentionRule | None = None
    bypassed: bool = False  # an intervention began above this layer, so it was not run


@dataclass(frozen=True)
class Captured:
    """One forward pass of a batch."""

    layers: tuple[Notes, ...]
    final: Tensor
    logits: Tensor


_one_at_a_time = threading.RLock()  # hooks and the attention implementation belong to the model, not to a thread
Prepare = Callable[[ExitStack, tuple[Notes, ...]], None]


def capture(
    hf: Any, family: Family, ids: Tensor, prepare: Prepare | None = None, *, all_logits: bool = True
) -> Captured:
    """Run a batch of token ids, padded on the right, through the model's own code and note what it did.

    Right padding needs no padding mask: a causal query never sees what comes after it. `prepare` may add hooks of its
    own (interventions do); they are removed with the others. Without `all_logits` the unembedding, a third of a small
    model's work, is spared where the model's code allows it.
    """
    if hf.training:
        raise KeyholeError("the model is in training mode, where dropout makes every run another: call model.eval().")
    blocks = submodule(hf, family.layers).children()
    layers = tuple(Notes(block, optional(block, family.attn)) for block in blocks)
    final: list[Tensor] = []
    with _one_at_a_time, ExitStack() as stack:
        stack.enter_context(exact_matmul())
        for notes in layers:
            _watch_layer(stack, notes, family)
        _before(stack, submodule(hf, family.final_norm), lambda args, kwargs: final.append(args[0]))
        if family.routed:
            stack.enter_context(_recorded(layers))
        stack.enter_context(_implementation(hf, attention.NAME if family.routed else family.implementation))
        _forget_longer_prompts(hf)
        if prepare is not None:
            prepare(stack, layers)
        spared = {} if all_logits or not _can_spare_logits(hf) else {"logits_to_keep": 1}
        logits = hf(input_ids=ids, use_cache=False, return_dict=True, **spared).logits
    return Captured(layers, final[0], logits)


def _can_spare_logits(hf: Any) -> bool:
    return "logits_to_keep" in inspect.signature(hf.forward).parameters


def plain_logits(hf: Any, family: Family, ids: Tensor) -> Tensor:
    """The model's own answer, without Keyhole's attention function or hooks."""
    with _one_at_a_time, _implementation(hf, family.implementation):
        _forget_longer_prompts(hf)
        logits: Tensor = hf(input_ids=ids, use_cache=False, return_dict=True).logits
    return logits


def _watch_layer(stack: ExitStack, notes: Notes, family: Family) -> None:
    """Hooks for one layer: its input, what its blocks write, and what its attention is called with."""

    def keep(name: str, copy: bool = False) -> Any:
        def hook(out: Any) -> None:
            out = out[0] if isinstance(out, tuple) else out  # mixtures of experts also return their routing
            setattr(notes, name, out.clone() if copy else out)

        return hook

    def keep_projection(name: str) -> Any:
        return lambda out: notes.projected.__setitem__(name, out)

    _before(stack, notes.block, lambda args, kwargs: keep("resid")(args[0] if args else kwargs["hidden_states"]))
    _after(stack, optional(notes.block, family.mlp), keep("mlp", copy=family.mlp_in_place))
    _after(stack, optional(notes.block, family.mixer), keep("mixer"))
    if notes.attn is None:
        return
    _before(stack, notes.attn, lambda args, kwargs: notes.attn_kwargs.update(kwargs))
    _before(stack, optional(notes.block, family.post_attn_norm), lambda args, kwargs: keep("attn_out")(args[0]))
    if not family.routed or family.qk_norm is not None:
        for name in family.qkv:
            _after(stack, optional(notes.attn, name), keep_projection(name))


def _before(stack: ExitStack, module: nn.Module | None, keep: Any) -> None:
    if module is not None:
        hook = module.register_forward_pre_hook(lambda _, args, kwargs: keep(args, kwargs), with_kwargs=True)
        stack.callback(hook.remove)


def _after(stack: ExitStack, module: nn.Module | None, keep: Any) -> None:
    if module is not None:
        hook = module.register_forward_hook(lambda _, args, out: keep(out))
        stack.callback(hook.remove)


def _forget_longer_prompts(hf: Any) -> None:
    """Dynamic RoPE keeps the frequencies of the longest prompt it has met; a run must not depend on earlier ones."""
    for module in hf.modules():
        if getattr(module, "rope_type", None) == "dynamic":
            module.inv_freq = module.original_inv_freq
            module.max_seq_len_cached = module.original_max_seq_len


@contextmanager
def _recorded(layers: tuple[Notes, ...]) -> Iterator[None]:
    """Let Keyhole's attention function write q, k and v into the notes of its layer."""
    by_module = {id(notes.attn): notes for notes in layers}

    def record(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, first: Tensor, rule: AttentionRule) -> None:
        notes = by_module[id(module)]
        notes.qkv, notes.first, notes.rule = (q, k, v), first, rule

    attention.register()
    token = attention.recorder.set(record)
    try:
        yield
    finally:
        attention.recorder.reset(token)


@contextmanager
def _implementation(hf: Any, name: str | None) -> Iterator[None]:
    """Switch the model's attention implementation; the user's choice is put back afterwards."""
    before = hf.config._attn_implementation
    hf.config._attn_implementation = name or before
    try:
        yield
    finally:
        hf.config._attn_implementation = before
