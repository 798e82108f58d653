"""Do the effects of several edges add up? Sets out of one upstream head, and sets along one path."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import combinations
from typing import Any

import torch
from matplotlib.figure import Figure

from keyhole.circuits.circuit import Circuit, Edge
from keyhole.figures import save
from keyhole.figures.network import name_of
from keyhole.figures.style import BLUE, GREY, INK, blank, heading, tidy
from keyhole.intervene.deltas import Cut
from keyhole.intervene.remove import Metric, Mode, intervene, random_cut
from keyhole.intervene.verification import parallel, serial
from keyhole.lab.heads.sparse import Head
from keyhole.reproduce.job import Attempt, Job, Numbers
from keyhole.reproduce.outcome import Outcome
from keyhole.reproduce.svt.effects import LOCAL, MODES, Interval
from keyhole.reproduce.svt.ioi import LEAST, Subject, answer_ids, is_gpt2, judged, stood_in, subject, trace_answer
from keyhole.stats import as_text, interval


@dataclass(frozen=True)
class _Answer:
    """The circuit behind one answer, and the logits of IO and S."""

    circuit: Circuit
    metric: Metric

    def out_of(self, head: Head) -> list[Cut]:
        """All signals that leave a head, from whatever token."""
        nodes = [i for i, n in enumerate(self.circuit.nodes) if n.kind == "head" and (n.layer, n.head) == head]
        return [cut for node in nodes for cut in parallel(self.circuit, node)]

    def changes(self, sets: Sequence[Sequence[Cut]], mode: Mode) -> list[float]:
        """What each set, removed at once, does to the logit difference."""
        assert self.circuit.run is not None
        found = intervene(self.circuit.run, sets, self.metric, mode=mode)
        return [one.metric_after - one.metric_before for one in found]


@dataclass(frozen=True)
class _Answers:
    """What could be traced, and in how many prompts nothing could."""

    traced: tuple[_Answer, ...]
    skipped: int


@lru_cache(maxsize=1)
def _answers(seen: Subject) -> _Answers:
    """Circuits of IOI prompts, traced once for all figures."""
    found = []
    for example, run in seen.runs():
        right, wrong = answer_ids(seen.model, example)
        circuit = trace_answer(run, right, against=wrong, seeds="linear", keys="source")
        if circuit is not None:
            found.append(_Answer(circuit, Metric(len(run) - 1, (right,), (wrong,))))
    return _Answers(tuple(found), len(seen.examples) - len(found))


def _writers(answer: _Answer) -> Counter[Head]:
    """How many edges leave each head of one circuit?"""
    nodes = [answer.circuit.nodes[edge.source] for edge in answer.circuit.edges if edge.side != "target"]
    return Counter((n.layer, n.head) for n in nodes if n.kind == "head" and n.layer is not None and n.head is not None)


# -- out of a head -------------------------------------------------------------------------------------------------


def two_heads(job: Job) -> Outcome:
    """Do the effects of all edges out of two upstream heads add up, and does local removal do less?"""
    seen = subject(job)
    heads: tuple[Head, ...] = ((0, 9), (0, 11))
    why = ""
    if not is_gpt2(job.model):
        movers, every = set(seen.roles.get("name mover", ())), _answers(seen).traced
        pairs = Counter(pair for one in every for pair in combinations(sorted(set(_writers(one)) - movers), 2))
        if not pairs:
            return Outcome("needs a model", "No circuit has edges out of two heads.", {}, (), _note(job))
        heads = pairs.most_common(1)[0][0]
        why = "Two heads that most often have edges in the same prompt stand for 0.9 and 0.11. "
    names = [name_of(head) for head in heads]
    numbers: Numbers = {}
    lines, means, holds = [], {}, []
    both: dict[Mode, list[float]] = {}
    for mode in MODES:
        rows = _removed(seen, heads, mode)
        if len(rows) < LEAST:
            return Outcome(judged(job, []), _few(len(rows), f"edges out of {' and '.join(names)}"), {}, (), _note(job))
        columns = [interval(values) for values in zip(*rows, strict=True)]
        both[mode] = [row[2] for row in rows]
        means[mode] = dict(zip((*names, "both", "random"), columns, strict=True))
        summed = interval([row[0] + row[1] for row in rows])
        share = columns[2][0] / summed[0] if summed[0] else 0.0
        numbers |= {f"{mode}: {label}": list(value) for label, value in means[mode].items()}
        numbers |= {f"{mode}: sum": list(summed), f"{mode}: share of the sum": share, f"{mode}: prompts": len(rows)}
        matters = columns[2][2] < 0 and abs(columns[3][0]) < -columns[2][0] / 2
        holds.append(matters and 0.5 <= share <= 1.5)
        lines.append(
            f"{mode}, {len(rows)} prompts: all edges out of both removed {as_text(columns[2])}, out of {names[0]} "
            f"{as_text(columns[0])}, out of {names[1]} {as_text(columns[1])} (sum {as_text(summed)}); random channels "
            f"{as_text(columns[3])}."
        )
    less = interval([local - every for local, every in zip(both["local"], both["global"], strict=True)])
    numbers["local above global"] = list(less)
    lines.append(f"Local removal of both leaves the difference higher than global removal, by {as_text(less)}.")
    path = save(_bars(means, f"All edges out of {names[0]} and {names[1]} removed"), job.folder / "removed.png")
    note = (
        "Asked globally and locally: a loss with both whose interval excludes 0, more than twice that of random "
        "channels and .5 to 1.5 of the sum; and a smaller loss locally (the interval of the difference is above 0). "
        "Nothing without the first, globally. "
    )
    verdict = judged(job, [*holds, less[1] > 0], first=holds[0])
    return Outcome(verdict, "\n".join(lines), numbers, (path,), f"{note}{why}{_note(job)}")


def unknown(job: Job) -> Outcome:
    """Does a head without a known role matter for the answer?"""
    seen = subject(job)
    known = {head for heads in seen.roles.values() for head in heads}
    counts = Counter(head for one in _answers(seen).traced for head in _writers(one).elements() if head not in known)
    if not counts and not is_gpt2(job.model):
        return Outcome("needs a model", "No edge leaves a head without a role.", {}, (), _note(job))
    head = (2, 8) if is_gpt2(job.model) else counts.most_common(1)[0][0]
    numbers: Numbers = {}
    lines, means, holds = [], {}, []
    for mode in MODES:
        rows = _removed(seen, [head], mode)
        if len(rows) < LEAST:
            return Outcome(judged(job, []), _few(len(rows), f"edges out of {name_of(head)}"), {}, (), _note(job))
        change, random = interval([row[0] for row in rows]), interval([row[-1] for row in rows])
        size, chance = (interval([abs(row[i]) for row in rows]) for i in (0, -1))
        means[mode] = {"removed": change, "random": random}
        numbers |= {f"{mode}: removed": list(change), f"{mode}: random": list(random), f"{mode}: prompts": len(rows)}
        numbers |= {f"{mode}: absolute": list(size), f"{mode}: absolute, random": list(chance)}
        holds.append(change[1] * change[2] > 0 and size[1] > chance[2])
        lines.append(
            f"{mode}, {len(rows)} prompts: all edges out of {name_of(head)} removed {as_text(change)}, random channels "
            f"{as_text(random)}; absolute {size[0]:.3f} against {chance[0]:.3f}."
        )
    path = save(_bars(means, f"All edges out of {name_of(head)} removed"), job.folder / "removed.png")
    asked = "Asked globally and locally: a change whose interval excludes 0, in size beyond that of random channels. "
    why = (
        "" if is_gpt2(job.model) else f"{name_of(head)}, of heads without a role that with most edges, stands for 2.8. "
    )
    return Outcome(judged(job, holds), "\n".join(lines), numbers, (path,), f"{asked}{why}{_note(job)}")


def _few(many: int, what: str) -> str:
    return f"Prompts with {what}: {many}, too few to judge ({LEAST} are asked)."


def _note(job: Job) -> str:
    """What was traced, and in which prompts nothing was."""
    skipped, of = _answers(subject(job)).skipped, len(subject(job).examples)
    left = f"In {skipped} of {of} prompts no writer pushes towards IO; they are left out. " if skipped else ""
    return f"{_EDGES} {left}{LOCAL} {stood_in(job)}"


_EDGES = (
    "Edges are the signals of circuits that the present tracer finds behind logit(IO) - logit(S), read at one token "
    "each; changes are of that difference, in prompts where each head has edges."
)


def _removed(seen: Subject, heads: Sequence[Head], mode: Mode) -> list[list[float]]:
    """Per prompt: each head's edges removed, those of all (if several), and as many random channels of all."""
    generator = torch.Generator().manual_seed(0)
    rows = []
    for answer in _answers(seen).traced:
        sets = [answer.out_of(head) for head in heads]
        if not all(sets):
            continue
        every = [cut for one in sets for cut in one]
        assert answer.circuit.run is not None
        others = [random_cut(answer.circuit.run, cut, generator) for cut in every]
        rows.append(answer.changes([*sets, *([every] if len(sets) > 1 else []), others], mode))
    return rows


