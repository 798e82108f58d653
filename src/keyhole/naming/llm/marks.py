"""How does a model see an example? As text on one line, with dest in [[...]] and src in {{...}}.

What follows dest is left out: when the head looks back from there, the model has not read it.
"""

from keyhole.naming.judging.questions import Marked

MARKS = (
    "In each text two tokens are marked: dest stands in [[double brackets]], and src, the token that it looks back at,"
    " in {{double braces}}. Where both are the same token, it stands in [[{{both}}]]. Each text ends at dest."
)


def shown_text(one: Marked) -> str:
    r"""The text up to dest, marked.

    >>> shown_text(Marked((" Mary", " gave", " it", "\n", " to", " him"), 4, 0))
    '{{Mary}} gave it\\n [[to]]'
    """
    src, dest = ("{{", "}}"), ("[[", "]]")
    if one.dest == one.src:
        parts = [_plain("".join(one.tokens[: one.dest])), _inside(one.tokens[one.dest], "[[{{", "}}]]")]
    else:
        parts = [
            _plain("".join(one.tokens[: one.src])),
            _inside(one.tokens[one.src], *src),
            _plain("".join(one.tokens[one.src + 1 : one.dest])),
            _inside(one.tokens[one.dest], *dest),
        ]
    return "".join(parts).strip()


def _inside(token: str, opening: str, closing: str) -> str:
    """Marks stand at the word, after its space; a token of spaces alone stays visible."""
    word = token.strip(" ")
    if not word:
        return f"{opening}{token}{closing}"
    before, _, after = token.partition(word)
    return f"{before}{opening}{_plain(word)}{closing}{after}"


def _plain(text: str) -> str:
    """A text's own brackets mark nothing, and its lines do not end the line."""
    for mark in ("[", "]", "{", "}"):
        while mark * 2 in text:
            text = text.replace(mark * 2, f"{mark} {mark}")
    return text.replace("\r", "\\r").replace("\n", "\\n")
