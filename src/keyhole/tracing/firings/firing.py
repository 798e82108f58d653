"""What is the answer to why a head attends here? A firing: its weight, its threshold, and its signals, side by side."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.writer import Removal, SideName, Signal
from keyhole.errors import KeyholeError
from keyhole.models.tokens.prompts import token_label
from keyhole.qk.firings import check_tau, dynamic_tau

if TYPE_CHECKING:
    from keyhole.models.run import Run
    from keyhole.tracing.firings.signals import Flavour
    from keyhole.web.notebook import Widget

Tau = Literal["dynamic"] | float | Callable[[int], float]
Why = Literal["here", "not"]  # what is explained: that a head attends here, or that it does not


@dataclass(frozen=True)
class Side:
    """One side of a firing: its signals, and everything that was removed to find them.

    A src-side candidate acts at all keys; one that was moved from a token after src is removed but is no signal.
    """

    side: SideName
    signals: tuple[Signal, ...]
    removed: tuple[Removal, ...]
    after: float  # the attention weight once all is removed
    reached: bool  # is that below tau? Where a head does not attend: is it above?


@dataclass(frozen=True)
class Firing:
    """One (head, dest, src) with its attention weight and its causes."""

    layer: int  # of the head
    head: int  # in its layer
    dest: int  # the token that attends
    src: int  # the token attended to
    attention: float  # the weight after the softmax
    tau: float  # the weight below which it counts as gone
    visible: int  # number of visible keys
    sides: tuple[Side, ...]  # dest and src; empty when the weight is below tau (of "not": is not)
    run: "Run" = field(repr=False, compare=False)  # that it is of
    why: Why = "here"  # what is explained: that the head attends here, or that it does not

    def side(self, name: SideName) -> Side:
        """The dest or src side."""
        for side in self.sides:
            if side.side == name:
                return side
        raise KeyholeError(f"firing {self.layer}.{self.head} was not searched: its weight is below tau.")

    def vector(self, signal: Signal, *, flavour: "Flavour" = "rotated") -> Float[Tensor, "d_model"]:
        """A signal in residual space. See `keyhole.tracing.firings.signals`."""
        from keyhole.tracing.firings.signals import signal_vector

        return signal_vector(self, signal, flavour=flavour)

    def record(self) -> dict[str, Any]:
        """As plain data."""
        told = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "run"}
        return {**told, "sides": [asdict(side) for side in self.sides], "tokens": list(self.run.tokens)}

    def widget(self) -> "Widget":
        """The firing in a notebook, with buttons that remove its signals and measure. See `keyhole.web.notebook`."""
        from keyhole.web.notebook import firing_widget

        return firing_widget(self)

    def __str__(self) -> str:
        from keyhole.tracing.firings.text import firing_text

        return firing_text(self)

    def __repr__(self) -> str:
        dest, src = (token_label(self.run.tokens, t) for t in (self.dest, self.src))
        found = sum(len(side.signals) for side in self.sides)
        return (
            f"<Firing of head {self.layer}.{self.head}, {dest} <- {src}: attention {self.attention:.3f}, tau "
            f"{self.tau:.3f}, {found} signals>"
        )

    def _repr_html_(self) -> str:
        from keyhole.web.reprs import firing_html

        return firing_html(self)


def threshold(tau: Tau, dest: int, visible: int) -> float:
    """The weight below which a firing counts as gone.

    >>> threshold("dynamic", 9, 10), threshold(0.3, 9, 10), threshold(lambda dest: 1 / (dest + 1), 9, 10)
    (0.25, 0.3, 0.1)
    """
    if tau == "dynamic":
        return dynamic_tau(visible)
    return check_tau(tau(dest) if callable(tau) else tau)
