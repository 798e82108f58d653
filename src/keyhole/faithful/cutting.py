"""What is left of answers with a method's best edges? Passes with all others cut, counted and timed."""

import time
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import numpy as np
from jaxtyping import Float

from keyhole.brief import model_label
from keyhole.faithful.cohort import Group
from keyhole.faithful.faithfulness import COUNTS, SHARES, Curve, Curves, require_gap
from keyhole.faithful.ranked import Ranked, edge_count, key_of, left_with, orders_of
from keyhole.faithful.settings import CurveSettings
from keyhole.progress import Progress

# What scores of one prompt take, in passes with a mask: roughly, for an estimate.
_PASSES = {"accpp": 60, "heads": 30, "svt": 30, "share": 40, "sufficient": 120}
_PASSES |= {"gradients": 3, "integrated": 12, "eap-ig-inputs": 12, "gim": 3}
_FOUND = {"sufficient": 1e-4}  # scores above this are of edges that a method found; others: above 0


class Cutting:
    """What is left of all answers with some edges; how many passes that takes, and how many are done."""

    def __init__(self, groups: Sequence[Group], settings: CurveSettings, progress: Progress) -> None:
        self._groups, self._settings, self._progress = groups, settings, progress
        self._done = self._total = 0
        self._scoring: dict[str, float] = {}  # passes that a prompt's scores take, by method
        self._seconds = 0.0  # of one pass
        counts = [(edge_count(group, settings), len(group.numbers)) for group in groups]
        self.edges = round(sum(n * prompts for n, prompts in counts) / sum(prompts for _, prompts in counts))
        self.counts = tuple(n for n in COUNTS if n < min(n for n, _ in counts))

    def plan(self, *, files: int = 0, shown: int = 0) -> None:
        """Count the passes of all methods; scores of a shown prompt are as many as they take in time."""
        settings, prompts = self._settings, sum(len(group.numbers) for group in self._groups)
        each = len(SHARES) - 1 + len(self.counts)
        curves = sum(settings.draws * each if method == "random" else each + 1 for method in settings.compared)
        self._scoring = {method: _PASSES.get(method, 0) / prompts for method in settings.compared}
        self._total = 2 + curves + files * (each + 1) + round(shown * sum(self._scoring.values()))

    @cached_property
    def ends(self) -> tuple[Float[np.ndarray, "prompt"], Float[np.ndarray, "prompt"]]:
        """The answers with all edges and with none; refused where edges have nothing to carry."""
        everything = [[np.arange(edge_count(group, self._settings))] for group in self._groups]
        whole = self._left(everything, [[len(orders[0])] for orders in everything])
        start = time.perf_counter()
        none = self._left(everything, [[0]] * len(everything))
        self._left(everything, [[len(orders[0]) // 3] for orders in everything], count=False)  # for its time alone
        self._seconds = (time.perf_counter() - start) / 2
        require_gap(whole, none)
        return whole, none

    def curves(self, methods: Iterable[Ranked]) -> Curves:
        """The curves of all methods, which may be ranked one after the other."""
        (whole, none), masked = self.ends, self._groups[0].masked
        return Curves(
            model=model_label(masked.model.name),
            task="",
            settings=self._settings,
            edges=self.edges,
            shares=SHARES,
            found_on=0,
            tried_on=len(whole),
            everything=whole,
            nothing=none,
            error=max(group.masked.error for group in self._groups),
            curves=tuple(self._curve(method, whole) for method in methods),
            wiring=masked.wiring,
            dims=masked.model.dims,
        )

    @property
    def seconds_left(self) -> float:
        """An estimate, from the time of passes so far."""
        assert self.ends is not None
        return self._seconds * (self._total - self._done)

    def scored(self, method: str) -> Callable[[], None]:
        """To be called after each prompt that a method has scored."""
        steps = 0.0

        def between() -> None:
            nonlocal steps
            steps += self._scoring.get(method, 0.0)
            self._report(int(steps))
            steps -= int(steps)

        return between

    def _curve(self, method: Ranked, whole: Float[np.ndarray, "prompt"]) -> Curve:
        """What is left with each share of a method's edges, with some numbers of them, and with all that it found."""
        settings, groups = self._settings, self._groups
        left, at = [], []
        for draw in range(1 if method.scores else settings.draws):
            orders = [orders_of(method, group, settings, draw) for group in groups]
            sizes = [[[kept(share, len(own[0]))] for own in orders] for share in SHARES[:-1]]
            left.append([self._left(orders, some) for some in sizes] + [whole])
            at.append([self._left(orders, [[n]] * len(groups)) for n in self.counts])
        alone, mean = None, None
        if method.scores:
            found = [self._found(method, group) for group in groups]
            alone = self._left(orders, found)
            weights = [len(group.numbers) for group in groups]
            mean = round(float(np.average([np.mean(some) for some in found], weights=weights)))
        by_count = np.array(at).reshape(len(at), len(self.counts), len(whole))
        return Curve(method.method, mean, np.array(left), alone, self.counts, by_count, method.components)

    def _found(self, method: Ranked, group: Group) -> list[int]:
        """How many edges a method has something good to say of: in all prompts, or in each."""
        keys = list(dict.fromkeys(key_of(group, i, self._settings) for i in range(len(group.numbers))))
        scores = [method.scores[key] for key in keys]
        if self._settings.ranking == "absolute":
            scores = [np.abs(own) for own in scores]
        least = _FOUND.get(method.method, 0.0)
        return [int((found > least).sum()) for found in scores]

    def _left(
        self, orders: Sequence[Sequence[np.ndarray]], sizes: Sequence[Sequence[int]], *, count: bool = True
    ) -> Float[np.ndarray, "prompt"]:
        pairs = zip(self._groups, orders, sizes, strict=True)
        left = np.concatenate([left_with(group, own, some, self._settings) for group, own, some in pairs])
        if count:
            self._report(1)
        return left

    def _report(self, steps: int) -> None:
        self._done += steps
        self._progress(min(self._done, self._total), self._total)


def kept(share: float, edges: int) -> int:
    """How many edges are a share of them? At least one."""
    return max(1, round(share * edges))
