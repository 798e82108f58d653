"""What is an experiment, which choices are there in running one, and which items does a choice change?

Results of different choices are kept apart. An item that does not heed a choice is run, and kept, as usual.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, get_args

from matplotlib.figure import Figure

from keyhole.cli.options import Dtype
from keyhole.errors import KeyholeError
from keyhole.figures.style import INK, panels, save
from keyhole.naming.naming import Namers, require_namers
from keyhole.progress import Progress, silent
from keyhole.stats import Interval
from keyhole_papers import Running
from keyhole_papers.catalogue import Published
from keyhole_papers.finding import Findings
from keyhole_papers.results import Result, as_option, options_of

if TYPE_CHECKING:
    import torch

    from keyhole.models.model import Model

Heeded = Literal["as_printed", "revisions", "namers"]  # fields of Choices that change some items and not others
AS_PRINTED: frozenset[Heeded] = frozenset({"as_printed"})
REVISIONS: frozenset[Heeded] = frozenset({"revisions"})
NAMERS: frozenset[Heeded] = frozenset({"namers"})
Settings = dict[str, Any]  # what a result depends on
_CHANGED = {  # the items that a choice changes, in words
    "dtype": "items that read a model",
    "as_printed": "items of the paper on contrasts, such as cc-fig2",
    "revisions": "items that follow a training: svf-fig6b, svf-fig7, svf-fig8b, svf-fig20, svf-table2",
    "namers": "items that name signals: talk-19, talk-20, talk-21",
}


@dataclass(frozen=True, kw_only=True)
class Choices(Running):
    """All that can be chosen. Items that read a model heed its dtype; for other choices see `Experiment.heeds`."""

    namers: Namers = field(default_factory=Namers)  # who names signals, and who judges the names


@dataclass(frozen=True)
class Job(Choices):
    """One experiment to run. Its pictures go into `folder`, which exists; what figures share lies beside it.

    Jobs with the same choices are equal, so that a study which is cached by its job is made once for all figures.
    """

    folder: Path = field(compare=False)
    progress: Progress = field(default=silent, compare=False, repr=False)


AS_USUAL = Choices()
Attempt = Callable[[Job], Result]  # at a published item; an Experiment, as a rule


def job_of(choices: Choices, folder: Path) -> Job:
    """An experiment with these choices."""
    return Job(folder, **{each.name: getattr(choices, each.name) for each in fields(Choices)})


def heeded_of(item: Published, run: object, choices: Choices) -> Choices:
    """The choices that change an item, which `run` measures; the others as usual."""
    heeds: frozenset[Heeded] = getattr(run, "heeds", frozenset())
    usual: Settings = {name: getattr(AS_USUAL, name) for name in get_args(Heeded) if name not in heeds}
    if not item.needs:
        usual |= {"model": None, "dtype": AS_USUAL.dtype}
    return replace(choices, **usual)


def unheeded(items: Sequence[Published], choices: Choices, runs: Mapping[str, object]) -> dict[str, list[str]]:
    """Ids of the items that an unusual choice does not change, by the name of the choice."""
    heeded = {item.id: heeded_of(item, runs.get(item.same_as or item.id), choices) for item in items}
    return {
        name: [id for id, kept in heeded.items() if getattr(kept, name) != getattr(choices, name)]
        for name in _CHANGED
        if getattr(choices, name) != getattr(AS_USUAL, name)
    }


def require_heeded(items: Sequence[Published], choices: Choices, runs: Mapping[str, object]) -> None:
    """Refuses a choice that changes none of the items."""
    for name, left in unheeded(items, choices, runs).items():
        if len(left) == len(items):
            named = left[0] if len(left) == 1 else f"any of {', '.join(left[:3])}{', ...' if len(left) > 3 else ''}"
            flag = option_of(name, choices)
            raise KeyholeError(f"{flag} changes nothing in {named}: leave it out, or run {_CHANGED[name]}.")


def option_of(name: str, choices: Choices) -> str:
    """A choice as the command line spells it.

    >>> option_of("dtype", Choices(dtype="float16"))
    '--dtype float16'
    """
    if name == "namers":
        return "--explainer llm" if choices.namers.explainer == "llm" else "--judge llm"
    return as_option(name, getattr(choices, name))


def settings_of(item: Published, choices: Choices) -> Settings:
    """What a result depends on; toys do not depend on --model, and what is not run not on --quick."""
    from keyhole.version import __version__

    runs, namers = not (item.schematic or item.later), choices.namers
    model, quick = choices.model if item.needs else None, choices.quick and runs
    settings = {"model": model, "quick": quick, "seed": choices.seed, "keyhole": __version__}
    unusual = {
        "dtype": choices.dtype if choices.dtype != AS_USUAL.dtype else None,
        "as_printed": choices.as_printed,
        "revisions": choices.revisions,
        "explainer": namers.explainer if namers.explainer == "llm" else None,
        "judge": namers.judge if namers.judge == "llm" else None,
        "llm_model": namers.model,
    }
    return settings | {name: value for name, value in unusual.items() if value}


def pictures_of(id: str, settings: Settings) -> str:
    """The folder of an item's pictures: models, and ways of running one, do not draw over each other's."""
    model, quick = settings["model"], "-quick" if settings["quick"] else ""
    how = " ".join(options_of(settings, beyond_model=True))
    place = f"{id}{_folder_name(model.rstrip('/').rpartition('/')[2], model)}" if model else id
    return f"{place}{_folder_name(how.replace('--', ''), how)}{quick}"


def _folder_name(text: str, whole: str) -> str:
    """A part of a folder's name that reads like the text and is as unique as the whole; empty, if that is."""
    name = re.sub(r"[^A-Za-z0-9.]+", "-", text)[:40]
    return f"-{name}-{hashlib.sha256(whole.encode()).hexdigest()[:6]}" if whole else ""


