"""Firings on the first token: which few signals drive them, who shares these, and what they do."""

from keyhole.sink.record import Removal, SinkHead, Sinks, SinkSide
from keyhole.sink.sinks import sinks, study

__all__ = ["Removal", "SinkHead", "SinkSide", "Sinks", "sinks", "study"]
