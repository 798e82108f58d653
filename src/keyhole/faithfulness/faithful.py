"""How much of an answer do some edges carry? Alone, without them, with half of the rest; on other prompts."""

from typing import TYPE_CHECKING

import numpy as np

from keyhole.circuits.measured import Faithfulness
from keyhole.faithfulness.baseline import Baseline, Likes, exchanged, ids_like
from keyhole.faithfulness.question import Question, question
from keyhole.faithfulness.search import LEAST_GAP
from keyhole.faithfulness.token_masks import EdgeList, Mask, all_but, only
from keyhole.intervene.remove import Metric
from keyhole.tasks.answers import answer_ids
from keyhole.tasks.example import Example

if TYPE_CHECKING:
    from keyhole.models.run import Run

DRAWS = 8  # random halves of the rest
OTHERS = 8  # prompts that a circuit is tried on besides its own


def faithfulness(edges: EdgeList, asked: Question, *, draws: int = DRAWS, seed: int = 0) -> Faithfulness:
    """Kept, cut and rest of some edges, as shares of the gap, and the answer's rank with them alone."""
    everything, nothing = asked.ends
    wiring, n = asked.masked.wiring, len(asked.run)
    exists = np.repeat(wiring.joined[:, :, None], n, 2)
    exists[:, -1, :-1] = False  # the answer reads the last token alone
    rng = np.random.default_rng(seed)
    halves = [exists & (rng.random(exists.shape) < 0.5) for _ in range(draws)]
    every = np.argwhere(exists)
    random = [every[rng.choice(len(every), min(len(edges), len(every)), replace=False)] for _ in range(draws)]
    masks = [only(edges), all_but(edges), *(Mask(edges, 1.0, half) for half in halves)]
    others = _without(exists.shape, edges)
    masks += [Mask(chosen, 1.0, half & others) for chosen, half in zip(random, halves, strict=True)]
    logits = asked.logits(masks)
    left = [(asked.metric.of(row) - nothing) / (everything - nothing) for row in logits]
    return Faithfulness(
        kept=left[0],
        cut=left[1],
        rest=tuple(left[2 : 2 + draws]),
        random=tuple(left[2 + draws :]),
        rank=asked.metric.rank(logits[0]),
        edges=len(edges),
        of=len(every),
    )


def _without(shape: tuple[int, ...], edges: EdgeList) -> np.ndarray:
    """All edges but these."""
    kept = np.ones(shape, dtype=bool)
    kept[tuple(edges.T)] = False
    return kept


def kept_on_others(edges: EdgeList, run: "Run", mean: Baseline, like: Likes) -> tuple[float, ...]:
    """What the same edges keep of other prompts' answers, each at the mean of the others; those without a gap apart."""
    known = [example for example in like if isinstance(example, Example) and example.answer and mean.prompts]
    kept = []
    for example in known[:OTHERS]:
        ids = ids_like(run, example)
        if ids not in mean.prompts:
            continue
        other, right = run.model.run(list(ids), bos=False), answer_ids(run.model, example)
        asked = question(other, Metric(len(other) - 1, right.answers, right.against), exchanged(run, mean, other))
        everything, nothing = asked.ends
        if everything - nothing >= LEAST_GAP:
            kept.append((float(asked.answers([only(edges)])[0]) - nothing) / (everything - nothing))
    return tuple(kept)
