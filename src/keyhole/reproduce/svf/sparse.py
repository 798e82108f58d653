"""Does attention of trained toys split sparsely if attended pairs are present, and only then? Single decompositions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from keyhole.figures import save
from keyhole.figures.svf import strengths_figure, terms_figure
from keyhole.lab.svf.alignment import alignment
from keyhole.lab.svf.toy import SVF, sample
from keyhole.qk.sparsity import n_recon
from keyhole.reproduce.job import Attempt, Job, Numbers
from keyhole.reproduce.outcome import Outcome, Verdict
from keyhole.reproduce.svf.inputs import INPUTS, MATTERS, inputs, samples, sides, sparsities
from keyhole.reproduce.svf.recipes import MEAN, PRINTED, Recipe, by_recipe
from keyhole.reproduce.svf.scores import (
    HALF,
    SEEDS_NOTE,
    counted,
    graded,
    share,
)
from keyhole.reproduce.svf.toys import four_pairs, trained
from keyhole.stats import told

_ONE = 0.9  # share of all terms' size from which one term is the only one left
_SPREAD = 2.0  # S(v) of at least so many times 1/n is not sparse
_FOLLOWS, _FOLLOWS_RELATIVE = 0.5, 0.95  # correlations of terms with strengths of features


# -- terms ---------------------------------------------------------------------------------------------------------


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
        S=float(sparsities(terms).nanmean()),
        largest=float(parts.amax(-1).nanmean()),
        size=float(size.mean()),
        n_recon=_n_recon(terms, 1.0),
        n_recon_95=_n_recon(terms, 0.95),
    )


def _n_recon(terms: Float[Tensor, "n channel"], tolerance: float) -> float:
    """The mean over samples whose relative attention is positive: how many terms make it up?"""
    counts = [count for row in terms if (count := n_recon(row, tolerance)) is not None]
    return sum(counts) / len(counts) if counts else math.nan


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


def present_alone(job: Job) -> Outcome:
    """With one pair present, over how many terms is relative attention spread, early and late in training?"""
    return by_recipe(job, (PRINTED, MEAN), _present_alone)


def _present_alone(job: Job, recipe: Recipe) -> Outcome:
    models, ends = _ends(job, recipe)
    early, late = [one.early for one in ends], [one.late for one in ends]
    good = [one.left for one in ends]
    claim = f"a single term is left (at least {_ONE} of all terms' size, and S(v) has halved)"
    measured = f"in {counted(good)} seeds {claim}. {_told(early, late)}"
    figure = _figure(models, early, late, f"only pair (0, 4) present ({recipe.said})")
    path = save(figure, job.folder / f"terms-{recipe.file}.png")
    note = f"{INPUTS} {SEEDS_NOTE}"
    return Outcome(graded([share(good)[0]]), measured, _numbers(early, late), (path,), note)


def none_present(job: Job) -> Outcome:
    """Without attended pairs, is relative attention not sparse, where it is of a size that matters?"""
    return by_recipe(job, (PRINTED, MEAN), _none_present)


def _none_present(job: Job, recipe: Recipe) -> Outcome:
    models, ends = _ends(job, recipe)
    early, late = [one.early_none for one in ends], [one.late_none for one in ends]
    ratio = [one.late_none.size / one.late.size for one in ends]
    measured = (
        f"late in training, all terms together are {min(ratio):.2g} to {max(ratio):.2g} of their size with a pair "
        f"present; that is {MATTERS:g} or more in {counted([one.matter for one in ends])} seeds, and there S(v) is at "
        f"least {_SPREAD:g}/n, early and late, in {sum(one.spread for one in ends)}. With a pair present a single term "
        f"is left in {counted([one.left for one in ends])}. {_told(early, late)}"
    )
    figure = _figure(models, early, late, f"no attended pair present ({recipe.said})")
    path = save(figure, job.folder / f"terms-{recipe.file}.png")
    numbers = _numbers(early, late) | {"late size against one pair": ratio}
    note = (
        "Where terms are smaller than that, they are remains of training, and their sparsity tells nothing. The "
        "verdict also asks that a pair, once present, makes attention sparse: without that nothing was learnt. "
        f"{INPUTS} {SEEDS_NOTE}"
    )
    return Outcome(without_pairs(ends), measured, numbers, (path,), note)


def without_pairs(ends: Sequence[Ends]) -> Verdict:
    """Spread without a pair while sparse with one; if what is left is negligible, its sparsity tells nothing."""
    if share([one.left for one in ends])[0] < HALF:
        return "not"  # a head that has learnt nothing is spread in any case
    if share([one.matter for one in ends])[0] < HALF:
        return "untold"
    return graded([share([one.left and one.spread for one in ends])[0]])


def _ends(job: Job, recipe: Recipe) -> tuple[list[SVF], list[Ends]]:
    models = next(iter(trained(job, four_pairs(job, recipe)).values()))
    early = models[0].snapshots[1][0]
    return models, [
        Ends(*(terms_of(job, one, present) for present in (1, 0) for one in (model.at(early), model)))
        for model in models
    ]


def _figure(models: Sequence[SVF], early: Sequence[Terms], late: Sequence[Terms], what: str) -> Figure:
    panels = {
        f"Early, after {models[0].snapshots[1][0]} steps": torch.stack([one.shares for one in early]),
        f"Late, after {models[0].settings.steps:,} steps": torch.stack([one.shares for one in late]),
    }
    return terms_figure(panels, title=f"Terms of relative attention with {what}")


def _told(early: Sequence[Terms], late: Sequence[Terms]) -> str:
    def both(name: str) -> str:
        return " and ".join(told([float(getattr(one, name)) for one in ends]) for ends in (early, late))

    sizes = " and ".join(f"{sum(one.size for one in ends) / len(ends):.2g}" for ends in (early, late))
    return (
        f"Early and late: S(v) {both('S')} (1/n = {1 / len(late[0].shares):.2f}); largest term's share "
        f"{both('largest')}; mean size of all terms together {sizes}; N_recon of positive relative attention "
        f"{both('n_recon')}, for 95 % of it {both('n_recon_95')}."
    )


def _numbers(early: Sequence[Terms], late: Sequence[Terms]) -> Numbers:
    return {
        f"{when} {field.name}": [float(getattr(one, field.name)) for one in ends]
        for when, ends in (("early", early), ("late", late))
        for field in fields(Terms)
        if field.name != "shares"
    }


# -- strengths -----------------------------------------------------------------------------------------------------


def strengths(job: Job) -> Outcome:
    """Does the term of each singular pair follow the product of its features' strengths?"""
    return by_recipe(job, (PRINTED, MEAN), _strengths)


