"""What does a signal mean, in one sentence? Explainers see examples and background, and nothing of what tests them."""

from keyhole.naming.explain.lens import Lens, lens
from keyhole.naming.explain.statistics import statistics
from keyhole.naming.explain.tokens_alone import tokens_alone

__all__ = ["Lens", "lens", "statistics", "tokens_alone"]
