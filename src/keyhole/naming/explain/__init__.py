"""What does a signal mean, in one sentence? Explainers see examples and background, and nothing of what tests them."""

from keyhole.naming.explain.commonest import tokens_alone
from keyhole.naming.explain.nearest_tokens import Lens, lens
from keyhole.naming.explain.over_represented import statistics

__all__ = ["Lens", "lens", "statistics", "tokens_alone"]
