"""Which tokens does a model know, and which are near to a word that it does not?"""

import difflib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from keyhole.errors import KeyholeError

if TYPE_CHECKING:
    from keyhole.models.model import Model

_WILD = "*?["


@dataclass(frozen=True)
class Token:
    """One token: its id and its text alone, with the space before it where it has one."""

    id: int
    text: str


def tokens_like(model: "Model", pattern: str) -> list[Token]:
    """Which tokens contain this text, or match it where it has wildcards (Mar*)? Case does not matter, nor a space.

    Shorter ones first: the word itself stands before those it is a part of.

    >>> import keyhole
    >>> [token.text for token in tokens_like(keyhole.load(), "box")]
    ['box', 'Box', 'boxing']
    """
    sought = pattern.strip().lower()
    sought = sought if any(mark in sought for mark in _WILD) else f"*{sought}*"
    found = [token for token in all_tokens(model) if fnmatchcase(token.text.strip().lower(), sought)]
    return sorted(found, key=lambda token: (len(token.text.strip()), token.text.strip().lower(), -token.id))


def all_tokens(model: "Model") -> list[Token]:
    """Every token that stands for text, in the order of ids; not those that only mark, such as <bos>."""
    if model.tokenizer is None:
        raise KeyholeError(f"{model.name} has no tokenizer: its tokens are numbers without text.")
    marks = set(model.tokenizer.all_special_ids)
    ids = sorted(i for i in model.tokenizer.get_vocab().values() if i not in marks)
    texts = model.tokenizer.batch_decode([[i] for i in ids])
    return [Token(i, text) for i, text in zip(ids, texts, strict=True)]


def nearest_words(tokenizer: Any, word: str, most: int = 3) -> list[str]:
    """Known words that are spelled much like this one, the nearest first; none if none is."""
    return difflib.get_close_matches(word, tokenizer.get_vocab(), most, cutoff=0.6)
