"""Which run, firing or circuit does a request refer to, which prompts are like it, and what does a circuit carry?"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, model_validator

from keyhole.brief import Head
from keyhole.circuits.circuit import Circuit
from keyhole.errors import KeyholeError
from keyhole.faithfulness.baseline import MOST
from keyhole.faithfulness.effects import What
from keyhole.models.model import Model
from keyhole.models.organism import NAME as ORGANISM
from keyhole.qk.channels import check_place
from keyhole.requests.bodies import Body, PromptBody, Words, spell, takes
from keyhole.requests.jobs import Reporter
from keyhole.requests.kept import Kept, Ran
from keyhole.settings.measuring import SufficientSettings
from keyhole.settings.tracing import TraceSettings
from keyhole.store.model import model_of
from keyhole.tasks.catalogue import like as prompts_like
from keyhole.tasks.copying import OWN, ioi_example
from keyhole.tasks.example import Example
from keyhole.tasks.variants import OTHERS
from keyhole.tracing.firing import Firing, threshold
from keyhole.tracing.linear import firing_probe
from keyhole.tracing.why import explain

_LEAD = ("Mary", "John"), ("store", "drink")  # of the example that the page begins with
LONGEST = 8000  # characters of a prompt that is like another


# Which prompts are like the one that is shown? Others of its task, if it is the page's example or a store's.


def like(kept: Kept, body: PromptBody, reporter: Reporter) -> dict[str, Any]:
    """The task that the prompt is of, and others of it with as many tokens; none, where it is of no task."""
    ran, example = kept.ran(body, reporter), example_of(kept, body.prompt)
    if example is None:
        return {"task": None, "prompts": []}
    others = others_of(kept, body.prompt, ran.run.model)
    return {"task": example.task, "prompts": [other.text for other in others]}


def others_of(kept: Kept, prompt: Any, model: Model) -> list[Example]:
    """Prompts of the same task, whose answers are known."""
    example = example_of(kept, prompt)
    if example is None:
        raise KeyholeError("this prompt is of no task: give prompts like it, or a counterfactual prompt.")
    return prompts_like(example, model)


def example_of(kept: Kept, prompt: Any) -> Example | None:
    """A task's example with this text, of which others can be drawn."""
    if not isinstance(prompt, str):
        return None
    examples = (example for example in _known(kept, prompt) if example.text == prompt and example.task in OTHERS)
    return next(examples, None)


def _known(kept: Kept, prompt: str) -> Iterator[Example]:
    """The page's example in every wording, and the stores' examples with this text."""
    for number, wording in enumerate(OWN.wordings):
        yield ioi_example(wording, "ABBA", *_LEAD, {"wordings": "own", "wording": str(number)})
    for name in kept.stores:
        store = kept.store(name)
        for row in store.table("prompts", columns=["prompt"], where={"text": prompt}).to_pylist()[:1]:
            yield store[row["prompt"]].example


# Which run, firing or circuit does a request refer to?


class Place(Body):
    """Where a head attends; without a src, the most attended token is meant."""

    layer: int
    head: int
    dest: int = -1
    src: int | None = None

    @property
    def at(self) -> tuple[Head, int, int | None]:
        """(layer, head), dest and src."""
        return (self.layer, self.head), self.dest, self.src


@takes(TraceSettings, "tau", "keys")
class FiringBody(PromptBody, Place):
    """A firing, and how it is explained: why the head attends here, why it does not, or whichever is the case."""

    why: Literal["auto", "here", "not"] = "auto"


def explained(body: FiringBody, ran: Ran) -> tuple[Firing, str | None]:
    """The firing of a request, explained, and a note where it cannot be."""
    why, settings = body.why, body.settings(TraceSettings)
    layer, index, d, s = check_place(ran.run, *body.at)
    record = ran.run.attention_run(layer)
    limit = threshold(settings.tau, d, int(record.visible([d]).sum()))
    attention = float(record.weights([index], [d])[0, 0, s])
    note = None
    if why == "auto":
        why = "here" if attention >= limit else "not"
        if why == "not" and limit == 1:
            why = "here"
            note = "this token sees so few keys that only all its attention would be a firing: nothing is searched."
    elif why == "here" and attention < limit:
        note = "the head does not fire here: its weight is below tau."
    key = ("firing", layer, index, d, s, why, settings.tau, settings.keys)
    options: Any = {"tau": settings.tau, "keys": settings.keys, "why_not": why == "not"}
    return ran.results.get(key, lambda: explain(ran.run, (layer, index), d, s, **options)), note


class BaselineBody(Body):
    """What stands in for writers that are cut: prompts like this one, or a counterfactual prompt."""

    like: (
        Literal["task"] | Annotated[list[Annotated[str, Field(max_length=LONGEST)]], Field(max_length=MOST)] | None
    ) = None
    counterfactual: Annotated[str, Field(max_length=LONGEST)] | None = None


