"""What can be chosen about the test of a claim? How many controls, how sure, and which figures a claim must reach."""

from dataclasses import dataclass
from typing import TypedDict

from keyhole.errors import KeyholeError
from keyhole.settings.fields import option, require_choices


@dataclass(frozen=True)
class ClaimSettings:
    """What every test of a claim is held to.

    >>> ClaimSettings(draws=19).confidence
    0.95
    """

    draws: int = option(39, "How many random controls a claim is compared with.", least=19)
    reached: float = option(
        0.05, "Share of the random controls that may do as much as what is claimed.", least=0, most=0.25
    )
    confidence: float = option(0.95, "Confidence of the intervals over prompts.", most=0.999)
    least: float = option(
        0.1, "Least effect that counts: a share of the answer, or of an attention weight.", least=0.01, most=1
    )
    prompts: int = option(12, "Least number of prompts that the model answers rightly.", least=6)
    others: int = option(
        16, "How many other tokens of a prompt are tried: those that the head attends to most.", least=1
    )
    damage: float = option(
        0.25, "Most damage that the removal, made at all tokens, does to unrelated text: KL divergence, nats.", least=0
    )
    texts: int = option(16, "How many unrelated texts are made where a claim gives none.", least=4)
    seed: int = option(0, "Seed of everything that is drawn at random.", least=0)

    def __post_init__(self) -> None:
        require_choices(self)
        if not self.confidence >= 0.5:
            raise KeyholeError(f"confidence is {self.confidence}, but should be between 0.5 and 0.999.")


class ClaimOptions(TypedDict, total=False):
    """The fields of `ClaimSettings`, for functions that take them as keywords."""

    draws: int
    reached: float
    confidence: float
    least: float
    prompts: int
    others: int
    damage: float
    texts: int
    seed: int
