"""Which tokens are the answer, and which are likely?

Which tokens is an answer? Text, ids, or the likeliest ones, as token ids.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, overload

from jaxtyping import Float
from torch import Tensor

from keyhole.brief import Table, as_dataframe
from keyhole.errors import KeyholeError
from keyhole.models.tokens import token_id, token_texts

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


# What would the model say next? Its likeliest tokens, as a table.


@dataclass(frozen=True)
class NextToken:
    """One token that may come next."""

    id: int  # in the vocabulary
    text: str  # as it is written, with its space
    probability: float  # that the model gives it
    logit: float  # before the softmax

    def __str__(self) -> str:
        return f"{self.text!r} {self.probability:.3g}"


@dataclass(frozen=True)
class NextTokens(Sequence[NextToken]):
    """The likeliest next tokens, likeliest first."""

    tokens: tuple[NextToken, ...]

    def __len__(self) -> int:
        return len(self.tokens)

    @overload
    def __getitem__(self, index: int) -> NextToken: ...

    @overload
    def __getitem__(self, index: slice) -> "NextTokens": ...

    def __getitem__(self, index: int | slice) -> "NextToken | NextTokens":
        return NextTokens(self.tokens[index]) if isinstance(index, slice) else self.tokens[index]

    def to_dataframe(self) -> Table:
        """A row per token: a pandas DataFrame, or records without pandas."""
        return as_dataframe([asdict(token) for token in self.tokens])

    def __str__(self) -> str:
        return ", ".join(map(str, self.tokens))

    def __repr__(self) -> str:
        return f"<next tokens: {self}>"


def next_tokens(run: "Run", k: int = 5, *, end: int | str = -1) -> NextTokens:
    """The `k` likeliest tokens after the token at `end`, with their probabilities.

    >>> import keyhole
    >>> next_tokens(keyhole.load().run("When Mary and John went to the store, John gave a drink to"), 1)[0].text
    'Mary'
    """
    vocabulary = run.model.dims.vocab
    if not 0 < k <= vocabulary:
        raise KeyholeError(f"k is {k}, but the vocabulary has {vocabulary} tokens: give a number from 1 to that.")
    logits = run.logits[run.position(end, "end")]
    ids = targets_of(logits, None, k)
    values = zip(logits.double().softmax(-1)[ids].tolist(), logits[ids].tolist(), strict=True)
    rows = zip(ids, token_texts(run.model.tokenizer, ids), values, strict=True)
    return NextTokens(tuple(NextToken(i, text, *numbers) for i, text, numbers in rows))
