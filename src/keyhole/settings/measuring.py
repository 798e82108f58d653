"""What can be chosen besides tracing? Circuits that suffice, stories, pairs of removed heads, and answers."""

from dataclasses import dataclass
from typing import TypedDict

from keyhole.brief import Head
from keyhole.errors import KeyholeError
from keyhole.settings.fields import option, require_choices
from keyhole.strict import quoted

LEVEL = 0.9  # of an answer, that a circuit which suffices keeps at least
PANEL = "Options of effects and of circuits that suffice"
SUFFICIENT = "Instead of tracing, search for a small circuit that carries the answer by itself."
SUFFICIENT_LEVEL = "With --sufficient: the least share of the answer that the circuit keeps, above 0 and up to 1."
SUFFICIENT_BOTH_SIGNS = "With --sufficient: also keep edges that hold the answer back."


@dataclass(frozen=True)
class SufficientSettings:
    """What a circuit that suffices must keep, and how it is shown.

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
    """Refuse a level that is no share of an answer."""
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


# How is an answer written? How long it may be, how each token is drawn, and what ends it.


@dataclass(frozen=True)
class GenerateSettings:
    """How an answer is written; what a model's own `generation_config.json` recommends is not used.

    >>> GenerateSettings(temperature=0.7, stop=["Mary", "John"]).stop
    ('Mary', 'John')
    """

    max_new_tokens: int = option(40, "How many tokens are written at most.", least=1)
    temperature: float = option(
        0.0, "How freely tokens are drawn: 0 takes the likeliest, 1 draws as the model's probabilities say.", least=0
    )
    top_p: float = option(
        1.0, "Draw from the likeliest tokens that together have this probability, above 0 and up to 1.", most=1
    )
    top_k: int | None = option(None, "Draw from this many of the likeliest tokens. Default: from all.", least=1)
    seed: int = option(0, "Seed of the draws.", least=0)
    stop: tuple[str, ...] = option((), "End where this text is written; repeatable. Default: nowhere.", metavar="TEXT")

    def __post_init__(self) -> None:
        texts = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if not all(isinstance(text, str) and text for text in texts):
            raise KeyholeError(f"stop is a text or several, none of them empty, not {quoted(self.stop)}.")
        object.__setattr__(self, "stop", texts)
        require_choices(self)
        if not self.top_p > 0:
            raise KeyholeError(f"top_p is {self.top_p}, but a share of probability lies above 0 and up to 1.")
        if not self.temperature and (self.top_p, self.top_k) != (1.0, None):
            raise KeyholeError("top_p and top_k choose among tokens that are drawn: give a temperature above 0.")


class GenerateOptions(TypedDict, total=False):
    """The fields of `GenerateSettings`, for functions that take them as keywords."""

    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int | None
    seed: int
    stop: str | tuple[str, ...] | list[str]
