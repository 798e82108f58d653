"""Does attention of trained toys split sparsely if attended pairs are present, and only then? S(v) and controls."""

import math
from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.figures import save
from keyhole.figures.style import BLUE, GREY, PALETTE, RED
from keyhole.figures.svf import Curve, curves_figure, strengths_figure, terms_figure
from keyhole.lab.alignment import Alignment, alignment
from keyhole.lab.experiments.svf_models import four_pairs, trained
from keyhole.lab.experiments.svf_scores import MOST, PAPER_NOTE, SEEDS_NOTE, counted, graded, share
from keyhole.lab.intervals import told, with_interval
from keyhole.lab.job import Experiment, Job, Numbers
from keyhole.lab.outcome import Outcome, Verdict
from keyhole.lab.svf import SVF, SVFSettings, sample
from keyhole.qk.channels import n_recon
from keyhole.qk.controls import haar

_SAMPLES, _QUICK_SAMPLES, _DRAWS = 400, 50, 20
_PAIRS = 2**40  # seeds from here on place pairs: no other stream is so far up
_ONE = 0.9  # share of all terms' size from which one term is the only one left
_SPREAD = 2.0  # S(v) of at least so many times 1/n is not sparse
_SPARSEST = 1.05  # S(v) of at most so many times 1/n is as sparse as can be
_SPREAD_OUT = 0.2  # S(v) that other bases must exceed
_FOLLOWS, _FOLLOWS_RELATIVE = 0.5, 0.95  # correlations of terms with strengths of features
_INPUTS = (
    "Features of interest are removed from all tokens and put back, with strengths from U(0, 1), into the query and "
    "one key; all other features are drawn as in training."
)


def inputs(
    settings: SVFSettings, present: int, n: int, seed: int, *, first: bool = False, full: bool = False
) -> Float[Tensor, "n m N"]:
    """Contexts with so many attended pairs between the query (last) and key 0; of these the `first`, or random ones.

    Their features have strengths from U(0, 1), or 1 if `full`.
    """
    f = sample(settings, n, seed).double()
    queries, keys = (torch.tensor([pair[side] for pair in settings.pairs]) for side in (0, 1))
    f[..., torch.cat([queries, keys])] = 0.0
    g = torch.Generator().manual_seed(_PAIRS + seed)
    order = torch.rand(n, len(queries), generator=g).argsort(1)
    chosen = torch.arange(len(queries)).expand(n, -1) if first else order
    row = torch.arange(n)
    for pair in chosen[:, :present].T:
        strength = torch.rand(2, n, generator=g, dtype=torch.float64)
        f[row, -1, queries[pair]], f[row, 0, keys[pair]] = torch.ones_like(strength) if full else strength
    return f


def sides(
    model: SVF, found: Alignment, f: Float[Tensor, "n m N"]
) -> tuple[Float[Tensor, "n channel"], Float[Tensor, "n channel"]]:
    """What the query asks and what key 0 offers beyond the others' mean, per channel, each with the root of sigma."""
    tokens = model.tokens(f)
    relative = tokens[:, 0] - tokens[:, 1:].mean(1)
    root = found.S.sqrt()
    return tokens[:, -1] @ found.U * root, relative @ found.V * root


def sparsities(terms: Float[Tensor, "*batch channel"]) -> Float[Tensor, "*batch"]:
    """S(v) = mean(|v|)^2 / mean(v^2) of every row; NaN where all terms are zero."""
    return terms.abs().mean(-1).square() / terms.square().mean(-1)


def _samples(job: Job) -> int:
    return _QUICK_SAMPLES if job.quick else _SAMPLES


# -- terms ---------------------------------------------------------------------------------------------------------


