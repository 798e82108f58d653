"""What is in the stores, and what do circuits, families and comparisons of them say?"""

import base64
import json
from dataclasses import replace
from typing import Any

from pydantic import Field

from keyhole.brief import head_name
from keyhole.circuits.circuit import Circuit
from keyhole.errors import KeyholeError
from keyhole.faithfulness.story import numbers, step_label, story_text
from keyhole.intervene.removal import Mode
from keyhole.models.model import Model
from keyhole.models.organism import NAME as ORGANISM
from keyhole.naming.attached import edge_names as right_names
from keyhole.naming.attached import head_names
from keyhole.requests.bodies import Body, Seed
from keyhole.requests.jobs import Reporter
from keyhole.requests.kept import NO_NAMES, Kept
from keyhole.settings.measuring import StorySettings
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
from keyhole.web.server.circuits import CircuitBody, circuit_of

# Which circuit is behind an answer, what does it say, and does it hold?


def trace(kept: Kept, body: CircuitBody, reporter: Reporter) -> dict[str, Any]:
    """The circuit as its file has it, and names of its edges, if there are some."""
    circuit, model = circuit_of(kept, body, reporter)
    return {"circuit": document(circuit), "names": edge_names(kept, circuit, model)}


def document(circuit: Circuit) -> dict[str, Any]:
    """A circuit's own JSON document."""
    record: dict[str, Any] = json.loads(replace(circuit, directions={}).to_json())  # no view shows them
    return record


class StoryBody(CircuitBody):
    """A circuit, and how many paths are shown."""

    top: int = Field(5, ge=1, le=50)


def story(kept: Kept, body: StoryBody, reporter: Reporter) -> dict[str, Any]:
    """The main paths from words to the answer, each step measured."""
    circuit, model = circuit_of(kept, body, reporter)
    progress = reporter.progress("Measuring the story")
    measured = circuit.story(_needed(circuit, model), settings=body.settings(StorySettings), progress=progress)
    record = measured.record()
    for path_record, path in zip(record["paths"], measured.paths, strict=True):
        for step_record, step in zip(path_record["steps"], path.steps, strict=True):
            step_record |= {"text": step_label(step, circuit.tokens), "numbers": numbers(step)}
        path_record["text"] = " -> ".join([*(step["text"] for step in path_record["steps"]), "answer"])
    lines = story_lines(circuit, measured)  # as in a one-file page
    return {**record, "lines": lines, "text": story_text(measured)}


class VerifyBody(CircuitBody):
    """A circuit, and how it is verified."""

    mode: Mode = "exact"
    draws: int = Field(3, ge=0, le=50)
    edges: bool = True  # remove each edge, or only whole sides
    edge: int | None = None  # this one alone
    seed: Seed = 0


def verify(kept: Kept, body: VerifyBody, reporter: Reporter) -> dict[str, Any]:
    """Every side and signal removed in the model's own pass, compared with controls."""
    circuit, model = circuit_of(kept, body, reporter)
    verification = circuit.verify(
        _needed(circuit, model),
        mode=body.mode,
        draws=body.draws,
        edges=body.edges if body.edge is None else [body.edge],
        seed=body.seed,
        progress=reporter.progress("Verifying"),
    )
    return {**verification.record(), "text": str(verification)}


def names(kept: Kept, body: CircuitBody, reporter: Reporter) -> dict[str, Any]:
    """The names of a circuit's edges, and of heads."""
    circuit, model = circuit_of(kept, body, reporter)
    naming = kept.naming()
    if naming is None:
        raise KeyholeError(NO_NAMES)
    reporter.check()
    heads = {head_name(named.head): str(named) for named in head_names(naming)}
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
_OUTCOME = ("index", "status", "error", "correct", "predicted", "probability", "difference")
_VALUES = 50  # of a label, that are listed


class StoresBody(Body):
    """Nothing is chosen: the stores are those that the server was started with."""


def stores(kept: Kept, body: StoresBody, reporter: Reporter) -> dict[str, Any]:
    """All stores that the server was started with; one that cannot be read says why."""
    records = []
    for name, path in kept.stores.items():
        reporter.check()
        try:
            records.append({"id": name, "path": str(path), **_about(kept.store(name))})
        except KeyholeError as error:
            records.append({"id": name, "path": str(path), "error": str(error)})
    return {"stores": records}


def _about(store: Store) -> dict[str, Any]:
    labels = {}
    for label in store.manifest.labels:
        column = f"label_{label}"
        values = store.table("prompts", columns=[column])[column].to_pylist()
        labels[label] = sorted({str(value) for value in values if value})[:_VALUES]
    model, task = store.manifest.model.get("name"), store.manifest.task.get("name")
    return {"model": model, "task": task, "prompts": store.manifest.n, "counts": store.counts(), "labels": labels}


class OutcomesBody(Body):
    """Which prompts of a store, by values of labels or columns, and which page of them."""

    store: str
    where: dict[str, Any] = Field(default_factory=dict)
    offset: int = Field(0, ge=0)
    limit: int = Field(50, ge=1, le=500)


def outcomes(kept: Kept, body: OutcomesBody, reporter: Reporter) -> dict[str, Any]:
    """Some prompts of a store, with what became of each."""
    store = kept.store(body.store)
    labels = {f"label_{name}": name for name in store.manifest.labels}
    where = label_columns(store, conditions(body.where)) or None
    table = store.table("prompts", columns=[*_COLUMNS, *labels], where=where)
    rows = [_row(row, labels) for row in table.slice(body.offset, body.limit).to_pylist()]
    return {"total": table.num_rows, "offset": body.offset, "rows": rows}


