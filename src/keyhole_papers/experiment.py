"""What is an experiment, what is it given, and which ways of running are there?

How are items run, where there is more than one way? In which dtype, as printed, over which checkpoints, who names.

Results of different choices are kept apart, and an item that a choice does not change is kept where it always is.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, get_args

from matplotlib.figure import Figure

from keyhole.errors import KeyholeError
from keyhole.figures.style import save
from keyhole.naming.naming import Namers, require_namers
from keyhole.progress import Progress, silent
from keyhole_papers.catalogue import Published
from keyhole_papers.finding import Findings
from keyhole_papers.results import Result, options_of

if TYPE_CHECKING:
    import torch

    from keyhole.models.model import Model

Dtype = Literal["float32", "float64", "bfloat16", "float16", "auto"]
Heeded = Literal["as_printed", "revisions", "namers"]  # fields of Choices that change some items and not others
AS_PRINTED: frozenset[Heeded] = frozenset({"as_printed"})
REVISIONS: frozenset[Heeded] = frozenset({"revisions"})
NAMERS: frozenset[Heeded] = frozenset({"namers"})
Settings = dict[str, Any]  # what a result depends on


@dataclass(frozen=True)
class Choices:
    """What may be chosen. All items that read a model heed its dtype; of the rest, see `Experiment.heeds`."""

    dtype: Dtype = "float32"  # numbers to compute with; auto: as the weights are stored
    as_printed: bool = False  # with the settings that the paper prints, where the usual ones depart from them
    revisions: str | None = None  # checkpoints of the model, by commas, or all; None: some that are known to exist
    namers: Namers = field(default_factory=Namers)  # who names signals, and who judges the names


AS_USUAL = Choices()
_WHOM = {  # does a choice change?
    "dtype": "items that read a model",
    "as_printed": "items of the paper on contrasts, such as cc-fig2",
    "revisions": "items that follow a training: svf-fig6b, svf-fig7, svf-fig8b, svf-fig20, svf-table2",
    "namers": "items that name signals: talk-19, talk-20, talk-21",
}


def heeded_of(one: Published, run: object, choices: Choices) -> Choices:
    """The choices that change an item, which `run` measures; the others as usual."""
    heeds: frozenset[Heeded] = getattr(run, "heeds", frozenset())
    usual: Settings = {name: getattr(AS_USUAL, name) for name in get_args(Heeded) if name not in heeds}
    if not one.needs:
        usual["dtype"] = AS_USUAL.dtype
    return replace(choices, **usual)


def unheeded(items: Sequence[Published], choices: Choices, runs: Mapping[str, object]) -> dict[str, list[str]]:
    """Ids of the items that an unusual choice does not change, by the name of the choice."""
    kept = {one.id: heeded_of(one, runs.get(one.same_as or one.id), choices) for one in items}
    return {
        name: [id for id, own in kept.items() if getattr(own, name) != getattr(choices, name)]
        for name in _WHOM
        if getattr(choices, name) != getattr(AS_USUAL, name)
    }


def require_heeded(items: Sequence[Published], choices: Choices, runs: Mapping[str, object]) -> None:
    """Refuses a choice that changes none of the items."""
    for name, left in unheeded(items, choices, runs).items():
        if len(left) == len(items):
            named = left[0] if len(left) == 1 else f"any of {', '.join(left[:3])}{', ...' if len(left) > 3 else ''}"
            raise KeyholeError(
                f"{option(name, choices)} changes nothing in {named}: leave it out, or run {_WHOM[name]}."
            )


def option(name: str, choices: Choices) -> str:
    """A choice as the command line makes it.

    >>> option("dtype", Choices(dtype="float16"))
    '--dtype float16'
    """
    if name == "namers":
        return "--explainer llm" if choices.namers.explainer == "llm" else "--judge llm"
    value = getattr(choices, name)
    flag = f"--{name.replace('_', '-')}"
    return flag if value is True else f"{flag} {value}"


def settings_of(one: Published, choices: Choices, *, model: str | None, quick: bool, seed: int) -> Settings:
    """What a result depends on; toys do not depend on --model, and what is not run not on --quick."""
    from keyhole.version import __version__

    runs, namers = not (one.schematic or one.later), choices.namers
    settings = {"model": model if one.needs else None, "quick": quick and runs, "seed": seed, "keyhole": __version__}
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


# What is an experiment told? Where to draw, which model to read, how, and how much time it may take.


@dataclass(frozen=True)
class Asked:
    """What a study depends on; who watches it does not matter."""

    model: str | None
    device: str | None
    quick: bool
    seed: int
    choices: Choices
    progress: Progress = field(compare=False, repr=False)


@dataclass(frozen=True)
class Job:
    """One experiment to run. Its pictures go into `folder`, which exists; what figures share lies beside it."""

    folder: Path
    model: str | None = None  # a hub name, a folder, a .gguf file; None: what the experiment takes by itself
    quick: bool = False  # seconds instead of minutes: enough to see that it runs, too little for a claim
    device: str | None = None
    seed: int = 0
    progress: Progress = silent
    choices: Choices = AS_USUAL

    @property
    def asked(self) -> Asked:
        """What studies are made once for, whichever figure needs them first."""
        return Asked(self.model, self.device, self.quick, self.seed, self.choices, self.progress)


Attempt = Callable[[Job], Result]  # at a published item; an Experiment, as a rule


@lru_cache(maxsize=1)  # a large model does not fit twice
def loaded(model: str | None, device: str | None, dtype: Dtype) -> "Model":
    """The model that is asked for, loaded once for all experiments on it."""
    from keyhole.models.load import load  # a list of experiments needs no transformers

    return load(model, device=device, dtype=torch_dtype(dtype))


def torch_dtype(name: Dtype) -> "torch.dtype | Literal['auto']":
    """What torch calls it; auto is transformers' word."""
    import torch

    return "auto" if name == "auto" else getattr(torch, name)  # type: ignore[no-any-return]


