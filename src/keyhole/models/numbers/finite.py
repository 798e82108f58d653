"""Are all numbers numbers? One NaN in a weight or a residual stream makes every answer built on it silently wrong."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from keyhole.errors import KeyholeError

_NAMED = 3  # tensors that a message lists


def is_finite(x: Tensor) -> bool:
    """Has the tensor neither NaN nor infinity? One pass without a copy: both show in its smallest and largest value.

    >>> is_finite(torch.tensor([1.0, 2.0])), is_finite(torch.tensor([1.0, float("nan"), 2.0]))
    (True, False)
    """
    return x.numel() == 0 or all(math.isfinite(float(end)) for end in torch.aminmax(x.detach()))


def require_finite_weights(hf: Any, name: str) -> None:
    """Refuse a model with weights that are NaN or infinite, and say which."""
    floating = ((key, p) for key, p in hf.named_parameters() if p.is_floating_point() and p.element_size() > 1)
    bad = [key for key, parameter in floating if not is_finite(parameter)]
    if bad:
        more = f" and {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
        raise KeyholeError(
            f"{name} has weights that are NaN or infinite: {', '.join(bad[:_NAMED])}{more}. Nothing can be computed "
            "with them: get the weight file again, or load it with the dtype it was stored in."
        )


def require_finite_run(residuals: Sequence[Tensor], logits: Tensor) -> None:
    """Refuse a forward pass of one prompt that overflowed, and say where: residual streams [pos, d_model], in order."""
    if is_finite(residuals[-1]) and not math.isnan(float(torch.aminmax(logits).max)):  # a logit of -inf is a mask
        return
    for layer, resid in enumerate(residuals):
        if not is_finite(resid):
            token = int((~torch.isfinite(resid)).any(-1).int().argmax())
            where = f"what layer {layer} reads" if layer < len(residuals) - 1 else "the last residual stream"
            _refuse(f"{where} at token {token} is", resid.dtype)
    _refuse("its logits are", logits.dtype)


def require_finite_heads(layer: int, *seen: Tensor) -> None:
    """Refuse queries or keys of a layer that are no numbers."""
    for x in seen:
        if not is_finite(x):
            _refuse(f"what layer {layer} compares is", x.dtype)


def _refuse(what: str, dtype: torch.dtype) -> None:
    overflow = "float16 overflows beyond 65504: load the model in float32 or bfloat16."
    other = "the weights, finite when loaded, may have been changed since: load the model again."
    raise KeyholeError(
        f"this prompt cannot be run: {what} NaN or infinite; {overflow if dtype == torch.float16 else other}"
    )
