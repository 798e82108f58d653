"""Who answers the questions? A judge sees a name and one question; here, by rule and without any model."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from keyhole.errors import KeyholeError
from keyhole.naming.judging.embed import Embed, bag, unit
from keyhole.naming.judging.questions import Question, QuestionKind
from keyhole.naming.language.clauses import holds
from keyhole.naming.language.sentence import Rule, parse

_NEIGHBOURS = 5


@dataclass(frozen=True)
class Answer:
    """What a judge says; None throughout: it gave no answer."""

    yes: bool | None = None
    probability: float | None = None  # that it fires
    choice: int | None = None  # of an intruder question: which of the texts


Judge = Callable[[str, Question], Answer]  # the name's text alone ("" where none is needed), and one question
NAMELESS: tuple[QuestionKind, ...] = ("intruder", "examples")  # these need no name


def rule_judge(text: str, question: Question) -> Answer:
    """Is the sentence true of the marked pair? Yes if all of it is; the probability is the share of it that is.

    It is given the sentence and the text with its marks, and no more. Of a sentence that is not a rule's it knows
    nothing, and gives no answer.

    >>> from keyhole.naming.judging.questions import Marked
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
