"""How are published items measured, one after the other or in processes?

How are many items measured at once? In processes of one thread each; what they share on disk is trained by one.
"""

import importlib
import pkgutil
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import TypeVar

from keyhole.errors import KeyholeError, MissingModelError
from keyhole.files import require_folder
from keyhole.progress import Progress, Stage, begin_worker, few_threads, quiet, silent
from keyhole_papers.catalogue import CATALOGUE, PAPERS, Paper, Published
from keyhole_papers.experiment import (
    AS_USUAL,
    Attempt,
    Choices,
    Job,
    Settings,
    heeded_of,
    pictures_of,
    require_heeded,
    require_runnable,
    settings_of,
)
from keyhole_papers.results import Result, as_stored, is_inside, keep_result, key_of, locked, read_results

Item = TypeVar("Item")
Done = TypeVar("Done")


def in_processes(
    groups: Sequence[Sequence[Item]], work: Callable[[Item], Done], jobs: int
) -> Iterator[tuple[Sequence[Item], list[Done]]]:
    """Each group with its results, as soon as it is done. Tasks of one group run one after another in one process.

    `work` and the tasks must be picklable: processes are started afresh, because torch's threads do not survive a fork.
    """
    with few_threads(), ProcessPoolExecutor(jobs, get_context("spawn"), initializer=begin_worker) as pool:
        running = {pool.submit(_all, work, group): group for group in sorted(groups, key=len, reverse=True)}
        try:
            for future in as_completed(running):
                yield running[future], future.result()
        except BrokenProcessPool as error:
            raise KeyholeError(
                "a process ended in the middle of its work, perhaps for want of memory: what was finished is kept; "
                "call again with fewer jobs."
            ) from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # a stop: nothing new is begun
            raise


def _all(work: Callable[[Item], Done], group: Sequence[Item]) -> list[Done]:
    return [work(task) for task in group]


# Do published results hold? Runs experiments one after another, keeps what is done, and goes on after a failure.

QUICK = "Quick: a trial of the machinery, no verdict."


def experiments() -> dict[str, Attempt]:
    """Which ids can be run? Collected from every module in the papers' folders."""
    found: dict[str, Attempt] = {}
    owner: dict[str, str] = {}
    folders = ((paper, pkgutil.iter_modules([str(Path(__file__).with_name(paper))])) for paper in PAPERS)
    for module in sorted(f"{paper}.{info.name}" for paper, inside in folders for info in inside):
        runs = getattr(importlib.import_module(f"keyhole_papers.{module}"), "RUNS", {})
        for id, run in runs.items():
            if id not in CATALOGUE:
                raise KeyholeError(f"{module}.RUNS has {id}, which is no published item: add it to the catalogue.")
            if CATALOGUE[id].same_as:
                raise KeyholeError(f"{module}.RUNS has {id}, which repeats {CATALOGUE[id].same_as}: take it out.")
            if id in found:
                raise KeyholeError(f"{owner[id]}.RUNS and {module}.RUNS both have {id}: take it out of one of them.")
            found[id], owner[id] = run, module
    return found


def resolve(ids: Sequence[str] | str, paper: Paper | None = None) -> list[str]:
    """The ids meant, in the catalogue's order: "all", or each by name; of one paper only, if asked."""
    ids = [ids] if isinstance(ids, str) else ids
    unknown = [id for id in ids if id not in CATALOGUE and id != "all"]
    if unknown:
        raise KeyholeError(_unknown(unknown[0]))
    wanted = set(CATALOGUE) if "all" in ids else set(ids)
    found = [id for id, one in CATALOGUE.items() if id in wanted and paper in (None, one.paper)]
    if wanted and not found:
        raise KeyholeError(f"none of {', '.join(ids)} is of {paper!r}: leave the paper out, or name its own items.")
    return found


