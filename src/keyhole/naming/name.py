"""What is a name? One sentence about dest and src, with what speaks for it; or none, which is an outcome of its own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from keyhole.naming.shown import Shown

NONE = "no valid interpretation"


@dataclass(frozen=True)
class Claim:
    """One part of a name, and how often it holds where the signal fires and where it does not."""

    text: str
    examples: float  # share of the examples of which it is true
    background: float | None  # of pairs of tokens at random; None: there were none
    hard: float | None  # of hard negatives; None: there were none
    log_odds: float  # of examples against all others, each count half a one more
    p: float  # Fisher's, one-sided, among those of which the claims before it are true
    corrected: float  # for the number of claims that were tried (Benjamini-Hochberg)


@dataclass(frozen=True)
class Name:
    """What an explainer says of a signal."""

    text: str | None  # None: no valid interpretation
    by: str  # which explainer: "statistics", "tokens alone", a model's name
    claims: tuple[Claim, ...] = ()

    def __str__(self) -> str:
        return NONE if self.text is None else self.text


Explainer = Callable[[Sequence[Shown], Sequence[Shown]], Name]  # examples, and background: where it does not fire
