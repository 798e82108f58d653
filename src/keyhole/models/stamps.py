"""Have these weights changed since we last looked? A cheap stamp per tensor, and one strong hash for files."""

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor, nn

_SAMPLE = 64  # entries looked at per tensor


def stamp(tensors: Iterable[Tensor]) -> int:
    """A number that changes when weights are edited in place, replaced, or written through `.data`.

    Looks at storage, PyTorch's edit counter, and a spread of 64 entries per tensor: microseconds, not a proof.
    An edit through `.data` (which PyTorch does not count) that misses all sampled entries goes unseen.
    """
    marks = []
    for tensor in tensors:
        flat = tensor.detach().reshape(-1)
        sample = flat[:: max(1, flat.numel() // _SAMPLE)].to(torch.float64)
        marks.append((tensor.data_ptr(), tensor._version, tuple(tensor.shape), float(sample.sum())))
    return hash(tuple(marks))


def fingerprint(module: nn.Module) -> str:
    """SHA-256 over the names, shapes, types and bytes of all weights: what a circuit file stores."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
