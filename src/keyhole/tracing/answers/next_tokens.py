"""What would the model say next? Its likeliest tokens, as a table."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, overload

from keyhole.dataframes import Table, as_dataframe
from keyhole.errors import KeyholeError
from keyhole.models.tokens.prompts import token_texts
from keyhole.tracing.answers.targets import targets_of

if TYPE_CHECKING:
    from keyhole.models.run import Run


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
