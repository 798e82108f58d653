"""Which text has nothing to do with a task's names, and is as long as its prompts?"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from keyhole.lab.heads.sparse import matched_text
from keyhole.models.tokens.prompts import Prompt, encode
from keyhole.tasks import boxes, greater_than, lists
from keyhole.tasks.text.prose import knows_tasks_alone, passages

if TYPE_CHECKING:
    from keyhole.models.model import Model


def unrelated_text(model: "Model", like: Sequence[Prompt], seed: int = 0) -> tuple[list[tuple[int, ...]], str]:
    """Pieces as long as these prompts, and what they are: how many keys a query sees changes every number.

    Real prose; for the organism, which knows the words of its tasks alone, prompts of those tasks that have no names.
    """
    if not knows_tasks_alone(model):
        return passages(model, [len(encode(model, one, None).ids) for one in like], seed), "Jane Austen's novels"
    others = zip(*(make(2 * len(like), seed) for make in (boxes, lists, greater_than)), strict=True)
    texts = [f"{one.text}{one.continuation}" for three in others for one in three]
    return matched_text(model, texts, like), "the organism's other tasks, without names, as it knows no other words"
