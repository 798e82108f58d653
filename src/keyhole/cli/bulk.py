"""The command that traces many prompts into a store, and options that all commands of stores share.

The command that traces many prompts into a store.
"""

from __future__ import annotations

import logging
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keyhole import show
from keyhole.cli.from_record import from_records
from keyhole.cli.house import ChoicesOption
from keyhole.cli.options import (
    EngineName,
    JsonOption,
    ModelOptions,
    read_choices,
    read_starts,
    with_svt,
    write_each,
)
from keyhole.errors import KeyholeError
from keyhole.files import require_file
from keyhole.progress import duration
from keyhole.report.report import WRITTEN, Report, Reported
from keyhole.settings.fields import option
from keyhole.settings.stores import Tracing
from keyhole.settings.tracing import SvtSettings

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.store.engines import Engine
    from keyhole.store.pilot import Estimate
    from keyhole.store.store import Store

_LOG = logging.getLogger("keyhole")


@from_records(start=read_starts)
def bulk(
    what: Annotated[
        str,
        typer.Argument(
            metavar="TASK|FILE", help="A task such as ioi (`keyhole tasks`), or a JSON Lines file of prompts."
        ),
    ],
    *,
    source: ModelOptions,
    n: Annotated[
        int | None, typer.Option(min=1, help="How many prompts. Default: the task's usual number; of a file, all.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the store, which is made or continued. Needed unless --estimate is given; default: none."
        ),
    ] = None,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Show how much time, memory and disk it would take, and stop.")
    ] = False,
    tracing: Tracing,
    svt: SvtSettings,
    engine: Annotated[
        EngineName, typer.Option(help="Where prompts are traced: on this machine (local) or on a Ray cluster (ray).")
    ] = "local",
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="How many processes, each with the model. Default: 1; with --engine ray, as many as there is room "
            "for.",
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(help="Address of a running Ray cluster; auto: the cluster of this machine. Default: a new one."),
    ] = None,
    part: Annotated[
        int, typer.Option(min=1, help="How many prompts are written together; a stop loses at most these.")
    ] = 64,
    seed: Annotated[int, typer.Option(help="Seed of the task's prompts.")] = 0,
    choices: ChoicesOption = None,
    json: JsonOption = False,
) -> None:
    """Trace many prompts, and keep their circuits in a store that any table tool reads.

    What it will take is shown before it starts. The same command goes on after any stop, with any engine; a store of
    another model or other settings is refused. Prompts that cannot be traced are kept with the reason. Tokens of a
    --start may be roles of the task: 9.6:END:IO.

    Examples:

        keyhole bulk ioi --n 3000 --out ioi.store

        keyhole bulk ioi --model SmolLM2.gguf --n 200 --estimate

        keyhole bulk ioi --model gpt2 --method svt --start 9.6:END:IO --start 9.9:END:IO --out svt.store

        keyhole bulk greater_than --model gpt2 --n 1000 --engine ray --address auto --out years.store
    """
    if out is None and not estimate:
        raise KeyholeError("say where the circuits are kept: --out ioi.store; or only --estimate what it would take.")
    from keyhole.store.driver import bulk as trace_all
    from keyhole.store.driver import estimate as estimate_all

    by, tracing = _engine(engine, workers, address), with_svt(tracing, svt)
    loaded = source.load()
    given: dict[str, Any] = {
        "n": n,
        "seed": seed,
        "choices": read_choices(choices),
        "part": part,
        "engine": by,
        "tracing": tracing,
    }
    if estimate:
        with show.progress_bar("Timing a few prompts") as progress:
            expected = estimate_all(what, loaded, **given, progress=progress)
        _show_estimate(expected, json=json)
        return
    assert out is not None
    began = time.monotonic()
    try:
        with show.paced_bar("Tracing") as progress:
            store = trace_all(what, loaded, out=out, progress=progress, **given)
    except KeyboardInterrupt:
        _LOG.info(f"stopped. What was finished is in {out}: the same command goes on from there.")
        raise
    _show(store, time.monotonic() - began, json=json)


def _engine(name: EngineName, workers: int | None, address: str | None) -> Engine:
    from keyhole.store.engines import Local, Ray

    if name == "ray":
        return Ray(workers, address)
    if address is not None:
        raise KeyholeError("--address is that of a Ray cluster: add --engine ray.")
    return Local(workers or 1)


def _show_estimate(expected: Estimate, *, json: bool) -> None:
    if json:
        needs = {"seconds": expected.seconds, "memory": expected.memory.at(expected.batch), "disk": expected.disk}
        show.as_json({**asdict(expected), **needs})
    else:
        show.plain(str(expected))


def _show(store: Store, seconds: float, *, json: bool) -> None:
    """What became of the prompts; of failed ones, the first as an example."""
    rows = store.table("prompts", columns=["prompt", "status", "correct", "error"]).to_pylist()
    counts, right = store.counts(), sum(row["correct"] is True for row in rows)
    if json:
        show.as_json({"store": str(store.path), "prompts": len(rows), **counts, "correct": right, "seconds": seconds})
        return
    show.plain(
        f"{store.path}: {len(rows):,} prompts, {counts['circuit']:,} circuits, {counts['headless']:,} without heads, "
        f"{counts['empty']:,} empty, {counts['failed']:,} failed, {counts['skipped']:,} skipped; the model is right in "
        f"{right:,} ({right / max(1, len(rows)):.1%})"
    )
    show.plain(f"took {duration(seconds)}; in Python: keyhole.open_store({str(store.path)!r})")
    if unmeasured := [row for row in rows if row["status"] in ("circuit", "headless") and row["error"]]:
        show.plain(
            f"{len(unmeasured):,} were not measured; the first is prompt {unmeasured[0]['prompt']}: "
            + unmeasured[0]["error"]
        )
    for row in [row for row in rows if row["status"] == "failed"][:1]:
        show.plain(f"the first that failed is prompt {row['prompt']}: {row['error']}")


# What commands on stores share: the store, its model, the seed, and where the answer goes.

StoreArgument = Annotated[Path, typer.Argument(metavar="STORE", help="A store that `keyhole bulk` made.")]
OutOption = Annotated[
    list[Path] | None,
    typer.Option(
        help="File to write the result to: .json, .html (a page), .csv (a table), .png, .svg or .pdf; repeatable. "
        "Default: none."
    ),
]
SeedOption = Annotated[int, typer.Option(help="Seed of everything that is drawn at random.")]


def require_places(out: list[Path] | None) -> list[Path]:
    """Where results go, refused before any work if nothing can be written there."""
    return [require_file(path, WRITTEN) for path in out or []]


@dataclass(frozen=True)
class StoreModel(ModelOptions):
    """The model that made a store."""

    model: str | None = option(
        None,
        "Where the store's model is: hub name, folder or .gguf file. Default: the place it was loaded from.",
        names=("--model", "-m"),
    )

    def load_of(self, store: Store) -> Model:
        """Load it; it is checked by its weights."""
        from keyhole.models.organism import source_named
        from keyhole.store.model import model_of

        return model_of(store, self.load(self.model or source_named(store.manifest.model.get("name"))))


def answer(result: Reported, places: list[Path], *, shown: Report | None = None, json: bool) -> None:
    """Show a result, as JSON or as its report, and write it to every place; then say where it is."""
    if json:
        show.as_json(result.record())
    else:
        show.report(result.report() if shown is None else shown)
    write_each(places, result.save, json=json)
