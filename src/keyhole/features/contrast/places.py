"""At which tokens are a contrast's sites? Places become positions, regular expressions end, samples hang together.

How long may a regular expression take? Some backtrack for ever: those run in a process that can be ended.

Python's `re` cannot be interrupted, except by ending its process. A pattern with at most one repetition of unknown
length, and nothing that repeats inside a repetition, takes time that grows with the square of the text at worst, and is
matched here. Any other is matched in a process of its own, within `SECONDS`.
"""

import json
import random
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from keyhole.brief import Span
from keyhole.errors import KeyholeError
from keyhole.features.contrast.sites import Contrast, Place, Sample, Site
from keyhole.models.tokens import Encoded, Prompt, encode, token_spans, tokens_in
from keyhole.strict import quoted

if TYPE_CHECKING:
    from keyhole.models.model import Model

SECONDS = 10.0  # for all matches of a pattern in one prompt
_SHORT = 16  # repetitions of a bounded length, such as {1,2}, which cost little
_MATCH = """
import json, re, sys
pattern, text, inside = json.load(sys.stdin)
print(json.dumps([match.span(inside) for match in re.finditer(pattern, text)]))
"""


def is_quick(pattern: str) -> bool:
    r"""Is it sure to end soon?

    >>> is_quick(r"item (\w+)"), is_quick(r"(\w+\s?)*$"), is_quick(r"(a|a)*b")
    (True, False, False)
    """
    return _cost(re._parser.parse(pattern)) <= 1  # type: ignore[attr-defined]


def _cost(parsed: Any) -> float:
    """How many repetitions of unknown length stand one after another; without end, where one is inside another."""
    total = 0.0
    for name, argument in parsed:
        kind = str(name)
        if kind in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            _, most, inside = argument
            choices = _cost(inside) > 0 or _branches(inside)
            total += float("inf") if choices and most > 1 else float(most > _SHORT)
        elif kind == "SUBPATTERN":
            total += _cost(argument[-1])
        elif kind == "BRANCH":
            total += sum(_cost(branch) for branch in argument[1])
        elif kind not in ("LITERAL", "NOT_LITERAL", "ANY", "IN", "AT"):  # look-arounds and what refers back
            return float("inf")
    return total


def _branches(parsed: Any) -> bool:
    """Has it alternatives, at any depth? Inside a repetition they may match the same text in many ways."""
    names = [(str(name), argument) for name, argument in parsed]
    return any(name == "BRANCH" or (name == "SUBPATTERN" and _branches(argument[-1])) for name, argument in names)


@lru_cache(maxsize=1024)
def bounded_spans(pattern: str, text: str, inside: int) -> tuple[Span, ...]:
    """Where a pattern matches, or its group `inside`; refused where that takes more than `SECONDS`."""
    request = json.dumps([pattern, text, inside])
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _MATCH], input=request, capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise KeyholeError(
            f"the pattern {quoted(pattern)} takes more than {SECONDS:.0f} seconds in {quoted(text)}: write it without "
            "repetitions inside repetitions, such as (a+)+."
        ) from error
    if done.returncode:
        raise KeyholeError(f"the pattern {quoted(pattern)} cannot be matched: {done.stderr.strip().splitlines()[-1]}.")
    return tuple((start, end) for start, end in json.loads(done.stdout))


# Which things hang together? Connected parts of a graph given by its links.


