"""The story of a prompt: which words decide its answer, and by which paths they reach it.

tell(circuit)   words by measured effect, then paths with influence and effect
"""

from keyhole.story.record import Path, Step, Story, Word
from keyhole.story.story import tell

__all__ = ["Path", "Step", "Story", "Word", "tell"]