# -- along a path --------------------------------------------------------------------------------------------------


def along(job: Job) -> Outcome:
    """Do the effects of edges along one path overlap, so that together they do less than their sum?"""
    seen = subject(job)
    paths = [(answer, _path(answer.circuit)) for answer in _answers(seen).traced]
    paths = [(answer, path) for answer, path in paths if len(path) > 2]  # two steps or more
    if len(paths) < LEAST:
        return Outcome(judged(job, []), _few(len(paths), "a path of two steps"), {}, (), _note(job))
    numbers: Numbers = {"paths": len(paths)}
    lines, holds, points = [], [], {}
    for mode in MODES:
        pairs = []
        for answer, path in paths:
            cuts = serial(answer.circuit, path)
            *single, together = answer.changes([*([cut] for cut in cuts), cuts], mode)
            pairs.append((sum(single), together))
        points[mode] = pairs
        summed, joint = (interval([pair[i] for pair in pairs]) for i in (0, 1))
        spared = interval([abs(total) - abs(once) for total, once in pairs])
        numbers |= {f"{mode}: together": list(joint), f"{mode}: sum": list(summed), f"{mode}: overlap": list(spared)}
        holds.append(joint[1] * joint[2] > 0 and spared[1] > 0)
        lines.append(
            f"{mode}, {len(pairs)} paths: removed together {as_text(joint)}, sum of single removals {as_text(summed)}; "
            f"in size, together falls short of the sum by {as_text(spared)}."
        )
    title = "Signals along one path, removed together and one by one"
    picture = save(sums_figure(points, title), job.folder / "serial.png")
    note = (
        "Asked globally and locally: an effect together whose interval excludes 0, in size less than the sum (an "
        "interval above 0). A path is the longest chain of signals in a prompt's circuit, with two steps or more. "
    )
    return Outcome(judged(job, holds), "\n".join(lines), numbers, (picture,), f"{note}{_note(job)}")


