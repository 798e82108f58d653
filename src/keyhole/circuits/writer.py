"""Who wrote? The identity that the residual stream is split by, and that firings and circuits speak of."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["embedding", "head", "mlp", "bias", "mixer", "offset"]


@dataclass(frozen=True)
class Writer:
    """Whatever adds a vector to the residual stream at token `dest`; heads are split by the token they read."""

    kind: Kind
    layer: int
    head: int | None
    dest: int
    src: int  # equal to dest for all but heads
