"""Along which directions is an MLP's write read, by one reader or by all, and with how much influence?

Along which direction is a write read? A token's logit, what a firing compares, or what a head moves.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.circuit import EdgeSide
from keyhole.circuits.records import Kind, SideName, Signal, Writer
from keyhole.errors import KeyholeError
from keyhole.models.numbers import exact_matmul
from keyhole.settings.tracing import Through as Through
from keyhole.tracing.answers import Tokens, token_ids
from keyhole.tracing.candidates import Sites, ig_vectors
from keyhole.tracing.firing import Side
from keyhole.tracing.mlp_causes import Cause, MlpWrite
from keyhole.tracing.upstream import Writes
from keyhole.tracing.writers import by_number

if TYPE_CHECKING:
    from keyhole.models.run import Run
    from keyhole.tracing.firing import Firing


def toward(
    run: "Run", target: Tokens, against: Tokens | None = None, *, end: int | str = -1
) -> Float[Tensor, "d_model"]:
    """The direction in the residual stream at `end` that raises an answer's logit, against another's if one is given.

    A write's part along it is its part of the logit, before a cap on logits.
    """
    out, at = run.model.head_out(), run.position(end, "end")
    right, wrong = token_ids(run, target, at), token_ids(run, against, at)
    if not right:
        raise KeyholeError("give a token whose logit the direction should raise.")
    d = out.W_U[:, right].mean(1)
    if wrong:
        d = d - out.W_U[:, wrong].mean(1)
    return (d / run.final_scale[at]).to(torch.float64)


@dataclass(frozen=True, eq=False)
class Readings:
    """Along which directions do firings of a layer read what is written at their tokens? d . o is a part of the weight.

        dest:  W_Q R^T G_d[:, S] gain_S s / n,  gain_k = scaling * sum over keys of w_j B_jk
        src:   w_src W_K R^T G_s[S]^T a_S s / n,  a = scaling * q G_d

    with w the vector of integrated gradients. On the dest side d . o is a signal's `ig`; on the src side `ig` is over
    all keys, and d . o is what it does at src.
    """

    writes: Writes
    layer: int
    sites: Sites

    @cached_property
    def _pull(self) -> Float[Tensor, "firing key"]:
        record, sites = self.writes.record(self.layer), self.sites
        scores, visible = sites.scores(record), sites.visible(record)
        return ig_vectors(scores, visible, sites.src, record.rule, heads=sites.head).to(self.writes.dtype)

    @cached_property
    def _gains(self) -> dict[SideName, Float[Tensor, "firing channel"]]:
        """What each channel's coordinate counts for, on either side."""
        record, om, sites = self.writes.record(self.layer), self.writes.omega(self.layer), self.sites
        dtype, scaling = self.writes.dtype, record.rule.scaling
        pulled = self._pull[:, None] @ record.k[sites.run, record.kv(sites.head)].to(dtype)
        dest = scaling * (pulled @ om.G_s[sites.head].mT)[:, 0]
        a = scaling * (record.q[sites.run, sites.head, sites.dest].to(dtype)[:, None] @ om.G_d[sites.head])[:, 0]
        return {"dest": dest, "src": a * self._pull.gather(1, sites.src[:, None])}

    def along(
        self, side: SideName, firings: Sequence[int], channels: Sequence[tuple[int, ...]]
    ) -> Float[Tensor, "signal d_model"]:
        """The direction of each signal of one side, at its token: of which firing, through which channels."""
        writes, layer = self.writes, self.layer
        record, om, w = writes.record(layer), writes.omega(layer), writes.folded(layer)
        at = torch.tensor(firings, dtype=torch.long, device=writes.device)
        run, head = self.sites.run[at], self.sites.head[at]
        picked = _picked(channels, self._gains[side].shape[1]).to(writes.device)
        gains = torch.where(picked, self._gains[side][at], 0.0)
        if side == "dest":
            t, scale, G = self.sites.dest[at], record.q_scale[run, head, self.sites.dest[at]], om.G_d[head].mT
        else:
            t, scale, G = self.sites.src[at], record.k_scale[run, record.kv(head), self.sites.src[at]], om.G_s[head]
        turned = (gains[:, None] @ G)[:, 0]
        if record.rotary is not None:
            turned = record.rotary.at(t).transpose(turned)
        turned = turned * (scale / record.norm_scale[run, t])[:, None]
        out = turned.new_empty(len(turned), writes.model.dims.d_model)
        for h, rows in by_number(head):
            out[rows] = turned[rows] @ (w.W_Q[h] if side == "dest" else w.W_K[w.kv(h)]).T
        return out


