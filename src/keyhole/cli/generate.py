"""The command that lets a model write on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keyhole import show
from keyhole.cli.from_record import from_records
from keyhole.cli.options import JsonOption, PromptArgument, PromptOptions
from keyhole.errors import KeyholeError
from keyhole.files import require_file
from keyhole.settings.measuring import GenerateSettings

if TYPE_CHECKING:
    from keyhole.edits import Edit
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
    edit: Annotated[
        list[str] | None,
        typer.Option(
            "--edit",
            metavar="FILE|EDIT",
            help="Write a second answer with this edit, and compare: a .json file of edits, 3.6:0,2*0 (channels 0 and "
            "2 of head 3.6 times 0), 3.6*0 (all that the head writes) or mlp2*0 (an MLP); repeatable. Default: none.",
        ),
    ] = None,
    focus: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Write a second answer that looks more at this text, which stands once in the prompt, and compare. "
            "Default: none.",
        ),
    ] = None,
    strength: Annotated[
        float,
        typer.Option(
            help="With --focus: what the text's keys are multiplied with, in the features by which retrieval heads "
            "find keys; 1 changes nothing. Default: 3."
        ),
    ] = 3.0,
    controls: Annotated[
        int, typer.Option(min=0, help="How many edits of random channels, or heads, to compare with. Default: 2.")
    ] = 2,
    unrelated: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Report what the edits do to this text, too, a paragraph a line. Default: none."
        ),
    ] = None,
    save_edits: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Write the edits to a file, for this model alone. Default: none."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the comparison: .json, .html or .csv; it needs --edit or --focus. Default: none."),
    ] = None,
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

        keyhole generate "Once upon a time" --temperature 0.8 --top-p 0.95 --seed 3 --stop "."  --model gpt2

        keyhole generate "What is the capital of France?" --chat --system "Be brief." --model SmolLM2.gguf

        keyhole generate "When Mary and John went to the store, John gave a drink to" --edit "1.6:5*-1" --edit "3.6*0"

        keyhole generate "Here is a list: apple, horse, coffee, truck. Find the animals:" --focus "horse" --strength 3
    """
    if edit or focus is not None:
        if stream:
            raise KeyholeError("--stream prints one answer, and --edit and --focus compare two: leave --stream out.")
        more: dict[str, Any] = {"unrelated": unrelated, "kept": save_edits, "out": out, "json": json}
        look_at = None if focus is None else (focus, strength)
        _compared(source, prompt, settings, edit or [], look_at=look_at, controls=controls, **more)
        return
    if out is not None or unrelated is not None or save_edits is not None:
        raise KeyholeError("--out, --unrelated and --save-edits are of a comparison: give an --edit or a --focus.")
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


def _compared(
    source: PromptOptions,
    prompt: str | None,
    settings: GenerateSettings,
    texts: list[str],
    *,
    look_at: tuple[str, float] | None,
    controls: int,
    unrelated: Path | None,
    kept: Path | None,
    out: Path | None,
    json: bool,
) -> None:
    """Two answers, without edits and with them."""
    from keyhole.edits import save_edits, side_effects
    from keyhole.edits.files import read_edits
    from keyhole.features.focus import focus as find_focus
    from keyhole.generation import beside
    from keyhole.strict import read_text

    edits: tuple[Edit, ...] = read_edits(texts)
    out = None if out is None else require_file(out, (".json", ".html", ".csv"))
    others = [line for line in read_text(unrelated).splitlines() if line.strip()] if unrelated is not None else []
    text_or_ids = source.read(prompt)
    model = source.load()
    if look_at is not None:
        with show.progress_bar("Finding retrieval heads") as progress:
            edits += find_focus(model, text_or_ids, look_at[0], strength=look_at[1], bos=source.bos, progress=progress)
    answers = beside(model, text_or_ids, edits, controls=controls, bos=source.bos, settings=settings)
    show.as_json(answers.record()) if json else show.plain(str(answers))
    if others:
        with show.progress_bar("Unrelated text") as progress:
            effects = side_effects(model, edits, others, progress=progress)
        show.note(str(effects)) if json else show.plain(str(effects))
    if kept is not None:
        save_edits(kept, edits, model)
    if out is not None:
        show.note(f"wrote {answers.save(out)}") if json else show.plain(f"\nwrote {answers.save(out)}")


def _about(answer: Generated) -> None:
    """Why the answer ended, and its tokens."""
    show.plain(f"{len(answer)} tokens; {answer.reason}")
    rows = [(str(i), repr(token.text), f"{token.probability:.3g}") for i, token in enumerate(answer.tokens)]
    show.table((">at", "token", ">probability"), rows)
