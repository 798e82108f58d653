"""Short text for long objects, tables of records, and names of heads."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

Span = tuple[int, int]  # of characters: where it starts, and where it ends
_FEW, _LONG = 8, 80  # items of a collection and characters of a value that are shown in full


def brief(record: Any) -> str:
    """A `__repr__` for records that hold tensors or many parts: one line, tensors by type and shape.

    >>> import torch
    >>> from keyhole.tracing.linear import Probe
    >>> brief(Probe(torch.zeros(128), 3))
    'Probe(direction=float32[128], layer=3, only=None)'
    """
    parts = ", ".join(f"{field.name}={_short(getattr(record, field.name))}" for field in fields(record) if field.repr)
    return f"{type(record).__name__}({parts})"


def model_label(name: str) -> str:
    """A model's name for headings: a file without its folders, a name of the hub with its owner.

    >>> model_label("/models/smollm2.gguf"), model_label("models/small.gguf"), model_label("openai-community/gpt2")
    ('smollm2.gguf', 'small.gguf', 'openai-community/gpt2')
    """
    path = Path(name)  # drops a trailing slash
    hub = len(path.parts) <= 2 and path.suffix != ".gguf" and not name.startswith((".", "~", "/"))
    return str(path) if hub and not path.is_absolute() else path.name or name


def _short(value: Any) -> str:
    kind = type(value).__name__
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if is_dataclass(value):
        text = brief(value)
        return text if len(text) <= _LONG else f"{kind}(...)"
    if isinstance(value, Mapping | tuple | list | frozenset | set):
        text = _items(value) if len(value) <= _FEW else ""
        return text if 0 < len(text) <= _LONG else f"<{kind} of {len(value)}>"
    text = repr(value)
    return text if len(text) <= _LONG else text[: _LONG - 3] + "..."


def _items(value: Any) -> str:
    """A small collection, with each item shortened."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {_short(item)}" for key, item in value.items()) + "}"
    inside = ", ".join(_short(item) for item in value)
    if isinstance(value, tuple):
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    return f"[{inside}]" if isinstance(value, list) else f"{{{inside}}}"


# Tables: a pandas DataFrame or, where pandas is not installed, a list of records.

Table = Any  # a pandas DataFrame, or a list of records


def as_dataframe(records: Sequence[dict[str, Any]]) -> Table:
    """One row per record, one column per name."""
    try:
        pandas = import_module("pandas")
    except ImportError:
        return list(records)
    return pandas.DataFrame.from_records(records)


# Names of heads: (9, 6) in Python, 9.6 in text, for layer 9, head 6.

Head = tuple[int, int]  # layer, head
_DIGITS = 19  # longer text names no head: Python refuses to convert thousands of digits


def head_name(head: Head) -> str:
    """The name of a head in text.

    >>> head_name((9, 6))
    '9.6'
    """
    return f"{head[0]}.{head[1]}"


def first_few(texts: Sequence[str], most: int) -> str:
    """Some texts of a list, and how many more there are.

    >>> first_few(["1.0", "2.3", "4.4"], 2)
    '1.0, 2.3 and 1 more'
    """
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")


def head_named(text: str) -> Head | None:
    """The head that a text such as 9.6 names, or None.

    >>> head_named("9.6"), head_named("9")
    ((9, 6), None)
    """
    layer, dot, head = text.partition(".")
    if not (dot and layer.isdecimal() and head.isdecimal() and len(text) < _DIGITS):
        return None
    return int(layer), int(head)
