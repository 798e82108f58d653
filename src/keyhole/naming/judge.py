"""Who answers the questions? A judge sees a name and one question; here, by rule and without any model."""

from collections.abc import Callable
from dataclasses import dataclass

from keyhole.naming.questions import Question


@dataclass(frozen=True)
class Answer:
    """What a judge says; None throughout: it gave no answer."""

    yes: bool | None = None
    probability: float | None = None  # that it fires
    choice: int | None = None  # of an intruder question: which of the texts


Judge = Callable[[str, Question], Answer]  # the name's text alone ("" where none is needed), and one question
