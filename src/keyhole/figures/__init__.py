"""What does a result look like on paper? One function per figure: plain tensors in, a matplotlib Figure out."""

from keyhole.figures.attention import attention_figure, head_figure
from keyhole.figures.style import save

__all__ = ["attention_figure", "head_figure", "save"]
