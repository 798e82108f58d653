"""Which features do heads match on, when nobody says what to look for? Attention as the contrast, then ICA.

    survey(model, prompts)               every head: on how many directions does it match, and do they hold?
    head_features(model, prompts, head)  one head: its features, ranked by held-out attention, with telling token pairs;
                                         those that depend on each other are one feature of several dimensions
    discover(samples)                    the same on plain tensors

Limits: Gaussian features can be found only as a subspace, not one by one; more features than dimensions
(superposition) come out as mixtures. Both are warned of.
"""

from keyhole.features.discovery.all_heads import Survey, survey
from keyhole.features.discovery.discovery import discover
from keyhole.features.discovery.features import Discovery, MatchedFeature, MatchedSubspace
from keyhole.features.discovery.keys import Samples, View, samples_of
from keyhole.features.discovery.one_head import HeadFeatures, head_features

__all__ = [
    "Discovery",
    "HeadFeatures",
    "MatchedFeature",
    "MatchedSubspace",
    "Samples",
    "Survey",
    "View",
    "discover",
    "head_features",
    "samples_of",
    "survey",
]
