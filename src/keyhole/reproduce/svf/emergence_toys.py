"""Does attention of toys become sparse while they learn, and only where attended pairs are present? S(v) by step."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from keyhole.figures import save
from keyhole.figures.style import BLUE, GREY, PALETTE, RED
from keyhole.figures.svf import Curve, curves_figure
from keyhole.lab.svf.alignment import Alignment, alignment
from keyhole.lab.svf.toy import SVF
from keyhole.qk.controls import haar
from keyhole.reproduce.job import Attempt, Job, Numbers
from keyhole.reproduce.outcome import Outcome
from keyhole.reproduce.svf.inputs import INPUTS, MATTERS, PAIR_SEEDS, inputs, samples, sides, sparsities
from keyhole.reproduce.svf.recipes import MEAN, PRINTED, Recipe, by_recipe
from keyhole.reproduce.svf.scores import counted, graded, share
from keyhole.reproduce.svf.toys import four_pairs, trained
from keyhole.stats import with_interval

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
_NAMES = tuple(_SHADES)


def emergence(job: Job) -> Outcome:
    """Does S(v) fall with attended pairs present, lowest with one, and not in rotated bases?"""
    return by_recipe(job, (PRINTED, MEAN), _emergence)


def _emergence(job: Job, recipe: Recipe) -> Outcome:
    models = next(iter(trained(job, four_pairs(job, recipe)).values()))
    steps = [step for step, _ in models[0].snapshots]
    rows = torch.tensor([[_course(job, model.at(step)) for step in steps] for model in models], dtype=torch.float64)
    sizes = [left(job, model) for model in models]
    least = 1 / models[0].settings.H
    parts = claims(rows[:, -1], sizes, least)
    numbers: Numbers = {f"{name} end": rows[:, -1, n].tolist() for n, name in enumerate(_NAMES)}
    numbers |= {f"{name} start": rows[:, 0, n].tolist() for n, name in enumerate(_NAMES)}
    numbers["size without a pair, against one"] = sizes
    path = save(_figure(steps, rows, least, recipe), job.folder / f"sparsity-{recipe.file}.png")
    note = (
        f"Brackets: 95 % intervals over seeds, each with rotations of its own. {INPUTS} Full strength: 1 instead. "
        f"Refactored: Omega and all scores are kept, only the rank-one pieces differ; rotated: the paper's control, "
        f"other directions with the same spectrum; {_DRAWS} draws each. S(v) with no pair counts where all terms "
        f"together have {MATTERS:g} or more of their size with one pair: less is the remains of training, and its "
        "sparsity tells nothing. Unless S(v) with one pair is the lowest possible, the other parts do not count."
    )
    verdict = graded([share(part)[0] for part in parts.values()])
    return Outcome(verdict, _told(rows, sizes, parts, least), numbers, (path,), note)


def claims(end: Float[Tensor, "seed curve"], sizes: Sequence[float], least: float) -> dict[str, list[bool]]:
    """What the figure claims, part by part and seed by seed. Without the first, the others say nothing."""
    parts: dict[str, list[bool]] = {
        "with one pair as sparse as can be": [],
        "less sparse with two": [],
        "still less with none, which matter": [],
        "not sparse in other bases": [],
    }
    for (one, two, none, _, other, rotated), size in zip(end.tolist(), sizes, strict=True):
        sparse = one <= _SPARSEST * least
        holds = (True, one < two, two < none and size >= MATTERS, min(other, rotated) > _SPREAD_OUT)
        for part, held in zip(parts.values(), holds, strict=True):
            part.append(sparse and held)
    return parts


def _told(rows: Tensor, sizes: Sequence[float], parts: dict[str, list[bool]], least: float) -> str:
    end, start = rows[:, -1], rows[:, 0]

    def each(values: Tensor, names: Sequence[str]) -> str:
        own = [with_interval(values[:, n].tolist(), 3, 0.0, 1.0) for n in range(len(names))]
        return "; ".join(f"{name} {text}" for name, text in zip(names, own, strict=True))

    held = "; ".join(f"{name} in {counted(part)}" for name, part in parts.items())
    return (
        f"S(v) at the end (1/n = {least:.2f}): {each(end, _NAMES)}. At the start: {each(start, _NAMES[:3])}; with no "
        f"pair the median falls to {float(rows[..., 2].nanmedian(0).values.min()):.3f} on the way, and all terms "
        f"together end at {min(sizes):.2g} to {max(sizes):.2g} of their size with one pair. Of the seeds, {held}."
    )


def _figure(steps: Sequence[int], rows: Tensor, least: float, recipe: Recipe) -> Figure:
    curves = [Curve(name, rows[..., n], shade, dashed=n > 2) for n, (name, shade) in enumerate(_SHADES.items())]
    panels = {"By pairs present": curves[:4], "One pair, in other bases": [curves[0], *curves[4:]]}
    title = f"Sparsity of relative attention while training, mean and 95 % interval ({recipe.said})"
    return curves_figure(steps, panels, y="S(v)", floor=least, title=title, means=True)


def left(job: Job, model: SVF) -> float:
    """How large are all terms together without a pair, against those with one?"""
    found = alignment(model)

    def size(present: int) -> float:
        a, b = sides(model, found, inputs(model.settings, present, samples(job), model.settings.seed))
        return float((a * b).abs().sum(-1).mean())

    return size(0) / size(1)


def _course(job: Job, model: SVF) -> list[float]:
    """S(v) with one, two and no pairs present, two at full strength, and with one in refactored and rotated bases."""
    found, n = alignment(model), samples(job)
    own = []
    for present in (1, 2, 0):
        f = inputs(model.settings, present, n, model.settings.seed)
        a, b = sides(model, found, f)
        own.append(float(sparsities(a * b).nanmean()))
        if present == 1:
            spread = controls(model, found, f, (a, b), draws=2 if job.quick else _DRAWS)
    a, b = sides(model, found, inputs(model.settings, 2, n, model.settings.seed, full=True))
    return [*own, float(sparsities(a * b).nanmean()), *spread]


def controls(model: SVF, found: Alignment, f: Tensor, own: tuple[Tensor, Tensor], *, draws: int) -> tuple[float, float]:
    """Mean S(v) in refactored and in rotated bases; every seed has its own draws, the same at each snapshot."""
    g = torch.Generator().manual_seed(2 * PAIR_SEEDS + model.settings.seed)
    tokens, n = model.tokens(f), len(found.S)
    relative = tokens[:, 0] - tokens[:, 1:].mean(1)
    a, b = own
    refactored, rotated = [], []
    for _ in range(draws):
        R = haar(n, n, g)
        refactored.append(float(sparsities((a @ R) * (b @ R)).nanmean()))
        U, V = haar(len(found.U), n, g), haar(len(found.V), n, g)
        rotated.append(float(sparsities((tokens[:, -1] @ U) * found.S * (relative @ V)).nanmean()))
    return sum(refactored) / draws, sum(rotated) / draws


RUNS: dict[str, Attempt] = {"svf-fig6a": emergence}
