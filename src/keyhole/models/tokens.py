"""How does a text become tokens, and tokens a text? Token ids, and where in a text words stand."""

import difflib
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from jaxtyping import Float
from torch import Tensor

from keyhole.brief import Span
from keyhole.errors import KeyholeError
from keyhole.models.chat import Message, chat_text, is_messages
from keyhole.strict import quoted, shortened

if TYPE_CHECKING:
    from keyhole.models.model import Model

# Which tokens does a model know, and which are near to a word that it does not?

_WILD = "*?["


@dataclass(frozen=True)
class Token:
    """One token: its id and its text alone, with the space before it where it has one."""

    id: int
    text: str


def tokens_like(model: "Model", pattern: str) -> list[Token]:
    """Which tokens contain this text, or match it where it has wildcards (Mar*)? Case does not matter, nor a space.

    Shorter ones first: the word itself stands before those it is a part of.

    Args:
        model: The model, with its tokenizer.
        pattern: The text, with * for any characters.

    >>> import keyhole
    >>> [token.text for token in tokens_like(keyhole.load(), "box")]
    ['box', 'Box', 'boxing']
    """
    sought = pattern.strip().lower()
    sought = sought if any(mark in sought for mark in _WILD) else f"*{sought}*"
    matching = [token for token in all_tokens(model) if fnmatchcase(token.text.strip().lower(), sought)]
    return sorted(matching, key=lambda token: (len(token.text.strip()), token.text.strip().lower(), -token.id))


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


# How does a prompt become token ids? What the tokenizer put in front is recorded, and unknown words are an error.

Prompt = str | Sequence[int] | Sequence[Message] | Tensor | np.ndarray  # text, token ids, or messages of a chat


@dataclass(frozen=True)
class Encoded:
    """Token ids, their texts, and whether a beginning-of-sequence token stands first."""

    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    bos: bool


def encode(model: "Model", prompt: Prompt, bos: bool | None) -> Encoded:
    """Token ids of a prompt. `bos=None`: whatever the tokenizer itself puts before text, and ids as they are."""
    bos_id = getattr(model.tokenizer, "bos_token_id", None)
    if is_messages(prompt):
        prompt = text_ids(model, chat_text(model, cast(Sequence[Message], prompt)))  # with the template's own bos
    text = isinstance(prompt, str)
    ids = text_ids(model, str(prompt), special=bos is None) if text else _given_ids(model, prompt)
    if bos:
        if bos_id is None:
            raise KeyholeError(f"{model.name} has no beginning-of-sequence token: run with bos=False.")
        ids = ids if ids and ids[0] == bos_id else (bos_id, *ids)
    if len(ids) < 2:
        raise KeyholeError(
            f"the prompt {quoted(prompt)} is {len(ids)} token(s) long: attention needs at least two. Write a longer "
            "one."
        )
    limit = model.dims.positions
    if limit is not None and len(ids) > limit:
        raise KeyholeError(f"the prompt has {len(ids)} tokens, but {model.name} has only {limit} positions.")
    return Encoded(ids, token_texts(model.tokenizer, ids), bool(ids[0] == bos_id))


def token_texts(tokenizer: Any, ids: Sequence[int]) -> tuple[str, ...]:
    """The text of each token alone, for labels."""
    if tokenizer is None:
        return tuple(str(i) for i in ids)
    return tuple(tokenizer.decode([i]) for i in ids)


def token_label(tokens: Sequence[str], position: int) -> str:
    """A token with its position, such as 4:John."""
    return f"{position}:{tokens[position].strip() or repr(tokens[position])}"


def tokens_line(tokens: Sequence[str]) -> str:
    """All tokens of a prompt with their positions.

    >>> tokens_line(["<bos>", " When", " Mary"])
    '0:<bos> 1:When 2:Mary'
    """
    return " ".join(f"{position}:{token.strip()}" for position, token in enumerate(tokens))


def prompt_text(tokenizer: Any, ids: Sequence[int], most: int = 80) -> str:
    """The beginning of a prompt as text, for messages."""
    text = " ".join(map(str, ids)) if tokenizer is None else tokenizer.decode(list(ids), skip_special_tokens=True)
    return text if len(text) <= most else text[: most - 3] + "..."


def token_id(model: "Model", text: str | int, logits: Float[Tensor, "vocab"] | None = None) -> int:
    """The single token that a text is; an error if it is none or several.

    A word may be a token after a space and another one without: with its space, the first is meant; else the likelier
    by these logits, without any the first.
    """
    if isinstance(text, int):
        return _given_ids(model, [text])[0]
    if model.tokenizer is None:
        raise KeyholeError(f"{model.name} has no tokenizer: give {quoted(text)} as a token id.")
    forms = text_forms(model, text)
    single = [ids[0] for ids in forms if len(ids) == 1]
    if not single:
        pieces = " + ".join(map(repr, token_texts(model.tokenizer, min(forms, key=len)))) or "nothing"
        raise KeyholeError(
            f"{quoted(text)} is {shortened(pieces)} for {model.name}, and not one token: give its first one, another "
            f"word (`keyhole words '{text.strip()[:1]}*' --model ...` lists some), or an id."
        )
    return single[0] if logits is None else max(single, key=lambda i: float(logits[i]))


