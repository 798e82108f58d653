"""What can be named? Anything that a head compares: a direction of its queries with a direction of its keys.

At (dest, src) it is worth the product of two values, read from the rotated query and key as the scores use them:

    ask_d = query . q_d + offset        offer_s = key . k_s + offset        value_ds = ask_d offer_s

Both values carry a sign: two negative ones are no match, unless that is asked for. Signals of circuits, channels of a
head, features of contrasts and discovered ones all come to this.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from keyhole.brief import brief
from keyhole.models.heads import Head

SubjectKind = Literal["signal", "channel", "contrast", "discovered", "random"]


@dataclass(frozen=True, eq=False)
class Subject:
    """Something of one head that may have a name."""

    __repr__ = brief

    id: str  # unique among those named together, and the same in every run: "9.6 dest 3 <- 7.9"
    kind: SubjectKind
    head: Head
    query: Float[Tensor, "d_head"] = field(repr=False)
    key: Float[Tensor, "d_head"] = field(repr=False)
    query_offset: float = 0.0
    key_offset: float = 0.0
    about: Mapping[str, str] = field(default_factory=dict)  # where it is from, in words: side, channels, writer
