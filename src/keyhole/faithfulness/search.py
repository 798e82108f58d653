"""What is the smallest circuit that carries an answer by itself? Best edges by share, connected, then pruned.

1. Edges by share, and by the size of their share: doubled, and then counted more finely, until enough of the answer is
   kept. What is kept does not grow steadily with the number of edges, so this finds a crossing and not the least.
2. Shares again, within what is kept; the smallest part of it that still keeps enough is kept, and so on.

Every set is connected before it is tried, and a set that keeps more than 1.2 of the gap is no success either.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float

from keyhole.errors import KeyholeError
from keyhole.faithfulness.connected import Reach
from keyhole.faithfulness.masked import Masked
from keyhole.faithfulness.shares import Shares, along
from keyhole.faithfulness.token_masks import EdgeList, only
from keyhole.intervene.remove import Metric
from keyhole.models.numbers.precision import exact_matmul
from keyhole.progress import Progress, silent

LEVEL, OVER = 0.9, 1.2  # what is kept of the gap: at least, at most
BOTH_OVER = 1.1  # at most, of a circuit with edges of both signs
LEAST_GAP = 1.0  # logits or nats: a smaller gap cannot be shared out
ROUNDS = 12  # of pruning, at most
PARTS = (0.35, 0.45, 0.55, 0.65, 0.74, 0.82, 0.88, 0.93)  # of what is kept, tried side by side
_FINER = 8  # sizes tried between two


@dataclass(frozen=True)
class Found:
    """A circuit that suffices, as token-level edges."""

    edges: EdgeList
    kept: float  # of the gap, with these edges alone
    shares: Float[np.ndarray, "edge"]  # of each among all edges
    tried: int  # sets of edges


@dataclass(eq=False)
class Search:
    """One prompt's search: what was asked, and how often."""

    masked: Masked
    metric: Metric
    shares: Shares
    reach: Reach
    level: float = LEVEL
    both_signs: bool = False
    prompt: int = 0
    tried: int = field(default=0, init=False)

    @property
    def most(self) -> float:
        """More than this of the gap is no success."""
        return BOTH_OVER if self.both_signs else OVER

    def kept(self, sets: Sequence[EdgeList]) -> Float[np.ndarray, "set"]:
        """What each set of edges keeps of the gap, alone."""
        self.tried += len(sets)
        with torch.no_grad(), exact_matmul():
            logits = self.masked.masked_logits([only(edges, self.prompt) for edges in sets])
        answers = np.array([self.metric.of(row) for row in logits])
        return (answers - self.shares.nothing) / self.shares.gap

    def inside(self, kept: Float[np.ndarray, "set"]) -> np.ndarray:
        """Which of these keep enough, and not too much?"""
        return (kept >= self.level) & (kept <= self.most)


def search(asked: Search, progress: Progress | None = None) -> Found:
    """The smallest connected circuit that this search finds; refused where the gap is too small to share out."""
    progress = progress or silent
    require_gap(asked.shares)
    values = asked.shares.values
    edges = np.argwhere(values)  # those that do not exist, or that the answer does not see, have a share of exactly 0
    sizes = values[tuple(edges.T)]
    by_size = edges[np.argsort(-np.abs(sizes))]
    orders = [by_size] if asked.both_signs else [edges[np.argsort(-sizes)], by_size]
    progress(1, ROUNDS + 2)
    crossings = [found for order in orders if (found := _crossing(asked, order)) is not None]
    if not crossings:
        raise KeyholeError(
            f"no set of best edges keeps between {asked.level:.0%} and {asked.most:.0%} of the answer's gap to the "
            "baseline: take another baseline (other prompts like this one), or a lower level."
        )
    edges = min(crossings, key=len)
    kept = float("nan")
    for done in range(ROUNDS):
        progress(done + 2, ROUNDS + 2)
        smaller = _pruned(asked, edges)
        if smaller is None:
            break
        edges, kept = smaller
    kept = float(asked.kept([edges])[0]) if np.isnan(kept) else kept
    progress(ROUNDS + 2, ROUNDS + 2)
    return Found(edges, kept, values[tuple(edges.T)], asked.tried)


def require_gap(shares: Shares) -> None:
    """Refuse an answer that the baseline has already, or nearly."""
    if shares.gap < LEAST_GAP:
        raise KeyholeError(
            f"the answer is at {shares.everything:+.2f} in the prompt and at {shares.nothing:+.2f} at the baseline: a "
            f"gap of less than {LEAST_GAP:.0f} cannot be shared out. Take another baseline, or another answer to hold "
            "it against."
        )


def _crossing(asked: Search, order: EdgeList) -> EdgeList | None:
    """The first of its best edges that keep enough: sizes doubled, then counted more finely between two."""
    sizes = _doubled(len(order))
    low, high = 0, 0
    for start in range(0, len(sizes), _FINER):
        chosen = [asked.reach.connected(order[:n]) for n in sizes[start : start + _FINER]]
        enough = asked.kept(chosen) >= asked.level
        if enough.any():
            first = start + int(enough.argmax())
            low, high = (sizes[first - 1] if first else 0), sizes[first]
            break
    if not high:
        return None
    best: EdgeList | None = None
    while True:
        between = sorted({*np.linspace(low, high, _FINER + 1).round().astype(int)[1:].tolist()})
        sets = [asked.reach.connected(order[:n]) for n in between]
        kept = asked.kept(sets)
        for i in np.flatnonzero(asked.inside(kept)):
            if best is None or len(sets[i]) < len(best):
                best = sets[i]
        first = int((kept >= asked.level).argmax()) if (kept >= asked.level).any() else len(between) - 1
        if high - low <= max(2, high // 16):
            return best
        low, high = (between[first - 1] if first else low), between[first]


def _doubled(n: int) -> list[int]:
    sizes = [8]
    while sizes[-1] < n:
        sizes.append(min(2 * sizes[-1], n))
    return sizes


def _pruned(asked: Search, edges: EdgeList) -> tuple[EdgeList, float] | None:
    """The smallest part of these edges that still keeps enough, best first by their shares among themselves."""
    within = along(asked.masked, asked.metric, edges, asked.prompt)
    order = np.argsort(-np.abs(within) if asked.both_signs else -within)
    sizes = sorted({max(1, round(part * len(edges))) for part in PARTS} - {len(edges)})
    sets = [asked.reach.connected(edges[order[:n]]) for n in sizes]
    sets = [chosen for chosen in sets if 0 < len(chosen) < len(edges)]
    if not sets:
        return None
    kept = asked.kept(sets)
    good = np.flatnonzero(asked.inside(kept))
    if not len(good):
        return None
    best = min(good, key=lambda i: len(sets[i]))
    return sets[best], float(kept[best])
