"""What does naming return? Names with their evidence and tests, the shares that pass, controls, and files."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from keyhole.brief import Head, Table, as_dataframe, brief
from keyhole.errors import KeyholeError
from keyhole.files import require_file, write_at_once
from keyhole.naming.explain.sentences import Name
from keyhole.naming.judge.judge import (
    LEVEL,
    NAMELESS,
    RANDOM,
    RIGHT,
    Outcome,
    Share,
    Tested,
    share,
)
from keyhole.naming.judge.questions import QuestionKind, Span
from keyhole.naming.subjects.operands import with_numbers
from keyhole.naming.subjects.subject import About, Shown, SubjectKind
from keyhole.strict import parse_json, quoted, read, read_text, require, require_fields

if TYPE_CHECKING:
    from keyhole.circuits.circuit import Circuit, Edge
    from keyhole.models.model import Model
    from keyhole.naming.subjects.subject import Subject
    from keyhole.report import Report

LANDMARKS = "published, above chance alone, with other models and judges: GPT-2 63 %, Pythia-160M 50 %, Gemma-2-2B 31 %"


@dataclass(frozen=True)
class Named:
    """One signal with its name, the evidence for it, and its tests."""

    __repr__ = brief

    id: str
    kind: SubjectKind
    head: Head  # layer and head
    about: About
    name: Name  # the sentence with its claims
    tests: tuple[Tested, ...]  # one for each kind of question
    examples: tuple[Shown, ...]  # a few of those that the explainer was given

    def test(self, kind: QuestionKind = "detection", of: Span = "top") -> Tested | None:
        """The test with one kind of question; None: there was none."""
        return next((test for test in self.tests if (test.kind, test.of) == (kind, of)), None)

    def outcome(self, kind: QuestionKind = "detection", of: Span = "top") -> Outcome:
        """Does the name pass? It must be above chance, and better than the names of random directions.

        Without random directions the best outcome is "above chance". For kinds of questions that need no name, this is
        the outcome of the examples.
        """
        if self.name.text is None and kind not in NAMELESS:
            return "no valid interpretation"
        test = self.test(kind, of)
        if test is None or test.corrected is None:
            return "untested"
        if test.corrected > LEVEL:
            return "fails"
        return "passes" if test.passing is not None and test.passing <= LEVEL else "above chance"

    def __str__(self) -> str:
        test = self.test()
        scores = ""
        if test and test.corrected:
            scores = f" (accuracy {test.accuracy:.2f}, p {test.p:.2g}, corrected {test.corrected:.2g})"
        return f"{self.id}: {self.name} [{self.outcome()}]{scores}"


@dataclass(frozen=True)
class Naming:
    """Signals of one model, named and tested together; p-values are corrected over all of them."""

    __repr__ = brief

    model: str  # its name
    explainer: str  # "statistics", or the name of a language model
    seed: int  # of examples, questions and controls
    signals: tuple[Named, ...]
    controls: tuple[Share, ...]  # of detection questions, with the same judge
    fingerprint: str = ""  # of the model's weights; empty: not recorded

    @property
    def random_directions(self) -> int:
        """The number of random directions that names are compared with."""
        return next((control.signals for control in self.controls if control.group == RANDOM), 0)

    def share(self, kind: QuestionKind = "detection", of: Span = "top") -> Share:
        """How many names pass, with Wilson's interval."""
        return share(f"{kind}, {of}", [named.outcome(kind, of) for named in self.signals])

    def above_chance(self, kind: QuestionKind = "detection", of: Span = "top") -> Share:
        """How many names are right by Fisher's test alone, whether or not they beat those of random directions."""
        return share("above chance", [named.outcome(kind, of) for named in self.signals], RIGHT)

    def of(self, term: "str | Subject") -> Named | None:
        """The name of a term such as "9.6 dest 3 <- 7.9", or of a subject with this direction; None: it has none."""
        from keyhole.naming.attached import name_of

        return name_of(self, term)

    def edges(self, circuit: "Circuit", model: "Model | None" = None) -> "dict[Edge, Named]":
        """The edges of a circuit that have a name here, passed or not; a circuit from a file needs its `model`."""
        from keyhole.naming.attached import named_edges

        return named_edges(circuit, self, model)

    def by_layer(self, kind: QuestionKind = "detection", of: Span = "top") -> tuple[Share, ...]:
        """How many names pass in each layer."""
        layers = sorted({named.head[0] for named in self.signals})
        return tuple(
            share(f"layer {layer}", [named.outcome(kind, of) for named in self.signals if named.head[0] == layer])
            for layer in layers
        )

    def question_kinds(self) -> list[tuple[QuestionKind, Span]]:
        """The kinds of questions that any signal was tested with."""
        used = {(test.kind, test.of) for named in self.signals for test in named.tests}
        return [(kind, of) for kind in get_args(QuestionKind) for of in get_args(Span) if (kind, of) in used]

    def save(self, path: "Path | str") -> "Path":
        """Write names as .json (which `load_naming` reads), .html (a page with the evidence) or .csv."""
        from keyhole.naming.figure import save_names

        return save_names(self, path)

    def to_html(self) -> str:
        """The names with their evidence, as one self-contained page."""
        from keyhole.naming.figure import names_page

        return names_page(self)

    def table(self) -> Table:
        """One row per signal: a pandas DataFrame, or records without pandas."""
        return as_dataframe([_row(named) for named in self.signals])

    def report(self) -> "Report":
        """The names, how many are right compared with the controls, and the evidence."""
        from keyhole.naming.figure import report

        return report(self)

    def __str__(self) -> str:
        from keyhole.report.terminal import as_text

        return as_text(self.report())


