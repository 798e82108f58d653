"""The command that names signals, by statistics or by a language model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keyhole import show
from keyhole.cli.from_record import from_records
from keyhole.cli.options import ExplainerName, JsonOption, JudgeName, ModelOptions
from keyhole.errors import KeyholeError
from keyhole.files import require_file
from keyhole.settings.fields import option
from keyhole.settings.naming import NameSettings

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.naming.naming import Namers
    from keyhole.naming.record import Naming

# Who names signals, who judges the names, and what may that cost? The options --explainer, --judge and --llm.

TRANSCRIPT = Path("names.jsonl")
ExplainerOption = Annotated[
    ExplainerName,
    typer.Option(help="Who names signals: counts and tests (statistics), or a language model behind --llm (llm)."),
]
JudgeOption = Annotated[
    JudgeName, typer.Option(help="Who judges names, by detection: a rule, or a language model behind --llm (llm).")
]
QuestionsOption = Annotated[
    int | None,
    typer.Option(
        min=1, help="How many questions each name is tested by, of either truth. Default: 20; 10 with --judge llm."
    ),
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--llm",
        metavar="URL",
        help="Address of an OpenAI-compatible server, such as http://localhost:8000/v1. Default: none.",
    ),
]
LlmModelOption = Annotated[
    str | None,
    typer.Option(
        "--llm-model", metavar="NAME", help="Name of the model on that server. Default: none; needed with --llm."
    ),
]
LlmKeyOption = Annotated[
    str | None,
    typer.Option(
        "--llm-key",
        metavar="VARIABLE",
        help="Environment variable that holds the server's key. Default: KEYHOLE_API_KEY or OPENAI_API_KEY.",
    ),
]
TranscriptOption = Annotated[
    Path,
    typer.Option(
        help="File (.jsonl) of all questions to the language model and its answers; the same command goes on from it."
    ),
]
TriesOption = Annotated[
    int, typer.Option("--llm-tries", min=1, help="How often a request is tried, with growing waits.")
]
PerMinuteOption = Annotated[
    float | None, typer.Option("--llm-per-minute", min=0.01, help="Requests per minute, at most. Default: no limit.")
]
PriceOption = Annotated[
    tuple[float, float] | None,
    typer.Option(
        metavar="IN OUT",
        help="Price of a million tokens read and written, for the estimate of cost. Default: cost is not estimated.",
    ),
]
YesOption = Annotated[
    bool, typer.Option("--yes", help="Go on without a question where more than 1,000,000 tokens are needed.")
]


# The command that names signals: what do they mean, and are the names right?

_WRITTEN = (".json", ".html", ".csv")


@dataclass(frozen=True)
class NamedModel(ModelOptions):
    """The model of what is named."""

    model: str | None = option(
        None,
        "Hub name, model folder or .gguf file. Default: the model of the circuit or store, else the built-in organism.",
        names=("--model", "-m"),
    )

    def load_of(self, about: Any) -> Model:
        """The model of a circuit, a store or features, unless another place to load it from is given."""
        from keyhole.models.organism import source_named

        return self.load(source_named(about.get("name")) if self.model is None and about is not None else self.model)


@from_records()
def name(
    what: Annotated[
        str,
        typer.Argument(
            help="A circuit or features (.json), a store, a head 3.1, a channel 3.1:4 or an edge mary.json#12."
        ),
    ],
    corpus: Annotated[
        str | None,
        typer.Option(
            help="Text to read: a text file, .jsonl, or hf:NAME of a dataset. Default: text of tasks for the organism, "
            "else English prose."
        ),
    ] = None,
    *,
    source: NamedModel,
    settings: NameSettings,
    by: Annotated[
        str | None,
        typer.Option(
            help="Show a store's representative circuits side by side, a column per value of this label, such as "
            "order. Default: off."
        ),
    ] = None,
    beside: Annotated[
        str | None, typer.Option(help="Show what separates the channel or edge from this other one. Default: off.")
    ] = None,
    explainer: ExplainerOption = "statistics",
    judge: JudgeOption = "rule",
    questions: QuestionsOption = None,
    llm: UrlOption = None,
    llm_model: LlmModelOption = None,
    llm_key: LlmKeyOption = None,
    transcript: TranscriptOption = TRANSCRIPT,
    llm_tries: TriesOption = 6,
    llm_per_minute: PerMinuteOption = None,
    price: PriceOption = None,
    yes: YesOption = False,
    out: Annotated[
        list[Path] | None,
        typer.Option(help="File to write the names to: .json (for --names), .html or .csv; repeatable. Default: none."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """What do signals mean, and are the names right?

    Every signal is looked for in a corpus and named by what its strongest places have in common. The name is tested on
    held-out places (Fisher's exact test, corrected for the number of signals). The same is done for controls: names of
    other signals, the commonest tokens as a name, and random directions of the same heads. A name passes only if it is
    more often right than names of random directions. The strongest or most frequent signals are named, each direction
    once, whoever writes it. Features are files that `keyhole contrast` and `keyhole discover` write with --features.

    A model behind an OpenAI-compatible server can name, judge, or both. Its cost is printed first. All answers are
    kept, so that the same command goes on after a stop and pays for nothing twice.

    Examples:

        keyhole name ioi.store --out names.json --out names.html

        keyhole name mary.json --most 40

        keyhole name ioi.store --by order --folder examples --out names.html

        keyhole name ioi.store --most 20 --random 20 --explainer llm --judge llm --llm http://localhost:8000/v1
        --llm-model qwen
    """
    for path in out or []:
        require_file(path, _WRITTEN)
    from keyhole.naming.naming import Namers, name_by, require_namers

    namers = Namers(
        explainer=explainer,
        judge=judge,
        questions=questions,
        url=llm,
        model=llm_model,
        key=llm_key,
        transcript=transcript,
        tries=llm_tries,
        per_minute=llm_per_minute,
        price=price,
        yes=yes,
    )
    require_namers(namers)
    if namers.by_model:
        require_file(transcript, (".jsonl",))
    from keyhole.naming.subjects.operands import made_by, open_nameable

    opened: Any = open_nameable(what)
    _check(opened, by, beside, out, namers)
    loaded = source.load_of(made_by(opened))
    if beside is not None:
        _tell_apart(loaded, (what, beside), corpus, settings, json=json)
        return
    from keyhole.naming.judge.judge import too_few
    from keyhole.naming.naming import seek

    if few := too_few(settings.random):  # before the minutes that it takes
        show.note(few)
    with show.progress_bar("Reading") as progress:
        examples = seek(opened, loaded, corpus=corpus, settings=settings, progress=progress)
    naming = name_by(examples, namers, stage=show.progress_bar, tell=show.note)
    sides, cues = ((), ()) if by is None else _sides(opened, naming, loaded, by)
    _answer(naming, by, sides, cues, json=json)
    for path in out or []:  # after the answer: a full disk must not cost it
        _write(naming, path, sides, cues)
        if not json:
            show.plain(f"wrote {path}")


def _check(opened: Any, by: str | None, beside: str | None, out: list[Path] | None, namers: Namers) -> None:
    """Refuse what does not go together, before any work is done."""
    from keyhole.naming.representatives import require_label
    from keyhole.store.store import Store

    if beside is not None and not (isinstance(opened, str) and not by and not out and not namers.by_model):
        raise KeyholeError(
            "--beside is for one channel (3.1:4), edge (mary.json#12) or feature, without --by, --out and --llm."
        )
    if by is None:
        return
    if not isinstance(opened, Store):
        raise KeyholeError("--by shows the representatives of a store side by side: give a store.")
    require_label(opened, by)


def _answer(naming: Naming, by: str | None, sides: Any, cues: Any, *, json: bool) -> None:
    from keyhole.naming.figure import report
    from keyhole.naming.record import plain

    if not json:
        show.report(report(naming, sides, cues))
        return
    more = {} if by is None else {"by": by, "sides": [side.plain for side in sides], "cues": [*map(asdict, cues)]}
    show.as_json({**plain(naming), **more})


def _sides(store: Any, naming: Naming, model: Model, by: str) -> tuple[Any, Any]:
    """Representatives side by side, and their cues."""
    from keyhole.naming.representatives import cues_of, side_by_side

    with show.progress("Comparing circuits"):
        sides = side_by_side(store, naming, model, by=by)
        return sides, cues_of(store, sides, model, seed=naming.seed)


def _write(naming: Naming, path: Path, sides: Any, cues: Any) -> None:
    from keyhole.files import write_at_once
    from keyhole.naming.figure import names_page

    if path.suffix.lower() == ".html":
        write_at_once(path, names_page(naming, sides, cues))
    else:
        naming.save(path)


def _tell_apart(model: Model, pair: tuple[str, str], corpus: str | None, settings: NameSettings, *, json: bool) -> None:
    from keyhole.naming.cues import tell_apart
    from keyhole.naming.subjects.operands import read_what
    from keyhole.naming.subjects.subject import Subject

    a, b = (read_what(model, text) for text in pair)
    if not (isinstance(a, Subject) and isinstance(b, Subject)):
        raise KeyholeError("--beside is for one channel (3.1:4) or edge (mary.json#12), not for a whole head.")
    with show.progress_bar("Reading") as progress:
        both = tell_apart(model, a, b, corpus, tokens=settings.tokens, seed=settings.seed, progress=progress)
    if json:
        show.as_json({"apart": [{**asdict(side), "passes": side.passes} for side in both], "model": model.name})
    else:
        show.plain("\n".join(map(str, both)))
