"""Do queries and keys of a payload head take the shape of their latent? Cubes of signs, balls of Gaussians."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.contrast.features.subspace import random_bases
from keyhole.figures import pca_figure, save
from keyhole.lab.payload.task import Latents, purpose_seed
from keyhole.lab.payload.toy import Payload, activations, sample
from keyhole.reproduce.cc.payload import SEEDS, are_trained, as_trained, feature_of, heads_of, told_training, untrained
from keyhole.reproduce.job import Attempt, Job
from keyhole.reproduce.outcome import Outcome, Verdict
from keyhole.stats import told

_BOUNDS = {"nearest": 0.95, "linear": 0.8, "even": 0.7, "agree": 0.8}
_NEEDED = ("nearest", "linear")  # without which nothing is shown; corners are of discrete latents alone
_DRAWS = 100  # random subspaces of a head
_QUANTILE = 0.95  # of them, that must be exceeded
_SPREAD = "What blurs the shape is the other latent and, in keys, the payload: subspaces are not quite orthogonal."


@dataclass(frozen=True)
class Shape:
    """How queries and right keys lie in a subspace; the worse of both sides where a measure has two."""

    nearest: float  # keys nearest to the queries of their own corner (signs of the latent)
    linear: float  # share of the variance that the latent explains
    even: float  # shortest against longest axis of the latent's image; 1: a regular cube or ball
    agree: float  # cosine of a query with its key


@dataclass(frozen=True)
class Points:
    """Queries and right keys of fresh samples, with the latent behind them."""

    q: Float[Tensor, "sample d_head"]
    k: Float[Tensor, "sample d_head"]
    z: Float[Tensor, "sample rank"]
    labels: list[str]  # the corner: signs of the latent


def subspaces(job: Job, latents: Latents) -> Outcome:
    """Do queries and keys show the shape of their latent in its subspace, and in the same places?"""
    setting = (3, 5, 16)
    heads = heads_of(job, [setting], latents, seeds=5)[setting]
    path = job.folder / "pca.png"
    shapes = [_in_feature(job, head, path if i == 0 else None) for i, head in enumerate(heads)]
    raw = [_in_feature(job, head) for head in untrained(heads)]
    random = [in_random(job, head) for head in heads]
    limits = [limit(own) for own in random]
    asked = _asked(latents)
    numbers = _columns(shapes) | {
        f"{kind} {name}": values
        for kind, own in (("untrained", raw), (f"random {_QUANTILE:.0%}", limits))
        for name, values in _columns(own).items()
    }
    solid = "cube" if latents == "discrete" else "ball"
    lines = [
        f"Trained heads: {_told(shapes, latents, solid)}.",
        f"Control, untrained: {_told(raw, latents, solid)}.",
        f"Control, random subspaces of the same rank, {_QUANTILE:.0%} of {len(random[0])} below: "
        f"{_told(limits, latents, solid)}.",
    ]
    below = [_WORDS[name] for name in asked if not beyond(shapes, limits, name)]
    lines += [f"No higher than in random subspaces: {', '.join(below)}."] if below else []
    bounds = ", ".join(f"{_WORDS[name]} {_BOUNDS[name]}" for name in asked)
    note = (
        f"Of queries and keys the worse one is told. The verdict asks for {bounds}, each as the mean of the seeds, and "
        f"in every seed for more than {_QUANTILE:.0%} of {_DRAWS} random subspaces show (one for queries and keys "
        f"alike); nothing without {' and '.join(_WORDS[name] for name in asked if name in _NEEDED)}, partly without "
        f"another. {_SPREAD} {SEEDS} {told_training(heads)}"
    )
    return Outcome(as_trained(judged(heads, shapes, limits, latents), heads), "\n".join(lines), numbers, (path,), note)


def judged(heads: Sequence[Payload], shapes: Sequence[Shape], limits: Sequence[Shape], latents: Latents) -> Verdict:
    """Do trained heads show the shape, more than random subspaces do?"""
    mean = {name: sum(values) / len(values) for name, values in _columns(shapes).items()}
    held = {name: mean[name] >= _BOUNDS[name] and beyond(shapes, limits, name) for name in _asked(latents)}
    if not all(held[name] for name in held if name in _NEEDED) or not are_trained(heads):
        return "not"
    return "reproduced" if all(held.values()) else "partly"


def beyond(shapes: Sequence[Shape], limits: Sequence[Shape], name: str) -> bool:
    """Does every head's measure exceed what nearly all random subspaces of it show?"""
    return all(getattr(own, name) > getattr(most, name) for own, most in zip(shapes, limits, strict=True))


