"""Edits: take a cause away, and see what the model says then."""

from keyhole.edits.applying import edited
from keyhole.edits.changes import AttentionChange, Changes, TokenChange, changes, with_edits
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
    "SignalEdit",
    "Source",
    "TokenChange",
    "WriteEdit",
    "changes",
    "edited",
    "with_edits",
]
