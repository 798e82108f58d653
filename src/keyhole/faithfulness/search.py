"""What is the smallest circuit that carries an answer by itself? Best edges by share, connected, then pruned.

1. Edges by share, and by the size of their share: doubled, and then counted more finely, until enough of the answer is
   kept. What is kept does not grow steadily with the number of edges, so this finds a crossing and not the least.
2. Shares again, within what is kept; the smallest part of it that still keeps enough is kept, and so on.

Every set is connected before it is tried, and a set that keeps more than 1.2 of the gap is no success either.

A search is a generator that yields the sets it wants to try, so searches of several prompts share their passes.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float

from keyhole.errors import KeyholeError
from keyhole.faithfulness.masked import Masked
from keyhole.faithfulness.shares import Shares, along
from keyhole.faithfulness.token_masks import EdgeList, only
from keyhole.faithfulness.wiring import Reach
from keyhole.intervene.removal import Metric
from keyhole.models.numbers import exact_matmul
from keyhole.progress import Progress, silent
from keyhole.settings.measuring import LEVEL

Result = TypeVar("Result")
OVER = 1.2  # what is kept of the gap at most; at least: LEVEL
BOTH_OVER = 1.1  # at most, of a circuit with edges of both signs
LEAST_GAP = 1.0  # logits or nats: a smaller gap cannot be shared out
WIDER = (  # what to do where it is smaller
    "To measure it, give a prompt of as many tokens with another answer (--counterfactual) or prompts like this one "
    "(--like FILE); with either, --sufficient searches for the edges that carry the answer."
)
ROUNDS = 12  # of pruning, at most
STEPS = 24  # of a search, about: two for each round that it usually takes
PARTS = (0.35, 0.45, 0.55, 0.65, 0.74, 0.82, 0.88, 0.93)  # of what is kept, tried side by side
_FINER = 8  # parts of the way between two sizes
_AT_ONCE = 5  # doubled sizes tried before larger ones
MOST_PRUNED = 1 << 16  # edges that shares are taken of among themselves
MANY, MOST_SINGLE = 32, 128  # edges that are many for a circuit; so many at most are taken away one by one


@dataclass(frozen=True)
class Found:
    """A circuit that suffices, as token-level edges."""

    edges: EdgeList
    kept: float  # of the gap, with these edges alone
    shares: Float[np.ndarray, "edge"]  # of each among all edges
    tried: int  # sets of edges


@dataclass(frozen=True, eq=False)
class Tried:
    """A set of edges that was tried, and what it keeps of the gap."""

    edges: EdgeList
    kept: float


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
    _known: dict[int, float] = field(default_factory=dict, init=False)  # what sets keep, by their digest

    @property
    def most(self) -> float:
        """More than this of the gap is no success."""
        return BOTH_OVER if self.both_signs else OVER

    def kept(self, sets: Sequence[EdgeList]) -> "Steps[Float[np.ndarray, 'set']]":
        """What each set of edges keeps of the gap, alone; a set that was tried before is not tried again."""
        keys = [hash(edges[np.lexsort(edges.T)].tobytes()) for edges in sets]
        new = {key: edges for key, edges in zip(keys, sets, strict=True) if key not in self._known}
        if new:
            answers = yield list(new.values())
            self._known |= dict(zip(new, (answers - self.shares.nothing) / self.shares.gap, strict=True))
        return np.array([self._known[key] for key in keys])

    @property
    def tried(self) -> int:
        """How many sets of edges were tried."""
        return len(self._known)

    def tried_sets(self, sets: Sequence[EdgeList]) -> "Steps[list[Tried]]":
        """Sets of edges, connected, with what each keeps."""
        sets = self.reach.connected_sets(sets)
        kept = yield from self.kept(sets)
        return [Tried(edges, float(part)) for edges, part in zip(sets, kept, strict=True)]

    def inside(self, kept: float) -> bool:
        """Is this enough, and not too much?"""
        return self.level <= kept <= self.most


@dataclass(frozen=True, eq=False)
class Among:
    """A search asks for the shares of edges along the way on which these alone come in."""

    edges: EdgeList


Wanted = list[EdgeList] | Among  # answers with each of some sets alone, or shares among some edges
Steps = Generator[Wanted, Float[np.ndarray, "_set_or_edge"], Result]


def search(request: Search, progress: Progress | None = None) -> Found:
    """The smallest connected circuit that this search finds; refused where the gap is too small to share out."""
    (result,) = search_together([request], progress)
    if isinstance(result, KeyholeError):
        raise result
    return result


def search_together(searches: Sequence[Search], progress: Progress | None = None) -> list[Found | KeyholeError]:
    """Searches of prompts of one pass, step by step: what all of them want next is run at once."""
    steps = {i: _steps(request) for i, request in enumerate(searches)}
    results: dict[int, Found | KeyholeError] = {}
    answers: Mapping[int, Float[np.ndarray, "_set_or_edge"]] = {}
    rounds = 0
    while steps:
        wanted: dict[int, Wanted] = {}
        for i, step in list(steps.items()):
            try:
                wanted[i] = step.send(answers[i]) if i in answers else next(step)
            except StopIteration as end:
                results[i] = end.value
            except KeyholeError as error:
                results[i] = error
            if i in results:
                del steps[i]
        answers = _answered(searches, wanted)
        rounds += 1
        (progress or silent)(min(rounds, STEPS) if steps else STEPS, STEPS)
    return [results[i] for i in range(len(searches))]


def _answered(searches: Sequence[Search], wanted: Mapping[int, Wanted]) -> dict[int, Float[np.ndarray, "_set_or_edge"]]:
    """What each of some searches wants, in one pass for sets and one with slopes."""
    answers: dict[int, Float[np.ndarray, "_set_or_edge"]] = {}
    tries = [(i, edges) for i, sets in wanted.items() if isinstance(sets, list) for edges in sets]
    if tries:
        with torch.no_grad(), exact_matmul():
            masks = [only(edges, searches[i].prompt) for i, edges in tries]
            logits = searches[0].masked.masked_logits(masks)
        values = np.array([searches[i].metric.of(row) for (i, _), row in zip(tries, logits, strict=True)])
        numbers = np.array([i for i, _ in tries])
        answers |= {i: values[numbers == i] for i in wanted if (numbers == i).any()}
    among = {i: wish.edges for i, wish in wanted.items() if isinstance(wish, Among)}
    if among:
        requests = [searches[i] for i in among]
        metrics, prompts = [wish.metric for wish in requests], [wish.prompt for wish in requests]
        answers |= zip(among, along(requests[0].masked, metrics, list(among.values()), prompts), strict=True)
    return answers


def _steps(request: Search) -> Steps[Found]:
    require_gap(request.shares)
    values = request.shares.values
    edges = np.argwhere(values)  # those that do not exist, or that the answer does not see, have a share of exactly 0
    sizes = values[tuple(edges.T)]
    by_size = edges[np.argsort(-np.abs(sizes))]
    orders = [by_size] if request.both_signs else [edges[np.argsort(-sizes)], by_size]
    best = yield from _shortest(request, orders, lambda kept: kept >= request.level)
    if best is not None and not request.inside(best.kept):  # few edges keep too much, and more of them may keep less
        best = yield from _shortest(request, orders, request.inside)
    if best is None or not request.inside(best.kept):
        raise KeyholeError(
            f"no set of best edges keeps between {request.level:.0%} and {request.most:.0%} of the answer's gap to the "
            "baseline: take another baseline (other prompts like this one), or a lower level."
        )
    return Found(best.edges, best.kept, values[tuple(best.edges.T)], request.tried)


def small_gap(gap: float) -> str:
    """Why an answer's gap to the baseline is not divided by.

    >>> small_gap(0.4), small_gap(-2.1)
    ('the gap is too small', 'the baseline favours the answer more than the prompt does, and there is no gap')
    """
    if gap > -LEAST_GAP:
        return "the gap is too small"
    return "the baseline favours the answer more than the prompt does, and there is no gap"


def require_gap(shares: Shares) -> None:
    """Refuse an answer that the baseline has already, or nearly."""
    if shares.gap < LEAST_GAP:
        raise KeyholeError(
            f"the answer is at {shares.everything:+.2f} in the prompt and at {shares.nothing:+.2f} at the baseline: a "
            f"gap of less than {LEAST_GAP:.0f} cannot be shared out. Take another baseline, or another answer to hold "
            "it against."
        )


def _shortest(request: Search, orders: Sequence[EdgeList], enough: Callable[[float], bool]) -> Steps[Tried | None]:
    """The best edges that keep enough, pruned as long as they can be; None: no set does."""
    best = yield from _begun(request, orders, enough)
    for _ in range(ROUNDS):
        smaller = (yield from _pruned(request, best)) if best is not None else None
        if smaller is None:
            return best
        best = smaller
    return best


def _begun(request: Search, orders: Sequence[EdgeList], enough: Callable[[float], bool]) -> Steps[Tried | None]:
    """The smallest set of best edges that keeps enough; if all that do keep too much, the smallest of these.

    Sizes are doubled until one of the orders keeps enough, and then counted more finely below, for all orders at once.
    """
    sizes = _doubled(len(orders[0]))
    tried: list[Tried] = []
    for start in range(0, len(sizes), _AT_ONCE):
        some = sizes[start : start + _AT_ONCE]
        rows = yield from request.tried_sets([order[:n] for order in orders for n in some])
        tried += rows
        spans = []  # of each order that keeps enough: a size that does not, and the next, which does
        for i, order in enumerate(orders):
            good = [enough(row.kept) for row in rows[i * len(some) : (i + 1) * len(some)]]
            if any(good):
                first = start + good.index(True)
                spans.append((order, sizes[first - 1] if first else 0, sizes[first]))
        if spans:
            break
    while spans := [(order, low, high) for order, low, high in spans if high - low > max(1, high // 16)]:
        between = [_between(low, high) for _, low, high in spans]
        rows = yield from request.tried_sets(
            [order[:n] for (order, _, _), some in zip(spans, between, strict=True) for n in some]
        )
        tried += rows
        finer = []
        for (order, low, high), some in zip(spans, between, strict=True):
            here, rows = rows[: len(some)], rows[len(some) :]
            good = [enough(row.kept) for row in here]
            first = good.index(True) if any(good) else len(some)
            finer.append((order, [low, *some][first], [*some, high][first]))
        spans = finer
    enough_rows = [row for row in tried if enough(row.kept)]
    return min(enough_rows, key=lambda row: (not request.inside(row.kept), len(row.edges)), default=None)


def _between(low: int, high: int) -> list[int]:
    """Sizes between two, at most so many."""
    return sorted({*np.linspace(low, high, _FINER + 1).round().astype(int)[1:-1].tolist()} - {low, high})


def _doubled(n: int) -> list[int]:
    sizes = [min(8, n)]
    while sizes[-1] < n:
        sizes.append(min(2 * sizes[-1], n))
    return sizes


def _pruned(request: Search, best: Tried) -> Steps[Tried | None]:
    """A smaller part of these edges that still keeps enough, best first by their shares among themselves.

    Where that fails, and there are many left or they keep too much, best first by what taking each away costs; of very
    many, all those that a writer has at a token together.
    """
    edges = best.edges
    if not 1 < len(edges) <= MOST_PRUNED:
        return None
    within = yield Among(edges)
    orders = [-np.abs(within)] if request.both_signs else [-within, -np.abs(within)]
    parts = yield from _parts(request, [edges[np.argsort(order)] for order in orders])
    smaller = _smallest(request, best, parts)
    if smaller is None and (len(edges) > MANY or not request.inside(best.kept)):
        group = np.arange(len(edges))
        if len(edges) > MOST_SINGLE:
            group = np.unique(edges[:, [0, 2]], axis=0, return_inverse=True)[1].ravel()
        without = yield from request.tried_sets([edges[group != i] for i in range(group.max() + 1)])
        left = np.array([row.kept for row in without])[group]
        parts = yield from _parts(request, [edges[np.lexsort((-np.abs(within), left))]])
        smaller = _smallest(request, best, without + parts)
    return smaller


def _parts(request: Search, orders: Sequence[EdgeList]) -> Steps[list[Tried]]:
    """First parts of some orders, of all sizes."""
    sizes = sorted({max(1, round(part * len(orders[0]))) for part in PARTS} - {len(orders[0])})
    return (yield from request.tried_sets([order[:size] for order in orders for size in sizes]))


def _smallest(request: Search, best: Tried, rows: Sequence[Tried]) -> Tried | None:
    """The smallest of these that keeps enough and not too much; as long as there is none, the one nearest to it."""
    smaller = [row for row in rows if 0 < len(row.edges) < len(best.edges)]
    inside = [row for row in smaller if request.inside(row.kept)]
    if inside or request.inside(best.kept):
        return min(inside, key=lambda row: len(row.edges), default=None)
    nearer = [row for row in smaller if request.most < row.kept < best.kept]
    return min(nearer, key=lambda row: row.kept, default=None)
