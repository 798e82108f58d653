"""What came of explaining a firing? In columns for many, as an object for one, and how that reads.

What is the answer to why a head attends here? A firing: its weight, its threshold, and its signals, side by side.
"""

import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from keyhole.circuits.records import Removal, SideName, Signal, Writer
from keyhole.circuits.text import channels_label, node_label
from keyhole.errors import KeyholeError
from keyhole.models.tokens import token_label
from keyhole.qk.firings import check_tau, dynamic_tau
from keyhole.qk.omega import omega
from keyhole.settings.tracing import Tau as Tau
from keyhole.settings.tracing import Why as Why
from keyhole.tracing.candidates import Sites
from keyhole.tracing.search import Removed
from keyhole.tracing.upstream import Writes

if TYPE_CHECKING:
    from keyhole.claims.making import Prompts
    from keyhole.claims.records import Matches
    from keyhole.edits.making import Scope
    from keyhole.edits.records import Edit
    from keyhole.models.run import Run
    from keyhole.tasks.example import Example
    from keyhole.tracing.why import Flavour
    from keyhole.web.notebook import Widget


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
    sides: tuple[Side, ...]  # dest and src; empty when the weight is below tau (of why_not: is not)
    run: "Run" = field(repr=False, compare=False)  # that it is of
    why_not: bool = False  # is it explained why the head does not attend here?

    def side(self, name: SideName) -> Side:
        """The dest or src side.

        Args:
            name: "dest" or "src".

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> run.explain((1, 6), src="Mary").side("src").side
        'src'
        """
        for side in self.sides:
            if side.side == name:
                return side
        raise KeyholeError(f"firing {self.layer}.{self.head} was not searched: its weight is below tau.")

    def vector(self, signal: Signal, *, flavour: "Flavour" = "rotated") -> Float[Tensor, "d_model"]:
        """A signal in residual space, within its channels.

        Args:
            signal: One of its signals.
            flavour: "rotated": as the head reads it, rotary positions included. "raw": as it was written.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> firing = run.explain((1, 6), src="Mary")
        >>> firing.vector(firing.side("src").signals[0]).shape
        torch.Size([128])
        """
        from keyhole.tracing.why import signal_vector

        return signal_vector(self, signal, flavour=flavour)

    def edits(self, *, factor: float = 0.0, scope: "Scope" = "here") -> "tuple[Edit, ...]":
        """All its signals as edits, for `run.with_edits` and `model.generate(prompt, edits=...)`.

        Args:
            factor: 0 removes them, 2 doubles them.
            scope: "here" at its own tokens, "on" from its dest on, "everywhere" at all tokens.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> edits = run.explain((1, 6), src="Mary").edits()
        >>> run.with_edits(edits).edits == edits
        True
        """
        from keyhole.edits.making import firing_edits

        return firing_edits(self, factor=factor, scope=scope)

    def claim(self, example: "Example", *, prompts: "Prompts" = None) -> "Matches":
        """What it says, as a claim about a task: the channels of its signals are why the head looks there.

        Args:
            example: Its prompt, whose roles name its tokens in others.
            prompts: Those that the claim is tested on, or a task. Default: the example's own task.

        >>> import keyhole
        >>> from keyhole.tasks import ioi
        >>> example = ioi(1, 2, wordings=[0], order="ABBA")[0]
        >>> run = keyhole.load().run(example.text)
        >>> print(run.explain(head=(1, 6), dest=-1, src=example.position(run, "IO")).claim(example).says)
        channels 4,5,10 of head 1.6 match IO, from END
        """
        from keyhole.claims.making import firing_claim

        return firing_claim(self, example, prompts=prompts)

    def record(self) -> dict[str, Any]:
        """As plain data.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> run.explain((1, 6), src="Mary").record()["attention"] > 0.4
        True
        """
        numbers = ("layer", "head", "dest", "src", "attention", "tau", "visible")
        return {
            **{name: getattr(self, name) for name in numbers},
            "sides": [asdict(side) for side in self.sides],
            "why": "not" if self.why_not else "here",
            "tokens": list(self.run.tokens),
        }

    @property
    def why(self) -> Why:
        """The old name of `why_not`."""
        warnings.warn(
            "why is called why_not now; the old name goes with the next release.", FutureWarning, stacklevel=2
        )
        return "not" if self.why_not else "here"

    def widget(self) -> "Widget":
        """The firing in a notebook, with buttons that remove its signals and measure. See `keyhole.web.notebook`."""
        from keyhole.web.notebook import firing_widget

        return firing_widget(self)

    def __str__(self) -> str:

        return firing_text(self)

    def __repr__(self) -> str:
        dest, src = (token_label(self.run.tokens, t) for t in (self.dest, self.src))
        signals = sum(len(side.signals) for side in self.sides)
        return (
            f"<Firing of head {self.layer}.{self.head}, {dest} <- {src}: attention {self.attention:.3f}, tau "
            f"{self.tau:.3f}, {signals} signals>"
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


# What came of explaining a layer's firings? Columns for all of them; Firing objects for those that are looked at.


@dataclass(frozen=True)
class Signals:
    """One side of a layer's firings: what each search removed, gathered by writer in the order of first removal.

    A src-side candidate acts at all keys; one that was moved from a token after src is removed but is no signal.
    """

    side: SideName
    removed: Removed
    firing: Int[np.ndarray, "signal"]
    component: Int[np.ndarray, "signal"]
    weight: Float[np.ndarray, "signal"]
    ig: Float[np.ndarray, "signal"]
    alone: Float[np.ndarray, "signal"]
    channels: Int[np.ndarray, "removal"]  # of all signals, one after another
    start: Int[np.ndarray, "signal"]  # where those of a signal begin
    size: Int[np.ndarray, "signal"]

    @cached_property
    def rows(self) -> list[int]:
        """Where each firing's removals begin, and where the last one's end."""
        return _starts(self.removed.firing, len(self.removed.reached))

    @cached_property
    def signal_rows(self) -> list[int]:
        """The same for its signals."""
        return _starts(self.firing, len(self.removed.reached))

    @cached_property
    def removals(self) -> tuple[list[int], list[int], list[float], list[float]]:
        """Component, channel, attribution and weight after each removal, as plain numbers."""
        r = self.removed
        return r.component.tolist(), r.channel.tolist(), r.ig.tolist(), r.after.tolist()

    @cached_property
    def signals(self) -> list[tuple[int, tuple[int, ...], tuple[float, float, float]]]:
        """Component, channels in the order of their removal, and (weight, attribution, weight alone) of each signal."""
        channels, ends = self.channels.tolist(), (self.start + self.size).tolist()
        named = [tuple(channels[a:b]) for a, b in zip(self.start.tolist(), ends, strict=True)]
        numbers = zip(self.weight.tolist(), self.ig.tolist(), self.alone.tolist(), strict=True)
        return list(zip(self.component.tolist(), named, numbers, strict=True))


@dataclass(frozen=True)
class Explained:
    """Firings of one layer, explained together; those below tau (of why_not: above) have no sides."""

    writes: Writes
    layer: int
    why_not: bool
    run: Int[np.ndarray, "firing"]
    head: Int[np.ndarray, "firing"]
    dest: Int[np.ndarray, "firing"]
    src: Int[np.ndarray, "firing"]
    attention: Float[np.ndarray, "firing"]
    tau: Float[np.ndarray, "firing"]
    visible: Int[np.ndarray, "firing"]
    fires: Bool[np.ndarray, "firing"]
    sides: tuple[Signals, Signals]  # dest and src
    _firings: dict[int, Firing] = field(default_factory=dict, repr=False, compare=False)
    _writers: dict[tuple[int, int], Writer] = field(default_factory=dict, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.run)

    @property
    def sites(self) -> Sites:
        """Where they are, as tensors."""
        columns = (self.run, self.head, self.dest, self.src)
        return Sites(*(torch.from_numpy(column).to(self.writes.device) for column in columns))

    def places(self) -> list[tuple[int, int, int, int]]:
        """(run, head, dest, src) of each."""
        return list(zip(*(column.tolist() for column in (self.run, self.head, self.dest, self.src)), strict=True))

    def firings(self) -> Iterator[Firing]:
        """All of them, in order."""
        return (self.firing(i) for i in range(len(self)))

    def firing(self, i: int) -> Firing:
        """One of them."""
        if i not in self._firings:
            self._firings[i] = self._firing(i)
        return self._firings[i]

    def _firing(self, i: int) -> Firing:
        sides = tuple(self._side(side, i) for side in self.sides) if self.fires[i] else ()
        place = (self.layer, int(self.head[i]), int(self.dest[i]), int(self.src[i]))
        numbers = (float(self.attention[i]), float(self.tau[i]), int(self.visible[i]))
        return Firing(*place, *numbers, sides, self.writes.runs[self.run[i]], self.why_not)

    def heads_behind(self) -> Int[np.ndarray, "signal 5"]:
        """Every head among the signals: (run, layer, head, dest, src)."""
        heads = []
        for signals in self.sides:
            at = np.nonzero(signals.component < self.writes.moved_below(self.layer))[0]
            layer, head, source = self.writes.moved_by(signals.component[at])
            token = (self.dest if signals.side == "dest" else self.src)[signals.firing[at]]
            layers = np.array(self.writes.attention_layers)[layer]
            heads.append(np.stack([self.run[signals.firing[at]], layers, head, token, source], axis=1))
        return np.concatenate(heads)

    def _side(self, columns: Signals, i: int) -> Side:
        head, token = int(self.head[i]), int((self.dest if columns.side == "dest" else self.src)[i])
        rows = slice(columns.rows[i], columns.rows[i + 1])
        components, channels, ig, after = columns.removals
        writers = {c: self._writer(c, head, token) for c in set(components[rows])}
        gone = [writers[c] for c in components[rows]]
        removed = tuple(map(Removal, gone, channels[rows], ig[rows], after[rows]))
        signals_of = columns.signals[columns.signal_rows[i] : columns.signal_rows[i + 1]]
        signals = tuple(Signal(writers[c], columns.side, named, *numbers) for c, named, numbers in signals_of)
        last = removed[-1].after if removed else float(self.attention[i])
        return Side(columns.side, signals, removed, last, bool(columns.removed.reached[i]))

    def _writer(self, component: int, head: int, token: int) -> Writer:
        """Who a component is, as it is seen at a token; made once for all firings that meet it there."""
        known = self._writers.get((component, token))
        if known is None:
            known = self.writes.writer(component, self.layer, head, token)
            if known.kind != "offset":  # which is each head's own
                self._writers[component, token] = known
        return known


def gather(
    side: SideName,
    removed: Removed,
    before: Float[np.ndarray, "firing"],
    *,
    token: Int[np.ndarray, "firing"],
    writes: Writes,
    layer: int,
    sign: float,
) -> Signals:
    """Removals of one side by writer; a write moved from after the token cannot be its cause and is left out."""
    firing, component = removed.firing, removed.component
    starts = np.ones(len(firing), dtype=bool)
    starts[1:] = firing[1:] != firing[:-1]
    weight = np.where(starts, before[firing], np.roll(removed.after, 1))  # before this removal
    _, first, inverse = np.unique(firing * (1 << 32) + component, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))  # in the order of first removal, not of numbers
    whose, first = rank[inverse], np.sort(first)
    size = np.bincount(whose, minlength=len(first))
    moved = component[first] < writes.moved_below(layer)
    possible = ~(moved & (component[first] % writes.n > token[firing[first]]))
    return Signals(
        side=side,
        removed=removed,
        firing=firing[first][possible],
        component=component[first][possible],
        weight=_added(whose, sign * (weight - removed.after), len(first))[possible],
        ig=_added(whose, removed.ig, len(first))[possible],
        alone=(sign * (before[firing[first]] - removed.alone[first]))[possible],
        channels=removed.channel[np.argsort(whose, kind="stable")],
        start=(np.cumsum(size) - size)[possible],
        size=size[possible],
    )


