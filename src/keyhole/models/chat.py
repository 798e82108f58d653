"""How does a conversation read to a model? Messages in the tokenizer's own chat template, and where their text stands.

The template writes the special tokens, a beginning-of-sequence token among them where the model has one. Its text ends
where the assistant begins to write, so that the last token predicts the answer's first.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from keyhole.brief import Span
from keyhole.errors import KeyholeError
from keyhole.strict import parse_json, quoted, shortened

if TYPE_CHECKING:
    from keyhole.models.model import Model

Message = Mapping[str, str]  # {"role": "user", "content": "..."}


def is_messages(prompt: object) -> bool:
    """Is this a list of messages, and neither text nor token ids?"""
    return isinstance(prompt, list | tuple) and any(isinstance(entry, Mapping) for entry in prompt)


def messages_of(text: str, system: str | None = None) -> list[Message]:
    """A conversation: text as the user's message, or a JSON list of messages; a system prompt stands before them.

    >>> messages_of("Hello", "Be brief.")
    [{'role': 'system', 'content': 'Be brief.'}, {'role': 'user', 'content': 'Hello'}]
    >>> messages_of('[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]')[1]["role"]
    'assistant'
    """
    messages: list[Message] = [{"role": "user", "content": text}]
    if text.lstrip().startswith("["):
        try:
            given = parse_json(text)
        except KeyholeError:
            given = None  # text that happens to begin with a bracket
        if is_messages(given):
            messages = list(given)
    if system is None:
        return messages
    if messages[0].get("role") == "system":
        raise KeyholeError("the messages begin with a system prompt already: leave the other one out.")
    return [{"role": "system", "content": system}, *messages]


def chat_text(model: "Model", messages: Sequence[Message]) -> str:
    """Messages in the model's chat template, up to where the assistant begins or, if it has begun, goes on."""
    tokenizer = model.tokenizer
    if getattr(tokenizer, "chat_template", None) is None:
        raise KeyholeError(f"{model.name} has no chat template: give it the text itself.")
    plain = [_message(entry) for entry in messages]
    begun = plain[-1]["role"] == "assistant"
    how: dict[str, Any] = {"continue_final_message": True} if begun else {"add_generation_prompt": True}
    try:
        return str(tokenizer.apply_chat_template(plain, tokenize=False, **how))
    except Exception as error:  # a template refuses by jinja's errors, and by errors of its own
        reason = shortened(str(error).strip().rstrip("."))
        raise KeyholeError(f"the chat template of {model.name} refuses these messages: {reason}.") from error


def _message(entry: object) -> dict[str, str]:
    """One message, or why it is none."""
    fits = isinstance(entry, Mapping) and set(entry) == {"role", "content"}
    if not (isinstance(entry, Mapping) and fits and all(isinstance(value, str) for value in entry.values())):
        raise KeyholeError(
            f'a message is {{"role": "user", "content": "..."}}, both of them texts, not {quoted(entry)}.'
        )
    return dict(entry)


_MESSAGE = "kEyHoLe"  # stands for the message while the template's own text is read


def in_chat(model: "Model", text: str, roles: Mapping[str, Span]) -> tuple[str, dict[str, Span]]:
    """The text as a user's message in the chat template, up to where the assistant begins, and the spans moved along.

    The template has written the special tokens: run the result with `bos=False`. Its last token, where the assistant
    begins, is where the answer is predicted; END still stands where the user's message ends.
    """
    before, _, after = chat_text(model, messages_of(_MESSAGE)).partition(_MESSAGE)
    whole = chat_text(model, [{"role": "user", "content": text}])
    if whole != before + text + after:
        raise KeyholeError(
            f"the chat template of {model.name} changes the message, so its words cannot be found again: "
            "give a text without space around it, or write the template's text yourself."
        )
    shift = len(before)
    return whole, {role: (start + shift, end + shift) for role, (start, end) in roles.items()}
