"""What do these signals mean, and are the names right? Named from one half of the texts, tested on the other half."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import Unpack, get_args
from zlib import crc32

from keyhole.errors import KeyholeError
from keyhole.naming.explain.over_represented import statistics, tokens_alone
from keyhole.naming.explain.sentences import Explainer, Name
from keyhole.naming.judge.judge import (
    ALONE,
    NAMELESS,
    RANDOM,
    RANDOM_PASS,
    RIGHT,
    RULES,
    SHUFFLED,
    Judge,
    Share,
    Tested,
    ahead,
    beyond,
    corrected,
    share,
    shuffled,
    tested,
)
from keyhole.naming.judge.questions import Halves, Posed, Question, QuestionKind, Span, pose, split
from keyhole.naming.record import Named, Naming
from keyhole.naming.subjects.subject import Examples, Shown
from keyhole.progress import Progress, silent
from keyhole.settings.fields import chosen
from keyhole.settings.naming import Asking, AskingOptions

_FEW = 5  # examples that are kept with a name
Kind = tuple[QuestionKind, Span]
Tests = Mapping[Kind, Sequence[Tested | None]]  # one for each signal, in their order


@dataclass(frozen=True)
class _Work:
    """One signal in progress: its two halves of texts, its name, and its questions, which do not depend on the name."""

    examples: Examples
    halves: Halves
    name: Name
    posed: Mapping[Kind, tuple[Posed, ...]]

    def questions(self, kind: QuestionKind, of: Span) -> tuple[Posed, ...]:
        """The questions of one kind; without a name, only those that need none."""
        return self.posed[kind, of] if self.name.text is not None or kind in NAMELESS else ()


def name_signals(
    examples: Sequence[Examples],
    explainer: Explainer = statistics,
    judges: Mapping[QuestionKind, Judge] = RULES,
    *,
    random: Sequence[Examples] = (),
    asking: Asking | None = None,
    progress: Progress = silent,
    **options: Unpack[AskingOptions],
) -> Naming:
    """Name every signal and test the names: first all names, then all questions.

    Explainers and judges with a method `ahead` are given all their work at once, before the first answer is needed.

    Args:
        examples: Examples of every signal, as `gather` finds them.
        explainer: Makes a name from examples and background.
        judges: Who answers which kind of question; kinds without a judge are left out.
        random: Examples of random directions of the same heads, as a control.
        asking: An `Asking`, whose fields are the choices below.
        progress: Called with the number of signals named and their total.
        **options: Choices by name; beside a record they change it:
            - `questions`: How many questions with the answer yes test a name, and as many with no.
            - `hard`: The least share of hard negatives among the questions with the answer no.
            - `high`: Deciles from this one on count as high values.
            - `controls`: Test wrong names, and those of random directions, too.
            - `seed`: Seed of the split into halves, of questions and of controls.
            - `model`: Name of the model, which is stored with the names.

    >>> import keyhole
    >>> from keyhole.naming.naming import seek
    >>> sought = seek((3, 1), keyhole.load(), most=2, random=0, tokens=3000)
    >>> [len(named.tests) for named in name_signals(sought.examples).signals]
    [8, 8]
    """
    how = chosen(asking, Asking, options)
    _check(examples, random, judges)
    work = _explained((*examples, *random), explainer, judges, how, progress)
    signals, others = work[: len(examples)], work[len(examples) :]
    with_controls = how.controls and "detection" in judges
    detection: dict[QuestionKind, Judge] = {"detection": judges["detection"]} if with_controls else {}
    groups = _wrongly_named(signals, how.seed) if with_controls else {}
    questions = [*_questions(work, judges), *_questions(chain(*groups.values()), detection)]
    for judge in {id(judge): judge for judge, _, _ in questions}.values():
        ahead(judge, [(text, question) for who, text, question in questions if who is judge])
    random_tests = _tests(others, judges)
    return Naming(
        model=how.model,
        explainer=next((signal.name.by for signal in signals), ""),
        seed=how.seed,
        signals=_judged(signals, _tests(signals, judges), random_tests),
        controls=_controls(groups, others, random_tests, detection) if with_controls else (),
    )


def _check(examples: Sequence[Examples], random: Sequence[Examples], judges: Mapping[QuestionKind, Judge]) -> None:
    ids = [signal.subject.id for signal in (*examples, *random)]
    if len(set(ids)) < len(ids):
        raise KeyholeError(
            "two signals have the same id, so their names could not be distinguished: give them different ids."
        )
    for kind in judges:
        if kind not in get_args(QuestionKind):
            raise KeyholeError(
                f"there are no questions of kind {kind!r}: choose from {', '.join(get_args(QuestionKind))}."
            )


def _explained(
    every: Sequence[Examples],
    explainer: Explainer,
    judges: Mapping[QuestionKind, Judge],
    asking: Asking,
    progress: Progress,
) -> list[_Work]:
    """Split every signal's texts, name it from one half, and make questions from the other."""
    # the seed of a signal does not depend on the others that are named with it
    salts = [crc32(f"{asking.seed} {signal.subject.id}".encode()) for signal in every]
    halves = [Halves(*split(signal.shown, salt)) for signal, salt in zip(every, salts, strict=True)]
    shown = [(half.fires(asking.high), half.background) for half in halves]
    ahead(explainer, shown)
    work = list[_Work]()
    for signal, salt, half, pair in zip(every, salts, halves, shown, strict=True):
        posed = {(kind, of): pose(kind, half, of, asking, seed=salt) for kind in judges for of in get_args(Span)}
        work.append(_Work(signal, half, explainer(*pair), posed))
        progress(len(work), len(every))
    return work