def _added(
    whose: Int[np.ndarray, "removal"], values: Float[np.ndarray, "removal"], n: int
) -> Float[np.ndarray, "signal"]:
    """The values of each signal's removals together."""
    return np.bincount(whose, values, minlength=n).astype(np.float64)  # of nothing at all numpy counts whole numbers


def _starts(firing: Int[np.ndarray, "row"], n: int) -> list[int]:
    """Where the rows of each of n firings begin, and where the last one's end."""
    starts: list[int] = np.searchsorted(firing, np.arange(n + 1)).tolist()
    return starts


# How does a firing read? Its signals, one line each.

_SHOWN = 12  # of the many signals that may keep a head from attending


def firing_text(firing: "Firing") -> str:
    """A firing with its signals, one line each."""
    tokens = firing.run.tokens
    lines = [
        f"head {firing.layer}.{firing.head}  {token_label(tokens, firing.dest)} <- {token_label(tokens, firing.src)}  "
        f"attention {firing.attention:.3f}  tau {firing.tau:.3f}  visible keys {firing.visible}"
    ]
    here = not firing.why_not
    if not firing.sides:
        lines.append("  not searched: it is below tau (--tau 0.1 searches it; why_not, --why-not: what keeps it there)")
    elif not int(omega(firing.run.model, firing.layer).rank[firing.head]):
        lines.append("  no channel of this head can be told from rounding: there is nothing to remove")
    for side in firing.sides:
        passed, sign = ("below", "positive") if here else ("above", "negative")
        state = "" if side.reached else f", not {passed} tau: no candidate with a {sign} attribution is left"
        removed = "these signals, removed in this order" if here else "these signals, which keep it from attending here"
        lines.append(f"  {side.side} side: {firing.attention:.3f} -> {side.after:.3f} without {removed}{state}")
        shown = side.signals if here else sorted(side.signals, key=lambda s: -s.weight)[:_SHOWN]
        for s in shown:
            lines.append(
                f"    {s.weight:+.3f}  alone {s.alone:+.3f}  ig {s.ig:+.3f}  {node_label(s.writer, tokens)}"
                f"  channels {channels_label(s.channels)}"
            )
        if len(shown) < len(side.signals):
            lines.append(f"    and {len(side.signals) - len(shown)} weaker ones")
        hidden = len({r.writer for r in side.removed}) - len(side.signals)
        if hidden:
            lines.append(f"    and {hidden} writes from tokens after the source, removed but no causes of it")
    return "\n".join(lines)
