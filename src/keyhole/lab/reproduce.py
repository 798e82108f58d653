"""Do published results hold? Runs experiments one after another, keeps what is done, and goes on after a failure."""

import importlib
import pkgutil
import time
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from keyhole.contrast.study import Stage, quiet
from keyhole.errors import KeyholeError
from keyhole.lab import experiments as _folder
from keyhole.lab.catalogue import CATALOGUE, Paper, Published
from keyhole.lab.job import Experiment, Job, MissingModelError, load_model
from keyhole.lab.outcome import Outcome
from keyhole.lab.results import Result, read_results, write_results

__all__ = ["Experiment", "Job", "MissingModelError", "Result", "experiments", "load_model", "reproduce", "resolve"]

_Settings = dict[str, str | bool | int | None]


def experiments() -> dict[str, Experiment]:
    """Which ids can be run? Collected from every module of `keyhole.lab.experiments`."""
    found: dict[str, Experiment] = {}
    owner: dict[str, str] = {}
    for module in sorted(info.name for info in pkgutil.iter_modules(_folder.__path__)):
        runs = getattr(importlib.import_module(f"{_folder.__name__}.{module}"), "RUNS", {})
        for id, run in runs.items():
            if id not in CATALOGUE:
                raise KeyholeError(f"{module}.RUNS has {id}, which is no published item: add it to the catalogue.")
            if id in found:
                raise KeyholeError(f"{owner[id]}.RUNS and {module}.RUNS both have {id}: take it out of one of them.")
            found[id], owner[id] = run, module
    return found


def resolve(ids: Sequence[str], paper: Paper | None = None) -> list[str]:
    """The ids meant, in the catalogue's order: "all", or each by name; of one paper only, if asked."""
    unknown = [id for id in ids if id not in CATALOGUE and id != "all"]
    if unknown:
        raise KeyholeError(_unknown(unknown[0]))
    wanted = set(CATALOGUE) if "all" in ids else set(ids)
    return [id for id, one in CATALOGUE.items() if id in wanted and paper in (None, one.paper)]


def reproduce(
    ids: Sequence[str],
    out: Path,
    *,
    paper: Paper | None = None,
    model: str | None = None,
    quick: bool = False,
    device: str | None = None,
    seed: int = 0,
    fresh: bool = False,
    stage: Stage = quiet,
    runs: Mapping[str, Experiment] | None = None,
) -> dict[str, Result]:
    """Measure these items and write `out/results.json` after each one; returns theirs.

    What was finished with the same settings is not run again unless `fresh`. An experiment that fails is recorded with
    its message and the others go on. `runs` replaces the experiments found.
    """
    chosen = resolve(ids, paper)
    runs = experiments() if runs is None else runs
    out.mkdir(parents=True, exist_ok=True)
    results = read_results(out)
    for id in chosen:
        one = CATALOGUE[id]
        settings = _settings(one, model=model, quick=quick, seed=seed)
        known = None if fresh else _known(one, results, settings)
        if known is None:
            with stage(f"{id}  {one.title}") as progress:
                job = Job(out / id, model, quick, device, seed, progress)
                known = _run(one, runs.get(id) or runs.get(one.same_as or ""), job, settings)
        results[id] = known
        write_results(results, out)
    return {id: results[id] for id in chosen}


def _settings(one: Published, *, model: str | None, quick: bool, seed: int) -> _Settings:
    """What a result depends on; toys do not depend on --model."""
    from keyhole import __version__

    return {"model": model if one.needs else None, "quick": quick, "seed": seed, "keyhole": __version__}


def _known(one: Published, results: Mapping[str, Result], settings: _Settings) -> Result | None:
    """A finished result with these settings: its own, or that of the figure which a slide repeats."""
    for id in (one.id, one.same_as):
        known = results.get(id or "")
        if known is not None and known.finished and dict(known.settings) == settings:
            return Result(**{**vars(known), "id": one.id})
    return None


def _run(one: Published, run: Experiment | None, job: Job, settings: _Settings) -> Result:
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
    job.folder.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    try:
        outcome = run(job)
    except MissingModelError as error:
        note = f"Needs {one.needs}: {error} Where the hub is reachable: `{one.command}`."
        return Result(one.id, "needs a model", note=note, settings=settings)
    except Exception as error:  # one broken experiment must not take the others' hours with it
        said = str(error) if isinstance(error, KeyholeError) else f"{type(error).__name__}: {error}"
        return Result(one.id, "failed", note=said, settings=settings, seconds=time.perf_counter() - start)
    return _result(one, outcome, job, settings, time.perf_counter() - start)


def _result(one: Published, outcome: Outcome, job: Job, settings: _Settings, seconds: float) -> Result:
    root = job.folder.parent.resolve()
    figures = tuple(path.resolve().relative_to(root).as_posix() for path in outcome.figures)
    return Result(
        id=one.id,
        state=outcome.verdict,
        measured=outcome.measured,
        numbers=outcome.numbers,
        figures=figures,
        note=f"Quick run, too small for a claim. {outcome.note}" if job.quick else outcome.note,
        settings=settings,
        seconds=seconds,
    )


def _unknown(id: str) -> str:
    near = (
        get_close_matches(id, CATALOGUE, n=5, cutoff=0.6) or [other for other in CATALOGUE if other.startswith(id)][:5]
    )
    hint = f"do you mean {', '.join(near)}?" if near else "`keyhole reproduce --list` shows all ids."
    return f"there is no published item {id!r}: {hint}"
