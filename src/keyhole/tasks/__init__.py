"""Which prompts have known answers? Task generators, in pure Python; the organism learns from their text."""

from keyhole.tasks.answers import Answered, AnswerIds, answer_ids, answered
from keyhole.tasks.boxes import boxes
from keyhole.tasks.catalogue import CATALOGUE, Task, counterfactual, counterfactual_kinds, examples, like
from keyhole.tasks.corpus import TASKS, documents, filler, vocabulary
from keyhole.tasks.example import Example, is_held_out
from keyhole.tasks.facts import facts
from keyhole.tasks.files import read_examples, write_examples
from keyhole.tasks.greater_than import greater_than
from keyhole.tasks.induction import induction
from keyhole.tasks.ioi import ioi
from keyhole.tasks.lists import lists
from keyhole.tasks.pronouns import pronouns
from keyhole.tasks.published import published_ioi

__all__ = [
    "CATALOGUE",
    "TASKS",
    "AnswerIds",
    "Answered",
    "Example",
    "Task",
    "answer_ids",
    "answered",
    "boxes",
    "counterfactual",
    "counterfactual_kinds",
    "documents",
    "examples",
    "facts",
    "filler",
    "greater_than",
    "induction",
    "ioi",
    "is_held_out",
    "like",
    "lists",
    "pronouns",
    "published_ioi",
    "read_examples",
    "vocabulary",
    "write_examples",
]
