"""Which prompts does an item ask a model? The published ones; of the organism, held-out ones in its own wordings.

The organism knows the words of its tasks alone, so that the published wordings cannot be asked of it. Any other model
gets the published prompts, in those of the published names that are one token for it, and tasks fitted to how it cuts
text (years into digits, for example): what `keyhole.tasks.examples` gives for that model.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from keyhole.models.model import Model
from keyhole.models.tokens import one_token_words
from keyhole.tasks.catalogue import examples
from keyhole.tasks.example import Example
from keyhole.tasks.ioi import Design
from keyhole.tasks.prose import knows_tasks_alone
from keyhole.tasks.published import NAMES, published_ioi

IOI: Mapping[Design, int] = {"mixed": 256, "balanced": 3000}  # published numbers of prompts
TASKS: Mapping[str, int] = {"greater_than": 256, "pronouns": 100, "induction": 256}  # of the last none was published
_CALLED = {"greater_than": "greater-than prompts", "pronouns": "pronoun prompts", "induction": "induction prompts"}


@dataclass(frozen=True)
class PromptSet:
    """Prompts of one task, and what a result says of them."""

    examples: tuple[Example, ...]
    kind: str  # "published indirect objects (mixed)"
    total: int  # how many there are of that kind; these are the first of them

    @property
    def about(self) -> str:
        """How many, and which.

        >>> PromptSet((), "published indirect objects (mixed)", 256).about
        'the first 0 of 256 published indirect objects (mixed)'
        """
        first = "" if len(self.examples) == self.total else f"the first {len(self.examples):,} of "
        return f"{first}{self.total:,} {self.kind}"

    def first(self, n: int) -> "PromptSet":
        """The first of them, or all if there are fewer."""
        return replace(self, examples=self.examples[:n])


def prompts_for(task: str, model: Model, n: int, seed: int = 0, *, design: Design = "mixed") -> PromptSet:
    """The prompts of a task that a published item asks this model; `design` is of indirect objects.

    >>> import keyhole
    >>> prompts_for("ioi", keyhole.load(), 8).about
    "8 held-out indirect objects in the organism's own wordings (mixed)"
    """
    if task == "ioi":
        return _indirect_objects(model, n, seed, design)
    own = knows_tasks_alone(model)
    first: dict[str, Example] = {}
    for example in examples(task, model, 2 * n, seed, **({"held_out": True} if own else {})):
        first.setdefault(example.text, example)  # intervals over prompts count each once
    found = tuple(first.values())[:n]
    asks = ", asked for the tens of a year" if found[0].labels.get("asks") == "tens" else ""
    kind = f"held-out {_CALLED[task]}" if own else f"{_CALLED[task]} in single tokens of the model{asks}"
    return PromptSet(found, kind, len(found))


def _indirect_objects(model: Model, n: int, seed: int, design: Design) -> PromptSet:
    if knows_tasks_alone(model):
        found = tuple(examples("ioi", model, n, seed, design=design, held_out=True))
        return PromptSet(found, f"held-out indirect objects in the organism's own wordings ({design})", n)
    found = tuple(examples("ioi", model, n, seed, design=design))
    every = tuple(published_ioi(IOI[design], design=design))
    if found == every[:n]:  # called published only if they are so to the letter
        return PromptSet(found, f"published indirect objects ({design})", len(every))
    known = len(one_token_words(model, NAMES))
    names = "" if known == len(NAMES) else f", with the {known} of {len(NAMES)} names that are one token of the model"
    return PromptSet(found, f"indirect objects in the published wordings ({design}, seed {seed}{names})", n)