def _path(circuit: Circuit) -> list[int]:
    """From below: the longest chain of signals to a head behind the answer, the heaviest if there are several."""
    into: dict[int, list[Edge]] = {}
    for edge in circuit.edges:
        if circuit.nodes[edge.source].kind != "offset":
            into.setdefault(edge.target, []).append(edge)

    @cache
    def longest(node: int) -> list[int]:
        chains = [(longest(edge.source), edge.weight) for edge in into.get(node, ())]
        return [*max(chains, key=lambda chain: (len(chain[0]), chain[1]))[0], node] if chains else [node]

    ends = [(longest(edge.source), edge.weight) for edge in circuit.edges if edge.side == "target"]
    return max(ends, key=lambda chain: (len(chain[0]), chain[1]))[0] if ends else []


# -- pictures ------------------------------------------------------------------------------------------------------


def _bars(means: dict[Mode, dict[str, Interval]], title: str) -> Figure:
    figure = blank(max(5.0, 3.0 * len(means)), 3.4)
    heading(figure, title)
    axes = figure.subplots(1, max(len(means), 1), sharey=True, squeeze=False)[0]
    for axis, (mode, own) in zip(axes, means.items(), strict=False):
        tidy(axis, mode, y="change of the logit difference" if axis is axes[0] else "")
        for at, (label, (mean, low, high)) in enumerate(own.items()):
            axis.bar([at], [mean], color=GREY if label == "random" else BLUE, width=0.7)
            axis.plot([at, at], [low, high], color=INK, linewidth=1.2)
        axis.axhline(0, color=INK, linewidth=0.8)
        axis.set_xticks(range(len(own)), list(own))
    return figure


def sums_figure(points: Mapping[Any, Sequence[tuple[float, float]]], title: str) -> Figure:
    """Changes when signals are removed together against the sum of their single changes; on the line they add up."""
    figure = blank(max(5.0, 2.8 * len(points) + 0.4), 3.4)
    heading(figure, title)
    axes = figure.subplots(1, max(len(points), 1), squeeze=False)[0]
    for axis, (name, pairs) in zip(axes, points.items(), strict=False):
        tidy(axis, name, x="sum of single changes", y="change together" if axis is axes[0] else "")
        axis.scatter(*zip(*pairs, strict=True), s=14, color=BLUE, alpha=0.5, linewidths=0)
        axis.axline((0, 0), slope=1, color=INK, linewidth=0.8, linestyle="--")
    return figure


RUNS: dict[str, Attempt] = {"svt-fig7": two_heads, "svt-fig26": along, "svt-fig28": unknown}
