"""What does a projection do to what it reads? Its effective weight, whatever module it is.

    projection(x) = x W + b

A dense layer keeps W itself. Around it may be an adapter (LoRA: W + scale A B for every adapter that is switched on),
in place of it a quantised kernel, which has an expanded weight or none at all. Whatever has no W of its own is asked
for it: its output on the identity, in pieces, less its output on nothing. All else in Keyhole reads projections here.

That the module computes x W + b is then no assumption: `affine.py` compares on every prompt.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from keyhole.errors import KeyholeError
from keyhole.models.numbers import exact_matmul, stamp, working_dtype
from keyhole.models.stored import adapter_state, at_hand, device_of, in_use, is_ordinary, tensors_here

_PIECE = 512  # rows of the identity that a module is given at once


@dataclass(frozen=True)
class Affine:
    """What a projection computes: x W + b."""

    W: Float[Tensor, "in out"]
    b: Float[Tensor, "out"] | None

    def bias(self) -> Float[Tensor, "out"]:
        """B, or zeros, as precise as W."""
        return self.W.new_zeros(self.W.shape[-1]) if self.b is None else self.b.to(self.W.dtype)


def matrix_of(module: nn.Module) -> Float[Tensor, "in out"]:
    """A projection's effective weight as x @ W, in float32 or better."""
    W = own_matrix(module)
    return W.to(working_dtype(W.dtype))


def own_matrix(module: nn.Module) -> Float[Tensor, "in out"]:
    """The same as the model keeps it, where it does; GPT-2's Conv1D stores [in, out], a Linear [out, in]."""
    return effective(module).W


def bias_of(module: nn.Module, like: Float[Tensor, "... out"]) -> Float[Tensor, "out"]:
    """A projection's bias, or zeros, beside its weights."""
    b = effective(module).b
    return like.new_zeros(like.shape[-1]) if b is None else b.to(like.dtype)


def embedded(module: nn.Module, ids: Any) -> Float[Tensor, "*token d_model"]:
    """Rows of an embedding, with adapters on it; as it keeps them where it is an ordinary one."""
    module = in_use(module)
    rows, weight = torch.as_tensor(ids, device=device_of(module)), getattr(module, "weight", None)
    if isinstance(weight, Tensor) and is_ordinary(weight) and not weight.is_meta and not hasattr(module, "base_layer"):
        return weight.detach()[rows]
    with exact_matmul():
        return module(rows)  # type: ignore[no-any-return]


def effective(module: nn.Module) -> Affine:
    """A projection's weight and bias. What has to be computed is kept until the module's weights change."""
    module = in_use(module)
    if is_dense(module):
        with at_hand(module):
            return _dense(module)
    now = hash((stamp(tensors_here([module])), adapter_state([module])))
    if module not in _kept or _kept[module][0] != now:
        with exact_matmul():
            _kept[module] = now, _adapted(module) or _expanded(module) or _probed(module)
    return _kept[module][1]


_kept: "WeakKeyDictionary[nn.Module, tuple[int, Affine]]" = WeakKeyDictionary()


def forget(root: nn.Module) -> None:
    """Keep nothing of a module and those in it: it is made again when it is needed."""
    for module in root.modules():
        _kept.pop(module, None)


def dense_copy(root: nn.Module) -> nn.Module:
    """A copy of a module whose projections are dense, with their effective weights, all of it in memory.

    It computes the same, in whatever precision it is put: adapters are merged in it, and packed weights expanded.
    """
    hooks = [vars(module)["_hf_hook"] for module in root.modules() if "_hf_hook" in vars(module)]
    memo: dict[int, Any] = {id(hook): None for hook in hooks}
    for module in root.modules():
        embeds = isinstance(getattr(module, "base_layer", module), nn.Embedding)
        if hasattr(module, "in_features") and not embeds and not is_dense(module):
            memo[id(module)] = _linear(effective(module))
    with at_hand(root):
        copied: nn.Module = deepcopy(root, memo)
    for module in copied.modules():  # what accelerate put there belongs to the original
        for name in ("forward", "_old_forward", "_hf_hook"):
            vars(module).pop(name, None)
    return copied


def _linear(affine: Affine) -> nn.Linear:
    n_in, n_out = affine.W.shape
    linear = nn.Linear(n_in, n_out, bias=affine.b is not None, device="meta")
    linear.weight = nn.Parameter(affine.W.T.contiguous(), requires_grad=False)
    if affine.b is not None:
        linear.bias = nn.Parameter(affine.b.to(affine.W.dtype), requires_grad=False)
    return linear.eval()


