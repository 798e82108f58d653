"""In which precision does Keyhole compute? Float32 or better, with TensorFloat-32 off while its own code runs."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch


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
