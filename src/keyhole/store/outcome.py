"""What became of one prompt of many? Its circuit, or why there is none, and how well the model knew the answer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

from keyhole.circuits.circuit import Circuit
from keyhole.errors import KeyholeError, require_choice
from keyhole.tasks.example import Example

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Status = Literal["circuit", "headless", "empty", "failed", "skipped"]
STATUSES: tuple[Status, ...] = get_args(Status)


@dataclass(frozen=True)
class Outcome:
    """One prompt of a run over many.

    The model's own answer is None where it was never asked: a prompt that failed before it ran.
    """

    index: int  # in the whole run
    example: Example  # the prompt and its answers
    status: Status  # headless: a circuit without heads; empty: nothing to trace; skipped: the model was wrong
    circuit: Circuit | None = None  # None: there is none
    error: str | None = None  # why there is no circuit
    correct: bool | None = None  # whether the likeliest token is a right answer
    predicted: str | None = None  # the likeliest token
    probability: float | None = None  # of the right answers together
    difference: float | None = None  # mean logit, right answers less wrong ones
    # vectors by edge, if the store keeps them (`keyhole.store.signals`); not read back with the rest
    signals: "Mapping[int, npt.NDArray[np.float32]] | None" = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        require_choice("status", self.status, Status)
        if (self.circuit is not None) != (self.status in ("circuit", "headless")):
            told = "no circuit" if self.circuit is None else "a circuit"
            raise KeyholeError(f'prompt {self.index} cannot have status "{self.status}" and {told}.')
        if self.circuit is not None and bool(self.circuit.heads) != (self.status == "circuit"):
            raise KeyholeError(f'prompt {self.index}: a circuit is "headless" if it has no heads, and only then.')
        if self.status == "failed" and not self.error:
            raise KeyholeError(f"prompt {self.index} failed: say why, in `error`.")
