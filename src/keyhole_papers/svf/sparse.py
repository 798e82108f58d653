"""Does attention of trained toys split sparsely if attended pairs are present, and only then? Single decompositions."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from keyhole.figures.svf import strengths_figure, terms_figure
from keyhole.lab.svf.alignment import alignment
from keyhole.lab.svf.toy import SVF, sample
from keyhole.qk.sparsity import n_recon_each, sparsity_each
from keyhole.stats import told
from keyhole_papers.job import Attempt, Job
from keyhole_papers.results import Numbers, Verdict
from keyhole_papers.svf.inputs import INPUTS, MATTERS, inputs, samples, sides
from keyhole_papers.svf.recipes import MEAN, PRINTED, Recipe, by_recipe
from keyhole_papers.svf.scores import HALF, SEEDS_NOTE, by_field, counted, graded, share
from keyhole_papers.svf.toys import alike
from keyhole_papers.told import Told

_ONE = 0.9  # share of all terms' size from which one term is the only one left
_SPREAD = 2.0  # S(v) of at least so many times 1/n is not sparse
_FOLLOWS, _FOLLOWS_RELATIVE = 0.5, 0.95  # correlations of terms with strengths of features


@dataclass(frozen=True)
class Terms:
    """Terms of relative attention over inputs of one kind, as means over these: how large, and how many?"""

    shares: Float[Tensor, "channel"]  # of each term in the size of all
    S: float
    largest: float  # share
    size: float  # of all terms together
    n_recon: float  # of positive relative attention
    n_recon_95: float  # for 95 % of it


def terms_of(job: Job, model: SVF, present: int) -> Terms:
    """How does relative attention split with pair (0, 4) present, or with none?"""
    f = inputs(model.settings, present, samples(job), model.settings.seed, first=True)
    a, b = sides(model, alignment(model), f)
    terms = a * b
    size = terms.abs().sum(-1, keepdim=True)
    parts = (terms / size).abs()
    return Terms(
        shares=parts.nanmean(0),
        S=float(sparsity_each(terms).nanmean()),
        largest=float(parts.amax(-1).nanmean()),
        size=float(size.mean()),
        n_recon=_n_recon(terms, 1.0),
        n_recon_95=_n_recon(terms, 0.95),
    )


def _n_recon(terms: Float[Tensor, "n channel"], tolerance: float) -> float:
    """The mean over samples whose relative attention is positive: how many terms make it up?"""
    return float(n_recon_each(terms, terms.double().sum(-1), tolerance).nanmean())


@dataclass(frozen=True)
class Ends:
    """One toy early and late in training, with one pair present and with none."""

    early: Terms
    late: Terms
    early_none: Terms
    late_none: Terms

    @property
    def left(self) -> bool:
        """With a pair present, does a single term come to be left?"""
        return self.late.largest >= _ONE and self.late.S < self.early.S / 2

    @property
    def matter(self) -> bool:
        """With none present, are the late terms of a size that matters?"""
        return self.late_none.size >= MATTERS * self.late.size

    @property
    def spread(self) -> bool:
        """With none present, is relative attention neither negligible nor sparse, early and late?"""
        least = 1 / len(self.late.shares)
        return self.matter and min(self.early_none.S, self.late_none.S) >= _SPREAD * least


@dataclass(frozen=True)
class Decomposed:
    """The toys of one recipe, and which of their inputs are shown: those with a pair present, or with none."""

    present: bool
    early_step: int
    late_step: int
    ends: Sequence[Ends]  # by seed

    @property
    def shown(self) -> dict[str, list[Terms]]:
        """Early and late in training, by seed."""
        names = ("early", "late") if self.present else ("early_none", "late_none")
        return {name[:5].rstrip("_"): [getattr(one, name) for one in self.ends] for name in names}


def measure_terms(job: Job, recipe: Recipe, present: bool) -> Decomposed:
    """With one pair present, or with none, over how many terms is relative attention spread, early and late?"""
    models = alike(job, recipe)
    early = models[0].snapshots[1][0]
    ends = [Ends(*(terms_of(job, at, n) for n in (1, 0) for at in (model.at(early), model))) for model in models]
    return Decomposed(present, early, models[0].settings.steps, ends)


def judge_terms(found: Decomposed) -> Verdict:
    """Sparse with a pair, and spread without one; if what is left there is negligible, its sparsity tells nothing."""
    left = share([one.left for one in found.ends])
    if found.present:
        return graded([left])
    if left < HALF:
        return "not"  # a head that has learnt nothing is spread in any case
    if share([one.matter for one in found.ends]) < HALF:
        return "untold"
    return graded([share([one.left and one.spread for one in found.ends])])


_NONE_NOTE = (
    "Where terms are smaller than that, they are remains of training, and their sparsity tells nothing. The "
    "verdict also asks that a pair, once present, makes attention sparse: without that nothing was learnt. "
)


def _tell_terms(found: Decomposed) -> Told:
    ends, note = found.ends, f"{INPUTS} {SEEDS_NOTE}"
    shown = {when: by_field(terms, "shares") for when, terms in found.shown.items()}
    numbers: Numbers = {f"{when} {name}": own for when, terms in shown.items() for name, own in terms.items()}
    left = counted([one.left for one in ends])
    claim = f"in {left} seeds a single term is left (at least {_ONE} of all terms' size, and S(v) has halved)."
    if not found.present:
        ratio = [one.late_none.size / one.late.size for one in ends]
        claim = (
            f"late in training, all terms together are {min(ratio):.2g} to {max(ratio):.2g} of their size with a pair "
            f"present; that is {MATTERS:g} or more in {counted([one.matter for one in ends])} seeds, and there S(v) is "
            f"at least {_SPREAD:g}/n, early and late, in {sum(one.spread for one in ends)}. With a pair present a "
            f"single term is left in {left}."
        )
        numbers, note = numbers | {"late size against one pair": ratio}, _NONE_NOTE + note
    said = {name: " and ".join(told(terms[name]) for terms in shown.values()) for name in shown["late"]}
    sizes = " and ".join(f"{sum(terms['size']) / len(ends):.2g}" for terms in shown.values())
    measured = (
        f"{claim} Early and late: S(v) {said['S']} (1/n = {1 / len(ends[0].late.shares):.2f}); largest term's share "
        f"{said['largest']}; mean size of all terms together {sizes}; N_recon of positive relative attention "
        f"{said['n_recon']}, for 95 % of it {said['n_recon_95']}."
    )
    return Told(measured, numbers, note)


def _draw_terms(found: Decomposed, said: str) -> Figure:
    titles = f"Early, after {found.early_step} steps", f"Late, after {found.late_step:,} steps"
    shares = [torch.stack([one.shares for one in terms]) for terms in found.shown.values()]
    what = "only pair (0, 4)" if found.present else "no attended pair"
    title = f"Terms of relative attention with {what} present ({said})"
    return terms_figure(dict(zip(titles, shares, strict=True)), title=title)


@dataclass(frozen=True)
class Strengths:
    """Terms of the pairs' channels of one toy, and the strengths that they should follow."""

    T: list[float]
    terms: Float[Tensor, "n pair"]
    products: Float[Tensor, "n pair"]  # in query and key
    beyond: Float[Tensor, "n pair"]  # in query, and in key beyond the other keys


