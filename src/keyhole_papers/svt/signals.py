"""What are signals like? They overlap along paths, are a small part of residuals, and are larger in names."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Literal

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor

from keyhole.brief import Head, head_name
from keyhole.circuits.circuit import Circuit, Edge
from keyhole.errors import MissingModelError
from keyhole.figures.style import BLUE, GREY, RED, legend, panels, plain
from keyhole.intervene.cuts import serial
from keyhole.models.numbers import exact_matmul
from keyhole.models.run import Run
from keyhole.qk.controls import slice_use
from keyhole.qk.omega import omega
from keyhole_papers.experiment import Attempt, Experiment, Job
from keyhole_papers.finding import Finding, Findings, Provenance, of_part
from keyhole_papers.svt import LEAST, Pair, Subject, prompted, subject, sums_of
from keyhole_papers.svt.answers import MODES, Answers, answers, prompts_with, signals_note
from keyhole_papers.svt.effects import MATTERS, Effect, change, effects, sums_figure


@dataclass(frozen=True)
class Along:
    """Signals along one path of each prompt that has one."""

    answers: Answers
    paths: int
    pairs: Mapping[str, Sequence[Pair]]  # by mode; none where there are too few paths


def measure_along(job: Job) -> Along:
    """The longest path of each prompt removed at once, and edge by edge."""
    traced = answers(job)
    paths = [(answer, path) for answer in traced.traced if len(path := _path(answer.circuit)) > 2]  # two steps or more
    pairs: dict[str, list[Pair]] = {}
    for mode in MODES if len(paths) >= LEAST else ():
        pairs[mode] = []
        for answer, path in paths:
            cuts = serial(answer.circuit, path)
            *single, together = answer.changes([*([cut] for cut in cuts), cuts], mode)
            pairs[mode].append(Pair(sum(single), together))
    return Along(traced, len(paths), pairs)


def _path(circuit: Circuit) -> list[int]:
    """From below: the longest chain of signals to a head behind the answer, the heaviest if there are several."""
    into: dict[int, list[Edge]] = {}
    for edge in circuit.edges:
        if circuit.nodes[edge.sender].kind != "offset":
            into.setdefault(edge.receiver, []).append(edge)

    @cache
    def longest(node: int) -> list[int]:
        chains = [(longest(edge.sender), edge.weight) for edge in into.get(node, ())]
        return [*max(chains, key=lambda chain: (len(chain[0]), chain[1]))[0], node] if chains else [node]

    ends = [(longest(edge.sender), edge.weight) for edge in circuit.edges if edge.side == "target"]
    return max(ends, key=lambda chain: (len(chain[0]), chain[1]))[0] if ends else []


def found_along(record: Along) -> Findings:
    """Do the effects of edges along one path overlap, so that together they do less than their sum?"""
    rows = [Finding("paths", record.paths) if record.pairs else prompts_with(record.paths, "a path of two steps")]
    for mode, pairs in record.pairs.items():
        total = sums_of(pairs)
        less = total.together.beyond_doubt and total.spared.low > 0
        rows += of_part(
            mode,
            Finding("together", total.together),
            Finding("sum", total.summed),
            Finding("overlap", total.spared, "an interval above 0, and one together that excludes 0", less),
        )
    remark = (
        "Overlap: by which, in size, the change together falls short of the sum. A path is the longest chain of "
        f"signals in a prompt's circuit, with two steps or more. {record.answers.note}"
    )
    return Findings(rows, record.answers.of, remark=remark)


def _draw_along(record: Along) -> Mapping[str, Figure]:
    title = "Signals along one path, removed together and one by one"
    return {"serial": sums_figure(record.pairs, title)} if record.pairs else {}


Measured = Literal["cosine", "norm"]
_LIMITS: dict[tuple[Measured, bool], tuple[float, str]] = {  # of single signals and sets: how far from 1
    ("cosine", False): (0.001, "above .999"),
    ("norm", False): (0.01, "within 1 % of 1"),
    ("cosine", True): (0.01, "above .99"),
    ("norm", True): (0.02, "within 2 % of 1"),
}
_WIDE = "cosine", True  # for these sets, a wider distribution than for single signals is asked
_WIDER = "larger than of single signals"
_VECTOR = (
    "What is taken from the residual stream at the token is the same vector for global and local removal, so that one "
    "of them is shown."
)


@dataclass(frozen=True)
class Residuals:
    """What was removed from residuals."""

    of: Provenance
    effects: tuple[Effect, ...]

    def local(self, together: bool) -> list[Effect]:
        """Sets of signals, or single ones."""
        return [effect for effect in self.effects if effect.mode == "local" and effect.together == together]


def measure_residuals(job: Job) -> Residuals:
    """Signals into all heads of two roles, removed."""
    of_job = subject(job)
    heads = [(role, i) for role in ("name mover", "S-inhibition") for i in range(len(of_job.roles.get(role, ())))]
    changed = [effect for head in heads or [("name mover", 0)] for effect in effects(job, *head)]
    return Residuals(of_job.of, tuple(changed))


def _distance(effects: Sequence[Effect], measure: Measured) -> Tensor:
    """From 1, of each removal."""
    return torch.tensor([abs(getattr(effect, measure) - 1) for effect in effects])


def found_residuals(record: Residuals, measure: Measured, together: bool) -> Findings:
    """Do residuals hardly change, where answers do? Their cosines, or the ratio of their norms."""
    removals = record.local(together)
    size = change(removals, lambda effect: abs(effect.answer), lambda effect: abs(effect.random))
    limit, near = _LIMITS[measure, together]
    values = torch.tensor([getattr(removal, measure) for removal in removals], dtype=torch.float64)
    middle, low, high = (float(values.quantile(at)) if removals else math.nan for at in (0.5, 0.05, 0.95))
    off, alone = (float(_distance(which, measure).median()) for which in (removals, record.local(False)))
    within = float((_distance(removals, measure) < limit).double().mean())
    peaked = size.prompts >= LEAST and within > 0.5
    wide = (measure, together) == _WIDE
    rows = [
        Finding("removals", len(removals)),
        Finding("prompts", size.prompts),
        Finding("median", middle, digits=4),
        Finding("5 %", low, digits=4),
        Finding("95 %", high, digits=4),
        Finding("within", within, f"more than half {near}", peaked, percent=True),
        Finding("size of the change", size.by),
        Finding("size of the change, random", size.random),
        Finding("median distance from 1", off, _WIDER * wide, off > alone if wide else None, digits=4),
        Finding("median distance from 1, single signals", alone, digits=4),
    ]
    remark = (
        f"{MATTERS} A residual turns little whatever small part of it is removed. "
        + ("" if record.of.real else "A signal is a larger part of a residual of few dimensions. ")
        + f"{_VECTOR} {signals_note(record.of)}"
    )
    unless = "most are, and the same removals change the logit difference, in size, so that it matters"
    return Findings(rows, record.of, first=peaked and size.matters, unless=unless, remark=remark)


def _draw_residuals(record: Residuals, measure: Measured, together: bool) -> Mapping[str, Figure]:
    removals = record.local(together)
    title = f"{'Cosine' if measure == 'cosine' else 'Norm ratio'} of residuals after and before removal"
    figure, (axis,) = panels([""], title, (5.2, 3.2), x=measure, y="removals")
    axis.hist([getattr(removal, measure) for removal in removals], bins=40, color=BLUE)
    return {"residuals": figure} if removals else {}


def small(measure: Measured, *, together: bool) -> Experiment[Residuals]:
    """Of single signals, or of sets."""
    return Experiment(
        measure_residuals,
        partial(found_residuals, measure=measure, together=together),
        partial(_draw_residuals, measure=measure, together=together),
    )


_NINE = 0.9
_SELDOM = 0.05  # of random choices of slices, that may tell names as well
_DRAWS = 100  # of them


@dataclass(frozen=True)
class Apart:
    """How the signal differs between names and other words."""

    name: float
    other: float
    share: float  # of pairs of both, in which the name's is larger
    words: Mapping[tuple[str, bool], float]  # by the word, and whether it is a name


@dataclass(frozen=True)
class Words:
    """The signal in a name mover's frequent slices, and in random ones."""

    of: Provenance
    head: Head
    slices: int
    firings: int
    apart: Apart
    others: tuple[float, ...]  # shares in random slices


