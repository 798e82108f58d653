"""Which circuits does singular vector tracing find behind IOI answers, and what if all edges out of a head go?

Circuits are traced once for all figures, for their edges to be removed.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations

import torch
from matplotlib.figure import Figure

from keyhole.brief import Head, head_name
from keyhole.circuits.circuit import Circuit, Edge
from keyhole.circuits.records import SideName
from keyhole.errors import NothingToTraceError
from keyhole.figures.style import BLUE, GREY, panels
from keyhole.intervene.cuts import distinct_edges, parallel
from keyhole.intervene.removal import Cut, CutMode, Metric, intervene, random_cut
from keyhole.models.run import Run
from keyhole.progress import Progress, silent
from keyhole.stats import Interval
from keyhole.tasks.example import Example
from keyhole.tracing.settings import SvtSettings
from keyhole.tracing.svt import trace_svt
from keyhole_papers.experiment import Attempt, Experiment, Job, whiskers
from keyhole_papers.finding import NO_CLAIM, Claim, Finding, Findings, Provenance, Value, of_part, rows_of
from keyhole_papers.svt import ADDS, LEAST, Pair, Subject, is_gpt2, metric_of, role_rule, subject, sums_of

MODES: tuple[CutMode, CutMode] = ("global", "local")
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
        """Of its prompt."""
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
        removals = intervene(self.run, sets, self.metric, mode=mode)
        return [removal.metric_after - removal.metric_before for removal in removals]


@dataclass(frozen=True)
class Answers:
    """All that could be traced in a model."""

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


@lru_cache(maxsize=1)
def answers(job: Job) -> Answers:
    """Circuits of a job's model, traced once for all figures."""
    return answers_of(subject(job), job.progress)


def answers_of(of_job: Subject, progress: Progress = silent) -> Answers:
    """Circuits of the prompts in which there is something to trace."""
    traced = []
    for example, run in of_job.runs(progress=progress):
        metric = metric_of(example, run)
        with suppress(NothingToTraceError):
            traced.append(Answer(_traced(of_job, example, run, metric), example, metric))
    return Answers(replace(of_job.of, heads=""), tuple(traced), len(of_job.examples))


def _traced(of_job: Subject, example: Example, run: Run, metric: Metric) -> Circuit:
    """From the name movers of GPT-2, as published; in other models from the heads that push towards IO, against S."""
    start = firing_movers(of_job, example, run) if is_gpt2(of_job.source) else None
    if start == []:
        raise NothingToTraceError("no name mover fires on IO.")
    settings = SvtSettings(threshold=of_job.threshold, start=start)  # without a start, seeds are linear
    return trace_svt(run, metric.targets[0], against=metric.against[0], settings=settings)


def firing_movers(of_job: Subject, example: Example, run: Run) -> list[tuple[int, int, int, int]]:
    """The name movers that fire from END on IO: enough weight, from a score that is not negative."""
    end, io = example.position(run, "END"), example.position(run, "IO")
    movers = of_job.role("name mover")
    return [(*head, end, io) for head in movers if io and _fires(run, head, end, io, of_job.threshold)]


def _fires(run: Run, head: Head, dest: int, src: int, threshold: float) -> bool:
    record = run.attention_run(head[0])
    weight, score = (float(table([head[1]], [dest])[0, 0, src]) for table in (record.weights, record.scores))
    return weight >= threshold and score >= 0


def prompts_with(many: int, having: str) -> Finding:
    """In how many prompts were edges removed? Nothing is judged in too few."""
    claim = NO_CLAIM if many >= LEAST else (f"{LEAST} or more", False)
    return Finding("prompts", many, *claim, part=f"With {having}")


@dataclass(frozen=True)
class Removal:
    """What the removal of edges does to the logit difference of one prompt."""

    each: tuple[float, ...]  # the edges of one head after the other
    every: float  # those of all heads at once
    random: float  # as many random channels of all


@dataclass(frozen=True)
class OutOf:
    """All edges out of some heads removed, in prompts where each of them has edges."""

    answers: Answers
    heads: tuple[Head, ...]  # none where no edges leave such heads
    prompts: int
    rows: Mapping[CutMode, Sequence[Removal]]  # one per prompt; none where those are too few

    @property
    def names(self) -> str:
        """The heads in words."""
        return " and ".join(map(head_name, self.heads))

    @property
    def counted(self) -> Finding:
        """In how many prompts all edges were removed."""
        many = self.prompts if self.heads else 0  # without heads, nothing is removed in any prompt
        return prompts_with(many, f"edges out of {self.names or 'such heads'}")

    def over(self, mode: CutMode, of: Callable[[Removal], float]) -> Interval:
        """The mean over prompts."""
        return Interval.over(of(row) for row in self.rows[mode])

    def means(self, mode: CutMode) -> dict[str, Interval]:
        """By what was removed."""
        last = {"random": self.over(mode, lambda row: row.random)}
        every = self.over(mode, lambda row: row.every)
        if len(self.heads) == 1:
            return {"removed": every, **last}
        each = zip(*(row.each for row in self.rows[mode]), strict=True)
        named = {head_name(head): Interval.over(changes) for head, changes in zip(self.heads, each, strict=True)}
        return {**named, "both": every, **last}


