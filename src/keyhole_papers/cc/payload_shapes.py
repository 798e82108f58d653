"""Do queries and keys of a payload head take the shape of their latent? Cubes of signs, balls of Gaussians."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from keyhole.features.contrast.clouds import pca_figure
from keyhole.features.contrast.subspace import random_bases
from keyhole.lab.payload import Payload, activations, sample
from keyhole.lab.payload_task import Latents, purpose_seed
from keyhole_papers.cc import payload
from keyhole_papers.cc.payload import Setting
from keyhole_papers.experiment import AS_PRINTED, Attempt, Experiment, Job
from keyhole_papers.finding import Findings, of_part, rows_of

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

    def within(self, U: Float[Tensor, "d_head rank"], V: Float[Tensor, "d_head rank"]) -> "Points":
        """The same points in a subspace of queries and one of keys."""
        return Points(self.q @ U, self.k @ V, self.z, self.labels)


@dataclass(frozen=True)
class Shapes:
    """The shape of the first latent in its subspace, by head, beside two controls; and the first head's points."""

    latents: Latents
    heads: Sequence[Payload]
    shapes: Sequence[Shape]
    untrained: Sequence[Shape]
    limits: Sequence[Shape]  # what nearly all random subspaces are below
    cloud: Points

    @property
    def claimed(self) -> list[str]:
        """The measures that the verdict asks for."""
        return [name for name in _BOUNDS if name != "nearest" or self.latents == "discrete"]

    def beyond(self, name: str) -> bool:
        """Does every head's measure exceed what nearly all random subspaces of it show?"""
        return all(
            getattr(shape, name) > getattr(most, name) for shape, most in zip(self.shapes, self.limits, strict=True)
        )


def measure(job: Job, latents: Latents) -> Shapes:
    """Shapes in the subspace of the first latent, in that of untrained heads and in random ones."""
    ((_, heads),) = payload.heads_of(job, [Setting(3, 5, 16)], latents, seeds=5).items()
    clouds = [in_feature(job, head) for head in heads]
    raw = [shape(in_feature(job, head)) for head in payload.untrained(heads)]
    limits = [limit(in_random(job, head)) for head in heads]
    return Shapes(latents, heads, [shape(points) for points in clouds], raw, limits, cloud=clouds[0])


def in_feature(job: Job, head: Payload) -> Points:
    """Fresh samples in the subspace of the first latent; of its true rank, as in the paper: `ranks` tells others."""
    feature, r = payload.feature_of(job, head, "z1"), head.settings.r1
    return points(job, head).within(feature.U[:, :r], feature.V[:, :r])


def in_random(job: Job, head: Payload) -> list[Shape]:
    """The shapes in random subspaces of the latent's rank, each one for queries and keys alike."""
    settings, points_of_head = head.settings, points(job, head)
    bases = random_bases(settings.d_head, settings.r1, _DRAWS, purpose_seed(job.seed + settings.seed, "bases"))
    return [shape(points_of_head.within(basis, basis)) for basis in bases]


def points(job: Job, head: Payload) -> Points:
    """Fresh samples of a head."""
    batch = sample(head, 500 if job.quick else 4000, seed=job.seed)
    activity, row = activations(head, batch), torch.arange(len(batch.star))
    z = batch.z1[row, batch.star].double()
    labels = ["".join("+" if x > 0 else "-" for x in latent) for latent in z.tolist()]
    return Points(activity.q.double(), activity.k[row, batch.star].double(), z, labels)


def shape(points: Points) -> Shape:
    """The shape that these points have."""
    kinds = sorted(set(points.labels))
    codes = torch.tensor([kinds.index(label) for label in points.labels])
    centres = torch.stack([points.q[codes == i].mean(0) for i in range(len(kinds))])
    nearest = float((torch.cdist(_unit(points.k), _unit(centres)).argmin(1) == codes).double().mean())
    maps = [torch.linalg.lstsq(points.z, side).solution for side in (points.q, points.k)]
    linear = [_explained(side, points.z @ fitted) for side, fitted in zip((points.q, points.k), maps, strict=True)]
    axes = [torch.linalg.svdvals(fitted) for fitted in maps]
    agree = float((_unit(points.q) * _unit(points.k)).sum(1).mean())
    return Shape(nearest, min(linear), min(float(image[-1] / image[0]) for image in axes), agree)


def _explained(x: Tensor, fitted: Tensor) -> float:
    return 1 - float((x - fitted).square().sum() / (x - x.mean(0)).square().sum())


def _unit(x: Tensor) -> Tensor:
    return torch.nn.functional.normalize(x, dim=-1)


def limit(random: Sequence[Shape]) -> Shape:
    """What 95 % of these shapes are below, measure by measure."""
    columns = {name: torch.tensor(values, dtype=torch.float64) for name, values in _columns(random).items()}
    return Shape(**{name: float(values.quantile(_QUANTILE)) for name, values in columns.items()})


def shapes(record: Shapes) -> Findings:
    """Do queries and keys of trained heads show the shape of their latent, more than in random subspaces?"""
    columns = _columns(record.shapes)
    claims = {name: _claim(name, columns[name], record.beyond(name)) for name in record.claimed}
    rows = rows_of(columns, claims)
    rows += of_part("untrained", *rows_of(_columns(record.untrained)), joint=" ")
    rows += of_part(f"random {_QUANTILE:.0%}", *rows_of(_columns(record.limits)), joint=" ")
    needed = [name for name in record.claimed if name in _NEEDED]
    remark = (
        "Nearest: keys at their own corner (signs of the latent); linear: variance explained by the latent; even: "
        "shortest against longest axis (1: a regular cube or ball); agree: cosine of a query with its key. Of queries "
        f"and keys the worse is reported. Random: {_QUANTILE:.0%} of {_DRAWS} subspaces of the same rank, each one for "
        f"queries and keys alike, are below. Nothing without {' and '.join(needed)}, partly without another. {_SPREAD}"
    )
    first, full = (all(claims[name][1] for name in names) for names in (needed, record.claimed))
    return payload.of_heads(rows, record.heads, first=first, full=full, remark=remark)


def _claim(name: str, values: Sequence[float], beyond: bool) -> tuple[str, bool]:
    least = _BOUNDS[name]
    claim = f"{least} in the mean, and in every seed more than in random subspaces"
    return claim, beyond and sum(values) / len(values) >= least


def _columns(shapes: Sequence[Shape]) -> dict[str, list[float]]:
    return {name: [getattr(shape, name) for shape in shapes] for name in _BOUNDS}


def draw(record: Shapes) -> dict[str, Figure]:
    """The first head's queries and keys in their subspaces."""
    title = f"Queries and right keys in the subspace of the first latent, {record.latents}"
    points = record.cloud
    return {"pca": pca_figure(points.q, points.k, points.labels, points.labels, title=title, points=1000)}


RUNS: dict[str, Attempt] = {
    "cc-fig3": Experiment(partial(measure, latents="discrete"), shapes, draw, heeds=AS_PRINTED),
    "cc-fig12": Experiment(partial(measure, latents="gaussian"), shapes, draw, heeds=AS_PRINTED),
}
