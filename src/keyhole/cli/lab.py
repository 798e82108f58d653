"""The command that repeats published results."""

from pathlib import Path
from typing import Annotated, Any

import typer

from keyhole import show
from keyhole.cli.options import DeviceOption, ModelOption
from keyhole.errors import KeyholeError


def reproduce(
    ids: Annotated[
        list[str] | None, typer.Argument(help="Published items such as cc-fig4, or all.", show_default=False)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every item; the same as naming all.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="Show the items instead of running them.")] = False,
    paper: Annotated[str | None, typer.Option(help="Only one paper's: svf, svt, cc, or talk.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Seconds per item, to see that it runs; no claim.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder of results. Default: reproduction, or reproduction-quick.")
    ] = None,
    model: ModelOption = None,
    device: DeviceOption = None,
    seed: Annotated[int, typer.Option(help="The first of the seeds.")] = 0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run what is finished again.")] = False,
    markdown: Annotated[Path | None, typer.Option(help="Write a Markdown table there too.")] = None,
) -> None:
    """Do published results hold? Runs figures and tables of three papers and a talk, and writes a report.

    Results are kept after each item, so that a second call goes on where the first one stopped. Without --model, items
    about large language models run on the built-in organism where that makes sense, and the report says so. Exits with
    1 if an item failed to run.

    Examples:

        keyhole reproduce --list --paper cc

        keyhole reproduce cc-fig2 cc-fig4

        keyhole reproduce all --quick

        keyhole reproduce cc-fig9 --model meta-llama/Llama-3.1-8B-Instruct --device cuda

        keyhole reproduce --all --markdown docs/reproduction.md
    """
    from keyhole.lab import reproduce as lab
    from keyhole.lab.catalogue import CATALOGUE, PAPERS
    from keyhole.lab.report import write_report
    from keyhole.lab.results import read_results

    if paper is not None and paper not in PAPERS:
        raise KeyholeError(f"--paper takes {', '.join(PAPERS)}, not {paper!r}.")
    chosen: Any = paper
    wanted = ["all"] if every or (not ids and (listed or paper)) else ids or []
    if listed:
        _list(lab.resolve(wanted, chosen))
        return
    if not wanted:
        raise KeyholeError("name the items to run, or all; `keyhole reproduce --list` shows them.")
    if markdown is not None and not markdown.parent.is_dir():
        raise KeyholeError(f"cannot write {markdown}: there is no folder {str(markdown.parent)!r}; make it first.")
    folder = out or Path("reproduction-quick" if quick else "reproduction")
    results = lab.reproduce(
        wanted,
        folder,
        paper=chosen,
        model=model,
        quick=quick,
        device=device,
        seed=seed,
        fresh=fresh,
        stage=show.progress_bar,
    )
    for result in results.values():
        show.plain(f"{result.id:<10}  {result.state:<13}  {CATALOGUE[result.id].title}")
        for line in (result.measured or result.note).splitlines():
            show.plain(f"  {line}")
    for path in write_report(read_results(folder), folder, markdown=markdown):
        show.plain(f"wrote {path}")
    raise typer.Exit(int(any(result.state == "failed" for result in results.values())))


def _list(ids: list[str]) -> None:
    from keyhole.lab.catalogue import CATALOGUE
    from keyhole.lab.reproduce import experiments

    runs = experiments()
    here = 0
    for id in ids:
        one = CATALOGUE[id]
        runnable = not (one.schematic or one.later) and (id in runs or one.same_as in runs)
        here += runnable
        state = "drawing" if one.schematic else "later" if one.later else "runs here" if runnable else "not yet"
        show.plain(f"{id:<10}  {state:<9}  {one.title}" + (f"  ({one.needs})" if one.needs else ""))
    show.plain(f"{len(ids)} items; {here} run here.")
