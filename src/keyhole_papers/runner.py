"""How are published items measured? One after the other or in processes, each kept as soon as it is done.

A failure is recorded, and the others go on. What items share on disk is trained by one of them.
"""

import importlib
import pkgutil
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

from keyhole.errors import KeyholeError, MissingModelError
from keyhole.files import require_folder
from keyhole.progress import Progress, Stage, begin_worker, few_threads, quiet, silent
from keyhole.settings.fields import chosen
from keyhole_papers.catalogue import CATALOGUE, PAPERS, Published, resolve
from keyhole_papers.experiment import (
    Attempt,
    Choices,
    Job,
    Settings,
    heeded_of,
    job_of,
    pictures_of,
    require_heeded,
    require_runnable,
    settings_of,
)
from keyhole_papers.results import Result, State, as_stored, is_inside, keep_result, key_of, locked, read_results

_QUICK = "Quick: a trial of the machinery, no verdict."


def experiments() -> dict[str, Attempt]:
    """Which ids can be run? Collected from every module in the papers' folders."""
    attempts: dict[str, Attempt] = {}
    homes: dict[str, str] = {}
    folders = ((paper, pkgutil.iter_modules([str(Path(__file__).with_name(paper))])) for paper in PAPERS)
    for module in sorted(f"{paper}.{info.name}" for paper, inside in folders for info in inside):
        runs = getattr(importlib.import_module(f"keyhole_papers.{module}"), "RUNS", {})
        for id, run in runs.items():
            if id not in CATALOGUE:
                raise KeyholeError(f"{module}.RUNS has {id}, which is no published item: add it to the catalogue.")
            if CATALOGUE[id].same_as:
                raise KeyholeError(f"{module}.RUNS has {id}, which repeats {CATALOGUE[id].same_as}: take it out.")
            if id in attempts:
                raise KeyholeError(f"{homes[id]}.RUNS and {module}.RUNS both have {id}: take it out of one of them.")
            attempts[id], homes[id] = run, module
    return attempts


def reproduce(
    ids: Sequence[str] | str,
    out: Path | str,
    choices: Choices | None = None,
    *,
    fresh: bool = False,
    jobs: int = 1,
    stage: Stage = quiet,
    runs: Mapping[str, Attempt] | None = None,
    **settings: Any,
) -> dict[str, Result]:
    """Measure these items and write `out/results.json` after each one; returns how they came out, by id.

    `resolve("all", "cc")` are those of one paper. `choices` say how items are run: on which model, in which dtype, as
    printed, over which checkpoints, with whose names; `settings` are fields of it, such as quick=True. A choice that no
    item heeds is refused, and `unheeded` are the items that do not.
    What was finished with the same choices is not run again unless `fresh`, which also trains again. An experiment
    that fails is recorded with its message and the others go on; a finished result is never replaced by less. A slide
    that repeats a figure takes the figure's result. With several `jobs`, so many processes of one thread measure at the
    same time. `runs` replaces the experiments of the papers' folders.
    """
    ids, out, how = resolve(ids), Path(out), chosen(choices, Choices, settings)
    require_runnable(how)
    if jobs < 1:
        raise KeyholeError(f"{jobs} jobs cannot do anything: give 1 or more.")
    attempts = experiments() if runs is None else runs
    require_heeded([CATALOGUE[id] for id in ids], how, attempts)
    if how.namers.by_model and not (how.quick or how.namers.yes):  # known now, and not after the tracing
        raise KeyholeError("items about names ask a model for millions of tokens: say --yes, or try --quick first.")
    with locked(require_folder(out)):
        read_results(out)  # those that cannot be read are refused now
    done: dict[str, Result] = {}
    tasks: list[Task] = []
    with _workshop(out, fresh) as workshop:
        for item in dict.fromkeys(CATALOGUE[CATALOGUE[id].same_as or id] for id in ids):
            heeded = heeded_of(item, attempts.get(item.id), how)
            task = Task(item, job_of(heeded, workshop), settings_of(item, heeded), out, attempts.get(item.id))
            known = None if fresh else task.known
            if known is None:
                tasks.append(task)
            else:
                done[item.id] = known
        for task, result in _in_turn(tasks, stage) if jobs == 1 else _at_once(tasks, jobs, stage):
            done[task.item.id] = result
    return {id: replace(done[CATALOGUE[id].same_as or id], id=id) for id in ids}


