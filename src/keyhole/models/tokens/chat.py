"""How does a text look as a user's message, and where did its words go?"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from keyhole.errors import KeyholeError
from keyhole.models.tokens.spans import Span

if TYPE_CHECKING:
    from keyhole.models.model import Model

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
