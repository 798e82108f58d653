"""Which tokens of a prompt did the chat template write? They are structure, and no words that anyone said.

A prompt is known by its token ids alone, so its text is compared with a conversation in the model's own template: what
stands between its messages is the template's. A system prompt that the template puts there by itself is a message.
"""

from typing import TYPE_CHECKING

from keyhole.brief import Span
from keyhole.errors import KeyholeError
from keyhole.models.chat import Message, chat_text
from keyhole.models.tokens import spans_among, token_spans

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.models.run import Run

TURNS = 32  # of user and assistant, after which a conversation is no longer followed
_MESSAGE = "kEyHoLe"  # stands for what is said while the template's own text is read


def template_tokens(run: "Run") -> frozenset[int]:
    """The positions of special tokens, and of all others that the chat template wrote."""
    tokenizer = run.model.tokenizer
    if tokenizer is None:
        return frozenset()
    special = {t for t, token in enumerate(run.token_ids) if token in set(tokenizer.all_special_ids)}
    if getattr(tokenizer, "chat_template", None) is None:
        return frozenset(special)
    text = tokenizer.decode(list(run.token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    written = template_spans(run.model, text)
    try:
        spans = token_spans(run.model, text, run.token_ids)
    except KeyholeError:  # text that makes other tokens again
        spans = spans_among(text, run.tokens)
    inside = {
        t for t, span in enumerate(spans) if span and any(start <= span[0] and span[1] <= end for start, end in written)
    }
    return frozenset(special | inside)


def template_spans(model: "Model", text: str) -> list[Span]:
    """Where the chat template's own text stands in a text; nowhere, if that is no conversation."""
    for pieces in _conversations(model):
        spans, at = [(0, len(pieces[0]))], len(pieces[0])
        if not text.startswith(pieces[0]):
            continue
        for piece in pieces[1:]:
            start = text.find(piece, at)
            if start < 0:  # the text ends within this message, or before it, where nothing is to be set off by space
                written = len(piece.rstrip()) if text.endswith(piece.rstrip(), at) else 0
                spans += [(len(text) - written, len(text))] * bool(written)
                break
            spans.append((start, at := start + len(piece)))
        if len(spans) > 1:
            return spans
    return []


def _conversations(model: "Model") -> tuple[tuple[str, ...], ...]:
    """What the template writes around messages: of a conversation with a system prompt, and of one without."""
    key = "conversations", str(model.tokenizer.chat_template)
    return model._cached(key, lambda: (), lambda: tuple(_around(model, system) for system in (True, False)))


def _around(model: "Model", system: bool) -> tuple[str, ...]:
    roles = [*["system"] * system, *["user", "assistant"] * TURNS, "user"]
    messages: list[Message] = [{"role": role, "content": _MESSAGE} for role in roles]
    try:
        return tuple(chat_text(model, messages).split(_MESSAGE))
    except KeyholeError:  # templates may refuse a system prompt
        return ("\0",)
