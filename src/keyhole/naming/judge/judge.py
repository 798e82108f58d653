"""Who answers, and is the name right? Judges, scores, and controls that anything might pass.

Which examples are alike? Each as a vector of what its tokens are; a sentence-embedding model may take its place.
"""

import math
import random
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Literal
from zlib import crc32

import numpy as np
from jaxtyping import Float

from keyhole.brief import Head
from keyhole.errors import KeyholeError
from keyhole.naming.explain.language import holds, normal, true_of
from keyhole.naming.explain.over_represented import Rule, parse
from keyhole.naming.judge.questions import Marked, Posed, Question, QuestionKind, Span
from keyhole.stats import at_least, benjamini_hochberg, fisher, wilson

_DIMS = 1024
_CONTEXT = 0.25  # weight of all other tokens together, beside one fact about dest or src
_FAR = (0, 1, 2, 4, 8, 16)

Embed = Callable[[Sequence[Marked]], Float[np.ndarray, "examples dims"]]


def bag(pairs: Sequence[Marked]) -> Float[np.ndarray, "examples dims"]:
    """What is true of dest, src and their neighbours, their distance, and the words around, hashed; of length one."""
    return np.stack([_hashed(pair) for pair in pairs])


@lru_cache(maxsize=4000)  # every question shows the same known examples
def _hashed(pair: Marked) -> Float[np.ndarray, "dims"]:
    row = np.zeros(_DIMS)
    far = sum(pair.dest - pair.src >= step for step in _FAR)
    for fact in (*map(repr, true_of(pair)), f"far {far}"):
        row[crc32(fact.encode()) % _DIMS] += 1
    for token in pair.tokens:
        row[crc32(f"near {normal(token)}".encode()) % _DIMS] += _CONTEXT / len(pair.tokens)
    return np.asarray(unit(row[None])[0])


def unit(rows: Float[np.ndarray, "examples dims"]) -> Float[np.ndarray, "examples dims"]:
    """Rows of length one; nothing stays nothing."""
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12))


# Who answers the questions? A judge sees a name and one question; here, by rule and without any model.

_NEIGHBOURS = 5


@dataclass(frozen=True)
class Answer:
    """What a judge says; None throughout: it gave no answer."""

    yes: bool | None = None
    probability: float | None = None  # that it fires
    choice: int | None = None  # of an intruder question: which of the texts


Judge = Callable[[str, Question], Answer]  # the name's text alone ("" where none is needed), and one question
NAMELESS: tuple[QuestionKind, ...] = ("intruder", "examples")  # these need no name


def ahead(who: object, questions: Sequence[Any]) -> None:
    """Show all questions to an explainer or a judge that is faster with many at once: one with a method `ahead`."""
    if (at_once := getattr(who, "ahead", None)) is not None:
        at_once(questions)


def rule_judge(text: str, question: Question) -> Answer:
    """Is the sentence true of the marked pair? Yes if all of it is; the probability is the share of it that is.

    It is given the sentence and the text with its marks, and no more. Of a sentence that is not a rule's it knows
    nothing, and gives no answer.

    >>> from keyhole.naming.judge.questions import Marked
    >>> rule_judge('dest is "to", and src is a name', Question("detection", (Marked(("I", "go", "to"), 2, 0),)))
    Answer(yes=False, probability=0.5, choice=None)
    """
    rule = _rule(text)
    if rule is None or len(question.texts) != 1:
        return Answer()
    true = [holds(clause, question.texts[0]) for clause in rule]
    return Answer(all(true), sum(true) / len(true))


@lru_cache(maxsize=1000)
def _rule(text: str) -> Rule | None:
    try:
        return parse(text)
    except KeyholeError:
        return None


def nearest(text: str, question: Question, *, embed: Embed = bag) -> Answer:
    """Is the example like known ones? By the share of its five nearest neighbours that fire; no name is read."""
    if not question.known or len(question.texts) != 1:
        return Answer()
    rows = embed([*question.texts, *(pair for pair, _ in question.known)])
    rows = unit(rows - rows[1:].mean(0))  # what all have in common makes nothing alike
    near = np.argsort(-(rows[1:] @ rows[0]), kind="stable")[:_NEIGHBOURS]
    share = float(np.mean([question.known[i][1] for i in near]))
    return Answer(share > 0.5, share)


