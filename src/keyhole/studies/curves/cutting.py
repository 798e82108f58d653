"""In which order are edges kept, and what is left of the answer with the best of them?

Scores of prompts are combined over tokens and prompts, as the settings say:

tokens dropped, per task      one order for all prompts          per prompt     one for each prompt
tokens kept, per task         one order for each kind of prompt: the same template, roles at the same tokens
"""

import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from keyhole.brief import model_label
from keyhole.errors import KeyholeError
from keyhole.faithfulness.masked import rows_at_once
from keyhole.faithfulness.token_masks import only
from keyhole.faithfulness.wiring import Wiring
from keyhole.models.numbers import exact_matmul
from keyhole.progress import Between, Progress, nothing
from keyhole.studies.curves.cohort import CohortQuestion, Group
from keyhole.studies.curves.record import COUNTS, SHARES, Curve, Curves, require_gap
from keyhole.studies.curves.scores import prompt_scores
from keyhole.studies.curves.settings import CurveSettings, EdgeMethod

_SCORES = 1 << 24  # of token-level edges
Scores = Float[np.ndarray, "edge"]
Order = Int[np.ndarray, "edge"]  # numbers of edges, best first


@dataclass(frozen=True, eq=False)
class Ranked:
    """A method's scores of edges: one array for all prompts, for each kind of prompts, or for each prompt."""

    method: str
    scores: Mapping[Hashable, Scores]  # empty: edges are drawn at random
    components: Float[np.ndarray, "component_edge"] | None = (
        None  # averages over prompts, added over tokens, with their sign
    )


def ranked(
    method: EdgeMethod,
    groups: Sequence[Group],
    questions: Sequence[CohortQuestion],
    settings: CurveSettings,
    between: Between = nothing,
) -> Ranked:
    """A method's scores of these prompts, averaged as the settings say; `between` is called after every prompt."""
    if method == "random":
        return Ranked(method, {})
    wiring = groups[0].masked.wiring
    sums: dict[Hashable, Any] = {}
    counts: dict[Hashable, int] = {}
    components: Any = 0.0
    for part in (part for group in groups for part in group.parts(_at_once(group))):
        for i, scores in enumerate(prompt_scores(method, part, questions)):
            values = scores.sum(-1)[tuple(wiring.edges.T)]
            components = components + values
            if settings.tokens == "kept":
                values = scores[tuple(token_edges(wiring, scores.shape[-1]).T)].astype(np.float32)
            key = key_of(part, i, settings)
            sums[key] = sums.get(key, 0.0) + values
            counts[key] = counts.get(key, 0) + 1
            between()
    return Ranked(method, {key: sums[key] / counts[key] for key in sums}, components / sum(counts.values()))


