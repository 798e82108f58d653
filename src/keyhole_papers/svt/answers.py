"""What are items asked about answers, and how are they drawn side by side?

Which circuits does singular vector tracing find behind IOI answers? Traced once, for their edges to be removed.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from matplotlib.figure import Figure

from keyhole.brief import Head
from keyhole.circuits.circuit import Circuit, Edge
from keyhole.circuits.records import SideName
from keyhole.errors import NothingToTraceError
from keyhole.figures.style import BLUE, INK, blank, heading, tidy
from keyhole.intervene.cuts import distinct_edges, parallel
from keyhole.intervene.removal import Cut, CutMode, Metric, intervene
from keyhole.models.run import Run
from keyhole.stats import Interval
from keyhole.tasks.example import Example
from keyhole.tracing.settings import SvtSettings
from keyhole.tracing.svt import trace_svt
from keyhole_papers.experiment import Job
from keyhole_papers.finding import Finding, Provenance
from keyhole_papers.svt import LEAST, Subject, is_gpt2, metric_of, subject

LOCAL = (
    "Local removal changes the head's query (at END) or key (at the source) alone; in the paper it changes the head's "
    "input at the token, and so its query, key and value."
)
_SIGNALS = (
    "The signal of an edge is what the whole upstream head writes into the slices of the firing that it feeds, removed "
    "at the one token where it is read."
)


def signals_note(of: Provenance) -> str:
    """Which signals are removed? Where tracing begins depends on the model."""
    start = "the name movers that fire on IO" if of.real else "the heads that push towards IO and against S"
    return f"Edges are those of singular vector tracing, from {start} down. {_SIGNALS}"


@dataclass(frozen=True)
class Answer:
    """The circuit behind one answer, and the logits of IO and S."""

    circuit: Circuit
    example: Example
    metric: Metric

    @property
    def run(self) -> Run:
        """What happened in its prompt."""
        assert self.circuit.run is not None
        return self.circuit.run

    @property
    def writers(self) -> Counter[Head]:
        """How many edges leave each head?"""
        nodes = [self.circuit.nodes[edge.sender] for edge in self.circuit.edges if edge.side != "target"]
        heads = [(n.layer, n.head) for n in nodes if n.kind == "head"]
        return Counter((layer, head) for layer, head in heads if layer is not None and head is not None)

    def into(self, head: Head, src: str, side: SideName) -> list[Edge]:
        """The edges into a head's firing from END on a role, at one of its tokens."""
        place = (*head, self.example.position(self.run, "END"), self.example.position(self.run, src))
        nodes = {i for i, n in enumerate(self.circuit.nodes) if (n.layer, n.head, n.dest, n.src) == place}
        return distinct_edges(self.circuit, (e for e in self.circuit.edges if e.receiver in nodes and e.side == side))

    def out_of(self, head: Head) -> list[Cut]:
        """All signals that leave a head, from whatever token."""
        nodes = [i for i, n in enumerate(self.circuit.nodes) if n.kind == "head" and (n.layer, n.head) == head]
        return parallel(self.circuit, *nodes)

    def changes(self, sets: Sequence[Sequence[Cut]], mode: CutMode) -> list[float]:
        """What each set, removed at once, does to the logit difference."""
        found = intervene(self.run, sets, self.metric, mode=mode)
        return [one.metric_after - one.metric_before for one in found]


@dataclass(frozen=True)
class Answers:
    """What could be traced in a model."""

    of: Provenance
    traced: tuple[Answer, ...]
    prompts: int  # with those in which nothing could be traced

    @property
    def skipped(self) -> int:
        """Prompts without a circuit."""
        return self.prompts - len(self.traced)

    @property
    def note(self) -> str:
        """What was traced, and in which prompts nothing was."""
        none = "no name mover fires on IO" if self.of.real else "no writer pushes towards IO"
        left = f"In {self.skipped} of {self.prompts} prompts {none}; they are left out. "
        changes = "Changes are of logit(IO) - logit(S), in prompts where each head has edges."
        return f"{signals_note(self.of)} {changes} {left if self.skipped else ''}{LOCAL}"


