"""Does attention of toys split sparsely if attended pairs are present, and only then? At two ends, and step by step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from keyhole.figures.style import BLUE, GREY, PALETTE, RED
from keyhole.lab.svf import PAIR_SEEDS, SVF, inputs
from keyhole.lab.svf_alignment import Alignment, alignment, sides
from keyhole.lab.svf_figures import Curve, curves_figure, terms_figure
from keyhole.qk.channels import n_recon_each, sparsity_each
from keyhole.qk.controls import haar
from keyhole_papers import svf
from keyhole_papers.experiment import Attempt, Job
from keyhole_papers.finding import TOY, Finding, Findings, of_part, rows_of
from keyhole_papers.results import Verdict
from keyhole_papers.svf import Recipe, samples

_ONE = 0.9  # share of all terms' size from which one term is the only one left
_SPREAD = 2.0  # S(v) of at least so many times 1/n is not sparse
_DRAWS = 20
_PRESENT = {"one pair": 1, "two pairs": 2, "no pair": 0}
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
class Terms:
    """Terms of relative attention over inputs of one kind, as means over these: how large, and how many?"""

    shares: Float[Tensor, "channel"]  # of each term in the size of all
    S: float
    largest: float  # share
    size: float  # of all terms together
    n_recon: float  # of positive relative attention
    n_recon_95: float  # for 95 % of it


def terms_in(model: SVF, aligned: Alignment, f: Float[Tensor, "n m N"]) -> Float[Tensor, "n channel"]:
    """What each channel adds to relative attention."""
    a, b = sides(model, aligned, f)
    return a * b


def terms_of(job: Job, model: SVF, present: int) -> Terms:
    """How does relative attention split with pair (0, 4) present, or with none?"""
    f = inputs(model.settings, present, samples(job), model.settings.seed, first=True)
    terms = terms_in(model, alignment(model), f)
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
        return self.late_none.size >= svf.MATTERS * self.late.size

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
        return {name[:5].rstrip("_"): [getattr(end, name) for end in self.ends] for name in names}


def measure_terms(job: Job, recipe: Recipe, present: bool) -> Decomposed:
    """With one pair present, or with none, over how many terms is relative attention spread, early and late?"""
    models = svf.alike(job, recipe)
    early = models[0].snapshots[1][0]
    ends = [Ends(*(terms_of(job, at, n) for n in (1, 0) for at in (model.at(early), model))) for model in models]
    return Decomposed(present, early, models[0].settings.steps, ends)


_NONE_NOTE = (
    "Where terms without a pair are smaller than that, they are remains of training, and their sparsity tells nothing. "
    "The verdict also asks that a pair, once present, makes attention sparse: without that nothing was learnt. "
)


def terms(record: Decomposed) -> Findings:
    """Sparse with a pair, and spread without one; if what is left there is negligible, its sparsity tells nothing."""
    ends, least = record.ends, 1 / len(record.ends[0].late.shares)
    rows = [svf.in_most("with a pair, a single term is left", [end.left for end in ends])]
    remark = (
        f"A single term: at least {_ONE} of all terms' size, and S(v) has halved (1/n = {least:.2f} is the least). "
        "N_recon: of positive relative attention, and for 95 % of it. "
    )
    if not record.present:
        spread, ratio = [end.left and end.spread for end in ends], [end.late_none.size / end.late.size for end in ends]
        rows += [
            Finding("late size against one pair", ratio, digits=6),
            Finding(f"of {svf.MATTERS:g} or more", [end.matter for end in ends]),
            svf.in_most(f"that, and S(v) at least {_SPREAD:g}/n, early and late", spread),
        ]
        remark += _NONE_NOTE
    for when, terms_then in record.shown.items():
        rows += of_part(when, *rows_of(svf.by_field(terms_then, "shares")), joint=" ")
    return Findings(rows, TOY, remark=f"{remark}{svf.INPUTS} {svf.SEEDS_NOTE}", judged=_of_terms(record))


def _of_terms(record: Decomposed) -> Verdict:
    left = svf.share([end.left for end in record.ends])
    if record.present:
        return svf.graded([left])
    if left < svf.HALF:
        return "not"  # a head that has learnt nothing is spread in any case
    if svf.share([end.matter for end in record.ends]) < svf.HALF:
        return "untold"
    return svf.graded([svf.share([end.left and end.spread for end in record.ends])])


def _draw_terms(record: Decomposed, said: str) -> Figure:
    titles = f"Early, after {record.early_step} steps", f"Late, after {record.late_step:,} steps"
    shares = [torch.stack([term.shares for term in terms]) for terms in record.shown.values()]
    present = "only pair (0, 4)" if record.present else "no attended pair"
    title = f"Terms of relative attention with {present} present ({said})"
    return terms_figure(dict(zip(titles, shares, strict=True)), title=title)


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


def measure_course(job: Job, recipe: Recipe) -> Emerged:
    """Does S(v) fall with attended pairs present, lowest with one, and not in rotated bases?"""
    models = svf.alike(job, recipe)
    steps = tuple(step for step, _ in models[0].snapshots)
    rows = [[_sparsity(job, model.at(step)) for step in steps] for model in models]
    curves = {name: torch.tensor([[at[name] for at in row] for row in rows], dtype=torch.float64) for name in _SHADES}
    return Emerged(steps, curves, [left(job, model) for model in models], 1 / models[0].settings.H)


def _sparsity(job: Job, model: SVF) -> dict[str, float]:
    """S(v) with one, two and no pairs present, two at full strength, and with one in refactored and rotated bases."""
    aligned, settings = alignment(model), model.settings
    contexts = {name: inputs(settings, n, samples(job), settings.seed) for name, n in _PRESENT.items()}
    contexts["two pairs at full strength"] = inputs(settings, 2, samples(job), settings.seed, full=True)
    each = {name: float(sparsity_each(terms_in(model, aligned, f)).nanmean()) for name, f in contexts.items()}
    return each | controls(model, aligned, contexts["one pair"], draws=2 if job.quick else _DRAWS)


def controls(model: SVF, aligned: Alignment, f: Float[Tensor, "n m N"], *, draws: int) -> dict[str, float]:
    """Mean S(v) in refactored and in rotated bases; every seed has its own draws, the same at each snapshot."""
    g = torch.Generator().manual_seed(2 * PAIR_SEEDS + model.settings.seed)
    tokens, n = model.tokens(f), len(aligned.S)
    relative = tokens[:, 0] - tokens[:, 1:].mean(1)
    a, b = sides(model, aligned, f)
    refactored, rotated = [], []
    for _ in range(draws):
        R = haar(n, n, g)
        refactored.append(float(sparsity_each((a @ R) * (b @ R)).nanmean()))
        U, V = haar(len(aligned.U), n, g), haar(len(aligned.V), n, g)
        rotated.append(float(sparsity_each((tokens[:, -1] @ U) * aligned.S * (relative @ V)).nanmean()))
    return {"one pair, refactored": sum(refactored) / draws, "one pair, rotated": sum(rotated) / draws}


def left(job: Job, model: SVF) -> float:
    """How large are all terms together without a pair, against those with one?"""
    aligned, settings = alignment(model), model.settings
    contexts = [inputs(settings, present, samples(job), settings.seed) for present in (0, 1)]
    none, alone = (float(terms_in(model, aligned, f).abs().sum(-1).mean()) for f in contexts)
    return none / alone


def claims(record: Emerged) -> dict[str, list[bool]]:
    """What the figure claims, part by part and seed by seed. Without the first, the others say nothing."""
    parts: dict[str, list[bool]] = {
        "with one pair as sparse as can be": [],
        "less sparse with two": [],
        "still less with none, which matter": [],
        "not sparse in other bases": [],
    }
    for n, size in enumerate(record.sizes):
        end = {name: values[n] for name, values in record.at(-1).items()}
        alone, two, none = end["one pair"], end["two pairs"], end["no pair"]
        others = min(end["one pair, refactored"], end["one pair, rotated"])
        sparse = alone <= _SPARSEST * record.least
        holds = (True, alone < two, two < none and size >= svf.MATTERS, others > _SPREAD_OUT)
        for part, held in zip(parts.values(), holds, strict=True):
            part.append(sparse and held)
    return parts


_COURSE_NOTE = (
    f"Brackets: 95 % intervals over seeds, each with rotations of its own. {svf.INPUTS} Full strength: 1 instead. "
    f"Refactored: Omega and all scores are kept, only the rank-one pieces differ; rotated: the paper's control, "
    f"other directions with the same spectrum; {_DRAWS} draws each. S(v) with no pair counts where all terms "
    f"together have {svf.MATTERS:g} or more of their size with one pair: less is the remains of training, and its "
    "sparsity tells nothing. Unless S(v) with one pair is the lowest possible, the other parts do not count."
)


def course(record: Emerged) -> Findings:
    """Does S(v) fall as the figure claims, part by part?"""
    parts, end, start = claims(record), record.at(-1), record.at(0)
    rows = [svf.in_most(part, flags) for part, flags in parts.items()]
    for name in record.sparsity:
        ends = {"end": end[name], "start": start[name]}
        rows += of_part(name, *(Finding(when, values, spread=True) for when, values in ends.items()), joint=" ")
    lowest = float(record.sparsity["no pair"].nanmedian(0).values.min())
    rows += of_part("no pair", Finding("lowest median on the way", lowest), joint=" ")
    rows += [Finding("size without a pair, against one", record.sizes, digits=6), Finding("1/n", record.least)]
    judged = svf.graded([svf.share(flags) for flags in parts.values()])
    return Findings(rows, TOY, remark=_COURSE_NOTE, judged=judged)


def _draw_course(record: Emerged, said: str) -> Figure:
    curves = [
        Curve(name, values, _SHADES[name], dashed=n > 2) for n, (name, values) in enumerate(record.sparsity.items())
    ]
    panels = {"By pairs present": curves[:4], "One pair, in other bases": [curves[0], *curves[4:]]}
    title = f"Sparsity of relative attention while training, mean and 95 % interval ({said})"
    return curves_figure(record.steps, panels, y="S(v)", floor=record.least, title=title, means=True)


_RECIPES = (svf.PRINTED, svf.MEAN)
RUNS: dict[str, Attempt] = {
    id: svf.by_recipe(_RECIPES, partial(measure_terms, present=present), terms, _draw_terms, "terms")
    for id, present in (("svf-fig4", True), ("svf-fig19", False))
}
RUNS["svf-fig6a"] = svf.by_recipe(_RECIPES, measure_course, course, _draw_course, "sparsity")
