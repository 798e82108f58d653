"""How do many modules become one script? In the order of their needs, each in a scope of its own; nothing is compiled.

The modules are plain: `import { a, b } from "./x.js";`, `import x from "./x.js";`, and `export` before a function, a
constant, a class, or `default`. Any other form is refused, because it would mean something else once joined.
"""

import re
from functools import cache
from pathlib import Path, PurePosixPath

from keyhole.errors import KeyholeError

STATIC = Path(__file__).with_name("static")
_NAMES = r"\{\s*(\w+(?:\s*,\s*\w+)*),?\s*\}"
_IMPORT = re.compile(rf'^import (?:{_NAMES}|(\w+)) from "(\.{{1,2}}/[\w./-]+\.js)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (async function|function|const|class) (\w+)", re.MULTILINE)
_DEFAULT = re.compile(r"^export default ", re.MULTILINE)
_COMMENT = re.compile(r"^[ \t]*(?:/\*\*(?:(?!\*/).)*\*/|//[^\n]*)[ \t]*\n", re.MULTILINE | re.DOTALL)


@cache
def script(entry: str, *, module: bool = False) -> str:
    """All that `entry` needs, as one script: `keyhole` has its exports. Or a module with its default export."""
    parts = [_scope(name) for name in _ordered(entry)]
    end = f"export default {_name(entry)}.default;" if module else f"const keyhole = {_name(entry)};"
    return "\n".join([*parts, end, ""])


@cache
def style(*names: str) -> str:
    """Some stylesheets as one."""
    return "".join((STATIC / name).read_text(encoding="utf-8") for name in names)


def _ordered(entry: str) -> list[str]:
    """The modules below one, each after those it imports; a cycle is refused."""
    done: list[str] = []
    _visit(entry, done, ())
    return done


def _visit(name: str, done: list[str], above: tuple[str, ...]) -> None:
    if name in above:
        raise KeyholeError(f"{name} imports itself, through {' and '.join(above)}.")
    if name not in done:
        for _, _, needed in _IMPORT.findall(_read(name)):
            _visit(_beside(name, needed), done, (*above, name))
        done.append(name)


def _scope(name: str) -> str:
    """One module as a function that returns what it exports."""
    text = _read(name)
    exported = [found for _, found in _EXPORT.findall(text)]

    def taken(match: re.Match[str]) -> str:
        names, default, needed = match.groups()
        return f"const {f'{{ {names} }}' if names else f'{{ default: {default} }}'} = {_name(_beside(name, needed))};"

    text = _EXPORT.sub(r"\1 \2", _IMPORT.sub(taken, text))
    if _DEFAULT.search(text):
        text, exported = _DEFAULT.sub("const _default = ", text), [*exported, "default: _default"]
    odd = re.search(r"^(import|export)\b.*$", text, re.MULTILINE)
    if odd:
        raise KeyholeError(f"{name} has a line that cannot be joined with others: {odd[0]}")
    return f"const {_name(name)} = (() => {{\n{text.strip()}\nreturn {{ {', '.join(exported)} }};\n}})();"


@cache
def _read(name: str) -> str:
    """A module's text without comments on lines of their own, which no reader of the joined script needs."""
    return _COMMENT.sub("", (STATIC / name).read_text(encoding="utf-8"))


def _beside(name: str, needed: str) -> str:
    """Where an import leads, from the folder of static files.

    >>> _beside("views/circuit/axes.js", "../../lib/dom.js")
    'lib/dom.js'
    """
    parts: list[str] = []
    for part in (PurePosixPath(name).parent / needed).parts:
        parts = parts[:-1] if part == ".." else [*parts, part]
    return "/".join(parts)


def _name(name: str) -> str:
    """What a module is called in the joined script.

    >>> _name("lib/dom.js")
    '$lib_dom'
    """
    return "$" + re.sub(r"\W", "_", name.removesuffix(".js"))
