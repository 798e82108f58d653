"""What is a contrast? Queries, keys that have a feature, and keys that have it not.

    place    where in a prompt: a token, a span of characters, the n-th occurrence of a text or a regular expression
    site     a place in one of the contrast's prompts
    sample   one query site, its positive and its negative key sites; prompts may differ
    contrast prompts and samples

A place that covers several tokens means the last of them, where a decoder has read the whole word.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from keyhole.errors import KeyholeError
from keyhole.models.tokens import Prompt
from keyhole.strict import quoted

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.tasks.example import Example

Roles = str | Sequence[str]  # one or several


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


LAST = Place(token=-1)
Places = str | Place | Sequence[str | Place]  # one or several; a text is its first occurrence


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

    name: str  # of the feature
    prompts: tuple[Prompt, ...]  # texts, or token ids
    samples: tuple[Sample, ...]  # a query with its positive and negative keys each
    bos: bool | None = None

    def __post_init__(self) -> None:
        if not self.samples:
            raise KeyholeError(f"the contrast {quoted(self.name)} has no samples.")
        for number, sample in enumerate(self.samples):
            for site in sample.sites:
                if not 0 <= site.prompt < len(self.prompts):
                    raise KeyholeError(
                        f"sample {number} of {quoted(self.name)} names prompt {site.prompt}, but there are "
                        f"{len(self.prompts)} prompts, numbered from 0."
                    )
        labelled = sum(sample.label is not None for sample in self.samples)
        if labelled not in (0, len(self.samples)):
            raise KeyholeError(
                f"{labelled} of the {len(self.samples)} samples of {quoted(self.name)} have a label: label all or none."
            )

    @property
    def labels(self) -> tuple[str, ...]:
        """The different labels, in order of appearance."""
        return tuple(dict.fromkeys(sample.label for sample in self.samples if sample.label is not None))

    @classmethod
    def from_roles(
        cls,
        name: str,
        examples: "Sequence[Example]",
        *,
        query: str | Place = LAST,
        positive: "Roles | Callable[[Example], Roles]",
        negative: "Roles | Callable[[Example], Roles]",
        label: "str | Callable[[Example], str] | None" = None,
        bos: bool | None = None,
    ) -> "Contrast":
        """Keys by their roles in a task's examples, a sample each: positive="BOX", negative="box_*".

        A side is a role or several, * standing for any letters, or a function of the example that names them. A key
        that is asked for on both sides is positive. `label` is a role, whose word it is, or a function of the example.
        """
        samples = []
        for number, example in enumerate(examples):
            plus, minus = (_spans(example, side) for side in (positive, negative))
            named = label(example) if callable(label) else None if label is None else example.word(label)
            site = query if isinstance(query, Place) else role(example, query)
            right, others = [span(*spot) for spot in plus], [span(*spot) for spot in minus if spot not in plus]
            samples.append(_sample(number, site, right, others, named))
        return cls(name, tuple(example.text for example in examples), tuple(samples), bos)

    @classmethod
    def from_texts(
        cls,
        name: str,
        texts: Sequence[str],
        *,
        query: str | Place = LAST,
        positive: Places | Callable[[str], Places],
        negative: Places | Callable[[str], Places],
        label: Callable[[str], str] | None = None,
        bos: bool | None = None,
    ) -> "Contrast":
        """Keys by where they stand in texts, a sample each: positive=find("cat"), negative=["dog", "cow"].

        A side is a place or several, or a function of the text that gives them; a string is its first occurrence,
        `find(string)`. The query is one place. `label` is a function of the text.
        """
        if isinstance(texts, str):
            raise KeyholeError("a contrast is made of many texts: give a list of them.")
        samples = []
        for number, text in enumerate(texts):
            plus, minus = (_places(side, text) for side in (positive, negative))
            samples.append(_sample(number, _place(query), plus, minus, None if label is None else label(text)))
        return cls(name, tuple(texts), tuple(samples), bos)

    @classmethod
    def load(cls, path: "str | Path") -> "Contrast":
        """Read JSON Lines; see `keyhole.features.contrast.files`."""
        from keyhole.features.contrast.files import read_contrast

        return read_contrast(path)

    def save(self, path: "str | Path") -> None:
        """Write JSON Lines that `load` reads."""
        from keyhole.features.contrast.files import write_contrast

        write_contrast(self, path)

    def __repr__(self) -> str:
        return f"<Contrast {self.name!r}: {len(self.samples)} samples over {len(self.prompts)} prompts>"


def _spans(example: "Example", side: "Roles | Callable[[Example], Roles]") -> list[tuple[int, int]]:
    """Where these roles stand, in the order of the text."""
    roles = side(example) if callable(side) else side
    spans = set()
    for wanted in (roles,) if isinstance(roles, str) else roles:
        matching = {spot for name, spot in example.roles.items() if fnmatchcase(name, wanted)}
        spans |= matching or {example.span(wanted)}  # which says what roles there are
    return sorted(spans)


def _places(side: Places | Callable[[str], Places], text: str) -> list[Place]:
    given = side(text) if callable(side) else side
    return [_place(place) for place in ((given,) if isinstance(given, str | Place) else given)]


def _place(where: str | Place) -> Place:
    return where if isinstance(where, Place) else find(where)


def _sample(
    number: int, query: Place, positive: Sequence[Place], negative: Sequence[Place], label: str | None
) -> Sample:
    """A sample whose sites all stand in the prompt of its own number."""
    plus, minus = (tuple(Site(place, number) for place in side) for side in (positive, negative))
    return Sample(Site(query, number), plus, minus, label=label, group=str(number))


# -- places -------------------------------------------------------------------------------------------------------


def last() -> Place:
    """The last token of the prompt."""
    return LAST


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


def role(example: "Example", name: str) -> Place:
    """Where a task's example has this role."""
    return span(*example.span(name))
