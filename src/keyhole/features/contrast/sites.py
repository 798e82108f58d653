"""What is a contrast? Queries, keys that have a feature, and keys that have it not.

    place    where in a prompt: a token, a span of characters, the n-th occurrence of a text or a regular expression
    site     a place in one of the contrast's prompts
    sample   one query site, its positive and its negative key sites; prompts may differ
    contrast prompts and samples

A place that covers several tokens means the last of them, where a decoder has read the whole word.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

from keyhole.errors import KeyholeError
from keyhole.files import write_at_once
from keyhole.models.tokens import Prompt
from keyhole.strict import Index, parse_json, quoted, read, read_text, require

if TYPE_CHECKING:
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

        A key that is chosen on both sides is positive.

        Args:
            name: The contrast's name.
            examples: The prompts, a sample each.
            query: Where the query stands: a role, or a place. Default: the last token.
            positive: The positive keys: a role or several, with * for any letters, or a function of the example that
                names them.
            negative: The negative keys, given likewise.
            label: The label of a sample: a role, whose word it is, or a function of the example.
            bos: Put a beginning-of-sequence token first? As `Model.run` takes it.

        >>> from keyhole.tasks import boxes
        >>> contrast = Contrast.from_roles("box", boxes(3), positive="BOX", negative="box_*")
        >>> len(contrast.samples)
        3
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

        Args:
            name: The contrast's name.
            texts: The prompts, a sample each.
            query: Where the query stands: one place. Default: the last token.
            positive: The positive keys: a place or several, or a function of the text that gives them. A string is its
                first occurrence, `find(string)`.
            negative: The negative keys, given likewise.
            label: A function of the text. Default: no label.
            bos: Put a beginning-of-sequence token first? As `Model.run` takes it.

        >>> contrast = Contrast.from_texts("pet", ["Mary saw a cat and a dog"], positive="cat", negative="dog")
        >>> len(contrast.samples)
        1
        """
        if isinstance(texts, str):
            raise KeyholeError("a contrast is made of many texts: give a list of them.")
        samples = []
        for number, text in enumerate(texts):
            plus, minus = (_places(side, text) for side in (positive, negative))
            samples.append(_sample(number, _place(query), plus, minus, None if label is None else label(text)))
        return cls(name, tuple(texts), tuple(samples), bos)

    @classmethod
    def load(cls, path: str | Path) -> "Contrast":
        """Read JSON Lines; see `keyhole.features.contrast.read_contrast`.

        Args:
            path: The file.

        >>> from tempfile import TemporaryDirectory
        >>> contrast = Contrast.from_texts("pet", ["Mary saw a cat and a dog"], positive="cat", negative="dog")
        >>> with TemporaryDirectory() as folder:
        ...     contrast.save(f"{folder}/pet.jsonl")
        ...     Contrast.load(f"{folder}/pet.jsonl") == contrast
        True
        """
        return read_contrast(path)

    def save(self, path: str | Path) -> None:
        """Write JSON Lines that `load` reads.

        Args:
            path: The file.

        >>> from tempfile import TemporaryDirectory
        >>> contrast = Contrast.from_texts("pet", ["Mary saw a cat and a dog"], positive="cat", negative="dog")
        >>> with TemporaryDirectory() as folder:
        ...     contrast.save(f"{folder}/pet.jsonl")
        ...     Contrast.load(f"{folder}/pet.jsonl") == contrast
        True
        """
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
    """The last token of the prompt.

    >>> last()
    Place(token=-1, span=None, text=None, pattern=None, nth=0)
    """
    return LAST


def token(position: int) -> Place:
    """A token position; negative counts from the end.

    Args:
        position: Its number, from 0; negative counts from the end.

    >>> token(3).token
    3
    """
    return Place(token=position)


def span(start: int, end: int) -> Place:
    """The last token that covers some of these characters of the prompt.

    Args:
        start: The first character.
        end: The one after the last.

    >>> span(0, 4).span
    (0, 4)
    """
    return Place(span=(start, end))


