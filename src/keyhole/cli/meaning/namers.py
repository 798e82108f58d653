"""What --explainer, --judge and --llm take: who names signals, who judges the names, and what that may cost."""

from pathlib import Path
from typing import Annotated

import typer

from keyhole.cli.choices import ExplainerName, JudgeName

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
YesOption = Annotated[bool, typer.Option("--yes", help="Ask for more than 1,000,000 tokens, too.")]
