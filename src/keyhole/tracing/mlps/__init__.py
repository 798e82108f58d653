"""Why did an MLP write this? An exact split of what it writes along a direction over the writers of its input."""

from keyhole.tracing.mlps.directions import toward
from keyhole.tracing.mlps.explain import Cause, MlpWrite, explain_mlp

__all__ = ["Cause", "MlpWrite", "explain_mlp", "toward"]
