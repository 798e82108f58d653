"""In which order are edges kept? Scores of prompts, over tokens and prompts as asked, and what is left with the best.

tokens dropped, per task      one order for all prompts          per prompt     one for each prompt
tokens kept, per task         one order for each kind of prompt: the same template, roles at the same tokens
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from keyhole.errors import KeyholeError
from keyhole.faithful.cohort import CohortQuestion, Group
from keyhole.faithful.edge_scores import prompt_scores
from keyhole.faithful.settings import CurveSettings, EdgeMethod
from keyhole.faithfulness.masked import rows_at_once
from keyhole.faithfulness.token_masks import only
from keyhole.faithfulness.wiring import Wiring
from keyhole.models.numbers.precision import exact_matmul
from keyhole.progress import Between, nothing

_SCORES = 1 << 24  # of token-level edges
Scores = Float[np.ndarray, "edge"]
Order = Int[np.ndarray, "edge"]  # numbers of edges, best first


@dataclass(frozen=True, eq=False)
class Ranked:
    """What a method thinks of the edges: of all prompts, of each kind of prompts, or of each prompt."""

    method: str
    scores: Mapping[Hashable, Scores]  # empty: nothing (random)
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
    """Which prompts have one order of edges with the i-th of a group."""
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
    """All edges, best first; equals, and those that a method has nothing to say of, in random order."""
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
    one = len(set(keys)) == 1 and len(keys) > 1
    return [ordered(method.scores[key], n, rng, absolute=absolute) for key in (keys[:1] if one else keys)]


def left_with(group: Group, orders: Sequence[Order], sizes: Sequence[int], settings: CurveSettings) -> np.ndarray:
    """What is left of a group's answers with the first so many edges of an order, for all prompts or of each."""
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
