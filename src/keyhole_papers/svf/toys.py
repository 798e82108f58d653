"""Which toys do the figures on singular vectors and features share? Their settings, one list of seeds for each value.

Each toy is trained as printed, and with settings chosen because they align: a figure says what both show.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from keyhole.lab.svf.store import trained_models
from keyhole.lab.svf.toy import SVF, SVFSettings, declining_pairs
from keyhole_papers.job import Job
from keyhole_papers.svf.recipes import Recipe

SEEDS, FEW = 10, 5  # of small toys, and of large ones
P = (1.0, 0.52, 0.271, 0.141, 0.074, 0.038, 0.02)  # 50^(-k/6); Table 1 prints the second as .52
LAMBDAS = (0.2, 0.4, 1.0, 4.0, 10.0, 40.0)
FEATURES, DIMENSIONS, CONTEXTS = (10, 15, 20, 25, 30), (10, 8, 6, 4), (2, 4, 8, 16, 32)
PAIRS = {5: (5, 6, 7, 8, 9, 10), 10: (10, 12, 14, 16, 18, 20)}  # by head dimension: more pairs than it has room for
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


def by_pairs(job: Job, recipe: Recipe, H: int) -> Cells:
    """D = 2 H, N = 4 H, and n pairs with T = n + 1, n, ..., 2."""
    shape = {"N": 4 * H, "D": 2 * H, "H": H}
    sizes = {float(n): {**shape, "pairs": declining_pairs(n, n + 1.0)} for n in PAIRS[H]}
    return cells(job, recipe, sizes, few=True)


def alike(job: Job, recipe: Recipe, toy: Mapping[str, Any] = DEFAULT, *, few: bool = False) -> list[SVF]:
    """The models of one toy: nothing but their seeds differ."""
    return trained(job, cells(job, recipe, {0.0: toy}, few=few))[0.0]


def trained(job: Job, wanted: Cells) -> dict[float, list[SVF]]:
    """The models of all these settings, trained in one batch; they lie beside the figures, which share them."""
    flat = [settings for own in wanted.values() for settings in own]
    models = iter(trained_models(flat, job.folder.parent / "toys", job.device or "cpu", job.progress))
    return {value: [next(models) for _ in own] for value, own in wanted.items()}
