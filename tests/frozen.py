"""Is an answer still as it was frozen? Records by their structure, texts by their words, each with where it differs.

Floats agree to 1e-4 of their size, or to 1e-6: other processors, numbers of threads and versions of torch add in
another order. Numbers within texts agree as those that guides show. Everything else is equal: keys, lengths, integers,
strings. With KEYHOLE_REBASELINE in the environment, goldens are written instead of compared.
"""

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shown import same_line

COMMANDS = Path(__file__).parent / "goldens" / "commands"
REL, ABS = 1e-4, 1e-6
_DIGITS = 6  # of a frozen float: its rounding is a tenth of what may differ
_WIDTH = 120
# What an answer loses is a small difference of two logits of about 20, which are rounded to 2e-6 in every layer.
EFFECTS = 5e-5
LOOSER = {
    **dict.fromkeys(("trace-effects", "trace-sufficient", "store-effects", "store-sufficient"), EFFECTS),
    **dict.fromkeys(("trace-probability", "trace-story"), EFFECTS),
    **dict.fromkeys(("verify", "verify-chain", "verify-global", "backups", "compare"), EFFECTS),
    "contrast": 1e-5,  # gaps in units of their nulls' spread
    "sinks": 1e-5,  # cosines near zero: sums of thousands of products
    "lab-emergence": EFFECTS,  # a training of hundreds of steps
    "stability": 2e-3,  # circuits in half precision, which has three digits
}
# Of the machine, the moment and what is installed: that they are there is frozen, not what they are.
MACHINE = {"versions", "seconds", "made", "memory", "disk", "folder", "bytes", "power"}
MARGINS = {"margin"}  # a limit by an error of rounding; whether it holds is frozen beside it


def normalised(value: Any) -> Any:
    """A record without what is of the machine."""
    if isinstance(value, dict):
        return {key: "*" if _of_machine(key, item) else normalised(item) for key, item in value.items()}
    return [normalised(item) for item in value] if isinstance(value, list) else value


def _of_machine(key: str, value: Any) -> bool:
    return key in MACHINE | MARGINS or (key == "direction" and isinstance(value, str))  # packed floats: digits differ


def differing(frozen: Any, value: Any, path: str = "", least: float = ABS) -> Iterator[str]:
    """Every key path at which two records differ, with both values."""
    if type(frozen) is not type(value):
        yield f"{path}: was {_short(frozen)}, is {_short(value)}"
    elif isinstance(frozen, dict):
        for key in sorted(set(frozen) | set(value)):
            if key not in value or key not in frozen:
                yield f"{path}.{key}: " + ("is gone" if key in frozen else f"is new: {_short(value[key])}")
            else:
                yield from differing(frozen[key], value[key], f"{path}.{key}", least)
    elif isinstance(frozen, list):
        if len(frozen) != len(value):
            yield f"{path}: had {len(frozen)} items, has {len(value)}"
        for i, (before, now) in enumerate(zip(frozen, value, strict=False)):
            yield from differing(before, now, f"{path}[{i}]", least)
    elif not _same(frozen, value, least):
        yield f"{path}: was {_short(frozen)}, is {_short(value)}"


def _same(frozen: Any, value: Any, least: float) -> bool:
    if isinstance(frozen, float):
        return math.isclose(frozen, value, rel_tol=REL, abs_tol=least)
    return frozen == value or (isinstance(frozen, str) and same_line(frozen, value))


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]} ..."


def require_record(name: str, value: Any) -> None:
    """Refuse a record that differs from the golden of this name."""
    path, value = COMMANDS / f"{name}.json", normalised(value)
    if "KEYHOLE_REBASELINE" in os.environ:
        path.write_text(_lines(_rounded(value)) + "\n", encoding="utf-8")
        return
    frozen = json.loads(path.read_text(encoding="utf-8"))
    _require(path, list(differing(frozen, value, least=LOOSER.get(name, ABS))))


def require_text(name: str, text: str) -> None:
    """Refuse a text that differs from the golden of this name in more than spaces, drawn bars and rounding."""
    path, lines = COMMANDS / f"{name}.txt", [line.rstrip() for line in text.splitlines()]
    if "KEYHOLE_REBASELINE" in os.environ:
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return
    _require(path, list(_differing_lines(path.read_text(encoding="utf-8").splitlines(), lines)))


def _differing_lines(frozen: list[str], lines: list[str]) -> Iterator[str]:
    if len(frozen) != len(lines):
        yield f"had {len(frozen)} lines, has {len(lines)}"
    for number, (before, now) in enumerate(zip(frozen, lines, strict=False), 1):
        if not same_line(before, now):
            yield f"line {number}: was {before!r}, is {now!r}"


def _require(path: Path, differences: list[str], most: int = 20) -> None:
    more = f"\n... and {len(differences) - most} more" if len(differences) > most else ""
    assert not differences, (
        f"{path.name} differs; see goldens/commands/README.md\n" + "\n".join(differences[:most]) + more
    )


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


def _lines(value: Any, indent: int = 1) -> str:
    """JSON with what fits on a line on one line: a golden's changes are read line by line."""
    text = json.dumps(value, ensure_ascii=False)
    if len(text) + indent <= _WIDTH or not isinstance(value, dict | list):
        return text
    if isinstance(value, dict):
        items = [f"{json.dumps(key, ensure_ascii=False)}: {_lines(item, indent + 1)}" for key, item in value.items()]
    else:
        items = [_lines(item, indent + 1) for item in value]
        if not any(isinstance(item, dict | list) for item in value):
            items = _filled(items)
    start, end = "{}" if isinstance(value, dict) else "[]"
    inner = f",\n{' ' * indent}".join(items)
    return f"{start}\n{' ' * indent}{inner}\n{' ' * (indent - 1)}{end}"


def _filled(items: list[str]) -> list[str]:
    """Short items, many on a line."""
    rows = [items[0]]
    for item in items[1:]:
        if len(rows[-1]) + len(item) < _WIDTH:
            rows[-1] += f", {item}"
        else:
            rows.append(item)
    return rows
