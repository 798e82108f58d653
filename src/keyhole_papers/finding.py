"""What is a claim here, and what stood in for what? All else follows from these.

What was a result measured on? Which model stood in for the published one, and which prompts it was asked.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from keyhole.stats import Interval, as_text, interval, wilson, with_range
from keyhole_papers.results import Numbers, Verdict


@dataclass(frozen=True)
class Provenance:
    """The model and the prompts behind a result.

    >>> Provenance("distilgpt2", False, prompts="8 prompts").text
    'Prompts: 8 prompts. distilgpt2 stood in for GPT-2 small.'
    """

    model: str | None  # as it was asked for; None: the organism, or a toy
    real: bool  # is it the published one?
    published: str = "GPT-2 small"
    prompts: str = ""  # how many, and which
    heads: str = ""  # how they were given their roles

    @property
    def stood_in(self) -> str:
        """Which model stood in for the published one?"""
        if self.real:
            return ""
        whose = self.model or "The built-in organism (4 layers of 8 heads with 16 channels each)"
        return f"{whose} stood in for {self.published}."

    @property
    def text(self) -> str:
        """All of it, as a note ends."""
        prompts = f"Prompts: {self.prompts}." if self.prompts else ""
        return " ".join(part for part in (prompts, self.heads, self.stood_in) if part)

    def verdict(self, holds: Sequence[bool], *, first: bool = True) -> Verdict:
        """Half of what was published is a part of it; without `first`, what the rest depends on, or evidence, nothing.

        Another model than the published one shows a part of it, no more; nor does it refute it.
        """
        half = first and len(holds) > 0 and 2 * sum(holds) >= len(holds)
        if self.real:
            return "reproduced" if half and all(holds) else "partly" if half else "not"
        return "partly" if half else "needs a model"


TOY = Provenance(None, True)  # nothing stands in for anything


# What is a claim here? A number, what was published of it, and does that hold: all else follows from these three.

NOT_MEASURED = "not measured"
Claim = tuple[str, bool | None]  # what is asked, and whether it holds
NO_CLAIM: Claim = "", None
NO_CLAIMS: Mapping[str, Claim] = {}


Value = str | float | int | Interval | Sequence[float] | Sequence[bool]


@dataclass(frozen=True)
class Finding:
    """One thing that was measured, and what the published claim asks of it.

    >>> Finding("removed", Interval(-0.5, -0.75, -0.25), "a loss", True, part="END").text
    'removed -0.500 [-0.750, -0.250] (as asked)'
    >>> Finding("ranks", [3, 5]).text, Finding("share", [0.2, 0.4, math.nan], spread=True, digits=1).text
    ('ranks 3, 5', 'share 0.3 [-1.0, 1.6]')
    """

    name: str
    value: Value  # with its interval; a number for each seed; whether each seed shows it; or words, which are not kept
    asked: str = ""  # in words
    holds: bool | None = None  # None: nothing is asked of it
    part: str = ""  # of the item: a place, a task, a head
    digits: int = 3
    percent: bool = False
    spread: bool = False  # of seeds: their mean with its 95 % interval, not the smallest and the largest
    joint: str = ": "  # of part and name, in the key

    @property
    def key(self) -> str:
        """Its name among the numbers of a result."""
        return f"{self.part}{self.joint}{self.name}" if self.part else self.name

    @property
    def number(self) -> float | int | list[float] | None:
        """As it is kept: a mean with its interval, or what each seed says; None if it was not measured, or is words."""
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
        claim = "" if self.holds is None else " (as asked)" if self.holds else " (not as asked)"
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
        flags = [one for one in value if isinstance(one, bool)]
        if len(flags) == len(value):
            return counted(flags)
        known = [one for one in value if not math.isnan(one)]
        if all(isinstance(one, int) for one in known):
            return ", ".join(map(str, known)) or NOT_MEASURED
        return as_text(interval(known), self.digits) if self.spread else with_range(known, self.digits)


@dataclass(frozen=True)
class Findings:
    """What was found of one published item, and on what.

    >>> rows = of_part("END", Finding("removed", -0.5, "a loss", True), Finding("boosted", 0.2, "a gain", False))
    >>> found = Findings(rows, Provenance("gpt2", True, prompts="8 prompts"))
    >>> print(found.verdict, found.numbers)
    partly {'END: removed': -0.5, 'END: boosted': 0.2}
    >>> found.measured
    'END: removed -0.500 (as asked); boosted 0.200 (not as asked).'
    >>> found.note
    'Asked of removed: a loss; of boosted: a gain. Prompts: 8 prompts.'
    """

    rows: Sequence[Finding]
    of: Provenance
    first: bool = True  # does that hold on which all the rest depends?
    unless: str = ""  # that, in words: nothing is shown unless ...
    remark: str = ""  # what claims leave open: how something was measured, and what is meant by a word
    judged: Verdict | None = None  # by a rule of the paper's own; None: half of what is asked is a part of it

    @property
    def verdict(self) -> Verdict:
        """What all claims together come to."""
        return self.judged or self.of.verdict(self.holds, first=self.first)

    @property
    def holds(self) -> list[bool]:
        """Claim by claim."""
        return [row.holds for row in self.rows if row.holds is not None]

    @property
    def measured(self) -> str:
        """A line for each part."""
        parts: dict[str, list[str]] = {}
        for row in self.rows:
            parts.setdefault(row.part, []).append(row.text)
        return "\n".join(f"{part}: {'; '.join(own)}." if part else f"{'; '.join(own)}." for part, own in parts.items())

    @property
    def numbers(self) -> Numbers:
        """All that are known, by name."""
        return {row.key: row.number for row in self.rows if row.number is not None}

    @property
    def note(self) -> str:
        """What was asked, what stood in for what, and on which prompts."""
        claims: dict[str, dict[str, None]] = {}
        for row in self.rows:
            if row.asked:
                claims.setdefault(row.asked, {})[row.name] = None
        asked = [f"of {', '.join(names)}: {claim}" for claim, names in claims.items()]
        asked += [f"nothing unless {self.unless}"] * bool(self.unless)
        return " ".join(
            text for text in (f"Asked {'; '.join(asked)}." if asked else "", self.remark, self.of.text) if text
        )


def of_part(part: str, *rows: Finding, joint: str = ": ") -> list[Finding]:
    """Findings about one part of an item."""
    return [replace(row, part=part, joint=joint) for row in rows]


def rows_of(values: Mapping[str, Value], claims: Mapping[str, Claim] = NO_CLAIMS) -> list[Finding]:
    """Numbers by name, with what is asked of some of them and whether that holds.

    >>> [row.text for row in rows_of({"both": -1.0, "sum": -1.5}, {"both": ("a loss", True)})]
    ['both -1.000 (as asked)', 'sum -1.500']
    """
    return [Finding(name, value, *claims.get(name, NO_CLAIM)) for name, value in values.items()]


def counted(flags: Sequence[bool]) -> str:
    """A share as text.

    >>> counted([True, False])
    '1 of 2 [0.09, 0.91]'
    """
    _, low, high = wilson(sum(flags), len(flags))
    return f"{sum(flags)} of {len(flags)} [{low:.2f}, {high:.2f}]"
