"""Edits: take a cause away, or make it stronger, and see what the model says then.

edge.edit(factor=0)              what was traced, as an edit (also circuit.edit(node), firing.edits(), feature.edit())
ChannelEdit(head=..., ...)       one's own: channels, signals, features, constants on scores, whole writes, MLPs' causes
run.with_edits(edits)            the same prompt with them; changes(run, other): predicted and measured
model.generate(p, edits=edits)   the answer with them; keyhole.generation.beside: side by side, with controls
with model.edited(edits):        any code that calls the model
load_edits, save_edits           as a JSON file; side_effects: what they do to other text
"""

from keyhole._exports import keep_names
from keyhole.edits.applying import edited
from keyhole.edits.changes import AttentionChange, Changes, TokenChange, changes, with_edits
from keyhole.edits.controls import SideEffects, random_channels, random_heads, side_effects, with_factor
from keyhole.edits.files import load_edits, save_edits
from keyhole.edits.records import (
    At,
    BiasEdit,
    CauseEdit,
    ChannelEdit,
    Edit,
    FeatureEdit,
    SignalEdit,
    Source,
    WriteEdit,
)

__all__ = [
    "At",
    "AttentionChange",
    "BiasEdit",
    "CauseEdit",
    "Changes",
    "ChannelEdit",
    "Edit",
    "FeatureEdit",
    "SideEffects",
    "SignalEdit",
    "Source",
    "TokenChange",
    "WriteEdit",
    "changes",
    "edited",
    "load_edits",
    "random_channels",
    "random_heads",
    "save_edits",
    "side_effects",
    "with_edits",
    "with_factor",
]

keep_names(__name__)
