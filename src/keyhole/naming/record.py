"""What came of naming? Names with their evidence, and how signals are named and tested.

What came of naming signals? Each name with its evidence and its tests, the shares that pass, and the controls.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import TYPE_CHECKING, Any, get_args
from zlib import crc32

from keyhole.brief import Head, Table, as_dataframe, brief
from keyhole.errors import KeyholeError
from keyhole.naming.explain.candidates import Explainer, Name
from keyhole.naming.explain.over_represented import statistics, tokens_alone
from keyhole.naming.judge.judge import (
    ALONE,
    LEVEL,
    NAMELESS,
    RANDOM,
    RANDOM_PASS,
    RIGHT,
    RULES,
    SHUFFLED,
    Judge,
    Outcome,
    Share,
    Tested,
    ahead,
    beyond,
    corrected,
    share,
    shuffled,
    tested,
    too_few,
)
from keyhole.naming.judge.questions import Asking, Halves, Posed, Question, QuestionKind, Span, pose, split
from keyhole.naming.subjects.subject import About, Examples, Shown, SubjectKind
from keyhole.progress import Progress, silent

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.circuits.circuit import Circuit, Edge
    from keyhole.models.model import Model
    from keyhole.naming.subjects.subject import Subject

LANDMARKS = "published, above chance alone, with other models and judges: GPT-2 63 %, Pythia-160M 50 %, Gemma-2-2B 31 %"


@dataclass(frozen=True)
class Named:
    """One signal: what it is called, why, and whether that is right."""

    __repr__ = brief

    id: str
    kind: SubjectKind
    head: Head  # layer and head
    about: About
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
        from keyhole.naming.attached import name_of

        return name_of(self, what)

    def edges(self, circuit: "Circuit", model: "Model | None" = None) -> "dict[Edge, Named]":
        """The edges of a circuit that have a name here; see `keyhole.naming.attached`."""
        from keyhole.naming.attached import named_edges

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
        from keyhole.naming.figure import save_names

        return save_names(self, path)

    def to_html(self) -> str:
        """The names with their evidence, as one self-contained page."""
        from keyhole.naming.figure import names_page

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
        "prompts": one.about.get("prompts"),
        "also": "; ".join(one.about.get("also", ())) or None,
        "name": one.name.text,
        "outcome": one.outcome(),
        **{name: None if test is None else getattr(test, name) for name in scores},
    }


# What do these signals mean, and are the names right? Explained on one half of the texts, judged on the other.

_FEW = 5  # examples that stay beside a name
Asked = tuple[QuestionKind, Span]
Tests = Mapping[Asked, Sequence[Tested | None]]  # of every signal, in their order


@dataclass(frozen=True)
class _Work:
    """One signal on its way: its two halves, its name, and the questions, which are made without looking at it."""

    examples: Examples
    halves: Halves
    name: Name
    posed: Mapping[Asked, tuple[Posed, ...]]

    def questions(self, kind: QuestionKind, of: Span) -> tuple[Posed, ...]:
        """Those that are asked: without a name, only those that need none."""
        return self.posed[kind, of] if self.name.text is not None or kind in NAMELESS else ()


def name_signals(
    examples: Sequence[Examples],
    explainer: Explainer = statistics,
    judges: Mapping[QuestionKind, Judge] = RULES,
    *,
    random: Sequence[Examples] = (),
    model: str = "",
    asking: Asking | None = None,
    controls: bool = True,
    seed: int = 0,
    progress: Progress = silent,
) -> Naming:
    """Name every signal and test the names; `random`: examples of random directions of the same heads, a control.

    `judges`: who answers which kind of question; kinds without a judge are not asked.
    """
    asking = asking or Asking()
    _check(examples, random, judges)
    work = _explained((*examples, *random), explainer, judges, asking, seed=seed, progress=progress)
    own, others = work[: len(examples)], work[len(examples) :]
    only: dict[QuestionKind, Judge] = {"detection": judges["detection"]} if controls and "detection" in judges else {}
    groups = _unlike(own, seed) if only else {}
    questions = [*_questions(work, judges), *_questions(chain(*groups.values()), only)]
    for judge in {id(judge): judge for judge, _, _ in questions}.values():
        ahead(judge, [(text, question) for who, text, question in questions if who is judge])
    nulls = _asked(others, judges)
    return Naming(
        model=model,
        explainer=next((one.name.by for one in own), ""),
        seed=seed,
        signals=_judged(own, _asked(own, judges), nulls),
        controls=_controls(groups, others, nulls, only) if only else (),
    )


def _check(examples: Sequence[Examples], random: Sequence[Examples], judges: Mapping[QuestionKind, Judge]) -> None:
    ids = [one.subject.id for one in (*examples, *random)]
    if len(set(ids)) < len(ids):
        raise KeyholeError("two signals have the same id, so their names could not be told apart: number them.")
    for kind in judges:
        if kind not in get_args(QuestionKind):
            raise KeyholeError(f"there are no questions of kind {kind!r}, but {', '.join(get_args(QuestionKind))}.")


def _explained(
    every: Sequence[Examples],
    explainer: Explainer,
    judges: Mapping[QuestionKind, Judge],
    asking: Asking,
    *,
    seed: int,
    progress: Progress,
) -> list[_Work]:
    """Split, explain by the one half, and make questions of the other."""
    salts = [crc32(f"{seed} {one.subject.id}".encode()) for one in every]  # the same whichever it is named with
    halves = [Halves(*split(one.shown, salt)) for one, salt in zip(every, salts, strict=True)]
    shown = [(half.fires(asking.high), half.background) for half in halves]
    ahead(explainer, shown)
    work = list[_Work]()
    for one, salt, half, pair in zip(every, salts, halves, shown, strict=True):
        posed = {(kind, of): pose(kind, half, of, asking, seed=salt) for kind in judges for of in get_args(Span)}
        work.append(_Work(one, half, explainer(*pair), posed))
        progress(len(work), len(every))
    return work


def _questions(work: Iterable[_Work], judges: Mapping[QuestionKind, Judge]) -> Iterator[tuple[Judge, str, Question]]:
    """All that is asked, of whom."""
    for one, (kind, judge), of in product(work, judges.items(), get_args(Span)):
        yield from ((judge, one.name.text or "", posed.question) for posed in one.questions(kind, of))


def _asked(work: Sequence[_Work], judges: Mapping[QuestionKind, Judge]) -> Tests:
    """Every kind of question to every signal, one question at a time."""
    return {
        (kind, of): [
            tested(posed, [judge(one.name.text or "", asked.question) for asked in posed], of) if posed else None
            for one in work
            for posed in [one.questions(kind, of)]
        ]
        for kind, judge in judges.items()
        for of in get_args(Span)
    }


def _judged(work: Sequence[_Work], asked: Tests, nulls: Tests) -> tuple[Named, ...]:
    """p-values corrected over signals, and each signal beside random directions on the same kind of questions."""
    tests: list[list[Tested]] = [[] for _ in work]
    for kind, rows in asked.items():
        for own, row in zip(tests, beyond(corrected(rows), nulls.get(kind, ())), strict=True):
            own += [row] if row is not None else []
    return tuple(_named(one, tuple(own)) for one, own in zip(work, tests, strict=True))


def _named(work: _Work, tests: tuple[Tested, ...]) -> Named:
    subject = work.examples.subject
    top = sorted((one for one in work.halves.seen if one.pick == "top"), key=lambda one: -one.value)
    return Named(subject.id, subject.kind, subject.head, subject.about, work.name, tests, tuple(top[:_FEW]))


def _unlike(own: Sequence[_Work], seed: int) -> dict[str, list[_Work]]:
    """The same signals with names that are not theirs: another signal's, and their commonest tokens."""
    named = [one for one in own if one.name.text is not None]
    given = shuffled([one.examples.subject.head for one in named], seed)
    pairs = [(one, named[i].name) for one, i in zip(named, given, strict=True) if i is not None]
    swapped = [replace(one, name=name) for one, name in pairs if name.text != one.name.text]  # or it would be its own
    return {SHUFFLED: swapped, ALONE: [replace(one, name=tokens_alone(_top(one), ())) for one in own]}


def _controls(
    groups: Mapping[str, Sequence[_Work]], others: Sequence[_Work], nulls: Tests, only: Mapping[QuestionKind, Judge]
) -> tuple[Share, ...]:
    """What is above chance without being the signal's name, or without there being a signal; and what passes of these.

    Random directions are held against one another: each half has its ranks among the other half.
    """
    found = [
        share(group, [one.outcome() for one in _judged(work, _asked(work, only), {})], RIGHT)
        for group, work in groups.items()
        if work
    ]
    if not others:
        return tuple(found)
    halves = [_judged(others[i::2], _every_other(nulls, i), _every_other(nulls, 1 - i)) for i in (0, 1)]
    right = share(RANDOM, [one.outcome() for one in _judged(others, nulls, {})], RIGHT)
    return (*found, right, share(RANDOM_PASS, [one.outcome() for half in halves for one in half]))


def _every_other(tests: Tests, first: int) -> Tests:
    return {kind: rows[first::2] for kind, rows in tests.items()}


def _top(work: _Work) -> list[Shown]:
    return [one for one in work.halves.seen if one.pick == "top"]