@lru_cache(maxsize=1)  # a large model does not fit twice
def loaded(model: str | None, device: str | None, dtype: Dtype) -> "Model":
    """A model, loaded once for all experiments on it."""
    from keyhole.models.load import load  # a list of experiments needs no transformers

    return load(model, device=device, dtype=torch_dtype(dtype))


def torch_dtype(name: Dtype) -> "torch.dtype | Literal['auto']":
    """The dtype of this name; auto is transformers' word."""
    import torch

    return "auto" if name == "auto" else getattr(torch, name)  # type: ignore[no-any-return]


def require_runnable(choices: Choices) -> None:
    """Refuses what no experiment could run with, before any has begun."""
    from keyhole.lab.checkpoints import require_possible  # a list of experiments needs no transformers

    if choices.dtype not in get_args(Dtype):
        raise KeyholeError(f"there is no dtype {choices.dtype!r}: choose one of {', '.join(get_args(Dtype))}.")
    require_namers(choices.namers)
    require_possible(choices.model, choices.device, choices.seed, choices.revisions)


# An experiment is three short functions: one measures, and its record is read as findings, and drawn.

Record = TypeVar("Record")


@dataclass(frozen=True)
class Experiment(Generic[Record]):
    """How a published item is measured; findings and pictures follow from the record alone."""

    measure: Callable[[Job], Record]  # all of the work; a frozen dataclass
    findings: Callable[[Record], Findings]
    draw: Callable[[Record], Mapping[str, Figure]] | None = None  # pictures by the names of their files
    heeds: frozenset[Heeded] = frozenset()  # choices that change what is measured

    def __call__(self, job: Job) -> Result:
        """The item, measured here and now."""
        return self.result(self.measure(job), job.folder)

    def result(self, record: Record, folder: Path) -> Result:
        """The findings of a record, with its pictures in a folder."""
        findings, figures = self.findings(record), self.draw(record) if self.draw else {}
        pictures = tuple(save(figure, folder / f"{name}.png").name for name, figure in figures.items())
        return Result("", findings.verdict, findings.measured, findings.numbers, pictures, findings.note)


# Pictures of papers look alike: bars and dots with whiskers.


def whiskers(axis: Any, means: Mapping[str, Interval], shades: Sequence[str], width: float) -> None:
    """A bar for each mean, with its interval and its name."""
    for at, (mean, shade) in enumerate(zip(means.values(), shades, strict=True)):
        axis.bar([at], [mean.mean], color=shade, width=width)
        axis.plot([at, at], [mean.low, mean.high], color=INK, linewidth=1.2)
    axis.axhline(0, color=INK, linewidth=0.8)
    axis.set_xticks(range(len(means)), list(means))


def spreads(
    rows: Mapping[str, Sequence[tuple[Interval, str]]], title: str, size: tuple[float, float], x: str
) -> tuple[Figure, Any]:
    """A line of dots with their intervals for each name, from above, each dot in its shade."""
    figure, (axis,) = panels([""], title, (size[0], size[1] * len(rows) + 1.8), x=x)
    for at, dots in enumerate(rows.values()):
        for number, (spread, shade) in enumerate(dots):
            height = at + 0.24 * (number - (len(dots) - 1) / 2)
            axis.plot([spread.low, spread.high], [height] * 2, color=INK, linewidth=1)
            axis.plot([spread.mean], [height], "o", color=shade, markersize=7)
    axis.set_yticks(range(len(rows)), list(rows))
    axis.set_ylim(len(rows) - 0.5, -0.5)
    return figure, axis
