"""What can be chosen about the studies of a store? Records that the library and the command line read without torch.

The choices of faithfulness curves, which are more, are in `keyhole.studies.curves.settings`.
"""

from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from keyhole.settings.fields import option, require_choices
from keyhole.settings.tracing import TAU, Tau, check_tau

Granularity = Literal["heads", "edges", "channels"]
CutMode = Literal["exact", "local", "global"]
SEED = "Seed of everything that is drawn at random."
THRESHOLD = 0.1  # share of circuits; the published comparison of ACC's circuits used 0.2


@dataclass(frozen=True)
class SetSettings:
    """As which sets circuits are compared.

    >>> SetSettings(granularity="heads", role=True).side
    True
    """

    granularity: Granularity = option(
        "channels", "What circuits are compared by: their heads, their edges, or their edges with channels."
    )
    side: bool = option(True, "Tell dest, src and value edges apart, or do not.")
    role: bool = option(False, "Tell edges apart by the roles of their tokens, or do not.", names=("--role/--no-role",))
    weighted: bool = option(False, "Compare by influence, and not by presence alone.")

    def __post_init__(self) -> None:
        require_choices(self)


@dataclass(frozen=True)
class FamilySettings(SetSettings):
    """How families of circuits are looked for.

    >>> FamilySettings(most=5)
    Traceback (most recent call last):
    keyhole.errors.KeyholeError: most is 5, but should be at least 10.
    """

    k: int | None = option(None, "How many families. Default: as many as the circuits show.", least=2)
    most: int = option(10_000, "How many circuits are compared at most; of more, a sample.", least=10)
    seed: int = option(0, SEED)


class FamilyOptions(TypedDict, total=False):
    """The fields of `FamilySettings`, for functions that take them as keywords."""

    granularity: Granularity
    side: bool
    role: bool
    weighted: bool
    k: int | None
    most: int
    seed: int


@dataclass(frozen=True)
class CompareSettings:
    """How two sides are compared."""

    members: int = option(
        40,
        "How many prompts of each side are run; 0: only sets are compared.",
        least=0,
        names=("--prompts", "--members"),
    )
    threshold: float = option(
        THRESHOLD, "Share of circuits that must have a term for it to count, between 0 and 1.", least=0, most=1
    )
    mode: CutMode = option(
        "local",
        "What is computed anew after an edge is removed: scores (exact), one head (local), or everything that follows "
        "(global).",
    )
    draws: int = option(3, "How many random controls per prompt.", least=1)
    seed: int = option(0, SEED)

    def __post_init__(self) -> None:
        require_choices(self)


class CompareOptions(TypedDict, total=False):
    """The fields of `CompareSettings`, for functions that take them as keywords."""

    members: int
    threshold: float
    mode: CutMode
    draws: int
    seed: int


@dataclass(frozen=True)
class ShuffleSettings:
    """Against how many draws heads are compared: each head with other channels of its own."""

    draws: int = option(99, "How many draws of shuffled heads and of resampled prompts.", least=19)
    seed: int = option(0, SEED)

    def __post_init__(self) -> None:
        require_choices(self)


@dataclass(frozen=True)
class SinkSettings(ShuffleSettings):
    """How firings on the first token are studied.

    >>> SinkSettings(tau=0.5, draws=19).record()
    {'tau': 0.5, 'draws': 19, 'controls': 9, 'seed': 0}
    """

    prompts: int = option(24, "How many of the store's prompts; a third of them is held out.", least=6)
    tau: Tau = option("dynamic", TAU)
    controls: int = option(9, "How many other subspaces of each kind are removed as controls.", least=1)

    def __post_init__(self) -> None:
        if not callable(self.tau) and self.tau != "dynamic":
            check_tau(self.tau)
        super().__post_init__()

    def record(self) -> dict[str, Any]:
        """As a study keeps them."""
        plain: Any = "function" if callable(self.tau) else self.tau
        return {"tau": plain, "draws": self.draws, "controls": self.controls, "seed": self.seed}


class SinkOptions(TypedDict, total=False):
    """The fields of `SinkSettings`, for functions that take them as keywords."""

    prompts: int
    tau: Tau
    draws: int
    controls: int
    seed: int


@dataclass(frozen=True)
class SharedSettings(ShuffleSettings):
    """How heads are compared over a store's prompts. Of two tasks, prompts are dealt `2 draws + 1` times."""

    prompts: int = option(64, "How many of the store's prompts are run again for their signals.", least=1)


class SharedOptions(TypedDict, total=False):
    """The fields of `SharedSettings`, for functions that take them as keywords."""

    prompts: int
    draws: int
    seed: int


@dataclass(frozen=True)
class StabilitySettings:
    """Which circuits are traced again after a change, and as what they are compared."""

    prompts: int = option(32, "How many prompts, from all parts of the store.", least=2)
    roles: bool = option(False, "Tell terms apart by the roles of their tokens, too.")
    seed: int = option(0, SEED)

    def __post_init__(self) -> None:
        require_choices(self)


class StabilityOptions(TypedDict, total=False):
    """The fields of `StabilitySettings`, for functions that take them as keywords."""

    prompts: int
    roles: bool
    seed: int
