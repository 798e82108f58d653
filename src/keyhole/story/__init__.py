"""The story of a prompt: how its words became the answer, path by path.

tell(circuit)   the paths that carry the most influence, with the measured effect of each step
"""

from keyhole.story.story import Path, Step, Story, tell

__all__ = ["Path", "Step", "Story", "tell"]
