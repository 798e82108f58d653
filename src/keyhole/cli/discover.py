"""Commands that find features without labels, and how what was found is written.

What --features means: a file of directions that `keyhole name` and `keyhole where` read.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keyhole import show
from keyhole.brief import Head
from keyhole.cli.bulk import answer
from keyhole.cli.from_record import from_records
from keyhole.cli.options import (
    BosOption,
    Frame,
    JsonOption,
    ModelOptions,
    Nonlinearity,
    read_head,
)
from keyhole.errors import KeyholeError
from keyhole.files import is_file, require_file
from keyhole.strict import read_text

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.models.tokens import Prompt
    from keyhole.naming.subjects.operands import FeaturesFound

FeaturesOption = Annotated[
    Path | None,
    typer.Option(help="File (.json) to write the features to, for `keyhole name` and `keyhole where`. Default: none."),
]


def check_features(path: Path | None) -> None:
    """Refuse at once a place where nothing can be written."""
    if path is not None:
        require_file(path, (".json",))


def require_directions(model: Model, head: Head, frame: Frame) -> None:
    """Refuse a frame whose features turn with positions, before they are found."""
    from keyhole.naming.subjects.kinds import require_fixed

    require_fixed(model, head, frame, "a feature")


def write_features(model: Model, features: FeaturesFound, path: Path | None, *, quiet: bool) -> None:
    """After the answer, which a full disk must not cost."""
    if path is None:
        return
    from keyhole.naming.subjects.operands import feature_subjects, save_subjects

    subjects = feature_subjects(model, features)
    if not subjects:
        show.note(f"no feature has a dimension, so that {path} was not written")
        return
    save_subjects(subjects, model, path)
    if not quiet:
        show.plain(f"wrote {path}")


# The command that finds query-key features without labels.

PASSAGE = 96  # tokens


@from_records()
def discover(
    text: Annotated[
        Path | None,
        typer.Argument(help="A text file with a prompt a line, or a .jsonl file of prompts. Default: English prose."),
    ] = None,
    head: Annotated[
        str | None, typer.Option(help="Find the features of this head, such as 3.1. Default: a survey of all heads.")
    ] = None,
    *,
    source: ModelOptions,
    prompts: Annotated[int, typer.Option(min=2, help="How many prompts are run at most.")] = 300,
    frame: Annotated[
        Frame,
        typer.Option(
            help="Coordinates of queries and keys: after or before the rotation by position, or relative to each other."
        ),
    ] = "relative",
    centre: Annotated[
        bool, typer.Option("--centre/--no-centre", help="Subtract what the average query prefers, or do not.")
    ] = True,
    first: Annotated[
        bool, typer.Option("--first/--no-first", help="Count attention to the first token, too, or do not.")
    ] = False,
    rank: Annotated[
        int | None,
        typer.Option(min=1, help="How many directions are kept. Default: as many as hold 99 % of the energy."),
    ] = None,
    nonlinearity: Annotated[
        Nonlinearity, typer.Option(help="Nonlinearity of ICA: cube suits binary features, tanh is robust to outliers.")
    ] = "cube",
    features: FeaturesOption = None,
    top: Annotated[int, typer.Option(min=1, help="How many heads, or token pairs of a feature, are shown.")] = 12,
    seed: Annotated[int, typer.Option(help="Seed of halves, ICA and the choice of text.")] = 0,
    bos: BosOption = None,
    json: JsonOption = False,
) -> None:
    """Which features does a head match on, when nobody says what to look for?

    What a query attends to is contrasted with what it leaves; independent components of the queries and of the
    attended keys are found and paired. Features are fitted on one half of the prompts and scored on the other: a
    feature's share is the part of the score gap between attended and other keys that its own term makes. Features
    that depend on each other, in queries as in keys, are reported as one of several dimensions. Gaussian features come
    out only as a subspace, and more features than dimensions as mixtures; both are warned of.
    Without a file the text is passages of Jane Austen's novels, which `make .cache/prose.txt` fetches; for the
    organism, which knows no other words, text of the kind that it was trained on.

    Examples:

        keyhole discover

        keyhole discover --head 3.1

        keyhole discover --head 3.1 --features features.json

        keyhole discover texts.txt --model SmolLM2.gguf --head 20.6 --nonlinearity tanh
    """
    if features is not None and head is None:
        raise KeyholeError("--features writes those of one head: give --head, such as 3.1.")
    check_features(features)
    from keyhole.features.discovery.all_heads import survey as survey_heads
    from keyhole.features.discovery.keys import View
    from keyhole.features.discovery.one_head import head_features

    loaded = source.load()
    if features is not None and head is not None:
        require_directions(loaded, read_head(head), frame)
    texts = _found(loaded, prompts, seed) if text is None else _lines(text, prompts)
    view = View(frame, skip_first=not first)
    with show.progress_bar("Running prompts") as progress:
        if head is None:
            survey = survey_heads(loaded, texts, view=view, centre=centre, bos=bos, seed=seed, progress=progress)
            answer(survey, [], shown=survey.report(top), json=json)
            return
        options: dict[str, Any] = {"centre": centre, "rank": rank, "nonlinearity": nonlinearity, "seed": seed}
        found_here = head_features(
            loaded, texts, read_head(head), view=view, bos=bos, show=top, progress=progress, **options
        )
    answer(found_here, [], json=json)
    write_features(loaded, found_here, features, quiet=json)


def _found(model: Model, n: int, seed: int) -> Sequence[Prompt]:
    """English prose, or for the organism text of its own kind, as long as the model can read it."""
    from keyhole.models.tokens import text_ids
    from keyhole.tasks.corpus import documents, knows_tasks_alone, passages

    most = model.dims.positions or 1 << 30
    if not knows_tasks_alone(model):
        return passages(model, [min(PASSAGE, most)] * n, seed)
    fitting = (text for text in documents(2 * n, seed=seed) if len(text_ids(model, text, special=True)) <= most)
    return list(islice(fitting, n))


def _lines(path: Path, n: int) -> list[str]:
    """The prompts of a file: its lines, or of JSON Lines what each has as its prompt."""
    if not is_file(path):
        raise KeyholeError(f"there is no file {path}: give a text file with a prompt a line.")
    if path.suffix.lower() in (".jsonl", ".json"):  # as prose, its braces and keys would be tokens of the prompts
        from keyhole.tasks.files import read_examples

        return [example.text for example in read_examples(path)][:n]
    lines = read_text(path).splitlines()
    return [line.strip() for line in lines if line.strip()][:n]
