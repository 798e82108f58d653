"""The command that repeats published results."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keyhole import show
from keyhole.cli import name as namers
from keyhole.cli.from_record import from_records
from keyhole.cli.options import Paper
from keyhole.errors import KeyholeError
from keyhole.files import require_folder
from keyhole_papers import Running

if TYPE_CHECKING:
    from keyhole_papers.experiment import Choices
    from keyhole_papers.results import Result

_MERGE = "Folder of results measured elsewhere; of two results the later is kept; repeatable. Default: none."
_MARKDOWN = (
    "File to write a Markdown table to, with its results beside it as .json, joined with those there. Default: none."
)


@from_records()
def reproduce(
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            help="Published items such as cc-fig4, or all. Default: none, unless --paper or --all names them.",
            show_default=False,
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Run every item; the same as naming all.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="List the items instead of running them.")] = False,
    paper: Annotated[
        Paper | None, typer.Option(help="Take only items of this paper, or of the talk. Default: of all.")
    ] = None,
    *,
    out: Annotated[
        Path | None, typer.Option(help="Folder of results. Default: reproduction; with --quick, reproduction-quick.")
    ] = None,
    how: Running,
    explainer: namers.ExplainerOption = "statistics",
    judge: namers.JudgeOption = "rule",
    llm: namers.UrlOption = None,
    llm_model: namers.LlmModelOption = None,
    llm_key: namers.LlmKeyOption = None,
    llm_per_minute: namers.PerMinuteOption = None,
    yes: namers.YesOption = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run finished items again, training included.")] = False,
    jobs: Annotated[
        int, typer.Option(help="How many items are measured at the same time, in a process of one thread each.")
    ] = 1,
    merge: Annotated[list[Path] | None, typer.Option(help=_MERGE, show_default=False)] = None,
    markdown: Annotated[Path | None, typer.Option(help=_MARKDOWN)] = None,
) -> None:
    """Do published results hold? Runs figures and tables of three papers and a talk, and writes a report.

    Results are kept after each item, so that a second call goes on where the first one stopped; those of each model,
    dtype and other choice are kept apart, and folders measured on different machines can be merged. Without --model,
    items about large language models run on the built-in organism where that makes sense, and the report says so.
    Slides about names (talk-19 to talk-21) can be named and judged by a model behind --llm, whose answers are kept in
    the folder. Exits with 1 if an item failed to run.

    Examples:

        keyhole reproduce --list --paper cc

        keyhole reproduce cc-fig2 cc-fig4

        keyhole reproduce all --quick

        keyhole reproduce cc-fig9 --model meta-llama/Llama-3.1-8B-Instruct --dtype bfloat16 --device cuda

        keyhole reproduce talk-19 --explainer llm --judge llm --llm http://localhost:8000/v1 --llm-model qwen --yes
    """
    from keyhole.naming.naming import Namers
    from keyhole_papers.catalogue import resolve
    from keyhole_papers.experiment import Choices
    from keyhole_papers.report import require_writable
    from keyhole_papers.results import take_results
    from keyhole_papers.runner import reproduce as measure

    wanted = ["all"] if every or (not ids and (listed or paper)) else ids or []
    if listed:
        _list(resolve(wanted, paper))
        return
    if not wanted and not merge:
        raise KeyholeError("name the items to run, or all; `keyhole reproduce --list` shows them.")
    chosen = resolve(wanted, paper)  # before a folder is made
    folder = out or Path("reproduction-quick" if how.quick else "reproduction")
    require_writable(folder, markdown)
    for source in merge or []:
        take_results(source, require_folder(folder))
    asking = {"explainer": explainer, "judge": judge, "url": llm, "model": llm_model, "key": llm_key}
    choices = Choices(**vars(how), namers=Namers(**asking, per_minute=llm_per_minute, yes=yes))  # type: ignore[arg-type]
    try:
        results = measure(chosen, folder, choices, fresh=fresh, jobs=jobs, stage=show.progress_bar) if chosen else {}
    except KeyholeError:  # a refusal: nothing was measured
        raise
    except BaseException:  # a stop: what was measured before it is reported
        _report(folder, markdown)
        raise
    _show(results, folder)
    _note_unheeded(chosen, choices)
    _report(folder, markdown)
    raise typer.Exit(int(any(result.state == "failed" for result in results.values())))


def _show(results: Mapping[str, "Result"], folder: Path) -> None:
    from keyhole_papers.report import items
    from keyhole_papers.results import options_of, read_results

    kept = {first.id: first for first, *_ in items(read_results(folder))}
    for id, result in results.items():
        other = kept[id]
        show.plain(f"{id:<10}  {result.said:<17}  {result.published.title}")
        text = f"{result.remark}.\n{result.measured}" if result.remark else result.measured or result.note
        for line in text.splitlines():
            show.plain(f"  {line}")
        if other.key != result.key or other.label != result.label:
            by = " ".join(options_of(other.settings)) or "a run without --model"
            show.plain(f"  The report shows what was kept before: {other.said}, by {by}.")


def _note_unheeded(ids: list[str], choices: "Choices") -> None:
    """Note which of the items a choice did not change."""
    from keyhole_papers.catalogue import CATALOGUE
    from keyhole_papers.experiment import option_of, unheeded
    from keyhole_papers.runner import experiments

    for name, left in unheeded([CATALOGUE[id] for id in ids], choices, experiments()).items():
        if left:
            named = ", ".join(left[:5]) + (f" and {len(left) - 5} more" if len(left) > 5 else "")
            show.note(f"{option_of(name, choices)} changes nothing in {named}: run as usual.")


def _report(folder: Path, markdown: Path | None) -> None:
    from keyhole_papers.report import items, summary, write_report
    from keyhole_papers.results import locked, read_results

    if not (folder / "results.json").is_file():
        return
    with locked(folder):  # reports of two runs would otherwise overtake each other
        results = read_results(folder)
        written = write_report(results, folder, markdown=markdown)
    show.plain(f"{folder}: {summary(items(results))}")
    for path in written:
        show.plain(f"wrote {path}")


def _list(ids: list[str]) -> None:
    from keyhole_papers.catalogue import CATALOGUE
    from keyhole_papers.runner import experiments

    runs = experiments()
    rows = []
    for item in (CATALOGUE[id] for id in ids):
        runnable = not (item.schematic or item.later) and (item.id in runs or item.same_as in runs)
        state = "drawing" if item.schematic else "later" if item.later else "runs here" if runnable else "not yet"
        rows.append((item.id, state, item.title, item.needs or ""))
    show.table(("item", "state", "title", "needs"), rows)
    here = sum(state == "runs here" for _, state, *_ in rows)
    show.plain(f"{len(ids)} items; {here} run here.")
