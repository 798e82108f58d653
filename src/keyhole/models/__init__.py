"""Models: where they come from, which architectures there are, and what happens in one forward pass.

`keyhole.load` makes a Model; `model.run(prompt)` a Run, with an AttentionRun for every layer that attends.
"""

from keyhole.models.families import Family, family_of
from keyhole.models.model import Model, make_model
from keyhole.models.run import AttentionRun, LayerRun, Run
from keyhole.models.vocabulary import tokens_like
from keyhole.models.weights import Dims, LayerWeights

__all__ = [
    "AttentionRun",
    "Dims",
    "Family",
    "LayerRun",
    "LayerWeights",
    "Model",
    "Run",
    "family_of",
    "make_model",
    "tokens_like",
]
