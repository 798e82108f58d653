"""Why did an MLP write this? An exact split of what it writes along a direction over the writers of its input."""

from keyhole.tracing.mlps.causes import Cause
from keyhole.tracing.mlps.directions import toward
from keyhole.tracing.mlps.explain import MlpWrite, explain_mlp
from keyhole.tracing.mlps.flow import Through

__all__ = ["Cause", "MlpWrite", "Through", "explain_mlp", "toward"]