def find(text: str, nth: int | None = 0) -> Place:
    """The n-th occurrence of a text (None: every one).

    Args:
        text: What is looked for.
        nth: Which occurrence, from 0; negative counts from the end. None: every one.

    >>> find("Mary", -1).nth
    -1
    """
    return Place(text=text, nth=nth)


def regex(pattern: str, nth: int | None = 0) -> Place:
    """The n-th match of a regular expression (None: every one); a group, if it has one, narrows the match.

    Args:
        pattern: As Python's `re` reads it.
        nth: Which match, from 0. None: every one.

    >>> regex("box (.)").pattern
    'box (.)'
    """
    return Place(pattern=pattern, nth=nth)


def role(example: "Example", name: str) -> Place:
    """Where a task's example has this role.

    Args:
        example: A prompt of a task.
        name: One of its roles, such as IO.

    >>> from keyhole.tasks import ioi
    >>> example = ioi(1, 0)[0]
    >>> role(example, "IO").span == example.span("IO")
    True
    """
    return span(*example.span(name))


# -- files --------------------------------------------------------------------------------------------------------


class _Where(TypedDict, total=False):
    """A place of a file."""

    token: int
    span: tuple[int, int]
    find: str
    regex: str
    nth: int | Literal["all"]
    prompt: Index  # which of the line's prompts


_Spot = int | Literal["last"] | _Where
_Text = str | Sequence[int]


class _Header(TypedDict):
    """The optional first line."""

    contrast: str
    bos: NotRequired[bool | None]


class _Line(TypedDict):
    """A sample of a file."""

    prompt: NotRequired[_Text]
    prompts: NotRequired[Sequence[_Text]]
    query: _Spot
    positive: Sequence[_Spot]
    negative: Sequence[_Spot]
    negative_query: NotRequired[_Spot | None]
    label: NotRequired[str]
    group: NotRequired[str]
    weight: NotRequired[float]


def read_contrast(path: str | Path) -> Contrast:
    """Read a contrast from JSON Lines, or say which line is wrong and why.

        {"contrast": "plurals", "bos": null}                                          an optional first line
        {"prompt": "...", "query": "last", "positive": [{"find": "cats"}], "negative": [{"find": "dog"}]}
        {"prompts": ["...", "..."], "query": -1, "positive": [5], "negative": [{"token": 5, "prompt": 1}]}

    A place is a token position, "last", {"token": n}, {"span": [start, end]} in characters, {"find": text, "nth": 0}
    or {"regex": pattern, "nth": 0}; "nth": "all" means every occurrence, and "prompt" which of the line's prompts
    (default 0). Optional: "label", "group", "weight", "negative_query". Equal prompts of different lines are run once.

    Args:
        path: A file of JSON Lines.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     Contrast.from_texts("a", ["b c"], positive="b", negative="c").save(f"{folder}/a.jsonl")
    ...     read_contrast(f"{folder}/a.jsonl").name
    'a'
    """
    path = Path(path)
    header: _Header = {"contrast": path.stem}
    prompts: dict[Any, int] = {}
    samples: list[Sample] = []
    begun = False
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            record = parse_json(line)
            require(isinstance(record, dict), "a line is one JSON object.")
            if "contrast" in record:
                require(not begun, 'the line with "contrast" must come first.')
                header = read(_Header, record)
            else:
                samples.append(_read_sample(record, prompts))
            begun = True
        except KeyholeError as error:
            raise KeyholeError(f"{path}, line {number}: {error}") from error
    if not samples:
        raise KeyholeError(f"{path} has no samples: write one JSON object a line, see `keyhole contrast --help`.")
    return Contrast(header["contrast"], tuple(prompts), tuple(samples), header.get("bos"))


