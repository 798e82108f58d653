"""What is a judge asked? One text with a marked pair at a time, so that questions do not answer each other.

- detection: does the signal fire between the marked tokens?
- fuzzing: is this the right pair, or another one of the same text?
- intruder: which of five does not belong? Needs no name.
- examples: is it more like known examples, or like what is none? Needs no name either.

A question has no truth, no value and no reason of being picked: what a judge must not know, it is not given.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from keyhole.naming.shown import Pick, Shown

QuestionKind = Literal["detection", "fuzzing", "intruder", "examples"]
Span = Literal["top", "all"]  # positives: top and high deciles, or all deciles alike


@dataclass(frozen=True)
class Marked:
    """A text with a dest and a src: all that a judge sees of an example."""

    tokens: tuple[str, ...]
    dest: int
    src: int


@dataclass(frozen=True)
class Question:
    """What a judge is asked."""

    kind: QuestionKind
    texts: tuple[Marked, ...]  # one; of an intruder question, five
    known: tuple[tuple[Marked, bool], ...] = ()  # `examples` alone: others, and whether the signal fires there


@dataclass(frozen=True)
class Posed:
    """A question beside its truth, which stays with whoever asks."""

    question: Question
    truth: bool | int  # does it fire? Of an intruder question: which one does not
    pick: Pick | None  # why the example in question was picked; None: a pair of the text that was marked at random


def marked(one: Shown) -> Marked:
    """An example without its value, and without why it was picked."""
    return Marked(one.tokens, one.dest, one.src)


def all_marked(several: Sequence[Shown]) -> tuple[Marked, ...]:
    """Several of them."""
    return tuple(marked(one) for one in several)
