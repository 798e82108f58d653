"""Who writes what heads read, and in which words?

Who writes to name movers? What upstream heads contribute in the slices of a firing, and in all slices.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor

from keyhole.brief import Head, head_name
from keyhole.errors import MissingModelError
from keyhole.figures.style import GREY, RED, legend, plain
from keyhole.models.numbers import exact_matmul
from keyhole.models.run import Run
from keyhole.qk.controls import slice_use
from keyhole.qk.omega import omega
from keyhole.stats import Interval
from keyhole.tracing.settings import ChannelChoice
from keyhole.tracing.svt import contributions, significant
from keyhole_papers.experiment import Attempt, Experiment, Job
from keyhole_papers.finding import Finding, Findings, Provenance, of_part
from keyhole_papers.svt import LEAST, Measured, Subject, is_gpt2, listed, measured, subject
from keyhole_papers.svt.answers import panels
from keyhole_papers.svt.known import known_here

_KINDS: tuple[ChannelChoice, ChannelChoice] = ("singular", "all")
_OTHERS: dict[Head, tuple[Head, ...]] = {(9, 9): ((7, 3), (7, 9))}  # published beside 8.6


@dataclass(frozen=True)
class Heard:
    """What upstream heads contribute to a name mover at END."""

    head: Head
    singular: Tensor  # layer x head, in the slices of the firing, mean over prompts
    whole: Tensor  # in all slices
    some: tuple[int, ...]  # heads that matter in each prompt, in the slices of the firing
    every: tuple[int, ...]  # in all slices
    largest: tuple[Head, ...]  # three, in the slices of the firing

    @property
    def fewer(self) -> Interval:
        """How many more heads matter in the slices of the firing than in all?"""
        return Interval.over(float(a - b) for a, b in zip(self.some, self.every, strict=True))


@dataclass(frozen=True)
class Filtered:
    """Two name movers."""

    of: Provenance
    prompts: int
    inhibits: tuple[Head, ...]
    movers: tuple[Heard, ...]


def measure(job: Job) -> Filtered:
    """What upstream heads contribute, with and without the choice of slices."""
    seen = subject(job)
    movers, inhibits = seen.role("name mover")[:2], seen.role("S-inhibition")
    heard = tuple(_heard(seen, head) for head in movers)
    return Filtered(seen.of, len(seen.examples), inhibits, heard)


def _heard(seen: Subject, head: Head) -> Heard:
    (values, some), (whole, every) = (_contributed(seen, head, kind) for kind in _KINDS)
    top = [divmod(int(i), values.shape[1]) for i in values.flatten().argsort(descending=True)[:3]]
    largest = tuple((seen.model.attention_layers[row], column) for row, column in top)
    return Heard(head, values, whole, some, every, largest)


def _contributed(seen: Subject, head: Head, kind: ChannelChoice) -> tuple[Tensor, tuple[int, ...]]:
    """Mean contribution of every upstream head at END, each prompt's scaled to its largest, and how many matter."""
    total, chosen = [], []
    for example, run in seen.runs():
        found = contributions(run, head, example.position(run, "END"), example.position(run, "IO"), channels=kind)
        values = found.at_dest.double().cpu()
        total.append(values / values.abs().max().clamp_min(1e-30))
        chosen.append(int(significant(values).sum()))
    return torch.stack(total).mean(0), tuple(chosen)


def findings(record: Filtered) -> Findings:
    """Do the slices of a firing single out the heads that matter, where the whole residual shows many?"""
    rows, stands_out = list[Finding](), list[bool]()
    for one in record.movers:
        wanted = _OTHERS.get(one.head, ()) if record.of.real else ()
        stands_out.append(one.largest[0] in record.inhibits and set(wanted) <= set(one.largest))
        some, every = (sum(counts) / len(counts) for counts in (one.some, one.every))
        beside = f", with {listed(wanted)} next to it" if wanted else ""
        rows += of_part(
            f"{head_name(one.head)} at END",
            Finding("heads, singular", some, digits=1),
            Finding("heads, all", every, digits=1),
            Finding("fewer", one.fewer, "an interval below 0", one.fewer.high < 0, digits=1),
            Finding("largest", listed(one.largest), f"an S-inhibition head first{beside}", stands_out[-1]),
        )
    remark = (
        "Heads: those that 70 % of all contributions come from, in the slices of the firing (singular) and in all "
        f"slices; means over {record.prompts} prompts. S-inhibition heads: {listed(record.inhibits)}. "
        f"{known_here(record.of)}"
    )
    first = any(stands_out) and record.prompts >= LEAST
    unless = "an S-inhibition head is the largest of one of them"
    return Findings(rows, record.of, first=first, unless=unless, remark=remark)


def _draw(record: Filtered) -> Mapping[str, Figure]:
    maps: dict[str, Tensor] = {}
    for one in record.movers:
        name = head_name(one.head)
        maps |= {f"{name}, all slices": one.whole, f"{name}, slices of the firing": one.singular}
    layers, heads = record.movers[0].whole.shape
    size = 0.9 + len(maps) * (0.28 * heads + 1.0), 1.8 + 0.3 * layers
    title = "What upstream heads contribute at END, mean over prompts"
    figure, axes = panels(maps, title, size, x="head", y="layer", sharey=False)
    for axis, values in zip(axes, maps.values(), strict=True):
        axis.imshow(values.tolist(), cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto", origin="lower")
        axis.set_yticks(range(values.shape[0]))
    return {"contributions": figure}


# Does the signal that a name mover listens to tell names from other words?

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
    om, kv = omega(run.model, layer, "homogeneous"), run.model.folded(layer).kv(index)
    with exact_matmul():
        read = run.attention_run(layer).k[kv].to(om.G_s.dtype) @ om.G_s[index, often].T
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


def found_words(record: Words) -> Findings:
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
    "svt-fig4": Experiment(measure, findings, _draw),
    "svt-fig9": Experiment(measure_words, found_words, _draw_words),
}
