"""Which examples are alike? Each as a vector of what its tokens are; a sentence-embedding model may take its place."""

from collections.abc import Callable, Sequence
from zlib import crc32

import numpy as np
from jaxtyping import Float

from keyhole.naming.clauses import true_of
from keyhole.naming.kinds import normal
from keyhole.naming.questions import Marked

_DIMS = 1024
_CONTEXT = 0.25  # weight of all other tokens together, beside one fact about dest or src
_FAR = (0, 1, 2, 4, 8, 16)

Embed = Callable[[Sequence[Marked]], Float[np.ndarray, "examples dims"]]


def bag(pairs: Sequence[Marked]) -> Float[np.ndarray, "examples dims"]:
    """What is true of dest, src and their neighbours, how far apart they are, and the words around, hashed; of length one."""
    rows = np.zeros((len(pairs), _DIMS))
    for row, pair in zip(rows, pairs, strict=True):
        facts = [repr(clause) for clause in true_of(pair)]
        far = sum(pair.dest - pair.src >= step for step in _FAR)
        for fact in (*facts, f"far {far}"):
            row[crc32(fact.encode()) % _DIMS] += 1
        for token in pair.tokens:
            row[crc32(f"near {normal(token)}".encode()) % _DIMS] += _CONTEXT / len(pair.tokens)
    return unit(rows)


def unit(rows: Float[np.ndarray, "examples dims"]) -> Float[np.ndarray, "examples dims"]:
    """Rows of length one; nothing stays nothing."""
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
