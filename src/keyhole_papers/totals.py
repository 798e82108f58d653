"""What do all results come to? One item per published figure, table or theorem, and how many have which verdict.

A slide that shows a figure again, and what goes beyond the papers, are shown and not counted.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from keyhole_papers.catalogue import CATALOGUE, Published
from keyhole_papers.results import Result, State

Label = State | Literal["contrary"]  # "needs a model", when another model was measured and does not show it
SAID: dict[Label, str] = {
    "reproduced": "reproduced",
    "partly": "partly",
    "not": "not reproduced",
    "untold": "cannot be told",
    "contrary": "not on a stand-in",
    "needs a model": "needs a model",
    "quick": "quick trial",
    "later": "later",
    "failed": "failed",
    "schematic": "drawing",
}
_MANY: dict[Label, str] = {
    **SAID,
    "needs a model": "need a model",
    "quick": "quick trials without a verdict",
    "schematic": "drawings",
}
_ONE: dict[Label, str] = {**SAID, "quick": "quick trial without a verdict"}


@dataclass(frozen=True)
class Item:
    """A published item with the result that a report shows for it."""

    one: Published
    result: Result
    others: tuple[Result, ...] = ()  # of other models, measured in full too

    @property
    def label(self) -> Label:
        """What a reader may conclude."""
        if self.result.state == "needs a model" and self.result.numbers:  # without any, there was nothing to measure
            return "contrary"
        return self.result.state

    @property
    def said(self) -> str:
        """The label in a word or two."""
        return SAID[self.label]

    @property
    def remark(self) -> str:
        """What the label leaves open."""
        return "; ".join(text for text in (self._open, self._uncounted) if text)

    @property
    def _uncounted(self) -> str:
        if self.one.same_as:
            return f"that of {self.one.same_as}, not counted again"
        return "beyond the paper, not counted" if self.one.beyond else ""

    @property
    def _open(self) -> str:
        if self.label == "contrary":
            return f"measured on another model, which does not show it; a verdict needs {self.one.needs}"
        return "a trial of the machinery, no verdict" if self.label == "quick" else ""


def items(results: Mapping[str, Result]) -> list[Item]:
    """What to show of each item, in the catalogue's order: the published model's result before a stand-in's.

    A slide shows what its figure shows. What an older version called otherwise is left out.
    """
    several: dict[str, list[Result]] = defaultdict(list)
    for result in results.values():
        several[result.id].append(result)
    found = []
    for id, one in CATALOGUE.items():
        own = sorted(several.get(one.same_as or id) or several.get(id, []), key=_weight, reverse=True)
        if own:
            first, *rest = [replace(result, id=id) for result in own]
            others = tuple(result for result in rest if result.finished and result.state != "quick")
            found.append(Item(one, first, others))
    return found


@dataclass(frozen=True)
class Count:
    """How many items have a verdict, and what they are about; a drawing is about neither."""

    items: int
    toys: int  # and theorems
    language: int  # models


def counts(shown: Sequence[Item]) -> dict[Label, Count]:
    """The verdicts that occur, in their order."""
    counted = [item for item in shown if item.one.counts]
    items = Counter(item.label for item in counted)
    language = Counter(item.label for item in counted if item.one.needs)
    drawings = Counter(item.label for item in counted if item.one.schematic)
    return {
        label: Count(items[label], items[label] - language[label] - drawings[label], language[label])
        for label in SAID
        if items[label]
    }


def summary(shown: Sequence[Item]) -> str:
    """The total in a few sentences: all verdicts, those about toys and theorems, those about language models."""
    found = counts(shown)
    counted = sum(item.one.counts for item in shown)
    of = sum(one.counts for one in CATALOGUE.values())
    text = (
        f"{counted} of {of} published figures, tables and theorems: {_listed({k: n.items for k, n in found.items()})}."
    )
    text += f" About toys and theorems: {_listed({k: n.toys for k, n in found.items()})}."
    text += f" About language models: {_listed({k: n.language for k, n in found.items()})}."
    copies, beyond = sum(item.one.same_as is not None for item in shown), sum(item.one.beyond for item in shown)
    left = [f"{copies} slide{'s' * (copies > 1)} that show{'s' * (copies == 1)} a figure again"] * bool(copies)
    left += [f"{beyond} beyond the papers"] * bool(beyond)
    return f"{text} Not counted: {' and '.join(left)}." if left else text


def _listed(numbers: Mapping[Label, int]) -> str:
    return ", ".join(f"{n} {(_ONE if n == 1 else _MANY)[label]}" for label, n in numbers.items() if n) or "none"


def _weight(result: Result) -> tuple[bool, ...]:
    """What a full measurement says counts most, of these what the published model says, then what is as published."""
    settings = result.settings
    quick = bool(settings.get("quick"))
    return (
        result.finished and not quick,
        result.state == "failed" and not quick,
        result.finished,
        result.state in ("reproduced", "not"),  # said of no stand-in
        bool(settings.get("model")),
        bool(settings.get("as_printed") or settings.get("revisions") or settings.get("explainer")),
        not settings.get("dtype"),
    )