def by_model(namings: Sequence[Naming], kind: QuestionKind = "detection", of: Span = "top") -> tuple[Share, ...]:
    """How many names pass in each model; p-values are corrected within each naming.

    Args:
        namings: Names of several models.
        kind: The kind of question.
        of: Which examples the questions are about: the strongest ("top"), or those of all deciles ("all").
    """
    models = dict.fromkeys(naming.model for naming in namings)
    return tuple(
        share(
            model, [named.outcome(kind, of) for naming in namings if naming.model == model for named in naming.signals]
        )
        for model in models
    )


def _row(named: Named) -> dict[str, Any]:
    test = named.test()
    scores = ("accuracy", "precision", "recall", "auc", "p", "corrected", "beyond", "passing")
    return {
        "id": named.id,
        "kind": named.kind,
        "layer": named.head[0],
        "head": named.head[1],
        "prompts": named.about.get("prompts"),
        "also": "; ".join(named.about.get("also", ())) or None,
        "name": named.name.text,
        "outcome": named.outcome(),
        **{name: None if test is None else getattr(test, name) for name in scores},
    }


# How are names stored? As one JSON document, which is validated when it is read.

SCHEMA = 2  # in schema 1 all of `about` was text, and the number of questions was called "asked"


def save_naming(naming: Naming, path: str | Path) -> None:
    """Write names; the file appears whole or not at all.

    Args:
        naming: The names.
        path: A .json file.
    """
    write_at_once(require_file(path, (".json",)), to_json(naming))


def load_naming(path: str | Path) -> Naming:
    """Read names; a damaged or foreign file, or one of a later schema, is refused with the reason.

    Args:
        path: A file that `naming.save("names.json")` or `keyhole name --out names.json` wrote.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     naming = Naming("organism", "statistics", 0, (), ())
    ...     save_naming(naming, f"{folder}/names.json")
    ...     load_naming(f"{folder}/names.json") == naming
    True
    """
    try:
        return from_json(read_text(path))
    except KeyholeError as error:
        raise KeyholeError(f"{path} holds no names that can be read: {error}") from error


def to_json(naming: Naming) -> str:
    """Names as a JSON document, from which `from_json` makes an equal record."""
    return json.dumps(plain(naming), ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def plain(naming: Naming) -> dict[str, Any]:
    """The document of names as plain data."""
    return {"schema": SCHEMA, "naming": asdict(naming)}


def from_json(text: str) -> Naming:
    """Names from their JSON document."""
    document = parse_json(text)
    require_fields(document, ("schema", "naming"), "the document")
    schema, plain_naming = document["schema"], document["naming"]
    require(schema in (1, SCHEMA), f"its schema is {quoted(schema)}, and 1 to {SCHEMA} are read here.")
    if schema == 1 and isinstance(plain_naming, dict):
        plain_naming = {**plain_naming, "signals": _as_schema_2(plain_naming.get("signals"))}
    naming = read(Naming, plain_naming)
    ids = [named.id for named in naming.signals]
    require(len(set(ids)) == len(ids), "two signals have the same id.")
    for named in naming.signals:
        for shown in named.examples:
            require(0 <= shown.src <= shown.dest < len(shown.tokens), f"an example of {named.id} has no such tokens.")
    return naming


def _as_schema_2(signals: Any) -> Any:
    """Signals of schema 1 as later ones have them; what fits no schema is left to the reader."""
    try:
        for signal in (signals := with_numbers(signals)):
            for test in signal["tests"]:
                test["questions"] = test.pop("asked")
    except (TypeError, KeyError, AttributeError):
        pass
    return signals
