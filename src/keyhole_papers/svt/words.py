"""Does the signal that a name mover listens to tell names from other words?"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from keyhole.errors import MissingModelError
from keyhole.figures.style import GREY, RED, legend, plain
from keyhole.models.heads import Head, head_name
from keyhole.models.numbers.precision import exact_matmul
from keyhole.models.run import Run
from keyhole.qk.omega import omega
from keyhole.qk.slices import slice_use
from keyhole_papers.experiment import Experiment
from keyhole_papers.finding import Finding, Findings
from keyhole_papers.job import Attempt, Job
from keyhole_papers.provenance import Provenance
from keyhole_papers.svt.ioi import Measured, is_gpt2, measured
from keyhole_papers.svt.panels import panels

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


def measure(job: Job) -> Words:
    """The residual in the slices that the first name mover often uses, and in random ones."""
    seen = measured(job)
    movers = seen.roles.get("name mover", ())
    if not movers:
        raise MissingModelError(
            f"no head of {seen.model.name} is a name mover, since none looks from END at IO clearly more than at S1 "
            "and S2 in both orders of names and pushes the answer: give a model that has one."
        )
    head = movers[0]
    runs = seen.model.run_many([one.text for one in seen.examples])
    use = slice_use(runs, head, threshold=0.5 if is_gpt2(job.model) else 0.25)
    often = [int(k) for k in (use.used.double().mean(0) >= 0.4).nonzero()] or [int(use.counts.argmax())]
    shown = zip(seen.examples, runs, strict=False)
    named = [{example.position(run, role) for role in ("IO", "S1", "S2")} for example, run in shown]
    apart = _apart(runs, named, head, often)
    others = (_apart(runs, named, head, chosen).share for chosen in _random_slices(seen, head, len(often)))
    return Words(seen.of, head, len(often), len(use.pairs), apart, tuple(others))


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
        float(name.mean()), float(other.mean()), above, {word: sum(own) / len(own) for word, own in words.items()}
    )


def _sizes(run: Run, head: Head, often: list[int]) -> list[float]:
    """How long is each token's normalised residual, as the head's keys read it, in these slices? |v_k . x|."""
    layer, index = head
    om, kv = omega(run.model, layer, "homogeneous"), run.model.weights(layer).kv(index)
    with exact_matmul():
        read = run.layer(layer).k[kv].to(om.G_s.dtype) @ om.G_s[index, often].T
    return [float(size) for size in read.norm(dim=-1)]


def _random_slices(seen: Measured, head: Head, n: int) -> list[list[int]]:
    """As many slices, drawn among all of the head."""
    size = int(omega(seen.model, head[0], "homogeneous").rank[head[1]])
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


def findings(record: Words) -> Findings:
    """Does the residual in a name mover's frequent slices separate names from other words?"""
    apart, others = record.apart, list(record.others)
    asked = f"nine in ten, and more than in {1 - _SELDOM:.0%} of random choices of as many slices"
    rows = [
        Finding("slices", record.slices),
        Finding("firings", record.firings),
        Finding("names", apart.name),
        Finding("other words", apart.other),
        Finding("name above other word", apart.share, asked, separates(apart.share, others)),
        Finding("name above other word, random slices", others),
        Finding("limit of random slices", _limit(others)),
    ]
    remark = f"The signal is that of head {head_name(record.head)}, in slices seen in 40 % of its firings or more."
    return Findings(rows, record.of, remark=remark)


def _draw(record: Words) -> Mapping[str, Figure]:
    words = record.apart.words
    shown = sorted(words, key=lambda word: -words[word])
    x = f"{len(shown)} words, from {plain(shown[0][0])} to {plain(shown[-1][0])}"
    title = f"Signal of head {head_name(record.head)} in each word, largest first"
    figure, (axis,) = panels([""], title, (9.0, 3.6), x=x, y="norm in the slices")
    axis.bar(range(len(shown)), [words[w] for w in shown], color=[RED if w[1] else GREY for w in shown], width=1.0)
    legend(figure, [Patch(color=RED, label="names"), Patch(color=GREY, label="other words")], columns=2, beneath=True)
    return {"words": figure}


RUNS: dict[str, Attempt] = {"svt-fig9": Experiment(measure, findings, _draw)}
