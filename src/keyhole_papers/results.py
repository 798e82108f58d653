"""What has been measured so far? Results as a file that survives a stop in the middle of anything, and other writers.

An item has one result per model and way of running it, and quick trials beside them: none takes another's place.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from filelock import FileLock

from keyhole.errors import KeyholeError
from keyhole.files import finite, write_at_once
from keyhole.strict import is_whole, parse_json, quoted, read, read_text, require
from keyhole_papers.catalogue import CATALOGUE, Published

Verdict = Literal["reproduced", "partly", "not", "untold", "needs a model", "later"]  # untold: the run cannot decide
State = Verdict | Literal["quick", "failed", "schematic"]
Label = State | Literal["contrary"]  # "needs a model", when another model was measured and does not show it
Numbers = dict[str, float | int | list[float]]  # beside the text
SAID: dict[Label, str] = {
    "reproduced": "reproduced",
    "partly": "partly",
    "not": "not reproduced",
    "untold": "cannot be told",
    "contrary": "not on a stand-in",
    "needs a model": "needs a model",
    "quick": "quick trial",
    "later": "later",
    "failed": "failed",
    "schematic": "drawing",
}
_VERSION = 1
_PATIENCE = 60.0  # seconds; a writer holds the lock for a fraction of one
_SWITCHES = ("as_printed", "quick")
# The settings that results are kept apart by; a usual one is left out.
_APART = ("model", "dtype", "revisions", "as_printed", "explainer", "judge", "llm_model", "quick")


@dataclass(frozen=True)
class Result:
    """One published item: how it came out, or why it did not run."""

    id: str  # an experiment leaves it, and all from the settings on, to whoever runs it
    state: State  # "quick": it ran, on too little for a verdict
    measured: str = ""  # one or two sentences with the numbers, intervals over seeds included
    numbers: Mapping[str, Any] = field(default_factory=dict)
    figures: tuple[str, ...] = ()  # relative to the folder of the results; to that of the job, while it runs
    note: str = ""  # what is claimed, and what stood in for what: another model, fewer seeds
    settings: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0  # of the run itself: what earlier runs had trained is reused
    when: str = ""  # it was finished, as 2026-01-31T23:59:59Z

    @property
    def finished(self) -> bool:
        """Was something measured? Everything else is worth another try."""
        return self.state != "failed" and bool(self.measured)

    @property
    def key(self) -> str:
        """What it is kept under."""
        return key_of(self.id, self.settings)

    @property
    def published(self) -> Published:
        """What it is about."""
        return CATALOGUE[self.id]

    @property
    def label(self) -> Label:
        """What a reader may conclude."""
        if self.state == "needs a model" and self.numbers:  # without any, there was nothing to measure
            return "contrary"
        return self.state

    @property
    def said(self) -> str:
        """The label in a word or two."""
        return SAID[self.label]

    @property
    def remark(self) -> str:
        """What the label leaves open."""
        open, about = list[str](), self.published
        if self.label == "contrary":
            open.append(f"measured on another model, which does not show it; a verdict needs {about.needs}")
        elif self.label == "quick":
            open.append("a trial of the machinery, no verdict")
        if about.same_as:
            open.append(f"that of {about.same_as}, not counted again")
        elif about.beyond:
            open.append("beyond the paper, not counted")
        return "; ".join(open)


_USUAL = asdict(Result("", "failed"))  # what a record in the file may leave out, apart from its state


def key_of(id: str, settings: Mapping[str, Any]) -> str:
    """The place of a result in the file.

    >>> key_of("svt-fig3", {"model": "gpt2", "quick": True, "seed": 0})
    'svt-fig3 --model gpt2 --quick'
    """
    return " ".join([id, *options_of(settings)])


def options_of(settings: Mapping[str, Any], *, beyond_model: bool = False) -> list[str]:
    """The options that give these settings; `beyond_model`: without --model and --quick.

    >>> options_of({"model": "gpt2", "dtype": "bfloat16", "as_printed": True, "seed": 0})
    ['--model gpt2', '--dtype bfloat16', '--as-printed']
    """
    left_out = ("model", "quick") if beyond_model else ()
    return [as_option(name, settings[name]) for name in _APART if settings.get(name) and name not in left_out]


def as_option(name: str, value: object) -> str:
    """A setting as the command line spells it."""
    flag = f"--{name.replace('_', '-')}"
    return flag if value is True else f"{flag} {value}"


def read_results(place: Path) -> dict[str, Result]:
    """The results of a folder, or of a file of them, by `Result.key`; none if there is no file."""
    path = place if place.suffix == ".json" else place / "results.json"
    if not path.exists():
        return {}
    try:
        content = parse_json(read_text(path))
        whole = isinstance(content, dict) and isinstance(content.get("results"), dict) and "version" in content
        require(whole, "it needs a version and results.")
        same = is_whole(content["version"]) and content["version"] == _VERSION
        require(same, f"its version is {quoted(content['version'])}, and {_VERSION} is read here.")
        results = [_result(key, record) for key, record in content["results"].items()]
    except KeyholeError as error:
        raise KeyholeError(f"{path} is no file of results: {error} Remove it or choose another folder.") from error
    return {result.key: result for result in results}


def write_results(results: Mapping[str, Result], place: Path) -> Path:
    """All results in one file, replaced at once: a reader never sees half of it."""
    path = place if place.suffix == ".json" else place / "results.json"
    records = {result.key: _record(result) for result in results.values()}
    text = json.dumps({"version": _VERSION, "results": records}, ensure_ascii=False, indent=1, allow_nan=False)
    write_at_once(path, text + "\n")
    return path


def keep_result(result: Result, folder: Path) -> Result:
    """Puts a result among those of the folder, which others may write too; returns what the folder has then.

    What was finished stays if this was not.
    """
    with locked(folder):
        results = read_results(folder)
        before = results.get(result.key)
        if before is not None and before.finished and not result.finished:
            return before
        write_results({**results, result.key: result}, folder)
    return result


def merged(kept: Mapping[str, Result], more: Mapping[str, Result]) -> dict[str, Result]:
    """Both, and of two results under one key the later one; but nothing finished gives way to what is not."""
    every = dict(kept)
    for key, result in more.items():
        before = every.get(key)
        if before is None or (result.finished, result.when) >= (before.finished, before.when):
            every[key] = result
    return every


def take_results(source: Path, folder: Path) -> None:
    """Puts what was measured elsewhere among the results of the folder, pictures included."""
    if not read_results(source):
        raise KeyholeError(
            f"there are no results in {source}: give a folder of `keyhole reproduce`, or its results.json."
        )
    home = source.parent if source.suffix == ".json" else source
    with locked(folder):
        before = read_results(folder)
        results = merged(before, read_results(source))
        for result in results.values():
            for figure in result.figures if before.get(result.key) != result else ():
                if (home / figure).is_file():  # results may travel without their pictures
                    (folder / figure).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(home / figure, folder / figure)
        write_results(results, folder)


def as_stored(result: Result) -> Result:
    """The result as it will be read again, or why it cannot be written: UnicodeError, TypeError or a refusal."""
    text = json.dumps(_record(result), ensure_ascii=False, allow_nan=False)
    return _result(result.key, parse_json(text.encode("utf-8").decode("utf-8")))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Nobody else writes into the folder meanwhile."""
    lock = FileLock(folder / ".results.lock", timeout=_PATIENCE)
    try:
        lock.acquire()
    except OSError as error:
        raise KeyholeError(f"cannot write into {folder} ({error}): choose another folder.") from error
    try:
        yield
    finally:
        lock.release()


def _record(result: Result) -> dict[str, Any]:
    record: dict[str, Any] = finite({name: value for name, value in asdict(result).items() if name != "id"})
    return record


def _result(key: str, record: Any) -> Result:
    """A result of the file, every field of its kind."""
    fit = isinstance(record, dict) and "state" in record and "id" not in record
    require(fit, f"{key} should have a state, and its id in its name alone.")
    result = read(Result, {**_USUAL, **record, "id": key.partition(" ")[0]}, key)
    require(all(map(is_inside, result.figures)), f"figures of {key} must be paths inside the folder.")
    for name in _APART:
        value, kind = result.settings.get(name), bool if name in _SWITCHES else str
        require(value is None or isinstance(value, kind), f"settings of {key} cannot be {quoted(result.settings)}.")
    require(result.seconds >= 0, f"seconds of {key} cannot be {quoted(result.seconds)}.")
    quick = result.finished and bool(result.settings.get("quick"))
    return replace(result, state="quick") if quick else result  # whatever an older version called it


def is_inside(path: str) -> bool:
    """Does a relative path stay where it begins?"""
    parts = PurePosixPath(path)
    return not parts.is_absolute() and ".." not in parts.parts
