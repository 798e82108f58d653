"""How does a request become a record, and how does an answer become JSON?

A request is read strictly, as a `Body` whose fields are declared beside the function that answers it: what is unknown,
missing or of another kind is refused in one sentence.
"""

import json
import re
from collections.abc import Callable, Mapping
from types import NoneType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    create_model,
    model_validator,
)

from keyhole.errors import KeyholeError
from keyhole.files import finite
from keyhole.models.organism import NAME as ORGANISM
from keyhole.settings.fields import Choice, choices_of
from keyhole.strict import parse_json, quoted

Settings = TypeVar("Settings")


class Body(BaseModel):
    """The fields of one request.

    >>> class Place(Body):
    ...     layer: int
    ...     head: int = Field(0, ge=0)
    >>> read_body(Place, {"layer": 3, "head": None})
    Place(layer=3, head=0)
    >>> read_body(Place, {"layer": "x"})
    Traceback (most recent call last):
    keyhole.errors.KeyholeError: layer should be a whole number, not 'x'.
    """

    model_config = ConfigDict(strict=True, frozen=True)

    FORM: ClassVar[str] = ""  # where a request has one of several forms: the field by which this one is known

    @model_validator(mode="before")
    @classmethod
    def _known(cls, values: Any) -> Any:
        """Refuse unknown fields: a misspelt option would be ignored without a word. Null is the same as left out."""
        if not isinstance(values, dict):
            return values  # pydantic refuses it
        names = sorted(field.alias or name for name, field in cls.model_fields.items())
        for name in sorted(values):
            if name not in names:
                takes = f"it takes {', '.join(names)}" if names else "it takes none"
                raise KeyholeError(f"this request has no {name!r}: {takes}.")
        return {name: value for name, value in values.items() if value is not None}

    def settings(self, record: type[Settings]) -> Settings:
        """A record of settings with those fields that this request has; the others keep their defaults."""
        names = [choice.name for choice in choices_of(record) if choice.name in type(self).model_fields]
        return record(**{name: getattr(self, name) for name in names})


Form = TypeVar("Form", bound=Body)


def takes(record: type[Any], *names: str) -> Callable[[type[Form]], type[Form]]:
    """A body with these fields of a record of settings: their values, bounds and defaults are declared there alone."""

    def with_fields(body: type[Form]) -> type[Form]:
        fields: dict[str, Any] = {c.name: _field(c) for c in choices_of(record) if c.name in names}
        return create_model(body.__name__, __base__=body, __module__=body.__module__, __doc__=body.__doc__, **fields)

    return with_fields


def _field(choice: Choice) -> tuple[Any, Any]:
    """The type and the default of a setting; values that JSON does not have, such as functions, are left out."""
    kinds: Any = NoneType if choice.optional else None
    for kind in choice.kinds:
        if kind in (int, float, bool, str) or get_origin(kind) is Literal:
            kinds = kind if kinds is None else kinds | kind
    about = choice.about
    return kinds, Field(choice.default, ge=about.get("least"), le=about.get("most"), description=about.get("help"))


def _as_list(value: Any) -> Any:
    return value or None if isinstance(value, list) else [value]


Seed = Annotated[int, Field(ge=0, le=(1 << 32) - 1)]  # what every generator takes
_WORD = [{"type": "string"}, {"type": "integer"}]
Words = Annotated[  # words and token ids: several, one, or none
    list[int | str] | None,
    BeforeValidator(_as_list),
    WithJsonSchema({"anyOf": [*_WORD, {"type": "array", "items": {"anyOf": _WORD}}]}),
]


class PromptBody(Body):
    """What names a run: a model and a prompt, as a text, as token ids or as messages of a chat."""

    prompt: Any
    model: str = ORGANISM
    bos: bool | None = None


def parse_body(content: bytes) -> dict[str, Any]:
    """The JSON object that a request is."""
    try:
        values = parse_json(content.decode("utf-8") or "{}")
    except UnicodeDecodeError as error:
        raise KeyholeError("the request is not valid UTF-8.") from error
    except RecursionError as error:
        raise KeyholeError("the request is nested too deeply.") from error
    if not isinstance(values, dict):
        raise KeyholeError("a request is a JSON object.")
    return values


def read_body(kind: type[Form], values: Mapping[str, Any]) -> Form:
    """A request as this kind of body, or a sentence that says which field is wrong."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise KeyholeError(_sentence(error)) from None


def schema_of(kind: type[Body]) -> dict[str, Any]:
    """What a body takes, as JSON Schema. Null is not mentioned: it is the same as left out.

    >>> class Place(Body):
    ...     layer: int = Field(description="From 0.")
    ...     head: int | None = None
    >>> schema_of(Place)["properties"]
    {'layer': {'description': 'From 0.', 'type': 'integer'}, 'head': {'type': 'integer'}}
    """
    schema = _short(kind.model_json_schema())
    schema.pop("description", None)  # of the class
    return {**schema, "additionalProperties": False}


def _short(schema: Any) -> Any:
    """Without titles, which repeat names, and without null."""
    if isinstance(schema, list):
        return [_short(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {
        key: _short(value)
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str)) and not (key == "default" and value is None)
    }
    if "anyOf" in kept:
        others = [item for item in kept["anyOf"] if item != {"type": "null"}]
        kept = {**kept, "anyOf": others} if len(others) > 1 else {**others[0], **kept}
        if len(others) == 1:
            del kept["anyOf"]
    return kept


# What pydantic calls an error, and what a value should have been.
_SHOULD_BE = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "a text",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "literal_error": "{expected}",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
    "too_long": "a list of at most {max_length}",
    "string_too_long": "a text of at most {max_length:,} characters",
}
_MEMBER = re.compile(r"int|str|float|\w+\[.*\]")  # how pydantic names the member of a union in an error's place


def _sentence(refused: ValidationError) -> str:
    """The first error in a sentence. Of a union there is one for each member: what reads furthest says it best."""
    errors = refused.errors(include_url=False)
    places = [[part for part in error["loc"] if not _MEMBER.fullmatch(str(part))] for error in errors]
    place = max((place for place in places if place[0] == places[0][0]), key=len)
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).removeprefix(".")
    there = [error for error, at in zip(errors, places, strict=True) if at == place]
    if there[0]["type"] == "missing":
        return f"this request needs {name}."
    choices = [
        _SHOULD_BE.get(error["type"], "{msg}").format(msg=error["msg"], **error.get("ctx", {})) for error in there
    ]
    return f"{name} should be {' or '.join(choices)}, not {quoted(there[0]['input'], 60)}."


# How does an answer become JSON? As the library spells it: NaN and infinity as null, tensors as lists.


def spell(value: Any) -> bytes:
    """A value as one line of JSON.

    >>> spell({"a": float("nan"), "b": (1, "é")}).decode()
    '{"a":null,"b":[1,"é"]}'
    """
    plain = finite(_listed(value))
    return json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")


def _listed(value: Any) -> Any:
    """Arrays and tensors as lists, wherever they are."""
    if isinstance(value, Mapping):
        return {key: _listed(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_listed(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value
