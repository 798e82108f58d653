"""The command that lets a model write on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from keyhole import show
from keyhole.cli.from_record import from_records
from keyhole.cli.options import JsonOption, PromptArgument, PromptOptions
from keyhole.errors import KeyholeError
from keyhole.settings.generation import GenerateSettings

if TYPE_CHECKING:
    from keyhole.generation.generated import Generated


def read_stops(texts: list[str]) -> tuple[str, ...]:
    """Every --stop."""
    return tuple(texts)


@from_records(stop=read_stops)
def generate(
    prompt: PromptArgument = None,
    *,
    source: PromptOptions,
    settings: GenerateSettings,
    stream: Annotated[
        bool | None, typer.Option("--stream/--no-stream", help="Print tokens as they come. Default: in a terminal.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """What would the model write after this prompt?

    Prints the answer, why it ended, and each of its tokens with the probability that the model gave it. Why a token was
    written, `keyhole trace` says: give it the prompt with everything before the token.

    Examples:

        keyhole generate "When Mary and John went to the store, John gave a drink to"

        keyhole generate "When Mary and John went to the store, John gave a drink to" --max-new-tokens 1 --json

        keyhole generate "Once upon a time" --temperature 0.8 --top-p 0.95 --seed 3 --stop "."  --model gpt2

        keyhole generate "What is the capital of France?" --chat --system "Be brief." --model SmolLM2.gguf
    """
    if json and stream:
        raise KeyholeError("--stream prints text and --json a record when all is written: leave one of them out.")
    text_or_ids = source.read(prompt)
    model = source.load()
    if stream or (stream is None and not json and show.in_terminal()):
        answer = model.generate(
            text_or_ids, settings=settings, bos=source.bos, show=lambda piece: show.piece(piece.text)
        )
        show.plain("")
        _about(answer)
        return
    with show.progress_bar("Writing") as progress:
        n = settings.max_new_tokens
        answer = model.generate(
            text_or_ids, settings=settings, bos=source.bos, show=lambda piece: progress(piece.index + 1, n)
        )
    if json:
        show.as_json(answer.record())
        return
    show.plain(answer.text)
    _about(answer)


def _about(answer: Generated) -> None:
    """Why the answer ended, and its tokens."""
    show.plain(f"{len(answer)} tokens; {answer.reason}")
    rows = [(str(i), repr(token.text), f"{token.probability:.3g}") for i, token in enumerate(answer.tokens)]
    show.table((">at", "token", ">probability"), rows)
