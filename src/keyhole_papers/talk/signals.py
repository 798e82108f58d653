"""Are traced signals thin, and do they matter? How many channels they have, and what their removal does."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import mean, median

import torch
from matplotlib.figure import Figure

from keyhole.circuits.circuit import Circuit
from keyhole.faithfulness.removals import Row
from keyhole.faithfulness.verification import verify
from keyhole.figures.style import BLUE, GREY, INK, panels
from keyhole.models.model import Model
from keyhole.stats import Interval
from keyhole.tasks.answers import answered
from keyhole.tasks.catalogue import prompts_for
from keyhole_papers.experiment import Attempt, Experiment, Job, loaded
from keyhole_papers.finding import Finding, Findings, Provenance, of_part, refuse
from keyhole_papers.results import Verdict
from keyhole_papers.svt import LEAST, trace_answer
from keyhole_papers.talk import published_name

_TASKS = ("ioi", "greater_than", "pronouns", "induction")  # of the last, no prompts were published
_QUICK = 3  # prompts of each task
_STAND_IN = 48  # circuits of each task whose signals are removed in another model than the published ones: an hour else
_CHANGE = 0.05  # of a log-probability, that counts
_EVERY = "GPT-2 small, Pythia-160M and Gemma-2-2B"


@dataclass(frozen=True)
class Traced:
    """The circuits of a model in several tasks."""

    model: Model
    source: str | None  # as it was given
    circuits: Mapping[str, tuple[Circuit, ...]]  # by task; one per prompt, and only with signals
    prompts: Mapping[str, str]  # which
    right: Mapping[str, int]  # of these, answered right

    @property
    def judged(self) -> list[str]:
        """Tasks with signals in enough prompts."""
        return [task for task, circuits in self.circuits.items() if len(circuits) >= LEAST]

    @property
    def of(self) -> Provenance:
        """What a result says of the model and its prompts."""
        right = "; ".join(f"{n} of {self.prompts[task]}" for task, n in self.right.items())
        published = f"{_EVERY}, of which none was run"
        return Provenance(self.source, published_name(self.source) is not None, published, f"answered right, {right}")

    @property
    def note(self) -> str:
        """Which tasks and published models a verdict leaves out."""
        few = [task for task in self.prompts if task not in self.judged]
        left = f"Not judged, with signals in fewer than {LEAST} prompts: {', '.join(few)}." if few else ""
        name = published_name(self.source)
        ran = f"Of the published {_EVERY}, {name} was run: one alone is a part of the claim." if name else ""
        return " ".join(text for text in (left, ran) if text)


def _traced(job: Job) -> Traced:
    """The circuits of a job's model, if there are any with signals."""
    traced = _circuits(job)
    if not traced.circuits:
        problem = "answers none of these prompts right, so that there is no circuit to trace"
        if any(traced.right.values()):
            problem = "answers without any signal between its parts, so that there is nothing to measure"
        published = published_name(job.model) is not None
        refuse(job.model, problem, "choose a model that solves these tasks", published=published)
    return traced


@lru_cache(maxsize=1)
def _circuits(job: Job) -> Traced:
    """A circuit for each prompt that the model answers right, traced once for both pictures."""
    model, most = loaded(job.model, job.device, job.dtype), _QUICK if job.quick else None
    prompts = {task.replace("_", " "): prompts_for(task, model, most, job.seed) for task in _TASKS}
    total, done = sum(len(chosen.examples) for chosen in prompts.values()), 0
    circuits: dict[str, tuple[Circuit, ...]] = {}
    right: dict[str, int] = {}
    for task, chosen in prompts.items():
        traced = []
        for example in chosen.examples:
            run = model.run(example.text)
            if answered(run, example).correct:
                traced.append(trace_answer(run, int(run.logits[-1].argmax())))
            done += 1
            job.progress(done, total)
        right[task] = len(traced)
        signals = [circuit for circuit in traced if circuit and any(edge.side != "target" for edge in circuit.edges)]
        if signals:  # without their runs: hundreds of these would take gigabytes
            circuits[task] = tuple(replace(circuit, run=None) for circuit in signals)
    return Traced(model, job.model, circuits, {task: chosen.about for task, chosen in prompts.items()}, right)


def _verdict(source: str | None, holds: list[bool]) -> Verdict:
    """Three models were published: one alone is a part of it, and one that fails refutes it."""
    if holds and 2 * sum(holds) >= len(holds):
        return "partly"
    return "not" if published_name(source) else "needs a model"


def _counts(record: Traced) -> dict[str, list[int]]:
    """Singular vectors of each signal."""
    return {
        task: [len(edge.channels) for circuit in circuits for edge in circuit.edges if edge.side != "target"]
        for task, circuits in record.circuits.items()
    }


def found_thin(record: Traced) -> Findings:
    """How many singular vectors has a signal? The median in every task."""
    rows = list[Finding]()
    for task, counts in _counts(record).items():
        thin = median(counts) == 1 if task in record.judged else None
        rows += of_part(
            task,
            Finding("median", median(counts), "1 in every task", thin, digits=1),
            Finding("share of rank one", sum(count == 1 for count in counts) / len(counts), percent=True),
            Finding("signals", len(counts)),
            Finding("prompts", len(record.circuits[task])),
        )
    return _findings(record, rows, f"Signals can have as many as {record.model.dims.d_head} singular vectors.")