def answers(job: Job) -> Answers:
    """Circuits of a job's model, traced once for all figures."""
    return answers_of(subject(job))


@lru_cache(maxsize=1)
def answers_of(seen: Subject) -> Answers:
    """Circuits of the prompts in which there is something to trace."""
    found = []
    for example, run in seen.runs():
        metric = metric_of(example, run)
        with suppress(NothingToTraceError):
            found.append(Answer(_traced(seen, example, run, metric), example, metric))
    return Answers(replace(seen.of, heads=""), tuple(found), len(seen.examples))


def _traced(seen: Subject, example: Example, run: Run, metric: Metric) -> Circuit:
    """From the name movers of GPT-2, as published; in other models from the heads that push towards IO, against S."""
    start = firing_movers(seen, example, run) if is_gpt2(seen.asked.model) else None
    if start == []:
        raise NothingToTraceError("no name mover fires on IO.")
    settings = SvtSettings(threshold=seen.threshold, start=start)  # without a start, seeds are linear
    return trace_svt(run, metric.targets[0], against=metric.against[0], settings=settings)


def firing_movers(seen: Subject, example: Example, run: Run) -> list[tuple[int, int, int, int]]:
    """The name movers that fire from END on IO: enough weight, from a score that is not negative."""
    end, io = example.position(run, "END"), example.position(run, "IO")
    return [(*head, end, io) for head in seen.role("name mover") if io and _fires(run, head, end, io, seen.threshold)]


def _fires(run: Run, head: Head, dest: int, src: int, threshold: float) -> bool:
    record = run.attention_run(head[0])
    weight, score = (float(table([head[1]], [dest])[0, 0, src]) for table in (record.weights, record.scores))
    return weight >= threshold and score >= 0


def few(many: int, having: str) -> Finding:
    """Why nothing is judged."""
    return Finding("prompts", many, f"{LEAST} or more", False, part=f"With {having}")


# How do pictures of papers look alike? Panels under a heading, bars and dots with whiskers, clouds.


def panels(
    names: Iterable[str], title: str, size: tuple[float, float], *, x: str = "", y: str = "", sharey: bool = True
) -> tuple[Figure, list[Any]]:
    """A figure with a panel for each name, side by side; the first names the vertical axis."""
    named, figure = list(names), blank(*size)
    heading(figure, title)
    axes = list(figure.subplots(1, len(named), sharey=sharey, squeeze=False)[0])
    for axis, name in zip(axes, named, strict=True):
        tidy(axis, name, x=x, y=y if axis is axes[0] else "")
    return figure, axes


def whiskers(axis: Any, means: Mapping[str, Interval], shades: Sequence[str], width: float) -> None:
    """A bar for each mean, with its interval."""
    for at, (one, shade) in enumerate(zip(means.values(), shades, strict=True)):
        axis.bar([at], [one.mean], color=shade, width=width)
        axis.plot([at, at], [one.low, one.high], color=INK, linewidth=1.2)
    axis.axhline(0, color=INK, linewidth=0.8)


def spreads(
    rows: Mapping[str, Sequence[tuple[Interval, str]]], title: str, size: tuple[float, float], x: str
) -> tuple[Figure, Any]:
    """A line of dots with their intervals for each name, from above, each dot in its shade."""
    figure, (axis,) = panels([""], title, (size[0], size[1] * len(rows) + 1.8), x=x)
    for at, dots in enumerate(rows.values()):
        for number, (spread, shade) in enumerate(dots):
            height = at + 0.24 * (number - (len(dots) - 1) / 2)
            axis.plot([spread.low, spread.high], [height] * 2, color=INK, linewidth=1)
            axis.plot([spread.mean], [height], "o", color=shade, markersize=7)
    axis.set_yticks(range(len(rows)), list(rows))
    axis.set_ylim(len(rows) - 0.5, -0.5)
    return figure, axis


def cloud(axis: Any, x: Sequence[float], y: Sequence[float]) -> None:
    """A point for each observation."""
    axis.scatter(x, y, s=14, color=BLUE, alpha=0.5, linewidths=0)
