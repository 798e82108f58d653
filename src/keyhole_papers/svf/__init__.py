"""Which toys do the figures on singular vectors and features share, how are they trained, and when are they aligned?

Each toy is trained as printed, and with settings chosen because they align: a figure says what both show.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from statistics import mean
from typing import Any, Generic, Literal

from matplotlib.figure import Figure

from keyhole.lab.svf import SVF, SVFSettings, declining_pairs
from keyhole.lab.svf_alignment import Matching
from keyhole.lab.svf_train import trained_models
from keyhole_papers.experiment import Experiment, Job, Record
from keyhole_papers.finding import TOY, Finding, Findings
from keyhole_papers.results import Verdict

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

    records: Mapping[Recipe, Record]


def by_recipe(
    recipes: tuple[Recipe, ...],
    measure: Callable[[Job, Recipe], Record],
    findings: Callable[[Record], Findings],
    draw: Callable[[Record, str], Figure],
    picture: str,
) -> Experiment[Tried[Record]]:
    """One experiment of a figure with each of these recipes, which counts only printed ones in full.

    What is drawn says its recipe in words, and in the name of its file, after that of the `picture`.
    """
    return Experiment(
        partial(_measured, recipes=recipes, measure=measure),
        partial(of_recipes, findings=findings),
        partial(_drawn, draw=draw, picture=picture),
    )


def _measured(job: Job, recipes: tuple[Recipe, ...], measure: Callable[[Job, Recipe], Record]) -> Tried[Record]:
    return Tried({recipe: measure(job, recipe) for recipe in recipes})


def of_recipes(tried: Tried[Record], findings: Callable[[Record], Findings]) -> Findings:
    """What was found with each recipe, and what all of them say together."""
    each = {recipe: findings(record) for recipe, record in tried.records.items()}
    rows = [
        replace(row, part=f"{recipe.said}: {row.part}" if row.part else recipe.said)
        for recipe, shown in each.items()
        for row in shown.rows
    ]
    remarks = dict.fromkeys([*(shown.remark for shown in each.values()), _note(each)])
    judged = over_recipes({recipe: shown.verdict for recipe, shown in each.items()})
    return Findings(rows, TOY, remark=" ".join(remark for remark in remarks if remark), judged=judged)


def _drawn(tried: Tried[Record], draw: Callable[[Record, str], Figure], picture: str) -> Mapping[str, Figure]:
    return {f"{picture}-{recipe.file}": draw(record, recipe.said) for recipe, record in tried.records.items()}


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


SEEDS, FEW = 10, 5  # of small toys, and of large ones
P = (1.0, 0.52, 0.271, 0.141, 0.074, 0.038, 0.02)  # 50^(-k/6); Table 1 prints the second as .52
LAMBDAS = (0.2, 0.4, 1.0, 4.0, 10.0, 40.0)
FEATURES, DIMENSIONS, CONTEXTS = (10, 15, 20, 25, 30), (10, 8, 6, 4), (2, 4, 8, 16, 32)
RARE = 0.038  # the probability about which its text contradicts itself
DEFAULT: Mapping[str, Any] = {}  # four pairs
ONE_PAIR = {"pairs": ((0, 1, 1.0),)}
TWENTY_PAIRS = {"N": 100, "D": 50, "H": 50, "pairs": declining_pairs(20, 26.0)}  # hundred features
OWN_QUERIES = {"query_mode": "indep"}  # queries that are not among their keys, as the theorems have them
NO_HEAD = {"attention": False, "pairs": ()}  # nothing attends, so only the number of steps is left of a recipe
_QUICK_STEPS, _QUICK_SEEDS = 300, 2

Cells = dict[float, list[SVFSettings]]  # by what is varied


def cells(job: Job, recipe: Recipe, changes: Mapping[float, Mapping[str, Any]], *, few: bool = False) -> Cells:
    """Settings of every value of a sweep, one per seed; a quick job takes two values, two seeds and few steps."""
    seeds = FEW if few else SEEDS
    if job.quick:
        changes, seeds = dict([*changes.items()][:2]), _QUICK_SEEDS
    settings = {**vars(recipe), **({"steps": _QUICK_STEPS} if job.quick else {})}
    return {
        value: [SVFSettings(**{**settings, **change, "seed": job.seed + seed}) for seed in range(seeds)]
        for value, change in changes.items()
    }


def varied(job: Job, recipe: Recipe, name: str, values: Sequence[float | int]) -> Cells:
    """The default toy, by one of its settings."""
    return cells(job, recipe, {float(value): {name: value} for value in values})


def alike(job: Job, recipe: Recipe, toy: Mapping[str, Any] = DEFAULT, *, few: bool = False) -> list[SVF]:
    """The models of one toy: nothing but their seeds differ."""
    return trained(job, cells(job, recipe, {0.0: toy}, few=few))[0.0]


def trained(job: Job, wanted: Cells) -> dict[float, list[SVF]]:
    """The models of all these settings, trained in one batch; they lie beside the figures, which share them."""
    flat = [settings for group in wanted.values() for settings in group]
    models = iter(trained_models(flat, job.folder.parent / "toys", job.device or "cpu", job.progress))
    return {value: [next(models) for _ in group] for value, group in wanted.items()}


MATTERS = 0.01  # of the size of terms with one pair present: smaller ones are remains of training, sparse or not
INPUTS = (
    "Features of interest are removed from all tokens and put back, with strengths from U(0, 1), into the query and "
    "one key; all other features are drawn as in training."
)
_SAMPLES, _QUICK_SAMPLES = 400, 50


def samples(job: Job) -> int:
    """How many contexts."""
    return _QUICK_SAMPLES if job.quick else _SAMPLES


ALIGNED = 0.95  # |cos| from which a feature counts as a singular vector
SHARP = 0.998  # and from which it is one but for the noise of training
MOST, HALF = 0.9, 0.5  # shares of seeds, or of settings, that a claim needs

share = mean  # of flags: how many are true?
SEEDS_NOTE = "Brackets: smallest and largest of the seeds, or 95 % intervals of shares (Wilson)."


def worst(matched: Matching) -> float:
    """The smallest |cos| of any pair with the singular vector matched with it; 0 if it has none or is shunned."""
    cosine = matched.worst
    return cosine if math.isfinite(cosine) and bool((matched.sign == 1).all()) else 0.0


def are_aligned(cosines: Sequence[float]) -> list[bool]:
    """Which of these count as aligned?"""
    return [cosine >= ALIGNED for cosine in cosines]


def in_most(name: str, flags: Sequence[bool]) -> Finding:
    """Which seeds show something, where nine of ten are asked to."""
    return Finding(name, flags, f"{MOST:.0%} of seeds", share(flags) >= MOST)


def graded(shares: Sequence[float]) -> Verdict:
    """Reproduced if every share reaches MOST; partly if half of them do, or all reach HALF."""
    good = sum(share >= MOST for share in shares) / len(shares)
    if good == 1:
        return "reproduced"
    return "partly" if good >= HALF or min(shares) >= HALF else "not"


def by_field(rows: Sequence[Any], *left_out: str) -> dict[str, list[float]]:
    """The numbers of dataclasses of one kind, each over all of them."""
    names = [field.name for field in fields(rows[0]) if field.name not in left_out]
    return {name: [float(getattr(row, name)) for row in rows] for name in names}
