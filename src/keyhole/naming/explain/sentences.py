"""What is a name, how is it written as a sentence, and which tokens does a signal look like?

    dest is "to" or "for", and src is a name, the first name so far, 5 to 12 tokens before dest

A judge receives this sentence and nothing else. Tokens are quoted as in JSON, so that no token can be mistaken for a
part of the sentence.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.errors import KeyholeError
from keyhole.models.effective import embedded
from keyhole.models.numbers import exact_matmul
from keyhole.models.tokens import all_tokens
from keyhole.naming.explain.language import (
    KINDS,
    ORDERED,
    RELATIONS,
    SPOTS,
    WHICH,
    Clause,
    Distance,
    Kind,
    Order,
    Predicate,
    Relation,
    Spot,
    Which,
    Word,
)
from keyhole.naming.subjects.subject import Shown, Subject

if TYPE_CHECKING:
    from keyhole.models.model import Model

NONE = "no valid interpretation"


@dataclass(frozen=True)
class Claim:
    """One clause of a name, and how often it is true where the signal fires and where it does not."""

    text: str
    examples: float  # share of the examples of which it is true
    background: float | None  # of pairs of tokens at random; None: there were none
    hard: float | None  # of hard negatives; None: there were none
    log_odds: float  # of examples against all others, with 0.5 added to each count
    p: float  # Fisher's, one-sided, among the pairs of which the claims before it are true
    corrected: float  # for the number of clauses that were tried (Benjamini-Hochberg)


@dataclass(frozen=True)
class Name:
    """The answer of an explainer: a sentence, or none."""

    text: str | None  # None: no valid interpretation
    by: str  # the explainer: "statistics", "tokens alone", or the name of a language model
    claims: tuple[Claim, ...] = ()

    def __str__(self) -> str:
        return NONE if self.text is None else self.text


Explainer = Callable[[Sequence[Shown], Sequence[Shown]], Name]  # examples, and background: where it does not fire


# How is a rule written as a sentence, and parsed again?

Rule = tuple[Clause, ...]
_ITSELF, _PREVIOUS = "dest itself", "the token just before dest"
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_WORDS = re.compile(f"{_QUOTED}(?: or {_QUOTED})*")
_ORDER = re.compile(f"the ({'|'.join(WHICH)}) ({'|'.join(ORDERED)}) so far")
_DISTANCE = re.compile(r"(?:(\d+) to (\d+)|(\d+)|at least (\d+)) tokens before dest")
_SPLIT = re.compile(rf"((?:[^\",]|,(?! )|{_QUOTED})+)(?:, |$)")


def rule(clauses: Iterable[Clause]) -> Rule:
    """Clauses in the order of the sentence: dest and its neighbour, then src and its neighbours."""
    return tuple(sorted(clauses, key=lambda clause: SPOTS.index(clause.spot)))


def render(clauses: Iterable[Clause]) -> str:
    """A rule as one sentence.

    >>> render([Clause("src", Kind("name")), Clause("dest", Word(("to",))), Clause("src", Distance(1, 1))])
    'dest is "to", and src is a name, the token just before dest'
    """
    ordered = rule(clauses)
    if not ordered:
        raise KeyholeError("there are no clauses: a sentence needs at least one.")
    spots = dict.fromkeys(clause.spot for clause in ordered)
    return ", and ".join(
        f"{spot} is {', '.join(_said(clause.says) for clause in ordered if clause.spot == spot)}" for spot in spots
    )


def parse(text: str) -> Rule:
    """The rule that a sentence states; any other text is refused.

    >>> parse('dest is "to"')
    (Clause(spot='dest', says=Word(words=('to',))),)
    """
    clauses, spot, at = [], None, 0
    while at < len(text):
        part = _SPLIT.match(text, at)
        if part is None:
            raise KeyholeError(f"{text!r} is no sentence of a rule: it cannot be parsed from {text[at:]!r} on.")
        said, at = part[1], part.end()
        for place in SPOTS:
            start = f"{place} is " if spot is None else f"and {place} is "
            if said.startswith(start):
                spot, said = place, said.removeprefix(start)
                break
        clauses.append(_clause(text, spot, said))
    if not clauses or rule(clauses) != tuple(clauses) or text.endswith(", "):
        raise KeyholeError(f"{text!r} is no sentence of a rule.")
    return tuple(clauses)


def _said(says: Predicate) -> str:
    match says:
        case Word(words):
            return " or ".join(json.dumps(word, ensure_ascii=False) for word in words)
        case Kind(kind):
            return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
        case Relation(text):
            return text
        case Order(which, kind):
            return f"the {which} {kind} so far"
        case Distance(low, high):
            return _distance(low, high)


def _distance(low: int, high: int | None) -> str:
    if low == high and low < 2:
        return _PREVIOUS if low else _ITSELF
    count = f"at least {low}" if high is None else f"{low}" if low == high else f"{low} to {high}"
    return f"{count} tokens before dest"


_KINDS = {_said(Kind(kind)): kind for kind in KINDS}


def _clause(text: str, spot: Spot | None, said: str) -> Clause:
    says = _predicate(said) if spot is not None else None
    for_src = isinstance(says, Order | Distance) and spot != "src"
    astray = isinstance(says, Relation) and spot not in RELATIONS[says.text]
    if spot is None or says is None or for_src or astray or _said(says) != said:
        raise KeyholeError(f"{text!r} is no sentence of a rule: {said!r} is no known clause.")
    return Clause(spot, says)


def _predicate(said: str) -> Predicate | None:
    if _WORDS.fullmatch(said):
        return Word(tuple(json.loads(word) for word in re.findall(_QUOTED, said)))
    if said in _KINDS:
        return Kind(_KINDS[said])
    if said in RELATIONS:
        return Relation(said)
    if said in (_ITSELF, _PREVIOUS):
        return Distance(int(said == _PREVIOUS), int(said == _PREVIOUS))
    if match := _ORDER.fullmatch(said):
        return Order(cast(Which, match[1]), match[2])
    if match := _DISTANCE.fullmatch(said):
        low, high, exact, least = match.groups()
        return Distance(int(low or exact or least), None if least else int(high or exact))
    return None


# Which tokens does a signal look like? Those whose embeddings and unembeddings are nearest to what the head reads.
#
#     u = W_Q q        v = W_K k        (in residual space, before any rotation: ask = x_d . u, offer = x_s . v)
#
# These are cosines of u and v with every token's embedding (what the token is) and unembedding (what predicts it). In
# many dimensions some token is near to any direction. So `chance` is given, too: the largest cosine that one in twenty
# random directions of the same head exceeds.

_BEYOND = 0.95


@dataclass(frozen=True)
class Near:
    """The tokens nearest to one direction, and the cosine that random directions reach."""

    tokens: tuple[tuple[str, float], ...]  # each with its cosine, largest first
    chance: float

    def __str__(self) -> str:
        tokens = ", ".join(f"{token!r} {cosine:.2f}" for token, cosine in self.tokens)
        return f"{tokens} (random: {self.chance:.2f})"


@dataclass(frozen=True)
class Lens:
    """The tokens that dest (u) and src (v) of a signal look like."""

    dest: Near
    dest_predicts: Near
    src: Near
    src_predicts: Near

    def __str__(self) -> str:
        names = ("dest looks like", "dest predicts", "src looks like", "src predicts")
        sides = (self.dest, self.dest_predicts, self.src, self.src_predicts)
        return "\n".join(f"{name:>16}  {near}" for name, near in zip(names, sides, strict=True))


def lens(model: "Model", subject: Subject, *, tokens: int = 8, draws: int = 100, seed: int = 0) -> Lens:
    """The tokens nearest to a signal's two directions.

    Args:
        model: The model.
        subject: The signal, channel or feature.
        tokens: How many tokens for each direction.
        draws: How many random directions of the same head they are compared with.
        seed: Seed of the random directions.

    >>> import keyhole
    >>> from keyhole.naming.subjects import channel_subjects
    >>> model = keyhole.load()
    >>> len(lens(model, channel_subjects(model, (3, 1), [4])[0], tokens=2).dest.tokens)
    2
    """
    layer, head = subject.head
    if draws < 1 or tokens < 1:
        raise KeyholeError(f"tokens is {tokens} and draws {draws}: a lens needs at least 1 of each.")
    w, known = model.folded(layer), all_tokens(model)
    ids = [token.id for token in known]
    entering = embedded(model.hf.get_input_embeddings(), ids).to(w.W_Q)
    predicted = model.head_out().W_U.to(w.W_Q).T[ids]
    generator, sides = torch.Generator().manual_seed(seed), []
    with exact_matmul():
        for W, direction in ((w.W_Q[head], subject.query), (w.W_K[w.kv(head)], subject.key)):
            others = torch.randn(draws, len(direction), generator=generator).to(W)
            lifted = torch.cat([direction.to(W)[None], others]) @ W.T
            texts = [token.text for token in known]
            sides += [_near(cosines(lifted, rows), texts, tokens) for rows in (entering, predicted)]
    return Lens(*sides)


def cosines(
    x: Float[Tensor, "directions d_model"], rows: Float[Tensor, "tokens d_model"]
) -> Float[Tensor, "directions tokens"]:
    """The cosine of each direction with each row; 0 with a row of zeros."""
    return torch.nn.functional.normalize(x, dim=-1) @ torch.nn.functional.normalize(rows, dim=-1).T


def _near(cosines: Float[Tensor, "directions tokens"], texts: list[str], most: int) -> Near:
    best = torch.topk(cosines[0], min(most, len(texts)))
    chance = torch.quantile(cosines[1:].amax(1).double(), _BEYOND)
    return Near(
        tuple((texts[i], value) for i, value in zip(best.indices.tolist(), best.values.tolist(), strict=True)),
        float(chance),
    )
