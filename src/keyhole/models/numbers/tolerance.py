"""When is a decomposition exact? When it misses the model's own numbers by no more than rounding explains."""

import torch

from keyhole.errors import KeyholeError

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


def require_exact(error: float, dtype: torch.dtype, what: str) -> None:
    """Refuse to answer from a decomposition that does not add up."""
    if not error <= tolerance_of(dtype):
        raise KeyholeError(
            f"{what} cannot be reconstructed: the error is {error:.1e} of the largest value, more than "
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
