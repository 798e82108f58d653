"""Have these weights changed since we last looked? A cheap stamp per tensor, and one strong hash for files."""

import hashlib
from collections.abc import Iterable
from functools import lru_cache

import torch
from torch import Tensor, nn

from keyhole.errors import KeyholeError

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
    """Refuse, with what this means there, a file or a model whose fingerprint is another one."""
    if ours != theirs:
        raise KeyholeError(refusal)