def reproduce(
    ids: Sequence[str] | str,
    out: Path | str,
    *,
    model: str | None = None,
    quick: bool = False,
    device: str | None = None,
    seed: int = 0,
    choices: Choices = AS_USUAL,
    fresh: bool = False,
    jobs: int = 1,
    stage: Stage = quiet,
    runs: Mapping[str, Attempt] | None = None,
) -> dict[str, Result]:
    """Measure these items and write `out/results.json` after each one; returns how they came out, by id.

    `resolve("all", "cc")` are those of one paper. `choices` say how items are run: in which dtype, as printed, over
    which checkpoints, with whose names; one that no item heeds is refused, and `unheeded` are the items that do not.
    What was finished with the same settings is not run again unless `fresh`, which also trains again. An experiment
    that fails is recorded with its message and the others go on; a finished result is never replaced by less. A slide
    that repeats a figure takes the figure's result. With several `jobs`, so many processes of one thread measure at the
    same time. `runs` replaces the experiments found.
    """
    chosen, out = resolve(ids), Path(out)
    require_runnable(model, device, seed, choices)
    if jobs < 1:
        raise KeyholeError(f"{jobs} jobs cannot do anything: give 1 or more.")
    found = experiments() if runs is None else runs
    require_heeded([CATALOGUE[id] for id in chosen], choices, found)
    if choices.namers.by_model and not (quick or choices.namers.yes):  # known now, and not after the tracing
        raise KeyholeError("items about names ask a model for millions of tokens: say --yes, or try --quick first.")
    _open(out)
    done: dict[str, Result] = {}
    tasks: list[Task] = []
    with _workshop(out, fresh) as workshop:
        for one in dict.fromkeys(CATALOGUE[CATALOGUE[id].same_as or id] for id in chosen):
            heeded = heeded_of(one, found.get(one.id), choices)
            settings = settings_of(one, heeded, model=model, quick=quick, seed=seed)
            known = None if fresh else _known(one, out, settings)
            if known is None:
                job = Job(workshop, settings["model"], quick, device, seed, choices=heeded)
                tasks.append(Task(one, job, settings, out, found.get(one.id)))
            else:
                done[one.id] = known
        for task, result in _one_by_one(tasks, stage) if jobs == 1 else _at_once(tasks, jobs, stage):
            done[task.one.id] = result
    return {id: replace(done[CATALOGUE[id].same_as or id], id=id) for id in chosen}


@dataclass(frozen=True)
class Task:
    """One item to be measured, with all that this takes; another process can take it over."""

    one: Published
    job: Job  # its folder is the workshop
    settings: Settings
    out: Path
    run: Attempt | None

    def measure(self, progress: Progress = silent) -> Result:
        """What came out, as it is kept from now on."""
        return _kept(_run(self.one, self.run, replace(self.job, progress=progress), self.settings, self.out), self.out)

    @property
    def family(self) -> str:
        """Tasks of one family share what they hold in memory: a module's experiments on one language model do."""
        if self.one.needs is None or self.run is None:
            return self.one.id
        measure = getattr(self.run, "measure", self.run)
        return str(getattr(getattr(measure, "func", measure), "__module__", self.one.id))


def _one_by_one(tasks: Sequence[Task], stage: Stage) -> Iterator[tuple[Task, Result]]:
    for task in tasks:
        with stage(f"{task.one.id}  {task.one.title}") as progress:
            yield task, task.measure(progress)


def _at_once(tasks: Sequence[Task], jobs: int, stage: Stage) -> Iterator[tuple[Task, Result]]:
    families: dict[str, list[Task]] = defaultdict(list)
    for task in tasks:
        families[task.family].append(task)
    ended = 0
    with stage(f"{len(tasks)} items, up to {jobs} at a time") as progress:
        for group, results in in_processes([*families.values()], Task.measure, jobs):
            yield from zip(group, results, strict=True)
            ended += len(group)
            progress(ended, len(tasks))