def _strengths(job: Job, recipe: Recipe) -> Outcome:
    found = [_followed(job, model) for model in next(iter(trained(job, four_pairs(job, recipe)).values()))]
    printed, relative = [one.printed for one in found], [one.relative for one in found]
    good = [p >= _FOLLOWS and r >= _FOLLOWS_RELATIVE for p, r in zip(printed, relative, strict=True)]
    measured = (
        f"correlation over {samples(job)} token pairs, smallest of the four channels: {told(printed)} with the product "
        f"of strengths in query and key, {told(relative)} with the key's strength beyond the mean of the other keys; "
        f"at least {_FOLLOWS} and {_FOLLOWS_RELATIVE} in {counted(good)} seeds."
    )
    path = save(found[0].figure(recipe.said), job.folder / f"strengths-{recipe.file}.png")
    note = (
        "Relative attention compares a key with the others of its context, so the printed product can explain only a "
        f"part. Once aligned it follows from algebra: the term is sigma |w_i| |w_j| f_i f_j. {SEEDS_NOTE}"
    )
    numbers: Numbers = {"correlation": printed, "relative": relative}
    return Outcome(graded([share(good)[0]]), measured, numbers, (path,), note)


@dataclass(frozen=True)
class _Followed:
    """Terms of the pairs' channels, and the strengths that they should follow."""

    T: list[float]
    terms: Float[Tensor, "n pair"]
    products: Float[Tensor, "n pair"]  # in query and key
    beyond: Float[Tensor, "n pair"]  # in query, and in key beyond the other keys

    @property
    def printed(self) -> float:
        """The smallest correlation with the printed product."""
        return min(_correlations(self.terms, self.products))

    @property
    def relative(self) -> float:
        """The smallest correlation with the key's strength beyond the others."""
        return min(_correlations(self.terms, self.beyond))

    def figure(self, said: str) -> Figure:
        title = f"Terms of relative attention and strengths of features, first seed ({said})"
        return strengths_figure(self.beyond, self.terms, self.T, title=title)


def _followed(job: Job, model: SVF) -> _Followed:
    found, f = alignment(model), sample(model.settings, samples(job), model.settings.seed).double()
    a, b = sides(model, found, f)
    query, key = (torch.tensor([pair[side] for pair in found.pairs]) for side in (0, 1))
    terms = (a * b)[:, found.by_assignment.channel.clamp_min(0)]
    beyond = f[:, -1, query] * (f[:, 0, key] - f[:, 1:, key].mean(1))
    return _Followed(found.T.tolist(), terms, f[:, -1, query] * f[:, 0, key], beyond)


def _correlations(terms: Tensor, strength: Tensor) -> list[float]:
    return [float(torch.corrcoef(torch.stack(pair))[0, 1]) for pair in zip(terms.T, strength.T, strict=True)]


RUNS: dict[str, Attempt] = {"svf-fig4": present_alone, "svf-fig5": strengths, "svf-fig19": none_present}
