"""How does a firing read? Its signals, one line each."""

from typing import TYPE_CHECKING

from keyhole.circuits.text import channels_label, node_label
from keyhole.models.tokens.prompts import token_label
from keyhole.qk.omega import omega

if TYPE_CHECKING:
    from keyhole.tracing.firings.firing import Firing

_SHOWN = 12  # of the many signals that may keep a head from attending


def firing_text(firing: "Firing") -> str:
    """A firing with its signals, one line each."""
    tokens = firing.run.tokens
    lines = [
        f"head {firing.layer}.{firing.head}  {token_label(tokens, firing.dest)} <- {token_label(tokens, firing.src)}  "
        f"attention {firing.attention:.3f}  tau {firing.tau:.3f}  visible keys {firing.visible}"
    ]
    here = firing.why == "here"
    if not firing.sides:
        lines.append(
            '  not searched: it is below tau (--tau 0.1 searches it; why="not", --why-not: what keeps it there)'
        )
    elif not int(omega(firing.run.model, firing.layer).rank[firing.head]):
        lines.append("  no channel of this head can be told from rounding: there is nothing to remove")
    for side in firing.sides:
        passed, sign = ("below", "positive") if here else ("above", "negative")
        state = "" if side.reached else f", not {passed} tau: no candidate with a {sign} attribution is left"
        what = "these signals, removed in this order" if here else "these signals, which keep it from attending here"
        lines.append(f"  {side.side} side: {firing.attention:.3f} -> {side.after:.3f} without {what}{state}")
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