def _questions(work: Iterable[_Work], judges: Mapping[QuestionKind, Judge]) -> Iterator[tuple[Judge, str, Question]]:
    """All questions, each with its judge and the name it is about."""
    for signal, (kind, judge), of in product(work, judges.items(), get_args(Span)):
        yield from ((judge, signal.name.text or "", posed.question) for posed in signal.questions(kind, of))


def _tests(work: Sequence[_Work], judges: Mapping[QuestionKind, Judge]) -> Tests:
    """The tests of every signal with every kind of question."""
    return {
        (kind, of): [
            tested(posed, [judge(signal.name.text or "", question.question) for question in posed], of)
            if posed
            else None
            for signal in work
            for posed in [signal.questions(kind, of)]
        ]
        for kind, judge in judges.items()
        for of in get_args(Span)
    }


def _judged(work: Sequence[_Work], tests_of: Tests, random_tests: Tests) -> tuple[Named, ...]:
    """Signals with p-values corrected over all of them, and compared with random directions on the same questions."""
    tests: list[list[Tested]] = [[] for _ in work]
    for kind, rows in tests_of.items():
        for of_signal, row in zip(tests, beyond(corrected(rows), random_tests.get(kind, ())), strict=True):
            of_signal += [row] if row is not None else []
    return tuple(_named(signal, tuple(of_signal)) for signal, of_signal in zip(work, tests, strict=True))


def _named(work: _Work, tests: tuple[Tested, ...]) -> Named:
    subject = work.examples.subject
    top = sorted(_top(work), key=lambda example: -example.value)
    return Named(subject.id, subject.kind, subject.head, subject.about, work.name, tests, tuple(top[:_FEW]))


def _wrongly_named(signals: Sequence[_Work], seed: int) -> dict[str, list[_Work]]:
    """The same signals with names that should fail: another signal's name, and their commonest tokens."""
    named = [signal for signal in signals if signal.name.text is not None]
    given = shuffled([signal.examples.subject.head for signal in named], seed)
    pairs = [(signal, named[i].name) for signal, i in zip(named, given, strict=True) if i is not None]
    swapped = [
        replace(signal, name=name) for signal, name in pairs if name.text != signal.name.text
    ]  # equal names are no control
    return {SHUFFLED: swapped, ALONE: [replace(signal, name=tokens_alone(_top(signal), ())) for signal in signals]}


def _controls(
    groups: Mapping[str, Sequence[_Work]],
    others: Sequence[_Work],
    random_tests: Tests,
    detection: Mapping[QuestionKind, Judge],
) -> tuple[Share, ...]:
    """How many wrong names, and names of random directions, are above chance; and how many random ones pass.

    Random directions are compared with one another: each half is ranked among the other half.
    """
    shares = [
        share(group, [named.outcome() for named in _judged(work, _tests(work, detection), {})], RIGHT)
        for group, work in groups.items()
        if work
    ]
    if not others:
        return tuple(shares)
    halves = [_judged(others[i::2], _every_other(random_tests, i), _every_other(random_tests, 1 - i)) for i in (0, 1)]
    right = share(RANDOM, [named.outcome() for named in _judged(others, random_tests, {})], RIGHT)
    return (*shares, right, share(RANDOM_PASS, [named.outcome() for half in halves for named in half]))


def _every_other(tests: Tests, first: int) -> Tests:
    return {kind: rows[first::2] for kind, rows in tests.items()}


def _top(work: _Work) -> list[Shown]:
    return [example for example in work.halves.explained if example.pick == "top"]
