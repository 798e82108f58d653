"""Where do words stand? Which characters of a prompt each token is, and where a text's words go in a chat message."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from keyhole.errors import KeyholeError

if TYPE_CHECKING:
    from keyhole.models.model import Model

Span = tuple[int, int]


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
    found: list[Span | None] = []
    at = 0
    for token in tokens:
        word = token.strip()
        start = text.find(word, at) if word else -1
        # what lies between two tokens is space, or the bytes of a character that no token has whole
        skipped = text[at:start] if start >= 0 else ""
        if start < 0 or any(letter.isascii() and not letter.isspace() for letter in skipped):
            found.append(None)
            continue
        found.append((start, start + len(word)))
        at = start + len(word)
    return found


def tokens_in(spans: list[Span | None], start: int, end: int) -> list[int]:
    """The tokens that cover some of these characters.

    Many tokenizers count a leading space to its word, so spans overlap rather than agree.
    """
    return [t for t, span in enumerate(spans) if span is not None and span[0] < end and span[1] > start]


# How does a text look as a user's message, and where did its words go?

_MESSAGE = "kEyHoLe"  # stands for the message while the template's own text is read


def in_chat(model: "Model", text: str, roles: Mapping[str, "Span"]) -> tuple[str, dict[str, "Span"]]:
    """The text in the tokenizer's chat template, up to where the assistant begins, and the spans moved along.

    The template has written the special tokens: run the result with `bos=False`. Its last token, where the assistant
    begins, is where the answer is predicted; END still stands where the user's message ends.
    """
    tokenizer = model.tokenizer
    if getattr(tokenizer, "chat_template", None) is None:
        raise KeyholeError(f"{model.name} has no chat template: give it the text itself.")
    before, _, after = _as_message(tokenizer, _MESSAGE).partition(_MESSAGE)
    whole = _as_message(tokenizer, text)
    if whole != before + text + after:
        raise KeyholeError(
            f"the chat template of {model.name} changes the message, so its words cannot be found again: "
            "give a text without space around it, or write the template's text yourself."
        )
    shift = len(before)
    return whole, {role: (start + shift, end + shift) for role, (start, end) in roles.items()}


def _as_message(tokenizer: Any, text: str) -> str:
    message = [{"role": "user", "content": text}]
    return str(tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True))
