"""Which role does each token of a prompt play? The nearest named one at or before it, with the distance."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int

from keyhole.errors import KeyholeError
from keyhole.tasks.example import Example
from keyhole.tasks.places import place_names

if TYPE_CHECKING:
    import pyarrow as pa

    from keyhole.store.store import Store


@dataclass(frozen=True)
class RoleCodes:
    """The role of every token of every circuit, as a number into `texts`."""

    texts: tuple[str, ...]
    flat: Int[np.ndarray, "tokens"]
    first: Int[np.ndarray, "circuits"]  # where each circuit's tokens begin in `flat`

    def at(self, circuit: Int[np.ndarray, "rows"], position: Int[np.ndarray, "rows"]) -> Int[np.ndarray, "rows"]:
        """The role of these tokens of these circuits."""
        return np.asarray(self.flat[self.first[circuit] + position])


def role_codes(prompts: Iterable[tuple[Example, tuple[str, ...]]]) -> RoleCodes:
    """The roles of all tokens of these prompts, each given with its tokens."""
    known: dict[str, int] = {}
    flat: list[int] = []
    first: list[int] = []
    for example, tokens in prompts:
        first.append(len(flat))
        names = place_names(example.places(tokens), len(tokens))
        flat += [known.setdefault(name, len(known)) for name in names]
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


def _pieces(table: "pa.Table", rows: int = 4096) -> Iterator[list[dict[str, Any]]]:
    """A table's rows as records, some at a time: all of them would fill the memory with texts."""
    for start in range(0, table.num_rows, rows):
        yield table.slice(start, rows).to_pylist()
