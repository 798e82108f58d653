"""Does every module import only from its own layer and from earlier ones? Lazy imports count as well.

The order is that of the design, with what the code showed to be better:
- `version` is a foundation, because circuit files and results carry it: nothing imports the public API itself.
- `Writer` belongs to the records in `circuits`, and the check of a run to `tracing`, which alone knows the split.
- `requests` stands below those who serve: the page's server (`web`) and that of agents read and queue them alike.
- `show` (the terminal) stands just below `cli`: the library never prints.
"""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

SRC = Path(__file__).parents[1] / "src" / "keyhole"
LAYERS = [
    ("_exports", "_moved", "_openmp", "errors", "version"),
    ("brief", "cache", "files", "progress", "settings", "stats", "strict"),
    ("report",),
    *[
        ("models",),
        ("qk",),
        ("circuits",),
        ("tracing",),
        ("intervene",),
        ("edits",),
        ("tasks",),
        ("faithfulness",),
        ("generation",),
        ("store",),
        ("figures",),
        ("features",),
        ("claims",),
        ("studies",),
        ("naming",),
    ],
    *[
        ("lab",),
        ("requests",),
        ("agents", "web"),
        ("show",),
        ("cli",),
        ("__main__", "__init__"),
    ],
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
# One-line convenience methods of records may call up, to where the work is done; so may the types they promise.
CONVENIENCES = {
    *[("models/run.py", f"Run.{name}") for name in ("channels", "explain", "explain_mlp", "firings", "plot")],
    *[
        ("models/run.py", f"Run.{name}")
        for name in ("next", "sufficient", "toward", "trace", "trace_both", "with_edits", "writers", "_repr_html_")
    ],
    *[("models/model.py", f"Model.{name}") for name in ("contrast", "edited", "generate")],
    *[
        ("circuits/circuit.py", f"Circuit.{name}")
        for name in ("backups", "claims", "edit", "effects", "plot", "show", "story", "to_html", "verify")
    ],
    *[("circuits/circuit.py", f"Circuit.{name}") for name in ("widget", "_repr_html_")],
    *[("circuits/files.py", name) for name in ("save", "_draw")],
    *[("circuits/graph.py", f"Edge.{name}") for name in ("claim", "edit")],
    ("features/contrast/found.py", "FoundHead.claim"),
    ("qk/channels.py", "Channels._repr_html_"),
    *[("report/report.py", name) for name in ("Reported._repr_html_", "Reported.save")],
    *[("tracing/firing.py", f"Firing.{name}") for name in ("claim", "edits", "widget", "_repr_html_")],
    ("faithfulness/removals.py", "Verification._repr_html_"),
    ("faithfulness/backup_record.py", "Backups.plot"),
}


def test_modules_import_only_what_stands_before_them() -> None:
    above = {
        (path, function)
        for path, function, module, typing in _imports()
        if RANK[_layer(module)] > RANK[_layer(_name(path))] and not (typing and _has_conveniences(path))
    }
    assert above == CONVENIENCES


def test_the_library_imports_no_paper() -> None:
    for path in sorted(SRC.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
        names += [str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        assert not [name for name in names if name.split(".")[0] == "keyhole_papers"], path


def test_no_module_needs_itself() -> None:
    graph: dict[str, set[str]] = {}
    for path, function, module, typing in _imports():
        if not typing and not function[:1].isupper():  # methods may be conveniences within their package, too
            graph.setdefault(_name(path), set()).add(module)
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the cycle


def _imports() -> Iterator[tuple[str, str, str, bool]]:
    """(file, enclosing function, module of ours, only for types?) of every import in the source."""
    for path in sorted(SRC.rglob("*.py")):
        yield from _below(ast.parse(path.read_text(encoding="utf-8")), str(path.relative_to(SRC).as_posix()), "", False)


def _below(node: ast.AST, path: str, function: str, typing: bool) -> Iterator[tuple[str, str, str, bool]]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        function = f"{function}.{node.name}".lstrip(".")
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        typing = True
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{path} imports relatively"
        inside = [f"{node.module}.{alias.name}" for alias in node.names]
        names = [name if _file(name) else str(node.module) for name in inside]
    yield from ((path, function, name, typing) for name in dict.fromkeys(names) if name.split(".")[0] == "keyhole")
    for child in ast.iter_child_nodes(node):
        yield from _below(child, path, function, typing)


def _file(module: str) -> bool:
    place = SRC.parent.joinpath(*module.split("."))
    return place.with_suffix(".py").exists() or (place / "__init__.py").exists()


def _name(path: str) -> str:
    return ".".join(("keyhole", *Path(path).with_suffix("").parts)).removesuffix(".__init__")


def _layer(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def _has_conveniences(path: str) -> bool:
    return any(path == listed for listed, _ in CONVENIENCES)
