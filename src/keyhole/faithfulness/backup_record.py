"""Which heads take over when one is removed, and which keys gain the attention that a firing loses?

This module has the results on backup heads, their report, and the gains of other keys: predicted exactly, and measured.

When signals are removed from the keys of a firing, the score of key j drops by d_j. Weights add up to one, so other
keys gain:

    A'_j = A_j exp(-d_j) / (sum_k A_k exp(-d_k) + sink),      sink = 1 - sum_k A_k, or 0 where there is none

A key that gains is a backup within the head: no second head is involved. With a softcap, d_j is the drop of the capped
score.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import mean
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.brief import Head, brief, head_name
from keyhole.circuits.circuit import Circuit
from keyhole.errors import KeyholeError
from keyhole.faithfulness.removals import Stopped
from keyhole.intervene.cuts import side_cut
from keyhole.intervene.removal import Cut, Metric, head_delta, head_edit, intervene
from keyhole.models.numbers import exact_matmul
from keyhole.report import Cell, Picture, Report, Reported, Section, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from keyhole.models.run import Run

FIRINGS = 32  # at most this many firings are tested, by largest influence


@dataclass(frozen=True)
class Handover:
    """One firing with the signals removed from its keys: what src loses, and which key gains most."""

    head: Head
    dest: int
    src: int
    before: float  # attention weight of src in the run
    after: float  # attention weight of src without the signals, measured
    key: int  # position of the key that gains most
    gained: float  # gain of that key, measured
    predicted: float  # gain of that key, predicted
    error: float  # largest difference between measured and predicted weights, over all keys


def handed_on(
    weights: Float[Tensor, "*row key"], lost: Float[Tensor, "*row key"], *, sink: bool = False
) -> Float[Tensor, "*row key"]:
    """Attention weights after (capped) scores drop by `lost`. With a `sink`, the rest of a row up to 1 belongs to it.

    >>> handed_on(torch.tensor([0.5, 0.25, 0.25]), torch.tensor([50.0, 0, 0])).round(decimals=3).tolist()
    [0.0, 0.5, 0.5]
    """
    least = lost.masked_fill(weights == 0, torch.inf).amin(-1, keepdim=True)  # exponents are at most 0: no overflow
    least = least.clamp_max(0.0) if sink else least
    left = torch.where(weights == 0, 0.0, weights * (least - lost).exp())
    rest = (1 - weights.sum(-1, keepdim=True)) * least.exp() if sink else 0.0
    return left / (left.sum(-1, keepdim=True) + rest)


def predicted_row(run: "Run", cut: Cut) -> Float[Tensor, "pos"]:
    """The attention row of a firing without some signals, computed from the weights and scores of the run."""
    record = run.attention_run(cut.layer)
    with exact_matmul():
        edit = head_edit(run, cut, head_delta(run, cut), "exact").row
        assert edit is not None
        scores = record.scores([cut.head], [cut.dest])[0, 0].double()
        weights = record.weights([cut.head], [cut.dest])[0, 0].double()
        lost = record.rule.cap(scores) - record.rule.cap(scores - edit[1].double())
        return handed_on(weights, lost, sink=record.rule.sinks is not None)


def handovers(
    circuit: Circuit, run: "Run", metric: Metric, heads: Sequence[Head] | None = None
) -> tuple[Handover, ...]:
    """What other keys gain in each firing of the circuit, by influence; `heads` restricts it to these heads."""
    cuts = []
    by = circuit.influence or [weight or 0.0 for weight in circuit.attention]
    for traced in sorted(circuit.firings, key=lambda firing: -by[firing.node]):
        node = circuit.nodes[traced.node]
        if heads is not None and (node.layer, node.head) not in heads:
            continue
        try:
            cuts.append(side_cut(circuit, traced, "src"))
        except KeyholeError:  # no signal was removed on this side
            continue
    cuts = cuts[:FIRINGS]
    outcomes = intervene(run, cuts, metric, mode="local", keep=True) if cuts else []
    rows = []
    for cut, outcome in zip(cuts, outcomes, strict=True):
        record = run.attention_run(cut.layer)
        assert outcome.row is not None
        measured, row = outcome.row.double(), predicted_row(run, cut)
        before = record.weights([cut.head], [cut.dest])[0, 0].double()
        gains = measured - before
        gains[cut.src] = -torch.inf
        key = int(gains.argmax()) if len(run) > 1 else cut.src
        rows.append(
            Handover(
                head=(cut.layer, cut.head),
                dest=cut.dest,
                src=cut.src,
                before=float(before[cut.src]),
                after=float(measured[cut.src]),
                key=key,
                gained=float(measured[key] - before[key]),
                predicted=float(row[key] - before[key]),
                error=float((measured - row).abs().max()),
            )
        )
    return tuple(rows)


# The results of removing pairs of heads, and their report.

# How the second head takes over. wakes: its write changes; counts more: its write stays, and the answer depends more
# on it; holds back less: its effect stays at or below 0 but grows.
BackupKind = Literal["wakes", "counts more", "holds back less"]


@dataclass(frozen=True)
class Pair:
    """Two heads, removed one after the other."""

    first: Head
    second: Head
    alone: float  # effect of the second head
    after: float  # effect of the second head when the first is removed
    reaction: float | None = None  # with the first removed: loss of the answer if the second keeps its original write
    kind: BackupKind | None = None  # None: the second head is not a backup of the first

    @property
    def growth(self) -> float:
        """How much the effect of the second head grows when the first is removed."""
        return self.after - self.alone


@dataclass(frozen=True)
class Removed:
    """One head of the circuit, removed alone, in pairs, and with its backups."""

    head: Head
    influence: float | None
    effect: float  # of its removal alone
    pairs: tuple[Pair, ...]  # with every other head of its own and later layers
    joint: float | None = None  # effect of removing the head with its supporting backups; None: no such backups
    random: tuple[float, ...] = ()  # effects of removing the head with as many random heads instead

    @property
    def backups(self) -> tuple[Pair, ...]:
        """Pairs whose second head takes over, largest growth first."""
        return tuple(sorted((pair for pair in self.pairs if pair.kind), key=lambda pair: -pair.growth))

    @property
    def supporting(self) -> tuple[Pair, ...]:
        """Backups that support the answer when the head is removed. The other backups still work against it."""
        return tuple(pair for pair in self.backups if pair.kind != "holds back less")

    @property
    def expected(self) -> float:
        """The joint effect if effects added up."""
        return self.effect + sum(pair.alone for pair in self.supporting)


@dataclass(frozen=True)
class Backups(Reported):
    """Which heads take over when one of a circuit's heads is removed."""

    __repr__ = brief

    model: str
    tokens: tuple[str, ...]
    metric: str
    baseline: str
    everything: float  # metric in the unchanged run
    nothing: float  # metric with every writer at its baseline
    bar: float  # a second head with more growth than this is a backup
    random: tuple[Pair, ...]  # random pairs, from which the bar is set
    heads: tuple[Removed, ...]
    handovers: tuple[Handover, ...] = ()
    stopped: Stopped | None = None
    note: str = field(default="")

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """All backups, the largest growth first."""
        return tuple(sorted((pair for row in self.heads for pair in row.backups), key=lambda pair: -pair.growth))

    @property
    def error(self) -> float:
        """The largest difference between predicted and measured attention weights."""
        return max((row.error for row in self.handovers), default=0.0)

    def record(self) -> dict[str, Any]:
        """As plain data; of random pairs only the growth is kept."""
        heads = [
            {
                "head": head_name(row.head),
                "influence": row.influence,
                "effect": row.effect,
                "tested": len(row.pairs),
                "joint": row.joint,
                "expected": row.expected if row.supporting else None,
                "random": list(row.random),
                "backups": [
                    {**asdict(pair), "growth": pair.growth}
                    | {"first": head_name(pair.first), "second": head_name(pair.second)}
                    for pair in row.backups
                ],
            }
            for row in self.heads
        ]
        names = ("model", "metric", "baseline", "everything", "nothing", "bar", "note")
        return {
            **{name: getattr(self, name) for name in names},
            "tokens": list(self.tokens),
            "verdict": self.verdict,
            "heads": heads,
            "random_growth": [pair.growth for pair in self.random],
            "handovers": [{**asdict(row), "head": head_name(row.head)} for row in self.handovers],
            "stopped": None if self.stopped is None else str(self.stopped),
        }

    @property
    def verdict(self) -> str:
        """How many backups there are, in a sentence."""
        tested = sum(len(row.pairs) for row in self.heads)
        chance = f"by chance at most {tested / (1 + len(self.random)):.1f}"
        kinds = [pair.kind for pair in self.pairs]
        if not kinds:
            return f"No backups: none of {tested} pairs grows by more than {self.bar:.3f} ({chance})."
        counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
        backed = sum(bool(row.backups) for row in self.heads)
        return (
            f"{len(kinds)} of {tested} pairs grow by more than {self.bar:.3f} ({chance}): {counts}; "
            f"{backed} of {len(self.heads)} heads are backed up."
        )

    @property
    def summary(self) -> str:
        """What was measured and how, in a few sentences."""
        lines = [
            f"{self.model}: the answer's {self.metric} is {self.everything:+.2f} in the prompt and {self.nothing:+.2f} "
            f"at the baseline, {self.baseline}. A removed head writes its baseline at all tokens.",
            f"growth: effect of a head after the first is gone, less its effect alone. A backup's is above "
            f"{self.bar:.3f}: the largest of {len(self.random)} random pairs, and at least 2 % of the gap.",
            self.verdict,
        ]
        if self.handovers:
            lines.append(
                f"Softmax: without the signals on their keys, the weights of {len(self.handovers)} firings are as "
                f"predicted, over all keys to {self.error:.0e}."
            )
        lines += [f"note: {self.note}"] * bool(self.note) + [str(self.stopped)] * (self.stopped is not None)
        return "\n".join(lines)

    def report(self) -> Report:
        """Every pair, joint removals, and what the softmax hands to other keys."""
        picture = Picture(self.plot, "Effects alone and after")
        columns = ("first", "second", "pair", ">alone", ">after", ">growth", ">reaction", "kind")
        every = [("circuit", pair) for row in self.heads for pair in row.pairs] + [("random", p) for p in self.random]
        rows = [
            (head_name(p.first), head_name(p.second), which, p.alone, p.after, p.growth, p.reaction, p.kind or "")
            for which, p in every
        ]
        return Report(
            f"Backups: {self.model}",
            self.summary,
            [
                Section("Pairs of heads", [_PAIRS, picture, self._backed()]),
                self.joint,
                Section("What the softmax hands on", self._handed_on(), page_only=True),
            ],
            Table(columns, rows),
            picture,
        )

    @property
    def joint(self) -> Section:
        """Joint removals: a head, its backups, and both; compared with as many random heads."""
        columns = ("removed", ">effect", "with its backups", ">effects added", ">joint effect", ">with random heads")
        rows = [
            (
                *(head_name(row.head), row.effect, " ".join(head_name(pair.second) for pair in row.supporting)),
                *(row.expected, row.joint, mean(row.random)),
            )
            for row in self.heads
            if row.supporting
        ]
        return Section("Joint removal", [_JOINT, Table(columns, rows)] if rows else [])

    def _backed(self) -> Table:
        """A row per backup of each head; a head without backups has one row that says `none`."""
        columns = ("removed", ">effect", "backup", ">alone", ">after", ">growth", ">reaction", "kind")
        rows: list[tuple[Cell, ...]] = []
        for row in self.heads:
            start = (head_name(row.head), row.effect)
            rows += [
                (*start, head_name(p.second), p.alone, p.after, p.growth, p.reaction, str(p.kind)) for p in row.backups
            ] or [(*start, "none", None, None, None, None, "")]
        return Table(columns, rows)

    def _handed_on(self) -> list[str | Table]:
        """Firings without the signals on their keys: what the source loses, and which key gains most."""
        columns = ("head", "dest", "src", ">before", ">after", "key that gains", ">gained", ">predicted", ">error")
        place = [f"{token.strip() or repr(token)} ({i})" for i, token in enumerate(self.tokens)]
        rows = [
            (
                *(head_name(h.head), place[h.dest], place[h.src], h.before, h.after),
                *(place[h.key], h.gained, h.predicted, f"{h.error:.0e}"),
            )
            for h in self.handovers
        ]
        return [_HANDED_ON, Table(columns, rows)] if rows else []

    def plot(self) -> "Figure":
        """Effects alone and after. See `keyhole.figures.attention`."""
        from keyhole.figures.attention import backups_figure

        return backups_figure(self)


_PAIRS = (
    "On the line of the figure, a head has the same effect whether or not the other is there; above it, it takes over. "
    "wakes: it writes something else once the other is gone. counts more: it writes the same, and the answer depends "
    "more on it. holds back less: it worked against the answer, and does so less. reaction: what the answer loses, the "
    "first head gone, if the second writes what it wrote in the prompt."
)
_JOINT = (
    "A head is removed alone, then with all its backups that support the answer; and with as many random heads of the "
    "same layers."
)
_HANDED_ON = (
    "Inside a head, other keys take over: what the source loses, the softmax hands to them. Without the signals on its "
    "keys, weight A_j becomes A_j exp(-d_j) / (sum_k A_k exp(-d_k) + s). d_j is what the score of key j loses. s is "
    "the weight that the row leaves to the model's learned sink, 1 - sum_k A_k, and 0 in models without one. error: "
    "the largest difference to the measured weights, over all keys."
)
