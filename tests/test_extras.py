"""What is missing is named: an optional part without its package is one sentence, and nothing else stops.

Those of clusters (test_ray.py) and of UMAP (test_figures.py) are tested where they are drawn and run.
"""

import subprocess
import sys
from pathlib import Path

import pytest

import keyhole
from keyhole.brief import as_dataframe
from keyhole.errors import KeyholeError

_BLOCK = """
from importlib.machinery import PathFinder
real, names = PathFinder.find_spec, {names!r}
def find_spec(name, path=None, target=None):  # as if they were not installed: nothing is found
    return None if name.split(".")[0] in names else real(name, path, target)
PathFinder.find_spec = find_spec
"""


def without(names: tuple[str, ...], code: str) -> "subprocess.CompletedProcess[str]":
    script = _BLOCK.format(names=set(names)) + code
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=200)


def said(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """As if these were not installed: None in sys.modules makes an import fail."""
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize("missing", ["gguf", "accelerate"])
def test_gguf_files_name_their_extra(missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said(monkeypatch, missing)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(KeyholeError, match=r"pip install 'keyhole\[gguf\]'"):
        keyhole.load(tmp_path / "model.gguf")


def test_a_server_for_agents_names_its_extra(tmp_path: Path) -> None:
    code = f"from keyhole.cli.app import main; import sys; sys.argv[1:] = ['mcp', {str(tmp_path)!r}]; main()"
    ended = without(("mcp", "mcp_types"), code)
    assert ended.returncode == 2 and not ended.stdout and "pip install 'keyhole[mcp]'" in ended.stderr


def test_without_pandas_tables_are_records(monkeypatch: pytest.MonkeyPatch) -> None:
    said(monkeypatch, "pandas")
    rows = [{"a": 1}, {"a": 2}]
    assert as_dataframe(rows) == rows


def test_everything_else_works_without_them() -> None:
    """Load, check and trace with no optional package at all, in a process of its own."""
    names = (
        "gguf",
        "accelerate",
        "umap",
        "numba",
        "sklearn",
        "ray",
        "pandas",
        "polars",
        "duckdb",
        "IPython",
        "anywidget",
        "mcp",
        "mcp_types",
    )
    code = """
import keyhole
model = keyhole.load()
run = model.run("When Mary and John went to the store, John gave a drink to")
circuit = run.trace("Mary", against="John")
assert keyhole.check(model, list(run.token_ids)).exact and isinstance(circuit.to_dataframe(), list)
print(len(circuit.edges))
"""
    told = without(names, code)
    assert told.returncode == 0 and int(told.stdout) > 20, told.stderr
