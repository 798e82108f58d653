"""In which precision does Keyhole compute? Float32 or better, with TensorFloat-32 off while its own code runs."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """Decompositions run in float32 or better, whatever the model runs in.

    >>> working_dtype(torch.bfloat16), working_dtype(torch.float64)
    (torch.float32, torch.float64)
    """
    return torch.promote_types(dtype, torch.float32)


@contextmanager
def exact_matmul() -> Iterator[None]:
    """TensorFloat-32 loses half the digits silently; the user's setting is put back afterwards."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_float32_matmul_precision(before)
