"""What is measured of a circuit beside tracing: pairs of heads; and what is said of circuits that suffice."""

from dataclasses import dataclass

from keyhole.brief import Head
from keyhole.settings.fields import option

LEVEL = 0.9  # of an answer, that a circuit which suffices keeps at least
PANEL = "Options of effects and of circuits that suffice"
SUFFICIENT = "Instead of tracing, search for a small circuit that carries the answer by itself."
SUFFICIENT_LEVEL = "With --sufficient: the least share of the answer that the circuit keeps, above 0 and up to 1."
SUFFICIENT_BOTH_SIGNS = "With --sufficient: also keep edges that hold the answer back."


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
