"""Who answers the questions about a name, and is the name right? Judges by rule, scores, and controls."""

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
from keyhole.naming.explain.sentences import Rule, parse
from keyhole.naming.judge.questions import Marked, Posed, Question, QuestionKind, Span
from keyhole.stats import at_least, benjamini_hochberg, fisher, wilson

_DIMS = 1024
_CONTEXT = 0.25  # weight of all other tokens together; one fact about dest or src has weight 1
_FAR = (0, 1, 2, 4, 8, 16)

# An embedding says which examples are alike. This one counts facts; that of a sentence model can take its place.
Embed = Callable[[Sequence[Marked]], Float[np.ndarray, "examples dims"]]


def bag(pairs: Sequence[Marked]) -> Float[np.ndarray, "examples dims"]:
    """A unit vector per example: hashed counts of facts about dest, src, their neighbours, distance and context."""
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
    """Rows scaled to length one; a row of zeros stays as it is."""
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12))


# Who answers the questions? A judge gets a name and one question. These judges are rules, without a language model.

_NEIGHBOURS = 5


@dataclass(frozen=True)
class Answer:
    """The answer of a judge; None in all fields: it gave none."""

    yes: bool | None = None
    probability: float | None = None  # that the signal fires
    choice: int | None = None  # index of the text, for an intruder question


Judge = Callable[[str, Question], Answer]  # the text of a name ("" where none is needed), and one question
NAMELESS: tuple[QuestionKind, ...] = ("intruder", "examples")  # kinds of questions that need no name


def ahead(who: object, questions: Sequence[Any]) -> None:
    """Give all questions to an explainer or judge that has a method `ahead`, to answer them at once."""
    if (at_once := getattr(who, "ahead", None)) is not None:
        at_once(questions)


def rule_judge(text: str, question: Question) -> Answer:
    """Is the sentence true of the marked pair? Yes if all its clauses are; the probability is the share that are.

    A sentence that no rule could have written gets no answer.

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
    """Does the signal fire here? By the share of the five nearest known examples that fire, without a name."""
    if not question.known or len(question.texts) != 1:
        return Answer()
    rows = embed([*question.texts, *(pair for pair, _ in question.known)])
    rows = unit(rows - rows[1:].mean(0))  # the mean is common to all and says nothing
    near = np.argsort(-(rows[1:] @ rows[0]), kind="stable")[:_NEIGHBOURS]
    share = float(np.mean([question.known[i][1] for i in near]))
    return Answer(share > 0.5, share)


def odd_one_out(text: str, question: Question, *, embed: Embed = bag) -> Answer:
    """Which text is least like the others? Without a name."""
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
    """The judges by rule with another embedding of examples, such as that of a sentence model."""
    return {**RULES, "intruder": partial(odd_one_out, embed=embed), "examples": partial(nearest, embed=embed)}


# Is a name right? The judge's answers against the truth: accuracy, precision, recall, AUC, and Fisher's exact test.
#
# Among many signals some do well by chance, so p-values are corrected for their number (Benjamini-Hochberg): of the
# names that are above chance at 5 %, about 5 % are so by chance. To pass, a name must also beat the names of random
# directions (below). A signal without a name never passes, and is counted separately.

LEVEL = 0.05
Outcome = Literal["passes", "above chance", "fails", "untested", "no valid interpretation"]
RIGHT: tuple[Outcome, ...] = ("passes", "above chance")  # by Fisher's test alone, as in published shares


@dataclass(frozen=True)
class Tested:
    """The answers of a judge to one kind of question about one name, against the truth."""

    kind: QuestionKind
    of: Span
    questions: int
    unanswered: int  # these count as wrong in the accuracy, and not at all in Fisher's test
    right: int
    accuracy: float
    precision: float | None  # None: it never said yes, or the answer is an index
    recall: float | None
    auc: float | None  # None: it gives no probabilities
    p: float  # one-sided: Fisher's; binomial for intruder questions
    corrected: float | None = None  # p, corrected over all signals of the naming
    beyond: float | None = None  # p-value: the share of random directions whose names do as well; None: there are none
    passing: float | None = None  # the larger of p and beyond, corrected over signals


@dataclass(frozen=True)
class Share:
    """How many signals of a group have a name that passes, or is right, with Wilson's interval."""

    group: str
    signals: int
    nameless: int  # no valid interpretation: counted in `signals`, never in `passed`
    untested: int  # too few examples for a question
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
    """The test that compares answers with the truth; None: there was no question."""
    if not posed:
        return None
    kind, n, pairs = posed[0].question.kind, len(posed), list(zip(posed, answers, strict=True))
    if kind == "intruder":
        choices = [(question.truth, answer.choice) for question, answer in pairs if answer.choice is not None]
        right = sum(truth == choice for truth, choice in choices)
        p = at_least(right, len(choices), 1 / len(posed[0].question.texts))
        return Tested(kind, of, n, n - len(choices), right, right / n, precision=None, recall=None, auc=None, p=p)
    answered = [(bool(question.truth), answer.yes) for question, answer in pairs if answer.yes is not None]
    hits, alarms = answered.count((True, True)), answered.count((False, True))
    fires, others = sum(truth for truth, _ in answered), sum(not truth for truth, _ in answered)
    right = hits + others - alarms
    return Tested(
        kind,
        of,
        questions=n,
        unanswered=n - len(answered),
        right=right,
        accuracy=right / n,
        precision=hits / (hits + alarms) if hits + alarms else None,
        recall=hits / fires if fires else None,
        auc=_auc(posed, answers),
        p=fisher(hits, fires, alarms, others),
    )


