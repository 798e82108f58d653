"""The command that finds query-key features from contrasts."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keyhole import show
from keyhole.cli.discover import FeaturesOption, check_features, require_directions, write_features
from keyhole.cli.from_record import from_records
from keyhole.cli.options import (
    Balance,
    BoxFeature,
    Centre,
    FiguresOption,
    Frame,
    JsonOption,
    ModelOptions,
    Wording,
    read_head,
    read_kinds,
)
from keyhole.errors import KeyholeError
from keyhole.files import is_file, json_text, require_folder, write_at_once

if TYPE_CHECKING:
    from keyhole.features.contrast.lists import RankRow
    from keyhole.features.contrast.sites import Contrast
    from keyhole.features.contrast.studies import Study
    from keyhole.models.model import Model

FrameOption = Annotated[
    Frame,
    typer.Option(
        help="Coordinates of queries and keys: after or before the rotation by position, or relative to each other."
    ),
]


@from_records()
def contrast(
    what: Annotated[
        str, typer.Argument(help="A built-in contrast, boxes or lists, or a file of samples (JSON Lines).")
    ],
    feature: Annotated[
        BoxFeature, typer.Option(help="With boxes: the feature that is sought; both: order and lexical.")
    ] = "both",
    *,
    source: ModelOptions,
    prompts: Annotated[int, typer.Option(min=1, help="How many prompts the feature is made from.")] = 400,
    tests: Annotated[int, typer.Option(min=1, help="How many other prompts test the feature.")] = 200,
    boxes: Annotated[int, typer.Option(min=2, help="With boxes: how many boxes a prompt has.")] = 9,
    per_category: Annotated[
        int, typer.Option(min=1, help="With lists: how many items of each category a list has.")
    ] = 2,
    wording: Annotated[
        Wording, typer.Option(help="Wording of the prompts: the organism's (plain) or the paper's (instruct).")
    ] = "plain",
    chat: Annotated[
        bool, typer.Option("--chat/--no-chat", help="Put prompts into the model's chat template, or do not.")
    ] = False,
    cross: Annotated[
        bool,
        typer.Option("--cross", help="With the lexical feature: score negative keys with the original prompt's query."),
    ] = False,
    head: Annotated[
        list[str] | None,
        typer.Option(
            help="Study this head, such as 1.6, without a selection; repeatable. Default: heads are selected by their "
            "scores."
        ),
    ] = None,
    rank: Annotated[
        str,
        typer.Option(
            help="How many directions a feature has: a number, or a rule: null (permutations), energy (share of the "
            "variance) or halves (split-half agreement)."
        ),
    ] = "null",
    frame: FrameOption = "post_rope",
    centre: Annotated[
        Centre,
        typer.Option(
            help="Which means are subtracted: each side's own (each; pooled gives the same), or none, as in the paper."
        ),
    ] = "each",
    balance: Annotated[
        Balance,
        typer.Option(
            help="What counts as one in accuracies: a pair of keys (pairs), or a prompt, as the authors count "
            "(prompts)."
        ),
    ] = "pairs",
    negatives: Annotated[
        int | None, typer.Option(min=1, help="Draw this many negative keys per query. Default: all of them.")
    ] = None,
    permutations: Annotated[
        int, typer.Option(min=19, help="How many permutations make up the null distribution.")
    ] = 200,
    draws: Annotated[int, typer.Option(min=1, help="How many random subspaces each feature is compared with.")] = 10,
    answers: Annotated[int, typer.Option(min=0, help="How many prompts are run again with edited keys; 0: none.")] = 32,
    seed: Annotated[int, typer.Option(help="Seed of prompts, halves, permutations and controls.")] = 0,
    test_file: Annotated[
        Path | None,
        typer.Option(
            help="With a file of samples: a file of other samples that test the feature. Default: half of the first "
            "file."
        ),
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option(help="With boxes: measure ranks at these numbers of boxes, such as 2,3,5,9. Default: no sweep."),
    ] = None,
    features: FeaturesOption = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write study.json and pictures to. Default: none.")] = None,
    figures: FiguresOption = "png",
    umap: Annotated[
        bool, typer.Option("--umap", help="Draw UMAP pictures, too; needs keyhole[cluster] and --out.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Which query-key feature tells these keys from those, in which heads, and does attention follow it?

    A sample is a query, keys that have the feature, and keys that have it not. `boxes` asks how a thing's box is found:
    by its place in the prompt, by the thing itself, or (reflexive) by the box's own letter. `lists` asks for the items
    of a category. A file has a sample a line:
    {"prompt": "...", "query": "last", "positive": [{"find": "cats"}], "negative": [{"find": "dog"}]};
    one half of its samples makes the feature, the other tests it.

    Examples:

        keyhole contrast boxes --feature lexical

        keyhole contrast boxes --sweep 2,3,5,7,9 --out boxes

        keyhole contrast samples.jsonl --head 1.6 --rank energy
    """
    kinds = read_kinds(figures)
    counts = _check_requests(what, sweep, out, test_file, umap=umap)
    check_features(features)
    from keyhole.features.contrast import report
    from keyhole.features.contrast.lists import built_in
    from keyhole.features.contrast.studies import Selection, StudySettings, study

    loaded = source.load()
    if features is not None:
        require_directions(loaded, (loaded.attention_layers[0], 0), frame)
    wordings: dict[str, Any] = {"wording": wording, "chat": chat}
    test: Contrast | None
    if what == "boxes" or what == "lists":
        how = wordings | ({"n_boxes": boxes} if what == "boxes" else {"per_category": per_category})
        fits, test = built_in(
            loaded,
            "boxes" if what == "boxes" else "lists",
            (prompts, tests),
            feature=feature,
            seed=seed,
            cross=cross,
            how=how,
        )
    else:
        fits, test = _files(what, test_file)
    settings = StudySettings(
        select=Selection("ratio", 0.1, top=3) if what == "lists" else Selection("accuracy", 0.3),
        rank=_rank(rank),
        frame=frame,
        centre=centre,
        balance=balance,
        negatives=negatives,
        permutations=permutations,
        draws=draws,
        answers=answers,
        seed=seed,
    )
    heads = [read_head(text) for text in head or ()]
    result = study(loaded, fits, test, heads=heads, settings=settings, stage=show.progress_bar)
    rows = _sweep(loaded, result, counts, {**wordings, "n": prompts, "seed": 2 * seed}, cross=cross) if counts else {}
    record = report.record(result) | report.sweep_record(rows)
    if json:
        show.as_json(record)
    else:
        show.report(report.report(result, rows))
    if out is not None:  # after the answer, which a full disk must not cost
        write_at_once(require_folder(out) / "study.json", json_text(record) + "\n")
        _draw(result, rows, out, kinds=kinds, umap=umap, quiet=json)
    write_features(loaded, result, features, quiet=json)


