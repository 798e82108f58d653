"""How much of an answer do some edges carry? Alone, without them, with half of the rest; on other prompts."""

from typing import TYPE_CHECKING

import numpy as np

from keyhole.circuits.measured import Faithfulness
from keyhole.faithfulness.baseline import Baseline, Likes, exchanged, ids_like
from keyhole.faithfulness.masked import rows_at_once
from keyhole.faithfulness.question import MaskedQuestion, question
from keyhole.faithfulness.search import LEAST_GAP
from keyhole.faithfulness.token_masks import EdgeList, Mask, all_but, only
from keyhole.intervene.remove import Metric
from keyhole.progress import Progress, silent
from keyhole.tasks.answers import answer_ids
from keyhole.tasks.example import Example

if TYPE_CHECKING:
    from keyhole.models.run import Run

DRAWS = 8  # random halves of the rest
OTHERS = 8  # prompts that a circuit is tried on besides its own


def faithfulness(
    edges: EdgeList, asked: MaskedQuestion, *, draws: int = DRAWS, seed: int = 0, progress: Progress | None = None
) -> Faithfulness:
    """Kept, cut and rest of some edges, as shares of the gap, and the answer's rank with them alone."""
    everything, nothing = asked.ends
    of = edges_in(asked)
    alone, *rows = asked.logits([only(edges), all_but(edges)])
    size = max(1, rows_at_once(asked.masked) // 2)  # halves are as large as the model has edges: few at a time
    for start in range(0, draws, size):
        pairs = [_halved(edges, asked, seed, draw) for draw in range(start, min(start + size, draws))]
        rows += asked.logits([mask for pair in pairs for mask in pair])
        (progress or silent)(min(start + size, draws), draws)
    kept, cut, *left = ((asked.metric.of(row) - nothing) / (everything - nothing) for row in (alone, *rows))
    return Faithfulness(
        kept=kept,
        cut=cut,
        rest=tuple(left[::2]),
        random=tuple(left[1::2]),
        rank=asked.metric.rank(alone),
        edges=len(edges),
        of=of,
    )


def edges_in(asked: MaskedQuestion) -> int:
    """How many token-level edges a model has in a prompt; the answer reads the last token alone."""
    wiring = asked.masked.wiring
    return (len(wiring) - len(wiring.writers)) * len(asked.run) + len(wiring.writers)


def _halved(edges: EdgeList, asked: MaskedQuestion, seed: int, draw: int) -> tuple[Mask, Mask]:
    """These edges with a random half of all others, and as many random ones in their place with the same half."""
    wiring, n, rng = asked.masked.wiring, len(asked.run), np.random.default_rng((seed, draw))
    half = rng.integers(0, 2, (*wiring.joined.shape, n), dtype=bool)
    every = wiring.edges[wiring.edges[:, 1] < len(wiring.readers) - 1]
    last = np.column_stack([np.argwhere(wiring.joined[:, -1]), np.full(len(wiring.writers), len(wiring.readers) - 1)])
    picked = rng.choice(edges_in(asked), min(len(edges), edges_in(asked)), replace=False)
    inside, into_answer = picked[picked < len(every) * n], picked[picked >= len(every) * n] - len(every) * n
    chosen = np.concatenate(
        [
            np.column_stack([every[inside // n], inside % n]),
            np.column_stack([last[into_answer], np.full(len(into_answer), n - 1)]),
        ]
    )
    without = half.copy()
    without[tuple(edges.T)] = False
    return Mask(edges, 1.0, half), Mask(chosen, 1.0, without)


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
