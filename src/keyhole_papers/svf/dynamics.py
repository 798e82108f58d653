"""When do singular vectors become features, and what do terms follow then? Toys over seeds: who is first, and when."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from matplotlib.figure import Figure
from torch import Tensor

from keyhole.figures.style import colours
from keyhole.lab.svf import SVF, sample
from keyhole.lab.svf_alignment import Course, alignment, course_of, settled, sides
from keyhole.lab.svf_figures import Curve, curves_figure, strengths_figure
from keyhole.stats import interval
from keyhole_papers import svf
from keyhole_papers.experiment import Attempt, Job
from keyhole_papers.finding import TOY, Finding, Findings, of_part
from keyhole_papers.results import Verdict
from keyhole_papers.svf import ALIGNED, HALF, MEAN, MOST, PRINTED, Recipe, Tried, samples

_EARLY = 0.7  # |cos| at which the order is looked at too
_FOLLOWS, _FOLLOWS_RELATIVE = 0.5, 0.95  # correlations of terms with strengths of features
_NEVER = 10**9  # a step that no training reaches


@dataclass(frozen=True)
class Order:
    """The order in which pairs align in trainings of one recipe, seed by seed."""

    courses: tuple[Course, ...]
    first: list[bool]  # does the pair with the largest T align first?
    full: list[bool]  # do all align in the order of T?
    tau: list[float]  # rank correlation of T and time
    early: list[float]  # of T and the time to |cos| _EARLY
    lead: list[float]  # of how many pairs are the vectors half-way before the features?
    end: list[float]  # and of how many are they settled before these?


def measure_order(job: Job, recipe: Recipe) -> Order:
    """Do pairs align one after another, largest T first, and do singular vectors move before features?"""
    courses = [course_of(model) for model in svf.alike(job, recipe)]
    when = [settled(course.aligned >= ALIGNED) for course in courses]
    return Order(
        courses=tuple(courses),
        first=[bool((row[0] < row[1:]).all()) for row in when],
        full=[bool((row[:-1] < row[1:]).all()) for row in when],
        tau=[_tau(row) for row in when],
        early=[_tau(settled(course.aligned >= _EARLY)) for course in courses],
        lead=[_leads(_half(course.vectors), _half(course.features)) for course in courses],
        end=[_leads(course.vectors >= ALIGNED, course.features >= ALIGNED) for course in courses],
    )


_ORDER_NOTE = (
    f"Aligned: |cos| at least {ALIGNED} in this and all later snapshots, which are a quarter apart. Tau: rank "
    f"correlation of T and the time of alignment, early: with the time to |cos| {_EARLY}; 1: in the order of T; ties "
    "count for neither. Half-way first: of how many pairs the singular vectors are half-way before their features. The "
    "verdict asks for the full order and for singular vectors half-way first; the paper shows one run and says that "
    "they tend to shift first. At each step a pair is followed by the singular pair that it is matched with then. "
    "Brackets: 95 % intervals over seeds, Wilson's where seeds are counted."
)


def ordered(order: Order) -> Findings:
    """Do all pairs align in the order of T, and do singular vectors move first?"""
    full, lead = svf.share(order.full), sum(order.lead) / len(order.lead)
    rows = [
        Finding("top first", order.first),
        svf.in_most("full order", order.full),
        Finding("tau", order.tau, digits=2, spread=True),
        Finding("tau early", order.early, digits=2, spread=True),
        Finding("vectors half-way first", order.lead, f"{MOST:.0%} of pairs", lead >= MOST, digits=2, spread=True),
        Finding("vectors settle first", order.end, digits=2, spread=True),
    ]
    verdict: Verdict = "reproduced" if min(full, lead) >= MOST else "partly" if max(full, lead) > HALF else "not"
    return Findings(rows, TOY, remark=_ORDER_NOTE, judged=verdict)


def _draw_order(record: Order, said: str) -> Figure:
    courses = record.courses
    shades = colours(len(courses[0].aligned), ordered=True)
    parts = (("Features with singular vectors", "aligned"), ("Singular vectors with their end", "vectors"))
    panels = {
        title: [
            Curve(f"pair {n} (T = {24 - 3 * n})", torch.stack([getattr(course, part)[n] for course in courses]), shade)
            for n, shade in enumerate(shades)
        ]
        for title, part in (*parts, ("Features with their end", "features"))
    }
    return curves_figure(courses[0].steps, panels, y="|cos|", title=f"Alignment while training, {said}")


def _tau(when: Tensor) -> float:
    """Kendall's tau-a of the order of T, which is that of the rows, with the time of alignment."""
    pairs = torch.combinations(torch.arange(len(when)))
    return float((when[pairs[:, 1]] - when[pairs[:, 0]]).sign().double().mean())


