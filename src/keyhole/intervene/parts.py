"""Which two questions does a verification answer? Arithmetic: is it as predicted? Causes: does the answer need it?

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
from statistics import median
from typing import Any

from keyhole.intervene.remove import AGREES, Mode
from keyhole.intervene.rows import Row

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
        """As plain data; `order` has the numbers of the rows, the largest effect first."""
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
    size, own = abs(row.effect), row.control_effects
    p = (1 + len(pool) - bisect_left(pool, size)) / (1 + len(pool))  # those at least as large, and itself
    largest = max(own, key=abs, default=math.nan)
    matters = None
    if own and row.same_size and len(pool) >= _FEWEST:
        matters = size > abs(largest) and p <= CHANCE and size > LEAST
    return Cause(row, kind, row.effect, largest, p, matters)