def require_runnable(model: str | None, device: str | None, seed: int, choices: Choices) -> None:
    """Refuses what no experiment could run with, before any has begun."""
    from keyhole.lab.checkpoints import require_possible  # a list of experiments needs no transformers

    if choices.dtype not in get_args(Dtype):
        raise KeyholeError(f"there is no dtype {choices.dtype!r}: choose one of {', '.join(get_args(Dtype))}.")
    require_namers(choices.namers)
    require_possible(model, device, seed, choices.revisions)


# What is an experiment? Three short functions: one measures, and its record is read as findings, and drawn.

Record = TypeVar("Record")


def undrawn(record: object) -> Mapping[str, Figure]:
    """No picture."""
    return {}


@dataclass(frozen=True)
class Experiment(Generic[Record]):
    """How a published item is measured; findings and pictures follow from the record alone."""

    measure: Callable[[Job], Record]  # all of the work; a frozen dataclass
    findings: Callable[[Record], Findings]
    draw: Callable[[Record], Mapping[str, Figure]] = undrawn  # pictures by the names of their files
    heeds: frozenset[Heeded] = frozenset()  # choices that change what is measured

    def __call__(self, job: Job) -> Result:
        """The item, measured here and now."""
        return self.result(self.measure(job), job.folder)

    def result(self, record: Record, folder: Path) -> Result:
        """What a record comes to, with its pictures in a folder."""
        found = self.findings(record)
        return Result("", found.verdict, found.measured, found.numbers, drawn(self.draw(record), folder), found.note)


def drawn(figures: Mapping[str, Figure], folder: Path) -> tuple[str, ...]:
    """Pictures saved in a folder: their names there."""
    return tuple(save(figure, folder / f"{name}.png").name for name, figure in figures.items())