@takes(SufficientSettings, "level", "both_signs")
class SufficientBody(BaselineBody):
    """How a circuit that suffices is searched for: against which baseline, how much is kept, with which signs."""


@takes(TraceSettings, "method", "through", "tau", "first_token", "keys")
class CircuitBody(PromptBody):
    """A circuit: one of a store, or one that is traced from a prompt's answer or from what a firing moves."""

    prompt: Any = None
    store: str | None = None
    index: int | None = None
    target: Words = None
    against: Words = None
    end: int = -1
    start: Place | None = Field(None, alias="from")
    sufficient: SufficientBody | None = None

    @model_validator(mode="after")
    def _one_circuit(self) -> Self:
        """Of a store, or traced: never half of each."""
        needed, name = (self.prompt, "prompt") if self.store is None else (self.index, "index")
        if needed is None:
            raise KeyholeError(f"this request needs {name}.")
        others = [
            field.alias or name
            for name, field in CircuitBody.model_fields.items()
            if name in self.model_fields_set and name not in ("store", "index")
        ]
        if self.store is not None and others:
            raise KeyholeError(f"a circuit of a store is as it was traced: leave {', '.join(others)} out.")
        return self


def circuit_of(kept: Kept, body: CircuitBody, reporter: Reporter) -> tuple[Circuit, Model]:
    """The circuit that a request refers to, with its run: one of a store, or traced, or still known; and its model."""
    if body.store is not None:
        return _stored(kept, body, reporter)
    ran = kept.ran(body, reporter)
    choices = body.model_dump(include=CircuitBody.model_fields.keys() - PromptBody.model_fields.keys())
    key = (ran.model, ran.run.token_ids, spell(choices))
    circuit = kept.circuits.get(key, lambda: replace(_traced(kept, ran, body, reporter), run=None))
    return replace(circuit, run=ran.run), ran.run.model  # runs are kept by tokens, and circuits should keep none


def _stored(kept: Kept, body: CircuitBody, reporter: Reporter) -> tuple[Circuit, Model]:
    assert body.store is not None and body.index is not None
    store = kept.store(body.store)
    circuit = store.circuit(body.index)
    source = str(store.manifest.model.get("name", ORGANISM))
    return circuit, model_of(store, kept.model(source, reporter))


def _traced(kept: Kept, ran: Ran, body: CircuitBody, reporter: Reporter) -> Circuit:
    """Trace from an answer, or from what one firing moves; or search for the smallest circuit of an answer."""
    settings = body.settings(TraceSettings)
    if body.sufficient is not None:
        if body.start is not None:
            raise KeyholeError("a circuit that suffices is one of an answer: leave from out.")
        options = baseline_of(kept, body.sufficient, body.prompt, ran.run.model)
        options |= {"settings": body.sufficient.settings(SufficientSettings)}
        options |= {"progress": reporter.progress("Searching for the smallest circuit")}
        return ran.run.sufficient(body.target, against=body.against, end=body.end, **options)
    progress = reporter.progress("Tracing")
    if body.start is None:
        return ran.run.trace(body.target, against=body.against, end=body.end, settings=settings, progress=progress)
    if body.target is not None or body.against is not None:
        raise KeyholeError("a circuit is traced from an answer or from a firing: leave target and against out.")
    head, dest, src = body.start.at
    return ran.run.trace(
        end=dest, settings=replace(settings, metric=firing_probe(ran.run, head, dest, src)), progress=progress
    )


def baseline_of(kept: Kept, body: BaselineBody, prompt: Any, model: Model) -> dict[str, Any]:
    """What stands in for writers, as functions of the library take it."""
    prompts = others_of(kept, prompt, model) if body.like == "task" else body.like
    return {"like": prompts, "counterfactual": body.counterfactual}


# How much of the answer does a circuit carry, and what does the answer lose without its parts?


class MeasuredBody(CircuitBody, BaselineBody):
    """A circuit, and what stands in for what is cut from it."""


def faithfulness(kept: Kept, body: MeasuredBody, reporter: Reporter) -> dict[str, Any]:
    """Kept, cut and rest of a circuit's edges, and the effects of tokens: a handful of passes."""
    return _measured(kept, body, reporter, ("words", "faithfulness"), "Measuring faithfulness")


def effects(kept: Kept, body: MeasuredBody, reporter: Reporter) -> dict[str, Any]:
    """All that can be measured of a circuit: a pass for each token, node and edge."""
    return _measured(kept, body, reporter, get_args(What), "Measuring effects")


def _measured(kept: Kept, body: MeasuredBody, reporter: Reporter, what: Sequence[What], doing: str) -> dict[str, Any]:
    circuit, model = circuit_of(kept, body, reporter)
    prompt = body.prompt
    if body.store is not None and body.index is not None:
        prompt = kept.store(body.store)[body.index].example.text
    options = baseline_of(kept, body, prompt, model)
    needed = None if circuit.run is not None else model
    measured = circuit.effects(needed, what=what, progress=reporter.progress(doing), **options).measured
    assert measured is not None
    return measured.record()
