"""Do benchmarks, tools and examples still fit the library? What they import is there, and calls of it can be made.

Most of them run for minutes, and none of them in these tests: a name that moved would be found by whoever needs it.
"""

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT

SCRIPTS = sorted(path for folder in ("benchmarks", "examples", "tools") for path in (ROOT / folder).glob("*.py"))


def imported(tree: ast.AST) -> dict[str, Any]:
    """Everything of the library that a script imports by name, wherever it does."""
    found: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "keyhole":
            module = importlib.import_module(node.module or "")
            found |= {one.asname or one.name: getattr(module, one.name) for one in node.names}
    return found


def wrong_calls(tree: ast.AST) -> Iterator[str]:
    known = imported(tree)
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and callable(known.get(node.func.id))):
            continue
        starred = any(isinstance(one, ast.Starred) for one in node.args) or any(
            one.arg is None for one in node.keywords
        )
        try:
            signature = inspect.signature(known[node.func.id])
            bind = signature.bind_partial if starred else signature.bind
            bind(
                *(one for one in node.args if not isinstance(one, ast.Starred)),
                **{k.arg: k for k in node.keywords if k.arg},
            )
        except TypeError as error:
            yield f"line {node.lineno}: {node.func.id}: {error}"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_script_calls_what_there_is(path: Path) -> None:
    assert list(wrong_calls(ast.parse(path.read_text(encoding="utf-8")))) == []


def test_what_does_not_fit_is_seen() -> None:
    lines = [
        "from keyhole.circuits.exports import is_mib as asked",
        "asked('a')",
        "asked()",
        "asked(1, two=2)",
        "asked(*x)",
    ]
    assert [one.split(":")[0] for one in wrong_calls(ast.parse("\n".join(lines)))] == ["line 3", "line 4"]
    with pytest.raises(AttributeError):
        imported(ast.parse("from keyhole.circuits.exports import gone"))
