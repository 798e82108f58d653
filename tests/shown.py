"""What do the guides show, and is it still so? Commands with their output, and Python with what it prints.

A ```console block has commands after `$ ` and what they answer (a refusal begins with `error:`); `...` on a line stands
for any lines. A ```sh block has commands that are run, and whose answers are not shown. A ```python block is run after
those before it on the same page; a ```text block that follows at once is what it prints. Numbers agree to two per cent
and a unit of their last digit, errors of rounding (below 1e-4) to a factor of 30. SmolLM2.gguf means the file that
`make test` fetches.
"""

import re
import shlex
from collections.abc import Sequence
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from commands import keyhole

NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:e[-+]?\d+)?")
_DRAWN = re.compile(r"[\u2500-\u259f]+")  # bars, rules, branches
_BLOCK = re.compile(r"^```(console|sh|python|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_TINY = 1e-4
_COLUMNS = 120  # of the terminal that pages show
_SMOLLM2 = ("SmolLM2.gguf", ".cache/smollm2.gguf")
ELSEWHERE = {  # how lines begin that are not run from a page, and who runs them
    r"keyhole explore\b": "stays until it is stopped: test_server.py",
    r"keyhole bulk .* --engine ray\b": "wants a cluster: test_ray.py",
    r"circuit-tracer start-server\b": "stays, too: test_viewer.py",
    r"uvx? ": "fetches gigabytes: by hand, as docs/versions.md says",
    r"make (demo|test) ": "`make test` is what runs all this",
}
SMOLLM2 = Path(__file__).parents[1] / ".cache" / "smollm2.gguf"


@dataclass(frozen=True)
class Shown:
    """A command or a block of Python, what a page says that it answers (None: nothing), and where that stands."""

    code: str
    answer: str | None
    span: tuple[int, int]  # of the answer in the page's text
    python: bool = False


def shown(text: str) -> list[Shown]:
    """Everything on a page that is run, in its order."""
    found: list[Shown] = []
    for block in _BLOCK.finditer(text):
        kind, body, start = block[1], block[2], block.start(2)
        if kind == "python":
            found.append(Shown(body, None, (block.end(), block.end()), python=True))
        elif kind == "console":
            found += _commands(body, start)
        elif kind == "sh":
            lines = [line for line in body.splitlines() if not any(re.match(part, line) for part in ELSEWHERE)]
            found += [Shown(line, None, (block.end(), block.end())) for line in lines]
        elif found and found[-1].python and not text[found[-1].span[1] : block.start()].strip():
            found[-1] = Shown(found[-1].code, body, (start, start + len(body)), python=True)
    return found


def _commands(body: str, start: int) -> list[Shown]:
    marks = [match.start() for match in re.finditer(r"^\$ ", body, re.MULTILINE)]
    found = []
    for at, end in zip(marks, [*marks[1:], len(body)], strict=True):
        code, _, answer = body[at + 2 : end].partition("\n")
        first = at + 2 + len(code) + 1
        found.append(Shown(code, answer, (start + first, start + first + len(answer))))
    return found


def answers(things: Sequence[Shown], folder: Path) -> list[str]:
    """What each of them answers when run in this folder, one after the other; Python in its turn."""
    printed: list[str] = []
    found = []
    for one in things:
        if one.python and not printed:
            printed = _python([block.code for block in things if block.python], folder)
        found.append(printed.pop(0) if one.python else _command(one, folder))
    return found


def _command(one: Shown, folder: Path) -> str:
    words = [str(SMOLLM2) if word in _SMOLLM2 else word for word in shlex.split(one.code, comments=True)]
    assert words[0] == "keyhole", f"only commands of keyhole are run: {one.code}"
    done = keyhole(*words[1:], folder=folder, columns=_COLUMNS)
    refused = one.answer is not None and one.answer.startswith("error:")
    assert (done.returncode != 0) == refused, f"{one.code}\n{done.stderr}"
    return "\n".join(line.rstrip() for line in (done.stderr if refused else done.stdout).splitlines()) + "\n"


def _python(blocks: Sequence[str], folder: Path) -> list[str]:
    """What each block prints; they share their names, and this process, which has imported the libraries already."""
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = []
    for block in blocks:
        with redirect_stdout(StringIO()) as out, chdir(folder):
            exec(block, names)
        printed.append(out.getvalue())
    return printed


def differences(said: str, answered: str) -> str | None:
    """Where what is said is not so; None: all of it is. Lines may be broken elsewhere: terminals differ in width."""
    found, at = _words(answered), 0
    parts = [_words(part) for part in f"\n{said.rstrip()}\n".split("\n...\n")]
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        starts = range(at, len(found) - len(part) + 1) if number else [at]
        if last and number and part:
            starts = range(len(found) - len(part), len(found) - len(part) + 1)
        begin = next((i for i in starts if i >= at and _same(part, found[i : i + len(part)])), None)
        if begin is None:
            return f"{' '.join(part)!r} is said; {' '.join(found[at : at + len(part)])!r} is answered"
        at = begin + len(part)
    return None if at == len(found) or not parts[-1] else f"more is answered: {' '.join(found[at:])!r}"


def same_line(a: str, b: str) -> bool:
    """Equal but for spaces, drawn bars, and numbers a little off.

    >>> same_line("error 3e-07, weight 0.920", "error 4e-07,  weight 0.921"), same_line("2 heads", "3 heads")
    (True, False)
    """
    return _same(_words(a), _words(b))


def _words(text: str) -> list[str]:
    return [word for word in text.split() if not _DRAWN.fullmatch(word)]


def _same(a: Sequence[str], b: Sequence[str]) -> bool:
    return len(a) == len(b) and all(map(_same_word, a, b))


def _same_word(a: str, b: str) -> bool:
    if NUMBER.sub("#", a) != NUMBER.sub("#", b):
        return False
    return all(_near(x, y) for x, y in zip(NUMBER.findall(a), NUMBER.findall(b), strict=True))


def _near(a: str, b: str) -> bool:
    x, y = (float(text.replace(",", "")) for text in (a, b))
    if "e-" in a and abs(x) < _TINY:
        return abs(y) < 30 * abs(x)
    decimals = len(a.partition(".")[2].partition("e")[0])
    unit = 10.0**-decimals if "." in a else 0.0
    return abs(x - y) <= 0.02 * abs(x) + 1.01 * unit if "." in a or "e" in a else x == y
