"""Are a model's numbers finite, computed precisely, unchanged, and reconstructed exactly?

Finiteness comes first: one NaN in a weight or a residual stream silently makes every later result wrong.
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
from keyhole.models.stored import adapter_state, brought, named_tensors, parts_of

_NAMED = 3  # how many tensors a message names


def is_finite(x: Tensor) -> bool:
    """Is the tensor free of NaN and infinity? Its minimum and maximum show both, in one pass and without a copy.

    >>> is_finite(torch.tensor([1.0, 2.0])), is_finite(torch.tensor([1.0, float("nan"), 2.0]))
    (True, False)
    """
    return x.numel() == 0 or all(math.isfinite(float(end)) for end in torch.aminmax(x.detach()))


def require_finite_weights(hf: Any, name: str) -> None:
    """Refuse a model with weights that are NaN or infinite, and name them."""
    floating = ((key, p) for key, p in named_tensors(hf) if p.is_floating_point() and p.element_size() > 1)
    bad = [key for key, parameter in floating if not is_finite(parameter)]
    if bad:
        more = f" and {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
        raise KeyholeError(
            f"{name} has weights that are NaN or infinite: {', '.join(bad[:_NAMED])}{more}. Nothing can be computed "
            "with them: get the weight file again, or load it with the dtype it was stored in."
        )


def require_finite_run(residuals: Sequence[Tensor], logits: Tensor) -> None:
    """Refuse one prompt's pass if it overflowed, and say where; `residuals`: streams [pos, d_model] in order."""
    largest = float(torch.aminmax(logits).max)  # NaN if any logit is; logits of -inf are allowed: models mask tokens
    if is_finite(residuals[-1]) and largest < math.inf:
        return
    for layer, resid in enumerate(residuals):
        if not is_finite(resid):
            token = int((~torch.isfinite(resid)).any(-1).int().argmax())
            where = f"the input of layer {layer}" if layer < len(residuals) - 1 else "the last residual stream"
            _refuse(f"{where} at token {token} is", resid.dtype)
    _refuse("its logits are", residuals[-1].dtype)  # some models compute logits in float32 whatever they are loaded in


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


# In which precision does Keyhole compute? Float32 or better, and TensorFloat-32 is off while its code runs.


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype for decompositions: float32 or better, whatever the dtype of the model.

    >>> working_dtype(torch.bfloat16), working_dtype(torch.float64)
    (torch.float32, torch.float64)
    """
    return torch.promote_types(dtype, torch.float32)


HALF_PRECISION = (torch.float16, torch.bfloat16)


def is_half(dtype: torch.dtype) -> bool:
    """Is this a half precision, in which what a model adds up is rounded enough to be accounted for?

    >>> is_half(torch.bfloat16), is_half(torch.float32)
    (True, False)
    """
    return dtype in HALF_PRECISION


def unit_roundoff(dtype: torch.dtype) -> float:
    """The largest relative error of one rounding to the nearest.

    >>> unit_roundoff(torch.bfloat16), unit_roundoff(torch.float16)
    (0.00390625, 0.00048828125)
    """
    return torch.finfo(dtype).eps / 2


@contextmanager
def exact_matmul() -> Iterator[None]:
    """Turn off gradients, autocast, and TensorFloat-32, which silently drops half of the digits.

    The user's settings are restored afterwards.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.autocast("cpu", enabled=False))
        if torch.cuda.is_available():
            stack.enter_context(torch.autocast("cuda", enabled=False))
            matmul = torch.backends.cuda.matmul  # newer torch releases raise if this setting and the old one are mixed
            name, exact = ("fp32_precision", "ieee") if hasattr(matmul, "fp32_precision") else ("allow_tf32", False)
            stack.callback(setattr, matmul, name, getattr(matmul, name))
            setattr(matmul, name, exact)
        yield


# Have weights changed since they were last read? A cheap stamp per tensor; for files a cryptographic hash.

_SAMPLE = 256  # entries sampled per tensor
_SCATTER = 2654435761  # a large odd step spreads samples over rows and columns, whatever the shape


def stamp(tensors: Iterable[Tensor]) -> int:
    """A number that changes when weights are edited in place, replaced, or written through `.data`.

    Hashes the storage address, PyTorch's version counter, the shape, and 256 scattered entries per tensor. This takes
    microseconds and is no proof: the counter misses writes through `.data`, which are found at sampled entries only.
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
    """SHA-256 over names, shapes, dtypes and bytes of all weights. Circuit files store it to identify the model.

    Wherever the weights lie: a model that is spread over devices or a disk is the same model. Adapters count, with
    which of them are switched on, and so do the parts of quantised weights.
    """
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        if not isinstance(value, Tensor):  # what some quantising libraries keep beside their tensors
            digest.update(f"{name} {value!r}".encode())
            continue
        for tensor in parts_of(brought(module, name, value)):
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    adapters = adapter_state([module])
    if adapters:
        digest.update(repr(adapters).encode())
    return digest.hexdigest()


def require_same_weights(ours: str | None, theirs: str | None, refusal: str) -> None:
    """Raise an error with the message `refusal` if two fingerprints differ."""
    if ours != theirs:
        raise KeyholeError(refusal)


# When is a decomposition exact? When it differs from the model's own numbers by no more than rounding.

# Models in float64 mostly compute their norms in float32, hence 1e-5. In half precision what was rounded away is a
# writer of its own, so that everything adds up as in float32 (see `keyhole.tracing.rounding`).
_TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-4, torch.float16: 1e-4, torch.bfloat16: 1e-4}
_UNKNOWN = "This model computes something Keyhole does not know; see `keyhole check`."


def tolerance_of(dtype: torch.dtype) -> float:
    """The largest reconstruction error that Keyhole accepts, relative to the largest value of the same tensor.

    >>> tolerance_of(torch.float32)
    0.0001
    """
    if dtype not in _TOLERANCE:
        raise KeyholeError(f"models in {dtype} are not supported: load this one in float32.")
    return _TOLERANCE[dtype]


def require_exact(error: float, dtype: torch.dtype, quantity: str) -> None:
    """Refuse a decomposition whose error exceeds the tolerance of the dtype."""
    if not error <= tolerance_of(dtype):
        raise KeyholeError(
            f"{quantity} cannot be reconstructed: the error is {error:.1e} of the largest value, more than "
            f"{tolerance_of(dtype):.0e}. {_UNKNOWN}"
        )


def require_rounding(size: float, bound: float, dtype: torch.dtype, quantity: str) -> None:
    """Refuse what is taken for rounding and is larger than its precision can make it; both numbers are of one entry."""
    if not size <= bound:
        raise KeyholeError(
            f"{quantity} cannot be reconstructed: they are {size:.1e} apart where rounding in "
            f"{str(dtype).removeprefix('torch.')} explains {bound:.1e}. {_UNKNOWN}"
        )


def pass_tolerance(dtype: torch.dtype) -> float:
    """By how much two passes may differ that compute the same in another order, relative to the largest value."""
    return {torch.float16: 5e-3, torch.bfloat16: 5e-2}.get(dtype) or tolerance_of(dtype)
