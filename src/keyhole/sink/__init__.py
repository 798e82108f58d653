"""Firings on the first token: which few signals drive them, who shares these, and what they do."""

from keyhole.sink.explore import sinks, study
from keyhole.sink.record import Removal, SinkHead, Sinks, SinkSide

__all__ = ["Removal", "SinkHead", "SinkSide", "Sinks", "sinks", "study"]