@dataclass(frozen=True)
class Followed:
    """The toys of one recipe, seed by seed: the smallest correlation of a pair's terms with strengths."""

    first: Strengths
    printed: list[float]  # with the printed product
    relative: list[float]  # with the key's strength beyond the others

    @property
    def good(self) -> list[bool]:
        """In which seeds do terms follow both?"""
        both = zip(self.printed, self.relative, strict=True)
        return [p >= _FOLLOWS and r >= _FOLLOWS_RELATIVE for p, r in both]


def measure_strengths(job: Job, recipe: Recipe) -> Followed:
    """Does the term of each singular pair follow the product of its features' strengths?"""
    found = [_strengths(job, model) for model in alike(job, recipe)]
    printed, relative = (
        [_least(one.terms, getattr(one, strength)) for one in found] for strength in ("products", "beyond")
    )
    return Followed(found[0], printed, relative)


def _strengths(job: Job, model: SVF) -> Strengths:
    found, f = alignment(model), sample(model.settings, samples(job), model.settings.seed).double()
    a, b = sides(model, found, f)
    query, key = (torch.tensor([pair[side] for pair in found.pairs]) for side in (0, 1))
    terms = (a * b)[:, found.by_assignment.channel.clamp_min(0)]
    beyond = f[:, -1, query] * (f[:, 0, key] - f[:, 1:, key].mean(1))
    return Strengths(found.T.tolist(), terms, f[:, -1, query] * f[:, 0, key], beyond)


def _least(terms: Float[Tensor, "n pair"], strength: Float[Tensor, "n pair"]) -> float:
    return min(float(torch.corrcoef(torch.stack(pair))[0, 1]) for pair in zip(terms.T, strength.T, strict=True))


def _judge_strengths(found: Followed) -> Verdict:
    return graded([share(found.good)])


def _tell_strengths(found: Followed) -> Told:
    measured = (
        f"correlation over {len(found.first.terms)} token pairs, smallest of the four channels: {told(found.printed)} "
        f"with the product of strengths in query and key, {told(found.relative)} with the key's strength beyond the "
        f"mean of the other keys; at least {_FOLLOWS} and {_FOLLOWS_RELATIVE} in {counted(found.good)} seeds."
    )
    note = (
        "Relative attention compares a key with the others of its context, so the printed product can explain only a "
        f"part. Once aligned it follows from algebra: the term is sigma |w_i| |w_j| f_i f_j. {SEEDS_NOTE}"
    )
    return Told(measured, {"correlation": found.printed, "relative": found.relative}, note)


def _draw_strengths(found: Followed, said: str) -> Figure:
    first, title = found.first, f"Terms of relative attention and strengths of features, first seed ({said})"
    return strengths_figure(first.beyond, first.terms, first.T, title=title)


_RECIPES = (PRINTED, MEAN)
RUNS: dict[str, Attempt] = {
    id: by_recipe(_RECIPES, partial(measure_terms, present=present), judge_terms, _tell_terms, _draw_terms, "terms")
    for id, present in (("svf-fig4", True), ("svf-fig19", False))
}
RUNS["svf-fig5"] = by_recipe(
    _RECIPES, measure_strengths, _judge_strengths, _tell_strengths, _draw_strengths, "strengths"
)
