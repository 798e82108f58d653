"""How does an example read? Its text with dest and src marked, and its far ends cut."""

from typing import Literal

from keyhole.naming.shown import Shown

Mark = Literal["", "dest", "src", "both"]
AROUND = 60  # characters of text on each side of the two tokens
_SIGNS: dict[Mark, tuple[str, str]] = {
    "": ("", ""),
    "dest": ("[[", "]]"),
    "src": ("((", "))"),
    "both": ("[[((", "))]]"),
}


def parts(one: Shown, around: int = AROUND) -> list[tuple[str, Mark]]:
    """The text in pieces, each with how it is marked; spaces before a token are not.

    >>> parts(Shown(0, ("Mary", " went", " to"), 2, 0, 1.0, 1.0, "top"))
    [('Mary', 'src'), (' went ', ''), ('to', 'dest')]
    """
    glue = "" if any(token.startswith((" ", "\n")) for token in one.tokens) else " "  # else tokens are whole words
    found: list[tuple[str, Mark]] = []
    for at, token in enumerate(one.tokens):
        text = (glue if at else "") + token.replace("\n", " ")
        bare = text.lstrip()
        mark = _mark(one, at)
        space = text[: len(text) - len(bare)] if mark else ""
        for piece, kind in ((space, ""), (bare if mark else text, mark)):
            if piece and found and found[-1][1] == kind == "":
                found[-1] = (found[-1][0] + piece, "")
            elif piece:
                found.append((piece, kind))  # type: ignore[arg-type]
    return _cut(found, around)


def marked_text(one: Shown, around: int = AROUND) -> str:
    """As plain text: [[dest]] attends to ((src)).

    >>> marked_text(Shown(0, ("Mary", " went", " to"), 2, 0, 1.0, 1.0, "top"))
    '((Mary)) went [[to]]'
    """
    return "".join(f"{_SIGNS[mark][0]}{text}{_SIGNS[mark][1]}" for text, mark in parts(one, around)).strip()


def _mark(one: Shown, at: int) -> Mark:
    if one.dest == one.src == at:
        return "both"
    return "dest" if at == one.dest else "src" if at == one.src else ""


def _cut(found: list[tuple[str, Mark]], around: int) -> list[tuple[str, Mark]]:
    """Without the far ends; what stands between the two tokens stays whole."""
    first, last = found[0], found[-1]
    if not first[1] and len(first[0]) > around:
        found = [(f"…{first[0][-around:]}", ""), *found[1:]]
    if not last[1] and len(last[0]) > around:
        found = [*found[:-1], (f"{last[0][:around]}…", "")]
    return found
