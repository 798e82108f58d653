"""Which tensors is a model made of, wherever they lie? Packed by a quantising library, beside an adapter, or offloaded.

A model is more than its parameters. A quantised weight is a tensor made of several; kernels keep scales as buffers; an
adapter has a scale and may be switched off; what accelerate offloads to the CPU or to a disk leaves an empty (meta)
tensor behind, and comes back for each forward pass alone.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


def parts_of(tensor: Tensor) -> Iterator[Tensor]:
    """The ordinary tensors that a packed one is made of; an ordinary tensor is its only part.

    >>> [part.shape for part in parts_of(torch.zeros(2, 3))]
    [torch.Size([2, 3])]
    """
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if is_ordinary(tensor) or flatten is None:
        yield tensor
        return
    for name in flatten()[0]:
        yield from parts_of(getattr(tensor, name))


def is_ordinary(tensor: object) -> bool:
    """Does a tensor hold its numbers itself? Subclasses of libraries expand them when they compute.

    >>> is_ordinary(nn.Parameter(torch.zeros(2))), is_ordinary(None)
    (True, False)
    """
    return type(tensor) in (Tensor, nn.Parameter)


def offload_hook(module: nn.Module) -> Any:
    """What accelerate put around a module to bring its weights for each pass; None: they lie where they are."""
    hook = getattr(module, "_hf_hook", None)
    for one in getattr(hook, "hooks", (hook,)):
        if getattr(one, "offload", False) and getattr(one, "weights_map", None) is not None:
            return one
    return None


@contextmanager
def at_hand(*modules: nn.Module) -> Iterator[None]:
    """Within this context the modules' offloaded weights are in memory, those of their submodules too."""
    away = [module for root in modules for module in root.modules() if offload_hook(module) is not None]
    for module in away:
        offload_hook(module).pre_forward(module)
    try:
        yield
    finally:
        for module in away:
            offload_hook(module).post_forward(module, None)


def missing_of(hf: nn.Module) -> list[str]:
    """Names of parameters that are nowhere: empty tensors that no hook fills."""
    return [
        f"{path}.{name}".lstrip(".")
        for path, module in hf.named_modules()
        if offload_hook(module) is None
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.is_meta
    ]


def named_tensors(root: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every tensor that weights are made of, with its name, once; those on a disk are read one after the other."""
    known: set[int] = set()
    for path, module in root.named_modules():
        hook = offload_hook(module)
        for name, tensor in _direct(module):
            if id(tensor) in known:
                continue
            known.add(id(tensor))
            for part in parts_of(hook.weights_map[name] if tensor.is_meta and hook is not None else tensor):
                yield f"{path}.{name}".lstrip("."), part


def brought(root: nn.Module, name: str, tensor: Tensor) -> Tensor:
    """A tensor of a state dict, read from where it was offloaded to."""
    path, _, leaf = name.rpartition(".")
    hook = offload_hook(root.get_submodule(path)) if tensor.is_meta else None
    return tensor if hook is None else hook.weights_map[leaf]  # type: ignore[no-any-return]


def tensors_here(roots: Iterable[nn.Module]) -> Iterator[Tensor]:
    """The same without those on a disk, which nobody changes meanwhile: what a stamp of the weights looks at."""
    known: set[int] = set()
    for root in roots:
        for module in root.modules():
            hook = offload_hook(module)
            for name, tensor in _direct(module):
                if id(tensor) in known:
                    continue
                known.add(id(tensor))
                if not tensor.is_meta:
                    yield from parts_of(tensor)
                elif hook is not None and (kept := _in_memory(hook.weights_map, name)) is not None:
                    yield from parts_of(kept)


def _in_memory(weights: Mapping[str, Tensor], name: str) -> Tensor | None:
    """An offloaded tensor that lies in memory; None: it is on a disk."""
    prefix, inner = getattr(weights, "prefix", ""), getattr(weights, "dataset", weights)
    in_memory = getattr(inner, "state_dict", inner)
    return in_memory.get(prefix + name) if isinstance(in_memory, dict) else None


def _direct(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """A module's parameters, and of a projection its buffers, where several kernels keep packed weights and scales."""
    yield from module.named_parameters(recurse=False)
    if hasattr(module, "in_features"):  # not those of RoPE, which may grow with the prompt
        yield from module.named_buffers(recurse=False)


def adapter_state(roots: Iterable[nn.Module]) -> tuple[Any, ...]:
    """What no tensor says of adapters: which are switched on, which are merged, and with what factor they count."""
    return tuple(
        (
            path,
            tuple(module.active_adapters),
            bool(module.disable_adapters),
            tuple(getattr(module, "merged_adapters", ())),
            tuple(sorted((str(name), float(scale)) for name, scale in getattr(module, "scaling", {}).items())),
        )
        for root in roots
        for path, module in root.named_modules()
        if is_adapted(module)
    )


def is_adapted(module: nn.Module) -> bool:
    """Is this one of PEFT's modules around another? Known by their attributes: PEFT need not be installed."""
    wraps = getattr(module, "base_layer", None) is not None or getattr(module, "original_module", None) is not None
    return wraps and hasattr(module, "active_adapters")


def in_use(module: nn.Module) -> nn.Module:
    """The module that computes, where PEFT keeps a whole one per adapter (`modules_to_save`)."""
    saved: Any = module._modules.get("modules_to_save")
    if saved is None or not is_adapted(module):
        return module
    wrapper: Any = module
    names = [] if wrapper.disable_adapters else [name for name in wrapper.active_adapters if name in saved]
    return saved[names[0]] if names else wrapper.original_module  # type: ignore[no-any-return]


def device_of(module: nn.Module) -> torch.device:
    """Where a module computes first: the place of its first weights, or that to which they are brought."""
    for part in module.modules():
        for _, tensor in _direct(part):
            hook = offload_hook(part) if tensor.is_meta else None
            return torch.device(hook.execution_device) if hook is not None else tensor.device
    return torch.device("cpu")
