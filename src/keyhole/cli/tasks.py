"""The command that lists the tasks and shows or writes their prompts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keyhole import show
from keyhole.brief import model_label
from keyhole.cli.options import (
    DeviceOption,
    DtypeOption,
    JsonOption,
    ModelOption,
    RevisionOption,
    load_model,
    read_choices,
)
from keyhole.errors import KeyholeError
from keyhole.files import require_file

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.tasks import Answered, Example

ChoicesOption = Annotated[
    list[str] | None,
    typer.Option("--with", metavar="NAME=VALUE", help="A choice of the task, such as design=mixed; may be repeated."),
]
_AT_ONCE = 64  # prompts whose runs are held together


def tasks(
    what: Annotated[
        str | None, typer.Argument(help="A task, or a file of prompts (JSON Lines). Without it, a list.")
    ] = None,
    model: ModelOption = None,
    n: Annotated[int | None, typer.Option(min=1, help="How many prompts. Default: the task's; of a file, all.")] = None,
    seed: Annotated[int, typer.Option(help="Of the task's prompts.")] = 0,
    chosen: ChoicesOption = None,
    run: Annotated[bool, typer.Option("--run", help="Run the model: what does it answer, how often right?")] = False,
    skip_wrong: Annotated[bool, typer.Option("--skip-wrong", help="With --run: leave out what it gets wrong.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the prompts to this file, as JSON Lines.")] = None,
    revision: RevisionOption = None,
    dtype: DtypeOption = "float32",
    device: DeviceOption = None,
    json: JsonOption = False,
) -> None:
    """Which prompts have known answers? A list of tasks, or the prompts of one, for the model at hand.

    Words are filtered to single tokens of the model. What is written can be edited and used again in place of a task.

    Examples:

        keyhole tasks

        keyhole tasks ioi --n 5

        keyhole tasks ioi --model SmolLM2.gguf --n 60 --with design=mixed --out ioi.jsonl

        keyhole tasks ioi.jsonl --model SmolLM2.gguf --run --skip-wrong --out right.jsonl
    """
    if skip_wrong and not run:
        raise KeyholeError("--skip-wrong needs --run: whether an answer is right is known by running the model.")
    if what is None:
        _list_tasks(json=json)
        return
    from keyhole.tasks import examples, write_examples

    if out is not None:
        require_file(out, (".jsonl", ".json"))
    loaded = load_model(model, revision, dtype, device) if run or model is not None else None
    made = examples(what, loaded, n, seed, **read_choices(chosen))
    rows = _asked(loaded, made) if run and loaded is not None else [Row(example) for example in made]
    kept = [row for row in rows if not (skip_wrong and row.answered and not row.answered.correct)]
    if out is not None:
        write_examples([row.example for row in kept], out)
    right = sum(row.answered.correct for row in rows if row.answered) if run else None
    if json:
        show.as_json({"task": what, "n": len(rows), "right": right, "examples": [_record(row) for row in kept]})
        return
    if out is None:
        _show(kept)
    counted = f", {right} of them answered right" if right is not None else ""
    show.plain(f"{len(rows)} prompts{counted}" + (f"; {len(kept)} written to {out}" if out is not None else ""))


@dataclass(frozen=True)
class Row:
    """A prompt, and what the model made of it."""

    example: Example
    answered: Answered | None = None


def _asked(model: Model, made: list[Example]) -> list[Row]:
    from keyhole.tasks import answered

    rows: list[Row] = []
    with show.progress_bar(f"Asking {model_label(model.name)}") as progress:
        for start in range(0, len(made), _AT_ONCE):
            some = made[start : start + _AT_ONCE]
            runs = model.run_many([example.text for example in some])
            rows += [Row(example, answered(run, example)) for run, example in zip(runs, some, strict=True)]
            progress(len(rows), len(made))
    return rows


def _list_tasks(*, json: bool) -> None:
    from keyhole.tasks import CATALOGUE, examples

    first = {name: examples(name, n=1)[0] for name in CATALOGUE}
    if json:
        rows = [
            {"task": name, "asks": task.asks, "choices": task.choices, "example": _record(Row(first[name]))}
            for name, task in CATALOGUE.items()
        ]
        show.as_json({"tasks": rows})
        return
    ends = {name: " ".join(example.text.split()[-8:]) for name, example in first.items()}
    cells = [
        (name, task.asks, f"... {ends[name]}", first[name].answer, " ".join(task.choices))
        for name, task in CATALOGUE.items()
    ]
    show.table(("task", "asks", "example", "answer", "choices (--with)"), cells)


def _show(rows: list[Row]) -> None:
    asked = any(row.answered for row in rows)
    cells = []
    for i, row in enumerate(rows):
        example, told = row.example, row.answered
        labels = " ".join(f"{name}={value}" for name, value in example.labels.items())
        said = (told.predicted.strip(), f"{told.probability:.3f}", "right" if told.correct else "wrong") if told else ()
        cells.append((str(i), example.text, _few(example.answers), _few(example.against), labels, *said))
    more = ("predicted", ">p", "") if asked else ()
    show.table(("prompt", "text", "answer", "against", "labels", *more), cells)


def _few(words: tuple[str, ...], most: int = 3) -> str:
    return " ".join(words[:most]) + (f" ... {words[-1]}" if len(words) > most else "")


def _record(row: Row) -> dict[str, Any]:
    from keyhole.tasks.files import as_record

    return as_record(row.example) | ({"answered": asdict(row.answered)} if row.answered else {})
