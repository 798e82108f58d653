"""What does the model write after a prompt, which edit removes a part of a circuit, and what would it say then?"""

from dataclasses import asdict
from typing import Any

from pydantic import Field

from keyhole.edits.files import edit_of, plain, typed_edit
from keyhole.edits.making import Scope, firing_edits
from keyhole.edits.records import Edit
from keyhole.errors import KeyholeError
from keyhole.generation.comparing import beside as compared
from keyhole.generation.generated import Generated
from keyhole.generation.writing import Piece
from keyhole.generation.writing import generate as written
from keyhole.models.model import Model
from keyhole.requests.bodies import Body, PromptBody, takes
from keyhole.requests.jobs import Reporter
from keyhole.requests.kept import Kept
from keyhole.settings.measuring import GenerateSettings
from keyhole.web.server.circuits import CircuitBody, FiringBody, circuit_of, explained

_EDITS = 64  # at once

# What does the model write after this prompt?


@takes(GenerateSettings, "max_new_tokens", "temperature", "seed")
class WritingBody(PromptBody):
    """A prompt, and how the model writes on."""


def generate(kept: Kept, body: WritingBody, reporter: Reporter) -> dict[str, Any]:
    """The model's answer, shown token by token; where it is stopped, what was written until then."""
    model, ids, settings = _asked(kept, body, reporter)
    pieces = list[Piece]()

    def show(piece: Piece) -> None:
        pieces.append(piece)
        if reporter.stopping:
            raise KeyboardInterrupt  # by which the library ends an answer early
        reporter.pieces("Writing", len(pieces), settings.max_new_tokens, tokens=[asdict(p) for p in pieces])

    reporter.check()
    reporter.keeps = True
    answer = written(model, list(ids), settings=settings, show=show)
    tokens = [{**asdict(t), "piece": p.text} for t, p in zip(answer.tokens, pieces, strict=True)]
    return {**_said(answer), "tokens": tokens, "prompt_ids": list(ids)}


def _asked(kept: Kept, body: WritingBody, reporter: Reporter) -> tuple[Model, tuple[int, ...], GenerateSettings]:
    """Model, prompt and settings; an answer that makes the prompt too long is refused before it is written."""
    model, ids = kept.encoded(body, reporter)
    settings, most = body.settings(GenerateSettings), kept.given.tokens
    if len(ids) + settings.max_new_tokens > most:
        raise KeyholeError(
            f"the prompt has {len(ids):,} tokens and its answer up to {settings.max_new_tokens:,}, and this page takes "
            f"{most:,} together: ask for fewer, or use the library."
        )
    return model, ids, settings


def _said(answer: Generated) -> dict[str, Any]:
    """An answer without its prompt."""
    tokens = [asdict(token) for token in answer.tokens]
    return {"text": answer.text, "tokens": tokens, "stopped": answer.stopped, "reason": answer.reason}


# Which edit removes what was traced?


class TypedBody(Body):
    """An edit as it is typed: 3.6:0,2*0.5, 3.6*0 or mlp2*0."""

    FORM = "typed"

    typed: str = Field(max_length=200)


class FiringEditBody(FiringBody):
    """All signals of a firing: by which factor, and at which tokens."""

    FORM = "layer"

    factor: float = 0.0
    scope: Scope = "here"


class PartBody(CircuitBody):
    """An edge or a node of a circuit: by which factor, and at which tokens."""

    edge: int | None = Field(None, ge=0)
    node: int | None = Field(None, ge=0)
    factor: float = 0.0
    scope: Scope = "here"


def edit(kept: Kept, body: TypedBody | FiringEditBody | PartBody, reporter: Reporter) -> dict[str, Any]:
    """A part of a circuit or a firing as edits, which are plain data."""
    if isinstance(body, TypedBody):
        edits: tuple[Edit, ...] = (typed_edit(body.typed),)
    elif isinstance(body, FiringEditBody):
        firing, _ = explained(body, kept.ran(body, reporter))
        edits = firing_edits(firing, factor=body.factor, scope=body.scope)
    else:
        edits = (_part_edit(kept, body, reporter),)
    return {"edits": [plain(one) for one in edits], "texts": [str(one) for one in edits]}


def _part_edit(kept: Kept, body: PartBody, reporter: Reporter) -> Edit:
    circuit, _ = circuit_of(kept, body, reporter)
    what, parts, index = (
        ("edge", circuit.edges, body.edge) if body.edge is not None else ("node", circuit.nodes, body.node)
    )
    if index is None:
        raise KeyholeError("an edit is of an edge or of a node: give one of them.")
    if index >= len(parts):
        raise KeyholeError(f"there is no {what} {index}: this circuit has {len(parts)}.")
    return circuit.edit(parts[index], factor=body.factor, scope=body.scope)


# What would it have said?


class BesideBody(WritingBody):
    """A prompt, what is edited, and how many edits of the same size are tried besides."""

    edits: list[dict[str, Any]] = Field(max_length=_EDITS)
    controls: int = Field(1, ge=0, le=5)


def beside(kept: Kept, body: BesideBody, reporter: Reporter) -> dict[str, Any]:
    """The answer without and with edits, side by side."""
    model, ids, settings = _asked(kept, body, reporter)
    edits = [edit_of(record, where=f"edits[{i}]") for i, record in enumerate(body.edits)]
    progress = reporter.progress("Writing both answers", alone=True)
    found = compared(model, list(ids), edits, controls=body.controls, settings=settings, progress=progress)
    return {
        **found.record(),
        "original": _said(found.original),
        "edited": _said(found.edited),
        "changed": found.changed,
        "texts": [str(one) for one in edits],
    }
