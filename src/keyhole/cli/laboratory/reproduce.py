"""The command that repeats published results."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keyhole import show
from keyhole.cli.choices import Paper
from keyhole.cli.options import ModelOption
from keyhole.errors import KeyholeError
from keyhole.files import require_folder

if TYPE_CHECKING:
    from keyhole.reproduce.results import Result

_DEVICE = "Where models are read and singular-vector toys trained, for example cuda. Payload heads stay on the CPU."

_MERGE = "Folder of results measured elsewhere: taken over first, the later of two. Can be given several times."
_MARKDOWN = "Write a Markdown table there too. Its results are kept beside it, as .json, and joined with those there."


def reproduce(
    ids: Annotated[
        list[str] | None, typer.Argument(help="Published items such as cc-fig4, or all.", show_default=False)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every item; the same as naming all.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="Show the items instead of running them.")] = False,
    paper: Annotated[Paper | None, typer.Option(help="Only what one paper, or the talk, published.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Seconds per item, to see that it runs; no verdict.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder of results. Default: reproduction, or reproduction-quick.")
    ] = None,
    model: ModelOption = None,
    device: Annotated[str | None, typer.Option(help=_DEVICE)] = None,
    seed: Annotated[int, typer.Option(help="The first of the seeds.")] = 0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run what is finished again, training included.")] = False,
    jobs: Annotated[int, typer.Option(help="Items measured at the same time, a process of one thread each.")] = 1,
    merge: Annotated[list[Path] | None, typer.Option(help=_MERGE, show_default=False)] = None,
    markdown: Annotated[Path | None, typer.Option(help=_MARKDOWN)] = None,
) -> None:
    """Do published results hold? Runs figures and tables of three papers and a talk, and writes a report.

    Results are kept after each item, so that a second call goes on where the first one stopped; each model's are kept
    apart, and folders measured on different machines can be merged. Without --model, items about large language models
    run on the built-in organism where that makes sense, and the report says so. Exits with 1 if an item failed to run.

    Examples:

        keyhole reproduce --list --paper cc

        keyhole reproduce cc-fig2 cc-fig4

        keyhole reproduce all --quick

        keyhole reproduce cc-fig9 --model meta-llama/Llama-3.1-8B-Instruct --device cuda

        keyhole reproduce all --jobs 16

        keyhole reproduce --merge elsewhere --markdown docs/reproduction.md
    """
    from keyhole.reproduce.report import require_writable
    from keyhole.reproduce.results import take_results
    from keyhole.reproduce.runner import reproduce as measure
    from keyhole.reproduce.runner import resolve

    wanted = ["all"] if every or (not ids and (listed or paper)) else ids or []
    if listed:
        _list(resolve(wanted, paper))
        return
    if not wanted and not merge:
        raise KeyholeError("name the items to run, or all; `keyhole reproduce --list` shows them.")
    chosen = resolve(wanted, paper)  # before a folder is made
    folder = out or Path("reproduction-quick" if quick else "reproduction")
    require_writable(folder, markdown)
    for source in merge or []:
        take_results(source, require_folder(folder))
    options: dict[str, Any] = {"model": model, "quick": quick, "device": device, "seed": seed, "fresh": fresh}
    try:
        results = measure(chosen, folder, jobs=jobs, stage=show.progress_bar, **options) if chosen else {}
    except KeyholeError:  # a refusal: nothing was measured
        raise
    except BaseException:  # a stop: what was measured before it is reported
        _report(folder, markdown)
        raise
    _show(results, folder)
    _report(folder, markdown)
    raise typer.Exit(int(any(result.state == "failed" for result in results.values())))


def _show(results: Mapping[str, "Result"], folder: Path) -> None:
    from keyhole.reproduce.catalogue import CATALOGUE
    from keyhole.reproduce.results import read_results
    from keyhole.reproduce.totals import Item, items

    kept = {item.one.id: item for item in items(read_results(folder))}
    for id, result in results.items():
        item, other = Item(CATALOGUE[id], result), kept[id]
        show.plain(f"{id:<10}  {item.said:<17}  {item.one.title}")
        said = f"{item.remark}.\n{result.measured}" if item.remark else result.measured or result.note
        for line in said.splitlines():
            show.plain(f"  {line}")
        if other.result.key != result.key or other.label != item.label:
            by = other.result.settings.get("model") or "a run without --model"
            show.plain(f"  The report shows what was kept before: {other.said}, by {by}.")


def _report(folder: Path, markdown: Path | None) -> None:
    from keyhole.reproduce.report import write_report
    from keyhole.reproduce.results import locked, read_results
    from keyhole.reproduce.totals import items, summary

    if not (folder / "results.json").is_file():
        return
    with locked(folder):  # reports of two runs would otherwise overtake each other
        results = read_results(folder)
        written = write_report(results, folder, markdown=markdown)
    show.plain(f"{folder}: {summary(items(results))}")
    for path in written:
        show.plain(f"wrote {path}")


def _list(ids: list[str]) -> None:
    from keyhole.reproduce.catalogue import CATALOGUE
    from keyhole.reproduce.runner import experiments

    runs = experiments()
    rows = []
    for one in (CATALOGUE[id] for id in ids):
        runnable = not (one.schematic or one.later) and (one.id in runs or one.same_as in runs)
        state = "drawing" if one.schematic else "later" if one.later else "runs here" if runnable else "not yet"
        rows.append((one.id, state, one.title, one.needs or ""))
    show.table(("item", "state", "title", "needs"), rows)
    here = sum(state == "runs here" for _, state, *_ in rows)
    show.plain(f"{len(ids)} items; {here} run here.")
