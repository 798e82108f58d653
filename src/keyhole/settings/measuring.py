"""What is measured of a circuit beside tracing: pairs of heads; and what is said of circuits that suffice."""

from dataclasses import dataclass

from keyhole.brief import Head
from keyhole.settings.fields import option

LEVEL = 0.9  # of an answer, that a circuit which suffices keeps at least
PANEL = "Options of effects and of circuits that suffice"
SUFFICIENT = "Instead of tracing, search for a small circuit that carries the answer by itself."
SUFFICIENT_LEVEL = "Share of the answer that --sufficient keeps at least."
SUFFICIENT_BOTH_SIGNS = "With --sufficient: also edges that hold the answer back."


@dataclass(frozen=True)
class PairSettings:
    """How many pairs of heads are removed."""

    first: int = option(8, "How many of the circuit's heads are removed first, by influence.", least=1)
    named: tuple[Head, ...] = option((), "This head instead, such as 3.6; repeatable.", names=("--head",))
    draws: int = option(1000, "Random pairs to compare with; all there are, if these are fewer.", least=20)
    seed: int = option(0, "Of all that is drawn.")
