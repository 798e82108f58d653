"""How does an answer become JSON? As the library spells it: NaN and infinity as null, tensors as lists."""

import json
from collections.abc import Mapping
from typing import Any

from keyhole.files import finite


def spell(value: Any) -> bytes:
    """A value as one line of JSON.

    >>> spell({"a": float("nan"), "b": (1, "é")}).decode()
    '{"a":null,"b":[1,"é"]}'
    """
    plain = finite(_listed(value))
    return json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")


def _listed(value: Any) -> Any:
    """Arrays and tensors as lists, wherever they are."""
    if isinstance(value, Mapping):
        return {key: _listed(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_listed(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value
