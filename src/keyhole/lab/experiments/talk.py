"""Are traced signals thin, and do they matter? How many channels they have, and what their removal does."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from statistics import median

import torch
from matplotlib.figure import Figure

from keyhole.circuits.circuit import Circuit
from keyhole.errors import KeyholeError
from keyhole.figures import save
from keyhole.figures.style import BLUE, GREY, INK, blank, heading, tidy
from keyhole.intervene.verify import Row, verify
from keyhole.lab.intervals import interval
from keyhole.lab.ioi_studies import Asked
from keyhole.lab.job import Experiment, Job, Numbers, load_model
from keyhole.lab.outcome import Outcome, Verdict
from keyhole.models.model import Model
from keyhole.tasks import greater_than, induction, ioi, pronouns
from keyhole.tasks.example import Example

_TASKS: dict[str, Callable[[int, int], list[Example]]] = {
    "ioi": ioi,
    "greater than": greater_than,
    "pronouns": pronouns,
    "induction": induction,
}
_LEAST = 0.05  # change of a log-probability that counts
_MODELS = "GPT-2, Pythia-160M and Gemma-2-2B"


@dataclass(frozen=True)
class _Traced:
    model: Model
    circuits: dict[str, tuple[Circuit, ...]]  # by task


def _traced(job: Job) -> _Traced:
    return _circuits(Asked(job.model, job.device, job.quick, job.seed, job.progress))


@lru_cache(maxsize=1)
def _circuits(asked: Asked) -> _Traced:
    """A circuit for each prompt that the model answers right, traced once for both pictures."""
    model = load_model(asked.model, asked.device)
    n = 3 if asked.quick else 24
    found: dict[str, tuple[Circuit, ...]] = {}
    for number, (name, make) in enumerate(_TASKS.items()):
        own = []
        for example in make(n, asked.seed):
            run = model.run(example.text)
            answer = model.tokenizer.decode([int(run.logits[-1].argmax())]).strip()
            if answer in example.answers:
                own.append(run.trace(int(run.logits[-1].argmax())))
        if own:
            found[name] = tuple(own)
        asked.progress(number + 1, len(_TASKS))
    if not found:
        raise KeyholeError(f"{model.name} answers none of these prompts right, so there is no circuit to trace.")
    return _Traced(model, found)


def thin(job: Job) -> Outcome:
    """How many singular vectors has a signal? The median in every task."""
    seen = _traced(job)
    counts = {
        task: [len(edge.channels) for circuit in circuits for edge in circuit.edges if edge.side != "target"]
        for task, circuits in seen.circuits.items()
    }
    counts = {task: own for task, own in counts.items() if own}
    middles = {task: median(own) for task, own in counts.items()}
    ones = {task: sum(count == 1 for count in own) / len(own) for task, own in counts.items()}
    numbers: Numbers = {f"{task}: median": middle for task, middle in middles.items()}
    numbers |= {f"{task}: share of rank one": share for task, share in ones.items()}
    text = "; ".join(
        f"{task}: median {middles[task]:g} of {seen.model.dims.d_head} in {len(own)} signals, "
        f"{ones[task]:.0%} of rank one"
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
    holds = all(middle == 1 for middle in middles.values())
    return Outcome(_verdict([holds]), f"{text}.", numbers, (path,), _note(job, seen))


def removed(job: Job) -> Outcome:
    """Does removing a firing's signals change attention and answers, but hardly the residual, unlike random ones?"""
    seen = _traced(job)
    numbers: Numbers = {}
    lines, holds, rows = [], [], {}
    for task, circuits in seen.circuits.items():
        own = [row for one in circuits for row in verify(one, mode="local", draws=1 if job.quick else 3).sides]
        if not own:
            continue
        rows[task] = own
        drop, control = interval([row.drop for row in own]), interval([row.control for row in own])
        answer = interval([abs(row.metric_after - row.metric_before) for row in own])
        other = interval([abs(value - row.metric_before) for row in own for value in row.control_metrics])
        turned = median(row.cosine for row in own)
        numbers |= {f"{task}: attention lost": list(drop), f"{task}: attention lost, random": list(control)}
        numbers |= {f"{task}: answer": list(answer), f"{task}: answer, random": list(other), f"{task}: cosine": turned}
        holds += [drop[0] > 3 * control[0], answer[0] > max(3 * other[0], _LEAST), turned > 0.99]
        lines.append(
            f"{task}, {len(own)} sides of firings: attention falls by {drop[0]:.3f} [{drop[1]:.3f}, "
            f"{drop[2]:.3f}] (random "
            f"{control[0]:.3f}), the answer's log-probability changes by {answer[0]:.2f} (random {other[0]:.2f}), the "
            f"residual's median cosine is {turned:.4f}."
        )
    path = save(_removed_figure(rows), job.folder / "removed.png")
    return Outcome(_verdict(holds), "\n".join(lines), numbers, (path,), _note(job, seen))


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


def _verdict(holds: list[bool]) -> Verdict:
    """Three models were published: one alone is a part of it."""
    return "partly" if holds and 2 * sum(holds) >= len(holds) else "needs a model"


def _note(job: Job, seen: _Traced) -> str:
    traced = sum(map(len, seen.circuits.values()))
    return f"{traced} prompts that are answered right. {job.model or 'The built-in organism'} stood for {_MODELS}."


RUNS: dict[str, Experiment] = {"talk-10": thin, "talk-11": removed}
