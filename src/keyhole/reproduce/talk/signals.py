"""Are traced signals thin, and do they matter? How many channels they have, and what their removal does."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import mean, median

import torch
from matplotlib.figure import Figure

from keyhole.circuits.circuit import Circuit
from keyhole.errors import KeyholeError, MissingModelError
from keyhole.figures import save
from keyhole.figures.style import BLUE, GREY, INK, blank, heading, tidy
from keyhole.intervene.verification import Row, verify
from keyhole.models.load import load
from keyhole.models.model import Model
from keyhole.reproduce.job import Asked, Attempt, Job, Numbers
from keyhole.reproduce.outcome import Outcome, Verdict
from keyhole.reproduce.svt.ioi import LEAST, trace_answer
from keyhole.stats import as_text, interval
from keyhole.tasks import greater_than, induction, ioi, pronouns
from keyhole.tasks.example import Example

_TASKS: dict[str, Callable[..., list[Example]]] = {
    "ioi": ioi,
    "greater than": greater_than,
    "pronouns": pronouns,
    "induction": induction,
}
_CHANGE = 0.05  # of a log-probability, that counts
_MODELS = {"gpt2": "GPT-2", "pythia-160m": "Pythia-160M", "gemma-2-2b": "Gemma-2-2B"}  # the published ones


@dataclass(frozen=True)
class _Traced:
    model: Model
    circuits: dict[str, tuple[Circuit, ...]]  # by task; one per prompt, and only with signals
    right: dict[str, int]  # prompts that are answered right


def _traced(job: Job) -> _Traced:
    """The circuits of a job's model, if there are any with signals."""
    seen = _circuits(job.asked)
    if seen.circuits:
        return seen
    why = "answers none of these prompts right, so that there is no circuit to trace"
    if any(seen.right.values()):
        why = "answers without any signal between its parts, so that there is nothing to measure"
    said = f"{job.model or 'the built-in organism'} {why}: choose a model that solves these tasks."
    raise KeyholeError(said) if _published(job.model) else MissingModelError(said)


@lru_cache(maxsize=1)
def _circuits(asked: Asked) -> _Traced:
    """A circuit for each prompt that the model answers right, traced once for both pictures."""
    model = load(asked.model, device=asked.device)
    n = 3 if asked.quick else 24
    found: dict[str, tuple[Circuit, ...]] = {}
    right: dict[str, int] = {}
    for number, (name, make) in enumerate(_TASKS.items()):
        own = []
        for example in make(n, asked.seed, held_out=True):
            run = model.run(example.text)
            answer = int(run.logits[-1].argmax())
            if model.tokenizer.decode([answer]).strip() in example.answers:
                own.append(trace_answer(run, answer))
        right[name] = len(own)
        found[name] = tuple(one for one in own if one and any(edge.side != "target" for edge in one.edges))
        asked.progress(number + 1, len(_TASKS))
    return _Traced(model, {task: own for task, own in found.items() if own}, right)


def thin(job: Job) -> Outcome:
    """How many singular vectors has a signal? The median in every task."""
    seen = _traced(job)
    counts = {
        task: [len(edge.channels) for circuit in circuits for edge in circuit.edges if edge.side != "target"]
        for task, circuits in seen.circuits.items()
    }
    middles = {task: median(own) for task, own in counts.items()}
    ones = {task: sum(count == 1 for count in own) / len(own) for task, own in counts.items()}
    numbers: Numbers = {f"{task}: median": middle for task, middle in middles.items()}
    numbers |= {f"{task}: share of rank one": share for task, share in ones.items()}
    numbers |= {f"{task}: prompts": len(circuits) for task, circuits in seen.circuits.items()}
    text = "; ".join(
        f"{task}: median {middles[task]:g} of {seen.model.dims.d_head} in {len(own)} signals of "
        f"{len(seen.circuits[task])} prompts, {ones[task]:.0%} of rank one"
        for task, own in counts.items()
    )
    figure = blank(2.6 * len(counts) + 0.6, 3.2)
    heading(figure, f"Singular vectors of a signal, {seen.model.name.rpartition('/')[2]}")
    axes = figure.subplots(1, len(counts), sharey=True, squeeze=False)[0]
    for axis, (task, own) in zip(axes, counts.items(), strict=True):
        share = (torch.tensor(own).bincount()[1:].double() / len(own)).tolist()
        tidy(axis, task, x="singular vectors", y="share of signals" if axis is axes[0] else "")
        axis.bar(range(1, len(share) + 1), share, color=BLUE)
    path = save(figure, job.folder / "ranks.png")
    judged = _judged_tasks(seen)
    holds = [bool(judged) and all(middles[task] == 1 for task in judged)]
    note = f"Asked: a median of 1 in every task. {_note(job, seen)}"
    return Outcome(_verdict(job, holds), f"{text}.", numbers, (path,), note)


