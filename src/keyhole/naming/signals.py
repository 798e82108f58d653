"""What do these signals mean, and are the names right? Explained on one half of the texts, judged on the other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args
from zlib import crc32

from keyhole.errors import KeyholeError
from keyhole.naming.explain.commonest import tokens_alone
from keyhole.naming.explain.over_represented import statistics
from keyhole.naming.judging.controls import ALONE, RANDOM, RANDOM_PASS, SHUFFLED, beyond, shuffled
from keyhole.naming.judging.judge import NAMELESS, RULES, Judge
from keyhole.naming.judging.pose import Asking, Halves, pose
from keyhole.naming.judging.questions import Posed, QuestionKind, Span
from keyhole.naming.judging.scores import RIGHT, Share, Tested, corrected, share, tested
from keyhole.naming.judging.split import split
from keyhole.naming.name import Explainer, Name
from keyhole.naming.named import Named, Naming
from keyhole.naming.shown import NEGATIVES, Examples, Shown
from keyhole.progress import Progress, silent

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
    total, work = len(examples) + len(random), list[_Work]()
    for number, one in enumerate((*examples, *random)):
        work.append(_explained(one, explainer, judges, asking, seed=seed))
        progress(number + 1, total)
    own, others = work[: len(examples)], work[len(examples) :]
    nulls = _asked(others, judges)
    return Naming(
        model=model,
        explainer=next((one.name.by for one in own), ""),
        seed=seed,
        signals=_judged(own, _asked(own, judges), nulls),
        controls=_controls(own, others, nulls, judges, seed=seed) if controls and "detection" in judges else (),
    )


def _check(examples: Sequence[Examples], random: Sequence[Examples], judges: Mapping[QuestionKind, Judge]) -> None:
    ids = [one.subject.id for one in (*examples, *random)]
    if len(set(ids)) < len(ids):
        raise KeyholeError("two signals have the same id, so their names could not be told apart: number them.")
    for kind in judges:
        if kind not in get_args(QuestionKind):
            raise KeyholeError(f"there are no questions of kind {kind!r}, but {', '.join(get_args(QuestionKind))}.")


def _explained(
    examples: Examples, explainer: Explainer, judges: Mapping[QuestionKind, Judge], asking: Asking, *, seed: int
) -> _Work:
    """Split, explain by the one half, and make questions of the other."""
    own = crc32(f"{seed} {examples.subject.id}".encode())  # the same whichever signals it is named with
    halves = Halves(*split(examples.shown, own))
    fires = [
        one for one in halves.seen if one.pick == "top" or (one.pick == "decile" and (one.decile or 0) >= asking.high)
    ]
    name = explainer(fires, [one for one in halves.seen if one.pick in NEGATIVES])
    posed = {(kind, of): pose(kind, halves, of, asking, seed=own) for kind in judges for of in get_args(Span)}
    return _Work(examples, halves, name, posed)


def _asked(work: Sequence[_Work], judges: Mapping[QuestionKind, Judge]) -> Tests:
    """Every kind of question to every signal."""
    return {
        (kind, of): [_ask(one.name, one.posed[kind, of], judge, of) for one in work]
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


def _ask(name: Name, posed: Sequence[Posed], judge: Judge, of: Span) -> Tested | None:
    """One question at a time; without a name, only those that need none."""
    if not posed or (name.text is None and posed[0].question.kind not in NAMELESS):
        return None
    return tested(posed, [judge(name.text or "", one.question) for one in posed], of)


def _named(work: _Work, tests: tuple[Tested, ...]) -> Named:
    subject = work.examples.subject
    top = sorted((one for one in work.halves.seen if one.pick == "top"), key=lambda one: -one.value)
    about = dict(subject.about)
    return Named(subject.id, subject.kind, subject.head, about, work.name, tests, tuple(top[:_FEW]))


def _controls(
    own: Sequence[_Work], others: Sequence[_Work], nulls: Tests, judges: Mapping[QuestionKind, Judge], *, seed: int
) -> tuple[Share, ...]:
    """What is above chance without being the signal's name, or without there being a signal; and what passes of these.

    Random directions are held against one another: each half has its ranks among the other half.
    """
    only: dict[QuestionKind, Judge] = {"detection": judges["detection"]}
    named = [one for one in own if one.name.text is not None]
    given = shuffled([one.examples.subject.head for one in named], seed)
    pairs = [(one, named[i].name) for one, i in zip(named, given, strict=True) if i is not None]
    swapped = [replace(one, name=name) for one, name in pairs if name.text != one.name.text]  # or it would be its own
    alone = [replace(one, name=tokens_alone(_top(one), ())) for one in own]
    groups = {SHUFFLED: swapped, ALONE: alone}
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
