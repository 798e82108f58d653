"""Which prompts have known answers? Task generators, in pure Python; the organism learns from their text."""

from keyhole.tasks.answers import Answered, AnswerIds, answer_ids, answered
from keyhole.tasks.catalogue import CATALOGUE, Task, counterfactual, counterfactual_kinds, examples, like
from keyhole.tasks.copying import induction, ioi, published_ioi
from keyhole.tasks.corpus import TASKS, documents, filler, vocabulary
from keyhole.tasks.example import Example, is_held_out
from keyhole.tasks.files import read_examples, write_examples
from keyhole.tasks.knowledge import facts, greater_than, pronouns
from keyhole.tasks.things import boxes, lists

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
