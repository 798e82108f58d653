"""How does a prompt become token ids? Explicitly: what was put in front is recorded, unknown words are named."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from keyhole.errors import KeyholeError

if TYPE_CHECKING:
    from keyhole.models.model import Model

Prompt = str | Sequence[int]


@dataclass(frozen=True)
class Encoded:
    """Token ids, their texts, and whether a beginning-of-sequence token stands first."""

    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    bos: bool


def encode(model: "Model", prompt: Prompt, bos: bool | None) -> Encoded:
    """Token ids of a prompt. `bos=None`: the tokenizer's own habit for text, ids as they are."""
    ids = _text_ids(model, prompt) if isinstance(prompt, str) else _given_ids(model, prompt)
    bos_id = getattr(model.tokenizer, "bos_token_id", None)
    if bos is None:
        bos = isinstance(prompt, str) and adds_bos(model.tokenizer)
    if bos:
        if bos_id is None:
            raise KeyholeError(f"{model.name} has no beginning-of-sequence token: run with bos=False.")
        ids = ids if ids and ids[0] == bos_id else (bos_id, *ids)
    if len(ids) < 2:
        raise KeyholeError(
            f"the prompt {prompt!r} is {len(ids)} token(s) long: attention needs at least two. Write a longer one."
        )
    limit = model.dims.positions
    if limit is not None and len(ids) > limit:
        raise KeyholeError(f"the prompt has {len(ids)} tokens, but {model.name} has only {limit} positions.")
    return Encoded(ids, token_texts(model.tokenizer, ids), bool(ids[0] == bos_id))


def adds_bos(tokenizer: Any) -> bool:
    """Does this tokenizer put a beginning-of-sequence token before text by itself?"""
    bos_id = getattr(tokenizer, "bos_token_id", None)
    return bos_id is not None and tokenizer("a").input_ids[:1] == [bos_id]


def token_texts(tokenizer: Any, ids: Sequence[int]) -> tuple[str, ...]:
    """The text of each token alone, for labels."""
    if tokenizer is None:
        return tuple(str(i) for i in ids)
    return tuple(tokenizer.decode([i]) for i in ids)


def token_id(model: "Model", text: str | int) -> int:
    """The single token that a word is, with or without a leading space; an error if it is none or several."""
    if isinstance(text, int):
        return _given_ids(model, [text])[0]
    tried = []
    for form in (" " + text.strip(), text.strip()):
        ids = _text_ids(model, form)
        if len(ids) == 1:
            return ids[0]
        tried.append(len(ids))
    raise KeyholeError(f"{text!r} is {min(tried)} tokens for {model.name}: give a word that is one token, or an id.")


def _text_ids(model: "Model", text: str) -> tuple[int, ...]:
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise KeyholeError(f"{model.name} has no tokenizer: give the prompt as token ids.")
    batch = tokenizer(text, add_special_tokens=False)
    ids = tuple(batch.input_ids)
    if tokenizer.unk_token_id is not None and tokenizer.unk_token_id in ids:
        raise KeyholeError(f"{model.name} does not know {_unknown_words(tokenizer, text, ids)}: use other words.")
    return ids


def _unknown_words(tokenizer: Any, text: str, ids: tuple[int, ...]) -> str:
    offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True).offset_mapping
    unknown = [text[a:b] for (a, b), i in zip(offsets, ids, strict=True) if i == tokenizer.unk_token_id]
    return ", ".join(repr(word) for word in dict.fromkeys(unknown))


def _given_ids(model: "Model", ids: Sequence[int]) -> tuple[int, ...]:
    given = tuple(int(i) for i in ids)
    for i in given:
        if not 0 <= i < model.dims.vocab:
            raise KeyholeError(f"token id {i} is outside the vocabulary of {model.name} (0 to {model.dims.vocab - 1}).")
    return given
