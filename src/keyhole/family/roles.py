"""Which role does each token of a prompt play? The nearest named one at or before it, with the distance."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int

from keyhole.errors import KeyholeError
from keyhole.tasks.example import Example

if TYPE_CHECKING:
    from keyhole.store.store import Store

START = "START"  # the first token, and what follows it before any role


@dataclass(frozen=True)
class RoleCodes:
    """The role of every token of every circuit, as a number into `texts`."""

    texts: tuple[str, ...]
    flat: Int[np.ndarray, "tokens"]
    first: Int[np.ndarray, "circuits"]  # where each circuit's tokens begin in `flat`

    def at(self, circuit: Int[np.ndarray, "rows"], position: Int[np.ndarray, "rows"]) -> Int[np.ndarray, "rows"]:
        """The role of these tokens of these circuits."""
        return self.flat[self.first[circuit] + position]


def role_texts(places: Mapping[str, int], length: int) -> list[str]:
    """The role of each token of a prompt. Of several roles at one token the last counts, as in the papers.

    >>> role_texts({"IO": 2, "S1": 4, "S1+1": 5, "END": 7}, 8)
    ['START', 'START+1', 'IO', 'IO+1', 'S1', 'S1+1', 'S1+2', 'END']
    """
    named = {position: role for role, position in places.items()}
    found, base, since = [], START, 0
    for position in range(length):
        if position in named:
            base, since = _base(named[position])
        found.append(f"{base}+{since}" if since else base)
        since += 1
    return found


def role_codes(prompts: Iterable[tuple[Example, tuple[str, ...]]]) -> RoleCodes:
    """The roles of all tokens of these prompts, each given with its tokens."""
    known: dict[str, int] = {}
    flat: list[int] = []
    first: list[int] = []
    for example, tokens in prompts:
        first.append(len(flat))
        texts = role_texts(example.places(tokens), len(tokens))
        flat += [known.setdefault(text, len(known)) for text in texts]
    return RoleCodes(tuple(known), np.array(flat, np.int64), np.array(first, np.int64))


def stored_prompts(store: "Store", prompts: Int[np.ndarray, "circuits"]) -> Iterator[tuple[Example, tuple[str, ...]]]:
    """The texts with their roles, and the tokens, of these prompts of a store; no circuit is read."""
    asked = {"prompt": prompts.tolist()}
    spans = store.table("prompts", columns=["prompt", "text", "roles", "role_start", "role_end"], where=asked)
    tokens = store.table("circuits", columns=["prompt", "tokens"], where=asked)
    if spans["prompt"].to_pylist() != prompts.tolist() or tokens["prompt"].to_pylist() != prompts.tolist():
        raise KeyholeError(f"{store.path} has prompts out of order: run `keyhole bulk` again, which makes it whole.")
    for batch, own in zip(_pieces(spans), _pieces(tokens), strict=True):
        for row, cut in zip(batch, own, strict=True):
            roles = dict(zip(row["roles"], zip(row["role_start"], row["role_end"], strict=True), strict=True))
            yield Example("", row["text"], "", (), (), roles, "", ""), tuple(cut["tokens"])


def _pieces(table, rows: int = 4096):  # type: ignore[no-untyped-def]
    """A table's rows as records, some at a time: all of them would fill the memory with texts."""
    for start in range(0, table.num_rows, rows):
        yield table.slice(start, rows).to_pylist()


def _base(role: str) -> tuple[str, int]:
    """A role that is itself named after another: S1+1 is one token after S1."""
    base, plus, distance = role.rpartition("+")
    return (base, int(distance)) if plus and distance.isdecimal() else (role, 0)
