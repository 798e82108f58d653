"""When do singular vectors become features? Training toys over seeds: which pair aligns first, and what moves first."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch
from jaxtyping import Bool, Float
from matplotlib.figure import Figure
from torch import Tensor

from keyhole.figures.style import colours
from keyhole.figures.svf import Curve, curves_figure
from keyhole.lab.svf.alignment import alignment
from keyhole.lab.svf.toy import SVF
from keyhole.stats import interval, with_interval
from keyhole_papers.job import Attempt, Job
from keyhole_papers.results import Numbers, Verdict
from keyhole_papers.svf.recipes import HEAVY_SHORT, MEAN, PRINTED, Recipe, Tried, by_recipe, over_recipes
from keyhole_papers.svf.scores import ALIGNED, HALF, MOST, counted, settled, share
from keyhole_papers.svf.toys import P, alike, trained, varied
from keyhole_papers.told import Told

_EARLY = 0.7  # |cos| at which the order is looked at too
_NEVER = 10**9  # a step that no training reaches


@dataclass(frozen=True)
class Course:
    """One training: cosines at every snapshot, a row per pair (largest T first)."""

    steps: tuple[int, ...]
    aligned: Float[Tensor, "pair step"]  # the worse |cos| of a pair's two features with the singular pair it takes
    vectors: Float[Tensor, "pair step"]  # the worse |cos| of that singular pair with the one that the pair ends with
    features: Float[Tensor, "pair step"]  # the worse cosine of the two features with what they end as

    @property
    def worst(self) -> Float[Tensor, "step"]:
        """Of all pairs."""
        return self.aligned.amin(0)


def course(model: SVF) -> Course:
    """When do pairs align, and what moves first? Singular vectors are followed by the pair they are matched with."""
    final = alignment(model)
    channels = final.by_assignment.channel.clamp_min(0)
    query, key = (torch.tensor([pair[side] for pair in final.pairs]) for side in (0, 1))
    unit = torch.nn.functional.normalize(model.W.double(), dim=0)
    rows = []
    for step, weights in model.snapshots:
        now = alignment(model.at(step))
        moved = (unit * torch.nn.functional.normalize(weights.W.double(), dim=0)).sum(0)
        taken = now.by_assignment.channel.clamp_min(0)
        turned = torch.minimum(_cosines(now.U, taken, final.U, channels), _cosines(now.V, taken, final.V, channels))
        matched = torch.minimum(now.by_assignment.u, now.by_assignment.v).nan_to_num(0.0)
        rows.append((matched, turned, torch.minimum(moved[query], moved[key])))
    aligned, vectors, features = (torch.stack(part, dim=1) for part in zip(*rows, strict=True))
    return Course(tuple(step for step, _ in model.snapshots), aligned, vectors, features)


def _cosines(now: Tensor, taken: Tensor, end: Tensor, channels: Tensor) -> Float[Tensor, "pair"]:
    return (now[:, taken] * end[:, channels]).sum(0).abs()


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
    courses = [course(model) for model in alike(job, recipe)]
    when = [settled(one.aligned >= ALIGNED) for one in courses]
    return Order(
        courses=tuple(courses),
        first=[bool((row[0] < row[1:]).all()) for row in when],
        full=[bool((row[:-1] < row[1:]).all()) for row in when],
        tau=[_tau(row) for row in when],
        early=[_tau(settled(one.aligned >= _EARLY)) for one in courses],
        lead=[_leads(_half(one.vectors), _half(one.features)) for one in courses],
        end=[_leads(one.vectors >= ALIGNED, one.features >= ALIGNED) for one in courses],
    )


def _judge_order(found: Order) -> Verdict:
    order, first = share(found.full), sum(found.lead) / len(found.lead)
    return "reproduced" if min(order, first) >= MOST else "partly" if max(order, first) > HALF else "not"


_ORDER_NOTE = (
    f"Aligned: |cos| at least {ALIGNED} in this and all later snapshots, which are a quarter apart. Correlation 1: "
    "in the order of T; ties count for neither. The verdict asks for the full order and for singular vectors "
    "half-way first; the paper shows one run and says that they tend to shift first. At each step a pair is "
    "followed by the singular pair that it is matched with then. Brackets: 95 % intervals over seeds, Wilson's "
    "where seeds are counted."
)


def _tell_order(found: Order) -> Told:
    measured = (
        f"the pair with the largest T aligns first in {counted(found.first)} seeds, all four in the order of T in "
        f"{counted(found.full)}; rank correlation of T and time {with_interval(found.tau, 2, -1.0, 1.0)}, of the time "
        f"to |cos| {_EARLY} {with_interval(found.early, 2, -1.0, 1.0)}. Singular vectors are half-way before their "
        f"features in {with_interval(found.lead, 2, 0.0, 1.0)} of pairs, and settled before them in "
        f"{with_interval(found.end, 2, 0.0, 1.0)}."
    )
    numbers: Numbers = {"top first": share(found.first), "full order": share(found.full)}
    numbers |= {"tau": found.tau, "tau early": found.early}
    numbers |= {"vectors half-way first": found.lead, "vectors settle first": found.end}
    return Told(measured, numbers, _ORDER_NOTE)


def _draw_order(found: Order, said: str) -> Figure:
    courses = found.courses
    shades = colours(len(courses[0].aligned), ordered=True)
    parts = (("Features with singular vectors", "aligned"), ("Singular vectors with their end", "vectors"))
    panels = {
        title: [
            Curve(f"pair {n} (T = {24 - 3 * n})", torch.stack([getattr(one, part)[n] for one in courses]), shade)
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
    toy = trained(job, varied(job, recipe, "p", P))
    courses = {p: [course(model) for model in own] for p, own in toy.items()}
    when = {p: [_aligned_after(one) for one in own] for p, own in courses.items()}
    by_seed = list(zip(*when.values(), strict=True))
    tau = [one for row in by_seed if (one := order(row)) is not None]
    return Times(courses, when, tau, [_tau(torch.tensor(row)) for row in by_seed])


def _aligned_after(one: Course) -> int:
    return [*one.steps, _NEVER][int(settled(one.worst >= ALIGNED))]


def order(times: Sequence[int]) -> float | None:
    """Kendall's tau of one seed's rows with their times, over those that align; None if fewer than two do.

    >>> order([100, 200, _NEVER, 300]), order([300, 200, _NEVER]), order([300, _NEVER])
    (1.0, -1.0, None)
    """
    known = [one for one in times if one < _NEVER]
    return _tau(torch.tensor(known)) if len(known) > 1 else None


def earlier(found: Times) -> Verdict:
    """What one recipe says; without seeds that align at two probabilities or more, nothing."""
    if len(found.tau) < 2:
        return "not"
    mean, low, _ = interval(found.tau)
    return "reproduced" if mean >= MOST else "partly" if low > 0 else "not"


def judge_times(tried: Tried[Times]) -> Verdict:
    """What all recipes say: if rarer features surely align earlier as printed, that refutes what chosen ones show."""
    printed = tried.found[PRINTED].tau
    if len(printed) > 1 and interval(printed)[2] < 0:
        return "not"
    return over_recipes({recipe: earlier(one) for recipe, one in tried.found.items()})


_TIMES_NOTE = (
    f"Aligned: every |cos| at least {ALIGNED} from then on; snapshots are a quarter apart. Rank correlation: "
    "Kendall's tau-a, by seed, over the probabilities at which it aligns in the end; 1 if each rarer setting takes "
    f"longer, ties count for neither. Reproduced from {MOST} on, partly if its 95 % interval over seeds lies "
    "above 0, and not where that of printed settings lies below 0. Trainings that never align have no time, and "
    "are left out of the verdict: counted as later than all others, they would say that rare "
    "features fail, which is another figure's claim."
)


def _tell_times(found: Times) -> Told:
    lines, numbers = [""], Numbers()
    for p, own in found.when.items():
        known = [one for one in own if one < _NEVER]
        said = f"median {median(known):,.0f} steps of those that align" if known else "no seed aligns"
        lines.append(f"p = {p:g}: {said}; aligned in the end {counted([one < _NEVER for one in own])}.")
        numbers[f"p {p:g} aligned after"] = [float(one) if one < _NEVER else math.nan for one in own]
    own_tau = with_interval(found.tau, 2, -1.0, 1.0) if len(found.tau) > 1 else "not known"
    lines.append(
        f"Rank correlation of rarity with the time, where trainings align ({len(found.tau)} of {len(found.censored)} "
        f"seeds at two probabilities or more): {own_tau}; with those that never align as the last, "
        f"{with_interval(found.censored, 2, -1.0, 1.0)}."
    )
    numbers |= {"tau": found.tau, "tau, never counted as last": found.censored}
    return Told("\n".join(lines), numbers, _TIMES_NOTE)


def _draw_times(found: Times, said: str) -> Figure:
    curves = [
        Curve(f"p = {p:g}", torch.stack([one.worst for one in own]), shade)
        for (p, own), shade in zip(found.courses.items(), colours(len(found.courses), ordered=True), strict=True)
    ]
    steps = next(iter(found.courses.values()))[0].steps
    return curves_figure(steps, {"Worst pair": curves}, y="|cos|", title=f"Alignment by feature probability ({said})")


RUNS: dict[str, Attempt] = {
    "svf-fig3": by_recipe(
        (PRINTED, HEAVY_SHORT, MEAN), measure_order, _judge_order, _tell_order, _draw_order, "dynamics"
    ),
    "svf-fig11": replace(
        by_recipe((PRINTED, MEAN), measure_times, earlier, _tell_times, _draw_times, "probability"),
        judge=judge_times,
    ),
}
