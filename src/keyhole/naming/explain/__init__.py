"""What does a signal mean, in one sentence? Explainers get examples and background, without the texts of the tests."""

from keyhole.naming.explain.over_represented import statistics, tokens_alone
from keyhole.naming.explain.sentences import Lens, lens

__all__ = ["Lens", "lens", "statistics", "tokens_alone"]