def conditions(where: dict[str, Any]) -> dict[str, Any]:
    """What prompts should be like: values by label, and status, correct and so on."""
    if not all(isinstance(value, str | int | bool | float | list) for value in where.values()):
        raise KeyholeError('where has values by label or column, such as {"order": "ABBA", "status": "circuit"}.')
    return where


def _row(row: dict[str, Any], labels: dict[str, str]) -> dict[str, Any]:
    return {
        "index": row["prompt"],
        "prompt": row["text"],
        **{name: row[name] for name in _COLUMNS[2:]},
        "labels": {label: row[column] for column, label in labels.items()},
    }


class StoredBody(Body):
    """One prompt of a store."""

    store: str
    index: int = Field(ge=0)


def circuit(kept: Kept, body: StoredBody, reporter: Reporter) -> dict[str, Any]:
    """One prompt's circuit, its outcome, and names of its edges."""
    store = kept.store(body.store)
    item = store[body.index]
    if item.circuit is None:
        store.circuit(body.index)  # refuses, and says why there is none
        raise AssertionError("a prompt without a circuit has one")
    names = None
    if kept.naming() is not None:
        names = edge_names(kept, item.circuit, _model_of(kept, store, reporter))
    outcome = {name: getattr(item, name) for name in _OUTCOME}
    outcome |= {"prompt": item.example.text, "answer": item.example.answer, "labels": dict(item.example.labels)}
    return {"circuit": document(item.circuit), "outcome": outcome, "names": names}


def _model_of(kept: Kept, store: Store, reporter: Reporter) -> Model:
    """The model by the name that the store gives; whether it has the same weights, its circuits check."""
    return kept.model(str(store.manifest.model.get("name", ORGANISM)), reporter)


# Do a store's circuits come in families, and what drives its firings on the first token?

LEAVES = 1000  # circuits of a tree that is drawn


class FamiliesBody(Body):
    """Which circuits of a store are put into families, and how."""

    store: str
    where: dict[str, Any] = Field(default_factory=dict)
    all: bool = False  # those of wrong answers, too
    granularity: Granularity = "channels"
    role: bool = False
    weighted: bool = False
    k: int | None = Field(None, ge=2)
    most: int = Field(LEAVES, ge=10, le=20_000)
    seed: Seed = 0


def families(kept: Kept, body: FamiliesBody, reporter: Reporter) -> dict[str, Any]:
    """The library's record, with the tree and distances for pictures."""
    store = kept.store(body.store)
    chosen = label_columns(store, conditions(body.where))
    result = find(
        store,
        granularity=body.granularity,
        role=body.role,
        weighted=body.weighted,
        k=body.k,
        where=chosen if body.all else {**RIGHT, **chosen},
        most=body.most,
        seed=body.seed,
        progress=reporter.progress("Comparing circuits"),
    )
    reporter.check()
    return {**result.record(), **_drawn(result)}


def _drawn(result: Families) -> dict[str, Any]:
    """The tree, its leaves and their distances, a byte each; not of very many."""
    family = dict(zip(result.prompts.tolist(), result.labels.tolist(), strict=True))
    sample = result.sample.tolist()
    leaves = {"sample": sample, "labels": [family[prompt] for prompt in sample], "values": dict(result.values)}
    if len(sample) > LEAVES:
        return {**leaves, "tree": None, "distances": None}
    levels = (255 * result.distances.clip(0, 1)).round().astype("uint8")
    coded = base64.b64encode(levels.tobytes()).decode()
    return {**leaves, "tree": result.clustering.tree.tolist(), "distances": coded}


class SinksBody(Body):
    """A store, and how much of it is studied."""

    store: str
    prompts: int = Field(24, ge=6, le=500)
    draws: int = Field(99, ge=19, le=999)
    controls: int = Field(9, ge=1, le=50)
    seed: Seed = 0


def sinks(kept: Kept, body: SinksBody, reporter: Reporter) -> dict[str, Any]:
    """The library's record of a study of sinks."""
    store = kept.store(body.store)
    model = _model_of(kept, store, reporter)
    choices = body.model_dump(exclude={"store"})
    result = study(store, model, **choices, stage=reporter.stage)
    return {**result.record(), "told": _texts(result)}


def _texts(result: Sinks) -> dict[str, Any]:
    """The study's lines and tables as in its report; a column of numbers begins with >."""
    sides = []
    for side in result.sides:
        tables = [sink_text.likeness_table(side)] if side.likeness else []
        tables += [sink_text.removal_table(side)] if side.removals else []
        listed = [{"columns": columns, "rows": rows} for columns, rows in tables]
        sides.append({"side": side.side, "found": side.verdict, "lines": sink_text.head_lines(side), "tables": listed})
    return {"opening": sink_text.opening(result), "sides": sides, "massive": sink_text.massive_lines(result)}


# What do two circuits share? Of two prompts, models or methods, or out of stores.


class CompareBody(Body):
    """Two circuits, and how they are compared."""

    a: CircuitBody
    b: CircuitBody
    members: int = Field(0, ge=0, le=200)
    threshold: float = 0.1


def compare(kept: Kept, body: CompareBody, reporter: Reporter) -> dict[str, Any]:
    """Both circuits, and the library's comparison of them."""
    a, model = circuit_of(kept, body.a, reporter)
    b, _ = circuit_of(kept, body.b, reporter)
    comparison = compare_both(a, b, model=model, members=body.members, threshold=body.threshold, stage=reporter.stage)
    return {"a": document(a), "b": document(b), "comparison": comparison.record()}