def _findings(record: Traced, rows: Sequence[Finding], remark: str) -> Findings:
    """A claim is made of every task, and holds if it does in all that are judged."""
    claims: dict[str, list[bool]] = {}
    for row in rows:
        if row.holds is not None:
            claims.setdefault(row.claim, []).append(row.holds)
    verdict = _verdict(record.source, [all(holds) for holds in claims.values()])
    return Findings(rows, record.of, remark=f"{remark} {record.note}".strip(), judged=verdict)


def _draw_thin(record: Traced) -> Mapping[str, Figure]:
    counts, title = _counts(record), f"Singular vectors of a signal, {record.model.name.rpartition('/')[2]}"
    size, y = (2.6 * len(counts) + 0.6, 3.2), "share of signals"
    figure, axes = panels(counts, title, size, x="singular vectors", y=y)
    for axis, of_task in zip(axes, counts.values(), strict=True):
        share = (torch.tensor(of_task).bincount()[1:].double() / len(of_task)).tolist()
        axis.bar(range(1, len(share) + 1), share, color=BLUE)
    return {"ranks": figure}


@dataclass(frozen=True)
class Removed:
    """All signals of each firing's sides removed, in every task."""

    traced: Traced
    rows: Mapping[str, Sequence[Sequence[Row]]]  # by task: the sides of each prompt's firings

    @property
    def fewer(self) -> str:
        """Where signals were removed in some of the circuits alone."""
        less = any(len(self.rows[task]) < len(circuits) for task, circuits in self.traced.circuits.items())
        return f"Signals are removed in the first {_STAND_IN} circuits of a task. " if less else ""


def measure_removed(job: Job) -> Removed:
    """Each circuit's signals removed, and random channels."""
    traced, draws = _traced(job), 1 if job.quick else 3
    most = None if published_name(job.model) else _STAND_IN
    chosen = {task: circuits[:most] for task, circuits in traced.circuits.items()}
    every, rows = sum(map(len, chosen.values())), dict[str, list[list[Row]]]()
    for task, circuits in chosen.items():
        rows[task] = []
        for circuit in circuits:
            rows[task].append(list(verify(circuit, traced.model, mode="local", draws=draws, edges=False).sides))
            job.progress(sum(map(len, rows.values())), every)
    return Removed(traced, rows)


def _over(prompts: Sequence[Sequence[Row]], of: Callable[[Row], float]) -> Interval:
    """Prompts are the independent observations: the mean of each circuit's sides, then the interval over them."""
    return Interval.over(mean(of(row) for row in sides) for sides in prompts)


def _change(row: Row) -> float:
    return abs(row.metric_after - row.metric_before)


def _change_of_controls(row: Row) -> float:
    return mean(abs(value - row.metric_before) for value in row.control_metrics)


def found_removed(record: Removed) -> Findings:
    """Does removing a firing's signals change attention and answers, but hardly the residual, unlike random ones?"""
    rows, many = list[Finding](), "three times that of random channels or more (an interval over prompts)"
    for task, prompts in record.rows.items():
        drop, control = _over(prompts, lambda row: row.drop), _over(prompts, lambda row: row.control)
        answer, random = _over(prompts, _change), _over(prompts, _change_of_controls)
        turned = median(mean(row.cosine for row in sides) for sides in prompts)
        lost = _over(prompts, lambda row: row.drop - 3 * row.control)
        moved = _over(prompts, lambda row: _change(row) - 3 * _change_of_controls(row))
        holds = lost.low > 0, moved.low > 0 and answer.mean > _CHANGE, turned > 0.99
        falls, changes, hardly = holds if task in record.traced.judged else (None, None, None)
        rows += of_part(
            task,
            Finding("attention lost", drop, many, falls),
            Finding("attention lost, random", control),
            Finding("answer", answer, f"{many}, and more than {_CHANGE}", changes),
            Finding("answer, random", random),
            Finding("cosine", turned, "above .99", hardly, digits=4),
            Finding("sides of firings", sum(map(len, prompts))),
            Finding("prompts", len(prompts)),
        )
    remark = (
        "The answer is the change of its log-probability, the cosine a median of the residual's with what it was. "
        f"Each claim is made of every task. {record.fewer}"
    )
    return _findings(record.traced, rows, remark.strip())


def _draw_removed(record: Removed) -> Mapping[str, Figure]:
    title = "Attention lost when signals are removed (blue), and random channels (grey)"
    size, y = (2.6 * len(record.rows) + 0.8, 3.4), "attention lost"
    figure, axes = panels(record.rows, title, size, x="attention before", y=y)
    for axis, sides in zip(axes, record.rows.values(), strict=True):
        rows = [row for of_prompt in sides for row in of_prompt]
        before = [row.before for row in rows]
        axis.scatter(before, [row.control for row in rows], s=10, color=GREY, linewidths=0)
        axis.scatter(before, [row.drop for row in rows], s=10, color=BLUE, alpha=0.5, linewidths=0)
        axis.axhline(0, color=INK, linewidth=0.8)
    return {"removed": figure}


RUNS: dict[str, Attempt] = {
    "talk-10": Experiment(_traced, found_thin, _draw_thin),
    "talk-11": Experiment(measure_removed, found_removed, _draw_removed),
}
