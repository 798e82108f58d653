"""Which tokens is an answer? Text, ids, or the likeliest ones, as token ids."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from keyhole.errors import KeyholeError
from keyhole.models.tokens.prompts import token_id

if TYPE_CHECKING:
    from keyhole.models.run import Run


@dataclass(frozen=True)
class Likeliest:
    """The likeliest next tokens as an answer: the first `k`, or as few as make up the probability `p`."""

    k: int | None = None  # so many tokens
    p: float | None = None  # or as many as make up this probability

    def __post_init__(self) -> None:
        if (self.k is None) == (self.p is None):
            raise KeyholeError("say with exactly one of k and p how many of the likeliest tokens are meant.")
        if self.p is not None and not 0 < self.p <= 1:
            raise KeyholeError(f"p is {self.p}, but a share of probability lies between 0 and 1.")


Tokens = str | int | Sequence[str | int]  # words or ids
Target = Tokens | Likeliest | None  # None: the likeliest token


def choose_targets(run: "Run", target: Tokens | Likeliest, end: int) -> list[int]:
    """The tokens to trace."""
    if not isinstance(target, Likeliest):
        return token_ids(run, target, end)
    if target.k is not None and not 0 < target.k <= run.model.dims.vocab:
        raise KeyholeError(f"k is {target.k}, but the vocabulary has {run.model.dims.vocab} tokens.")
    return targets_of(run.logits[end], target.p, target.k)


def targets_of(logits: Float[Tensor, "vocab"], top_p: float | None, top_k: int | None) -> list[int]:
    """The likeliest tokens: the top k, or as few as make up the probability top_p."""
    probabilities, order = logits.double().softmax(-1).sort(descending=True)
    if top_k is not None:
        return [int(i) for i in order[:top_k]]
    assert top_p is not None
    n = int((probabilities.cumsum(0) < top_p).sum()) + 1
    return [int(i) for i in order[:n]]


def token_ids(run: "Run", target: Tokens | None, end: int) -> list[int]:
    """One or several words or ids, as ids; of a word with and without a space, the token that is likelier at `end`."""
    if target is None:
        return []
    words = [target] if isinstance(target, str | int) else target
    return [token_id(run.model, word, run.logits[end]) for word in words]