def measure_words(job: Job) -> Words:
    """The residual in the slices that the first name mover often uses, and in random ones."""
    of_job = prompted(job)
    movers = of_job.roles.get("name mover", ())
    if not movers:
        raise MissingModelError(
            f"no head of {of_job.model.name} is a name mover, since none looks from END at IO clearly more than at S1 "
            "and S2 in both orders of names and pushes the answer: give a model that has one."
        )
    head = movers[0]
    runs = of_job.model.run_many([example.text for example in of_job.examples])
    use = slice_use(runs, head, threshold=of_job.threshold)
    often = [int(k) for k in (use.used.double().mean(0) >= 0.4).nonzero()] or [int(use.counts.argmax())]
    shown = zip(of_job.examples, runs, strict=False)
    named = [{example.position(run, role) for role in ("IO", "S1", "S2")} for example, run in shown]
    apart = _apart(runs, named, head, often)
    others = (_apart(runs, named, head, chosen).share for chosen in _random_slices(of_job, head, len(often)))
    return Words(of_job.of, head, len(often), len(use.pairs), apart, tuple(others))


def _apart(runs: Sequence[Run], named: Sequence[set[int]], head: Head, often: list[int]) -> Apart:
    values: dict[bool, list[float]] = {True: [], False: []}
    words: dict[tuple[str, bool], list[float]] = defaultdict(list)
    for names, run in zip(named, runs, strict=True):
        for at, size in enumerate(_sizes(run, head, often)):
            if at:  # the first token is no word
                values[at in names].append(size)
                words[run.tokens[at].strip(), at in names].append(size)
    name, other = (torch.tensor(values[kind], dtype=torch.float64) for kind in (True, False))
    above = float((name[:, None] > other).double().mean() + (name[:, None] == other).double().mean() / 2)
    return Apart(
        float(name.mean()), float(other.mean()), above, {word: sum(sizes) / len(sizes) for word, sizes in words.items()}
    )


