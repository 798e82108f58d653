"""What is a claim here, and on what was it measured? A number, what was published of it, and whether that holds.

Verdict, text, numbers and note of a result all follow from its findings and their provenance.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from keyhole.errors import KeyholeError, MissingModelError
from keyhole.stats import Interval, as_text, interval, wilson, with_range
from keyhole_papers.results import Numbers, Verdict

NOT_MEASURED = "not measured"
Claim = tuple[str, bool | None]  # in words, and whether it holds
NO_CLAIM: Claim = "", None
NO_CLAIMS: Mapping[str, Claim] = {}
Value = str | float | int | Interval | Sequence[float] | Sequence[bool]


def last_name(model: str | None) -> str:
    """The name of a model without its organisation or folder.

    >>> last_name("openai-community/GPT2/")
    'gpt2'
    """
    return (model or "").rstrip("/").rpartition("/")[2].lower()


def refuse(model: str | None, problem: str, advice: str, *, published: bool) -> NoReturn:
    """Refuse to judge a model: another one is needed, unless this is the published one, which should not fail."""
    text = f"{model or 'the built-in organism'} {problem}"
    raise KeyholeError(f"{text}.") if published else MissingModelError(f"{text}: {advice}.")


@dataclass(frozen=True)
class Provenance:
    """The model and the prompts behind a result.

    >>> Provenance("distilgpt2", False, prompts="8 prompts").text
    'Prompts: 8 prompts. distilgpt2 stood in for GPT-2 small.'
    """

    model: str | None  # as it was given; None: the organism, or a toy
    real: bool  # is it the published one?
    published: str = "GPT-2 small"
    prompts: str = ""  # how many, and which
    heads: str = ""  # how they were given their roles

    @property
    def text(self) -> str:
        """The prompts, the heads, and which model stood in for the published one, as a note ends."""
        whose = self.model or "The built-in organism (4 layers of 8 heads with 16 channels each)"
        prompts = f"Prompts: {self.prompts}." if self.prompts else ""
        stood_in = "" if self.real else f"{whose} stood in for {self.published}."
        return " ".join(part for part in (prompts, self.heads, stood_in) if part)

    def verdict(self, holds: Sequence[bool], *, first: bool = True) -> Verdict:
        """Half of the claims are a part; without `first`, which the others depend on, or without evidence, nothing.

        Another model than the published one shows a part at most; nor does it refute anything.
        """
        half = first and len(holds) > 0 and 2 * sum(holds) >= len(holds)
        if self.real:
            return "reproduced" if half and all(holds) else "partly" if half else "not"
        return "partly" if half else "needs a model"


TOY = Provenance(None, True)  # nothing stands in for anything


@dataclass(frozen=True)
class Finding:
    """One number that was measured, and what is claimed of it.

    >>> Finding("removed", Interval(-0.5, -0.75, -0.25), "a loss", True, part="END").text
    'removed -0.500 [-0.750, -0.250] (as claimed)'
    >>> Finding("ranks", [3, 5]).text, Finding("share", [0.2, 0.4, math.nan], spread=True, digits=1).text
    ('ranks 3, 5', 'share 0.3 [-1.0, 1.6]')
    """

    name: str
    value: Value  # with its interval; a number for each seed; whether each seed shows it; or words, which are not kept
    claim: str = ""  # in words
    holds: bool | None = None  # None: nothing is claimed of it
    part: str = ""  # of the item: a place, a task, a head
    digits: int = 3
    percent: bool = False
    spread: bool = False  # of seeds: their mean with its 95 % interval, not the smallest and the largest
    joint: str = ": "  # between part and name, in the key

    @property
    def key(self) -> str:
        """Its name among the numbers of a result."""
        return f"{self.part}{self.joint}{self.name}" if self.part else self.name

    @property
    def number(self) -> float | int | list[float] | None:
        """As it is kept: a mean with its interval, or a number per seed; None if it was not measured, or is words."""
        value = self.value
        if isinstance(value, str):
            return None
        if isinstance(value, int | float):
            return None if math.isnan(value) else value
        if not isinstance(value, Interval):
            return [float(number) for number in value]
        return [number for number in value if not math.isnan(number)] or None

    @property
    def text(self) -> str:
        """In words, with whether the claim holds."""
        claim = "" if self.holds is None else " (as claimed)" if self.holds else " (not as claimed)"
        return f"{self.name} {self._written}{claim}"

    @property
    def _written(self) -> str:
        value = self.value
        if isinstance(value, str):
            return value
        if self.number is None or self.number == []:
            return NOT_MEASURED
        if isinstance(value, Interval):
            return as_text(value, self.digits)
        if isinstance(value, int):
            return f"{value:,}"
        if isinstance(value, float):
            tiny = 0 < abs(value) < 10**-self.digits
            return f"{value:.0%}" if self.percent else f"{value:.2g}" if tiny else f"{value:.{self.digits}f}"
        flags = [flag for flag in value if isinstance(flag, bool)]
        if len(flags) == len(value):
            return counted(flags)
        known = [number for number in value if not math.isnan(number)]
        if all(isinstance(number, int) for number in known):
            return ", ".join(map(str, known)) or NOT_MEASURED
        return as_text(interval(known), self.digits) if self.spread else with_range(known, self.digits)


@dataclass(frozen=True)
class Findings:
    """All numbers of one published item, and on what they were measured.

    >>> rows = of_part("END", Finding("removed", -0.5, "a loss", True), Finding("boosted", 0.2, "a gain", False))
    >>> findings = Findings(rows, Provenance("gpt2", True, prompts="8 prompts"))
    >>> print(findings.verdict, findings.numbers)
    partly {'END: removed': -0.5, 'END: boosted': 0.2}
    >>> findings.measured
    'END: removed -0.500 (as claimed); boosted 0.200 (not as claimed).'
    >>> findings.note
    'Claimed of removed: a loss; of boosted: a gain. Prompts: 8 prompts.'
    """

    rows: Sequence[Finding]
    of: Provenance
    first: bool = True  # does that hold on which all the rest depends?
    unless: str = ""  # that, in words: nothing is shown unless ...
    remark: str = ""  # what claims leave open: how something was measured, and what is meant by a word
    judged: Verdict | None = None  # by a rule of the item's own; None: half of the claims are a part of it

    @property
    def verdict(self) -> Verdict:
        """What all claims together come to."""
        return self.judged or self.of.verdict(self.holds, first=self.first)

    @property
    def holds(self) -> list[bool]:
        """Claim by claim."""
        return holds_of(self.rows)

    @property
    def measured(self) -> str:
        """A line for each part."""
        parts: dict[str, list[str]] = {}
        for row in self.rows:
            parts.setdefault(row.part, []).append(row.text)
        lines = {part: "; ".join(texts) for part, texts in parts.items()}
        return "\n".join(f"{part}: {line}." if part else f"{line}." for part, line in lines.items())

    @property
    def numbers(self) -> Numbers:
        """All that are known, by name."""
        return {row.key: row.number for row in self.rows if row.number is not None}

    @property
    def note(self) -> str:
        """What is claimed, what stood in for what, and on which prompts it was measured."""
        names: dict[str, dict[str, None]] = {}
        for row in self.rows:
            if row.claim:
                names.setdefault(row.claim, {})[row.name] = None
        claims = [f"of {', '.join(named)}: {claim}" for claim, named in names.items()]
        claims += [f"nothing unless {self.unless}"] * bool(self.unless)
        parts = (f"Claimed {'; '.join(claims)}." if claims else "", self.remark, self.of.text)
        return " ".join(part for part in parts if part)


def holds_of(rows: Sequence[Finding]) -> list[bool]:
    """Of all that something is claimed of: does it hold?"""
    return [row.holds for row in rows if row.holds is not None]


def of_part(part: str, *rows: Finding, joint: str = ": ") -> list[Finding]:
    """Findings about one part of an item."""
    return [replace(row, part=part, joint=joint) for row in rows]


def rows_of(values: Mapping[str, Value], claims: Mapping[str, Claim] = NO_CLAIMS, **shown: Any) -> list[Finding]:
    """Numbers by name, with the claims about some of them; `shown` are fields of all, such as digits=2.

    >>> [row.text for row in rows_of({"both": -1.0, "sum": -1.5}, {"both": ("a loss", True)}, digits=1)]
    ['both -1.0 (as claimed)', 'sum -1.5']
    """
    return [Finding(name, value, *claims.get(name, NO_CLAIM), **shown) for name, value in values.items()]


def counted(flags: Sequence[bool]) -> str:
    """A share as text.

    >>> counted([True, False])
    '1 of 2 [0.09, 0.91]'
    """
    _, low, high = wilson(sum(flags), len(flags))
    return f"{sum(flags)} of {len(flags)} [{low:.2f}, {high:.2f}]"