def odd_one_out(text: str, question: Question, *, embed: Embed = bag) -> Answer:
    """Which of the texts is least like the others? No name is read."""
    rows = unit(embed(question.texts))
    alike = rows @ rows.T
    return Answer(choice=int(np.argmin(alike.sum(1) - alike.diagonal())))


RULES: dict[QuestionKind, Judge] = {
    "detection": rule_judge,
    "fuzzing": rule_judge,
    "intruder": odd_one_out,
    "examples": nearest,
}


def by_embedding(embed: Embed) -> dict[QuestionKind, Judge]:
    """The judges by rule, where what is alike is told by another embedding: a sentence model's, say."""
    return {**RULES, "intruder": partial(odd_one_out, embed=embed), "examples": partial(nearest, embed=embed)}


# Is a name right? What a judge said against the truth: accuracy, precision, recall, AUC, and Fisher's exact test.
#
# Over many signals some would do well by chance, so p-values are corrected for their number (Benjamini-Hochberg): of
# the names that are above chance at 5 %, about 5 % are so by chance. To pass, a name has to be beyond random
# directions' names as well (see `keyhole.naming.judge.judge`). A signal without a name never passes; it is counted
# apart.

LEVEL = 0.05
Outcome = Literal["passes", "above chance", "fails", "untested", "no valid interpretation"]
RIGHT: tuple[Outcome, ...] = ("passes", "above chance")  # by Fisher's test alone, as published shares are


@dataclass(frozen=True)
class Tested:
    """How a judge did with one name, on one kind of question."""

    kind: QuestionKind
    of: Span
    asked: int
    unanswered: int  # wrong for the accuracy; in the test they count for nothing
    right: int
    accuracy: float
    precision: float | None  # None: it never said yes, or is asked which
    recall: float | None
    auc: float | None  # None: it gives no probabilities
    p: float  # one-sided: Fisher's; of an intruder question, binomial
    corrected: float | None = None  # over all signals that were asked about together
    beyond: float | None = None  # p: the share of random directions whose names do as well; None: not compared
    passing: float | None = None  # the larger of p and beyond, corrected over signals


@dataclass(frozen=True)
class Share:
    """How many signals of a group have such a name, with Wilson's interval."""

    group: str
    signals: int
    nameless: int  # no valid interpretation: in the number of signals, never among those that are right
    untested: int  # too few examples to ask about
    passed: int
    share: float
    low: float
    high: float

    def __str__(self) -> str:
        apart = "".join(
            f", {count} {why}"
            for count, why in ((self.nameless, "without a name"), (self.untested, "untested"))
            if count
        )
        return f"{self.passed} of {self.signals}{apart}: {self.share:.0%} [{self.low:.0%}, {self.high:.0%}]"


def tested(posed: Sequence[Posed], answers: Sequence[Answer], of: Span) -> Tested | None:
    """The answers against the truth; None: nothing was asked."""
    if not posed:
        return None
    kind = posed[0].question.kind
    if kind == "intruder":
        return _intruders(posed, answers, of)
    told = [(bool(one.truth), answer.yes) for one, answer in zip(posed, answers, strict=True) if answer.yes is not None]
    hits, alarms = told.count((True, True)), told.count((False, True))
    fires, others = sum(truth for truth, _ in told), sum(not truth for truth, _ in told)
    right = hits + others - alarms
    return Tested(
        kind=kind,
        of=of,
        asked=len(posed),
        unanswered=len(posed) - len(told),
        right=right,
        accuracy=right / len(posed),
        precision=hits / (hits + alarms) if hits + alarms else None,
        recall=hits / fires if fires else None,
        auc=_auc(posed, answers),
        p=fisher(hits, fires, alarms, others),
    )


def _intruders(posed: Sequence[Posed], answers: Sequence[Answer], of: Span) -> Tested:
    told = [(one.truth, answer.choice) for one, answer in zip(posed, answers, strict=True) if answer.choice is not None]
    right = sum(truth == choice for truth, choice in told)
    chance = 1 / len(posed[0].question.texts)
    return Tested(
        kind="intruder",
        of=of,
        asked=len(posed),
        unanswered=len(posed) - len(told),
        right=right,
        accuracy=right / len(posed),
        precision=None,
        recall=None,
        auc=None,
        p=at_least(right, len(told), chance),
    )


