"""What is an example of a signal? A piece of text with one dest and one src marked, and why it was picked."""

from dataclasses import dataclass
from typing import Literal

from keyhole.naming.subject import Subject

Pick = Literal["top", "decile", "random", "same pair", "other channels", "wrong src"]
NEGATIVES: tuple[Pick, ...] = ("random", "same pair", "other channels", "wrong src")
HARD: tuple[Pick, ...] = ("same pair", "other channels", "wrong src")


@dataclass(frozen=True)
class Shown:
    """A chunk of text in which a pair of tokens is marked.

    `top`: the largest values of all; `decile`: drawn from one tenth of the positive values; `random`: any visible pair.
    Hard negatives, which only attention has: `same pair`: the same two tokens as a top example, and no firing; `other
    channels`: the head attends here, but not by this signal; `wrong src`: a top example's dest with another src.
    """

    chunk: int  # its number in the corpus
    tokens: tuple[str, ...]
    dest: int
    src: int
    value: float  # of the signal: ask_d offer_s, zero where the signs do not match
    attention: float  # of the head
    pick: Pick
    decile: int | None = None  # 0 holds the smallest positive values


@dataclass(frozen=True)
class Examples:
    """All that was kept of one signal."""

    subject: Subject
    shown: tuple[Shown, ...]
    chunks: int  # that were read
    tokens: int
    positive: float  # share of visible pairs with a positive value

    def of(self, *picks: Pick) -> tuple[Shown, ...]:
        """The examples that were picked so, in their order."""
        return tuple(one for one in self.shown if one.pick in picks)