def limit(random: Sequence[Shape]) -> Shape:
    """What 95 % of these shapes are below, measure by measure."""
    columns = {name: torch.tensor(values, dtype=torch.float64) for name, values in _columns(random).items()}
    return Shape(**{name: float(values.quantile(_QUANTILE)) for name, values in columns.items()})


_WORDS = {"nearest": "keys at their corner", "linear": "variance explained", "even": "axes", "agree": "cosines"}


def _asked(latents: Latents) -> list[str]:
    return [name for name in _BOUNDS if name != "nearest" or latents == "discrete"]


def _columns(shapes: Sequence[Shape]) -> dict[str, list[float]]:
    return {field.name: [asdict(shape)[field.name] for shape in shapes] for field in fields(Shape)}


def _told(shapes: Sequence[Shape], latents: Latents, solid: str) -> str:
    own = {name: told(values, 2) for name, values in _columns(shapes).items()}
    corners = f"{own['nearest']} of keys nearest to their own corner, " if latents == "discrete" else ""
    return (
        f"{corners}{own['linear']} of the variance explained by the latent, shortest against longest axis "
        f"{own['even']} (1: a regular {solid}), cosine of query and key {own['agree']}"
    )


def _in_feature(job: Job, head: Payload, path: Path | None = None) -> Shape:
    feature, r = feature_of(job, head, "z1"), head.settings.r1  # the true rank, as in the paper: `ranks` tells others
    seen = points(job, head)
    U, V = feature.U[:, :r], feature.V[:, :r]
    if path is not None:
        title = f"Queries and right keys in the subspace of the first latent, {head.settings.latents}"
        save(pca_figure(seen.q @ U, seen.k @ V, seen.labels, seen.labels, title=title, points=1000), path)
    return shape(seen, U, V)


def in_random(job: Job, head: Payload) -> list[Shape]:
    """The shapes in random subspaces of the latent's rank, each one for queries and keys alike."""
    r, d_head = head.settings.r1, head.settings.d_head
    bases = random_bases(d_head, r, _DRAWS, purpose_seed(job.seed + head.settings.seed, "bases"))
    seen = points(job, head)
    return [shape(seen, basis, basis) for basis in bases]


def points(job: Job, head: Payload) -> Points:
    """Fresh samples of a head."""
    batch = sample(head, 500 if job.quick else 4000, seed=job.seed)
    seen, row = activations(head, batch), torch.arange(len(batch.star))
    z = batch.z1[row, batch.star].double()
    labels = ["".join("+" if x > 0 else "-" for x in one) for one in z.tolist()]
    return Points(seen.q.double(), seen.k[row, batch.star].double(), z, labels)


def shape(seen: Points, U: Float[Tensor, "d_head rank"], V: Float[Tensor, "d_head rank"]) -> Shape:
    """The shape of the first latent in these query and key subspaces."""
    q, k = seen.q @ U, seen.k @ V
    kinds = sorted(set(seen.labels))
    own = torch.tensor([kinds.index(label) for label in seen.labels])
    centres = torch.stack([q[own == i].mean(0) for i in range(len(kinds))])
    nearest = float((torch.cdist(_unit(k), _unit(centres)).argmin(1) == own).double().mean())
    sides = [_image(seen.z, side) for side in (q, k)]
    agree = float((_unit(q) * _unit(k)).sum(1).mean())
    return Shape(nearest, min(linear for linear, _ in sides), min(even for _, even in sides), agree)


def _image(z: Tensor, x: Tensor) -> tuple[float, float]:
    """How much of x is linear in z, and how even the axes of that map are."""
    fitted = torch.linalg.lstsq(z, x).solution
    linear = 1 - float((x - z @ fitted).square().sum() / (x - x.mean(0)).square().sum())
    axes = torch.linalg.svdvals(fitted)
    return linear, float(axes[-1] / axes[0])


def _unit(x: Tensor) -> Tensor:
    return torch.nn.functional.normalize(x, dim=-1)


_runs: dict[str, Callable[[Job], Outcome]] = {
    "cc-fig3": partial(subspaces, latents="discrete"),
    "cc-fig12": partial(subspaces, latents="gaussian"),
}
RUNS: dict[str, Attempt] = _runs
