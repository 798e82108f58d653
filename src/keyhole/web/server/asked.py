"""Which run, firing or circuit does a request speak of, and which prompts are like it?

Which prompts are like the one that is shown? Others of its task, if it is the page's example or a store's.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, get_args

from keyhole.brief import Head
from keyhole.circuits.circuit import Circuit
from keyhole.errors import KeyholeError
from keyhole.faithfulness.baseline import MOST
from keyhole.faithfulness.effects import What
from keyhole.models.model import Model
from keyhole.models.organism import NAME as ORGANISM
from keyhole.qk.channels import check_place
from keyhole.settings.measuring import LEVEL
from keyhole.settings.tracing import Method
from keyhole.store.model import model_of
from keyhole.tasks.catalogue import like as prompts_like
from keyhole.tasks.copying import OWN, ioi_example
from keyhole.tasks.example import Example
from keyhole.tasks.variants import OTHERS
from keyhole.tracing.candidates import Keys
from keyhole.tracing.firing import Firing, threshold
from keyhole.tracing.linear import firing_probe
from keyhole.tracing.settings import FirstToken
from keyhole.tracing.why import explain
from keyhole.web.server.bodies import Body, spell
from keyhole.web.server.jobs import Told
from keyhole.web.server.kept import Kept, Ran

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
    for number, wording in enumerate(OWN.wordings):
        yield ioi_example(wording, "ABBA", *_LEAD, {"wordings": "own", "wording": str(number)})
    for name in kept.stores:
        store = kept.store(name)
        for row in store.table("prompts", columns=["prompt"], where={"text": prompt}).to_pylist()[:1]:
            yield store[row["prompt"]].example


# Which run, firing or circuit does a request speak of?

LONGEST = 8000  # characters of a prompt that is like another
_TRACE = ("target", "against", "method", "through", "tau", "first_token", "keys", "end", "from", "sufficient")


def place(body: Body) -> tuple[Head, int, int | None]:
    """(layer, head), dest and src; without a src, the most attended token is meant."""
    head = (body.integer("layer"), body.integer("head"))
    return head, body.integer("dest", -1), body.integer("src", None)


def explained(body: Body, ran: Ran) -> tuple[Firing, str | None]:
    """The firing that is asked for, explained, and a note where it cannot be."""
    head, dest, src = place(body)
    why, tau, keys = (
        body.choice("why", ("auto", "here", "not"), "auto"),
        body.tau(),
        body.choice("keys", get_args(Keys), "all"),
    )
    layer, index, d, s = check_place(ran.run, head, dest, src)
    record = ran.run.attention_run(layer)
    limit = threshold(tau, d, int(record.visible([d]).sum()))
    attention = float(record.weights([index], [d])[0, 0, s])
    note = None
    if why == "auto":
        why = "here" if attention >= limit else "not"
        if why == "not" and limit == 1:
            why, note = (
                "here",
                "this token sees so few keys that only all its attention would be a firing: nothing is searched.",
            )
    elif why == "here" and attention < limit:
        note = "the head does not fire here: its weight is below tau."
    key = ("firing", layer, index, d, s, why, tau, keys)
    return ran.made.get(
        key, lambda: explain(ran.run, (layer, index), d, s, tau=tau, keys=keys, why_not=why == "not")
    ), note


def circuit_of(kept: Kept, body: Body, told: Told) -> tuple[Circuit, Model]:
    """The circuit that a request refers to, with its run: one of a store, or traced, or still known; and its model."""
    if "store" in body:
        return _stored(kept, body.text("store"), body.integer("index"), told)
    ran = kept.ran(body, told)
    options = {name: body.take(name, None) for name in _TRACE}
    key = (ran.model, ran.run.token_ids, spell(options))
    found = kept.circuits.get(key, lambda: replace(_traced(kept, ran, body, told), run=None))
    return replace(found, run=ran.run), ran.run.model  # runs are kept by tokens, and circuits should keep none


def _stored(kept: Kept, name: str, index: int, told: Told) -> tuple[Circuit, Model]:
    store = kept.store(name)
    circuit = store.circuit(index)
    source = str(store.manifest.model.get("name", ORGANISM))
    return circuit, model_of(store, kept.model(source, told))


def sufficing(kept: Kept, body: Body, prompt: Any, model: Model) -> dict[str, Any]:
    """How a circuit that suffices is searched for: against which baseline, how much is kept, with which signs."""
    options = {
        **baseline_of(kept, body, prompt, model),
        "level": float(body.number("level", LEVEL)),
        "both_signs": body.flag("both_signs"),
    }
    body.done()
    return options


def baseline_of(kept: Kept, body: Body, prompt: Any, model: Model) -> dict[str, Any]:
    """What stands in for writers: prompts like this one (a list, or those of its task), or a counterfactual prompt."""
    counterfactual = body.text("counterfactual", None)
    if counterfactual is not None and len(counterfactual) > LONGEST:
        raise KeyholeError(f"counterfactual has more than {LONGEST:,} characters: give a prompt as long as this one.")
    if body.values.get("like") == "task":
        body.take("like")
        return {"like": others_of(kept, prompt, model), "counterfactual": counterfactual}
    return {"like": body.texts("like", most=MOST, longest=LONGEST), "counterfactual": counterfactual}


def _traced(kept: Kept, ran: Ran, body: Body, told: Told) -> Circuit:
    """Trace what is asked for: an answer, or what one firing moves."""
    options: dict[str, Any] = {
        "method": body.choice("method", get_args(Method), "accpp"),
        "through": body.choice("through", ("mlps", "heads"), "mlps"),
        "tau": body.tau(),
        "first_token": body.choice("first_token", get_args(FirstToken), "keep"),
        "keys": body.choice("keys", get_args(Keys), "all"),
        "progress": told.progress("Tracing"),
    }
    target, against, end = body.words("target"), body.words("against"), body.integer("end", -1)
    if "sufficient" in body:
        if "from" in body:
            raise KeyholeError("a circuit that suffices is one of an answer: leave from out.")
        asked = sufficing(kept, body.inner("sufficient"), body.take("prompt"), ran.run.model)
        options = {**asked, "progress": told.progress("Searching for the smallest circuit")}
        return ran.run.sufficient(target, against=against, end=end, **options)
    if "from" not in body:
        return ran.run.trace(target, against=against, end=end, **options)
    if target is not None or against is not None:
        raise KeyholeError("a circuit is traced from an answer or from a firing: leave target and against out.")
    inner = body.inner("from")
    head, dest, src = place(inner)
    inner.done()
    return ran.run.trace(metric=firing_probe(ran.run, head, dest, src), end=dest, **options)


# How much of the answer does a circuit carry, and what does the answer lose without its parts?


def faithfulness(kept: Kept, body: Body, told: Told) -> dict[str, Any]:
    """Kept, cut and rest of a circuit's edges, and the effects of tokens: a handful of passes."""
    return _measured(kept, body, told, ("words", "faithfulness"), "Measuring faithfulness")


def effects(kept: Kept, body: Body, told: Told) -> dict[str, Any]:
    """All that can be measured of a circuit: a pass for each token, node and edge."""
    return _measured(kept, body, told, get_args(What), "Measuring effects")


def _measured(kept: Kept, body: Body, told: Told, what: Sequence[What], doing: str) -> dict[str, Any]:
    circuit, model = circuit_of(kept, body, told)
    stored = "store" in body
    prompt = kept.store(body.text("store"))[body.integer("index")].example.text if stored else body.take("prompt")
    options = baseline_of(kept, body, prompt, model)
    body.done()
    needed = None if circuit.run is not None else model
    measured = circuit.effects(needed, what=what, progress=told.progress(doing), **options).measured
    assert measured is not None
    return measured.record()
