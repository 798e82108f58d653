"""What do tools take and give? Fields that several have, and an answer that is shown as text or as JSON."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from keyhole.brief import Head, head_named
from keyhole.errors import KeyholeError
from keyhole.models.organism import NAME as ORGANISM
from keyhole.report import Report, Section, Table
from keyhole.report.terminal import as_text
from keyhole.requests.bodies import Body, PromptBody, Words
from keyhole.settings.stores import BOS
from keyhole.strict import quoted

Place = int | str  # of a token: its position, or its text
CIRCUITS = (".json",)  # files that circuits are read from
_PROMPT = (
    'A text; or token ids; or messages of a chat, such as [{"role": "user", "content": "..."}], which are put into the '
    "model's chat template."
)
_PLACE = "The {}: a position (a number; -1 is the last token) or the text of a token that occurs once."


class ToolBody(Body):
    """How an answer is written, of every tool."""

    form: Literal["text", "json"] = Field("text", description="text: short, for reading. json: all numbers.")


class ModelBody(ToolBody):
    """A model."""

    model: str = Field(ORGANISM, description="A model that this server offers, by its name.")


class RunBody(PromptBody, ModelBody):
    """What names a run: a model and a prompt."""

    prompt: str | list[int] | list[dict[str, Any]] = Field(description=_PROMPT)
    bos: bool | None = Field(None, description=BOS)
    model: str = Field(ORGANISM, description="A model that this server offers, by its name.")


class HeadBody(RunBody):
    """A head, and two tokens of a prompt."""

    head: str = Field(description="Layer and head, such as 3.6.")
    dest: Place = Field(-1, description=_PLACE.format("attending token"))
    src: Place | None = Field(
        None, description=_PLACE.format("attended token") + " Default: the token that gets the most attention."
    )

    @property
    def which(self) -> Head:
        """Layer and head."""
        return read_head(self.head)


class TargetBody(RunBody):
    """A prompt, and an answer to it, perhaps against another."""

    target: Words = Field(
        None,
        description="The answer: a text, a token id, or several that count as one. Default: the likeliest next token.",
    )
    against: Words = Field(None, description="The other answer, whose logit is subtracted. Default: none.")


class AnswerBody(TargetBody):
    """An answer, and where it is predicted."""

    end: Place = Field(-1, description=_PLACE.format("token after which the answer is predicted"))


class OutBody(Body):
    """Where a circuit is written."""

    out: str | None = Field(
        None,
        description="File in the server's folder to write the circuit to, for verify and compare (.json), or as a page "
        "or picture (.html, .svg, .png, .pdf, .graphml, .mib). Default: none.",
    )


class CircuitBody(ToolBody):
    """A circuit of a file, and the model that made it."""

    circuit: str = Field(description="A circuit file (.json) in the server's folder, as trace or sufficient write it.")
    model: str | None = Field(None, description="The model that made it. Default: the one that the file names.")


def as_list(value: Any) -> Any:
    """One text or record where several may stand."""
    return [value] if isinstance(value, str | dict) else value


Several = Annotated[list[str], BeforeValidator(as_list)]


def read_head(text: str) -> Head:
    """A head such as 3.6."""
    head = head_named(text)
    if head is None:
        raise KeyholeError(f"a head is a layer and a head such as 3.6, not {quoted(text)}.")
    return head


@dataclass(frozen=True)
class Answer:
    """What a tool found: for a reader, and as plain data with all numbers."""

    text: str
    record: dict[str, Any]
    written: tuple[str, ...] = field(default=())  # files

    @classmethod
    def of(cls, title: str, summary: str, table: tuple[str, Table], record: dict[str, Any]) -> "Answer":
        """An answer with one table, under its heading."""
        heading, rows = table
        return cls(as_text(Report(title, summary, [Section(heading, [rows])])), record)