def _read_sample(record: dict[str, Any], prompts: dict[Any, int]) -> Sample:
    """A sample of a line; `prompts` numbers those of all lines."""
    known = set(_Line.__annotations__)
    if unknown := record.keys() - known:
        raise KeyholeError(f"unknown keys: {', '.join(sorted(unknown))}; known are {', '.join(sorted(known))}.")
    require(("prompt" in record) != ("prompts" in record), 'give "prompt" or "prompts", and not both.')
    for key in ("query", "positive", "negative"):
        require(key in record, f'there is no "{key}".')
    line = read(_Line, record)
    texts = line["prompts"] if "prompts" in line else [line["prompt"]]
    require(len(texts) > 0, '"prompts" is a list of at least one prompt.')
    numbers = [prompts.setdefault(text, len(prompts)) for text in texts]
    other = line.get("negative_query")
    return Sample(
        query=_read_site(line["query"], numbers),
        positive=tuple(_read_site(spot, numbers) for spot in line["positive"]),
        negative=tuple(_read_site(spot, numbers) for spot in line["negative"]),
        negative_query=None if other is None else _read_site(other, numbers),
        label=line.get("label"),
        group=line.get("group"),
        weight=line.get("weight", 1.0),
    )


def _read_site(spot: _Spot, numbers: list[int]) -> Site:
    where: _Where = {"token": -1} if spot == "last" else {"token": spot} if isinstance(spot, int) else spot
    kinds = where.keys() - {"nth", "prompt"}
    if len(kinds) != 1 or ("nth" in where and not kinds <= {"find", "regex"}):
        raise KeyholeError(f'{quoted(spot)} is no place: a position, "last", or one of token, span, find, regex.')
    number, nth = where.get("prompt", 0), where.get("nth", 0)
    require(number < len(numbers), f"there is no prompt {number}: the line has {len(numbers)}, numbered from 0.")
    place = Place(where.get("token"), where.get("span"), where.get("find"), where.get("regex"))
    return Site(replace(place, nth=None if nth == "all" else nth), numbers[number])


def write_contrast(contrast: Contrast, path: str | Path) -> None:
    """Write a contrast so that `read_contrast` gives it back.

    Args:
        contrast: What is written.
        path: Where, as JSON Lines.

    >>> from tempfile import TemporaryDirectory
    >>> contrast = Contrast.from_texts("a", ["b c"], positive="b", negative="c")
    >>> with TemporaryDirectory() as folder:
    ...     write_contrast(contrast, f"{folder}/a.jsonl")
    ...     print(Path(f"{folder}/a.jsonl").read_text().splitlines()[0])
    {"contrast": "a", "bos": null}
    """
    lines = [json.dumps({"contrast": contrast.name, "bos": contrast.bos})]
    for sample in contrast.samples:
        used = list(dict.fromkeys(site.prompt for site in sample.sites))
        prompts = [_plain(contrast.prompts[i]) for i in used]
        record: dict[str, Any] = {"prompt": prompts[0]} if len(prompts) == 1 else {"prompts": prompts}
        record["query"] = _written(sample.query, used)
        record["positive"] = [_written(site, used) for site in sample.positive]
        record["negative"] = [_written(site, used) for site in sample.negative]
        if sample.negative_query is not None:
            record["negative_query"] = _written(sample.negative_query, used)
        optional = {"label": sample.label, "group": sample.group}
        record |= {key: value for key, value in optional.items() if value is not None}
        if sample.weight != 1.0:
            record["weight"] = sample.weight
        lines.append(json.dumps(record, ensure_ascii=False))
    write_at_once(path, "\n".join(lines) + "\n")


def _plain(prompt: Any) -> Any:
    return prompt if isinstance(prompt, str) else [int(i) for i in prompt]


def _written(site: Site, used: list[int]) -> Any:
    place = site.place
    record: dict[str, Any] = {}
    if place.token is not None:
        record["token"] = place.token
    elif place.span is not None:
        record["span"] = list(place.span)
    else:
        record["find" if place.text is not None else "regex"] = place.text if place.text is not None else place.pattern
        if place.nth != 0:
            record["nth"] = "all" if place.nth is None else place.nth
    if used.index(site.prompt):
        record["prompt"] = used.index(site.prompt)
    return record["token"] if set(record) == {"token"} else record
