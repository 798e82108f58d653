"""Which circuit is behind an answer, what does it tell, and does it hold?"""

import json
from typing import Any, get_args

from keyhole.circuits.circuit import Circuit
from keyhole.errors import KeyholeError
from keyhole.intervene.remove import Mode
from keyhole.models.heads import head_name
from keyhole.models.model import Model
from keyhole.naming.attached.edges import edge_names as right_names
from keyhole.naming.attached.edges import head_names
from keyhole.story.text import numbers, step_label, story_text
from keyhole.web.page import story_lines
from keyhole.web.server.bodies import Body
from keyhole.web.server.jobs import Told
from keyhole.web.server.kept import Kept
from keyhole.web.server.work.asked import circuit_of


def trace(kept: Kept, body: Body, told: Told) -> dict[str, Any]:
    """The circuit as its file has it, and names of its edges, if there are some."""
    circuit, model = circuit_of(kept, body, told)
    body.done()
    return {"circuit": document(circuit), "names": edge_names(kept, circuit, model)}


def document(circuit: Circuit) -> dict[str, Any]:
    """A circuit's own JSON document."""
    found: dict[str, Any] = json.loads(circuit.to_json())
    return found


def story(kept: Kept, body: Body, told: Told) -> dict[str, Any]:
    """The main paths from words to the answer, each step measured."""
    circuit, model = circuit_of(kept, body, told)
    top = body.integer("top", 5, least=1, most=50)
    body.done()
    found = circuit.story(_needed(circuit, model), top=top, progress=told.progress("Measuring the story"))
    record = found.record()
    for path, own in zip(record["paths"], found.paths, strict=True):
        for step, told_step in zip(path["steps"], own.steps, strict=True):
            step |= {"text": step_label(told_step, circuit.tokens), "numbers": numbers(told_step)}
        path["text"] = " -> ".join([*(step["text"] for step in path["steps"]), "answer"])
    lines = story_lines(circuit, found)  # as in a one-file page
    return {**record, "lines": lines, "text": story_text(found)}


def verify(kept: Kept, body: Body, told: Told) -> dict[str, Any]:
    """Every side and signal removed in the model's own pass, beside controls."""
    circuit, model = circuit_of(kept, body, told)
    mode, draws = body.choice("mode", get_args(Mode), "exact"), body.integer("draws", 3, least=0, most=50)
    edges, edge, seed = body.flag("edges", True), body.integer("edge", None), body.seed()
    body.done()
    options: Any = {"mode": mode, "draws": draws, "edges": edges if edge is None else [edge], "seed": seed}
    found = circuit.verify(_needed(circuit, model), **options, progress=told.progress("Verifying"))
    return {**found.record(), "text": str(found)}


def names(kept: Kept, body: Body, told: Told) -> dict[str, Any]:
    """The names of a circuit's edges, and of heads."""
    circuit, model = circuit_of(kept, body, told)
    body.done()
    naming = kept.naming()
    if naming is None:
        raise KeyholeError("there are no names: start keyhole explore with --names names.json.")
    told.check()
    heads = {head_name(one.head): str(one) for one in head_names(naming)}
    return {"edges": edge_names(kept, circuit, model), "heads": heads}


def edge_names(kept: Kept, circuit: Circuit, model: Model) -> dict[str, dict[str, str]] | None:
    """Right names by the number of the edge, with what they lack; None: there are none, or of another model."""
    naming = kept.naming()
    if naming is None or naming.fingerprint != circuit.model.get("fingerprint"):
        return None
    number = {edge: i for i, edge in enumerate(circuit.edges)}
    return {str(number[edge]): {"text": text} for edge, text in right_names(circuit, naming, model).items()}


def _needed(circuit: Circuit, model: Model) -> Model | None:
    """The model, for a circuit that came without its run."""
    return None if circuit.run is not None else model
