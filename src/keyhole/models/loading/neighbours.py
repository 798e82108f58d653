"""Which Hugging Face model is inside a neighbour's? That of nnsight or of TransformerLens, told by their attributes.

nnsight keeps it as it is (`_module`). TransformerLens' bridge (`original_model`, from version 3 on) puts its own
modules between the model's: these are left out in a copy that shares all weights, and has to give the bridge's answer.
Older HookedTransformers have none: their weights are folded and centred. Neither package is imported.
"""

import copy
from typing import Any

import torch
import transformers
from torch import nn

from keyhole.errors import KeyholeError
from keyhole.models.numbers.tolerance import tolerance_of

Pair = tuple[Any, Any]  # a Hugging Face model and a tokenizer, or none
_WRAPPED = "_original_component"  # what a module of the bridge stands for
_IDS = (1, 2, 3, 5, 8)  # a short prompt to compare answers on


def unwrapped(source: object) -> Pair:
    """The pair that `keyhole.load` takes, out of what a neighbour made of it; refused with the reason otherwise."""
    inside, tokenizer = getattr(source, "_module", None), getattr(source, "tokenizer", None)
    if isinstance(inside, transformers.PreTrainedModel):
        if any(parameter.is_meta for parameter in inside.parameters()):
            raise KeyholeError("this nnsight model has not loaded its weights yet: make it with dispatch=True.")
        return inside, tokenizer
    inside = getattr(source, "original_model", None)
    if isinstance(inside, transformers.PreTrainedModel):
        return _without_bridges(source, inside), tokenizer
    kinds = {kind.__name__ for kind in type(source).__mro__}
    if "HookedTransformer" in kinds:
        raise KeyholeError(
            "a HookedTransformer has no Hugging Face model inside, and its weights are folded and centred: give "
            "keyhole.load the model's name, or a pair (hf_model, tokenizer)."
        )
    if isinstance(source, transformers.PreTrainedModel):
        raise KeyholeError("a model given by hand must be a pair (hf_model, tokenizer or None).")
    raise KeyholeError(
        f"a {type(source).__name__} is no model that can be loaded: give a name, a folder, a .gguf file, a pair "
        "(hf_model, tokenizer), or a model of nnsight or TransformerLens."
    )


def _without_bridges(bridge: Any, inside: Any) -> Any:
    hf = _plain(inside)
    ids = torch.tensor([_IDS], device=inside.device)
    with torch.no_grad():
        ours, its = (model(ids) for model in (hf, bridge))
        ours, its = (torch.log_softmax(getattr(out, "logits", out).double(), -1) for out in (ours, its))
    if not float((ours - its).abs().max()) <= 10 * tolerance_of(inside.dtype) * float(its.abs().max()):
        raise KeyholeError(
            "the Hugging Face model inside this bridge does not give the bridge's answers, for its weights were "
            "changed (enable_compatibility_mode folds them): give keyhole.load the model's name, or a pair (hf_model, "
            "tokenizer)."
        )
    return hf


def _plain(module: nn.Module) -> nn.Module:
    """A copy without a neighbour's modules and hooks; weights and buffers are the same tensors."""
    while isinstance(getattr(module, _WRAPPED, None), nn.Module):
        module = getattr(module, _WRAPPED)
    if hasattr(module, "_hf_hook"):
        raise KeyholeError(
            "the model inside this bridge is spread over devices or a disk by accelerate, and cannot be taken out: "
            "give keyhole.load the model's name."
        )
    made = copy.copy(module)
    for name, value in vars(module).items():
        if "_hooks" in name and isinstance(value, dict):
            made.__dict__[name] = type(value)()
    children = module._modules.items()
    made.__dict__["_modules"] = {name: child if child is None else _plain(child) for name, child in children}
    return made