def _out_of(traced: Answers, heads: Sequence[Head]) -> OutOf:
    having = [(answer, sets) for answer in traced.traced if all(sets := [answer.out_of(head) for head in heads])]
    rows: dict[CutMode, list[Removal]] = {}
    for mode in MODES if heads and len(having) >= LEAST else ():
        generator, rows[mode] = torch.Generator().manual_seed(0), []
        for answer, sets in having:
            every = [cut for cuts in sets for cut in cuts]
            others = [random_cut(answer.run, cut, generator) for cut in every]
            changes = answer.changes([*sets, *([every] if len(sets) > 1 else []), others], mode)
            rows[mode].append(Removal(tuple(changes[: len(sets)]), *changes[-2:]))
    return OutOf(traced, tuple(heads), len(having), rows)


def _draw(record: OutOf) -> Mapping[str, Figure]:
    if not record.rows:
        return {}
    size, y = (max(5.0, 3.0 * len(record.rows)), 3.4), "change of the logit difference"
    figure, axes = panels(record.rows, f"All edges out of {record.names} removed", size, y=y)
    for axis, means in zip(axes, map(record.means, record.rows), strict=True):
        whiskers(axis, means, [GREY if label == "random" else BLUE for label in means], 0.7)
    return {"removed": figure}


def measure_two(job: Job) -> OutOf:
    """0.9 and 0.11, or two heads that most often have edges in the same prompt."""
    traced = answers(job)
    if is_gpt2(job.model):
        return _out_of(traced, ((0, 9), (0, 11)))
    movers = set(subject(job).roles.get("name mover", ()))
    pairs = Counter(pair for answer in traced.traced for pair in combinations(sorted(set(answer.writers) - movers), 2))
    return _out_of(traced, pairs.most_common(1)[0][0] if pairs else ())


def found_two(record: OutOf) -> Findings:
    """Do the effects of all edges out of two upstream heads add up, and does local removal do less?"""
    rows, holds = [record.counted], list[bool]()
    claim = f"a loss whose interval excludes 0, more than twice that of random channels, and {ADDS}"
    for mode in record.rows:
        means, sums = record.means(mode), sums_of([Pair(sum(row.each), row.every) for row in record.rows[mode]])
        both = means["both"]
        holds.append(both.high < 0 and abs(means["random"].mean) < -both.mean / 2 and sums.adds)
        values: dict[str, Value] = {**means, "sum": sums.summed, "share of the sum": sums.share}
        rows += of_part(mode, *rows_of(values, {"both": (claim, holds[-1])}))
    if record.rows:
        pairs = zip(record.rows["local"], record.rows["global"], strict=True)
        less = Interval.over(local.every - everywhere.every for local, everywhere in pairs)
        rows.append(Finding("local above global", less, "an interval above 0", less.low > 0))
    why = "Two heads, no name movers, that most often have edges in the same prompt stand for 0.9 and 0.11. "
    remark = f"{'' if record.answers.of.real else why}{record.answers.note}"
    return Findings(rows, record.answers.of, first=any(holds[:1]), unless="the first holds globally", remark=remark)


def measure_unknown(job: Job) -> OutOf:
    """2.8, or of heads without a role that with most edges."""
    traced = answers(job)
    if is_gpt2(job.model):
        return _out_of(traced, ((2, 8),))
    known = {head for heads in subject(job).roles.values() for head in heads}
    counts = Counter(head for answer in traced.traced for head in answer.writers.elements() if head not in known)
    return _out_of(traced, [head for head, _ in counts.most_common(1)])


def found_unknown(record: OutOf) -> Findings:
    """Does a head without a known role matter for the answer?"""
    rows = [record.counted]
    for mode in record.rows:
        means, size = record.means(mode), record.over(mode, lambda row: abs(row.every))
        chance = record.over(mode, lambda row: abs(row.random))
        matters = means["removed"].beyond_doubt and size.low > chance.high
        claim: Claim = "a change whose interval excludes 0, in size beyond that of random channels", matters
        values: dict[str, Value] = {**means, "absolute": size, "absolute, random": chance}
        rows += of_part(mode, *rows_of(values, {"removed": claim}))
    why = f"{record.names}, of heads without a role that with most edges, stands for 2.8. "
    of = replace(record.answers.of, heads=role_rule(record.answers.of.model))
    return Findings(rows, of, remark=f"{'' if of.real else why}{record.answers.note}")


RUNS: dict[str, Attempt] = {
    "svt-fig7": Experiment(measure_two, found_two, _draw),
    "svt-fig28": Experiment(measure_unknown, found_unknown, _draw),
}
