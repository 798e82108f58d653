"""Which heads take over when another is removed? Removals in pairs, against random pairs.

    effect(B)            = m(everything) - m(without B)
    effect(B | A gone)   = m(without A) - m(without A and B)
    growth(A, B)         = effect(B | A gone) - effect(B)
    reaction(A, B)       = m(without A) - m(without A, B writing what it wrote in the prompt)

A removed head writes its baseline at all tokens; everything downstream is free. Growth is the same for (A, B) and
(B, A): it says that two heads stand in for each other. Only a head of a later layer can notice that A is gone, so B
ranges over the heads from A's layer on. The reaction tells the two reasons for growth apart: B writes something else
(it wakes), or it writes the same as ever, and that counts more.

The first heads are those of the largest influence and not of the largest effect: a head that is backed up has none.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from keyhole.brief import Head, head_name
from keyhole.circuits.circuit import Circuit
from keyhole.circuits.records import Component
from keyhole.errors import KeyholeError
from keyhole.faithfulness.backup_record import BackupKind, Backups, Pair, Removed, handovers
from keyhole.faithfulness.baseline import Likes, as_far, baseline
from keyhole.faithfulness.masked import masked
from keyhole.faithfulness.removals import Stopped
from keyhole.faithfulness.search import LEAST_GAP
from keyhole.faithfulness.shares import MaskedQuestion, question, until_answer
from keyhole.intervene.cuts import metric_of, run_of
from keyhole.intervene.rerun import Edits, rerun_each
from keyhole.intervene.silence import Silence
from keyhole.models.numbers import exact_matmul
from keyhole.models.tokens import Prompt
from keyhole.progress import Progress, duration, part_of, silent
from keyhole.settings.measuring import PairSettings as PairSettings
from keyhole.tasks.example import Example

if TYPE_CHECKING:
    from keyhole.models.model import Model

_LOG = logging.getLogger("keyhole")
LEAST = 0.02  # of the gap: smaller growth does not count, even if it exceeds that of random pairs
JOINT = 8  # controls of a joint removal: as many random heads instead of the head's backups


def backups(
    circuit: Circuit,
    model: "Model | None" = None,
    *,
    like: Likes | None = None,
    counterfactual: Prompt | Example | None = None,
    text: Path | str | None = None,
    settings: PairSettings | None = None,
    progress: Progress | None = None,
) -> Backups:
    """Which heads take over when one of a circuit's heads is removed?

    The baseline is chosen as `Circuit.effects` chooses it. A pair of heads is a backup if its growth is larger than
    that of every random pair, and larger than 2 % of the gap. A random pair is a head outside the circuit, in the layer
    of one of the first heads, with any later head.

    Ctrl-C returns the heads that are finished.

    Args:
        circuit: The circuit.
        model: The model that made the circuit, if it was read from a file.
        like: Prompts of the same template, at least eight: their mean is the baseline. Also "words" or "resting".
        counterfactual: One prompt of equal length, whose writes are the baseline.
        text: A file whose resting state is the baseline, a paragraph a line.
        settings: How many heads, or which, and how many random pairs.
        progress: Called with the number of passes done and their total.

    >>> import keyhole
    >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
    >>> circuit = run.trace("Mary", against="John", through="heads")
    >>> result = backups(circuit, like="resting", settings=PairSettings(named=((3, 6),), draws=20))
    >>> [removed.head for removed in result.heads]
    [(3, 6)]
    """
    settings, progress = settings or PairSettings(), progress or silent
    whole, metric = run_of(circuit, model), metric_of(circuit)
    run = until_answer(whole, metric.end)
    first = _first_heads(circuit, settings)
    if like is not None and not isinstance(like, str):
        like = [as_far(prompt, run, whole) for prompt in like]
    counterfactual = None if counterfactual is None else as_far(counterfactual, run, whole)
    start = part_of(progress, 0.0, 0.1)
    stand_in = baseline(run, like=like, counterfactual=counterfactual, text=text, progress=start)
    lab = Lab(question(run, metric, stand_in))
    result = _measure(circuit, lab, first, settings, part_of(progress, 0.1, 1.0))
    handed = handovers(circuit, whole, metric, [row.head for row in result.heads])
    return replace(result, handovers=handed)


class Lab:
    """One prompt in copies from which heads are removed, in the model's own pass."""

    def __init__(self, question: MaskedQuestion) -> None:
        self.question, dims = question, question.run.model.dims
        self.heads: list[Head] = [(layer, head) for layer in range(dims.layers) for head in range(dims.heads)]

    @cached_property
    def written(self) -> torch.Tensor:
        """What every writer writes in the prompt."""
        with torch.no_grad(), exact_matmul():
            return masked([self.question.run], check=False).written()[:, 0]

    def without(self, removed: Sequence[Head], held: Sequence[Head] = ()) -> Edits:
        """A copy with some heads at their baseline, and others held at what they write in the prompt."""
        base = self.question.baseline.writes
        silences = [self._silence(head, base) for head in removed]
        return Edits(silences=(*silences, *(self._silence(head, self.written) for head in held)))

    def _silence(self, head: Head, writes: torch.Tensor) -> Silence:
        run = self.question.run
        off = torch.zeros(run.model.dims.heads, len(run), len(run), dtype=torch.bool, device=writes.device)
        off[head[1]] = True
        number = self.question.masked.wiring.writer_number(Component("head", *head))
        return Silence("head", head[0], off, writes[number])

    def answers(self, copies: Sequence[Edits], progress: Progress | None = None) -> list[float]:
        """The answer in each copy."""
        run, metric = self.question.run, self.question.metric
        answers = dict[int, float]()
        with torch.no_grad(), exact_matmul(), run.model._steady():
            for i, result, copy in rerun_each(run, copies, progress, all_logits=metric.at != len(run) - 1):
                answers[i] = metric.of(result.logits(run, copy, metric.at))
        return [answers[i] for i in range(len(copies))]

    def later(self, head: Head) -> list[Head]:
        """All other heads from a head's layer on."""
        return [other for other in self.heads if other[0] >= head[0] and other != head]

    def work(self, pairs: Sequence[tuple[Head, ...]]) -> int:
        """How many layers copies without these heads go through."""
        return sum(len(self.question.run.layers) + 1 - min(layer for layer, _ in pair) for pair in pairs)