def is_dense(module: nn.Module) -> bool:
    """Does this module compute x W + b with the weights that it keeps? If not, W must be found."""
    module = in_use(module)
    weight = getattr(module, "weight", None)
    if hasattr(module, "base_layer") or not isinstance(weight, Tensor) or not is_ordinary(weight):
        return False
    if not weight.is_floating_point() or weight.element_size() == 1:  # 8-bit floats come with scales elsewhere
        return False
    if "forward" in vars(module) and not hasattr(module, "_hf_hook"):  # replaced, and not by accelerate
        return False
    kind = type(module)
    return kind in (nn.Linear, Conv1D) or kind.__module__.startswith("transformers.models.")


def _dense(module: nn.Module) -> Affine:
    weight: Any = module.weight.detach()  # type: ignore[union-attr,operator]
    bias: Any = module.bias
    return Affine(weight if isinstance(module, Conv1D) else weight.T, None if bias is None else bias.detach())


def _adapted(module: Any) -> Affine | None:
    """PEFT's LoRA around another projection; None for anything else, DoRA and other variants included."""
    if not hasattr(module, "lora_A") or not hasattr(module, "base_layer"):
        return None
    if module.merged:  # the base has it already; a forward pass without adapters would take it out
        return None if module.disable_adapters else effective(module.base_layer)
    on = [] if module.disable_adapters else [name for name in module.active_adapters if name in module.lora_A]
    if any(name in getattr(module, "lora_variant", {}) for name in on):
        return None
    base = effective(module.base_layer)
    W, b = base.W.to(working_dtype(base.W.dtype)), base.bias().to(working_dtype(base.W.dtype))
    for name in on:
        (A, a), (B, c) = ((m.W.to(W), m.b) for m in map(effective, (module.lora_A[name], module.lora_B[name])))
        if a is not None:
            return None
        W = W + module.scaling[name] * (A @ B)
        b = b if c is None else b + module.scaling[name] * c.to(b)
    return Affine(W, b)


def _expanded(module: Any) -> Affine | None:
    """A Linear whose weight a library packed, and expands itself."""
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    if not isinstance(module, nn.Linear) or not isinstance(weight, Tensor) or is_ordinary(weight):
        return None
    if bias is not None and not is_ordinary(bias):
        return None
    if type(weight).dequantize is Tensor.dequantize:  # torch's own knows no scale that a library keeps elsewhere
        return None
    with suppress(RuntimeError, NotImplementedError, AttributeError, TypeError), at_hand(module):
        W = weight.dequantize()  # type: ignore[no-untyped-call]
        if is_ordinary(W) and W.is_floating_point() and W.shape == (module.out_features, module.in_features):
            return Affine(W.detach().T.to(working_dtype(W.dtype)), None if bias is None else bias.detach())
    return None


def _probed(module: Any) -> Affine:
    """What a module makes of the identity, less what it makes of nothing, as it computes when it is not trained."""
    n = getattr(module, "in_features", None) or getattr(getattr(module, "base_layer", None), "nx", None)
    if n is None:
        raise KeyholeError(
            f"a {type(module).__name__} is no projection that Keyhole can read: it does not say how many numbers it "
            "reads (in_features)."
        )
    device, failed = device_of(module), ""
    precise = any(tensor.dtype == torch.float64 for tensor in module.parameters())
    with _not_training(module):
        for dtype in (torch.float64,) if precise else (torch.float32, torch.bfloat16, torch.float16):
            try:
                return _read_off(module, torch.zeros(1, n, dtype=dtype, device=device))
            except Exception as error:  # kernels of another dtype or device, or that are not installed: all kinds
                failed = failed or str(error).strip().split("\n")[0].rstrip(".")
    raise KeyholeError(
        f"a {type(module).__name__} cannot be read: it does not run by itself ({failed}). Load the model without "
        "quantisation, or a GGUF file, which is expanded on loading."
    )


def _read_off(module: nn.Module, nothing: Float[Tensor, "1 in"]) -> Affine:
    """W in rows, in float32 or better: a kernel that computes in half precision rounds, its differences do not."""
    n, compute = nothing.shape[1], module.forward  # without hooks: a run may be recorded, or edited, meanwhile
    b = compute(nothing)[0].to(working_dtype(nothing.dtype))
    W = b.new_empty(n, len(b))
    for start in range(0, n, _PIECE):
        rows = nothing.new_zeros(min(_PIECE, n - start), n)
        rows[range(len(rows)), range(start, start + len(rows))] = 1
        W[start : start + len(rows)] = compute(rows).to(b) - b
    return Affine(W, b if bool(b.any()) else None)


@contextmanager
def _not_training(module: nn.Module) -> Iterator[None]:
    training = [part for part in module.modules() if part.training]
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True
