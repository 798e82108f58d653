"""Which examples are alike? Each as a vector of what its tokens are; a sentence-embedding model may take its place."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from zlib import crc32

import numpy as np
from jaxtyping import Float

from keyhole.naming.judging.questions import Marked
from keyhole.naming.language.clauses import true_of
from keyhole.naming.language.kinds import normal

_DIMS = 1024
_CONTEXT = 0.25  # weight of all other tokens together, beside one fact about dest or src
_FAR = (0, 1, 2, 4, 8, 16)

Embed = Callable[[Sequence[Marked]], Float[np.ndarray, "examples dims"]]


def bag(pairs: Sequence[Marked]) -> Float[np.ndarray, "examples dims"]:
    """What is true of dest, src and their neighbours, their distance, and the words around, hashed; of length one."""
    return np.stack([_hashed(pair) for pair in pairs])


@lru_cache(maxsize=4000)  # every question shows the same known examples
def _hashed(pair: Marked) -> Float[np.ndarray, "dims"]:
    row = np.zeros(_DIMS)
    far = sum(pair.dest - pair.src >= step for step in _FAR)
    for fact in (*map(repr, true_of(pair)), f"far {far}"):
        row[crc32(fact.encode()) % _DIMS] += 1
    for token in pair.tokens:
        row[crc32(f"near {normal(token)}".encode()) % _DIMS] += _CONTEXT / len(pair.tokens)
    return np.asarray(unit(row[None])[0])


def unit(rows: Float[np.ndarray, "examples dims"]) -> Float[np.ndarray, "examples dims"]:
    """Rows of length one; nothing stays nothing."""
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12))