def decomposed(job: Job, present: int) -> Outcome:
    """Early and late in training, over how many terms is relative attention spread? With one pair present, or none."""
    models = next(iter(trained(job, four_pairs(job)).values()))
    early = models[0].snapshots[1][0]
    panels, numbers = {}, Numbers()
    for name, step in ((f"after {early} steps", early), (f"after {models[0].settings.steps:,} steps", -1)):
        rows = [_shares(job, model if step < 0 else model.at(step), present) for model in models]
        panels[f"{'Early' if step >= 0 else 'Late'}, {name}"] = torch.stack([row[0] for row in rows])
        when = "early" if step >= 0 else "late"
        numbers |= {f"{when} S": [row[1] for row in rows], f"{when} largest": [row[2] for row in rows]}
        numbers[f"{when} size"] = [row[3] for row in rows]
        numbers |= {f"{when} N_recon": [row[4] for row in rows], f"{when} N_recon at .95": [row[5] for row in rows]}
    least = 1 / models[0].settings.H
    late, start = (list(numbers[f"{when} S"]) for when in ("late", "early"))  # type: ignore[arg-type]
    largest = list(numbers["late largest"])  # type: ignore[arg-type]
    if present:
        good = [top >= _ONE and end < begin / 2 for top, end, begin in zip(largest, late, start, strict=True)]
        claim = f"a single term is left (at least {_ONE} of all terms' size, and S(v) has halved)"
    else:
        good = [min(end, begin) >= _SPREAD * least for end, begin in zip(late, start, strict=True)]
        claim = f"it is not sparse early nor late (S(v) at least {_SPREAD:g}/n)"
    said = {name: told([float(one) for one in values]) for name, values in numbers.items() if isinstance(values, list)}
    measured = (
        f"In {counted(good)} seeds {claim}. S(v) {said['early S']} early, {said['late S']} late (1/n = {least:.2f}); "
        f"largest term's share {said['early largest']} and {said['late largest']}; mean size of all terms "
        f"together {_brief(numbers['early size'])} and {_brief(numbers['late size'])}. N_recon of positive relative "
        f"attention {said['early N_recon']} and {said['late N_recon']}; for 95 % of it {said['early N_recon at .95']} "
        f"and {said['late N_recon at .95']}."
    )
    what = "only pair (0, 4)" if present else "no attended pair"
    figure = terms_figure(panels, title=f"Terms of relative attention with {what} present")
    vanish = "" if present else "Late, all terms are close to zero: S(v) is that of what little is left. "
    note = f"{vanish}{_INPUTS} {PAPER_NOTE} {SEEDS_NOTE}"
    return Outcome(graded([share(good)[0]]), measured, numbers, (save(figure, job.folder / "terms.png"),), note)


def _shares(job: Job, model: SVF, present: int) -> tuple[Tensor, float, float, float, float, float]:
    """Mean shares of terms, S(v), the largest share, the mean of all terms' size, and N_recon, whole and of 95 %."""
    a, b = sides(
        model, alignment(model), inputs(model.settings, present, _samples(job), model.settings.seed, first=True)
    )
    terms = a * b
    size = terms.abs().sum(-1, keepdim=True)
    parts = terms / size
    return (
        parts.abs().nanmean(0),
        float(sparsities(terms).nanmean()),
        float(parts.abs().amax(-1).nanmean()),
        float(size.mean()),
        _n_recon(terms, 1.0),
        _n_recon(terms, 0.95),
    )


def _n_recon(terms: Float[Tensor, "n channel"], tolerance: float) -> float:
    """The mean over samples whose relative attention is positive: how many terms make it up?"""
    counts = [count for row in terms if (count := n_recon(row, tolerance)) is not None]
    return sum(counts) / len(counts) if counts else math.nan


def strengths(job: Job) -> Outcome:
    """Does the term of each singular pair follow the product of its features' strengths?"""
    models = next(iter(trained(job, four_pairs(job)).values()))
    printed, relative = [], []
    for n, model in enumerate(models):
        found, f = alignment(model), sample(model.settings, _samples(job), model.settings.seed).double()
        a, b = sides(model, found, f)
        query, key = (torch.tensor([pair[side] for pair in found.pairs]) for side in (0, 1))
        terms = (a * b)[:, found.by_assignment.channel.clamp_min(0)]
        beyond = f[:, -1, query] * (f[:, 0, key] - f[:, 1:, key].mean(1))
        printed.append(_correlations(terms, f[:, -1, query] * f[:, 0, key]))
        relative.append(_correlations(terms, beyond))
        if n == 0:
            title = "Terms of relative attention and strengths of features, first seed"
            figure = strengths_figure(beyond, terms, found.T.tolist(), title=title)
    numbers: Numbers = {"correlation": [min(own) for own in printed], "relative": [min(own) for own in relative]}
    good = [min(p) >= _FOLLOWS and min(r) >= _FOLLOWS_RELATIVE for p, r in zip(printed, relative, strict=True)]
    measured = (
        f"Correlation over {_samples(job)} token pairs, smallest of the four channels: "
        f"{told([min(own) for own in printed])} with the product of strengths in query and key, "
        f"{told([min(own) for own in relative])} with the key's strength beyond the mean of the other keys; at least "
        f"{_FOLLOWS} and {_FOLLOWS_RELATIVE} in {counted(good)} seeds."
    )
    note = (
        "Relative attention compares a key with the others of its context, so the printed product can explain only a "
        f"part. Once aligned it follows from algebra: the term is sigma |w_i| |w_j| f_i f_j. {PAPER_NOTE} {SEEDS_NOTE}"
    )
    path = save(figure, job.folder / "strengths.png")
    return Outcome(graded([share(good)[0]]), measured, numbers, (path,), note)


def _correlations(terms: Tensor, strength: Tensor) -> list[float]:
    return [float(torch.corrcoef(torch.stack(pair))[0, 1]) for pair in zip(terms.T, strength.T, strict=True)]


# -- over training -------------------------------------------------------------------------------------------------


