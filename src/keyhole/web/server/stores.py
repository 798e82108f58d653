"""What is in the stores, and what do circuits, families and comparisons of them say?

Which circuit is behind an answer, what does it tell, and does it hold?
"""

import base64
import json
from dataclasses import replace
from typing import Any, get_args

from keyhole.brief import head_name
from keyhole.circuits.circuit import Circuit
from keyhole.errors import KeyholeError
from keyhole.faithfulness.story import numbers, step_label, story_text
from keyhole.intervene.removal import Mode
from keyhole.models.model import Model
from keyhole.models.organism import NAME as ORGANISM
from keyhole.naming.attached import edge_names as right_names
from keyhole.naming.attached import head_names
from keyhole.store.manifest import label_columns
from keyhole.store.store import Store
from keyhole.studies.comparison.compare import compare as compare_both
from keyhole.studies.families.distances import Granularity
from keyhole.studies.families.families import RIGHT
from keyhole.studies.families.families import families as find
from keyhole.studies.families.record import Families
from keyhole.studies.sinks import report as sink_text
from keyhole.studies.sinks.explore import sinks as study
from keyhole.studies.sinks.record import Sinks
from keyhole.web.page import story_lines
from keyhole.web.server.asked import circuit_of
from keyhole.web.server.bodies import Body
from keyhole.web.server.jobs import Told
from keyhole.web.server.kept import Kept


def trace(kept: Kept, body: Body, told: Told) -> dict[str, Any]:
    """The circuit as its file has it, and names of its edges, if there are some."""
    circuit, model = circuit_of(kept, body, told)
    body.done()
    return {"circuit": document(circuit), "names": edge_names(kept, circuit, model)}


def document(circuit: Circuit) -> dict[str, Any]:
    """A circuit's own JSON document."""
    record: dict[str, Any] = json.loads(replace(circuit, directions={}).to_json())  # no view shows them
    return record


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


# What is in the stores? Their prompts and outcomes, filtered and by pages, and single circuits.

_COLUMNS = ("prompt", "text", "answer", "status", "error", "correct", "predicted", "probability", "difference")
_VALUES = 50  # of a label, that are listed


def stores(kept: Kept, body: Body, told: Told) -> dict[str, Any]:
    """All stores that the server was started with; one that cannot be read says why."""
    body.done()
    found = []
    for name, path in kept.stores.items():
        told.check()
        try:
            found.append({"id": name, "path": str(path), **_about(kept.store(name))})
        except KeyholeError as error:
            found.append({"id": name, "path": str(path), "error": str(error)})
    return {"stores": found}


def _about(store: Store) -> dict[str, Any]:
    labels = {}
    for label in store.manifest.labels:
        column = f"label_{label}"
        values = sorted({str(one) for one in store.table("prompts", columns=[column])[column].to_pylist() if one})
        labels[label] = values[:_VALUES]
    model, task = store.manifest.model.get("name"), store.manifest.task.get("name")
    return {"model": model, "task": task, "prompts": store.manifest.n, "counts": store.counts(), "labels": labels}


def outcomes(kept: Kept, body: Body, told: Told) -> dict[str, Any]:
    """Some prompts of a store, with what became of each."""
    store, asked = kept.store(body.text("store")), conditions(body)
    offset, limit = body.integer("offset", 0, least=0), body.integer("limit", 50, least=1, most=500)
    body.done()
    labels = {f"label_{name}": name for name in store.manifest.labels}
    table = store.table("prompts", columns=[*_COLUMNS, *labels], where=label_columns(store, asked) or None)
    rows = [_row(row, labels) for row in table.slice(offset, limit).to_pylist()]
    return {"total": table.num_rows, "offset": offset, "rows": rows}


def conditions(body: Body) -> dict[str, Any]:
    """What prompts should be like: values by label, and status, correct and so on."""
    asked = body.take("where", {})
    plain = isinstance(asked, dict) and all(isinstance(one, str | int | bool | float | list) for one in asked.values())
    if not plain:
        raise KeyholeError('where has values by label or column, such as {"order": "ABBA", "status": "circuit"}.')
    return dict(asked)


def _row(row: dict[str, Any], labels: dict[str, str]) -> dict[str, Any]:
    told = {name: row[name] for name in _COLUMNS[2:]}
    return {
        "index": row["prompt"],
        "prompt": row["text"],
        **told,
        "labels": {own: row[one] for one, own in labels.items()},
    }