def read_along(firing: "Firing", signal: Signal) -> Float[Tensor, "d_model"]:
    """The direction at a signal's token along which its firing reads it; where a head does not attend, the opposite.

    Either way the signal's writer writes along it what the firing owes to it.
    """
    writes = Writes([firing.run])
    with exact_matmul():
        sites = Sites.of([(0, firing.head, firing.dest, firing.src)], writes.device)
        d = Readings(writes, firing.layer, sites).along(signal.side, [0], [signal.channels])[0].double()
    return -d if firing.why_not else d


def values_along(
    writes: Writes, layer: int, sites: Sites, weights: Float[Tensor, "firing"], d: Float[Tensor, "firing d_model"]
) -> Float[Tensor, "firing d_model"]:
    """The direction at src along which a firing's value is read, if its write is read along d: W_V W_O d A / (m n)."""
    record, w = writes.record(layer), writes.folded(layer)
    d, out = d.to(w.W_O.dtype), torch.empty_like(d, dtype=w.W_O.dtype)
    for h, rows in by_number(sites.head):
        out[rows] = d[rows] @ w.W_O[h].T @ w.W_V[w.kv(h)].T
    scale = record.out_scale[sites.run, sites.dest] * record.norm_scale[sites.run, sites.src]
    return out * (weights.to(out) / scale)[:, None]


def _picked(channels: Sequence[tuple[int, ...]], n: int) -> Tensor:
    """Which channels each signal has."""
    picked = np.zeros((len(channels), n), dtype=bool)
    rows = np.repeat(np.arange(len(channels)), [len(numbers) for numbers in channels])
    picked[rows, [k for numbers in channels for k in numbers]] = True
    return torch.from_numpy(picked)


# How much of an answer goes through a node, and through which steps? The accounts of one run.
#
# Influence says which share of the answer passes through a node: 1 at the target, and every explained node hands all
# of its own on, by attributions.

Step = tuple[Writer, Writer | None, EdgeSide]  # who, into whom (None: the answer), through which side
_CONSTANT = ("bias", "offset")  # written whatever the prompt says
EXPLAINED = ("mlp", "head")


def offset_of(writer: Writer) -> Writer:
    """What an MLP writes, or a head moves, with nothing but constants to read: a writer of its own."""
    kind: Kind = "mlp_offset" if writer.kind == "mlp" else "value_offset"
    return Writer(kind, writer.layer, writer.head, writer.src, writer.src)


@dataclass(frozen=True)
class Shares:
    """What is kept of an MLP that was explained: its causes, and what becomes of its write without them."""

    causes: tuple[Cause, ...]
    offset: float
    left: float
    left_renormed: float
    kept: float
    cancellation: float
    neurons: tuple[tuple[int, float], ...]
    direction: Float[Tensor, "d_model"]

    @classmethod
    def of(cls, write: MlpWrite) -> "Shares":
        """Without the places, which hold all neurons of a layer."""
        return cls(**{column.name: getattr(write, column.name) for column in fields(cls)})