def _measure(circuit: Circuit, lab: Lab, first: Sequence[Head], settings: PairSettings, progress: Progress) -> Backups:
    everything, nothing = lab.question.ends
    gap = everything - nothing
    drawn = _random_pairs(circuit, lab, first, settings)
    planned = [[(head, other) for other in lab.later(head)] for head in first]
    began, total = time.monotonic(), len(lab.heads) + len(drawn) + sum(map(len, planned))
    singles = lab.answers([lab.without([head]) for head in lab.heads], lambda done, _: progress(done, total))
    without = dict(zip(lab.heads, singles, strict=True))
    work = lab.work([pair for pairs in (drawn, *planned) for pair in pairs])
    seconds = (time.monotonic() - began) * work / lab.work([(head,) for head in lab.heads])
    _LOG.info(
        f"about {duration(max(1.0, seconds))} for {total - len(lab.heads)} pairs of heads; Ctrl-C shows those done."
    )

    def measured(pairs: Sequence[tuple[Head, Head]], done: int) -> list[Pair]:
        copies = [lab.without(pair) for pair in pairs]
        answers = lab.answers(copies, lambda now, _: progress(done + now, total))
        alone = {head: everything - without[head] for _, head in pairs}
        return [Pair(a, b, alone[b], without[a] - both) for (a, b), both in zip(pairs, answers, strict=True)]

    random = measured(drawn, len(lab.heads))
    bar = max([LEAST * max(gap, LEAST_GAP), *(abs(pair.growth) for pair in random)])
    rows, stopped = list[Removed](), None
    try:
        for head, pairs in zip(first, planned, strict=True):
            done = len(lab.heads) + len(drawn) + sum(map(len, planned[: len(rows)]))
            tried = _reactions(lab, without[head], measured(pairs, done), bar)
            rows.append(_removed(circuit, lab, (head, everything - without[head]), tried, settings.seed))
    except KeyboardInterrupt:
        stopped = Stopped(len(rows), len(first))
    note = lab.question.baseline.note
    if gap < LEAST_GAP:
        small = f"the answer is at {everything:+.2f} in the prompt and at {nothing:+.2f} at the baseline: a small gap"
        note = f"{note}; {small}" if note else small
    return Backups(
        model=str(circuit.model.get("name")),
        tokens=circuit.tokens,
        metric="logit difference" if lab.question.metric.against else "log-probability",
        baseline=lab.question.baseline.name,
        everything=everything,
        nothing=nothing,
        bar=bar,
        random=tuple(random),
        heads=tuple(rows),
        stopped=stopped,
        note=note,
    )


