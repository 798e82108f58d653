"""What do all results come to? One item per published figure, table or theorem, and how many have which verdict.

A slide that shows a figure again, and what goes beyond the papers, are shown and not counted.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from keyhole_papers.catalogue import CATALOGUE, Published
from keyhole_papers.results import SAID, Label, Result

_MANY: dict[Label, str] = {
    **SAID,
    "needs a model": "need a model",
    "quick": "quick trials without a verdict",
    "schematic": "drawings",
}
_ONE: dict[Label, str] = {**SAID, "quick": "quick trial without a verdict"}


Kind = Literal["items", "toys", "language"]  # all; toys and theorems; language models; a drawing is about neither
Item = Sequence[Result]  # the one that a report shows, then those of other models, measured in full too


def items(results: Mapping[str, Result]) -> list[Item]:
    """What to show of each item, in the catalogue's order: the published model's result before a stand-in's.

    A slide shows what its figure shows. What an older version called otherwise is left out.
    """
    several: dict[str, list[Result]] = defaultdict(list)
    for result in results.values():
        several[result.id].append(result)
    found: list[Item] = []
    for id, one in CATALOGUE.items():
        own = sorted(several.get(one.same_as or id) or several.get(id, []), key=_weight, reverse=True)
        if own:
            first, *rest = [replace(result, id=id) for result in own]
            others = (result for result in rest if result.finished and result.state != "quick")
            found.append((first, *others))
    return found


def counts(shown: Sequence[Item], kind: Kind = "items") -> dict[Label, int]:
    """How many items of a kind have each verdict? Those that occur at all, in their order."""
    counted = [first for first, *_ in shown if first.published.counts]
    occur = Counter(first.label for first in counted)
    of_kind = Counter(first.label for first in counted if _is(kind, first.published))
    return {label: of_kind[label] for label in SAID if occur[label]}


def _is(kind: Kind, item: Published) -> bool:
    if kind == "toys":
        return not item.needs and not item.schematic
    return kind == "items" or bool(item.needs)


def summary(shown: Sequence[Item]) -> str:
    """The total in a few sentences: all verdicts, those about toys and theorems, those about language models."""
    counted = sum(first.published.counts for first, *_ in shown)
    of = sum(one.counts for one in CATALOGUE.values())
    text = f"{counted} of {of} published figures, tables and theorems: {_listed(counts(shown))}."
    text += f" About toys and theorems: {_listed(counts(shown, 'toys'))}."
    text += f" About language models: {_listed(counts(shown, 'language'))}."
    copies = sum(first.published.same_as is not None for first, *_ in shown)
    beyond = sum(first.published.beyond for first, *_ in shown)
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
