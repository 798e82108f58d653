"""How long may a regular expression take? Some backtrack for ever: those run in a process that can be ended.

Python's `re` cannot be interrupted, except by ending its process. A pattern with at most one repetition of unknown
length, and nothing that repeats inside a repetition, takes time that grows with the square of the text at worst, and is
matched here. Any other is matched in a process of its own, within `SECONDS`.
"""

import json
import re
import subprocess
import sys
from functools import lru_cache
from typing import Any

from keyhole.errors import KeyholeError
from keyhole.models.tokens.spans import Span
from keyhole.strict import quoted

SECONDS = 10.0  # for all matches of a pattern in one prompt
_SHORT = 16  # repetitions of a bounded length, such as {1,2}, which cost little
_MATCH = """
import json, re, sys
pattern, text, inside = json.load(sys.stdin)
print(json.dumps([match.span(inside) for match in re.finditer(pattern, text)]))
"""


def is_quick(pattern: str) -> bool:
    r"""Is it sure to end soon?

    >>> is_quick(r"item (\w+)"), is_quick(r"(\w+\s?)*$"), is_quick(r"(a|a)*b")
    (True, False, False)
    """
    return _cost(re._parser.parse(pattern)) <= 1  # type: ignore[attr-defined]


def _cost(parsed: Any) -> float:
    """How many repetitions of unknown length stand one after another; without end, where one is inside another."""
    total = 0.0
    for name, argument in parsed:
        kind = str(name)
        if kind in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            _, most, inside = argument
            choices = _cost(inside) > 0 or _branches(inside)
            total += float("inf") if choices and most > 1 else float(most > _SHORT)
        elif kind == "SUBPATTERN":
            total += _cost(argument[-1])
        elif kind == "BRANCH":
            total += sum(_cost(branch) for branch in argument[1])
        elif kind not in ("LITERAL", "NOT_LITERAL", "ANY", "IN", "AT"):  # look-arounds and what refers back
            return float("inf")
    return total


def _branches(parsed: Any) -> bool:
    """Has it alternatives, at any depth? Inside a repetition they may match the same text in many ways."""
    names = [(str(name), argument) for name, argument in parsed]
    return any(name == "BRANCH" or (name == "SUBPATTERN" and _branches(argument[-1])) for name, argument in names)


@lru_cache(maxsize=1024)
def bounded_spans(pattern: str, text: str, inside: int) -> tuple[Span, ...]:
    """Where a pattern matches, or its group `inside`; refused where that takes more than `SECONDS`."""
    asked = json.dumps([pattern, text, inside])
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _MATCH], input=asked, capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise KeyholeError(
            f"the pattern {quoted(pattern)} takes more than {SECONDS:.0f} seconds in {quoted(text)}: write it without "
            "repetitions inside repetitions, such as (a+)+."
        ) from error
    if done.returncode:
        raise KeyholeError(f"the pattern {quoted(pattern)} cannot be matched: {done.stderr.strip().splitlines()[-1]}.")
    return tuple((start, end) for start, end in json.loads(done.stdout))