def _sizes(run: Run, head: Head, often: list[int]) -> list[float]:
    """How long is each token's normalised residual, as the head's keys read it, in these slices? |v_k . x|."""
    layer, index = head
    om, kv = omega(run.model, layer, "homogeneous"), run.model.folded(layer).kv(index)
    with exact_matmul():
        read = run.attention_run(layer).k[kv].to(om.G_s.dtype) @ om.G_s[index, often].T
    return [float(size) for size in read.norm(dim=-1)]


def _random_slices(of_job: Subject, head: Head, n: int) -> list[list[int]]:
    """As many slices, drawn among all of the head."""
    size = int(omega(of_job.model, head[0], "homogeneous").rank[head[1]])
    stream = torch.Generator().manual_seed(0)
    return [sorted(torch.randperm(size, generator=stream)[:n].tolist()) for _ in range(_DRAWS)]


def _limit(others: Sequence[float]) -> float:
    """What random slices hardly ever show."""
    return float(torch.tensor(others, dtype=torch.float64).quantile(1 - _SELDOM))


def separates(share: float, others: Sequence[float]) -> bool:
    """Does a name lie above another word in nine of ten, and more often than random slices show?

    >>> separates(0.95, [0.5, 0.6]), separates(0.95, [0.96, 0.97]), separates(0.8, [0.5, 0.6])
    (True, False, False)
    """
    return share > _NINE and share > _limit(others)


def found_words(record: Words) -> Findings:
    """Does the residual in a name mover's frequent slices separate names from other words?"""
    apart, others = record.apart, list(record.others)
    claim = f"nine in ten, and more than in {1 - _SELDOM:.0%} of random choices of as many slices"
    rows = [
        Finding("slices", record.slices),
        Finding("firings", record.firings),
        Finding("names", apart.name),
        Finding("other words", apart.other),
        Finding("name above other word", apart.share, claim, separates(apart.share, others)),
        Finding("name above other word, random slices", others),
        Finding("limit of random slices", _limit(others)),
    ]
    remark = f"The signal is that of head {head_name(record.head)}, in slices seen in 40 % of its firings or more."
    return Findings(rows, record.of, remark=remark)


def _draw_words(record: Words) -> Mapping[str, Figure]:
    words = record.apart.words
    shown = sorted(words, key=lambda word: -words[word])
    x = f"{len(shown)} words, from {plain(shown[0][0])} to {plain(shown[-1][0])}"
    title = f"Signal of head {head_name(record.head)} in each word, largest first"
    figure, (axis,) = panels([""], title, (9.0, 3.6), x=x, y="norm in the slices")
    axis.bar(range(len(shown)), [words[w] for w in shown], color=[RED if w[1] else GREY for w in shown], width=1.0)
    legend(figure, [Patch(color=RED, label="names"), Patch(color=GREY, label="other words")], columns=2, beneath=True)
    return {"words": figure}


RUNS: dict[str, Attempt] = {
    "svt-fig9": Experiment(measure_words, found_words, _draw_words),
    "svt-fig10": small("cosine", together=False),
    "svt-fig11": small("norm", together=False),
    "svt-fig12": small("cosine", together=True),
    "svt-fig13": small("norm", together=True),
    "svt-fig26": Experiment(measure_along, found_along, _draw_along),
}