@dataclass(frozen=True)
class Task:
    """One item to be measured, with all that this takes; another process can take it over."""

    item: Published
    job: Job  # its folder is the workshop
    settings: Settings
    out: Path
    run: Attempt | None

    @property
    def known(self) -> Result | None:
        """A finished result with these settings."""
        before = read_results(self.out).get(key_of(self.item.id, self.settings))
        same = before is not None and before.finished and dict(before.settings) == self.settings
        return before if same else None

    def measure(self, progress: Progress = silent) -> Result:
        """The result, as it is kept from now on."""
        result = self._run(replace(self.job, progress=progress))
        if keep_result(result, self.out) is result:
            return result
        return replace(result, note=f"{result.note} The finished result from before is kept.")

    @property
    def family(self) -> str:
        """Tasks of one family share what they hold in memory: a module's experiments on one language model do."""
        if self.item.needs is None or self.run is None:
            return self.item.id
        measure = getattr(self.run, "measure", self.run)
        return str(getattr(getattr(measure, "func", measure), "__module__", self.item.id))

    def _run(self, job: Job) -> Result:
        """The item's result; `job.folder` is the workshop, in which it gets a folder for its pictures."""
        item = self.item
        if item.schematic:
            return self._without("schematic", "A drawing: there is nothing to measure.")
        if item.later is not None:
            return self._without("later", f"Listed for later: `{item.command}` {item.later}.")
        if self.run is None:
            once = f"`{item.command}` will run it once its experiment is built in."
            return self._without(*(("needs a model", f"Needs {item.needs}; {once}") if item.needs else ("later", once)))
        start = time.perf_counter()
        try:
            # a draft, so that a run which fails does not spoil the pictures of one which did not
            with TemporaryDirectory(
                prefix=f"{item.id}.", suffix=".part", dir=job.folder, ignore_cleanup_errors=True
            ) as draft:
                drafted = replace(job, folder=Path(draft).resolve())
                measured = self.run(drafted)
                seconds = time.perf_counter() - start
                result = replace(measured, id=item.id, settings=self.settings, seconds=seconds)
                return _filed(result, drafted, self.out)
        except MissingModelError as error:
            note = f"Needs {item.needs}: {error} Where the hub is reachable: `{item.command}`."
            return self._without("needs a model", note)
        except Exception as error:  # one broken experiment must not take the others' hours with it
            message = str(error) if isinstance(error, KeyholeError) else f"{type(error).__name__}: {error}"
            return replace(self._without("failed", message), seconds=time.perf_counter() - start)

    def _without(self, state: State, note: str) -> Result:
        """Why nothing was measured."""
        return Result(self.item.id, state, note=note, settings=self.settings)


def _in_turn(tasks: Sequence[Task], stage: Stage) -> Iterator[tuple[Task, Result]]:
    for task in tasks:
        with stage(f"{task.item.id}  {task.item.title}") as progress:
            yield task, task.measure(progress)


def _at_once(tasks: Sequence[Task], jobs: int, stage: Stage) -> Iterator[tuple[Task, Result]]:
    families: dict[str, list[Task]] = defaultdict(list)
    for task in tasks:
        families[task.family].append(task)
    ended = 0
    with stage(f"{len(tasks)} items, up to {jobs} at a time") as progress:
        for group, results in in_processes([*families.values()], jobs):
            yield from zip(group, results, strict=True)
            ended += len(group)
            progress(ended, len(tasks))


def in_processes(groups: Sequence[Sequence[Task]], jobs: int) -> Iterator[tuple[Sequence[Task], list[Result]]]:
    """Each group with its results, as soon as it is done. Tasks of one group run one after another in one process.

    Processes are started afresh, because torch's threads do not survive a fork: tasks must be picklable.
    """
    with few_threads(), ProcessPoolExecutor(jobs, get_context("spawn"), initializer=begin_worker) as pool:
        running = {pool.submit(_measured, group): group for group in sorted(groups, key=len, reverse=True)}
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


def _measured(group: Sequence[Task]) -> list[Result]:
    return [task.measure() for task in group]


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
            note=f"{_QUICK} {result.note}".strip() if job.quick else result.note,
            when=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        )
    )
    _move(job.folder, out / place)
    return stored


def _move(source: Path, target: Path) -> None:
    """Every file to the same place under the target, over an older one."""
    for path in [path for path in source.rglob("*") if path.is_file()]:
        place = target / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(path, place)
