"""How do rows become an outcome again? A circuit by way of the document of its file, with that file's validation."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from keyhole.circuits.circuit import SCHEMA, Circuit
from keyhole.circuits.files import from_document
from keyhole.errors import KeyholeError
from keyhole.store.manifest import Manifest
from keyhole.store.outcome import Outcome
from keyhole.store.rows import ERRORS, FAITHFULNESS, MEASURED_OWN, OWN, SHARES
from keyhole.store.schema import MEASURED
from keyhole.strict import is_index, is_list, parse_json, require
from keyhole.tasks.example import Example

Row = dict[str, Any]
_NODE = ("kind", "layer", "head", "dest", "src", "attention")
_EDGE = ("side", "weight", "ig", "alone", "channels")
_REMOVAL = ("kind", "layer", "head", "src", "channel", "ig", "after")
_ACCOUNTED = ("influence", "leaf")  # of circuits through MLPs; edges have the first
_TRACED = ("node", "tau", "visible")
_MLP = ("node", *SHARES, "causes")
_NEEDED = {  # which columns a circuit is made of, besides its row in `circuits`
    "nodes": ("prompt", *_NODE, *_ACCOUNTED, "explained", *_TRACED, *_MLP[1:], "neurons", "neuron_shares"),
    "edges": ("prompt", "edge", "from_node", "to_node", *_EDGE, "influence"),
    "removals": ("prompt", "node", "side", *_REMOVAL),
}
CIRCUIT_TABLES = tuple(_NEEDED)  # whose rows a circuit is made of


def needed(manifest: Manifest, table: str) -> tuple[str, ...]:
    """Which columns of a table a circuit is made of."""
    measured = MEASURED if manifest.measured and table in ("nodes", "edges") else ()
    return (*_NEEDED[table], *measured)


def outcome_from(manifest: Manifest, row: Row, circuit: Circuit | None) -> Outcome:
    """The outcome of a row of `prompts`."""
    return Outcome(
        index=row["prompt"],
        example=_example(manifest, row),
        status=row["status"],
        circuit=circuit,
        **{name: row[name] for name in ("error", "correct", "predicted", "probability", "difference")},
    )


def circuit_from(manifest: Manifest, row: Row, own: Mapping[str, list[Row]]) -> Circuit:
    """The circuit of a row of `circuits` and of its own rows in the other tables."""
    try:
        for table in CIRCUIT_TABLES:
            require(len(own[table]) == row[table], f"it has {len(own[table])} {table}, where {row[table]} are told of.")
        for table, name in (("nodes", "node"), ("edges", "edge")):
            require([one[name] for one in own[table]] == [*range(row[table])], f"its {table} are out of order.")
        return from_document(_document(manifest, row, own))
    except KeyholeError as error:
        raise KeyholeError(f"the circuit of prompt {row['prompt']} cannot be read: {error}") from error


def by_prompt(rows: Iterable[Row]) -> dict[int, list[Row]]:
    """Rows of each prompt, in their order."""
    found: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["prompt"]].append(row)
    return found


def _example(manifest: Manifest, row: Row) -> Example:
    _require_example(row)
    spans = zip(row["role_start"], row["role_end"], strict=True)
    labels = {name: row[f"label_{name}"] for name in manifest.labels}
    return Example(
        **{name: row[name] for name in ("task", "text", "answer", "template", "continuation")},
        answers=tuple(row["answers"]),
        against=tuple(row["against"]),
        roles=dict(zip(row["roles"], spans, strict=True)),
        labels={name: value for name, value in labels.items() if value is not None},
    )


def _require_example(row: Row) -> None:
    """Refuse null where a text or a list should be: another program may have written the table."""
    texts, lists = ("task", "text", "answer", "template", "continuation"), ("answers", "against", "roles")
    good = all(isinstance(row[name], str) for name in texts) and all(is_list(row[name], str) for name in lists)
    spans = [row["role_start"], row["role_end"]]
    good = good and all(is_list(ends, int) and len(ends) == len(row["roles"]) for ends in spans)
    require(good, f"prompt {row['prompt']} cannot be read: its text, answers or roles are missing.")


def _document(manifest: Manifest, row: Row, own: Mapping[str, list[Row]]) -> dict[str, Any]:
    require(isinstance(row["parameters"], str), "it has no parameters.")
    told = parse_json(row["parameters"])
    require(isinstance(told, dict), "its parameters are no object.")
    through = told.get("through") == "mlps"
    document = {
        "schema": SCHEMA,
        "model": dict(manifest.model) if row["model"] is None else parse_json(row["model"]),
        "versions": dict(manifest.versions) if row["versions"] is None else parse_json(row["versions"]),
        "parameters": told | {name: row[name] for name in OWN},
        "errors": {name: row[f"error_{name}"] for name in ERRORS},
        "token_ids": row["token_ids"],
        "tokens": row["tokens"],
        "nodes": [_node(one, through) for one in own["nodes"]],
        "edges": [_edge(one, through) for one in own["edges"]],
        "firings": _firings(own),
    }
    document |= {"mlps": _mlps(own["nodes"])} if through else {}
    return document | ({"measured": _measured(row, own)} if row.get("baseline") is not None else {})


def _measured(row: Row, own: Mapping[str, list[Row]]) -> Row:
    """What was measured of a circuit; what was not has no values at all."""
    require(is_list(row["measured"], str), "what was measured is missing.")
    values: Row = {"words": row["word_effects"]}
    for table, share in (("nodes", "node_shares"), ("edges", "edge_shares")):
        values |= {table: [one["effect"] for one in own[table]], share: [one["share"] for one in own[table]]}
    values = {name: found if name in row["measured"] else [] for name, found in values.items()}
    faithfulness = None if row["kept"] is None else {name: row[column] for column, name in FAITHFULNESS.items()}
    return {name: row[name] for name in MEASURED_OWN} | values | {"faithfulness": faithfulness}


def _node(row: Row, through: bool) -> Row:
    return {name: row[name] for name in (_NODE + _ACCOUNTED if through else _NODE)}


def _edge(row: Row, through: bool) -> Row:
    names = (*_EDGE, "influence") if through else _EDGE
    return {"from": row["from_node"], "to": row["to_node"], **{name: row[name] for name in names}}


def _firings(own: Mapping[str, list[Row]]) -> list[Row]:
    """The firings that were searched, in the order in which they were kept."""
    removed: dict[tuple[int, str], list[Row]] = defaultdict(list)
    for row in own["removals"]:
        removed[row["node"], row["side"]].append({name: row[name] for name in _REMOVAL})
    found = _in_order(one for one in own["nodes"] if one["tau"] is not None)
    return [
        {name: one[name] for name in _TRACED} | {side: removed[one["node"], side] for side in ("dest", "src")}
        for one in found
    ]


def _in_order(nodes: Iterable[Row]) -> list[Row]:
    """Nodes that were explained, as they were kept."""
    found = list(nodes)
    require(all(is_index(one["explained"]) for one in found), "the order of its nodes is missing.")
    return sorted(found, key=lambda one: int(one["explained"]))


def _mlps(nodes: list[Row]) -> list[Row]:
    """The MLPs that were explained, in the order in which they were kept."""
    found = _in_order(one for one in nodes if one["kept"] is not None)
    for one in found:
        neurons, shares = one["neurons"], one["neuron_shares"]
        good = isinstance(neurons, list) and isinstance(shares, list) and len(neurons) == len(shares)
        require(good, "the neurons of an MLP are missing.")
    return [
        {name: one[name] for name in _MLP}
        | {"neurons": [list(pair) for pair in zip(one["neurons"], one["neuron_shares"], strict=True)]}
        for one in found
    ]
