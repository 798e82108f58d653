"""Documents and files that are almost right: a few changes to a valid one, drawn by hypothesis."""

import copy
from collections.abc import Callable
from random import Random
from typing import Any

STRANGE: tuple[Any, ...] = (
    None,
    True,
    0,
    1,
    -1,
    99,
    2**31,
    2**63,
    10**400,
    0.5,
    -0.5,
    1e-320,
    1e300,
    "",
    " ",
    "\x00",
    "\x1b[2J\ud7ff\ufffe",
    "</script><!--",
    "head",
    "target",
    "x" * 10_000,
    [],
    [[]],
    {},
    {"schema": 1},
)
Path = list[str | int]


def mutated(document: Any, random: Random, most: int = 3) -> Any:
    """The document with one to `most` changes: values replaced, moved about, left out, repeated."""
    changed = copy.deepcopy(document)
    for _ in range(random.randint(1, most)):
        path = _somewhere(changed, random)
        if path:
            random.choice(_CHANGES)(changed, path, random)
    return changed


def _somewhere(document: Any, random: Random) -> Path:
    """A random place in it: deeper ones are as likely as the part that they are in."""
    path: Path = []
    while isinstance(document, dict | list) and document and (not path or random.random() < 0.9):
        path.append(random.choice(list(document)) if isinstance(document, dict) else random.randrange(len(document)))
        document = document[path[-1]]
    return path


def _parent(document: Any, path: Path) -> Any:
    for step in path[:-1]:
        document = document[step]
    return document


def _strange(document: Any, path: Path, random: Random) -> None:
    _parent(document, path)[path[-1]] = copy.deepcopy(random.choice(STRANGE))


def _like_another(document: Any, path: Path, random: Random) -> None:
    """A value that the same field has elsewhere: well typed, and in the wrong place."""
    other = [random.randrange(10**6) if isinstance(step, int) else step for step in path]
    value = document
    for step in other:
        if isinstance(value, list) and isinstance(step, int) and value:
            value = value[step % len(value)]
        elif isinstance(value, dict) and step in value:
            value = value[step]
        else:
            return
    _parent(document, path)[path[-1]] = copy.deepcopy(value)


def _near(document: Any, path: Path, random: Random) -> None:
    """A number next to the right one."""
    parent, last = _parent(document, path), path[-1]
    if isinstance(parent[last], int) and not isinstance(parent[last], bool):
        parent[last] += random.choice((-1, 1, 1000))
    elif isinstance(parent[last], float):
        parent[last] *= random.choice((-1.0, 0.0, 2.0, 1e9))
    elif isinstance(parent[last], str):
        parent[last] = parent[last][::-1] + random.choice(("", "\n", "é"))


def _left_out(document: Any, path: Path, random: Random) -> None:
    del _parent(document, path)[path[-1]]


def _repeated(document: Any, path: Path, random: Random) -> None:
    parent = _parent(document, path)
    if isinstance(parent, list) and isinstance(path[-1], int):
        parent.insert(random.randrange(len(parent) + 1), copy.deepcopy(parent[path[-1]]))
    else:
        parent[f"{path[-1]} "] = copy.deepcopy(parent[path[-1]])


_CHANGES: tuple[Callable[[Any, Path, Random], None], ...] = (
    _strange,
    _like_another,
    _like_another,
    _near,
    _near,
    _left_out,
    _repeated,
)


def damaged(content: bytes, random: Random) -> bytes:
    """Bytes with a few of them changed, cut, repeated or left out."""
    found = bytearray(content)
    for _ in range(random.randint(1, 4)):
        at, size = random.randrange(len(found) + 1), random.choice((1, 4, 8, 64))
        kind = random.randrange(4)
        if kind == 0:
            found[at : at + size] = bytes(random.randrange(256) for _ in range(size))
        elif kind == 1:
            found[at : at + size] = random.choice((b"\x00", b"\xff")) * size
        elif kind == 2:
            del found[at : at + size]
        else:
            found[at:at] = found[at : at + size]
    return bytes(found if random.random() < 0.8 else found[: random.randrange(len(found) + 1)])
