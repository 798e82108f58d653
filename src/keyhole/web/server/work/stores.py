"""What is in the stores? Their prompts and outcomes, filtered and by pages, and single circuits."""

from typing import Any

from keyhole.errors import KeyholeError
from keyhole.models.organism import NAME as ORGANISM
from keyhole.store.chosen import label_columns
from keyhole.store.store import Store
from keyhole.web.server.bodies import Body
from keyhole.web.server.jobs import Told
from keyhole.web.server.kept import Kept
from keyhole.web.server.work.circuits import document, edge_names

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
