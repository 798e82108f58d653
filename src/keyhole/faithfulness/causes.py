"""Is a circuit's arithmetic right, and does the answer need its parts? Both, and how that reads.

Which two questions does a verification answer? Arithmetic: is it as predicted? Causes: does the answer need it?

Both are read from the same removals. Arithmetic compares a measured attention weight, or what is left of an MLP's
write, with its prediction. Causes compare what the answer loses (`Row.effect`) with what it loses without controls: as
many other channels of the same writers in the same head, or other writers as large.

A removal matters if its effect is larger than each of its own controls', larger than those of 95 % of all controls of
its kind, and larger than a hundredth of a logit. So at most one in twenty does by chance, if removals and controls of a
kind are alike.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from statistics import median
from typing import TYPE_CHECKING, Any

from keyhole.brief import model_label
from keyhole.circuits.text import channels_label, count, node_label
from keyhole.faithfulness.removals import Row
from keyhole.intervene.removal import AGREES, Mode
from keyhole.report import Report, Section, Table

if TYPE_CHECKING:
    from keyhole.circuits.circuit import Circuit
    from keyhole.faithfulness.removals import Row, Verification

CHANCE = 0.05  # p-value from which on an effect is not put down to chance
LEAST = 0.01  # logits: a probability changes by 1 %. A smaller effect is of no interest, whatever controls do
_FEWEST = math.ceil(1 / CHANCE) - 1  # controls, with fewer of which no p-value is as small


@dataclass(frozen=True)
class Arithmetic:
    """Do measured values equal the predicted ones?"""

    agree: int  # values that do
    of: int  # values for which something is predicted
    largest: float  # difference; NaN where nothing is predicted
    tolerance: float  # difference that is allowed, the largest of all values'


@dataclass(frozen=True)
class Cause:
    """One removal's effect on the answer, compared with controls. Positive: the answer loses this much without it."""

    row: Row
    kind: str  # which others it is compared with
    effect: float
    control: float  # the effect of its own control that moves the answer most, in the same unit; NaN: it has none
    p: float  # share of the controls of its kind that move the answer as much, itself counted among them
    matters: bool | None  # None: there are too few controls to tell

    @property
    def verdict(self) -> str:
        """What it does to the answer."""
        if self.matters is None:
            return "too few controls"
        return "like controls" if not self.matters else "supports" if self.effect > 0 else "holds back"


@dataclass(frozen=True)
class Group:
    """Effects of removals of one kind."""

    kind: str  # what was removed
    causes: tuple[Cause, ...]
    controls: tuple[float, ...]  # sizes of the effects of all their controls

    @property
    def bar(self) -> float:
        """The size that an effect must exceed: one in twenty controls reaches it; NaN: there are too few to say."""
        if len(self.controls) < _FEWEST:
            return math.nan
        return max(LEAST, sorted(self.controls, reverse=True)[math.floor(CHANCE * (1 + len(self.controls))) - 1])

    @property
    def supporting(self) -> int:
        """How many matter, and the answer loses by their removal."""
        return sum(cause.verdict == "supports" for cause in self.causes)

    @property
    def holding_back(self) -> int:
        """How many matter, and the answer gains by their removal."""
        return sum(cause.verdict == "holds back" for cause in self.causes)

    @property
    def above_own(self) -> int:
        """How many effects are larger than each of their own controls'."""
        return sum(abs(cause.effect) > abs(cause.control) for cause in self.causes)

    def record(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "kind": self.kind,
            "removals": len(self.causes),
            "controls": len(self.controls),
            "bar": self.bar,
            "supporting": self.supporting,
            "holding_back": self.holding_back,
            "above_own": self.above_own,
            "by_chance": CHANCE * len(self.causes),
            "median_effect": median(abs(cause.effect) for cause in self.causes),
            "median_control": median(self.controls) if self.controls else math.nan,
        }


@dataclass(frozen=True)
class Causes:
    """What does the answer lose without each? Empty where a circuit has no answer, as one of a probe."""

    answer: float  # before anything is removed
    ranked: tuple[Cause, ...]  # the largest effect first, of either sign
    groups: tuple[Group, ...]  # by what was removed

    def record(self, rows: Sequence[Row]) -> dict[str, Any]:
        """As plain data; `order` has the numbers of the rows, the largest effect first.

        Args:
            rows: The rows whose indices `order` has.
        """
        number = {id(row): i for i, row in enumerate(rows)}
        order = [number[id(cause.row)] for cause in self.ranked]
        return {"answer": self.answer, "groups": [group.record() for group in self.groups], "order": order}


def arithmetic(rows: Iterable[Row]) -> Arithmetic:
    """How many of the values for which something is predicted are as predicted?"""
    judged = [row for row in rows if row.agrees is not None]
    largest = max((abs(row.after - row.predicted) for row in judged), default=math.nan)
    tolerance = max((row.tolerance for row in judged), default=AGREES)
    return Arithmetic(sum(bool(row.agrees) for row in judged), len(judged), largest, tolerance)


