"""How are toys trained, and what may be concluded? As printed, and with settings chosen because they align."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Generic, Literal

from matplotlib.figure import Figure

from keyhole_papers.experiment import Record
from keyhole_papers.job import Job
from keyhole_papers.results import Verdict
from keyhole_papers.told import Experiment, Told

LONG = 80_000  # the most steps that the paper names


@dataclass(frozen=True)
class Recipe:
    """How toys are trained: the part of their settings that the paper leaves in doubt."""

    recon_reduction: Literal["sum", "mean"]
    lam: float
    steps: int

    @property
    def printed(self) -> bool:
        """Is it what the paper prints? A squared norm, lambda 4, and 10,000 to 80,000 steps."""
        return self.recon_reduction == "sum" and self.lam == 4.0 and 10_000 <= self.steps <= LONG

    @property
    def name(self) -> str:
        """What a report calls it."""
        return f"As printed, {self.steps:,} steps" if self.printed else f"Chosen ({self.said})"

    @property
    def file(self) -> str:
        """The part of a picture's name that tells recipes apart."""
        return f"{self.recon_reduction}-{self.lam:g}-{self.steps}"

    @property
    def said(self) -> str:
        """The settings in words."""
        errors = "summed" if self.recon_reduction == "sum" else "mean"
        return f"{errors} errors, lambda {self.lam:g}, {self.steps:,} steps"


PRINTED = Recipe("sum", 4.0, 10_000)
PRINTED_LONG = Recipe("sum", 4.0, LONG)
MEAN = Recipe("mean", 4.0, 30_000)  # what published outcomes point to
HEAVY = Recipe("sum", 20.0, 20_000)  # aligns many pairs soonest
HEAVY_SHORT = Recipe("sum", 20.0, 10_000)


@dataclass(frozen=True)
class Tried(Generic[Record]):
    """What a figure shows with each of several recipes."""

    found: Mapping[Recipe, Record]


def by_recipe(
    recipes: tuple[Recipe, ...],
    measure: Callable[[Job, Recipe], Record],
    judge: Callable[[Record], Verdict],
    tell: Callable[[Record], Told],
    draw: Callable[[Record, str], Figure],
    picture: str,
) -> Experiment[Tried[Record]]:
    """One experiment of a figure with each of these recipes, which counts only printed ones in full.

    What is drawn says its recipe in words, and in the name of its file, after that of the `picture`.
    """
    return Experiment(
        partial(_measured, recipes=recipes, measure=measure),
        partial(_judged, judge=judge),
        partial(_told, tell=tell),
        partial(_drawn, draw=draw, picture=picture),
    )


def _measured(job: Job, recipes: tuple[Recipe, ...], measure: Callable[[Job, Recipe], Record]) -> Tried[Record]:
    return Tried({recipe: measure(job, recipe) for recipe in recipes})


def _judged(tried: Tried[Record], judge: Callable[[Record], Verdict]) -> Verdict:
    return over_recipes({recipe: judge(one) for recipe, one in tried.found.items()})


def _told(tried: Tried[Record], tell: Callable[[Record], Told]) -> Told:
    found = {recipe: tell(one) for recipe, one in tried.found.items()}
    numbers = {f"{recipe.said}: {name}": own for recipe, one in found.items() for name, own in one.numbers.items()}
    lines = [f"{recipe.name}: {one.measured}".replace(": \n", ":\n") for recipe, one in found.items()]  # or a list
    notes = dict.fromkeys([*(one.note for one in found.values()), _note(found)])
    return Told("\n".join(lines), numbers, " ".join(note for note in notes if note))


def _drawn(tried: Tried[Record], draw: Callable[[Record, str], Figure], picture: str) -> Mapping[str, Figure]:
    return {f"{picture}-{recipe.file}": draw(one, recipe.said) for recipe, one in tried.found.items()}


def over_recipes(verdicts: Mapping[Recipe, Verdict]) -> Verdict:
    """What all settings together say: reproduced only by printed ones, partly by any, untold if none can tell.

    >>> over_recipes({PRINTED: "not", MEAN: "reproduced"}), over_recipes({PRINTED: "reproduced", MEAN: "not"})
    ('partly', 'reproduced')
    """
    if any(verdict == "reproduced" and recipe.printed for recipe, verdict in verdicts.items()):
        return "reproduced"
    said = set(verdicts.values())
    return "partly" if said & {"reproduced", "partly"} else "untold" if "untold" in said else "not"


def _note(recipes: Iterable[Recipe]) -> str:
    """What was printed, what was chosen, and what the verdict makes of it."""
    chosen = "; ".join(recipe.said for recipe in recipes if not recipe.printed)
    return (
        "As printed: summed squared errors, lambda 4, and 10,000 to 80,000 steps, of which those named were run. "
        f"Chosen, because outcomes point there: {chosen}. (Lambda 4 of a mean over N features is 4 N of a sum.) A "
        "claim that holds only with chosen settings is partly reproduced."
    )