def _at_once(group: Group) -> int:
    """Prompts whose scores are held at once."""
    return max(1, _SCORES // (group.masked.wiring.joined.size * group.masked.words.shape[1]))


def key_of(group: Group, i: int, settings: CurveSettings) -> Hashable:
    """The key of the scores that the i-th prompt of a group has; prompts with one key have one order of edges."""
    if settings.per == "prompt":
        return group.numbers[i]
    return group.kind if settings.tokens == "kept" else ()


def token_edges(wiring: Wiring, length: int) -> Int[np.ndarray, "edge 3"]:
    """All token-level edges of prompts so long; the answer reads the last token alone."""
    answer = len(wiring.readers) - 1
    inner = wiring.edges[wiring.edges[:, 1] != answer]
    last = wiring.edges[wiring.edges[:, 1] == answer]
    every = np.column_stack([inner.repeat(length, 0), np.tile(np.arange(length), len(inner))])
    return np.concatenate([every, np.column_stack([last, np.full(len(last), length - 1)])])


def edge_count(group: Group, settings: CurveSettings) -> int:
    """How many edges there are in prompts of this group."""
    wiring, length = group.masked.wiring, group.masked.words.shape[1]
    if settings.tokens == "dropped":
        return len(wiring)
    return (len(wiring) - len(wiring.writers)) * length + len(wiring.writers)


def ordered(scores: Scores | None, n: int, rng: np.random.Generator, *, absolute: bool = False) -> Order:
    """All edges, best first; those with equal scores, or without scores, in random order."""
    order = rng.permutation(n)
    if scores is None:
        return order
    values = np.abs(scores) if absolute else scores
    return order[np.argsort(-values[order], kind="stable")]


def orders_of(method: Ranked, group: Group, settings: CurveSettings, draw: int = 0) -> list[Order]:
    """The order of edges in a group's prompts: one for all, or one each. The same seed gives the same order."""
    n, absolute = edge_count(group, settings), settings.ranking == "absolute"
    rng = np.random.default_rng((settings.seed, draw))
    if not method.scores:
        return [ordered(None, n, rng)]
    keys = [key_of(group, i, settings) for i in range(len(group.numbers))]
    shared = len(set(keys)) == 1 and len(keys) > 1
    return [ordered(method.scores[key], n, rng, absolute=absolute) for key in (keys[:1] if shared else keys)]


def left_with(group: Group, orders: Sequence[Order], sizes: Sequence[int], settings: CurveSettings) -> np.ndarray:
    """What is left of a group's answers with the first edges of an order; one order and size for all, or for each."""
    prompts = len(group.numbers)
    if len(sizes) not in (1, prompts):
        raise KeyholeError("give a number of edges for all prompts, or one for each.")
    chosen = [orders[i % len(orders)][: sizes[i % len(sizes)]] for i in range(prompts)]
    with exact_matmul(), torch.no_grad():
        if settings.tokens == "kept":
            edges = token_edges(group.masked.wiring, group.masked.words.shape[1])
            step = rows_at_once(group.masked)
            rows: list[float] = []
            for start in range(0, prompts, step):
                masks = [only(edges[chosen[i]], i) for i in range(start, min(start + step, prompts))]
                logits = group.masked.masked_logits(masks)
                rows += [metric.of(row) for metric, row in zip(group.metrics[start:], logits, strict=False)]
            return np.array(rows)
        if len(orders) == 1 and len(sizes) == 1:
            return np.asarray(group.answers(group.masked.kept(chosen[0])).cpu().numpy(), dtype=np.float64)
        parts = zip(group.parts(1), chosen, strict=True)
        return np.array([float(part.answers(part.masked.kept(edges))[0]) for part, edges in parts])


# What is left of answers with a method's best edges? All others are cut, in passes that are counted and timed.

# The time that the scores of one prompt take, in passes with a mask: rough numbers, for an estimate.
_PASSES = {"accpp": 60, "heads": 30, "svt": 30, "share": 40, "sufficient": 120}
_PASSES |= {"gradients": 3, "integrated": 12, "eap-ig-inputs": 12, "gim": 3}
_FOUND = {"sufficient": 1e-4}  # edges with a score above this count as found; for other methods, above 0


class Cutting:
    """Measures what is left of all answers with some edges, and counts passes, for progress and estimates."""

    def __init__(self, groups: Sequence[Group], settings: CurveSettings, progress: Progress) -> None:
        self._groups, self._settings, self._progress = groups, settings, progress
        self._done = self._total = 0
        self._scoring: dict[str, float] = {}  # passes that a prompt's scores take, by method
        self._seconds = 0.0  # of one pass
        counts = [(edge_count(group, settings), len(group.numbers)) for group in groups]
        self.edges = round(sum(n * prompts for n, prompts in counts) / sum(prompts for _, prompts in counts))
        self.counts = tuple(n for n in COUNTS if n < min(n for n, _ in counts))

    def plan(self, *, files: int = 0, shown: int = 0) -> None:
        """Count the passes of all methods; the scores of a shown prompt count as the passes that take the same time."""
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
        self._left(everything, [[len(orders[0]) // 3] for orders in everything], count=False)  # only to take its time
        self._seconds = (time.perf_counter() - start) / 2
        require_gap(whole, none)
        return whole, none

    def curves(self, methods: Iterable[Ranked]) -> Curves:
        """The curves of all methods; `methods` may be a generator, which scores one method after the other."""
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
            sizes = [[[kept(share, len(order[0]))] for order in orders] for share in SHARES[:-1]]
            left.append([self._left(orders, some) for some in sizes] + [whole])
            at.append([self._left(orders, [[n]] * len(groups)) for n in self.counts])
        alone, mean = None, None
        if method.scores:
            counts = [self._found(method, group) for group in groups]
            alone = self._left(orders, counts)
            weights = [len(group.numbers) for group in groups]
            mean = round(float(np.average([np.mean(some) for some in counts], weights=weights)))
        by_count = np.array(at).reshape(len(at), len(self.counts), len(whole))
        return Curve(method.method, mean, np.array(left), alone, self.counts, by_count, method.components)

    def _found(self, method: Ranked, group: Group) -> list[int]:
        """How many edges a method found, that is, scored above the least score: for all prompts, or for each."""
        keys = list(dict.fromkeys(key_of(group, i, self._settings) for i in range(len(group.numbers))))
        scores = [method.scores[key] for key in keys]
        if self._settings.ranking == "absolute":
            scores = [np.abs(values) for values in scores]
        least = _FOUND.get(method.method, 0.0)
        return [int((values > least).sum()) for values in scores]

    def _left(
        self, orders: Sequence[Sequence[np.ndarray]], sizes: Sequence[Sequence[int]], *, count: bool = True
    ) -> Float[np.ndarray, "prompt"]:
        pairs = zip(self._groups, orders, sizes, strict=True)
        left = np.concatenate(
            [left_with(group, group_orders, group_sizes, self._settings) for group, group_orders, group_sizes in pairs]
        )
        if count:
            self._report(1)
        return left

    def _report(self, steps: int) -> None:
        self._done += steps
        self._progress(min(self._done, self._total), self._total)


def kept(share: float, edges: int) -> int:
    """How many edges are a share of them? At least one."""
    return max(1, round(share * edges))
