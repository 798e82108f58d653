"""What would a model in half precision do in float32? Its own code, on float32 copies of one layer's weights at a time.

What it rounds hides nothing then: everything must be reconstructed as exactly as that of a model in float32. Its own
weights stay as they are, and a copy is dropped as soon as its layer is done.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from keyhole.models import attention
from keyhole.models.capture import (
    Notes,
    alone,
    attention_named,
    frozen_scale,
    layer_batch,
    recorded,
    watch_layer,
)
from keyhole.models.effective import dense_copy
from keyhole.models.numbers import exact_matmul, working_dtype
from keyhole.models.run import LayerRun, Run
from keyhole.models.stacks import cut_layer
from keyhole.models.weights import optional, submodule

if TYPE_CHECKING:
    from keyhole.models.model import Model


def float_copy(module: nn.Module) -> nn.Module:
    """A copy of a module in float32 or better, dense, and without what was put in place of its `forward`."""
    replaced = vars(module).pop("forward", None)
    try:
        copied = dense_copy(module)
    finally:
        if replaced is not None:
            module.forward = replaced  # type: ignore[method-assign]
    return copied.to(working_dtype(next((p.dtype for p in copied.parameters()), torch.float32)))


def widened_run(model: "Model", run: Run) -> Run:
    """A run's prompt again, in float32."""
    layers, final, logits = _passed(model, run, record=True)
    return Run(
        model=model,
        token_ids=run.token_ids,
        tokens=run.tokens,
        bos=run.bos,
        layers=tuple(cut_layer(layer, 0, len(run)) for layer in layers),
        final_resid=final[0],
        final_scale=frozen_scale(submodule(model.hf, model.family.final_norm), final, model.family)[0],
        logits=logits[0],
        _stamp=model._stamp(),
    )


def widened_logits(model: "Model", run: Run) -> Tensor:
    """The logits of the same prompt in float32, without Keyhole's attention function."""
    return _passed(model, run, record=False)[2][0]


def _passed(model: "Model", run: Run, *, record: bool) -> tuple[list[LayerRun], Tensor, Tensor]:
    """One pass with everything that has weights in float32: its layers, its last stream and its logits."""
    hf, family = model.hf, model.family
    layers, final, notes_of = list[LayerRun](), list[Tensor](), dict[int, Notes]()

    def through_layer(block: nn.Module, args: Any, kwargs: Any) -> Any:
        notes = Notes(block, optional(block, family.attn))
        with ExitStack() as hooks:
            if record:
                watch_layer(hooks, notes, family)
                notes_of[id(notes.attn)] = notes
            out = block(*args, **kwargs)
            if record:
                layers.append(layer_batch(notes, family, model.dims, hf.config))
        return out

    def through_norm(norm: nn.Module, args: Any, kwargs: Any) -> Any:
        final.append(args[0])
        return norm(*args, **kwargs)

    def through(module: nn.Module, args: Any, kwargs: Any) -> Any:
        return module(*args, **kwargs)

    name = attention.NAME if record and family.routed else family.implementation
    with alone(hf), exact_matmul(), ExitStack() as stack:
        if record and family.routed:
            stack.enter_context(recorded(notes_of))
        stack.enter_context(attention_named(hf, name))
        for block in model.blocks:
            stack.enter_context(_in_float32(block, through_layer))
        stack.enter_context(_in_float32(submodule(hf, family.final_norm), through_norm))
        for module in _outside(hf, model.blocks, submodule(hf, family.final_norm)):
            stack.enter_context(_in_float32(module, through))
        ids = torch.tensor([list(run.token_ids)], device=model.device)
        logits = hf(input_ids=ids, use_cache=False, return_dict=True).logits
    return layers, final[0], logits


def _outside(hf: Any, blocks: list[nn.Module], final_norm: nn.Module) -> list[nn.Module]:
    """The modules beside the layers that hold weights: embeddings, the unembedding."""
    known = {id(module) for block in blocks for module in block.modules()} | {id(final_norm)}
    return [m for m in hf.modules() if id(m) not in known and next(m.parameters(recurse=False), None) is not None]


@contextmanager
def _in_float32(module: nn.Module, through: Callable[[nn.Module, Any, Any], Any]) -> Iterator[None]:
    """A module that computes in float32 for a while, by a copy that is made whenever it is called."""
    before = module.__dict__.get("forward")  # where another tool has put its own

    def forward(*args: Any, **kwargs: Any) -> Any:
        return through(float_copy(module), _widened(args), _widened(kwargs))

    module.forward = forward  # type: ignore[method-assign]
    try:
        yield
    finally:
        del module.forward
        if before is not None:
            module.forward = before  # type: ignore[method-assign]


def _widened(value: Any) -> Any:
    """Arguments with every tensor of half precision in float32."""
    if isinstance(value, Tensor):
        return value.to(working_dtype(value.dtype)) if value.is_floating_point() else value
    if isinstance(value, dict):
        return {name: _widened(x) for name, x in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_widened(x) for x in value)
    return value
