"""Figures for papers: functions from a record or plain tensors to a matplotlib Figure."""

from keyhole._moved import names_of
from keyhole.figures.attention import attention_figure, head_figure
from keyhole.figures.style import save

__all__ = ["attention_figure", "head_figure", "save"]

__getattr__ = names_of("keyhole.figures")
