"""In which coordinates are queries and keys compared? All frames are turned by orthogonal maps from the model's own.

    post_rope  q and k as the scores use them (the authors' choice)
    pre_rope   each turned back by its own position: what was said, not where
    relative   both turned back by the query's position: scores stay, and queries at different positions compare

With x' = O^T x in the frame, an edit d' there is the edit O d' of the real vector.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from keyhole.errors import KeyholeError
from keyhole.models.architecture.rotary import Pairing, Rotary, turn

Frame = Literal["post_rope", "pre_rope", "relative"]
FRAMES: tuple[Frame, ...] = ("post_rope", "pre_rope", "relative")


@dataclass(frozen=True)
class Turns:
    """One rotation O per site."""

    cos: Float[Tensor, "*sites freq"]
    sin: Float[Tensor, "*sites freq"]
    pairing: Pairing

    def into(self, x: Float[Tensor, "*sites heads d_head"]) -> Float[Tensor, "*sites heads d_head"]:
        """O^T x: from the vectors that the scores use to the frame."""
        return turn(x, self.cos[..., None, :], -self.sin[..., None, :], self.pairing)

    def back(self, x: Float[Tensor, "*sites heads d_head"]) -> Float[Tensor, "*sites heads d_head"]:
        """O x: from the frame to the vectors that the scores use."""
        return turn(x, self.cos[..., None, :], self.sin[..., None, :], self.pairing)

    def of(self, chosen: Tensor | tuple[Tensor, ...]) -> "Turns":
        """Some of the sites."""
        return Turns(self.cos[chosen], self.sin[chosen], self.pairing)


def check_frame(frame: str) -> None:
    """Refuse a frame that does not exist."""
    if frame not in FRAMES:
        raise KeyholeError(f"there is no frame {frame!r}: choose one of {', '.join(FRAMES)}.")


def turns_at(rotary: Rotary, positions: Int[Tensor, "*sites"]) -> Turns:
    """The rotations of these positions alone: YaRN's tables also stretch by a factor, which a frame must not."""
    cos, sin = rotary.cos[positions].double(), rotary.sin[positions].double()  # a bfloat16 table is no rotation
    length = torch.sqrt(cos**2 + sin**2)
    return Turns(cos / length, sin / length, rotary.pairing)