def _half(cosine: Float[Tensor, "pair step"]) -> Bool[Tensor, "pair step"]:
    """Has it gone half of its way from the start to the end, where the cosine is 1?"""
    return cosine >= (1 + cosine[:, :1]) / 2


def _leads(vectors: Bool[Tensor, "pair step"], features: Bool[Tensor, "pair step"]) -> float:
    """Of how many pairs do the singular vectors get there for good before the features? Ties count half."""
    return float(((settled(features) - settled(vectors)).sign().double().mean() + 1) / 2)


@dataclass(frozen=True)
class Times:
    """When trainings of one recipe align, by feature probability."""

    courses: Mapping[float, Sequence[Course]]
    when: Mapping[float, Sequence[int]]  # the step from which every pair of a seed stays aligned, or _NEVER
    tau: list[float]  # rank correlation of rarity and time, of seeds that align at two probabilities or more
    censored: list[float]  # of all seeds, with trainings that never align as the last


def measure_times(job: Job, recipe: Recipe) -> Times:
    """Do features that occur more often align earlier? Judged by trainings that align at all."""
    by_probability = svf.trained(job, svf.varied(job, recipe, "p", svf.P))
    courses = {p: [course_of(model) for model in models] for p, models in by_probability.items()}
    when = {
        p: [[*course.steps, _NEVER][int(settled(course.worst >= ALIGNED))] for course in models]
        for p, models in courses.items()
    }
    by_seed = list(zip(*when.values(), strict=True))
    correlations = [tau for tau in map(order, by_seed) if tau is not None]
    return Times(courses, when, correlations, [_tau(torch.tensor(row)) for row in by_seed])


def order(times: Sequence[int]) -> float | None:
    """Kendall's tau of one seed's rows with their times, over those that align; None if fewer than two do.

    >>> order([100, 200, _NEVER, 300]), order([300, 200, _NEVER]), order([300, _NEVER])
    (1.0, -1.0, None)
    """
    known = [step for step in times if step < _NEVER]
    return _tau(torch.tensor(known)) if len(known) > 1 else None


_TIMES_NOTE = (
    f"Aligned: every |cos| at least {ALIGNED} from then on; snapshots are a quarter apart. Tau: Kendall's tau-a of "
    "rarity and time, by seed, over the probabilities at which it aligns in the end (seeds that do at two or more); 1 "
    f"if each rarer setting takes longer, ties count for neither. Reproduced from {MOST} on, partly if its 95 % "
    "interval over seeds lies above 0, and not where that of printed settings lies below 0. Trainings that never align "
    "have no time, and are left out of the verdict: counted as later than all others, they would say that rare "
    "features fail, which is another figure's claim."
)


def earlier(times: Times) -> Findings:
    """What one recipe says; without seeds that align at two probabilities or more, nothing."""
    rows: list[Finding] = []
    for p, steps in times.when.items():
        after = [math.nan if step == _NEVER else step for step in steps]
        aligned = Finding("aligned in the end", [step < _NEVER for step in steps])
        rows += of_part(f"p {p:g}", Finding("aligned after", after, digits=0), aligned, joint=" ")
    enough = len(times.tau) > 1
    mean, low, _ = interval(times.tau) if enough else (math.nan,) * 3
    rows += [
        Finding("tau", times.tau, f"{MOST} or more", mean >= MOST, digits=2, spread=True),
        Finding("tau, never counted as last", times.censored, digits=2, spread=True),
    ]
    verdict: Verdict = "reproduced" if mean >= MOST else "partly" if low > 0 else "not"
    return Findings(rows, TOY, remark=_TIMES_NOTE, judged=verdict)