def circuit(kept: Kept, body: Body, told: Told) -> dict[str, Any]:
    """One prompt's circuit, its outcome, and names of its edges."""
    store, index = kept.store(body.text("store")), body.integer("index", least=0)
    body.done()
    found = store[index]
    if found.circuit is None:
        store.circuit(index)  # refuses, and tells why there is none
        raise AssertionError("a prompt without a circuit has one")
    names = None
    if kept.naming() is not None:
        names = edge_names(kept, found.circuit, kept.model(str(store.manifest.model.get("name", ORGANISM)), told))
    told_names = ("index", "status", "error", "correct", "predicted", "probability", "difference")
    outcome = {name: getattr(found, name) for name in told_names}
    outcome |= {"prompt": found.example.text, "answer": found.example.answer, "labels": dict(found.example.labels)}
    return {"circuit": document(found.circuit), "outcome": outcome, "names": names}


# Do a store's circuits come in families, and what drives its firings on the first token?

LEAVES = 1000  # circuits of a tree that is drawn


def families(kept: Kept, body: Body, told: Told) -> dict[str, Any]:
    """The library's record, with the tree and distances for pictures."""
    store = kept.store(body.text("store"))
    asked = conditions(body)
    options = {
        "granularity": body.choice("granularity", get_args(Granularity), "channels"),
        "role": body.flag("role", False),
        "weighted": body.flag("weighted", False),
        "k": body.integer("k", None, least=2),
        "most": body.integer("most", LEAVES, least=10, most=20_000),
        "seed": body.seed(),
    }
    everything = body.flag("all", False)
    body.done()
    where = ({} if everything else dict(RIGHT)) | label_columns(store, asked)
    found = find(store, **options, where=where, progress=told.progress("Comparing circuits"))
    told.check()
    return {**found.record(), **_drawn(found)}


def _drawn(found: Families) -> dict[str, Any]:
    """The tree, its leaves and their distances, a byte each; not of very many."""
    family = dict(zip(found.prompts.tolist(), found.labels.tolist(), strict=True))
    sample = found.sample.tolist()
    told: dict[str, Any] = {"sample": sample, "labels": [family[one] for one in sample], "values": dict(found.values)}
    if len(sample) > LEAVES:
        return {**told, "tree": None, "distances": None}
    levels = (255 * found.distances.clip(0, 1)).round().astype("uint8")
    coded = base64.b64encode(levels.tobytes()).decode()
    return {**told, "tree": found.clustering.tree.tolist(), "distances": coded}


def sinks(kept: Kept, body: Body, told: Told) -> dict[str, Any]:
    """The library's record of a study of sinks."""
    store = kept.store(body.text("store"))
    prompts, draws = body.integer("prompts", 24, least=6, most=500), body.integer("draws", 99, least=19, most=999)
    controls, seed = body.integer("controls", 9, least=1, most=50), body.seed()
    body.done()
    model = kept.model(str(store.manifest.model.get("name", ORGANISM)), told)
    options = {"prompts": prompts, "draws": draws, "controls": controls, "seed": seed}
    found = study(store, model, **options, stage=told.stage)
    return {**found.record(), "told": _told(found)}


def _told(found: Sinks) -> dict[str, Any]:
    """What was found, in the library's own words and tables; a column of numbers begins with >."""
    sides = []
    for side in found.sides:
        tables = [sink_text.likeness_table(side)] if side.likeness else []
        tables += [sink_text.removal_table(side)] if side.removals else []
        told = [{"columns": columns, "rows": rows} for columns, rows in tables]
        sides.append({"side": side.side, "found": side.verdict, "lines": sink_text.head_lines(side), "tables": told})
    return {"opening": sink_text.opening(found), "sides": sides, "massive": sink_text.massive_lines(found)}


# What do two circuits share? Of two prompts, models or methods, or out of stores.


def compare(kept: Kept, body: Body, told: Told) -> dict[str, Any]:
    """Both circuits, and the library's comparison of them."""
    sides = []
    for name in ("a", "b"):
        inner = body.inner(name)
        sides.append(circuit_of(kept, inner, told))
        inner.done()
    members, threshold = body.integer("members", 0, least=0, most=200), body.number("threshold", 0.1)
    body.done()
    (a, model), (b, _) = sides
    found = compare_both(a, b, model=model, members=members, threshold=threshold, stage=told.stage)
    return {"a": document(a), "b": document(b), "comparison": found.record()}
