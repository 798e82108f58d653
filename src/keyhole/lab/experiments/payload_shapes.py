"""Do queries and keys of a payload head take the shape of their latent? Cubes of signs, balls of Gaussians."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from keyhole.contrast.subspace import random_bases
from keyhole.figures import pca_figure, save
from keyhole.lab.experiments.payload import SEEDS, are_trained, feature_of, heads_of, told_training, untrained
from keyhole.lab.intervals import told
from keyhole.lab.job import Experiment, Job
from keyhole.lab.outcome import Outcome, Verdict
from keyhole.lab.payload import Payload, activations, sample
from keyhole.lab.payload_task import Latents, purpose_seed

_NEAREST, _LINEAR, _EVEN, _AGREE = 0.95, 0.8, 0.7, 0.8
_SPREAD = "What blurs the shape is the other latent and, in keys, the payload: subspaces are not quite orthogonal."


@dataclass(frozen=True)
class Shape:
    """How queries and right keys lie in a subspace; the worse of both sides where a measure has two."""

    nearest: float  # keys nearest to the queries of their own corner (signs of the latent)
    linear: float  # share of the variance that the latent explains
    even: float  # shortest against longest axis of the latent's image; 1: a regular cube or ball
    agree: float  # cosine of a query with its key


def subspaces(job: Job, latents: Latents) -> Outcome:
    """Do queries and keys show the shape of their latent in its subspace, and in the same places?"""
    setting = (3, 5, 16)
    heads = heads_of(job, [setting], latents, seeds=5)[setting]
    path = job.folder / "pca.png"
    shapes = [_in_feature(job, head, path if i == 0 else None) for i, head in enumerate(heads)]
    controls = {
        "untrained": [_in_feature(job, head) for head in untrained(heads)],
        "random": [_in_random(job, head) for head in heads],
    }
    numbers = _columns(shapes) | {
        f"{kind} {name}": values for kind, own in controls.items() for name, values in _columns(own).items()
    }
    solid = "cube" if latents == "discrete" else "ball"
    lines = [f"Trained heads: {_told(shapes, latents, solid)}."]
    lines += [f"Control, {kind}: {_told(own, latents, solid)}." for kind, own in controls.items()]
    corners = f"{_NEAREST:.2f} of keys at their corner, " if latents == "discrete" else ""
    note = (
        f"Of queries and keys the worse one is told. The verdict asks for {corners}{_LINEAR} of the variance "
        f"explained, axes of {_EVEN} and cosines of {_AGREE}, each as the mean of the seeds; without the last two it "
        "is partly. Controls: the same subspaces of untrained heads; one random subspace for queries and keys of "
        f"trained heads. {_SPREAD} {SEEDS} {told_training(job, heads)}"
    )
    return Outcome(judged(heads, shapes, latents), "\n".join(lines), numbers, (path,), note)


def judged(heads: Sequence[Payload], shapes: Sequence[Shape], latents: Latents) -> Verdict:
    """Do trained heads show the shape?"""
    mean = {name: sum(values) / len(values) for name, values in _columns(shapes).items()}
    placed = mean["linear"] >= _LINEAR and (latents == "gaussian" or mean["nearest"] >= _NEAREST)
    if not placed or not are_trained(heads):
        return "not"
    return "reproduced" if mean["even"] >= _EVEN and mean["agree"] >= _AGREE else "partly"


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
    return shape(job, head, feature.U[:, :r], feature.V[:, :r], path)


def _in_random(job: Job, head: Payload) -> Shape:
    r, d_head = head.settings.r1, head.settings.d_head
    (basis,) = random_bases(d_head, r, 1, purpose_seed(job.seed + head.settings.seed, "bases"))
    return shape(job, head, basis, basis)


def shape(job: Job, head: Payload, U: Tensor, V: Tensor, path: Path | None = None) -> Shape:
    """The shape of the first latent in these query and key subspaces, on fresh samples."""
    batch = sample(head, 500 if job.quick else 4000, seed=job.seed)
    seen, row = activations(head, batch), torch.arange(len(batch.star))
    z = batch.z1[row, batch.star].double()
    q, k = seen.q.double() @ U, seen.k[row, batch.star].double() @ V
    labels = ["".join("+" if x > 0 else "-" for x in one) for one in z.tolist()]
    if path is not None:
        title = f"Queries and right keys in the subspace of the first latent, {head.settings.latents}"
        save(pca_figure(q, k, labels, labels, title=title, points=1000), path)
    kinds = sorted(set(labels))
    own = torch.tensor([kinds.index(label) for label in labels])
    centres = torch.stack([q[own == i].mean(0) for i in range(len(kinds))])
    nearest = float((torch.cdist(_unit(k), _unit(centres)).argmin(1) == own).double().mean())
    sides = [_image(z, side) for side in (q, k)]
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
RUNS: dict[str, Experiment] = _runs