def _auc(posed: Sequence[Posed], answers: Sequence[Answer]) -> float | None:
    """How often a firing pair gets a higher probability than one that does not fire; ties count half."""
    known = [(question.truth, answer.probability) for question, answer in zip(posed, answers, strict=True)]
    fires, others = ([p for truth, p in known if p is not None and bool(truth) == fires] for fires in (True, False))
    if not fires or not others:
        return None
    return sum((a > b) + (a == b) / 2 for a in fires for b in others) / (len(fires) * len(others))


def corrected(rows: Sequence[Tested | None]) -> list[Tested | None]:
    """The tests of many signals with corrected p-values."""
    values = iter(benjamini_hochberg([row.p for row in rows if row is not None]))
    return [None if row is None else replace(row, corrected=next(values)) for row in rows]


def share(group: str, outcomes: Sequence[Outcome], counted: Sequence[Outcome] = ("passes",)) -> Share:
    """How many of all outcomes are among the counted ones."""
    passed = sum(outcome in counted for outcome in outcomes)
    nameless, untested = outcomes.count("no valid interpretation"), outcomes.count("untested")
    return Share(group, len(outcomes), nameless, untested, passed, *wilson(passed, len(outcomes)))


# Would any name pass? Controls: names of other signals, the commonest tokens alone, random directions of these heads.
#
# A random direction reads something, too: where it fires most, texts often have something in common, and a name that
# says so is right. So a name passes only if its test is better than those of random directions' names, by its rank
# among them. Then names that say no more than these pass in at most the nominal share of cases.
#
# The p-value of both conditions is the larger of Fisher's and the rank's. It is corrected over all signals, including
# those without a name: ranks count random directions without a name, so leaving out such signals would give chance
# more tries than are corrected for. With n random directions no p-value is below 1 / (n + 1).

SHUFFLED, ALONE, RANDOM, RANDOM_PASS = "shuffled names", "tokens alone", "random directions", "random that pass"


def beyond(rows: Sequence[Tested | None], others: Sequence[Tested | None]) -> list[Tested | None]:
    """Tests compared with those of random directions: the share of directions that do at least as well.

    A direction does as well with a higher accuracy, or with an equal one and at least the same AUC. A direction without
    a name, or untested (None), does worse than all. The signal itself is counted, so that no p-value is zero.
    """
    ranks = sorted(_rank(row) for row in others)
    if not ranks:
        return list(rows)
    shares = [1.0 if row is None else _as_well(row, ranks) for row in rows]
    both = benjamini_hochberg([1.0 if row is None else max(row.p, p) for row, p in zip(rows, shares, strict=True)])
    return [
        None if row is None else replace(row, beyond=p, passing=corrected)
        for row, p, corrected in zip(rows, shares, both, strict=True)
    ]


def too_few(random_directions: int) -> str | None:
    """Why no name can pass with so few random directions, and how many are needed; None: there are enough.

    >>> print(too_few(10))
    no name can pass: with 10 random directions the smallest p-value is 1/11, above 0.05. Take --random 19 or more.
    """
    least = math.ceil(1 / LEVEL) - 1
    if random_directions >= least:
        return None
    smallest = f"with {random_directions} random directions the smallest p-value is 1/{random_directions + 1}"
    return f"no name can pass: {smallest}, above {LEVEL}. Take --random {least} or more."


def _as_well(row: Tested, ranks: Sequence[tuple[float, float]]) -> float:
    return (1 + len(ranks) - bisect_left(ranks, _rank(row))) / (1 + len(ranks))


def _rank(row: Tested | None) -> tuple[float, float]:
    return (-1.0, 0.0) if row is None else (row.accuracy, row.auc or 0.0)


def shuffled(heads: Sequence[Head], seed: int = 0) -> list[int | None]:
    """For each signal the index of one in a different head, whose name it gets; None: all others are in its head.

    Every name is given at most once. Signals are sorted by head and shifted by the size of the largest head, so that
    no signal meets its own head unless that head has more than half of all.

    >>> shuffled([(0, 0), (0, 0)]), shuffled([(0, 0), (3, 1)])
    ([None, None], [1, 0])
    """
    rng, order = random.Random(seed), list(range(len(heads)))
    rng.shuffle(order)
    ranks = {head: rng.random() for head in sorted(set(heads))}
    order.sort(key=lambda i: ranks[heads[i]])  # stable: within a head, as shuffled
    step = max((heads.count(head) for head in ranks), default=0)
    given: list[int | None] = [None] * len(heads)
    for at, i in enumerate(order):
        other = order[(at + step) % len(order)]
        given[i] = other if heads[other] != heads[i] else None
    return given