def _reactions(lab: Lab, without: float, pairs: Sequence[Pair], bar: float) -> list[Pair]:
    """The same pairs. Those whose effect grows above the bar also get their reaction, and the kind of backup."""
    grown = [i for i, pair in enumerate(pairs) if pair.growth > bar]
    copies = [lab.without([pairs[i].first], [pairs[i].second]) for i in grown]
    result = list(pairs)
    for i, held in zip(grown, lab.answers(copies), strict=True):
        reaction = without - held
        kind: BackupKind = "holds back less" if pairs[i].after <= 0 else "wakes" if reaction > bar else "counts more"
        result[i] = replace(pairs[i], reaction=reaction, kind=kind)
    return result


def _removed(circuit: Circuit, lab: Lab, single: tuple[Head, float], pairs: Sequence[Pair], seed: int) -> Removed:
    """One head without the backups that support the answer, and without as many random heads of the same layers."""
    head, effect = single
    influence = sum(
        share
        for node, share in zip(circuit.nodes, circuit.influence, strict=False)
        if (node.kind, node.layer, node.head) == ("head", *head)
    )
    row = Removed(head, influence if circuit.influence else None, effect, tuple(pairs))
    others = [pair.second for pair in row.supporting]
    if not others:
        return row
    rng, sets = np.random.default_rng((seed, *head)), [others]
    for _ in range(JOINT):
        chosen: list[Head] = []
        for layer, _ in others:
            taken = {head, *others, *chosen}
            free = [h for h in lab.later(head) if h not in taken]
            same = [h for h in free if h[0] == layer] or free
            chosen += [same[int(rng.integers(len(same)))]] if same else []
        sets.append(chosen)
    everything = lab.question.ends[0]
    joint, *random = (everything - m for m in lab.answers([lab.without([head, *heads]) for heads in sets]))
    return replace(row, joint=joint, random=tuple(random))


def _first_heads(circuit: Circuit, settings: PairSettings) -> list[Head]:
    """The named heads, or the circuit's heads with the largest influence (without influence: the largest attention)."""
    by = circuit.influence or [weight or 0.0 for weight in circuit.attention]
    total: dict[Head, float] = {}
    for node, share in zip(circuit.nodes, by, strict=True):
        if node.kind == "head" and node.layer is not None and node.head is not None:
            total[node.layer, node.head] = total.get((node.layer, node.head), 0.0) + share
    if not settings.named:
        if not total:
            raise KeyholeError("this circuit has no heads, so that none can be removed: trace another target.")
        return sorted(total, key=lambda head: -total[head])[: settings.first]
    if missing := [head for head in settings.named if head not in total]:
        some = ", ".join(head_name(head) for head in sorted(total, key=lambda head: -total[head])[:8])
        raise KeyholeError("head {}.{} is not in the circuit: it has {}.".format(*missing[0], some or "none"))
    return list(dict.fromkeys(settings.named))


def _random_pairs(circuit: Circuit, lab: Lab, first: Sequence[Head], settings: PairSettings) -> list[tuple[Head, Head]]:
    """Heads outside the circuit, each from the layer of one of the first heads, with any head from there on."""
    inside = {(node.layer, node.head) for node in circuit.heads}
    outside = [head for head in lab.heads if head not in inside and lab.later(head)]
    if not outside:
        raise KeyholeError("every head is in the circuit, so that there are no random pairs to compare with.")
    layers = {layer for layer, _ in first}
    near = [head for head in outside if head[0] in layers] or outside
    every = [(head, other) for head in near for other in lab.later(head)]
    rng = np.random.default_rng(settings.seed)
    return [every[i] for i in rng.choice(len(every), min(settings.draws, len(every)), replace=False)]
