"""What is a contrast? Queries, keys that have a feature, and keys that have it not.

    place    where in a prompt: a token, a span of characters, the n-th occurrence of a text or a regular expression
    site     a place in one of the contrast's prompts
    sample   one query site, its positive and its negative key sites; prompts may differ
    contrast prompts and samples

A place that covers several tokens means the last of them, where a decoder has read the whole word.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keyhole.errors import KeyholeError
from keyhole.models.prompts import Prompt

if TYPE_CHECKING:
    from keyhole.tasks.example import Example


@dataclass(frozen=True)
class Place:
    """Where in a prompt? Made by `last`, `token`, `span`, `find`, `regex` and `role`.

    `nth` picks an occurrence of `text` or `pattern` (negative counts from the end); None means every one, where a list
    of sites is asked for.
    """

    token: int | None = None
    span: tuple[int, int] | None = None
    text: str | None = None
    pattern: str | None = None
    nth: int | None = 0

    def __post_init__(self) -> None:
        if sum(field is not None for field in (self.token, self.span, self.text, self.pattern)) != 1:
            raise KeyholeError("a place is exactly one of: a token, a span, a text, or a pattern.")


@dataclass(frozen=True)
class Site:
    """A place in the prompt of this number."""

    place: Place
    prompt: int = 0


@dataclass(frozen=True)
class Sample:
    """One query and the keys it is contrasted over."""

    query: Site
    positive: tuple[Site, ...]
    negative: tuple[Site, ...]
    negative_query: Site | None = None  # where negatives meet another query: C- = E[q' k'^T] (None: the same query)
    label: str | None = None  # the feature's value, for contrasts per value and for colours
    group: str | None = None  # samples of one group stay in the same half
    weight: float = 1.0

    def __post_init__(self) -> None:
        for side, sites in (("positive", self.positive), ("negative", self.negative)):
            if not sites:
                raise KeyholeError(f"a sample has no {side} key: both sides are needed for a difference.")
        if not 0 < self.weight < float("inf"):
            raise KeyholeError(f"a sample's weight must be positive and finite, not {self.weight}.")

    @property
    def sites(self) -> tuple[Site, ...]:
        """Every site, queries first."""
        queries = (self.query,) if self.negative_query is None else (self.query, self.negative_query)
        return (*queries, *self.positive, *self.negative)


@dataclass(frozen=True)
class Contrast:
    """Samples over prompts. `bos` as in `model.run`."""

    name: str
    prompts: tuple[Prompt, ...]
    samples: tuple[Sample, ...]
    bos: bool | None = None

    def __post_init__(self) -> None:
        if not self.samples:
            raise KeyholeError(f"the contrast {self.name!r} has no samples.")
        for number, sample in enumerate(self.samples):
            for site in sample.sites:
                if not 0 <= site.prompt < len(self.prompts):
                    raise KeyholeError(
                        f"sample {number} of {self.name!r} names prompt {site.prompt}, but there are "
                        f"{len(self.prompts)} prompts, numbered from 0."
                    )
        labelled = sum(sample.label is not None for sample in self.samples)
        if labelled not in (0, len(self.samples)):
            raise KeyholeError(
                f"{labelled} of the {len(self.samples)} samples of {self.name!r} have a label: label all or none."
            )

    @property
    def labels(self) -> tuple[str, ...]:
        """The different labels, in order of appearance."""
        return tuple(dict.fromkeys(sample.label for sample in self.samples if sample.label is not None))


# -- places -------------------------------------------------------------------------------------------------------


def last() -> Place:
    """The last token of the prompt."""
    return Place(token=-1)


def token(position: int) -> Place:
    """A token position; negative counts from the end."""
    return Place(token=position)


def span(start: int, end: int) -> Place:
    """The last token that covers some of these characters of the prompt."""
    return Place(span=(start, end))


def find(text: str, nth: int | None = 0) -> Place:
    """The n-th occurrence of a text (None: every one)."""
    return Place(text=text, nth=nth)


def regex(pattern: str, nth: int | None = 0) -> Place:
    """The n-th match of a regular expression (None: every one); a group, if it has one, narrows the match."""
    return Place(pattern=pattern, nth=nth)


def role(example: "Example", name: str, roles: Mapping[str, tuple[int, int]] | None = None) -> Place:
    """Where a task's example has this role; `roles` replaces its spans when the text was put into a template."""
    spans = example.roles if roles is None else roles
    if name not in spans:
        raise KeyholeError(f"this example has no role {name!r}: it has {', '.join(spans)}.")
    return span(*spans[name])
