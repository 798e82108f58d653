"""What does a move look like? Words for where heads look from and at, and no proof of what they do elsewhere."""

from collections.abc import Mapping, Sequence

from keyhole.errors import KeyholeError
from keyhole.story.routes import Move


def check_roles(roles: Mapping[str, int], length: int) -> None:
    """Refuse roles that stand outside the prompt."""
    outside = {role: at for role, at in roles.items() if not 0 <= at < length}
    if outside:
        raise KeyholeError(f"roles are token positions from 0 to {length - 1} in this prompt, not {outside}.")


def role_of(move: Move, reader: Move | None, token_ids: Sequence[int], roles: Mapping[str, int]) -> str | None:
    """A word for a move: of the task, where its roles are known, or for what its two tokens have in common.

    `reader` is the move that reads it next; None: the answer. Published names also say who reads a head.

    >>> role_of((3, 1), None, [7, 8, 9, 7], {}), role_of((3, 2), None, [7, 8, 9, 6], {})
    ('induction', 'previous token')
    >>> roles = {"END": 3, "IO": 1, "S2": 2}
    >>> role_of((3, 1), None, [6, 7, 8, 9], roles), role_of((3, 2), (3, 1), [6, 7, 8, 9], roles)
    ('name mover', 'S-inhibition')
    """
    end, receiver, giver = (roles.get(role) for role in ("END", "IO", "S2"))
    if None not in (end, receiver, giver):
        if move == (end, receiver) and reader is None:
            return "name mover"
        if move == (end, giver) and reader == (end, receiver):
            return "S-inhibition"
    dest, src = move
    words = {
        "duplicate token": token_ids[src] == token_ids[dest],
        "previous token": src == dest - 1,
        "induction": src > 0 and token_ids[src - 1] == token_ids[dest],
    }
    return " or ".join(word for word, fits in words.items() if fits) or None
