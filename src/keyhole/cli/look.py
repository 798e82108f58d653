"""Commands that look at one model or one prompt: check, heads, plot, channels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keyhole import show
from keyhole.cli import prompt_text
from keyhole.cli.bulk import answer
from keyhole.cli.from_record import from_records, newer
from keyhole.cli.options import (
    Basis,
    DestOption,
    JsonOption,
    ModelOptions,
    PromptArgument,
    PromptOptions,
    SrcOption,
    read_head,
    read_place,
)
from keyhole.errors import KeyholeError
from keyhole.files import require_file
from keyhole.settings.tracing import FirstToken

if TYPE_CHECKING:
    from keyhole.qk.controls import Rotation


@from_records()
def check(
    named: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL", help="The model, as --model takes it. Default: the built-in organism.", show_default=False
        ),
    ] = None,
    *,
    source: ModelOptions,
    prompt: Annotated[str | None, typer.Option(help="Prompt to check on. Default: random tokens.")] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Largest relative error that is accepted. Default: by the number format.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random tokens.")] = 0,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print the errors of every layer, too.")] = False,
    json: JsonOption = False,
) -> None:
    """How exact is Keyhole on this model? Exits with 1 if it is not.

    Rebuilds all attention scores from channels, all residual streams from writers, and the logits from those, and
    compares each with the model's own.

    Examples:

        keyhole check

        keyhole check path/to/model --verbose

        keyhole check SmolLM2.gguf --json
    """
    if named is not None and source.model is not None:
        raise KeyholeError("name the model once: as an argument or with --model.")
    loaded = source.load(named or source.model)
    from keyhole.tracing.exactness import check as check_model

    with show.progress("Checking"):
        result = check_model(loaded, prompt, tolerance=tolerance, seed=seed)
    answer(result, [], shown=result.report(layers=verbose), json=json)
    raise typer.Exit(0 if result.exact else 1)


@from_records()
def heads(
    prompt: PromptArgument = None,
    *,
    source: PromptOptions,
    dest: Annotated[
        str | None,
        typer.Option(help="Show only firings of this attending token: a position or its text. Default: all tokens."),
    ] = None,
    tau: Annotated[
        float | None,
        typer.Option(
            help="Attention weight from which a head counts as firing, between 0 and 1. Default: 2.5 / visible keys."
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="How many firings are shown.")] = 20,
    first_token: Annotated[
        FirstToken,
        typer.Option(
            help="What becomes of firings on the first token: they are listed (keep), listed and marked (mark), or "
            "only counted (collapse)."
        ),
    ] = "collapse",
    sinks: Annotated[FirstToken | None, typer.Option(hidden=True)] = None,
    json: JsonOption = False,
) -> None:
    """Which heads fire where, and over how many channels does each score split?

    Examples:

        keyhole heads "When Mary and John went to the store, John gave a drink to"

        keyhole heads "The war lasted from the year 1745 to the year 17" --dest -1 --top 10

        keyhole heads --model path/to/model --token-ids 8,10,84,10
    """
    first_token = newer("sinks", "first_token", sinks, first_token)
    run = source.run(prompt)
    from keyhole.qk.channels import channels as split_score
    from keyhole.qk.firings import find_firings

    sites = find_firings(run, tau, dest=read_place(run, dest))
    shown = [site for site in sites if first_token != "collapse" or site.src > 0]
    splits = [split_score(run, (s.layer, s.head), s.dest, s.src) for s in shown[:top]]
    if json:
        show.as_json(prompt_text.heads_record(run, sites, splits))
    else:
        collapsed, mark = len(sites) - len(shown), first_token == "mark"
        show.report(prompt_text.heads_report(run, splits, firings=len(sites), collapsed=collapsed, mark=mark))


@from_records()
def plot(
    prompt: PromptArgument = None,
    head: Annotated[str, typer.Option(help="Layer and head, such as 3.6.")] = ...,  # type: ignore[assignment]
    out: Annotated[Path, typer.Option(help="File to write the picture to: .png, .svg or .pdf.")] = ...,  # type: ignore[assignment]
    *,
    source: PromptOptions,
) -> None:
    """Draw a picture of where a head attends.

    Each row is a token and where it looks; `keyhole heads` lists the heads that look somewhere in particular.

    Examples:

        keyhole plot "When Mary and John went to the store, John gave a drink to" --head 3.6 --out head.png

        keyhole plot "The war lasted from the year 1745 to the year 17" --head 2.3 --out head.pdf
    """
    from keyhole.circuits.files import PICTURES

    require_file(out, PICTURES)
    where = read_head(head)
    run = source.run(prompt)
    with show.progress("Drawing"):
        from keyhole.figures.style import save

        save(run.plot(where), out)
    show.plain(f"wrote {out}")


@from_records()
def channels(
    prompt: PromptArgument = None,
    head: Annotated[str, typer.Option(help="Layer and head, such as 3.1.")] = ...,  # type: ignore[assignment]
    dest: DestOption = "-1",
    src: SrcOption = None,
    *,
    source: PromptOptions,
    top: Annotated[int, typer.Option(min=1, help="How many channels are shown.")] = 12,
    basis: Annotated[
        Basis,
        typer.Option(
            help="Which matrix is split into channels: without biases (linear), or with biases inside, as in the 2024 "
            "paper (homogeneous)."
        ),
    ] = "linear",
    draws: Annotated[int, typer.Option(min=0, help="How many random rotations S(v) is compared with; 0: none.")] = 20,
    json: JsonOption = False,
) -> None:
    """How does one score split over the singular channels of its head?

    Examples:

        keyhole channels "When Mary and John went to the store, John gave a drink to" --head 1.6 --src Mary

        keyhole channels "The jam is in box A, the knife is in box B. Which box is the jam in? Box" --head 2.0 --src 5
    """
    run = source.run(prompt)
    from keyhole.qk.channels import channels as split_score
    from keyhole.qk.controls import rotation_control

    where: Any = (read_head(head), read_place(run, dest), read_place(run, src))
    split = split_score(run, *where, basis=basis)
    kinds: tuple[Rotation, ...] = ("refactor", "ambient") if draws else ()
    controls = [rotation_control(run, *where, kind=kind, draws=draws, basis=basis) for kind in kinds]
    if json:
        show.as_json(prompt_text.channels_record(run, split, controls))
    else:
        show.report(split.report(run.tokens, controls, top))