def causes(rows: Sequence[Row], mode: Mode) -> Causes:
    """What the answer loses without each, compared with controls of the same kind."""
    kinds: dict[str, list[Row]] = {}
    for row in rows:
        again = mode == "global" and row.what == "chain"  # a reader, in the very pass of its MLP's causes
        if not again and not math.isnan(row.metric_before):
            kinds.setdefault(kind_of(row), []).append(row)
    groups = tuple(_group(kind, members) for kind, members in kinds.items())
    ranked = sorted((cause for group in groups for cause in group.causes), key=lambda cause: -abs(cause.effect))
    return Causes(rows[0].metric_before if rows else math.nan, tuple(ranked), groups)


def kind_of(row: Row) -> str:
    """What was removed, and where it is seen: removals of one kind are compared with each other's controls."""
    if row.what == "side":
        return "whole sides of firings"
    if row.what == "signal":
        return "single signals"
    if row.what == "causes":
        return "MLPs' causes"
    reader = {"mlp": "another MLP", "target": "the answer"}.get(row.side, "a firing")
    return f"MLPs' causes, seen by {reader} alone"


def _group(kind: str, rows: Sequence[Row]) -> Group:
    pool = tuple(sorted(abs(effect) for row in rows if row.same_size for effect in row.control_effects))
    return Group(kind, tuple(_cause(row, kind, pool) for row in rows), pool)


def _cause(row: Row, kind: str, pool: Sequence[float]) -> Cause:
    size, controls = abs(row.effect), row.control_effects
    p = (1 + len(pool) - bisect_left(pool, size)) / (1 + len(pool))  # those at least as large, and itself
    largest = max(controls, key=abs, default=math.nan)
    matters = None
    if controls and row.same_size and len(pool) >= _FEWEST:
        matters = size > abs(largest) and p <= CHANCE and size > LEAST
    return Cause(row, kind, row.effect, largest, p, matters)


# How does a verification read? Arithmetic in a line or two; causes as a table and a line per kind of removal.

_LOST = {"dest": "attention", "src": "attention", "mlp": "MLPs' writes", "target": "the answer"}
_CELLS = ("of", "removed", ">effect", ">control", "the answer", ">before", ">after", ">predicted", "arithmetic")


def report(result: "Verification", most: int = 20) -> Report:
    """Both parts, each under its name, with the removals of the largest effects.

    Args:
        result: What was removed.
        most: How many removals are shown in the table.
    """
    circuit, rows = result.circuit, shown_rows(result, most)
    every = len(result.causes.ranked) or len(result.rows)
    shown: list[str | Table] = []
    if circuit is not None and rows:
        shown = [
            Table(_CELLS, table_cells(circuit, result, rows)),
            f"{len(rows)} of {every} removals. {_units_line(circuit, rows)}",
        ]
    stopped = f"{result.stopped}\n" if result.stopped else ""
    return Report(
        "Verification" + (f": {model_label(str(circuit.model.get('name')))}" if circuit else ""),
        f"{stopped}{every} parts removed ({result.mode}), each compared with {count(result.draws, 'random control')}",
        [
            Section("Arithmetic: do measured values equal the predicted ones?", [_arithmetic_text(result)]),
            Section("Causes: does the answer need what is removed?", [*shown, _causes_text(result)]),
        ],
        None if circuit is None else Table(_NUMBERS, [_numbers(circuit, row) for row in result.rows]),
    )


def _arithmetic_text(result: "Verification") -> str:
    """How many values are as predicted, and by how much attention and writes fall."""
    part = result.arithmetic
    if part.of:
        allowed = f"largest difference {part.largest:.0e}, tolerance {part.tolerance:.0e}"
        equal = f"{part.agree} of {part.of} measured values equal the predicted ones ({allowed})"
    else:
        equal = "nothing is predicted: everything downstream is free" if result.rows else "nothing was removed"
    return "\n".join(filter(None, [equal, _drops_line(result), result.note]))


def _drops_line(result: "Verification") -> str:
    """By how much attention and writes fall, with that of controls in brackets."""
    kinds: dict[tuple[str, str], list[Row]] = {}
    for row in result.rows:
        kinds.setdefault((_LOST[row.side], kind_of(row)), []).append(row)
    drops = []
    for (lost, kind), rows in kinds.items():
        controls = [abs(drop) for row in rows for drop in row.control_drops]
        beside = f" ({median(controls):.4f})" if controls else ""
        drops.append(f"{lost} without {kind} {median(row.drop for row in rows):.3f}{beside}")
    return f"median drops (controls): {'; '.join(drops)}" if drops else ""


