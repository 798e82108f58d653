"""Which features do heads match on, when nobody says what to look for? Attention as the contrast, then ICA.

    survey(model, prompts)               every head: on how many directions does it match, and do they hold?
    head_features(model, prompts, head)  one head: its features, ranked by held-out attention, with telling token pairs
    discover(samples)                    the same on plain tensors

Limits: Gaussian features can be found only as a subspace, not one by one; more features than dimensions
(superposition) come out as mixtures. Both are warned of.
"""

from keyhole.discover.attended import View
from keyhole.discover.fit import Samples, discover, samples_of
from keyhole.discover.found import Discovery, MatchedFeature
from keyhole.discover.survey import Survey, survey
from keyhole.discover.telling import HeadFeatures, head_features

__all__ = [
    "Discovery",
    "HeadFeatures",
    "MatchedFeature",
    "Samples",
    "Survey",
    "View",
    "discover",
    "head_features",
    "samples_of",
    "survey",
]
