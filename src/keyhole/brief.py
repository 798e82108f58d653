"""How are long things said shortly? Records like dataclasses, tensors by their shapes; models without their folders."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

_FEW, _LONG = 8, 80  # items of a collection, characters of a value, that are shown as they are


def brief(record: Any) -> str:
    """A `__repr__` for records that hold tensors or many parts.

    >>> import torch
    >>> from keyhole.tracing.answers.linear import Probe
    >>> brief(Probe(torch.zeros(128), 3))
    'Probe(direction=float32[128], layer=3, only=None)'
    """
    told = ", ".join(f"{one.name}={_short(getattr(record, one.name))}" for one in fields(record) if one.repr)
    return f"{type(record).__name__}({told})"


def model_label(name: str) -> str:
    """A model's name for headings: without the folders that lead to it; the hub's names, which have an owner, whole.

    >>> model_label("/models/smollm2.gguf"), model_label("models/small.gguf"), model_label("openai-community/gpt2")
    ('smollm2.gguf', 'small.gguf', 'openai-community/gpt2')
    """
    path = Path(name)  # which leaves a last slash out
    hub = len(path.parts) <= 2 and path.suffix != ".gguf" and not name.startswith((".", "~", "/"))
    return str(path) if hub and not path.is_absolute() else path.name or name


def _short(value: Any) -> str:
    kind = type(value).__name__
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if is_dataclass(value):
        told = brief(value)
        return told if len(told) <= _LONG else f"{kind}(...)"
    if isinstance(value, Mapping | tuple | list | frozenset | set):
        told = _items(value) if len(value) <= _FEW else ""
        return told if 0 < len(told) <= _LONG else f"<{kind} of {len(value)}>"
    told = repr(value)
    return told if len(told) <= _LONG else told[: _LONG - 3] + "..."


def _items(value: Any) -> str:
    """A small collection, each item short."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {_short(item)}" for key, item in value.items()) + "}"
    inside = ", ".join(_short(item) for item in value)
    if isinstance(value, tuple):
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    return f"[{inside}]" if isinstance(value, list) else f"{{{inside}}}"
