"""Is a name right? What a judge said against the truth: accuracy, precision, recall, AUC, and Fisher's exact test.

Over many signals some would do well by chance, so p-values are corrected for their number (Benjamini-Hochberg): of the
names that are above chance at 5 %, about 5 % are so by chance. To pass, a name has to be beyond random directions'
names as well (see `keyhole.naming.judging.controls`). A signal without a name never passes; it is counted apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from keyhole.naming.judging.judge import Answer
from keyhole.naming.judging.questions import Posed, QuestionKind, Span
from keyhole.stats import at_least, benjamini_hochberg, fisher, wilson

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