@dataclass
class Flow:
    """Influence on its way down in one run: what reaches each writer, and through which steps."""

    settings: Through
    influence: defaultdict[Writer, float] = field(default_factory=lambda: defaultdict(float))
    steps: defaultdict[Step, float] = field(default_factory=lambda: defaultdict(float))
    causes: dict[Step, Cause] = field(default_factory=dict)  # of mlp and value steps
    mlps: dict[Writer, Shares] = field(default_factory=dict)
    explained: set[Writer] = field(default_factory=set)
    reasons: dict[Writer, str] = field(default_factory=dict)  # why a writer that could have been explained was not
    _waiting: defaultdict[tuple[str, int], list[Writer]] = field(default_factory=lambda: defaultdict(list))

    def reach(self, writer: Writer, share: float, into: tuple[Writer | None, EdgeSide]) -> None:
        """Hand influence to a writer."""
        if writer not in self.influence:
            self._waiting[writer.kind, writer.layer].append(writer)
        self.influence[writer] += share
        self.steps[(writer, *into)] += share

    def reached(self, kind: str, layer: int) -> list[Writer]:
        """Writers of a layer that carry enough to be explained, and can be: not at the first token."""
        writers = (w for w in self._waiting[kind, layer] if self.influence[w] >= self.settings.eps and w.dest > 0)
        return sorted(writers, key=lambda w: (w.head or 0, w.dest, w.src))

    def handing(self, side: Side) -> Iterator[Signal]:
        """The signals that take a side's influence: those of the prompt, where it has any."""
        useful = [signal for signal in side.signals if signal.ig > 0]
        of_prompt = [signal for signal in useful if signal.writer.kind not in _CONSTANT]
        yield from of_prompt if of_prompt and self.settings.constants == "baseline" else useful

    def hand_on(
        self, writer: Writer, share: float, causes: Sequence[Cause], side: EdgeSide
    ) -> list[tuple[Writer, float, float]]:
        """All of an explained write's influence to its causes, by their parts: who takes how much, for which part."""
        total = sum(cause.part for cause in causes)
        if total <= 0:
            return []
        handed = []
        for cause in causes:
            who, taken = cause.writer or offset_of(writer), share * cause.part / total
            self.reach(who, taken, (writer, side))
            self.causes[(who, writer, side)] = cause
            handed.append((who, taken, cause.part))
        self.explained.add(writer)
        return handed

    def leaves(self) -> dict[Writer, str]:
        """Every writer that was not explained, and why."""
        return {writer: self._reason(writer) for writer in self.influence if writer not in self.explained}

    def _reason(self, writer: Writer) -> str:
        if writer.kind not in EXPLAINED:
            return "constant" if writer.kind in ("mlp_offset", "value_offset") else writer.kind
        if writer.dest == 0:
            return "at the first token"
        if self.influence[writer] < self.settings.eps:
            return "pruned"
        if writer in self.reasons:
            return self.reasons[writer]
        return "in layer 0" if writer.layer == 0 else "sink"


# Along which direction is each writer read? What all its readers read, weighted by influence, added up.
#
# What an MLP (or a head) writes is read by several consumers, each along a direction of its own; weighted by
# influence these are one direction D, so that each (layer, token) is explained once.

Key = tuple[int, Writer]  # a writer of a run
Reader = tuple[int, Writer, float, float]  # of a run's writer: which share of influence it hands on, for which value


class Directions:
    """D of every writer that is read and could be explained, in all runs."""

    def __init__(self, d_model: int, device: torch.device) -> None:
        self._slots: dict[Key, int] = {}
        self._sums = torch.zeros(256, d_model, dtype=torch.float64, device=device)

    def add(
        self,
        readers: Sequence[Reader],
        vectors: Float[Tensor, "vector d_model"],
        rows: Sequence[int] | None = None,
    ) -> None:
        """Each reader reads along one of the vectors, in their order or that of `rows`.

        Where nothing is read, or against the direction, nothing is added.
        """
        which = range(len(readers)) if rows is None else rows
        useful = [
            (reader, row)
            for reader, row in zip(readers, which, strict=True)
            if reader[3] > 0 and reader[1].kind in EXPLAINED
        ]
        if not useful:
            return
        slots = [self._slots.setdefault((run, writer), len(self._slots)) for (run, writer, _, _), _ in useful]
        while len(self._slots) > len(self._sums):
            self._sums = torch.cat([self._sums, torch.zeros_like(self._sums)])
        factors = self._sums.new_tensor([share / value for (_, _, share, value), _ in useful])
        read = vectors[[row for _, row in useful]].double() * factors[:, None]
        self._sums.index_add_(0, torch.tensor(slots, device=read.device), read)

    def __contains__(self, key: Key) -> bool:
        return key in self._slots

    def of(self, keys: Sequence[Key]) -> Float[Tensor, "key d_model"]:
        """The directions of some writers."""
        return self._sums[[self._slots[key] for key in keys]]
