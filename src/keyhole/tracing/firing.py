"""Why does this head attend here? The signals whose removal takes one attention weight below its threshold."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.writer import Removal, SideName, Signal, Writer
from keyhole.errors import KeyholeError, require_choice
from keyhole.models.precision import exact_matmul
from keyhole.models.prompts import token_label
from keyhole.qk.channels import check_place, score_row
from keyhole.qk.firings import check_tau, dynamic_tau
from keyhole.tracing.attribution import ig_vectors
from keyhole.tracing.candidates import Candidates, Keys, Places, dest_candidates, src_candidates
from keyhole.tracing.search import Prefix, Rows, search
from keyhole.tracing.upstream import Reads, Writes, reads_of

if TYPE_CHECKING:
    from keyhole.models.run import Run
    from keyhole.tracing.signals import Flavour

Tau = Literal["dynamic"] | float | Callable[[int], float]
Why = Literal["here", "not"]  # what is explained: that a head attends here, or that it does not
_COORD_FLOATS = 24_000_000  # coordinates of candidates held at once


@dataclass(frozen=True)
class Side:
    """One side of a firing: its signals, and everything that was removed to find them.

    A src-side candidate acts at all keys; one that was moved from a token after src is removed but is no signal.
    """

    side: SideName
    signals: tuple[Signal, ...]
    removed: tuple[Removal, ...]
    after: float  # the attention weight once all is removed
    reached: bool  # is that below tau? Where a head does not attend: is it above?


@dataclass(frozen=True)
class Firing:
    """One (head, dest, src) with its attention weight and its causes."""

    layer: int
    head: int
    dest: int
    src: int
    attention: float
    tau: float
    visible: int
    sides: tuple[Side, ...]  # dest and src; empty when the weight is below tau (of "not": is not)
    run: "Run" = field(repr=False, compare=False)
    why: Why = "here"

    def side(self, name: SideName) -> Side:
        """The dest or src side."""
        for side in self.sides:
            if side.side == name:
                return side
        raise KeyholeError(f"firing {self.layer}.{self.head} was not searched: its weight is below tau.")

    def vector(self, signal: Signal, *, flavour: "Flavour" = "rotated") -> Float[Tensor, "d_model"]:
        """A signal in residual space. See `keyhole.tracing.signals`."""
        from keyhole.tracing.signals import signal_vector

        return signal_vector(self, signal, flavour=flavour)

    def __str__(self) -> str:
        from keyhole.tracing.text import firing_text

        return firing_text(self)

    def __repr__(self) -> str:
        dest, src = (token_label(self.run.tokens, t) for t in (self.dest, self.src))
        found = sum(len(side.signals) for side in self.sides)
        return (
            f"<Firing of head {self.layer}.{self.head}, {dest} <- {src}: attention {self.attention:.3f}, tau "
            f"{self.tau:.3f}, {found} signals>"
        )


def explain(
    run: "Run",
    head: tuple[int, int],
    dest: int | str = -1,
    src: int | str | None = None,
    *,
    tau: Tau = "dynamic",
    keys: Keys = "all",
    why: Why = "here",
) -> Firing:
    """Which signals cause this attention weight? With `why="not"`: which ones keep the head from attending to `src`?

    `dest` is the last token unless it is given, and `src` the token that dest attends to most. `tau`: "dynamic" =
    min(1, 2.5 / visible keys), a number, or a function of dest. `keys`: a src-side removal touches all keys, as in the
    paper, or the source alone. Signals against a firing are the fewest whose removal lifts the weight to tau; their
    `weight`, `ig` and `alone` are what they take from it.
    """
    require_choice("keys", keys, Keys)
    require_choice("why", why, Why)
    if why == "not" and src is None:
        raise KeyholeError("say which token the head does not attend to: src.")
    layer, index, d, s = check_place(run, head, dest, src)
    with exact_matmul(), run.model.steady():
        score_row(run, layer, index, d)  # refuses scores that cannot be rebuilt
        if why == "not" and threshold(tau, d, int(run.layer(layer).visible([d]).sum())) == 1:
            raise KeyholeError(
                f"token {d} sees so few keys that tau is 1, and no removal lifts a weight to 1: give a tau."
            )
        writes = Writes(run)
        (reads,) = reads_of(writes, layer, [index])
        (firing,) = explain_head(writes, layer, reads, [(d, s)], tau=tau, keys=keys, why=why)
    if why == "not" and not firing.sides:
        raise KeyholeError(
            f"head {layer}.{index} attends here already: {firing.attention:.3f} of token {d}'s attention is on token "
            f"{s}, and tau is {firing.tau:.3f}. Leave `why` out to see which signals cause it."
        )
    return firing


def explain_head(
    writes: Writes,
    layer: int,
    reads: Reads,
    places: Sequence[tuple[int, int]],
    *,
    tau: Tau = "dynamic",
    keys: Keys = "all",
    why: Why = "here",
) -> list[Firing]:
    """Explain some firings (dest, src) of one head together; those below tau (of "not": above) get no sides."""
    run, head = writes.run, reads.head
    record = run.layer(layer)
    dest = torch.tensor([d for d, _ in places], device=record.first.device)
    src = torch.tensor([s for _, s in places], device=record.first.device)
    scores = record.scores([head], dest.tolist())[0]
    visible = record.visible([d for d, _ in places])
    counts = visible.sum(1).tolist()
    taus = [threshold(tau, d, n) for (d, _), n in zip(places, counts, strict=True)]
    rows = Rows(scores, visible, src, torch.tensor(taus, dtype=torch.float64, device=dest.device), record.rule, head)
    weights = rows.weight_after(torch.zeros_like(scores)).tolist()
    here = why == "here"
    fires = [i for i, (weight, t) in enumerate(zip(weights, taus, strict=True)) if (weight >= t) == here]
    sides: dict[int, tuple[Side, ...]] = {}
    for chunk in _chunks(fires, reads):
        at = torch.tensor(chunk, device=dest.device)
        part = rows.subset(at)
        w = ig_vectors(part.scores, part.visible, part.src, record.rule, head=head)
        batch = Places(writes, layer, dest[at], src[at], w if here else -w)  # what pulls the other way comes first
        before = [weights[i] for i in chunk]
        found = [
            _sides(batch, part, dest_candidates(batch, reads), before, side="dest", head=head, lift=not here),
            _sides(batch, part, src_candidates(batch, reads, keys), before, side="src", head=head, lift=not here),
        ]
        sides.update({i: (found[0][j], found[1][j]) for j, i in enumerate(chunk)})
    return [
        Firing(layer, head, d, s, weights[i], taus[i], counts[i], sides.get(i, ()), run, why)
        for i, (d, s) in enumerate(places)
    ]


def threshold(tau: Tau, dest: int, visible: int) -> float:
    """The weight below which a firing counts as gone.

    >>> threshold("dynamic", 9, 10), threshold(0.3, 9, 10), threshold(lambda dest: 1 / (dest + 1), 9, 10)
    (0.25, 0.3, 0.1)
    """
    if tau == "dynamic":
        return dynamic_tau(visible)
    return check_tau(tau(dest) if callable(tau) else tau)


def _sides(
    places: Places, rows: Rows, candidates: Candidates, before: list[float], *, side: SideName, head: int, lift: bool
) -> list[Side]:
    """One side of each firing: what the search removed, gathered into signals."""
    prefixes, sign = search(candidates, rows, lift=lift), -1 if lift else 1
    tokens = (places.dest if side == "dest" else places.src).tolist()
    found = []
    for prefix, token, weight, alone in zip(prefixes, tokens, before, _left_alone(prefixes, rows), strict=True):
        made = {c: places.writes.writer(c, places.layer, head, token) for c in alone}
        removed = tuple(
            Removal(made[c], k, ig, after)
            for c, k, ig, after in zip(prefix.components, prefix.channels, prefix.ig, prefix.after, strict=True)
        )
        signals = _signals(removed, side, weight, {made[c]: sign * (weight - left) for c, left in alone.items()}, sign)
        last = prefix.after[-1] if prefix.after else weight
        found.append(Side(side, signals, removed, last, prefix.reached))
    return found


def _left_alone(prefixes: list[Prefix], rows: Rows) -> list[dict[int, float]]:
    """For each firing and each component among its removals: the weight left when only that component is removed."""
    distinct = [list(dict.fromkeys(prefix.components)) for prefix in prefixes]
    sums = np.zeros((len(prefixes), max(map(len, distinct), default=0), rows.scores.shape[1]))
    for f, prefix in enumerate(prefixes):
        slot = {component: i for i, component in enumerate(distinct[f])}
        np.add.at(sums[f], [slot[component] for component in prefix.components], prefix.rows)
    left = rows.weight_after(torch.from_numpy(sums).to(rows.scores.device)).tolist()
    return [dict(zip(members, weights, strict=False)) for members, weights in zip(distinct, left, strict=True)]


def _signals(
    removed: Sequence[Removal], side: SideName, before: float, alone: dict[Writer, float], sign: int
) -> tuple[Signal, ...]:
    """Removals gathered by writer; a write moved from after the token cannot be its cause and is left out."""
    channels: dict[Writer, list[int]] = {}
    weight: dict[Writer, float] = {}
    ig: dict[Writer, float] = {}
    for removal in removed:
        writer = removal.writer
        channels.setdefault(writer, []).append(removal.channel)
        weight[writer] = weight.get(writer, 0.0) + sign * (before - removal.after)
        ig[writer] = ig.get(writer, 0.0) + removal.ig
        before = removal.after
    return tuple(
        Signal(writer, side, tuple(ks), weight[writer], ig[writer], alone[writer])
        for writer, ks in channels.items()
        if writer.src <= writer.dest
    )


def _chunks(fires: list[int], reads: Reads) -> list[list[int]]:
    """Firings whose candidates fit into memory together."""
    size = max(1, _COORD_FLOATS // max(1, reads.q_moved.numel()))
    return [fires[i : i + size] for i in range(0, len(fires), size)]
