"""How do records of settings become options? One option per field; the command has one parameter, the record."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from functools import wraps
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import typer

from keyhole import show
from keyhole.errors import KeyholeError
from keyhole.settings.fields import Choice, choices_of, old_names
from keyhole.strict import quoted

_TYPED = (str, int, float, bool, Path)  # types that typer reads by itself
_KIND = inspect.Parameter.KEYWORD_ONLY  # as typer calls; so a record's options may stand anywhere among the parameters
Reader = Callable[[Any], Any]
Command = TypeVar("Command", bound=Callable[..., None])


def from_records(**readers: Reader) -> Callable[[Command], Command]:
    """Turn a command's parameters that are records into options, one per field. The command is called with the records.

    A field of a type that typer does not read has a reader, a keyword of the field's name: a function of the text, or
    of the list of texts, that the option takes. If the command has a parameter of a field's name, too, that gets the
    value as typed. A renamed field also has a hidden option of its old name.
    """
    return lambda command: _adapted(command, readers)


def _adapted(command: Any, readers: Mapping[str, Reader]) -> Any:
    hints = get_type_hints(command, include_extras=True)
    records: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    named = {choice.name for record in records.values() for choice in choices_of(record)}
    renamed = {old: new for record in records.values() for old, new in old_names(record).items()}
    reading, parameters, typed_too = dict[str, Reader](), list[inspect.Parameter](), named & set(hints)
    for name, parameter in inspect.signature(command).parameters.items():
        if name not in (*records, *typed_too):
            parameters.append(parameter.replace(annotation=hints[name], kind=_KIND))
        for choice in choices_of(records[name]) if name in records else ():
            typed, reading[choice.name] = _typed(choice, readers.get(choice.name))
            parameters.append(inspect.Parameter(choice.name, _KIND, default=choice.default, annotation=typed))
            if choice.name in renamed.values():
                parameters.append(_old_option(choice, typed))

    @wraps(command)
    def call(**given: Any) -> None:
        for old, new in renamed.items():
            given[new] = newer(old, new, given.pop(old), given[new])
        values = {name: None if given[name] is None else reading[name](given[name]) for name in named}
        settings = {
            name: record(**{choice.name: values[choice.name] for choice in choices_of(record)})
            for name, record in records.items()
        }
        command(**{name: value for name, value in given.items() if name not in named or name in typed_too}, **settings)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _typed(choice: Choice, reader: Reader | None) -> tuple[Any, Reader]:
    """The type of a field's option, and what reads its value."""
    about, option = choice.about, dashed(choice.name)
    words = [kind for kind in choice.kinds if get_origin(kind) is Literal]
    plain = [*words, *(kind for kind in choice.kinds if kind in _TYPED)]
    if reader is not None:
        (hint,) = [kind for name, kind in get_type_hints(reader).items() if name != "return"]
    elif any(get_origin(kind) is tuple for kind in choice.kinds):
        hint, reader = str, lambda text: _several(text, choice, option)
    elif words and float in plain:
        hint, reader = str, lambda text: _word_or_number(text, choice, option)
    else:
        (hint,), reader = plain, lambda value: value
    names = about["names"] or ([f"--{option}"] if hint is bool and choice.default is False else [])
    typed = typer.Option(
        *names,
        help=about["help"],
        min=about["least"],
        max=about["most"],
        metavar=about["metavar"],
        rich_help_panel=about["panel"],
    )
    return Annotated[hint | None if choice.optional else hint, typed], reader


def _old_option(choice: Choice, typed: Any) -> inspect.Parameter:
    """The option of a field's old name, which help does not show."""
    old, (hint, *_) = choice.about["was"], get_args(typed)
    hidden = Annotated[hint | None, typer.Option(f"--{dashed(old)}", hidden=True)]  # type: ignore[valid-type]
    return inspect.Parameter(old, _KIND, default=None, annotation=hidden)


def newer(old: str, new: str, given: Any, usual: Any) -> Any:
    """The value given under an option's old name, with a note; otherwise the value under its new name."""
    if given is None:
        return usual
    show.note(f"--{dashed(old)} is called --{dashed(new)} now; the old name goes with the next release.")
    return given


def dashed(name: str) -> str:
    """A parameter's name as an option has it."""
    return name.replace("_", "-")


def _several(text: str, choice: Choice, option: str) -> tuple[str, ...]:
    """Words separated by commas."""
    (known,) = [get_args(get_args(kind)[0]) for kind in choice.kinds if kind is not NoneType]
    given = tuple(word.strip() for word in text.split(","))
    for word in given:
        if word not in known:
            raise KeyholeError(f"--{option} takes some of {', '.join(known)}, separated by commas, not {word!r}.")
    return given


def _word_or_number(text: str, choice: Choice, option: str) -> str | float:
    """One of a few words, or a number."""
    if text in choice.words:
        return text
    try:
        return float(text)
    except ValueError as error:
        known = ", ".join(choice.words)
        raise KeyholeError(f"--{option} takes {known} or a number such as 0.2, not {quoted(text)}.") from error