def _auc(posed: Sequence[Posed], answers: Sequence[Answer]) -> float | None:
    """How often is a firing pair likelier than one that does not fire? Half, where both are as likely."""
    known = [(one.truth, a.probability) for one, a in zip(posed, answers, strict=True) if a.probability is not None]
    fires, others = [p for truth, p in known if truth], [p for truth, p in known if not truth]
    if not fires or not others:
        return None
    return sum((a > b) + (a == b) / 2 for a in fires for b in others) / (len(fires) * len(others))


def corrected(rows: Sequence[Tested | None]) -> list[Tested | None]:
    """The same tests of many signals, each p-value corrected for all of them."""
    found = benjamini_hochberg([one.p for one in rows if one is not None])
    values = iter(found)
    return [None if one is None else replace(one, corrected=next(values)) for one in rows]


def share(group: str, outcomes: Sequence[Outcome], counted: Sequence[Outcome] = ("passes",)) -> Share:
    """How many have one of the counted outcomes, of all."""
    passed = sum(one in counted for one in outcomes)
    nameless, untested = outcomes.count("no valid interpretation"), outcomes.count("untested")
    return Share(group, len(outcomes), nameless, untested, passed, *wilson(passed, len(outcomes)))


# Would anything pass? Names of other signals, the commonest tokens alone, random directions of the same heads.
#
# A random direction reads something, too: where it fires most, texts often have something in common, and a name that
# says so is right. So a name passes only if it is more right than random directions' names are, by its rank among
# theirs: of names that say no more than these do, the nominal share passes at most. One p-value has to serve for both
# questions, the larger of Fisher's and the rank's, corrected over all signals, those without a name, too: ranks count
# random directions without one, and if signals without one were left out, chance would have more tries than are
# corrected for. Ranks among few are coarse: n random directions give no p-value below 1 / (n + 1).

SHUFFLED, ALONE, RANDOM, RANDOM_PASS = "shuffled names", "tokens alone", "random directions", "random that pass"


def beyond(own: Sequence[Tested | None], others: Sequence[Tested | None]) -> list[Tested | None]:
    """The same tests beside those of random directions: how many of these do as well? None stays None.

    As well: at least its accuracy, and of equal ones at least its AUC. One without a name, or untested, does worse
    than all. The signal counts among them, or the first would have a p-value of zero.
    """
    ranks = sorted(_rank(one) for one in others)
    if not ranks:
        return list(own)
    shares = [1.0 if one is None else _as_well(one, ranks) for one in own]
    both = benjamini_hochberg([1.0 if one is None else max(one.p, p) for one, p in zip(own, shares, strict=True)])
    return [
        None if one is None else replace(one, beyond=p, passing=corrected)
        for one, p, corrected in zip(own, shares, both, strict=True)
    ]


def too_few(random_directions: int) -> str | None:
    """Why no name can pass beside so few random directions, and how many it takes; None: they suffice.

    >>> print(too_few(10))
    no name can pass: beside 10 random directions the smallest p-value is 1/11, above 0.05. Take --random 19 or more.
    """
    least = math.ceil(1 / LEVEL) - 1
    if random_directions >= least:
        return None
    smallest = f"beside {random_directions} random directions the smallest p-value is 1/{random_directions + 1}"
    return f"no name can pass: {smallest}, above {LEVEL}. Take --random {least} or more."


def _as_well(one: Tested, ranks: Sequence[tuple[float, float]]) -> float:
    return (1 + len(ranks) - bisect_left(ranks, _rank(one))) / (1 + len(ranks))


def _rank(one: Tested | None) -> tuple[float, float]:
    return (-1.0, 0.0) if one is None else (one.accuracy, one.auc or 0.0)


def shuffled(heads: Sequence[Head], seed: int = 0) -> list[int | None]:
    """For each signal another one of a different head, whose name it gets; None: all others are of its own head.

    Every name is given away at most once. Sorted by head and moved on by the largest head's number of signals, no
    signal meets its own head unless this head has more than half of all.

    >>> shuffled([(0, 0), (0, 0)]), shuffled([(0, 0), (3, 1)])
    ([None, None], [1, 0])
    """
    rng, order = random.Random(seed), list(range(len(heads)))
    rng.shuffle(order)
    ranks = {head: rng.random() for head in sorted(set(heads))}
    order.sort(key=lambda i: ranks[heads[i]])  # stable: within a head, as shuffled
    step = max((heads.count(head) for head in ranks), default=0)
    found: list[int | None] = [None] * len(heads)
    for at, i in enumerate(order):
        other = order[(at + step) % len(order)]
        found[i] = other if heads[other] != heads[i] else None
    return found
