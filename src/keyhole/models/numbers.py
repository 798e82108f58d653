"""Are numbers finite, precise enough, exact enough and unchanged?

Finite first: one NaN in a weight or a residual stream makes every answer built on it silently wrong.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

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
            where = f"the input of layer {layer}" if layer < len(residuals) - 1 else "the last residual stream"
            _refuse(f"{where} at token {token} is", resid.dtype)
    _refuse("its logits are", logits.dtype)


def require_finite_heads(layer: int, *tensors: Tensor) -> None:
    """Refuse queries or keys of a layer that are NaN or infinite."""
    for x in tensors:
        if not is_finite(x):
            _refuse(f"a query or key of layer {layer} is", x.dtype)


def _refuse(subject: str, dtype: torch.dtype) -> None:
    overflow = "float16 overflows beyond 65504: load the model in float32 or bfloat16."
    other = "the weights, finite when loaded, may have been changed since: load the model again."
    raise KeyholeError(
        f"this prompt cannot be run: {subject} NaN or infinite; {overflow if dtype == torch.float16 else other}"
    )


# In which precision does Keyhole compute? Float32 or better, with TensorFloat-32 off while Keyhole's code runs.


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """Decompositions run in float32 or better, whatever the model runs in.

    >>> working_dtype(torch.bfloat16), working_dtype(torch.float64)
    (torch.float32, torch.float64)
    """
    return torch.promote_types(dtype, torch.float32)


@contextmanager
def exact_matmul() -> Iterator[None]:
    """No gradients, no autocast, and no TensorFloat-32, which loses half the digits silently.

    The user's settings are put back afterwards.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.autocast("cpu", enabled=False))
        if torch.cuda.is_available():
            stack.enter_context(torch.autocast("cuda", enabled=False))
            matmul = torch.backends.cuda.matmul  # newer releases refuse to mix their setting with the old one
            name, exact = ("fp32_precision", "ieee") if hasattr(matmul, "fp32_precision") else ("allow_tf32", False)
            stack.callback(setattr, matmul, name, getattr(matmul, name))
            setattr(matmul, name, exact)
        yield


# Have these weights changed since the last look? A cheap stamp per tensor; for files a cryptographic hash.

_SAMPLE = 256  # entries looked at per tensor
_SCATTER = 2654435761  # a large odd step: samples fall on all rows and columns, whatever the shape


def stamp(tensors: Iterable[Tensor]) -> int:
    """A number that changes when weights are edited in place, replaced, or written through `.data`.

    Looks at storage, PyTorch's edit counter, and 256 scattered entries per tensor: microseconds, not a proof.
    An edit through `.data` (which PyTorch does not count) that misses all sampled entries goes unseen.
    """
    marks = []
    for tensor in tensors:
        flat = tensor.detach().reshape(-1)
        sample = flat[_scattered(flat.numel(), flat.device)].float().cpu().numpy().tobytes()
        marks.append((tensor.data_ptr(), tensor._version, tuple(tensor.shape), sample))
    return hash(tuple(marks))


@lru_cache(maxsize=512)
def _scattered(numel: int, device: torch.device) -> Tensor:
    return (torch.arange(min(_SAMPLE, numel)) * _SCATTER % numel).to(device)


def fingerprint(module: nn.Module) -> str:
    """SHA-256 over the names, shapes, types and bytes of all weights: what a circuit file stores."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def require_same_weights(ours: str | None, theirs: str | None, refusal: str) -> None:
    """Raise `refusal` where two fingerprints of weights differ."""
    if ours != theirs:
        raise KeyholeError(refusal)


# When is a decomposition exact? When it misses the model's own numbers by no more than rounding explains.

# Half precision rounds the residual stream itself. In float64 most families still normalise in float32.
_TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 5e-2}
_HALF_PRECISION = (torch.float16, torch.bfloat16)
_UNKNOWN = "This model computes something Keyhole does not know; see `keyhole check`."


def tolerance_of(dtype: torch.dtype) -> float:
    """Largest error, relative to the largest value of the same tensor, that Keyhole accepts from a model.

    >>> tolerance_of(torch.float32)
    0.0001
    """
    if dtype not in _TOLERANCE:
        raise KeyholeError(f"models in {dtype} are not supported: load this one in float32.")
    return _TOLERANCE[dtype]


def require_exact(error: float, dtype: torch.dtype, quantity: str) -> None:
    """Refuse to answer from a decomposition that does not add up."""
    if not error <= tolerance_of(dtype):
        raise KeyholeError(
            f"{quantity} cannot be reconstructed: the error is {error:.1e} of the largest value, more than "
            f"{tolerance_of(dtype):.0e}. {rounding_advice(dtype) or _UNKNOWN}"
        )


def rounding_advice(dtype: torch.dtype) -> str | None:
    """In half precision: what an error most likely comes from, and what to do; None in float32 and float64."""
    if dtype not in _HALF_PRECISION:
        return None
    return (
        f"Rounding in {str(dtype).removeprefix('torch.')} can be that large where activations are large: load the "
        "model in float32 (--dtype float32; in Python dtype=torch.float32)."
    )
