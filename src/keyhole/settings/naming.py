"""What can be chosen about names? How much text is read, how many signals are named, and how the names are tested."""

from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from keyhole.errors import KeyholeError
from keyhole.settings.fields import option, require_choices

READ = "How many tokens are read, at most."
CHUNK = "How many tokens a chunk of text has."
KEEP = "Folder that keeps the examples; the same call or command continues from there after a stop. Default: none."


@dataclass(frozen=True)
class ReadSettings:
    """How a corpus is read for examples (`gather`)."""

    length: int = option(32, CHUNK, least=4)
    tokens: int = option(250_000, READ, least=1)
    seed: int = option(0, "Seed of the text, if no corpus is given, and of the examples that are drawn.")
    folder: Path | None = option(None, KEEP)

    def __post_init__(self) -> None:
        require_choices(self)


class ReadOptions(TypedDict, total=False):
    """The fields of `ReadSettings`, for functions that take them as keywords."""

    length: int
    tokens: int
    seed: int
    folder: Path | str | None


@dataclass(frozen=True)
class WhereSettings:
    """How the strongest places of a signal or head are looked for (`where`)."""

    top: int = option(12, "How many places are shown.", least=1)
    tokens: int = option(250_000, READ, least=1)
    length: int = option(32, CHUNK, least=4)
    seed: int = option(0, "Seed of the choice of text, if no corpus is given.")

    def __post_init__(self) -> None:
        require_choices(self)


class WhereOptions(TypedDict, total=False):
    """The fields of `WhereSettings`, for functions that take them as keywords."""

    top: int
    tokens: int
    length: int
    seed: int


@dataclass(frozen=True)
class NameSettings:
    """How many signals are named, from how much text (`name`).

    >>> NameSettings(most=0)
    Traceback (most recent call last):
    keyhole.errors.KeyholeError: most is 0, but should be at least 1.
    """

    most: int = option(
        100, "How many signals are named: the most frequent ones of a store, else the strongest.", least=1
    )
    random: int = option(200, "How many random directions of the same heads are named, too, as a control.", least=0)
    tokens: int = option(250_000, READ, least=1)
    seed: int = option(0, "Seed of texts, random directions and questions.")
    folder: Path | None = option(None, KEEP)

    def __post_init__(self) -> None:
        require_choices(self)


class NameOptions(TypedDict, total=False):
    """The fields of `NameSettings`, for functions that take them as keywords."""

    most: int
    random: int
    tokens: int
    seed: int
    folder: Path | str | None


@dataclass(frozen=True)
class Asking:
    """Which questions test a name, and how many (`name_signals`)."""

    questions: int = option(10, "Questions with the answer yes, and as many with no, to each name.")
    hard: float = option(0.5, "Share of hard negatives among the questions with the answer no, at least.")
    high: int = option(8, "Deciles from this one on count as high values.")
    controls: bool = option(True, "Test wrong names, and those of random directions, too.")
    seed: int = option(0, "Seed of the split into halves, of questions and of controls.")
    model: str = option("", "Name of the model, which is stored with the names.")

    def __post_init__(self) -> None:
        if self.questions < 1 or not 0 <= self.hard <= 1 or not 0 <= self.high <= 9:
            raise KeyholeError(
                f"questions is {self.questions}, hard {self.hard} and high {self.high}: ask at least one question, "
                "with a share of hard negatives from 0 to 1, and of deciles up to 9."
            )


class AskingOptions(TypedDict, total=False):
    """The fields of `Asking`, for functions that take them as keywords."""

    questions: int
    hard: float
    high: int
    controls: bool
    seed: int
    model: str