def islands(n: int, links: Iterable[tuple[int, int]]) -> list[int]:
    """A number for each of n things, the same for those that links join, directly or not.

    >>> islands(4, [(0, 2), (2, 3)])
    [0, 1, 0, 0]
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    pairs = list(links)
    graph = coo_array(([1] * len(pairs), ([a for a, _ in pairs], [b for _, b in pairs])), shape=(n, n))
    return list(map(int, connected_components(graph, directed=False)[1]))


# At which tokens are a contrast's sites? Places become positions, samples become slots of indices.
#
# A slot is one query and the keys it meets, padded to the same number, with signs: +1 positive, -1 negative, 0
# padding. A sample is one slot, or two when its negatives meet another query.

Where = tuple[int, int]  # prompt, position
_Row = tuple[int, Where, list[tuple[Where, int]], bool]  # sample, query, signed keys, is it one of two slots?


@dataclass(frozen=True)
class Slots:
    """Which query meets which keys, on which side."""

    sample: Int[Tensor, "slots"]
    query: Int[Tensor, "slots 2"]  # prompt, position
    keys: Int[Tensor, "slots keys 2"]
    sign: Int[Tensor, "slots keys"]
    weight: Float[Tensor, "slots"]
    half: Int[Tensor, "slots"]  # 0 or 1: groups are split at random into two halves
    group: Int[Tensor, "slots"]  # samples that share a prompt or a group's name are of one group
    twin: Int[Tensor, "slots"]  # slots with the same tokens at the same places have one number: they are permuted alike
    paired: Bool[Tensor, "slots"]  # one of two slots of its sample, so that signs flip for both or neither

    def __len__(self) -> int:
        return len(self.sample)

    def of(self, chosen: Tensor) -> "Slots":
        """Some of the slots."""
        return Slots(*(getattr(self, field.name)[chosen] for field in fields(self)))

    @property
    def together(self) -> Bool[Tensor, "slots keys"]:
        """Keys in the same prompt as their query: only those have attention."""
        return (self.keys[..., 0] == self.query[:, None, 0]) & (self.sign != 0)


@dataclass(frozen=True)
class Resolved:
    """A contrast for one model: token ids and slots."""

    contrast: Contrast
    prompts: tuple[Encoded, ...]
    slots: Slots

    @property
    def labels(self) -> list[str | None]:
        """The label of every slot."""
        return [self.contrast.samples[i].label for i in self.slots.sample.tolist()]


def resolve(model: "Model", contrast: Contrast, *, negatives: int | None = None, seed: int = 0) -> Resolved:
    """Find every site's token. `negatives` keeps at most so many random negative keys of each sample."""
    if negatives is not None and negatives < 1:
        raise KeyholeError(f"negatives must be at least 1, not {negatives}.")
    prompts = tuple(encode(model, prompt, contrast.bos) for prompt in contrast.prompts)
    finder = _Finder(model, contrast.prompts, prompts)
    rng = random.Random(seed)
    groups = _groups(contrast.samples, prompts)
    halves = split_groups(groups, rng.getrandbits(32))
    rows: list[_Row] = []
    for number, sample in enumerate(contrast.samples):
        try:
            rows += _slots_of(number, sample, finder, rng, negatives)
        except KeyholeError as error:
            raise KeyholeError(f"sample {number} of {quoted(contrast.name)}: {error}") from error
    most = max(len(keys) for _, _, keys, _ in rows)
    padded = [[*keys, *[((0, 0), 0)] * (most - len(keys))] for _, _, keys, _ in rows]
    owner = torch.tensor([row[0] for row in rows])
    weight = torch.tensor([float(sample.weight) for sample in contrast.samples], dtype=torch.float64)
    slots = Slots(
        sample=owner,
        query=torch.tensor([row[1] for row in rows]),
        keys=torch.tensor([[where for where, _ in keys] for keys in padded]),
        sign=torch.tensor([[sign for _, sign in keys] for keys in padded]),
        weight=weight[owner],
        half=halves[owner],
        group=groups[owner],
        twin=_twins(rows, prompts),
        paired=torch.tensor([row[3] for row in rows]),
    )
    return Resolved(contrast, prompts, slots)


def _slots_of(number: int, sample: Sample, finder: "_Finder", rng: random.Random, negatives: int | None) -> list[_Row]:
    query = finder.position(sample.query)
    positive, negative = finder.every(sample.positive), finder.every(sample.negative)
    if both := set(positive) & set(negative):
        raise KeyholeError(f"token {min(both)[1]} is a positive and a negative key at once.")
    if negatives is not None and len(negative) > negatives:
        negative = rng.sample(negative, negatives)
    plus, minus = [(where, 1) for where in positive], [(where, -1) for where in negative]
    if sample.negative_query is None:
        rows = [(number, query, plus + minus, False)]
    else:
        rows = [(number, query, plus, True), (number, finder.position(sample.negative_query), minus, True)]
    for _, (prompt, at), keys, _ in rows:
        late = [where for where, _ in keys if where[0] == prompt and where[1] > at]
        if late:
            raise KeyholeError(f"the key at token {late[0][1]} comes after its query at token {at}.")
    return rows