def emergence(job: Job) -> Outcome:
    """Does S(v) fall with attended pairs present, lowest with one, and not in rotated bases?"""
    models = next(iter(trained(job, four_pairs(job)).values()))
    steps = [step for step, _ in models[0].snapshots]
    rows = torch.tensor([[_course(job, model.at(step)) for step in steps] for model in models], dtype=torch.float64)
    names = (
        "one pair",
        "two pairs",
        "no pair",
        "two pairs at full strength",
        "one pair, refactored",
        "one pair, rotated",
    )
    shades = (BLUE, PALETTE[1], GREY, PALETTE[1], RED, PALETTE[3])
    curves = [
        Curve(name, rows[..., n], shade, dashed=n > 2)
        for n, (name, shade) in enumerate(zip(names, shades, strict=True))
    ]
    least = 1 / models[0].settings.H
    panels = {"By pairs present": curves[:4], "One pair, in other bases": [curves[0], *curves[4:]]}
    title = "Sparsity of relative attention while training, mean and 95 % interval"
    figure = curves_figure(steps, panels, y="S(v)", floor=least, title=title, means=True)
    end = rows[:, -1]
    numbers: Numbers = {f"{name} end": end[:, n].tolist() for n, name in enumerate(names)}
    numbers |= {f"{name} start": rows[:, 0, n].tolist() for n, name in enumerate(names)}
    ordered = [bool(one < two < none) for one, two, none in end[:, :3].tolist()]
    sparse = [bool(one <= _SPARSEST * least) for one in end[:, 0].tolist()]
    apart = [min(other, rotated) > _SPREAD_OUT for other, rotated in end[:, 4:].tolist()]
    every = [all(one) for one in zip(ordered, sparse, apart, strict=True)]
    parts = [share(one)[0] for one in (ordered, sparse, apart)]
    verdict: Verdict = "reproduced" if share(every)[0] >= MOST else graded(parts)
    said = "; ".join(f"{name} {with_interval(end[:, n].tolist())}" for n, name in enumerate(names))
    start = "; ".join(f"{name} {with_interval(rows[:, 0, n].tolist())}" for n, name in enumerate(names[:3]))
    dip = float(rows[..., 2].nanmedian(0).values.min())
    numbers["no pair, lowest median"] = dip
    measured = (
        f"S(v) at the end (1/n = {least:.2f}): {said}. At the start: {start}; with no pair the median "
        f"falls to {dip:.3f} on the way. One < two < none in {counted(ordered)} "
        f"seeds; with one pair within {_SPARSEST:g}/n in {counted(sparse)}, in both other bases above {_SPREAD_OUT} in "
        f"{counted(apart)}."
    )
    note = (
        f"Brackets: 95 % intervals over seeds, each with rotations of its own. {_INPUTS} Full strength: 1 instead. "
        f"Refactored: Omega and all scores are kept, only the rank-one pieces differ; rotated: the paper's control, "
        f"other directions with the same spectrum; {_DRAWS} draws each. {PAPER_NOTE}"
    )
    return Outcome(verdict, measured, numbers, (save(figure, job.folder / "sparsity.png"),), note)


def _course(job: Job, model: SVF) -> list[float]:
    """S(v) with one, two and no pairs present, two at full strength, and with one in refactored and rotated bases."""
    found, n = alignment(model), _samples(job)
    own = []
    for present in (1, 2, 0):
        f = inputs(model.settings, present, n, model.settings.seed)
        a, b = sides(model, found, f)
        own.append(float(sparsities(a * b).nanmean()))
        if present == 1:
            spread = controls(model, found, f, (a, b), draws=2 if job.quick else _DRAWS)
    a, b = sides(model, found, inputs(model.settings, 2, n, model.settings.seed, full=True))
    return [*own, float(sparsities(a * b).nanmean()), *spread]


def controls(model: SVF, found: Alignment, f: Tensor, own: tuple[Tensor, Tensor], *, draws: int) -> tuple[float, float]:
    """Mean S(v) in refactored and in rotated bases; every seed has its own draws, the same at each snapshot."""
    g = torch.Generator().manual_seed(2 * _PAIRS + model.settings.seed)
    tokens, n = model.tokens(f), len(found.S)
    relative = tokens[:, 0] - tokens[:, 1:].mean(1)
    a, b = own
    refactored, rotated = [], []
    for _ in range(draws):
        R = haar(n, n, g)
        refactored.append(float(sparsities((a @ R) * (b @ R)).nanmean()))
        U, V = haar(len(found.U), n, g), haar(len(found.V), n, g)
        rotated.append(float(sparsities((tokens[:, -1] @ U) * found.S * (relative @ V)).nanmean()))
    return sum(refactored) / draws, sum(rotated) / draws


def _brief(values: float | int | list[float]) -> str:
    own = values if isinstance(values, list) else [float(values)]
    return f"{sum(own) / len(own):.2g}"


_runs: dict[str, Callable[[Job], Outcome]] = {
    "svf-fig4": partial(decomposed, present=1),
    "svf-fig5": strengths,
    "svf-fig6a": emergence,
    "svf-fig19": partial(decomposed, present=0),
}
RUNS: dict[str, Experiment] = _runs
