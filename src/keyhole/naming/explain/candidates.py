"""What is a name, and which clauses could one be made of?

What might be said of these pairs? Everything that is true of some, as a table of clauses against pairs.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import isqrt
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from keyhole.errors import KeyholeError
from keyhole.models.numbers import exact_matmul
from keyhole.models.tokens import all_tokens
from keyhole.naming.explain.language import Clause, Distance, true_of
from keyhole.naming.judge.questions import Marked, marked
from keyhole.naming.subjects.subject import Shown, Subject

if TYPE_CHECKING:
    from keyhole.models.model import Model

_STEPS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24)  # where distances may begin; they end before the next ones
_RARE = 3  # of fewer examples, nothing can be shown
_OFTEN = 24  # pairs that are drawn from each text of the background


@dataclass(frozen=True)
class Pairs:
    """Where the signal fires, and where it does not: pairs at random, and hard negatives."""

    fires: tuple[Marked, ...]
    drawn: tuple[Marked, ...]
    hard: tuple[Marked, ...]

    @property
    def every(self) -> tuple[Marked, ...]:
        """Those that fire, then those at random, then the hard ones."""
        return (*self.fires, *self.drawn, *self.hard)


def pairs_of(examples: Sequence[Shown], background: Sequence[Shown], seed: int) -> Pairs:
    """One example of each text: several of one text say the same thing again.

    Of the background's texts any pair is one at random, so more are drawn than were kept: rare words need many.
    """
    fires = {one.tokens: marked(one) for one in reversed(examples)}  # the first of each text stays
    kept = [one for one in background if one.pick == "random"]
    rng = random.Random(seed)
    more = [_draw(one.tokens, rng) for one in {one.tokens: one for one in kept}.values() for _ in range(_OFTEN)]
    hard = tuple(dict.fromkeys(marked(one) for one in background if one.pick != "random"))
    return Pairs(tuple(reversed(fires.values())), (*(marked(one) for one in kept), *more), hard)


def _draw(tokens: tuple[str, ...], rng: random.Random) -> Marked:
    """Any visible pair, each as likely as another."""
    number = rng.randrange(len(tokens) * (len(tokens) + 1) // 2)
    dest = (isqrt(8 * number + 1) - 1) // 2
    return Marked(tokens, dest, number - dest * (dest + 1) // 2)


def candidates(pairs: Pairs) -> tuple[list[Clause], Bool[np.ndarray, "clauses pairs"]]:
    """Clauses that are true of at least three examples, and of which pairs each is true."""
    often = Counter(chain.from_iterable(map(true_of, pairs.fires)))  # no pair has a clause twice
    clauses = [clause for clause, times in often.items() if times >= _RARE]
    rows = {clause: i for i, clause in enumerate(clauses)}
    table = np.zeros((len(clauses), len(pairs.every)), dtype=bool)
    for column, pair in enumerate(pairs.every):
        table[[rows[clause] for clause in true_of(pair) if clause in rows], column] = True
    spans = _distances(max((len(pair.tokens) for pair in pairs.fires), default=0))
    far = np.array([pair.dest - pair.src for pair in pairs.every])
    spread = [(span.low <= far) & (far <= (np.inf if span.high is None else span.high)) for span in spans]
    return [*clauses, *(Clause("src", span) for span in spans)], np.concatenate([table, np.array(spread)])


def _distances(length: int) -> list[Distance]:
    """Spans of distances from each step to each; the last has no end."""
    starts = [step for step in _STEPS if step < length]
    ends = [*(step - 1 for step in starts[1:]), None]
    spans = [Distance(low, high) for i, low in enumerate(starts) for high in ends[i:]]
    return [span for span in spans if span != Distance(0, None)]


# What is a name? One sentence about dest and src, with what speaks for it; or none, which is an outcome of its own.

NONE = "no valid interpretation"


@dataclass(frozen=True)
class Claim:
    """One part of a name, and how often it holds where the signal fires and where it does not."""

    text: str
    examples: float  # share of the examples of which it is true
    background: float | None  # of pairs of tokens at random; None: there were none
    hard: float | None  # of hard negatives; None: there were none
    log_odds: float  # of examples against all others, each count half a one more
    p: float  # Fisher's, one-sided, among those of which the claims before it are true
    corrected: float  # for the number of claims that were tried (Benjamini-Hochberg)


@dataclass(frozen=True)
class Name:
    """What an explainer says of a signal."""

    text: str | None  # None: no valid interpretation
    by: str  # which explainer: "statistics", "tokens alone", a model's name
    claims: tuple[Claim, ...] = ()

    def __str__(self) -> str:
        return NONE if self.text is None else self.text


Explainer = Callable[[Sequence[Shown], Sequence[Shown]], Name]  # examples, and background: where it does not fire


# Which tokens does a signal look like? Those whose embeddings and unembeddings lie nearest to what the head reads.
#
#     u = W_Q q        v = W_K k        (lifted to residual space: ask = x_d . u, offer = x_s . v, before any
#     rotation)
#
# Cosines of u and v with every token's embedding (what the token is) and unembedding (what is written to predict it).
# In many dimensions some token is near to any direction, so beside them stands what random directions of the same
# head reach: `chance`, the largest cosine that one in twenty of these exceeds.

_BEYOND = 0.95


@dataclass(frozen=True)
class Near:
    """The tokens nearest to one direction, and the cosine that random ones reach."""

    tokens: tuple[tuple[str, float], ...]  # each with its cosine, largest first
    chance: float

    def __str__(self) -> str:
        told = ", ".join(f"{token!r} {cosine:.2f}" for token, cosine in self.tokens)
        return f"{told} (random: {self.chance:.2f})"


@dataclass(frozen=True)
class Lens:
    """What dest (u) and src (v) of a signal look like."""

    dest: Near
    dest_predicts: Near
    src: Near
    src_predicts: Near

    def __str__(self) -> str:
        names = ("dest looks like", "dest predicts", "src looks like", "src predicts")
        found = (self.dest, self.dest_predicts, self.src, self.src_predicts)
        return "\n".join(f"{name:>16}  {near}" for name, near in zip(names, found, strict=True))


def lens(model: "Model", subject: Subject, *, tokens: int = 8, draws: int = 100, seed: int = 0) -> Lens:
    """The tokens nearest to a signal's two directions."""
    layer, head = subject.head
    if draws < 1 or tokens < 1:
        raise KeyholeError("a lens shows at least one token, beside at least one random direction.")
    w, known = model.folded(layer), all_tokens(model)
    ids = [token.id for token in known]
    embedded = model.hf.get_input_embeddings().weight.detach().to(w.W_Q)[ids]
    predicted = model.head_out().W_U.to(w.W_Q).T[ids]
    generator, found = torch.Generator().manual_seed(seed), []
    with exact_matmul():
        for W, own in ((w.W_Q[head], subject.query), (w.W_K[w.kv(head)], subject.key)):
            others = torch.randn(draws, len(own), generator=generator).to(W)
            lifted = torch.cat([own.to(W)[None], others]) @ W.T
            found += [
                _near(cosines(lifted, rows), [one.text for one in known], tokens) for rows in (embedded, predicted)
            ]
    return Lens(*found)


def cosines(
    x: Float[Tensor, "directions d_model"], rows: Float[Tensor, "tokens d_model"]
) -> Float[Tensor, "directions tokens"]:
    """Of each direction with each row; with nothing, none."""
    return torch.nn.functional.normalize(x, dim=-1) @ torch.nn.functional.normalize(rows, dim=-1).T


def _near(cosines: Float[Tensor, "directions tokens"], texts: list[str], most: int) -> Near:
    best = torch.topk(cosines[0], min(most, len(texts)))
    chance = torch.quantile(cosines[1:].amax(1).double(), _BEYOND)
    return Near(
        tuple((texts[i], value) for i, value in zip(best.indices.tolist(), best.values.tolist(), strict=True)),
        float(chance),
    )
