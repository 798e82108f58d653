"""What becomes of more pairs than dimensions? Strong ones keep a singular vector each, weak ones share the last."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from keyhole.figures.svf import Matrix, matrices_figure
from keyhole.lab.svf.alignment import alignment
from keyhole.lab.svf.toy import SVF
from keyhole.stats import told
from keyhole_papers.job import Attempt, Job
from keyhole_papers.results import Numbers, Verdict
from keyhole_papers.svf.recipes import HEAVY, PRINTED, Recipe, by_recipe
from keyhole_papers.svf.scores import HALF, MOST, SEEDS_NOTE, counted, share
from keyhole_papers.svf.toys import by_pairs, trained
from keyhole_papers.told import Told


@dataclass(frozen=True)
class Pattern:
    """Where a number of pairs lies in a head, seed by seed."""

    met: Float[Tensor, "pair channel"]  # how well they meet, mean of seeds
    every: list[bool]  # is the pattern exact?
    strong: list[float]  # share of strong pairs that have their own vector
    weak: list[float]  # share of the others that are on the last one
    strong_cosine: list[float]  # mean |cos| with these
    weak_cosine: list[float]


@dataclass(frozen=True)
class Crowd:
    """Heads of one recipe with H dimensions, by the number of pairs."""

    H: int
    patterns: Mapping[float, Pattern]


def meetings(model: SVF) -> Float[Tensor, "pair channel"]:
    """How well does each singular pair meet each pair of features? The geometric mean of both |cos|."""
    found = alignment(model)
    rows = [(found.cu[i] * found.cv[j]).abs().sqrt() for i, j, _ in found.pairs]
    return torch.stack(rows).nan_to_num(0.0)


def measure(job: Job, recipe: Recipe, H: int) -> Crowd:
    """With more pairs than dimensions, do strong pairs keep a singular vector each and weak ones share the last?"""
    heads = trained(job, by_pairs(job, recipe, H))
    return Crowd(H, {n: _pattern(torch.stack([meetings(one) for one in models]), H) for n, models in heads.items()})


def _pattern(met: Float[Tensor, "seed pair channel"], H: int) -> Pattern:
    expected = torch.arange(met.shape[1]).clamp_max(H - 1)
    right = (met.argmax(-1) == expected).double()
    sizes = met.gather(-1, expected.expand(len(met), -1)[..., None])[..., 0]
    parts = (slice(H - 1), slice(H - 1, None))
    strong, weak, strong_cosine, weak_cosine = (of[:, part].mean(1).tolist() for of in (right, sizes) for part in parts)
    return Pattern(met.mean(0), [bool(row.all()) for row in right], strong, weak, strong_cosine, weak_cosine)


def judge(found: Crowd) -> Verdict:
    """Exact in most seeds for every number of pairs; partly if strong pairs are right and half of the weak ones."""
    patterns = found.patterns.values()
    if min(share(one.every) for one in patterns) >= MOST:
        return "reproduced"
    strong = sum(sum(one.strong) / len(one.strong) for one in patterns) / len(patterns)
    weak = sum(sum(one.weak) / len(one.weak) for one in patterns) / len(patterns)
    return "partly" if strong >= MOST and weak >= HALF else "not"


def _tell(found: Crowd) -> Told:
    lines, numbers = [""], Numbers()
    for n, one in found.patterns.items():
        lines.append(
            f"{n:g} pairs: the exact pattern in {counted(one.every)} seeds; of strong pairs {told(one.strong, 2)} have "
            f"their own vector (|cos| {told(one.strong_cosine, 2)}), of the others {told(one.weak, 2)} are on the last "
            f"one (|cos| {told(one.weak_cosine, 2)})."
        )
        numbers |= {f"{n:g} pairs strong": one.strong, f"{n:g} pairs weak": one.weak}
    note = f"|cos|: geometric mean of query and key side; a pair is where it is largest. {SEEDS_NOTE}"
    return Told("\n".join(lines), numbers, note)


def _draw(found: Crowd, said: str) -> Figure:
    panels = [Matrix(f"{n:g} pairs", one.met, x="singular pair k", y="pair, by T") for n, one in found.patterns.items()]
    title = f"Pairs and singular vectors of a head with H = {found.H}, mean of seeds ({said})"
    return matrices_figure(panels, unsigned=True, columns=3, label="|cos|", title=title)


RUNS: dict[str, Attempt] = {
    id: by_recipe((PRINTED, HEAVY), partial(measure, H=H), judge, _tell, _draw, "capacity")
    for id, H in (("svf-fig18a", 5), ("svf-fig18b", 10))
}
