"""How does a firing read? Its signals, one line each."""

from typing import TYPE_CHECKING

from keyhole.circuits.text import channels_label, node_label
from keyhole.models.prompts import token_label
from keyhole.qk.omega import omega

if TYPE_CHECKING:
    from keyhole.tracing.firing import Firing


def firing_text(firing: "Firing") -> str:
    """A firing with its signals, one line each."""
    tokens = firing.run.tokens
    lines = [
        f"head {firing.layer}.{firing.head}  {token_label(tokens, firing.dest)} <- {token_label(tokens, firing.src)}  "
        f"attention {firing.attention:.3f}  tau {firing.tau:.3f}  visible keys {firing.visible}"
    ]
    if not firing.sides:
        lines.append("  not searched: the weight is below tau")
    elif not int(omega(firing.run.model, firing.layer).rank[firing.head]):
        lines.append("  no channel of this head can be told from rounding: there is nothing to remove")
    for side in firing.sides:
        state = "" if side.reached else ", not below tau: no candidate with a positive attribution is left"
        lines.append(f"  {side.side} side: {firing.attention:.3f} -> {side.after:.3f} without these signals{state}")
        for s in side.signals:
            lines.append(
                f"    {s.weight:+.3f}  alone {s.alone:+.3f}  ig {s.ig:+.3f}  {node_label(s.writer, tokens)}"
                f"  channels {channels_label(s.channels)}"
            )
        hidden = len({r.writer for r in side.removed}) - len(side.signals)
        if hidden:
            lines.append(f"    and {hidden} writes from tokens after the source, removed but no causes of it")
    return "\n".join(lines)