def _check_requests(
    source: str, sweep: str | None, out: Path | None, test_file: Path | None, *, umap: bool
) -> list[int]:
    """Refuse at once what would fail after minutes of work; the numbers of boxes to sweep over."""
    if umap and (out is None or importlib.util.find_spec("umap") is None):
        raise KeyholeError("--umap needs --out and umap-learn: pip install 'keyhole[cluster]'.")
    if test_file is not None and source in ("boxes", "lists"):
        raise KeyholeError(f"--test-file is for a file of samples: {source} makes its own tests.")
    counts = _counts(source, sweep)
    if out is not None:
        require_folder(out)
    return counts


def _counts(source: str, sweep: str | None) -> list[int]:
    if sweep is None:
        return []
    if source != "boxes":
        raise KeyholeError("--sweep is for boxes: lists and files have no number of entities to vary.")
    try:
        counts = sorted({int(part) for part in sweep.replace(",", " ").split()})
    except ValueError as error:
        raise KeyholeError(f"--sweep takes numbers of boxes such as 2,3,5,9, not {sweep!r}.") from error
    if not counts or counts[0] < 2:
        raise KeyholeError("--sweep takes numbers of boxes, two or more.")
    return counts


def _files(path: str, test: Path | None) -> tuple[dict[str, Contrast], Contrast | None]:
    from keyhole.features.contrast.sites import read_contrast

    if not is_file(path):
        raise KeyholeError(f"{path!r} is neither boxes, lists, nor a file of samples.")
    given = read_contrast(path)
    return {given.name: given}, None if test is None else read_contrast(test)


def _rank(text: str) -> Any:
    if text.isdecimal():
        return int(text)
    if text not in ("null", "energy", "halves"):
        raise KeyholeError(f"--rank takes null, energy, halves or a number, not {text!r}.")
    return text


def _sweep(
    model: Model, result: Study, counts: Sequence[int], how: dict[str, Any], *, cross: bool
) -> dict[str, tuple[RankRow, ...]]:
    from keyhole.features.contrast.boxes import lexical_contrast, order_contrast, reflexive_contrast
    from keyhole.features.contrast.lists import sweep_ranks

    n, settings = how.pop("n"), result.settings
    options = {
        name: getattr(settings, name) for name in ("frame", "negatives", "centre", "balance", "permutations", "seed")
    }
    makers = {
        "order": lambda count: order_contrast(model, n, n_boxes=count, **how),
        "lexical": lambda count: lexical_contrast(model, n, n_boxes=count, cross=cross, **how),
        "reflexive": lambda count: reflexive_contrast(model, n, n_boxes=count, **how),
    }
    rows = {}
    for name in result.features:
        with show.progress_bar(f"Ranks of {name}") as progress:
            rows[name] = sweep_ranks(model, makers[name], counts, result.selected, progress=progress, **options)
    return rows


def _draw(
    result: Study,
    rows: dict[str, tuple[RankRow, ...]],
    out: Path,
    *,
    kinds: list[str],
    umap: bool,
    quiet: bool,
) -> None:
    from keyhole.features.contrast.study_figures import draw_study, draw_sweep

    with show.progress("Drawing"):
        written, notes = draw_study(result, out, umap=umap, kinds=kinds)
        written += draw_sweep(rows, out, kinds)
    if not quiet:
        for line in [f"wrote {path}" for path in (out / "study.json", *written)] + [f"no picture: {n}" for n in notes]:
            show.plain(line)