def split_groups(groups: Int[Tensor, "items"], seed: int) -> Int[Tensor, "items"]:
    """0 or 1 for every item: a random half of the groups each."""
    distinct, index = torch.unique(groups, return_inverse=True)
    order = torch.randperm(len(distinct), generator=torch.Generator().manual_seed(seed))
    return (order >= (len(distinct) + 1) // 2).long()[index]


def _groups(samples: Sequence[Sample], prompts: Sequence[Encoded]) -> Int[Tensor, "samples"]:
    """Samples that share a prompt's tokens, or the name of a group, must not stand on both sides of a split."""
    first: dict[object, int] = {}
    links = []
    for number, sample in enumerate(samples):
        shared: list[object] = [prompts[site.prompt].ids for site in sample.sites]
        shared += [] if sample.group is None else [sample.group]
        links += [(number, first.setdefault(key, number)) for key in shared]
    return torch.tensor(islands(len(samples), links))


def _twins(rows: Sequence[_Row], prompts: Sequence[Encoded]) -> Int[Tensor, "slots"]:
    numbers: dict[object, int] = {}
    twins = []
    for _, (prompt, at), keys, paired in rows:
        tokens = tuple((prompts[owner].ids, place) for (owner, place), _ in keys)
        twins.append(numbers.setdefault((prompts[prompt].ids, at, tokens, paired), len(numbers)))
    return torch.tensor(twins)


class _Finder:
    """Positions of places, with each prompt's token spans read once."""

    def __init__(self, model: "Model", texts: Sequence[Prompt], encoded: Sequence[Encoded]) -> None:
        self.model, self.texts, self.encoded = model, texts, encoded
        self.spans: dict[int, list[Span | None]] = {}

    def position(self, site: Site) -> Where:
        places = self.every((site,))
        if len(places) != 1:
            raise KeyholeError(f"{_described(site.place)} is {len(places)} tokens, where one is asked for.")
        return places[0]

    def every(self, sites: Sequence[Site]) -> list[Where]:
        places = [(site.prompt, at) for site in sites for at in self._positions(site)]
        return list(dict.fromkeys(places))

    def _positions(self, site: Site) -> list[int]:
        place, n = site.place, len(self.encoded[site.prompt].ids)
        if place.token is not None:
            if not -n <= place.token < n:
                raise KeyholeError(f"token {place.token} is outside prompt {site.prompt}, which has {n} tokens.")
            return [place.token % n]
        return [self._token_at(site, span) for span in self._characters(site)]

    def _characters(self, site: Site) -> list[Span]:
        """The spans of characters that a place means."""
        place, text = site.place, self.texts[site.prompt]
        if not isinstance(text, str):
            raise KeyholeError(
                f"prompt {site.prompt} is token ids: name its tokens by position, not by {_described(place)}."
            )
        if place.span is not None:
            start, end = place.span
            if not 0 <= start < end <= len(text):
                raise KeyholeError(
                    f"{_described(place)} is outside prompt {site.prompt}, which has {len(text)} characters."
                )
            return [place.span]
        if not (place.text or place.pattern):
            raise KeyholeError("an empty text is everywhere: give at least one character.")
        matches = list(_matches(place, text))
        if not matches:
            raise KeyholeError(f"{_described(place)} is not in prompt {site.prompt}: {quoted(text)}")
        if place.nth is None:
            return matches
        if not -len(matches) <= place.nth < len(matches):
            raise KeyholeError(f"{_described(place)} occurs {len(matches)} times in prompt {site.prompt}.")
        return [matches[place.nth]]

    def _token_at(self, site: Site, span: Span) -> int:
        if site.prompt not in self.spans:
            text, ids = str(self.texts[site.prompt]), self.encoded[site.prompt].ids
            self.spans[site.prompt] = token_spans(self.model, text, ids)
        covering = tokens_in(self.spans[site.prompt], *span)
        if not covering:
            raise KeyholeError(f"no token covers characters {span[0]} to {span[1]} of prompt {site.prompt}.")
        return covering[-1]


def _matches(place: Place, text: str) -> list[Span]:
    try:
        pattern = re.compile(re.escape(place.text) if place.text is not None else place.pattern or "")
    except (re.error, RecursionError, OverflowError) as error:
        raise KeyholeError(f"{quoted(place.pattern)} is not a regular expression: {error}.") from error
    inside = 1 if pattern.groups else 0
    if place.text is not None or is_quick(pattern.pattern):
        spans = tuple(match.span(inside) for match in pattern.finditer(text))
    else:
        spans = bounded_spans(pattern.pattern, text, inside)
    return [span for span in spans if span[0] < span[1]]


def _described(place: Place) -> str:
    if place.token is not None:
        return f"token {place.token}"
    if place.span is not None:
        return f"the span {list(place.span)}"
    text = quoted(place.text) if place.text is not None else f"the pattern {quoted(place.pattern)}"
    return text if place.nth in (0, None) else f"occurrence {place.nth} of {text}"