def text_forms(model: "Model", text: str) -> list[tuple[int, ...]]:
    """Token ids of a text with a space before it and without; only with one where the text itself begins with a space.

    Tokenizers that put a space before any word themselves (Llama, GPT-2 with a prefix) have both forms in either case.
    """
    word = text.strip(" ")
    if not word:
        return [text_ids(model, text)]
    spaced, bare = (text_ids(model, form) for form in (" " + word, word))
    first = model.tokenizer.convert_ids_to_tokens(list(bare[:1]))  # none: some tokenizers drop a tab or a line feed
    marks_space = str(first[0] if first else "").startswith(("\u2581", "\u0120"))
    return [spaced] if text.startswith(" ") and not marks_space else [spaced, bare]


def one_token_words(model: "Model", words: Iterable[str]) -> list[str]:
    """Which of these words are one token inside a sentence, after a space?

    >>> import keyhole
    >>> one_token_words(keyhole.load(), ["jam", "marmalade"])
    ['jam']
    """
    return [word for word in words if _is_one_token(model, word)]


def _is_one_token(model: "Model", word: str) -> bool:
    # The word stands after itself rather than alone behind a space: some tokenizers put a space before any text, and
    # no other word is sure to be known.
    try:
        return len(text_ids(model, f"{word} {word}")) - len(text_ids(model, word)) == 1
    except KeyholeError:
        if model.tokenizer is None:
            raise
        return False  # a word it does not know


def text_ids(model: "Model", text: str, *, special: bool = False) -> tuple[int, ...]:
    """Token ids of a text; `special` adds what the tokenizer adds by itself. Words it does not know are an error."""
    tokenizer = model.tokenizer
    if tokenizer is None:
        reason = f" ({model.tokenizer_problem})" if model.tokenizer_problem else ""
        raise KeyholeError(f"{model.name} has no tokenizer{reason}: give the prompt as token ids.")
    _require_text(text)
    unknown = tokenizer.unk_token_id
    plain = tokenizer(text, add_special_tokens=False, verbose=False).input_ids  # lengths are ours to judge
    if unknown is not None and unknown in plain and tokenizer.unk_token not in text:
        raise KeyholeError(f"{model.name} does not know {_unknown_words(tokenizer, text)}.")
    return tuple(tokenizer(text, verbose=False).input_ids if special else plain)


def _require_text(text: str) -> None:
    """Refuse what no tokenizer can read: half of a pair of UTF-16 characters, as broken input leaves it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise KeyholeError(
            f"the prompt is not valid text: character {error.start} is {text[error.start]!a}, half of a character "
            "that was cut or read in a wrong encoding. Give it as UTF-8."
        ) from error


def _unknown_words(tokenizer: Any, text: str) -> str:
    """Which words are unknown, and what to use instead."""
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    pairs = zip(encoded.offset_mapping, encoded.input_ids, strict=True)
    words = [text[a:b] for (a, b), i in pairs if i == tokenizer.unk_token_id]
    unknown = list(dict.fromkeys(words))
    near = list(dict.fromkeys(other for word in unknown for other in nearest_words(tokenizer, word)))
    instead = f" such as {', '.join(near)}" if near else ""
    return (
        f"{shortened(', '.join(map(repr, unknown)))}: use other words{instead} (`keyhole words` lists them), or "
        "another model (--model)"
    )


def _given_ids(model: "Model", ids: Any) -> tuple[int, ...]:
    if hasattr(ids, "tolist"):
        ids = ids.tolist()
    if isinstance(ids, list) and len(ids) == 1 and isinstance(ids[0], list):
        ids = ids[0]  # what a tokenizer returns with return_tensors
    try:
        given = tuple(operator.index(i) for i in ids)
    except TypeError as error:
        raise KeyholeError(f"a prompt is text or a list of token ids, not {ids!r:.60}.") from error
    for i in given:
        if not 0 <= i < model.dims.vocab:
            raise KeyholeError(f"token id {i} is outside the vocabulary of {model.name} (0 to {model.dims.vocab - 1}).")
    return given


# Where do words stand? Which characters of a prompt each token is.


def token_spans(model: "Model", text: str, token_ids: tuple[int, ...]) -> list[Span | None]:
    """(start, end) of every token of a prompt made from this text; None for what the tokenizer put in front."""
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise KeyholeError(f"{model.name} has no tokenizer: name tokens by position.")
    if not getattr(tokenizer, "is_fast", False):
        raise KeyholeError(f"the tokenizer of {model.name} does not say where its tokens stand: name them by position.")
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    before = len(token_ids) - len(encoded.input_ids)
    if before < 0 or tuple(encoded.input_ids) != tuple(token_ids[before:]):
        raise KeyholeError("these token ids are not those of this text.")
    return [None] * before + [tuple(span) for span in encoded.offset_mapping]


def spans_among(text: str, tokens: Sequence[str]) -> list[Span | None]:
    """The same from the tokens' own texts, where there is no tokenizer: in order, whatever the spaces.

    None for what does not stand in the text: a token put in front, or a part of a character.

    >>> spans_among("When Mary went", ["<bos>", "When", " Mary", "went"])
    [None, (0, 4), (5, 9), (10, 14)]
    """
    spans: list[Span | None] = []
    at = 0
    for token in tokens:
        word = token.strip()
        start = text.find(word, at) if word else -1
        # what lies between two tokens is space, or the bytes of a character that no token has whole
        skipped = text[at:start] if start >= 0 else ""
        if start < 0 or any(letter.isascii() and not letter.isspace() for letter in skipped):
            spans.append(None)
            continue
        spans.append((start, start + len(word)))
        at = start + len(word)
    return spans


def tokens_in(spans: list[Span | None], start: int, end: int) -> list[int]:
    """The tokens that cover some of these characters.

    Many tokenizers count a leading space to its word, so spans overlap rather than agree.
    """
    return [t for t, span in enumerate(spans) if span is not None and span[0] < end and span[1] > start]
