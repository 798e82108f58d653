"""How do features lie that nothing attends to? Toys without a head: antipodes, and isotropy."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from keyhole.figures.svf import Matrix, matrices_figure
from keyhole.lab.svf.alignment import DEAD
from keyhole.stats import told
from keyhole_papers.job import Attempt, Job
from keyhole_papers.results import Numbers, Verdict
from keyhole_papers.svf.recipes import PRINTED
from keyhole_papers.svf.scores import MOST, SEEDS_NOTE, counted, share
from keyhole_papers.svf.toys import NO_HEAD, P, cells, trained
from keyhole_papers.told import Experiment, Told

_PARTNER = -0.95  # cosine below which two features are antipodal
EVEN = 0.05  # spread of the eigenvalues of W W^T, against their mean, that counts as isotropic


def cosines(W: Float[Tensor, "D N"]) -> Float[Tensor, "N N"]:
    """How do features lie to each other? NaN for those that have vanished."""
    norms = W.double().norm(dim=0)
    unit = torch.where(norms <= DEAD * norms.max(), float("nan"), W.double() / norms)
    return unit.T @ unit


def spread(W: Float[Tensor, "D N"], free: int | None = None) -> float:
    """(largest - smallest) / mean of the eigenvalues of W W^T, or of the `free` largest: 0 if they are isotropic."""
    values = torch.linalg.svdvals(W.double())[:free].square()
    return float((values.max() - values.min()) / values.mean())


@dataclass(frozen=True)
class Alone:
    """Toys with one feature probability, seed by seed."""

    partners: list[float]  # features that have an antipode
    spreads: list[float]  # of the eigenvalues of W W^T
    good: list[bool]  # does it show what the figure claims?


@dataclass(frozen=True)
class NoHead:
    """Toys without a head, by feature probability."""

    claim: str
    by_p: Mapping[float, Alone]
    W: Float[Tensor, "D N"]  # of the first seed with the first probability


def measure(job: Job, isotropy: bool) -> NoHead:
    """Without a head, do features pair up as antipodes (Figure 1a), and are they isotropic (Figure 17a)?"""
    toys = trained(job, cells(job, PRINTED, {p: {"p": p, **NO_HEAD} for p in (*P[1:4], 0.05)}))
    by_p = {}
    for p, own in toys.items():
        partners = [float((cosines(model.W).nan_to_num(0.0).amin(1) < _PARTNER).sum()) for model in own]
        spreads = [spread(model.W) for model in own]
        good = [value < EVEN for value in spreads] if isotropy else [count == own[0].settings.N for count in partners]
        by_p[p] = Alone(partners, spreads, good)
    return NoHead("isotropic" if isotropy else "all paired", by_p, next(iter(toys.values()))[0].W)


def judge(found: NoHead) -> Verdict:
    """As published at the first probability; partly if only rarer features show it."""
    shares = [share(one.good) for one in found.by_p.values()]
    return "reproduced" if shares[0] >= MOST else "partly" if max(shares) >= MOST else "not"


def _tell(found: NoHead) -> Told:
    lines, numbers = [], Numbers()
    for p, one in found.by_p.items():
        numbers |= {f"p {p:g} partners": one.partners, f"p {p:g} spread": one.spreads}
        lines.append(
            f"p = {p:g}: {told(one.partners, 1)} of {found.W.shape[1]} features have an antipode; eigenvalues of W W^T "
            f"spread by {told(one.spreads)} of their mean; {found.claim} in {counted(one.good)}."
        )
    note = (
        f"Isotropic: spread below {EVEN:.0%}; antipodes: cosine below {_PARTNER}. The verdict asks for it at p = .52 "
        "in nine of ten seeds; if only rarer features show it, it is partly. 10,000 steps; without a head, a sum and a "
        f"mean of errors train alike. {SEEDS_NOTE}"
    )
    return Told("\n".join(lines), numbers, note)


def _draw(found: NoHead) -> Mapping[str, Figure]:
    return {"geometry": gram_figure(found.W, "Features without a head, p = 0.52, first seed")}


def gram_figure(W: Float[Tensor, "D N"], title: str) -> Figure:
    """Are features antipodal, and are they isotropic? Their cosines, and W W^T."""
    gram = W.double() @ W.double().T
    maps = [
        Matrix("Cosines of features", cosines(W), x="feature"),
        Matrix(r"$W W^T$ / mean eigenvalue", gram / float(gram.diagonal().mean()), x="dimension", y="dimension"),
    ]
    return matrices_figure(maps, label="cosine, entry", title=title)


RUNS: dict[str, Attempt] = {
    id: Experiment(partial(measure, isotropy=isotropy), judge, _tell, _draw)
    for id, isotropy in (("svf-fig1a", False), ("svf-fig17a", True))
}
