"""Who names signals, and who judges the names? Counts and a rule, or a model behind an endpoint, for either.

namers = Namers(explainer="llm", judge="llm", url="http://localhost:8000/v1", model="qwen")
naming = name_by(seek("ioi.store"), namers)
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from keyhole.errors import KeyholeError
from keyhole.naming.explain.over_represented import statistics
from keyhole.naming.judging.judge import RULES, Judge
from keyhole.naming.judging.pose import Asking
from keyhole.naming.judging.questions import QuestionKind
from keyhole.naming.llm.asking import Price, estimate, with_model
from keyhole.naming.llm.endpoint import KEYS, Endpoint, Patience
from keyhole.naming.llm.talk import Talk
from keyhole.naming.llm.transcript import open_transcript
from keyhole.naming.name import Explainer, Name
from keyhole.naming.named import Naming
from keyhole.naming.naming import QUESTIONS, Sought
from keyhole.naming.shown import Shown
from keyhole.progress import Stage, quiet

ExplainerName = Literal["statistics", "llm"]
JudgeName = Literal["rule", "llm"]
MOST_TOKENS = 1_000_000  # that are asked for without a question
TRANSCRIPT = Path("names.jsonl")


@dataclass(frozen=True, kw_only=True)
class Namers:
    """Who names and who judges. Equal if the same names come of it: where a model is reached does not matter."""

    explainer: ExplainerName = "statistics"
    judge: JudgeName = "rule"  # of detection; other kinds of questions stay a rule's
    questions: int | None = None  # of either truth, to each name; None: 20, of a model 10
    model: str | None = None  # that the server knows by this name
    url: str | None = field(default=None, compare=False)  # of an OpenAI-compatible server
    key: str | None = field(default=None, compare=False)  # the variable that holds the server's key
    transcript: Path = field(default=TRANSCRIPT, compare=False)  # all that was asked and answered
    tries: int = field(default=6, compare=False)  # of each request
    per_minute: float | None = field(default=None, compare=False)  # requests, at most
    price: tuple[float, float] | None = field(default=None, compare=False)  # of a million tokens, in and out
    yes: bool = field(default=False, compare=False)  # ask for more than MOST_TOKENS, too

    @property
    def by_model(self) -> bool:
        """Is a model asked for anything?"""
        return "llm" in (self.explainer, self.judge)

    @property
    def asked(self) -> int:
        """Questions of either truth."""
        return self.questions or (Asking().questions if self.judge == "llm" else QUESTIONS)

    @property
    def endpoint(self) -> Endpoint:
        """Where the model is asked."""
        patience = Patience(tries=self.tries, per_minute=self.per_minute)
        return Endpoint(self.url or "", self.model or "", patience, (self.key,) if self.key else KEYS)

    def __str__(self) -> str:
        names = self.model if self.explainer == "llm" else "statistics"
        judges = self.model if self.judge == "llm" else "a rule"
        return f"Names are by {names} and judged by {judges}."


def require_namers(namers: Namers) -> None:
    """Refuse before any work what could not be asked; options are called as at the command line."""
    if not namers.by_model:
        if namers.url or namers.model:
            raise KeyholeError("--llm is asked with --explainer llm, --judge llm, or both: say which.")
        return
    if not (namers.url and namers.model):
        raise KeyholeError("a model is asked at --llm URL by its name, --llm-model NAME: give both.")
    if namers.key and not os.environ.get(namers.key, "").strip():
        raise KeyholeError(f"--llm-key names the variable {namers.key}, which is not set: export it, or leave it out.")
    _ = namers.endpoint  # refuses a URL that is none


def name_by(
    sought: Sought, namers: Namers, *, stage: Stage = quiet, tell: Callable[[str], None] = lambda text: None
) -> Naming:
    """Names and their tests. What a model costs is told before it is asked, and much is refused unless it is allowed.

    `tell` is given the cost in words. The transcript is gone on from: nothing is asked, or paid for, twice.
    """
    if not namers.by_model:
        with stage("Naming") as progress:
            return sought.named(questions=namers.asked, progress=progress)
    once = _remembered(statistics)

    def naming(explainer: Explainer, judges: Mapping[QuestionKind, Judge]) -> Naming:
        chosen = explainer if namers.explainer == "llm" else once
        by = {**RULES, "detection": judges["detection"]} if namers.judge == "llm" else RULES
        return sought.named(chosen, by, questions=namers.asked)

    with open_transcript(namers.transcript) as transcript:
        talk = Talk(namers.endpoint, transcript, seed=sought.seed)
        with stage("Estimating the cost"):
            cost = estimate(talk, naming, None if namers.price is None else Price(*namers.price))
        tell(f"{cost}; answers are kept in {namers.transcript}")
        if cost.tokens_in + cost.tokens_out > MOST_TOKENS and not namers.yes:
            raise KeyholeError(
                f"naming would ask for up to {cost.tokens_in + cost.tokens_out:,} tokens, more than {MOST_TOKENS:,}: "
                "say --yes, or ask for fewer signals or questions."
            )
        with stage("Asking") as progress:
            return with_model(talk, naming, progress=progress)


def _remembered(explainer: Explainer) -> Explainer:
    """Each signal once: a model's answers are come to by naming several times."""
    names: dict[tuple[tuple[Shown, ...], tuple[Shown, ...]], Name] = {}

    def explain(fires: Sequence[Shown], background: Sequence[Shown]) -> Name:
        key = tuple(fires), tuple(background)
        if key not in names:
            names[key] = explainer(fires, background)
        return names[key]

    return explain
