"""What came of naming signals? Each name with its evidence and its tests, the shares that pass, and the controls."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

from keyhole.brief import brief
from keyhole.dataframes import Table, as_dataframe
from keyhole.models.heads import Head
from keyhole.naming.judging.controls import RANDOM, RANDOM_PASS, too_few
from keyhole.naming.judging.judge import NAMELESS
from keyhole.naming.judging.questions import QuestionKind, Span
from keyhole.naming.judging.scores import LEVEL, RIGHT, Outcome, Share, Tested, share
from keyhole.naming.name import Name
from keyhole.naming.shown import Shown
from keyhole.naming.subject import SubjectKind

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.circuits.circuit import Circuit, Edge
    from keyhole.models.model import Model
    from keyhole.naming.subject import Subject

LANDMARKS = "published, above chance alone, with other models and judges: GPT-2 63 %, Pythia-160M 50 %, Gemma-2-2B 31 %"


@dataclass(frozen=True)
class Named:
    """One signal: what it is called, why, and whether that is right."""

    __repr__ = brief

    id: str
    kind: SubjectKind
    head: Head  # layer and head
    about: Mapping[str, str]
    name: Name  # the sentence, and what it claims
    tests: tuple[Tested, ...]  # how often it was right
    examples: tuple[Shown, ...]  # a few that the explainer saw

    def test(self, kind: QuestionKind = "detection", of: Span = "top") -> Tested | None:
        """How it did on one kind of question; None: not asked."""
        return next((one for one in self.tests if (one.kind, one.of) == (kind, of)), None)

    def outcome(self, kind: QuestionKind = "detection", of: Span = "top") -> Outcome:
        """Does the name pass? It does if it is above chance, and beyond random directions' names.

        Without random directions beside it, a name is above chance at best. Where questions need no name, the examples
        pass or not.
        """
        if self.name.text is None and kind not in NAMELESS:
            return "no valid interpretation"
        one = self.test(kind, of)
        if one is None or one.corrected is None:
            return "untested"
        if one.corrected > LEVEL:
            return "fails"
        return "passes" if one.passing is not None and one.passing <= LEVEL else "above chance"

    def __str__(self) -> str:
        one = self.test()
        told = (
            f" (accuracy {one.accuracy:.2f}, p {one.p:.2g}, corrected {one.corrected:.2g})"
            if one and one.corrected
            else ""
        )
        return f"{self.id}: {self.name} [{self.outcome()}]{told}"


@dataclass(frozen=True)
class Naming:
    """Signals of one model, named and tested together."""

    __repr__ = brief

    model: str  # its name
    explainer: str  # who named
    seed: int  # of samples and controls
    signals: tuple[Named, ...]  # each with its name and tests
    controls: tuple[Share, ...]  # detection, by the same judge
    fingerprint: str = ""  # of the model's weights; empty: not known

    @property
    def random_directions(self) -> int:
        """How many random directions names were compared with."""
        return next((one.signals for one in self.controls if one.group == RANDOM), 0)

    def share(self, kind: QuestionKind = "detection", of: Span = "top") -> Share:
        """How many names pass."""
        return share(f"{kind}, {of}", [one.outcome(kind, of) for one in self.signals])

    def above_chance(self, kind: QuestionKind = "detection", of: Span = "top") -> Share:
        """How many names are right by Fisher's test alone, whether or not random directions' names are so, too."""
        return share("above chance", [one.outcome(kind, of) for one in self.signals], RIGHT)

    def of(self, what: "str | Subject") -> Named | None:
        """The name of a term such as 9.6 dest 3 <- 7.9, or of a subject with such a direction; None: not named."""
        from keyhole.naming.attached.edges import name_of

        return name_of(self, what)

    def edges(self, circuit: "Circuit", model: "Model | None" = None) -> "dict[Edge, Named]":
        """The edges of a circuit that have a name here; see `keyhole.naming.attached.edges`."""
        from keyhole.naming.attached.edges import named_edges

        return named_edges(circuit, self, model)

    def by_layer(self, kind: QuestionKind = "detection", of: Span = "top") -> tuple[Share, ...]:
        """How many names pass in each layer."""
        layers = sorted({one.head[0] for one in self.signals})
        return tuple(
            share(f"layer {layer}", [one.outcome(kind, of) for one in self.signals if one.head[0] == layer])
            for layer in layers
        )

    def asked(self) -> list[tuple[QuestionKind, Span]]:
        """Which kinds of questions were asked of any signal."""
        made = {(test.kind, test.of) for one in self.signals for test in one.tests}
        return [(kind, of) for kind in get_args(QuestionKind) for of in get_args(Span) if (kind, of) in made]

    def save(self, path: "Path | str") -> "Path":
        """Write names as .json (which `load_naming` reads), .html (a page with the evidence) or .csv."""
        from keyhole.figures.store.names import save_names

        return save_names(self, path)

    def to_html(self) -> str:
        """The names with their evidence, as one self-contained page."""
        from keyhole.figures.store.names import names_page

        return names_page(self)

    def table(self) -> Table:
        """One row per signal."""
        return as_dataframe([_row(one) for one in self.signals])

    def __str__(self) -> str:
        shares = [self.share(), *(self.share(*one) for one in self.asked() if one != ("detection", "top"))]
        shares += [one for one in self.controls if one.group == RANDOM_PASS]
        above = [replace(self.above_chance(), group="names"), *(one for one in self.controls if one not in shares)]
        layers = self.by_layer()
        parts = [
            f"{len(self.signals)} signals of {self.model or 'a model'}, named by {self.explainer}",
            "pass: above chance, and beyond random directions' names",
            *([f"  {few}"] if (few := too_few(self.random_directions)) else []),
            *(f"  {one.group:<18} {one}" for one in shares),
            "above chance alone, detection",
            *(f"  {one.group:<18} {one}" for one in above),
            *(["pass, by layer"] if len(layers) > 1 else []),
            *(f"  {one.group:<18} {one}" for one in layers if len(layers) > 1),
            LANDMARKS,
        ]
        return "\n".join(parts)


def by_model(namings: Sequence[Naming], kind: QuestionKind = "detection", of: Span = "top") -> tuple[Share, ...]:
    """How many names pass in each model; p-values were corrected within each naming."""
    models = dict.fromkeys(naming.model for naming in namings)
    return tuple(
        share(model, [one.outcome(kind, of) for naming in namings if naming.model == model for one in naming.signals])
        for model in models
    )


def _row(one: Named) -> dict[str, Any]:
    test = one.test()
    scores = ("accuracy", "precision", "recall", "auc", "p", "corrected", "beyond", "passing")
    return {
        "id": one.id,
        "kind": one.kind,
        "layer": one.head[0],
        "head": one.head[1],
        **{key: one.about.get(key) for key in ("prompts", "also")},
        "name": one.name.text,
        "outcome": one.outcome(),
        **{name: None if test is None else getattr(test, name) for name in scores},
    }