def _causes_text(result: "Verification") -> str:
    """A line per kind, compared with controls."""
    part, first = result.causes, ""
    if part.ranked:
        first = (
            f"the answer is {part.answer:+.2f}; effect: what it loses without a part. A part matters if its effect is "
            f"larger than each of its own controls', than those of {1 - CHANCE:.0%} of all controls of its kind, and "
            f"than {LEAST}"
        )
    elif result.rows:
        first = "this circuit has no answer, so there are no effects on it"
    return "\n".join(filter(None, [first, *map(_group_line, part.groups)]))


def _group_line(group: "Group") -> str:
    n = len(group.causes)
    sizes = f"median size {median(abs(cause.effect) for cause in group.causes):.3f}"
    if not group.controls:
        return f"{n} {group.kind}: {sizes}, no controls to compare with"
    sizes += f", controls {median(group.controls):.3f}"
    if math.isnan(group.bar):
        return f"{n} {group.kind}: {len(group.controls)} controls are too few to tell which matter; {sizes}"
    matter = group.supporting + group.holding_back
    signs = f"{group.supporting} support the answer, {group.holding_back} hold it back"
    chance = f"by chance at most {CHANCE * n:.1f}"
    return f"{n} {group.kind}: {matter} matter, by more than {group.bar:.3f} ({chance}): {signs}; {sizes}"


def shown_rows(result: "Verification", most: int) -> list["Row"]:
    """The removals with the largest effects on the answer, of either sign.

    Where there is no answer, the largest of every kind, as many of each as there is room for; by kind.
    """
    if result.causes.ranked:
        return [cause.row for cause in result.causes.ranked[:most]]
    kinds: dict[tuple[str, bool], list[Row]] = {}
    for row in result.rows:
        kinds.setdefault((row.what, row.side == "mlp"), []).append(row)
    ranked = [sorted(rows, key=lambda row: -row.drop) for rows in kinds.values()]
    in_turn = (row for row in chain.from_iterable(zip_longest(*ranked)) if row is not None)
    chosen = {id(row) for row in islice(in_turn, most)}
    return [row for rows in ranked for row in rows if id(row) in chosen]


def _units_line(circuit: "Circuit", rows: Sequence["Row"]) -> str:
    """What the numbers of a table of these removals are."""
    units = ["a firing's attention"] * any(row.side in ("dest", "src") for row in rows)
    units += ["the share of an MLP's write that is left (below 0: it writes the opposite)"] * any(
        row.side == "mlp" for row in rows
    )
    units += ["the answer"] * any(row.side == "target" for row in rows)
    weights = f"before, after, predicted: {', or '.join(units)}."
    if not circuit.parameters.target_ids:
        return weights
    unit = "logit difference to the other answer" if circuit.parameters.against_ids else "log-probability"
    effects = f"effect: what the answer's {unit} loses without it; control: the same for as many random channels, or "
    return f"{effects}other writers, the largest of its draws. {weights}"


def table_cells(circuit: "Circuit", result: "Verification", rows: Sequence["Row"]) -> list[tuple[str, ...]]:
    """Removals as rows of a table."""
    verdicts = {id(cause.row): (f"{cause.control:+.3f}", cause.verdict) for cause in result.causes.ranked}
    return [_cells(circuit, row, *verdicts.get(id(row), ("-", ""))) for row in rows]


def _cells(circuit: "Circuit", row: "Row", control: str, verdict: str) -> tuple[str, ...]:
    claim = {True: "as predicted", False: "DIFFERS", None: "no promise"}[row.agrees]
    predicted = "-" if math.isnan(row.predicted) else f"{row.predicted:.3f}"
    return (
        node_label(circuit.nodes[row.node], circuit.tokens).removeprefix("head "),
        _removed(circuit, row),
        "-" if math.isnan(row.effect) else f"{row.effect:+.3f}",
        control if row.control_effects else "-",
        verdict,
        f"{row.before:.3f}",
        f"{row.after:.3f}",
        predicted,
        claim,
    )


_NUMBERS = ("of", "removed", "what", ">effect", ">before", ">after", ">predicted", ">controls' mean drop")


def _numbers(circuit: "Circuit", row: "Row") -> tuple[str | float, ...]:
    """One removal with all digits."""
    where = node_label(circuit.nodes[row.node], circuit.tokens)
    return where, _removed(circuit, row), row.what, row.effect, row.before, row.after, row.predicted, row.control


def _removed(circuit: "Circuit", row: "Row") -> str:
    """What was taken away."""
    if row.what == "side":
        return f"all {row.side} signals"
    if row.what == "causes":
        return "its causes"
    assert row.edge is not None
    edge = circuit.edges[row.edge]
    source = node_label(circuit.nodes[edge.sender], circuit.tokens)
    if row.what == "chain":
        return f"causes of {source}"
    return f"{row.side} {source} {channels_label(edge.channels, 3)}"
