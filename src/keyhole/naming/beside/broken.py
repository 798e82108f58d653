"""What would a prompt be whose cue is broken? The same people and roles; another order, one more name, another place.

- order: the two names change places where they are first named. First is then second; who receives stays.
- extra name: a third person between the two. What was the second name is now the third.
- position: a sentence before it all. Every distance within the prompt stays, and every position changes.
"""

from dataclasses import replace
from typing import Literal, get_args

from keyhole.errors import KeyholeError
from keyhole.tasks.example import Example, piece_after

Break = Literal["intact", "order", "extra name", "position"]
BREAKS: tuple[Break, ...] = get_args(Break)
EXTRA = "EXTRA"  # the role of the third person


def broken(example: Example, how: Break, *, name: str, place: str) -> Example:
    """A prompt of indirect objects with one of its cues broken; `name` and `place` are what is put in.

    >>> from keyhole.tasks import ioi
    >>> one = ioi(1, names=("Mary", "John"), wordings=[0], order="ABBA")[0]
    >>> broken(one, "order", name="Anna", place="park").text == one.text.replace(
    ...     f"{one.word('IO')} and {one.word('S1')}", f"{one.word('S1')} and {one.word('IO')}"
    ... )
    True
    """
    if example.task != "ioi" or not {"IO", "S1"} <= example.roles.keys():
        raise KeyholeError(f"cues are broken in prompts of ioi, and this one is of {example.task!r}.")
    if how == "intact":
        return example
    if how == "order":
        return _swapped(example)
    if how == "position":
        return _inserted(example, 0, f"The {place} was quiet. ")
    at = min(example.roles["IO"], example.roles["S1"])[1]
    made = _inserted(example, at, f", {name}")
    return replace(made, roles={**made.roles, EXTRA: (at + 2, at + 2 + len(name))})


def _swapped(example: Example) -> Example:
    """The first mentions of both people change places, and the roles with them."""
    one, two = sorted(("IO", "S1"), key=lambda role: example.roles[role])
    (a, b), (c, d) = example.roles[one], example.roles[two]
    first, second = example.text[a:b], example.text[c:d]
    text = example.text[:a] + second + example.text[b:c] + first + example.text[d:]
    roles = dict(example.roles)  # nothing behind both moves
    roles[two], roles[one] = (a, a + len(second)), (d - len(first), d)
    inside = {role: span for role, span in roles.items() if role not in (one, two) and b <= span[0] < c}
    roles |= {role: (x + len(second) - len(first), y + len(second) - len(first)) for role, (x, y) in inside.items()}
    if "S1+1" in roles:
        roles["S1+1"] = piece_after(text, roles["S1"])
    order = {"ABBA": "BABA", "BABA": "ABBA"}.get(example.labels.get("order", ""), "")
    return replace(example, text=text, roles=roles, labels={**example.labels, "order": order})


def _inserted(example: Example, at: int, text: str) -> Example:
    roles = {role: (a, b) if a < at else (a + len(text), b + len(text)) for role, (a, b) in example.roles.items()}
    made = replace(example, text=example.text[:at] + text + example.text[at:], roles=roles)
    return replace(made, roles=roles | ({"S1+1": piece_after(made.text, roles["S1"])} if "S1+1" in roles else {}))
