"""What --explainer, --judge and --llm mean: who names signals, who judges the names, and what that costs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keyhole import show
from keyhole.cli.choices import ExplainerName, JudgeName
from keyhole.errors import KeyholeError

if TYPE_CHECKING:
    from keyhole.naming.name import Explainer, Name
    from keyhole.naming.named import Naming
    from keyhole.naming.naming import Sought
    from keyhole.naming.shown import Shown

MOST_TOKENS = 1_000_000  # without --yes
TRANSCRIPT = Path("names.jsonl")
ExplainerOption = Annotated[ExplainerName, typer.Option(help="Who names: counts and tests, or a model behind --llm.")]
JudgeOption = Annotated[JudgeName, typer.Option(help="Who judges (detection): a rule, or a model behind --llm.")]
QuestionsOption = Annotated[
    int | None, typer.Option(min=1, help="Of either truth, to each name. Default: 20; of a model 10.")
]
UrlOption = Annotated[
    str | None, typer.Option("--llm", metavar="URL", help="An OpenAI-compatible server: http://localhost:8000/v1.")
]
LlmModelOption = Annotated[str | None, typer.Option("--llm-model", metavar="NAME", help="The model that it serves.")]
LlmKeyOption = Annotated[
    str | None,
    typer.Option(
        "--llm-key", metavar="VARIABLE", help="The variable that holds the key. Default: KEYHOLE_ or OPENAI_API_KEY."
    ),
]
TranscriptOption = Annotated[
    Path, typer.Option(help="All that a model was asked and answered (.jsonl); the same command goes on from it.")
]
TriesOption = Annotated[int, typer.Option("--llm-tries", min=1, help="Of each request, with growing waits.")]
PerMinuteOption = Annotated[float | None, typer.Option("--llm-per-minute", min=0.01, help="Requests, at most.")]
PriceOption = Annotated[
    tuple[float, float] | None, typer.Option(metavar="IN OUT", help="Of a million tokens, for the estimate.")
]
YesOption = Annotated[bool, typer.Option("--yes", help=f"Ask for more than {MOST_TOKENS:,} tokens, too.")]


@dataclass(frozen=True, kw_only=True)
class Namers:
    """What was asked for."""

    explainer: ExplainerName
    judge: JudgeName
    questions: int | None
    url: str | None
    model: str | None
    key: str | None
    transcript: Path
    tries: int
    per_minute: float | None
    price: tuple[float, float] | None
    yes: bool

    @property
    def by_model(self) -> bool:
        """Is a model asked for anything?"""
        return "llm" in (self.explainer, self.judge)

    @property
    def asked(self) -> int:
        """Questions of either truth."""
        from keyhole.naming.judging.pose import Asking
        from keyhole.naming.naming import QUESTIONS

        return self.questions or (Asking().questions if self.judge == "llm" else QUESTIONS)


def check(asked: Namers) -> None:
    """Refuse before any work what could not be asked."""
    if not asked.by_model:
        if asked.url or asked.model:
            raise KeyholeError("--llm is asked with --explainer llm, --judge llm, or both: say which.")
        return
    if not (asked.url and asked.model):
        raise KeyholeError("a model is asked at --llm URL by its name, --llm-model NAME: give both.")
    if asked.key and not os.environ.get(asked.key, "").strip():
        raise KeyholeError(f"--llm-key names the variable {asked.key}, which is not set: export it, or leave it out.")
    _endpoint(asked)
    from keyhole.files import require_file

    require_file(asked.transcript, (".jsonl",))


def named(sought: Sought, asked: Namers) -> Naming:
    """Names and their tests, by whom it was asked; what a model costs is told before it is asked."""
    if not asked.by_model:
        with show.progress_bar("Naming") as progress:
            return sought.named(questions=asked.asked, progress=progress)
    from keyhole.naming.explain.over_represented import statistics
    from keyhole.naming.judging.judge import RULES
    from keyhole.naming.llm import Talk, estimate, open_transcript, with_model

    once = _remembered(statistics)

    def naming(explainer: Explainer, judges: Mapping[Any, Any]) -> Naming:
        own = explainer if asked.explainer == "llm" else once
        by = {**RULES, "detection": judges["detection"]} if asked.judge == "llm" else RULES
        return sought.named(own, by, questions=asked.asked)

    with open_transcript(asked.transcript) as transcript:
        talk = Talk(_endpoint(asked), transcript, seed=sought.seed)
        with show.progress("Estimating the cost"):
            cost = estimate(talk, naming, _price(asked))
        show.note(f"{cost}; answers are kept in {asked.transcript}")
        if cost.tokens_in + cost.tokens_out > MOST_TOKENS and not asked.yes:
            raise KeyholeError(
                f"that may be more than {MOST_TOKENS:,} tokens: say --yes, or ask for less (--most, --random, "
                "--questions)."
            )
        with show.progress_bar("Asking") as progress:
            return with_model(talk, naming, progress=progress)


def _endpoint(asked: Namers) -> Any:
    from keyhole.naming.llm import Endpoint, Patience
    from keyhole.naming.llm.endpoint import KEYS

    patience = Patience(tries=asked.tries, per_minute=asked.per_minute)
    return Endpoint(asked.url or "", asked.model or "", patience, (asked.key,) if asked.key else KEYS)


def _price(asked: Namers) -> Any:
    from keyhole.naming.llm import Price

    return None if asked.price is None else Price(*asked.price)


def _remembered(explainer: Explainer) -> Explainer:
    """Each signal once: a model's answers are come to by naming several times."""
    names: dict[tuple[tuple[Shown, ...], tuple[Shown, ...]], Name] = {}

    def explain(fires: Sequence[Shown], background: Sequence[Shown]) -> Name:
        key = tuple(fires), tuple(background)
        if key not in names:
            names[key] = explainer(fires, background)
        return names[key]

    return explain
