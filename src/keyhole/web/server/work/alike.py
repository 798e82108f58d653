"""Which prompts are like the one that is shown? Others of its task, if it is the page's example or a store's."""

from collections.abc import Iterator
from typing import Any

from keyhole.errors import KeyholeError
from keyhole.models.model import Model
from keyhole.tasks.example import Example
from keyhole.tasks.ioi import WORDINGS, ioi_example
from keyhole.tasks.like import like as prompts_like
from keyhole.tasks.variants import OTHERS
from keyhole.web.server.bodies import Body
from keyhole.web.server.jobs import Told
from keyhole.web.server.kept import Kept

_LEAD = ("Mary", "John"), ("store", "drink")  # of the example that the page begins with


def like(kept: Kept, body: Body, told: Told) -> dict[str, Any]:
    """The task that the prompt is of, and others of it with as many tokens; none, where it is of no task."""
    ran, prompt = kept.ran(body, told), body.take("prompt")
    body.done()
    example = example_of(kept, prompt)
    if example is None:
        return {"task": None, "prompts": []}
    return {"task": example.task, "prompts": [one.text for one in others_of(kept, prompt, ran.run.model)]}


def others_of(kept: Kept, prompt: Any, model: Model) -> list[Example]:
    """Prompts of the same task, whose answers are known."""
    example = example_of(kept, prompt)
    if example is None:
        raise KeyholeError("this prompt is none of a task's: give prompts like it, or a counterfactual prompt.")
    return prompts_like(example, model)


def example_of(kept: Kept, prompt: Any) -> Example | None:
    """A task's example with this text, of which others can be drawn."""
    if not isinstance(prompt, str):
        return None
    found = (example for example in _known(kept, prompt) if example.text == prompt and example.task in OTHERS)
    return next(found, None)


def _known(kept: Kept, prompt: str) -> Iterator[Example]:
    for number, wording in enumerate(WORDINGS):
        yield ioi_example(wording, "ABBA", *_LEAD, {"wordings": "own", "wording": str(number)})
    for name in kept.stores:
        store = kept.store(name)
        for row in store.table("prompts", columns=["prompt"], where={"text": prompt}).to_pylist()[:1]:
            yield store[row["prompt"]].example
