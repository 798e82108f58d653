"""What did removals do, in which order are they made, and what if they are stopped?

What did removals do? One row each, and all those of a circuit.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from statistics import mean, median
from typing import TYPE_CHECKING, Any, Literal

from keyhole.brief import brief
from keyhole.circuits.circuit import EdgeSide
from keyhole.intervene.removal import AGREES, Mode
from keyhole.intervene.rerun import Edits, Rerun, batch_size, batches, rerun
from keyhole.progress import Progress, duration, silent
from keyhole.report import Report, Reported

if TYPE_CHECKING:
    from keyhole.circuits.circuit import Circuit
    from keyhole.faithfulness.causes import Arithmetic, Causes
    from keyhole.models.run import Run

What = Literal["side", "signal", "causes", "chain"]


@dataclass(frozen=True)
class Row:
    """One removal.

    `side`    all signals of one side of a firing: its attention
    `signal`  one signal (edge) of a firing: its attention
    `causes`  all causes of an MLP, taken from what it reads: what is left of its write, as a share
    `chain`   the same, and what that changes put into one reader (edge) alone: a firing's attention, what is left of
              another MLP's write, or the answer; under global removal, everything is free
    """

    node: int
    side: EdgeSide
    edge: int | None
    before: float
    after: float
    predicted: float
    agrees: bool | None  # None where no particular value is promised: global removal, and the answer
    metric_before: float
    metric_after: float
    control_drops: tuple[float, ...]
    control_metrics: tuple[float, ...]
    norm_ratio: float
    cosine: float
    what: What = "side"
    tolerance: float = AGREES  # how far measured and predicted may be apart
    same_size: bool = True  # do controls remove as many channels? A signal of most channels leaves too few

    @property
    def effect(self) -> float:
        """What the answer loses without it: the answer before minus the answer after. Below 0 it held it back."""
        return self.metric_before - self.metric_after

    @property
    def control_effects(self) -> tuple[float, ...]:
        """What the answer loses without each control, in the same unit."""
        return tuple(self.metric_before - metric for metric in self.control_metrics)

    @property
    def drop(self) -> float:
        """How much attention, write or answer was lost."""
        return self.before - self.after

    @property
    def control(self) -> float:
        """Mean absolute drop of the controls."""
        return mean(abs(d) for d in self.control_drops) if self.control_drops else float("nan")


@dataclass(frozen=True)
class Stopped:
    """It was stopped before all was done."""

    after: int  # removals that are finished
    of: int  # that there were to make

    def __str__(self) -> str:
        return f"stopped after {self.after} of {self.of} removals, those with the largest influence first"


@dataclass(frozen=True)
class Verification(Reported):
    """All removals of one circuit, which answer two questions: see `arithmetic` and `causes`."""

    mode: Mode  # how signals were removed
    draws: int  # random controls for each removal
    rows: tuple[Row, ...]  # a removal each
    note: str = ""  # what could not be measured, and why
    stopped: Stopped | None = None  # before all removals were made; None: all were
    circuit: "Circuit | None" = field(default=None, repr=False, compare=False)  # of which parts were removed

    @property
    def arithmetic(self) -> "Arithmetic":
        """Do measured values equal the predicted ones?"""
        from keyhole.faithfulness.causes import arithmetic

        return arithmetic(self.rows)

    @cached_property
    def causes(self) -> "Causes":
        """Does the answer need what was removed? Effects compared with controls, the largest first."""
        from keyhole.faithfulness.causes import causes

        return causes(self.rows, self.mode)

    @property
    def sides(self) -> tuple[Row, ...]:
        """Whole sides of firings."""
        return tuple(row for row in self.rows if row.what == "side")

    @property
    def edges(self) -> tuple[Row, ...]:
        """Single signals."""
        return tuple(row for row in self.rows if row.what == "signal")

    @property
    def mlps(self) -> tuple[Row, ...]:
        """MLPs without their causes."""
        return tuple(row for row in self.rows if row.what == "causes")

    def chains(self, *sides: EdgeSide) -> tuple[Row, ...]:
        """Causes of MLPs, seen in what reads them: firings ("dest", "src": the default), MLPs, the answer.

        Args:
            *sides: Which readers: "dest" and "src" for firings (the default), "mlp", "target".
        """
        return tuple(row for row in self.rows if row.what == "chain" and row.side in (sides or ("dest", "src")))

    @property
    def agrees(self) -> bool:
        """Does all that is measured equal what was predicted, where something was?"""
        return all(row.agrees is not False for row in self.rows)

    def ratio(self, rows: "Sequence[Row] | None" = None) -> float:
        """Median drop over the median absolute drop of the controls (of whole sides, unless rows are given).

        Args:
            rows: Some of its rows. Default: the whole sides.
        """
        rows = self.sides if rows is None else rows
        controls = [abs(d) for row in rows for d in row.control_drops]
        if not rows or not controls:
            return float("nan")
        return median(row.drop for row in rows) / max(median(controls), 1e-12)

    def record(self) -> dict[str, Any]:
        """As plain data."""
        groups = {"sides": self.sides, "signals": self.edges, "causes": self.mlps}
        groups |= {"firings": self.chains(), "mlps": self.chains("mlp"), "answer": self.chains("target")}
        ratios = {name: self.ratio(group) for name, group in groups.items() if group}
        matters = {id(cause.row): cause.matters for cause in self.causes.ranked}
        rows = [
            {
                **asdict(row),
                "drop": row.drop,
                "control": row.control,
                "effect": row.effect,
                "control_effects": row.control_effects,
                "matters": matters.get(id(row)),
            }
            for row in self.rows
        ]
        return {
            "mode": self.mode,
            "agrees": self.agrees,
            "ratio": self.ratio(),
            "ratios": ratios,
            "note": self.note,
            "stopped": asdict(self.stopped) if self.stopped else None,
            "arithmetic": asdict(self.arithmetic),
            "causes": self.causes.record(self.rows),
            "rows": rows,
        }

    def report(self, most: int = 20) -> Report:
        """Both answers; of the removals, as many as wanted, the largest effects first.

        Args:
            most: At most this many removals are shown.
        """
        from keyhole.faithfulness.causes import report

        return report(self, most)

    __repr__ = brief

    def _repr_html_(self) -> str:
        from keyhole.web.reprs import verification_html

        return verification_html(self)


# In which order are removals made, how long will they take, and what is left of them when they are stopped?
#
# Each removal runs with its own controls. Those with the largest influence come first, so that a part of them is
# worth reading: they are taken in portions of a few batches, and only within a portion by layer, which saves the
# layers below the first change. After the first batch the time of all of them is estimated and logged. Ctrl-C ends
# the work, and what was finished is returned.

_LOG = logging.getLogger("keyhole")
_PORTION = 4  # batches that are sorted by layer: with more of them, what matters most comes later


@dataclass(frozen=True)
class Removal:
    """One removal with its controls: the copies of the prompt that it needs, and what they come to."""

    influence: float  # the largest first
    copies: Callable[[], Sequence[Edits]]  # itself, then its controls; made when their turn comes, for they are large
    see: Callable[[int, Rerun, int], Any]  # which of the copies, the batch that it ran in, and its place there
    rows: Callable[[Sequence[Any]], Sequence[Row]]  # from what was seen of all copies


def _work(run: "Run", copies: Sequence[Edits]) -> int:
    """How much a batch takes: the layers that its copies go through, and the answer."""
    layers = len(run.layers)
    return len(copies) * (layers + 1 - min(min(edits.first_layer for edits in copies), layers - 1))


def rows_of(
    run: "Run", removals: Sequence[Removal], at: int | list[int], progress: Progress | None
) -> tuple[list[Row], Stopped | None]:
    """Make all removals: their rows in the order given, and after how many it was stopped, if it was.

    `at`: the token whose logits are looked at, or several.
    """
    progress, finished = progress or silent, dict[int, Sequence[Row]]()
    order = sorted(range(len(removals)), key=lambda i: -removals[i].influence)
    stopped = None
    try:
        while len(finished) < len(order):
            progress(len(finished), len(order))
            _portion(run, removals, order, at=at, finished=finished, progress=progress)
        progress(len(order), len(order))
    except KeyboardInterrupt:
        stopped = Stopped(len(finished), len(order))
    return [row for i in sorted(finished) for row in finished[i]], stopped


def _portion(
    run: "Run",
    removals: Sequence[Removal],
    order: Sequence[int],
    *,
    at: int | list[int],
    finished: dict[int, Sequence[Row]],
    progress: Progress,
) -> None:
    """The next few batches; `finished` grows with every batch."""
    began, first, most = time.monotonic(), not finished, _PORTION * batch_size(run)
    copies, owners = list[Edits](), list[tuple[int, int]]()  # whose copy it is, and which
    needed: dict[int, int] = {}
    for number in order[len(finished) :]:
        own_copies = removals[number].copies()
        owners += [(number, k) for k in range(len(own_copies))]
        copies += own_copies
        needed[number] = len(own_copies)
        if len(copies) >= most:
            break
    outcomes: dict[int, dict[int, Any]] = {number: {} for number in needed}
    groups = batches(run, copies)
    ready = time.monotonic()
    for group in groups:
        result = rerun(run, [copies[i] for i in group], all_logits=at != len(run) - 1)
        for place, i in enumerate(group):
            number, k = owners[i]
            outcomes[number][k] = removals[number].see(k, result, place)
            if len(outcomes[number]) == needed[number]:
                finished[number] = removals[number].rows([outcomes[number][k] for k in range(needed[number])])
        if first:
            work = [_work(run, [copies[i] for i in members]) for members in groups]
            portion = ready - began + (time.monotonic() - ready) * sum(work) / work[0]
            seconds = max(1.0, portion * len(order) / len(needed))
            _LOG.info(f"about {duration(seconds)} for {len(order)} removals; Ctrl-C shows those that are finished.")
            first = False
        progress(len(finished), len(order))
