"""How do docstrings and records look in the API reference? An extension of griffe, which mkdocstrings reads them with.

Fields of dataclasses become a table: what stands beside a field, behind the #, is what it means. Doctests become blocks
of code: as plain text, Markdown would take their >>> for quotations.
"""

import re
import tokenize
from io import StringIO
from pathlib import Path
from textwrap import dedent
from typing import Any

import griffe

_DOCTEST = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)  # up to the next empty line


class Pages(griffe.Extension):
    """What griffe calls for everything that it has read."""

    def on_object(self, *, obj: griffe.Object, loader: griffe.GriffeLoader, **_: Any) -> None:
        """Doctests of any docstring."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)

    def on_class(self, *, cls: griffe.Class, loader: griffe.GriffeLoader, **_: Any) -> None:
        """Fields of a dataclass, below its docstring."""
        if "dataclass" not in cls.labels or cls.docstring is None:
            return
        fields = [
            griffe.DocstringAttribute(one.name, description=comment(one), annotation=one.annotation)
            for one in cls.attributes.values()
            if one.annotation is not None and "property" not in one.labels and not one.name.startswith("_")
        ]
        if fields:
            told = griffe.Docstring(fenced(cls.docstring.value), parent=cls).parse("google")
            cls.docstring.__dict__["parsed"] = [*told, griffe.DocstringSectionAttributes(fields, title="Fields:")]


def fenced(text: str) -> str:
    r"""A docstring with its doctests as blocks of code.

    >>> fenced("Adds.\n>>> 1 + 1\n2")
    'Adds.\n\n```pycon\n>>> 1 + 1\n2\n```'
    """
    return _DOCTEST.sub(lambda found: f"\n```pycon\n{found[0]}\n```", text)


def comment(field: griffe.Attribute) -> str:
    """What stands behind the # on the lines of a field."""
    first, last = field.lineno or 1, field.endlineno or field.lineno or 1
    return after_code("\n".join(field.lines_collection[Path(str(field.filepath))][first - 1 : last]))


def after_code(lines: str) -> str:
    r"""The comment of a field; nothing where there is none.

    >>> after_code('    layer: int = 0  # from 0'), after_code('    text: str = "#"'), after_code("    text: str")
    ('from 0', '', '')
    >>> after_code('    row: int = (\n        0\n    )  # of the table')
    'of the table'
    """
    tokens = tokenize.generate_tokens(StringIO(dedent(lines)).readline)
    return " ".join(token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT)