def removed(job: Job) -> Outcome:
    """Does removing a firing's signals change attention and answers, but hardly the residual, unlike random ones?"""
    seen = _traced(job)
    draws = 1 if job.quick else 3
    numbers: Numbers = {}
    lines, rows = [], {}
    shown: dict[str, list[bool]] = {}
    for task, circuits in seen.circuits.items():
        own = [list(verify(one, mode="local", draws=draws, edges=False).sides) for one in circuits]
        rows[task] = [row for sides in own for row in sides]
        drop, control = (_over(own, of) for of in (lambda row: row.drop, lambda row: row.control))
        answer, other = _over(own, _change), _over(own, _change_of_controls)
        lost, moved = (
            _over(own, lambda row: row.drop - 3 * row.control),
            _over(own, lambda row: _change(row) - 3 * _change_of_controls(row)),
        )
        turned = median(mean(row.cosine for row in sides) for sides in own)
        numbers |= {f"{task}: attention lost": list(drop), f"{task}: attention lost, random": list(control)}
        numbers |= {f"{task}: answer": list(answer), f"{task}: answer, random": list(other), f"{task}: cosine": turned}
        numbers[f"{task}: prompts"] = len(own)
        shown[task] = [lost[1] > 0, moved[1] > 0 and answer[0] > _CHANGE, turned > 0.99]
        lines.append(
            f"{task}, {len(rows[task])} sides of firings in {len(own)} prompts: attention falls by {as_text(drop)} "
            f"(random {control[0]:.3f}), the answer's log-probability changes by {as_text(answer)} (random "
            f"{other[0]:.3f}), the residual's median cosine is {turned:.4f}."
        )
    path = save(_removed_figure(rows), job.folder / "removed.png")
    note = (
        "Asked in every task: attention and the answer change more than three times as much as with random channels "
        f"(intervals over prompts), the answer by more than {_CHANGE}, and a cosine above .99. {_note(job, seen)}"
    )
    holds = [all(held) for held in zip(*(shown[task] for task in _judged_tasks(seen)), strict=True)]
    return Outcome(_verdict(job, holds), "\n".join(lines), numbers, (path,), note)


def _over(own: Sequence[Sequence[Row]], of: Callable[[Row], float]) -> tuple[float, float, float]:
    """Prompts are the independent observations: the mean of each circuit's sides, then the interval over them."""
    return interval([mean(of(row) for row in sides) for sides in own])


def _change(row: Row) -> float:
    return abs(row.metric_after - row.metric_before)


def _change_of_controls(row: Row) -> float:
    return mean(abs(value - row.metric_before) for value in row.control_metrics)


def _removed_figure(rows: dict[str, list[Row]]) -> Figure:
    figure = blank(2.6 * len(rows) + 0.8, 3.4)
    heading(figure, "Attention lost when signals are removed (blue), and random channels (grey)")
    axes = figure.subplots(1, len(rows), sharey=True, squeeze=False)[0]
    for axis, (task, own) in zip(axes, rows.items(), strict=True):
        tidy(axis, task, x="attention before", y="attention lost" if axis is axes[0] else "")
        axis.scatter([row.before for row in own], [row.control for row in own], s=10, color=GREY, linewidths=0)
        axis.scatter([row.before for row in own], [row.drop for row in own], s=10, color=BLUE, alpha=0.5, linewidths=0)
        axis.axhline(0, color=INK, linewidth=0.8)
    return figure


def _judged_tasks(seen: _Traced) -> list[str]:
    """Those with signals in enough prompts."""
    return [task for task, circuits in seen.circuits.items() if len(circuits) >= LEAST]


def _published(source: str | None) -> str | None:
    """What a published model is called, if it is one."""
    return _MODELS.get((source or "").rstrip("/").rpartition("/")[2].lower())


def _verdict(job: Job, holds: list[bool]) -> Verdict:
    """Three models were published: one alone is a part of it, and one that fails refutes it."""
    if holds and 2 * sum(holds) >= len(holds):
        return "partly"
    return "not" if _published(job.model) else "needs a model"


def _note(job: Job, seen: _Traced) -> str:
    """Who was measured, and in what."""
    judged = _judged_tasks(seen)
    few = [task for task in _TASKS if task not in judged]
    left = f" Not judged, with signals in fewer than {LEAST} prompts: {', '.join(few)}." if few else ""
    right = ", ".join(f"{task} {n}" for task, n in seen.right.items())
    own, names = _published(job.model), list(_MODELS.values())
    every = f"{', '.join(names[:-1])} and {names[-1]}"
    ran = f"Of the published {every}, {own} was run: one alone is a part of the claim." if own else ""
    stood = "" if own else f"{job.model or 'The built-in organism'} stood in for {every}, of which none was run."
    return f"Held-out prompts that are answered right: {right}.{left} {ran}{stood}"


RUNS: dict[str, Attempt] = {"talk-10": thin, "talk-11": removed}
