"""How do features lie that are attended to? One pair and twenty: apart from others, along singular vectors, even."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from keyhole.figures.svf import Matrix, matrices_figure
from keyhole.lab.svf.alignment import DEAD, Alignment, alignment
from keyhole.lab.svf.toy import SVF
from keyhole.stats import told
from keyhole_papers.job import Attempt, Job
from keyhole_papers.results import Verdict
from keyhole_papers.svf.geometry import EVEN, cosines, gram_figure, spread
from keyhole_papers.svf.recipes import HEAVY, MEAN, PRINTED, PRINTED_LONG, Recipe, Tried, by_recipe
from keyhole_papers.svf.scores import MOST, SEEDS_NOTE, by_field, counted, graded, share, worst
from keyhole_papers.svf.toys import ONE_PAIR, TWENTY_PAIRS, alike
from keyhole_papers.told import Experiment, Told

Kind = Literal["apart", "align", "all", "even"]  # what a figure of attended pairs claims

_APART = 0.05  # |cos| below which two directions count as orthogonal
_ALONG = 0.99  # |cos| from which one counts as the other
_STRAY = math.sqrt(1 - _ALONG**2)  # |cos| that another feature may have with a vector so far from its own
_NEAR = 0.1  # |W W^T / mean - I|_2 that counts as close to isotropic
_OFF = 0.05  # |gain / T - 1| that counts as the target met


@dataclass(frozen=True)
class Geometry:
    """How one trained toy lies."""

    apart: float  # largest |cos| of an attended feature with any other one; NaN if one is dead
    along: float  # smallest |cos| of an attended feature with its singular vector; 0 if a pair has the wrong sign
    stray: float  # largest |cos| of any other feature with a pair's singular vectors
    rest: float  # largest singular value without a pair, against the smallest with one
    follow: float  # correlation of the pairs' singular values with T; NaN if there is one pair
    off: float  # largest |gain / T - 1| of a pair
    uneven: float  # |W W^T / mean - I|_2
    others: float  # spread of the eigenvalues of W W^T over the features that nothing attends to
    dead: float  # features that vanished

    def shows(self, kind: Kind) -> bool:
        """Is this what the figure claims?"""
        return {
            "apart": self.apart < _APART,
            "align": self.along >= _ALONG and self.rest < _APART and self.off < _OFF and not self.follow <= _ALONG,
            "all": self.along >= _ALONG and self.stray < _STRAY,
            "even": self.uneven < _NEAR and self.others < EVEN,
        }[kind]


def geometry(model: SVF) -> Geometry:
    """Where do features and singular vectors lie? Features that vanished are left out."""
    found = alignment(model)
    attended = sorted({feature for i, j, _ in found.pairs for feature in (i, j)})
    others = [feature for feature in range(model.W.shape[1]) if feature not in attended]
    between = cosines(model.W).nan_to_num(0.0).abs().fill_diagonal_(0.0)
    n, S, matched = len(found.pairs), found.S, found.by_assignment
    taken = torch.where(matched.channel >= 0, S[matched.channel.clamp_min(0)], float("nan"))
    return Geometry(
        apart=math.nan if set(attended) & set(found.dead) else float(between[attended].max()),
        along=worst(matched),
        stray=_stray(found),
        rest=float(S[n] / S[n - 1]) if len(S) > n else 0.0,
        follow=float(torch.corrcoef(torch.stack([found.T, taken]))[0, 1]) if n > 1 else math.nan,
        off=float((matched.gain / found.T - 1).abs().max()),
        uneven=anisotropy(model.W),
        others=spread(model.W[:, others], len(model.W) - len(attended)),  # in directions that the attended leave free
        dead=float(len(found.dead)),
    )


def anisotropy(W: Float[Tensor, "D N"]) -> float:
    """|W W^T / mean eigenvalue - I|_2."""
    values = torch.linalg.svdvals(W.double()).square()
    return float((values / values.mean() - 1).abs().max())


def _stray(found: Alignment) -> float:
    most = [0.0]
    for (i, j, _), k in zip(found.pairs, found.by_assignment.channel.tolist(), strict=True):
        for own, side in ((i, found.cu), (j, found.cv)):
            others = side[:, max(k, 0)].nan_to_num(0.0).abs()
            others[own] = 0.0
            most.append(float(others.max()))
    return max(most)


@dataclass(frozen=True)
class Paired:
    """Toys with attended pairs, of one recipe."""

    kind: Kind
    seeds: Sequence[Geometry]
    spectrum: Float[Tensor, "seed channel"]
    first: SVF

    @property
    def good(self) -> list[bool]:
        """Which seeds show what the figure claims?"""
        return [one.shows(self.kind) for one in self.seeds]


def measure(job: Job, recipe: Recipe, kind: Kind, many: bool) -> Paired:
    """With attended pairs, are their features orthogonal to others, along singular vectors, along these alone?"""
    models = alike(job, recipe, TWENTY_PAIRS if many else ONE_PAIR, few=many)
    spectrum = torch.stack([alignment(model).S for model in models])
    return Paired(kind, [geometry(model) for model in models], spectrum, models[0])


def judge(found: Paired) -> Verdict:
    """What the seeds of one recipe say."""
    verdict = graded([share(found.good)])
    if found.kind == "even" and verdict == "not" and share([one.others < EVEN for one in found.seeds]) >= MOST:
        return "partly"  # attended features are longer, but the paper's point, that the others are even, holds
    return verdict


_CLAIMS: dict[Kind, str] = {
    "apart": "Attended features are orthogonal to all others",
    "align": "Pairs lie along one singular pair each and the spectrum is theirs",
    "all": "Singular vectors of pairs meet their features and no other",
    "even": "W W^T is close to isotropic, as is its part of features that are not attended to,",
}
_NOTE = (
    f"Orthogonal: |cos| below {_APART}; along: at least {_ALONG}, which leaves {_STRAY:.2f} for others; gains "
    f"within {_OFF:.0%} of T; close to isotropic: below {_NEAR}, and {EVEN:.0%} over features that are not "
    "attended to (the theorem on approximate alignment, tau < 1, would ask for .207 on both sides). Features "
    f"shorter than {DEAD} of the longest are not represented and left out. {SEEDS_NOTE}"
)


def _tell(found: Paired) -> Told:
    numbers = by_field(found.seeds)
    said = {name: told(values) for name, values in numbers.items()}
    text = (
        f"{_CLAIMS[found.kind]} in {counted(found.good)} seeds. Attended features: |cos| with "
        f"another at most {said['apart']}, with their singular vectors at least {said['along']}; of other features "
        f"with these at most {said['stray']}. Largest singular value beyond the pairs against the smallest of them "
        f"{said['rest']}; gains off T by at most {said['off']}; |W W^T / mean - I| = {said['uneven']}, eigenvalues "
        f"over features that are not attended to spread by {said['others']}; features not represented {said['dead']}."
    )
    if len(found.first.settings.pairs) > 1:
        text += f" The pairs' singular values against T: correlation {said['follow']}."
    else:
        del numbers["follow"]  # of one pair there is none
    return Told(text, numbers, _NOTE)


def _draw(found: Paired, said: str) -> Figure:
    first = alignment(found.first)
    n = len(first.pairs)
    count = f"{n} attended pair{'s' * (n > 1)}, first seed ({said})"
    if found.kind == "even":
        return gram_figure(found.first.W, f"Features with {count}")
    maps = [Matrix("Cosines of features", cosines(found.first.W), x="feature")] if found.kind == "apart" else []
    for side, letter, cosine in ((0, "u", first.cu), (1, "v", first.cv)):
        if found.kind == "align":  # only the features of interest, as in the figure
            own = torch.tensor([pair[side] for pair in first.pairs])
            maps.append(Matrix(f"Attended features, {letter}", cosine[own], x=f"singular vector {letter}", y="pair"))
        else:
            maps.append(Matrix(f"All features, {letter}", cosine, x=f"singular vector {letter}"))
    return matrices_figure(maps, spectrum=found.spectrum, title=f"Features and singular vectors, {count}")


def _experiment(kind: Kind, many: bool) -> Experiment[Tried[Paired]]:
    recipes = (PRINTED, PRINTED_LONG, HEAVY if many else MEAN)
    return by_recipe(recipes, partial(measure, kind=kind, many=many), judge, _tell, _draw, "geometry")


RUNS: dict[str, Attempt] = {
    "svf-fig1b": _experiment("apart", many=False),
    "svf-fig1c": _experiment("apart", many=True),
    "svf-fig2a": _experiment("align", many=False),
    "svf-fig2b": _experiment("align", many=True),
    "svf-fig9a": _experiment("all", many=False),
    "svf-fig9b": _experiment("all", many=True),
    "svf-fig17b": _experiment("even", many=False),
}
