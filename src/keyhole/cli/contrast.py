"""The command that finds query-key features from contrasts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from keyhole import show
from keyhole.cli.options import (
    DeviceOption,
    DtypeOption,
    JsonOption,
    ModelOption,
    RevisionOption,
    load_model,
    read_head,
)
from keyhole.contrast import report
from keyhole.contrast.boxes import boxes_test, lexical_contrast, order_contrast
from keyhole.contrast.files import read_contrast
from keyhole.contrast.lists import lists_contrast, lists_test
from keyhole.contrast.sites import Contrast
from keyhole.contrast.study import Selection, Study, study
from keyhole.contrast.sweep import RankRow, sweep_ranks
from keyhole.errors import KeyholeError
from keyhole.models.model import Model

FrameOption = Annotated[str, typer.Option(help="post_rope, pre_rope, or relative: coordinates of queries and keys.")]


def contrast(
    what: Annotated[str, typer.Argument(help="boxes, lists, or a file of samples (JSON Lines).")],
    feature: Annotated[str, typer.Option(help="Of boxes: order, lexical, or both.")] = "both",
    model: ModelOption = None,
    prompts: Annotated[int, typer.Option(min=1, help="Prompts that make the feature.")] = 400,
    tests: Annotated[int, typer.Option(min=1, help="Other prompts that test it.")] = 200,
    boxes: Annotated[int, typer.Option(min=2, help="Boxes in a prompt.")] = 9,
    per_category: Annotated[int, typer.Option(min=1, help="Items of each category in a list.")] = 2,
    wording: Annotated[str, typer.Option(help="plain (the organism's) or instruct (the paper's).")] = "plain",
    chat: Annotated[bool, typer.Option("--chat/--no-chat", help="Put prompts into the chat template.")] = False,
    cross: Annotated[bool, typer.Option("--cross", help="Lexical: negatives meet the original's query.")] = False,
    head: Annotated[list[str] | None, typer.Option(help="Study these heads (1.6), select none.")] = None,
    rank: Annotated[str, typer.Option(help="null, energy, halves, or a number.")] = "null",
    frame: FrameOption = "post_rope",
    centre: Annotated[str, typer.Option(help="none, each, or pooled.")] = "none",
    balance: Annotated[str, typer.Option(help="pairs, or prompts (the authors' filter heads).")] = "pairs",
    negatives: Annotated[int | None, typer.Option(min=1, help="Sample so many negatives per query.")] = None,
    permutations: Annotated[int, typer.Option(min=1, help="Draws of the null.")] = 200,
    draws: Annotated[int, typer.Option(min=1, help="Random subspaces beside each feature.")] = 10,
    answers: Annotated[int, typer.Option(min=0, help="Prompts run again with edited keys.")] = 32,
    seed: Annotated[int, typer.Option(help="Of prompts, halves, permutations and controls.")] = 0,
    sweep: Annotated[
        str | None, typer.Option(help="Of boxes: ranks against these numbers of boxes, such as 2,3,5,9.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for study.json and pictures.")] = None,
    umap: Annotated[bool, typer.Option("--umap", help="UMAP pictures too (needs keyhole[cluster]).")] = False,
    revision: RevisionOption = None,
    dtype: DtypeOption = "float32",
    device: DeviceOption = None,
    json: JsonOption = False,
) -> None:
    """Which query-key feature tells these keys from those, in which heads, and does attention follow it?

    A sample is a query, keys that have the feature, and keys that have it not. `boxes` asks how a thing's box is found:
    by its place in the order told, or by the thing itself. `lists` asks for the items of a category. A file has a
    sample a line: {"prompt": "...", "query": "last", "positive": [{"find": "cats"}], "negative": [{"find": "dog"}]};
    one half of its samples makes the feature, the other tests it.

    Examples:

        keyhole contrast boxes --feature lexical

        keyhole contrast boxes --sweep 2,3,5,7,9 --out boxes

        keyhole contrast lists --out lists

        keyhole contrast boxes --model SmolLM2.gguf --boxes 3 --wording instruct --chat --frame relative

        keyhole contrast samples.jsonl --head 1.6 --rank energy
    """
    _choice("--feature", feature, ("order", "lexical", "both"))
    if sweep is not None and what != "boxes":
        raise KeyholeError("--sweep is for boxes: lists and files have no number of entities to vary.")
    loaded = load_model(model, revision, dtype, device)
    wordings: dict[str, Any] = {"wording": wording, "chat": chat}
    if what == "boxes":
        fits, test = _boxes(loaded, feature, (prompts, tests), seed=seed, cross=cross, n_boxes=boxes, **wordings)
    elif what == "lists":
        how = {"per_category": per_category, **wordings}
        fits = {"category": lists_contrast(loaded, prompts, seed=2 * seed, **how)}
        test = lists_test(loaded, tests, seed=2 * seed + 1, **how)
    else:
        fits, test = _file(what), None
    select = Selection("ratio", 0.1, top=3) if what == "lists" else Selection("accuracy", 0.3)
    result = study(
        loaded,
        fits,
        test,
        heads=[read_head(text) for text in head or ()],
        select=select,
        rank=_rank(rank),
        frame=frame,  # type: ignore[arg-type]
        centre=centre,  # type: ignore[arg-type]
        balance=balance,  # type: ignore[arg-type]
        negatives=negatives,
        permutations=permutations,
        draws=draws,
        answers=answers,
        seed=seed,
        stage=show.progress_bar,
    )
    rows: dict[str, tuple[RankRow, ...]] = {}
    if sweep is not None:
        rows = _sweep(loaded, result, _counts(sweep), {**wordings, "n": prompts, "seed": 2 * seed}, cross=cross)
    written = _write(result, rows, out, umap=umap)
    if json:
        show.as_json(report.record(result) | report.sweep_record(rows))
    else:
        _tell(result, rows, written)


def _boxes(
    model: Model, feature: str, sizes: tuple[int, int], *, seed: int, cross: bool, **how: Any
) -> tuple[dict[str, Contrast], Contrast]:
    fits = {}
    if feature in ("order", "both"):
        fits["order"] = order_contrast(model, sizes[0], seed=2 * seed, **how)
    if feature in ("lexical", "both"):
        fits["lexical"] = lexical_contrast(model, sizes[0], cross=cross, seed=2 * seed, **how)
    return fits, boxes_test(model, sizes[1], seed=2 * seed + 1, **how)


def _file(path: str) -> dict[str, Contrast]:
    if not Path(path).is_file():
        raise KeyholeError(f"{path!r} is neither boxes, lists, nor a file of samples.")
    given = read_contrast(path)
    return {given.name: given}


def _rank(text: str) -> Any:
    if text.isdecimal():
        return int(text)
    _choice("--rank", text, ("null", "energy", "halves", "or a number"))
    return text


def _choice(option: str, text: str, choices: Sequence[str]) -> None:
    if text not in choices:
        raise KeyholeError(f"{option} takes {', '.join(choices)}, not {text!r}.")


def _counts(text: str) -> list[int]:
    try:
        return [int(part) for part in text.replace(",", " ").split()]
    except ValueError as error:
        raise KeyholeError(f"--sweep takes numbers of boxes such as 2,3,5,9, not {text!r}.") from error


def _sweep(
    model: Model, result: Study, counts: Sequence[int], how: dict[str, Any], *, cross: bool
) -> dict[str, tuple[RankRow, ...]]:
    n = how.pop("n")
    makers = {
        "order": lambda count: order_contrast(model, n, n_boxes=count, **how),
        "lexical": lambda count: lexical_contrast(model, n, n_boxes=count, cross=cross, **how),
    }
    rows = {}
    for name in result.features:
        with show.progress_bar(f"Ranks of {name}") as progress:
            rows[name] = sweep_ranks(
                model, makers[name], counts, result.selected, progress=progress, frame=result.test.frame
            )
    return rows


def _write(result: Study, rows: dict[str, tuple[RankRow, ...]], out: Path | None, *, umap: bool) -> list[Path]:
    if out is None:
        return []
    from keyhole.figures.study import draw_study, draw_sweep

    with show.progress("Drawing"):
        written = draw_study(result, out, umap=umap) + draw_sweep(rows, out)
    record = report.record(result) | report.sweep_record(rows)
    (out / "study.json").write_text(show.json_text(record) + "\n", encoding="utf-8")
    return [out / "study.json", *written]


def _tell(result: Study, rows: dict[str, tuple[RankRow, ...]], written: Sequence[Path]) -> None:
    show.plain(report.summary(result))
    show.table(report.HEADS, report.head_rows(result))
    show.plain(report.LEGEND)
    show.table(report.SWAPS, report.swap_rows(report.selected_swaps(result)))
    show.plain(report.SWAPS_LEGEND)
    if result.shares:
        show.table(report.CHANNELS, report.channel_rows(result))
        show.plain(report.CHANNELS_LEGEND)
    if result.answers is not None:
        show.plain(report.answers_heading(result.answers))
        show.table(report.SWAPS, report.swap_rows(result.answers.heads))
    if rows:
        show.table(report.SWEEP, report.sweep_cells(rows))
    for path in written:
        show.plain(f"wrote {path}")
