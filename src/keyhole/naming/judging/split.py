"""Which examples does the explainer see, and which are kept for the judge? No text is on both sides."""

import random
from collections.abc import Sequence

from keyhole.naming.shown import Shown


def split(shown: Sequence[Shown], seed: int = 0) -> tuple[tuple[Shown, ...], tuple[Shown, ...]]:
    """(For the explainer, held out), whole texts each: chunks that are the same text count as one.

    Texts are dealt out in turn, those with a top example first, so both sides have as many of every pick as can be.
    """
    group = _groups(shown)
    order = list(dict.fromkeys(group[one.chunk] for one in shown))
    random.Random(seed).shuffle(order)
    rank = {"top": 0, "decile": 1}
    best: dict[int, int] = {}
    for one in shown:
        best[group[one.chunk]] = min(best.get(group[one.chunk], 9), rank.get(one.pick, 2))
    order.sort(key=lambda text: best[text])  # stable: within a rank, as shuffled
    held = set(order[1::2])
    return (
        tuple(one for one in shown if group[one.chunk] not in held),
        tuple(one for one in shown if group[one.chunk] in held),
    )


def _groups(shown: Sequence[Shown]) -> dict[int, int]:
    """Chunk -> the first chunk with the same text."""
    first: dict[tuple[str, ...], int] = {}
    return {one.chunk: first.setdefault(one.tokens, one.chunk) for one in shown}
