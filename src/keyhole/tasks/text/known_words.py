"""Which words can a prompt of the tasks be made of, for this model?"""

from typing import TYPE_CHECKING

from keyhole.models.tokens.prompts import one_token_words
from keyhole.models.tokens.vocabulary import all_tokens
from keyhole.tasks.text.words import KINDS

if TYPE_CHECKING:
    from keyhole.models.model import Model

_LISTED = 1000  # tokens of a vocabulary that can be read through


def words_by_kind(model: "Model") -> dict[str, list[str]]:
    """The tasks' words that are one token for a model, by kind; of a small vocabulary, all others too.

    >>> import keyhole
    >>> found = words_by_kind(keyhole.load())
    >>> found["places"][:3], found["other"][-3:]
    (['store', 'restaurant', 'garden'], ['with', 'working', 'year'])
    """
    known = all_tokens(model)
    found = {kind: one_token_words(model, words) for kind, words in KINDS.items()}
    if len(known) <= _LISTED:
        listed = {word for words in found.values() for word in words}
        found["other"] = sorted(token.text for token in known if token.text not in listed)
    return {kind: words for kind, words in found.items() if words}
