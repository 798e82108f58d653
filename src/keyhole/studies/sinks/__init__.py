"""Firings on the first token: which few signals drive them, who shares these, and what they do."""

from keyhole.studies.sinks.explore import sinks, study
from keyhole.studies.sinks.record import Removal, SinkHead, Sinks, SinkSide

__all__ = [
    "Removal",
    "SinkHead",
    "SinkSide",
    "Sinks",
    "sinks",
    "study",
]