def times(tried: Tried[Times]) -> Findings:
    """What all recipes say: if rarer features surely align earlier as printed, that refutes what chosen ones show."""
    findings, printed = svf.of_recipes(tried, earlier), tried.records[PRINTED].tau
    refuted = len(printed) > 1 and interval(printed)[2] < 0
    return replace(findings, judged="not") if refuted else findings


def _draw_times(times: Times, said: str) -> Figure:
    curves = [
        Curve(f"p = {p:g}", torch.stack([course.worst for course in courses]), shade)
        for (p, courses), shade in zip(times.courses.items(), colours(len(times.courses), ordered=True), strict=True)
    ]
    steps = next(iter(times.courses.values()))[0].steps
    return curves_figure(steps, {"Worst pair": curves}, y="|cos|", title=f"Alignment by feature probability ({said})")


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
    strengths = [_strengths(job, model) for model in svf.alike(job, recipe)]
    printed, relative = (
        [_least(toy.terms, getattr(toy, strength)) for toy in strengths] for strength in ("products", "beyond")
    )
    return Followed(strengths[0], printed, relative)


def _strengths(job: Job, model: SVF) -> Strengths:
    aligned, f = alignment(model), sample(model.settings, samples(job), model.settings.seed).double()
    a, b = sides(model, aligned, f)
    query, key = (torch.tensor([pair[side] for pair in aligned.pairs]) for side in (0, 1))
    terms = (a * b)[:, aligned.by_assignment.channel.clamp_min(0)]
    beyond = f[:, -1, query] * (f[:, 0, key] - f[:, 1:, key].mean(1))
    return Strengths(aligned.T.tolist(), terms, f[:, -1, query] * f[:, 0, key], beyond)


def _least(terms: Float[Tensor, "n pair"], strength: Float[Tensor, "n pair"]) -> float:
    return min(float(torch.corrcoef(torch.stack(pair))[0, 1]) for pair in zip(terms.T, strength.T, strict=True))


def strengths(followed: Followed) -> Findings:
    """Do terms follow strengths in most seeds?"""
    rows = [
        svf.in_most(f"correlations of at least {_FOLLOWS} and {_FOLLOWS_RELATIVE}", followed.good),
        Finding("correlation", followed.printed),
        Finding("relative", followed.relative),
        Finding("token pairs", len(followed.first.terms)),
    ]
    remark = (
        "Correlation: over token pairs, the smallest of the four channels, of terms with the product of strengths in "
        "query and key; relative: with the key's strength beyond the mean of the other keys. Relative attention "
        "compares a key with the others of its context, so the printed product can explain only a part. Once aligned "
        f"it follows from algebra: the term is sigma |w_i| |w_j| f_i f_j. {svf.SEEDS_NOTE}"
    )
    return Findings(rows, TOY, remark=remark, judged=svf.graded([svf.share(followed.good)]))


def _draw_strengths(followed: Followed, said: str) -> Figure:
    first, title = followed.first, f"Terms of relative attention and strengths of features, first seed ({said})"
    return strengths_figure(first.beyond, first.terms, first.T, title=title)


_COURSES = svf.by_recipe((PRINTED, MEAN), measure_times, earlier, _draw_times, "probability")
RUNS: dict[str, Attempt] = {
    "svf-fig3": svf.by_recipe((PRINTED, svf.HEAVY_SHORT, MEAN), measure_order, ordered, _draw_order, "dynamics"),
    "svf-fig5": svf.by_recipe((PRINTED, MEAN), measure_strengths, strengths, _draw_strengths, "strengths"),
    "svf-fig11": replace(_COURSES, findings=times),
}
