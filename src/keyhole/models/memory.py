"""How much memory do folded weights take, and which are dropped first when there is a limit?

What is folded from weights, and what is decomposed further, is kept for the next trace. All layers together take about
as much as the model in float32: too much for one that was offloaded because it does not fit. With a limit the layers
that were used longest ago are dropped, and made again when they are needed.
"""

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor, nn

from keyhole.errors import KeyholeError
from keyhole.models.effective import forget
from keyhole.models.stored import tensors_here
from keyhole.strict import quoted

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
Cache = dict[Any, tuple[int, Any]]  # of a model: key -> state of the weights, and what was made of them


def read_memory(text: int | str) -> int:
    """A limit in bytes, as a number or with a unit.

    >>> read_memory("1.5GB"), read_memory(2000)
    (1500000000, 2000)
    """
    match = re.fullmatch(r"(\d+\.?\d*) ?([KMGT]B|)", str(text).strip().upper())
    if match is None or float(match[1]) == 0:
        raise KeyholeError(f"memory takes a number of bytes or a size such as 8GB, not {quoted(text)}.")
    return int(float(match[1]) * _UNITS[match[2]])


def drop_oldest(cache: Cache, most: int, hf: nn.Module, blocks: list[nn.Module]) -> list[Any]:
    """Drop layers' values from the front of the cache until the rest fits; the last one stays. Returns their keys."""
    weights = {tensor.untyped_storage().data_ptr() for tensor in tensors_here([hf])}
    sizes = {key: bytes_of(value, weights) for key, (_, value) in cache.items() if _is_of_layer(key)}
    dropped = []
    for key in list(sizes)[:-1]:
        if sum(sizes.values()) <= most:
            break
        if sizes.pop(key):
            del cache[key]
            forget(blocks[key[1]])
            dropped.append(key)
    return dropped


def _is_of_layer(key: Any) -> bool:
    return len(key) == 2 and isinstance(key[1], int)


def bytes_of(value: Any, weights: set[int]) -> int:
    """How many bytes a value takes, without what it shares with the model's weights."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in _tensors(value)}
    return sum(size for place, size in storages.items() if place not in weights)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from _tensors(getattr(value, field.name))
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)
