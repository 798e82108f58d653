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
from keyhole.models.tokens import text_forms, token_id, token_texts
from keyhole.strict import quoted, shortened

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


@dataclass(frozen=True)
class Continuation:
    """Several tokens after one another as one answer, by their ids; of a text such as "New York", say the text itself.

    >>> Continuation([5, 7]).ids
    (5, 7)
    """

    ids: Sequence[int]  # in the order in which the model would write them

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", tuple(self.ids))
        if not self.ids:
            raise KeyholeError("a continuation is one or more token ids, and this one has none.")


Tokens = str | int | Sequence[str | int]  # words or ids
Target = Tokens | Likeliest | Continuation | None  # None: the likeliest token


def choose_targets(run: "Run", target: Tokens | Likeliest | Continuation, end: int) -> list[int]:
    """The tokens to trace, any of which is the answer."""
    if isinstance(target, Continuation):
        if len(target.ids) > 1:
            raise KeyholeError(
                f"{_named(run, target.ids)} is an answer of {len(target.ids)} tokens, which `run.trace` alone knows: "
                "give one token."
            )
        return token_ids(run, list(target.ids), end)
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


# Which tokens is an answer of several? A text that is no single token goes on after the prompt, token by token.


def continuation_of(run: "Run", target: Target, end: int) -> tuple[int, ...] | None:
    """The tokens of an answer that is several after one another; None: it is one token, or any of several."""
    if isinstance(target, Continuation):
        return tuple(token_ids(run, list(target.ids), end))
    if isinstance(target, Likeliest | int) or target is None:
        return None
    words = [target] if isinstance(target, str) else list(target)
    spans = [(word, tokens_of(run, word, end)) for word in words]
    several = [(word, ids) for word, ids in spans if ids is not None]
    if several and len(words) > 1:
        word, ids = several[0]
        raise KeyholeError(
            f"{quoted(word)} is {len(ids)} tokens, {_named(run, ids)}, and several answers together are one token "
            "each: trace it alone, or give its first token."
        )
    return several[0][1] if several else None


def tokens_of(run: "Run", word: str | int, end: int) -> tuple[int, ...] | None:
    """The tokens of a text that is several, with the space before it that makes the first one likelier; else None."""
    if isinstance(word, int) or run.model.tokenizer is None:
        return None  # `token_id` says what is wrong, if anything is
    forms = text_forms(run.model, word)
    return None if min(map(len, forms)) < 2 else max(forms, key=lambda ids: float(run.logits[end, ids[0]]))


def follow(run: "Run", ids: Sequence[int], end: int) -> "Run":
    """The prompt up to `end` and these tokens, in one pass; the run itself, if it goes on with them."""
    run._require_fresh()
    before = end + 1
    if run.token_ids[before : before + len(ids)] == tuple(ids):
        return run
    return run.model.run([*run.token_ids[:before], *ids], bos=False)


def require_different(run: "Run", right: Sequence[int], wrong: Sequence[int]) -> int:
    """How many tokens two answers begin with alike; refused if there is no first token in which they differ."""
    shared = next((i for i, (a, b) in enumerate(zip(right, wrong, strict=False)) if a != b), None)
    if shared is None:
        raise KeyholeError(
            f"the answers {_named(run, right)} and {_named(run, wrong)} have no token in which they differ: what one "
            "goes on with says nothing against the other. Hold it against another answer."
        )
    return shared


def _named(run: "Run", ids: Sequence[int]) -> str:
    return shortened(" + ".join(map(repr, token_texts(run.model.tokenizer, ids))))


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
        """A row per token: a pandas DataFrame, or records without pandas.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> len(run.next(3).to_dataframe())
        3
        """
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
