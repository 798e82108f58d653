"""What does a signal mean, in one sentence? Explainers see examples and background, and nothing of what tests them."""

from keyhole.naming.explain.candidates import Lens, lens
from keyhole.naming.explain.over_represented import statistics, tokens_alone

__all__ = ["Lens", "lens", "statistics", "tokens_alone"]
