"""Does attention of toys become sparse while they learn, and only where attended pairs are present? S(v) by step."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from keyhole.figures.style import BLUE, GREY, PALETTE, RED
from keyhole.figures.svf import Curve, curves_figure
from keyhole.lab.svf.alignment import Alignment, alignment
from keyhole.lab.svf.toy import SVF
from keyhole.qk.controls import haar
from keyhole.qk.sparsity import sparsity_each
from keyhole.stats import with_interval
from keyhole_papers.job import Attempt, Job
from keyhole_papers.results import Numbers, Verdict
from keyhole_papers.svf.inputs import INPUTS, MATTERS, PAIR_SEEDS, inputs, samples, sides
from keyhole_papers.svf.recipes import MEAN, PRINTED, Recipe, by_recipe
from keyhole_papers.svf.scores import counted, graded, share
from keyhole_papers.svf.toys import alike
from keyhole_papers.told import Told

_DRAWS = 20
_SPARSEST = 1.05  # S(v) of at most so many times 1/n is as sparse as can be
_SPREAD_OUT = 0.2  # S(v) that other bases must exceed


_SHADES = {  # of the curves, in their order
    "one pair": BLUE,
    "two pairs": PALETTE[1],
    "no pair": GREY,
    "two pairs at full strength": PALETTE[1],
    "one pair, refactored": RED,
    "one pair, rotated": PALETTE[3],
}


@dataclass(frozen=True)
class Emerged:
    """The toys of one recipe while they learn."""

    steps: tuple[int, ...]
    sparsity: Mapping[str, Float[Tensor, "seed step"]]  # S(v), by the names of curves
    sizes: list[float]  # of all terms together without a pair, against those with one; by seed
    least: float  # S(v) that is possible

    def at(self, step: int) -> dict[str, list[float]]:
        """S(v) at one step, by index: of every curve, seed by seed."""
        return {name: values[:, step].tolist() for name, values in self.sparsity.items()}


def measure(job: Job, recipe: Recipe) -> Emerged:
    """Does S(v) fall with attended pairs present, lowest with one, and not in rotated bases?"""
    models = alike(job, recipe)
    steps = tuple(step for step, _ in models[0].snapshots)
    rows = [[_sparsity(job, model.at(step)) for step in steps] for model in models]
    curves = {name: torch.tensor([[at[name] for at in row] for row in rows], dtype=torch.float64) for name in _SHADES}
    return Emerged(steps, curves, [left(job, model) for model in models], 1 / models[0].settings.H)


def _sparsity(job: Job, model: SVF) -> dict[str, float]:
    """S(v) with one, two and no pairs present, two at full strength, and with one in refactored and rotated bases."""
    found, settings = alignment(model), model.settings
    full = {"two pairs at full strength": inputs(settings, 2, samples(job), settings.seed, full=True)}
    present = {"one pair": 1, "two pairs": 2, "no pair": 0}
    seen = {name: inputs(settings, n, samples(job), settings.seed) for name, n in present.items()} | full
    own = {}
    for name, f in seen.items():
        a, b = sides(model, found, f)
        own[name] = float(sparsity_each(a * b).nanmean())
    return own | controls(model, found, seen["one pair"], draws=2 if job.quick else _DRAWS)


def controls(model: SVF, found: Alignment, f: Float[Tensor, "n m N"], *, draws: int) -> dict[str, float]:
    """Mean S(v) in refactored and in rotated bases; every seed has its own draws, the same at each snapshot."""
    g = torch.Generator().manual_seed(2 * PAIR_SEEDS + model.settings.seed)
    tokens, n = model.tokens(f), len(found.S)
    relative = tokens[:, 0] - tokens[:, 1:].mean(1)
    a, b = sides(model, found, f)
    refactored, rotated = [], []
    for _ in range(draws):
        R = haar(n, n, g)
        refactored.append(float(sparsity_each((a @ R) * (b @ R)).nanmean()))
        U, V = haar(len(found.U), n, g), haar(len(found.V), n, g)
        rotated.append(float(sparsity_each((tokens[:, -1] @ U) * found.S * (relative @ V)).nanmean()))
    return {"one pair, refactored": sum(refactored) / draws, "one pair, rotated": sum(rotated) / draws}


def left(job: Job, model: SVF) -> float:
    """How large are all terms together without a pair, against those with one?"""
    found = alignment(model)

    def size(present: int) -> float:
        a, b = sides(model, found, inputs(model.settings, present, samples(job), model.settings.seed))
        return float((a * b).abs().sum(-1).mean())

    return size(0) / size(1)


def claims(found: Emerged) -> dict[str, list[bool]]:
    """What the figure claims, part by part and seed by seed. Without the first, the others say nothing."""
    parts: dict[str, list[bool]] = {
        "with one pair as sparse as can be": [],
        "less sparse with two": [],
        "still less with none, which matter": [],
        "not sparse in other bases": [],
    }
    for n, size in enumerate(found.sizes):
        end = {name: values[n] for name, values in found.at(-1).items()}
        one, two, none = end["one pair"], end["two pairs"], end["no pair"]
        others = min(end["one pair, refactored"], end["one pair, rotated"])
        sparse = one <= _SPARSEST * found.least
        holds = (True, one < two, two < none and size >= MATTERS, others > _SPREAD_OUT)
        for part, held in zip(parts.values(), holds, strict=True):
            part.append(sparse and held)
    return parts


def _judge(found: Emerged) -> Verdict:
    return graded([share(part) for part in claims(found).values()])


_NOTE = (
    f"Brackets: 95 % intervals over seeds, each with rotations of its own. {INPUTS} Full strength: 1 instead. "
    f"Refactored: Omega and all scores are kept, only the rank-one pieces differ; rotated: the paper's control, "
    f"other directions with the same spectrum; {_DRAWS} draws each. S(v) with no pair counts where all terms "
    f"together have {MATTERS:g} or more of their size with one pair: less is the remains of training, and its "
    "sparsity tells nothing. Unless S(v) with one pair is the lowest possible, the other parts do not count."
)


def _tell(found: Emerged) -> Told:
    ends = {"end": found.at(-1), "start": found.at(0)}
    numbers: Numbers = {f"{name} {when}": own for when, curves in ends.items() for name, own in curves.items()}
    numbers["size without a pair, against one"] = found.sizes
    end, start = (
        [f"{name} {with_interval(own, 3, 0.0, 1.0)}" for name, own in curves.items()] for curves in ends.values()
    )
    lowest = float(found.sparsity["no pair"].nanmedian(0).values.min())
    held = "; ".join(f"{name} in {counted(part)}" for name, part in claims(found).items())
    measured = (
        f"S(v) at the end (1/n = {found.least:.2f}): {'; '.join(end)}. At the start: {'; '.join(start[:3])}; with no "
        f"pair the median falls to {lowest:.3f} on the way, and all terms together end at {min(found.sizes):.2g} to "
        f"{max(found.sizes):.2g} of their size with one pair. Of the seeds, {held}."
    )
    return Told(measured, numbers, _NOTE)


def _draw(found: Emerged, said: str) -> Figure:
    curves = [Curve(name, own, _SHADES[name], dashed=n > 2) for n, (name, own) in enumerate(found.sparsity.items())]
    panels = {"By pairs present": curves[:4], "One pair, in other bases": [curves[0], *curves[4:]]}
    title = f"Sparsity of relative attention while training, mean and 95 % interval ({said})"
    return curves_figure(found.steps, panels, y="S(v)", floor=found.least, title=title, means=True)


RUNS: dict[str, Attempt] = {"svf-fig6a": by_recipe((PRINTED, MEAN), measure, _judge, _tell, _draw, "sparsity")}
