"""Do names say what they hold? Words that stand for anything (told, made, own, seen, asked) name nothing in `src`.

python tests/test_names.py src/keyhole/store    # the places, in any folder or file
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"
EMPTY = {"told", "made", "own", "seen", "asked"}


def bound(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every name that is given to something, with its line.

    By an assignment, a loop, a comprehension, `with`, `except`, `match`, `import ... as`, `:=`, `del` apart; as a
    parameter, a function or a class. Fields of records are not among them: files have keys of these names.
    """
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    keys = {id(part.target) for each in classes for part in each.body if isinstance(part, ast.AnnAssign)}
    for node in ast.walk(tree):
        match node:
            case ast.Name() if id(node) in keys:
                pass
            case ast.Name(id=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node.lineno, name
            case ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name
            case ast.MatchMapping(rest=str(name)):
                yield node.lineno, name
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from ((node.lineno, alias.asname or alias.name) for alias in aliases)


def empty_names(path: Path) -> list[str]:
    """Where the modules of a folder, or one module, bind such a name."""
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return [
        f"{file}:{line}: {name}"
        for file in files
        for line, name in bound(ast.parse(file.read_text(encoding="utf-8")))
        if name in EMPTY
    ]


@pytest.mark.parametrize("package", ["keyhole", "keyhole_papers"])
def test_no_name_stands_for_anything(package: str) -> None:
    assert (SRC / package).is_dir() and empty_names(SRC / package) == []


@pytest.mark.parametrize(
    "text",
    [
        "told = 1",
        "told: int = 1",
        "a, (*told, b) = c",
        "told += 1",
        "def f(told): pass",
        "def f(*told): pass",
        "def f(*, told=1): pass",
        "def told(): pass",
        "async def told(): pass",
        "class told: pass",
        "lambda told: 1",
        "for told in a: pass",
        "[b for told in a]",
        "{b: 1 for b, told in a}",
        "with a as told: pass",
        "with a as (b, told): pass",
        "try:\n    pass\nexcept E as told:\n    pass",
        "match a:\n    case {'k': told}: pass",
        "match a:\n    case [*told]: pass",
        "match a:\n    case {**told}: pass",
        "match a:\n    case C(b) as told: pass",
        "if (told := a): pass",
        "import a as told",
        "from a import b as told",
    ],
)
def test_every_way_to_bind_a_name_is_seen(text: str, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(text)
    assert [place.rpartition(": ")[2] for place in empty_names(tmp_path)] == ["told"] == [empty_names(path)[0][-4:]]


def test_reading_is_no_binding(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(
        "f(told=1)\nprint(a.told, told)\na.told = 1\n'told'  # told\nclass A:\n    told: int = 1\n"
    )
    assert empty_names(tmp_path) == []


if __name__ == "__main__":
    places = [place for argument in sys.argv[1:] or [str(SRC)] for place in empty_names(Path(argument))]
    print("\n".join(places))
    sys.exit(bool(places))