def _open(out: Path) -> None:
    """The folder, with results that can be read and written."""
    with locked(require_folder(out)):
        read_results(out)


@contextmanager
def _workshop(out: Path, fresh: bool) -> Iterator[Path]:
    """Where experiments work, and find what others have trained: `out`, or a new folder that ends up in it."""
    if not fresh:
        yield out
        return
    new = Path(mkdtemp(prefix=".fresh-", dir=out))
    try:
        yield new
    finally:
        _move(new, out)  # what was trained takes the place of older files, also after a stop
        shutil.rmtree(new, ignore_errors=True)


def _known(one: Published, out: Path, settings: Settings) -> Result | None:
    """A finished result with these settings."""
    known = read_results(out).get(key_of(one.id, settings))
    return known if known is not None and known.finished and dict(known.settings) == settings else None


def _kept(result: Result, out: Path) -> Result:
    if keep_result(result, out) is result:
        return result
    return replace(result, note=f"{result.note} The finished result from before is kept.")


def _run(one: Published, run: Attempt | None, job: Job, settings: Settings, out: Path) -> Result:
    """The item's result; `job.folder` is the workshop, in which it gets a folder of its own."""
    if one.schematic:
        return Result(one.id, "schematic", note="A drawing: there is nothing to measure.", settings=settings)
    if one.later is not None:
        return Result(one.id, "later", note=f"Listed for later: `{one.command}` {one.later}.", settings=settings)
    if run is None and one.needs:
        note = f"Needs {one.needs}; `{one.command}` will run it once its experiment is built in."
        return Result(one.id, "needs a model", note=note, settings=settings)
    if run is None:
        note = f"`{one.command}` will run it once its experiment is built in."
        return Result(one.id, "later", note=note, settings=settings)
    start = time.perf_counter()
    try:
        # a draft, so that a run which fails does not spoil the pictures of one which did not
        with TemporaryDirectory(
            prefix=f"{one.id}.", suffix=".part", dir=job.folder, ignore_cleanup_errors=True
        ) as draft:
            own = replace(job, folder=Path(draft).resolve())
            measured = run(own)
            seconds = time.perf_counter() - start
            return _filed(replace(measured, id=one.id, settings=settings, seconds=seconds), own, out)
    except MissingModelError as error:
        note = f"Needs {one.needs}: {error} Where the hub is reachable: `{one.command}`."
        return Result(one.id, "needs a model", note=note, settings=settings)
    except Exception as error:  # one broken experiment must not take the others' hours with it
        said = str(error) if isinstance(error, KeyholeError) else f"{type(error).__name__}: {error}"
        return Result(one.id, "failed", note=said, settings=settings, seconds=time.perf_counter() - start)


def _filed(result: Result, job: Job, out: Path) -> Result:
    """The result as it will be kept; its pictures move from the draft to their place."""
    place = pictures_of(result.id, dict(result.settings))
    if not all(map(is_inside, result.figures)):
        raise KeyholeError(f"the experiment {result.id} drew outside its folder: its figures must go into job.folder.")
    stored = as_stored(
        replace(
            result,
            state="quick" if job.quick and result.measured else result.state,
            figures=tuple(f"{place}/{name}" for name in result.figures),
            note=f"{QUICK} {result.note}".strip() if job.quick else result.note,
            when=_now(),
        )
    )
    _move(job.folder, out / place)
    return stored


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _move(source: Path, target: Path) -> None:
    """Every file to the same place under the target, over an older one."""
    for path in [path for path in source.rglob("*") if path.is_file()]:
        place = target / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(path, place)


def _unknown(id: str) -> str:
    near = (
        get_close_matches(id, CATALOGUE, n=5, cutoff=0.6) or [other for other in CATALOGUE if other.startswith(id)][:5]
    )
    hint = f"do you mean {', '.join(near)}?" if near else "`keyhole reproduce --list` shows all ids."
    return f"there is no published item {id!r}: {hint}"
