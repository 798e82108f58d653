"""How does an MLP's write read? Its causes, one line each."""

from typing import TYPE_CHECKING

from keyhole.circuits.text import node_label
from keyhole.models.tokens.prompts import token_label

if TYPE_CHECKING:
    from keyhole.tracing.mlps.explain import MlpWrite


def mlp_text(write: "MlpWrite") -> str:
    """A write with its causes."""
    tokens = write.run.tokens
    lines = [
        f"mlp {write.layer} at {token_label(tokens, write.pos)} writes {write.value:+.3f} along this direction, "
        f"rebuilt to {write.error:.0e}"
    ]
    for cause in write.causes:
        who = "offset: with nothing else to read" if cause.writer is None else node_label(cause.writer, tokens)
        lines.append(f"  {cause.part:+.2f}  {who}")
    lines.append(
        f"  without {'it' if len(write.causes) == 1 else 'them'} "
        f"{write.left:+.2f} is left ({write.left_renormed:+.2f} with the norm's scale anew), alone "
        f"{write.kept:+.2f}; offset {write.offset:+.2f}"
    )
    if write.cancels:
        lines.append(f"  note: parts are {write.cancellation:.0f} times as large as their sum, and cancel: not stable")
    lines.append("  neurons " + "  ".join(f"{index} {share:+.2f}" for index, share in write.neurons))
    return "\n".join(lines)
