"""Which tokens is an answer? Text, ids, or the likeliest ones, as token ids."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from keyhole.errors import KeyholeError
from keyhole.models.prompts import token_id

if TYPE_CHECKING:
    from keyhole.models.run import Run

Target = str | int | Sequence[str | int] | None


def choose_targets(run: "Run", target: Target, *, top_p: float | None, top_k: int | None, end: int) -> list[int]:
    """The tokens to trace: exactly one of a target, top_p and top_k says which."""
    if sum(choice is not None for choice in (target, top_p, top_k)) != 1:
        raise KeyholeError("say what to trace with exactly one of: target, top_p, top_k.")
    if target is not None:
        return token_ids(run, target)
    if top_p is not None and not 0 < top_p <= 1:
        raise KeyholeError(f"top_p is {top_p}, but a share of probability lies between 0 and 1.")
    if top_k is not None and not 0 < top_k <= run.model.dims.vocab:
        raise KeyholeError(f"top_k is {top_k}, but the vocabulary has {run.model.dims.vocab} tokens.")
    return targets_of(run.logits[end], top_p, top_k)


def targets_of(logits: Float[Tensor, "vocab"], top_p: float | None, top_k: int | None) -> list[int]:
    """The likeliest tokens: the top k, or as few as make up the probability top_p."""
    probabilities, order = logits.double().softmax(-1).sort(descending=True)
    if top_k is not None:
        return [int(i) for i in order[:top_k]]
    assert top_p is not None
    n = int((probabilities.cumsum(0) < top_p).sum()) + 1
    return [int(i) for i in order[:n]]


def likeliest(target: Target, top_p: float | None, top_k: int | None) -> int | None:
    """`top_k` as it was given; where nothing says what to trace, 1: the likeliest next token."""
    return 1 if target is None and top_p is None and top_k is None else top_k


def token_ids(run: "Run", target: Target) -> list[int]:
    """One or several words or ids, as ids."""
    if target is None:
        return []
    if isinstance(target, str | int):
        return [token_id(run.model, target)]
    return [token_id(run.model, each) for each in target]
