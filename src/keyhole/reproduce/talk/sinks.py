"""Do heads that rest on the first token listen to the same signals?"""

from dataclasses import dataclass

import torch
from matplotlib.figure import Figure
from torch import Tensor

from keyhole.circuits.writer import SideName
from keyhole.errors import KeyholeError
from keyhole.figures import save
from keyhole.figures.style import blank, heading, tidy
from keyhole.lab.heads.sparse import Head
from keyhole.models.run import Run
from keyhole.reproduce.job import Attempt, Job, Numbers
from keyhole.reproduce.outcome import Outcome
from keyhole.reproduce.svt.ioi import LEAST, Subject, judged, stood_in, subject
from keyhole.tracing.firing import Firing
from keyhole.tracing.signals import signal_vector

_PROMPTS = 16
_FIRES = 0.5
_ALIKE = 0.5  # cosine
_MANY = 8  # heads
_SIDES: tuple[SideName, SideName] = ("dest", "src")


@dataclass(frozen=True)
class _Directions:
    """Per head, the mean direction of its signals on one side, in firings on the first token or on others."""

    heads: tuple[Head, ...]
    vectors: Tensor  # heads x d_model, of length 1

    @property
    def cosines(self) -> Tensor:
        return self.vectors @ self.vectors.T

    @property
    def between(self) -> list[float]:
        """Of all pairs of heads in different layers."""
        n, table = len(self.heads), self.cosines
        return [float(table[i, j]) for i in range(n) for j in range(i) if self.heads[i][0] != self.heads[j][0]]


def sinks(job: Job) -> Outcome:
    """Are the signals of heads that rest on the first token alike, unlike those of heads that fire elsewhere?"""
    seen = subject(job)
    found = _directions(seen)
    numbers: Numbers = {}
    lines, holds = [], []
    for side in _SIDES:
        rest, fire = found[side, True], found[side, False]
        if not rest.between or not fire.between:
            holds.append(False)
            lines.append(f"{side} side: fewer than two layers have heads that fire on the first token and on others.")
            continue
        first, other = (torch.tensor(one.between, dtype=torch.float64) for one in (rest, fire))
        near = float((first > _ALIKE).double().mean())
        numbers |= {f"{side}: first token": float(first.median()), f"{side}: other tokens": float(other.median())}
        numbers |= {f"{side}: above .5": near, f"{side}: above .5, other": float((other > _ALIKE).double().mean())}
        numbers[f"{side}: heads"] = len(rest.heads)
        alike = first.median() > _ALIKE and first.median() > other.median()
        holds.append(bool(alike) and len(rest.heads) >= _MANY)
        lines.append(
            f"{side} side: median cosine of heads in different layers {float(first.median()):.2f} on the first token "
            f"({len(rest.heads)} heads, {near:.0%} of pairs above .5), {float(other.median()):.2f} on other tokens "
            f"({len(fire.heads)} heads)."
        )
    path = save(_heat(found), job.folder / "cosines.png")
    note = (
        f"Asked on each side: {_MANY} heads or more that rest on the first token, with a median cosine above .5 and "
        f"above that on other tokens. A firing has a weight of {_FIRES:g} or more; its signal is the sum of what its "
        f"writers put into their channels, in residual space; directions are means over firings. {stood_in(job)}"
    )
    first_side = len(seen.examples) >= LEAST and any(holds)
    return Outcome(judged(job, holds, first=first_side), "\n".join(lines), numbers, (path,), note)


def _directions(seen: Subject) -> dict[tuple[SideName, bool], _Directions]:
    sums: dict[tuple[SideName, bool], dict[Head, Tensor]] = {(s, first): {} for s in _SIDES for first in (True, False)}
    for _, run in seen.runs(_PROMPTS):
        for layer in seen.model.attention_layers[1:]:
            for head in range(seen.model.dims.heads):
                for firing in _firings(run, (layer, head)):
                    for side in _SIDES:
                        vector = _signal(firing, side)
                        if vector is not None:
                            own = sums[side, firing.src == 0]
                            own[layer, head] = own[layer, head] + vector if (layer, head) in own else vector
    width = seen.model.dims.d_model
    return {
        key: _Directions(
            tuple(sorted(own)),
            torch.stack([own[head] / own[head].norm() for head in sorted(own)]) if own else torch.zeros(0, width),
        )
        for key, own in sums.items()
    }


def _firings(run: Run, head: Head) -> list[Firing]:
    """The strongest firing of a head on the first token, and on another one."""
    weights = run.layer(head[0]).weights([head[1]], list(range(len(run))))[0].clone()
    weights[0] = 0  # the first token sees itself alone
    found = []
    for chosen in (weights[:, :1], weights[:, 1:]):
        at = int(chosen.argmax())
        dest, src = divmod(at, chosen.shape[1])
        if chosen[dest, src] >= _FIRES:
            found.append(run.explain(head, dest, src if chosen.shape[1] == 1 else src + 1))
    return found


def _signal(firing: Firing, side: SideName) -> Tensor | None:
    """The direction of all signals of a side together."""
    total = None
    for one in firing.sides:
        for signal in one.signals if one.side == side else ():
            if signal.writer.kind != "offset":
                vector = signal_vector(firing, signal, flavour="raw").double().cpu()
                total = vector if total is None else total + vector
    return None if total is None or total.norm() == 0 else total / total.norm()


def _heat(found: dict[tuple[SideName, bool], _Directions]) -> Figure:
    figure = blank(8.4, 8.0)
    heading(figure, "Cosines of heads' mean signals, for firings on the first token and on others")
    image = None
    for axis, ((side, first), own) in zip(figure.subplots(2, 2).flat, found.items(), strict=True):
        tidy(axis, f"{side} side, {'first token' if first else 'other tokens'}")
        if own.heads:
            image = axis.imshow(own.cosines.tolist(), cmap="RdBu_r", vmin=-1, vmax=1)
        step = max(1, len(own.heads) // 16)
        shown = range(0, len(own.heads), step)
        labels = [f"{own.heads[i][0]}.{own.heads[i][1]}" for i in shown]
        axis.set_xticks(shown, labels, rotation=90)
        axis.set_yticks(shown, labels)
    if image is None:
        raise KeyholeError("no head fires in these prompts: choose another model.")
    figure.colorbar(image, ax=figure.axes, label="cosine", shrink=0.6)
    return figure


RUNS: dict[str, Attempt] = {"talk-25": sinks}
