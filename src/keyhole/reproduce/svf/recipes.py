"""How are toys trained, and what may be concluded? As printed, and with settings chosen because they align."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from keyhole.reproduce.job import Job
from keyhole.reproduce.outcome import Outcome, Verdict

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

Measure = Callable[[Job, Recipe], Outcome]  # what a figure shows with one recipe


def by_recipe(job: Job, recipes: Sequence[Recipe], measure: Measure) -> Outcome:
    """What does a figure show with each of these recipes? One outcome, which counts only printed ones in full."""
    found = {recipe: measure(job, recipe) for recipe in recipes}
    numbers = {f"{recipe.said}: {name}": own for recipe, one in found.items() for name, own in one.numbers.items()}
    lines = [f"{recipe.name}: {one.measured}".replace(": \n", ":\n") for recipe, one in found.items()]  # or a list
    notes = dict.fromkeys([*(one.note for one in found.values()), _note(recipes)])
    return Outcome(
        verdict=over_recipes({recipe: one.verdict for recipe, one in found.items()}),
        measured="\n".join(lines),
        numbers=numbers,
        figures=tuple(path for one in found.values() for path in one.figures),
        note=" ".join(note for note in notes if note),
    )


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
