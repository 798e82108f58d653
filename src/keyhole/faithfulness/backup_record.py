"""Which heads take over, how does that read, and what does the softmax hand to other keys?

To which keys does the softmax hand the attention that a firing loses? Predicted exactly, and measured.

A firing whose keys lose some signals has lower scores, by d_j at key j. Weights add up to one, so other keys gain:

    A'_j = A_j exp(-d_j) / (sum_k A_k exp(-d_k) + sink),      sink = 1 - sum_k A_k, or 0 where there is none

A key that gains is a backup inside one head: it needs no second one. With a softcap, d is what the capped score loses.
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

FIRINGS = 32  # whose keys are changed, those of the largest influence


@dataclass(frozen=True)
class Handover:
    """One firing without the signals on its keys."""

    head: Head
    dest: int
    src: int
    before: float  # attention weight of src
    after: float  # the same without the signals, measured
    key: int  # that gains most
    gained: float  # by it, measured
    predicted: float  # by it
    error: float  # largest difference between measured and predicted weights, over all keys


def handed_on(
    weights: Float[Tensor, "*row key"], lost: Float[Tensor, "*row key"], *, sink: bool = False
) -> Float[Tensor, "*row key"]:
    """Attention weights once (capped) scores are lower by `lost`; with a `sink`, what a row lacks to 1 is its own.

    >>> handed_on(torch.tensor([0.5, 0.25, 0.25]), torch.tensor([50.0, 0, 0])).round(decimals=3).tolist()
    [0.0, 0.5, 0.5]
    """
    least = lost.masked_fill(weights == 0, torch.inf).amin(-1, keepdim=True)  # exponents of at most 0: none overflows
    least = least.clamp_max(0.0) if sink else least
    left = torch.where(weights == 0, 0.0, weights * (least - lost).exp())
    rest = (1 - weights.sum(-1, keepdim=True)) * least.exp() if sink else 0.0
    return left / (left.sum(-1, keepdim=True) + rest)


def predicted_row(run: "Run", cut: Cut) -> Float[Tensor, "pos"]:
    """All weights of a firing's row without some signals, from its weights and scores alone."""
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
    """What other keys gain in the circuit's firings, of some heads alone if `heads` are given; the largest first."""
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


# What came of removing heads in pairs, and how it reads.

# wakes: it writes something else; counts more: it writes the same; holds back less: its effect was and is below 0
BackupKind = Literal["wakes", "counts more", "holds back less"]


@dataclass(frozen=True)
class Pair:
    """Two heads, removed one after the other."""

    first: Head
    second: Head
    alone: float  # effect of the second head
    after: float  # its effect once the first is gone
    reaction: float | None = None  # what the answer loses, the first gone, if the second writes as in the prompt
    kind: BackupKind | None = None  # None: no backup

    @property
    def growth(self) -> float:
        """By how much the effect of the second grows when the first is gone."""
        return self.after - self.alone


@dataclass(frozen=True)
class Removed:
    """One head of the circuit, and everything that was removed with it."""

    head: Head
    influence: float | None
    effect: float  # of its removal alone
    pairs: tuple[Pair, ...]  # with every other head from its layer on
    joint: float | None = None  # effect of removing it with its supporting backups; None: it has none
    random: tuple[float, ...] = ()  # the same with as many random heads of the same layers

    @property
    def backups(self) -> tuple[Pair, ...]:
        """Those that take over, the largest growth first."""
        return tuple(sorted((pair for pair in self.pairs if pair.kind), key=lambda pair: -pair.growth))

    @property
    def supporting(self) -> tuple[Pair, ...]:
        """Backups that the answer needs once the head is gone; the others still hold it back."""
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
    everything: float  # the answer in the prompt
    nothing: float  # and with every writer at its baseline
    bar: float  # growth above this is a backup's
    random: tuple[Pair, ...]
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
        """As plain data, random pairs by their growth alone."""
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
        """What was done, in words."""
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
        """Every backup of every head, or that it has none."""
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
    "keys, weight A_j becomes A_j exp(-d_j) / sum_k A_k exp(-d_k), with d_j what the score of key j loses. error: the "
    "largest difference to the measured weights, over all keys."
)
