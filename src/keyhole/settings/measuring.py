"""What can be chosen beside tracing? Circuits that suffice, stories, and pairs of heads that are removed."""

from dataclasses import dataclass
from typing import TypedDict

from keyhole.brief import Head
from keyhole.errors import KeyholeError
from keyhole.settings.fields import option, require_choices

LEVEL = 0.9  # of an answer, that a circuit which suffices keeps at least
PANEL = "Options of effects and of circuits that suffice"
SUFFICIENT = "Instead of tracing, search for a small circuit that carries the answer by itself."
SUFFICIENT_LEVEL = "With --sufficient: the least share of the answer that the circuit keeps, above 0 and up to 1."
SUFFICIENT_BOTH_SIGNS = "With --sufficient: also keep edges that hold the answer back."


@dataclass(frozen=True)
class SufficientSettings:
    """What is asked of a circuit that suffices.

    >>> SufficientSettings(level=0.8).both_signs
    False
    """

    level: float = option(LEVEL, "Least share of the answer that the circuit keeps, above 0 and up to 1.")
    both_signs: bool = option(False, "Keep edges that hold the answer back, too; they have a negative share.")
    signals: int = option(2, "How many signals of each side of a head are shown: the strongest.", least=0)

    def __post_init__(self) -> None:
        require_choices(self)
        check_level(self.level)


class SufficientOptions(TypedDict, total=False):
    """The fields of `SufficientSettings`, for functions that take them as keywords."""

    level: float
    both_signs: bool
    signals: int


def check_level(level: float) -> None:
    """Refuse what is no share of an answer."""
    if not 0 < level <= 1:
        raise KeyholeError(f"level is {level}, but the share of an answer that is kept lies between 0 and 1.")


@dataclass(frozen=True)
class StorySettings:
    """Which paths a story has."""

    top: int = option(5, "How many paths, those of the largest influence.")
    least: float = option(0.01, "Least influence of a path: a share of the answer.")

    def __post_init__(self) -> None:
        if self.top < 1:
            raise KeyholeError(f"a story has at least one path, not {self.top}.")


class StoryOptions(TypedDict, total=False):
    """The fields of `StorySettings`, for functions that take them as keywords."""

    top: int
    least: float


@dataclass(frozen=True)
class PairSettings:
    """How many pairs of heads are removed."""

    first: int = option(
        8, "How many of the circuit's heads are removed first: those of the largest influence.", least=1
    )
    named: tuple[Head, ...] = option(
        (),
        "Remove this head first, such as 3.6; repeatable. Default: as many heads as --first says.",
        names=("--head",),
    )
    draws: int = option(
        1000, "How many random pairs of heads to compare with; all pairs, if there are fewer.", least=20
    )
    seed: int = option(0, "Seed of the random pairs.")
