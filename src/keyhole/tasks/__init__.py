"""Which prompts have known answers? Task generators, in pure Python; the organism learns from their text."""

from keyhole.tasks.boxes import boxes
from keyhole.tasks.corpus import TASKS, documents, vocabulary
from keyhole.tasks.example import Example, is_held_out
from keyhole.tasks.filler import filler
from keyhole.tasks.greater_than import greater_than
from keyhole.tasks.induction import induction
from keyhole.tasks.ioi import ioi
from keyhole.tasks.lists import lists
from keyhole.tasks.pronouns import pronouns

__all__ = [
    "TASKS",
    "Example",
    "boxes",
    "documents",
    "filler",
    "greater_than",
    "induction",
    "ioi",
    "is_held_out",
    "lists",
    "pronouns",
    "vocabulary",
]
