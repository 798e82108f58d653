"""Which run, firing or circuit does a request speak of?"""

from dataclasses import replace
from typing import Any, get_args

from keyhole.circuits.circuit import Circuit
from keyhole.errors import KeyholeError
from keyhole.faithfulness.baseline import MOST
from keyhole.faithfulness.search import LEVEL
from keyhole.models.heads import Head
from keyhole.models.model import Model
from keyhole.models.organism import NAME as ORGANISM
from keyhole.qk.channels import check_place
from keyhole.store.model import model_of
from keyhole.tracing.answers.linear import firing_probe
from keyhole.tracing.firings.candidates import Keys
from keyhole.tracing.firings.firing import Firing, threshold
from keyhole.tracing.firings.why import explain
from keyhole.tracing.settings import Sinks
from keyhole.tracing.trace import Method
from keyhole.web.server.bodies import Body
from keyhole.web.server.jobs import Told
from keyhole.web.server.kept import Kept, Ran
from keyhole.web.server.spelling import spell
from keyhole.web.server.work.alike import others_of

LONGEST = 8000  # characters of a prompt that is like another
_TRACE = ("target", "against", "method", "through", "tau", "sinks", "keys", "end", "from", "sufficient")


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
    record = ran.run.layer(layer)
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
    return ran.made.get(key, lambda: explain(ran.run, (layer, index), d, s, tau=tau, keys=keys, why=why)), note


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
        "sinks": body.choice("sinks", get_args(Sinks), "keep"),
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
    return ran.run.trace(seeds=firing_probe(ran.run, head, dest, src), end=dest, **options)
