"""Do heads that rest on the first token listen to the same signals?"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from matplotlib.figure import Figure
from torch import Tensor

from keyhole.circuits.writer import SideName
from keyhole.errors import KeyholeError
from keyhole.figures.network import name_of
from keyhole.figures.style import blank, heading, tidy
from keyhole.lab.heads.sparse import Head
from keyhole.models.precision import exact_matmul
from keyhole.reproduce.experiment import Experiment, Told
from keyhole.reproduce.job import Attempt, Job
from keyhole.reproduce.outcome import Verdict
from keyhole.reproduce.svt.effects import SIDES
from keyhole.reproduce.svt.intervals import numbered
from keyhole.reproduce.svt.ioi import LEAST, Subject, judged, stood_in, subject
from keyhole.tracing.firing import Firing
from keyhole.tracing.signals import signal_vector
from keyhole.tracing.upstream import Writes
from keyhole.tracing.why import explain_sites

_PROMPTS = 16
_FIRES = 0.5
_ALIKE = 0.5  # cosine
_MANY = 8  # heads


@dataclass(frozen=True)
class Directions:
    """Per head, the mean direction of its signals on one side, in firings on the first token or on others."""

    heads: tuple[Head, ...]
    vectors: Tensor  # heads x d_model, of length 1

    @property
    def cosines(self) -> Tensor:
        """Of all heads with all."""
        return self.vectors @ self.vectors.T

    @property
    def between(self) -> Tensor:
        """Of all pairs of heads in different layers."""
        n, table = len(self.heads), self.cosines
        apart = [table[i, j] for i in range(n) for j in range(i) if self.heads[i][0] != self.heads[j][0]]
        return torch.tensor(apart, dtype=torch.float64)

    @property
    def median(self) -> float:
        """NaN where fewer than two layers have such heads."""
        return float(self.between.median()) if len(self.between) else math.nan

    @property
    def near(self) -> float:
        """How many pairs are alike?"""
        return float((self.between > _ALIKE).double().mean())


@dataclass(frozen=True)
class Sinks:
    """Heads that rest on the first token, and heads that fire on others."""

    model: str | None  # as it was asked for
    prompts: int
    found: Mapping[tuple[SideName, bool], Directions]  # by side, and whether on the first token


def measure(job: Job) -> Sinks:
    """The directions of all heads above the first layer."""
    seen = subject(job)
    found = _directions(seen)
    if not any(own.heads for own in found.values()):
        raise KeyholeError("no head fires in these prompts: choose another model.")
    return Sinks(job.model, len(seen.examples), found)


def judge(record: Sinks) -> Verdict:
    """Are the signals of heads that rest on the first token alike, unlike those of heads that fire elsewhere?"""
    holds = []
    for side in SIDES:
        rest, fire = record.found[side, True], record.found[side, False]
        holds.append(rest.median > _ALIKE and rest.median > fire.median and len(rest.heads) >= _MANY)
    return judged(record, holds, first=record.prompts >= LEAST and any(holds))


def _tell(record: Sinks) -> Told:
    lines, numbers = [], {}
    for side in SIDES:
        rest, fire = record.found[side, True], record.found[side, False]
        if not len(rest.between) or not len(fire.between):
            lines.append(f"{side} side: fewer than two layers have heads that fire on the first token and on others.")
            continue
        near = {"above .5": rest.near, "above .5, other": fire.near}
        numbers[side] = {"first token": rest.median, "other tokens": fire.median, **near, "heads": len(rest.heads)}
        lines.append(
            f"{side} side: median cosine of heads in different layers {rest.median:.2f} on the first token "
            f"({len(rest.heads)} heads, {rest.near:.0%} of pairs above .5), {fire.median:.2f} on other tokens "
            f"({len(fire.heads)} heads)."
        )
    note = (
        f"Asked on each side: {_MANY} heads or more that rest on the first token, with a median cosine above .5 and "
        f"above that on other tokens. A firing has a weight of {_FIRES:g} or more; its signal is the sum of what its "
        f"writers put into their channels, in residual space; directions are means over firings. {stood_in(record)}"
    )
    return Told("\n".join(lines), numbered(numbers), note)


def _directions(seen: Subject) -> dict[tuple[SideName, bool], Directions]:
    sums: dict[tuple[SideName, bool], dict[Head, Tensor]] = {(s, first): {} for s in SIDES for first in (True, False)}
    for _, run in seen.runs(_PROMPTS):
        writes = Writes([run])  # what was written is split once for all heads
        for layer in seen.model.attention_layers[1:]:
            for head in range(seen.model.dims.heads):
                for firing in _firings(writes, (layer, head)):
                    for side in SIDES:
                        vector = _signal(firing, side)
                        if vector is not None:
                            own = sums[side, firing.src == 0]
                            own[layer, head] = own[layer, head] + vector if (layer, head) in own else vector
    width = seen.model.dims.d_model
    return {
        key: Directions(
            tuple(sorted(own)),
            torch.stack([own[head] / own[head].norm() for head in sorted(own)]) if own else torch.zeros(0, width),
        )
        for key, own in sums.items()
    }


def _firings(writes: Writes, head: Head) -> list[Firing]:
    """The strongest firing of a head on the first token, and on another one."""
    (run,), places = writes.runs, list[tuple[int, int]]()
    weights = run.layer(head[0]).weights([head[1]], list(range(len(run))))[0].clone()
    weights[0] = 0  # the first token sees itself alone
    for chosen in (weights[:, :1], weights[:, 1:]):
        at = int(chosen.argmax())
        dest, src = divmod(at, chosen.shape[1])
        if chosen[dest, src] >= _FIRES:
            places.append((dest, src if chosen.shape[1] == 1 else src + 1))
    if not places:
        return []
    with exact_matmul():
        return list(explain_sites(writes, head[0], [(0, head[1], *place) for place in places]).firings())


def _signal(firing: Firing, side: SideName) -> Tensor | None:
    """The direction of all signals of a side together."""
    total = None
    for one in firing.sides:
        for signal in one.signals if one.side == side else ():
            if signal.writer.kind != "offset":
                vector = signal_vector(firing, signal, flavour="raw").double().cpu()
                total = vector if total is None else total + vector
    return None if total is None or total.norm() == 0 else total / total.norm()


def _draw(record: Sinks) -> Mapping[str, Figure]:
    figure = blank(8.4, 8.0)
    heading(figure, "Cosines of heads' mean signals, for firings on the first token and on others")
    image = None
    for axis, ((side, first), own) in zip(figure.subplots(2, 2).flat, record.found.items(), strict=True):
        tidy(axis, f"{side} side, {'first token' if first else 'other tokens'}")
        if own.heads:
            image = axis.imshow(own.cosines.tolist(), cmap="RdBu_r", vmin=-1, vmax=1)
        shown = range(0, len(own.heads), max(1, len(own.heads) // 16))
        labels = [name_of(own.heads[i]) for i in shown]
        axis.set_xticks(shown, labels, rotation=90)
        axis.set_yticks(shown, labels)
    assert image is not None  # else nothing was measured
    figure.colorbar(image, ax=figure.axes, label="cosine", shrink=0.6)
    return {"cosines": figure}


RUNS: dict[str, Attempt] = {"talk-25": Experiment(measure, judge, _tell, _draw)}
