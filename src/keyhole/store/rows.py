"""How does a circuit become rows of tables, and rows a circuit again?

How does an outcome become rows? Plain lists, a column each, that grow over the prompts of a part.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from keyhole.circuits.circuit import SCHEMA, Circuit, TracedMlp
from keyhole.circuits.files import from_document
from keyhole.circuits.records import Kind
from keyhole.errors import KeyholeError
from keyhole.models.numbers import require_same_weights
from keyhole.store.manifest import Manifest, Outcome
from keyhole.store.schema import MEASURED, PLACE, columns, tables
from keyhole.strict import is_index, is_list, parse_json, require
from keyhole.tasks.example import Example

Rows = dict[str, list[Any]]  # a table while it grows
ERRORS = ("scores", "residuals", "logits")
OWN = ("end", *(f"{of}_{what}" for of in ("target", "against") for what in ("ids", "text", "probability")))
NODE_VALUES, EDGE_VALUES = ("nodes", "node_shares"), ("edges", "edge_shares")  # what `MEASURED` columns hold
VALUES = ("words", *NODE_VALUES, *EDGE_VALUES)
MEASURED_OWN = ("baseline", "metric", "everything", "nothing", "completeness", "note")
FAITHFULNESS = {  # by column
    **{name: name for name in ("kept", "cut", "rest", "random", "rank", "others")},
    "kept_edges": "edges",
    "model_edges": "of",
}
SHARES = ("offset", "left", "left_renormed", "kept", "cancellation")
ENDS: dict[Kind, str] = {"embedding": "words", "head": "heads", "mlp": "mlps", "mixer": "mixers"}  # others: constants


def rows_of(manifest: Manifest, outcomes: Iterable[Outcome]) -> dict[str, Rows]:
    """Every table of a store, as the columns that these outcomes fill."""
    rows: dict[str, Rows] = {table: {name: [] for name in columns(manifest, table)} for table in tables(manifest)}
    for outcome in outcomes:
        _prompt(rows["prompts"], outcome, manifest)
        if outcome.circuit is None:
            continue
        prompt, circuit = outcome.index, outcome.circuit
        _circuit(rows["circuits"], prompt, circuit, manifest)
        _nodes(rows["nodes"], prompt, circuit)
        _edges(rows["edges"], prompt, circuit)
        if manifest.measured:
            _measured_columns(rows, circuit)
        elif circuit.measured is not None:
            raise KeyholeError(f"the circuit of prompt {prompt} was measured, and this store keeps no effects.")
        _removals(rows["removals"], prompt, circuit)
        if manifest.signals is not None:
            _signals(rows["signals"], outcome, manifest.signals)
    return rows


def _prompt(rows: Rows, outcome: Outcome, manifest: Manifest) -> None:
    """The prompt, what became of it, and what the model said."""
    example = outcome.example
    own = ("status", "error", "correct", "predicted", "probability", "difference")
    _add(rows, prompt=outcome.index, **{name: getattr(outcome, name) for name in own})
    told = ("task", "text", "answer", "answers", "against", "template", "continuation")
    _add(rows, **{name: getattr(example, name) for name in told})
    starts, ends = [start for start, _ in example.roles.values()], [end for _, end in example.roles.values()]
    _add(rows, roles=list(example.roles), role_start=starts, role_end=ends)
    _add(rows, **{f"label_{name}": example.labels.get(name) for name in manifest.labels})


def _circuit(rows: Rows, prompt: int, circuit: Circuit, manifest: Manifest) -> None:
    """What a circuit is of, how exact, and how large; what it shares with the manifest is not repeated."""
    refusal = f"the circuit of prompt {prompt} is of another model than this store."
    require_same_weights(circuit.model.get("fingerprint"), manifest.model["fingerprint"], refusal)
    if set(circuit.errors) != set(ERRORS):
        raise KeyholeError(f"the circuit of prompt {prompt} tells other errors than {', '.join(ERRORS)}.")
    told = circuit.parameters.record()
    counted = {name: len(getattr(circuit, name)) for name in ("nodes", "edges", "heads", "firings", "mlps")}
    removed = sum(len(one.dest) + len(one.src) for one in circuit.firings)
    _add(rows, prompt=prompt, **counted, removals=removed, **_ends(circuit))
    _add(rows, token_ids=circuit.token_ids, tokens=circuit.tokens, **{name: told.pop(name) for name in OWN})
    _add(rows, **{f"error_{name}": circuit.errors[name] for name in ERRORS})
    unlike = {name: _unlike(getattr(circuit, name), getattr(manifest, name)) for name in ("model", "versions")}
    _add(rows, parameters=_json(told), **unlike)


def _ends(circuit: Circuit) -> dict[str, float | None]:
    """Where the answer's influence ends: its shares by what was not explained further, which add up to 1."""
    kinds = (*ENDS.values(), "constants")
    if not circuit.influence:
        return {f"ends_{kind}": None for kind in kinds}
    shares = dict.fromkeys(kinds, 0.0)
    for node, share, leaf in zip(circuit.nodes, circuit.influence, circuit.leaves, strict=True):
        if leaf is not None and node.kind != "target":
            shares[ENDS.get(node.kind, "constants")] += share
    return {f"ends_{kind}": share for kind, share in shares.items()}


def _nodes(rows: Rows, prompt: int, circuit: Circuit) -> None:
    """A row per node, with what was found where it was explained."""
    n = len(circuit.nodes)
    rows["prompt"] += [prompt] * n
    rows["node"] += range(n)
    _read(rows, circuit.nodes, PLACE)
    rows["dest_token"] += [circuit.tokens[node.dest] for node in circuit.nodes]
    rows["src_token"] += [circuit.tokens[node.src] for node in circuit.nodes]
    rows["attention"] += circuit.attention
    rows["influence"] += circuit.influence or [None] * n
    rows["leaf"] += circuit.leaves or [None] * n
    order = [*enumerate(one.node for one in circuit.firings), *enumerate(one.node for one in circuit.mlps)]
    place = {node: at for at, node in order}
    if len(place) != len(order):
        raise KeyholeError(f"the circuit of prompt {prompt} explains a node twice, which a store cannot keep.")
    rows["explained"] += map(place.get, range(n))
    traced, mlps = {one.node: one for one in circuit.firings}, {one.node: one for one in circuit.mlps}
    for name in ("tau", "visible"):
        rows[name] += [getattr(traced.get(i), name, None) for i in range(n)]
    for name in (*SHARES, "causes"):
        rows[name] += [getattr(mlps.get(i), name, None) for i in range(n)]
    rows["neurons"] += [_neurons(mlps.get(i), 0) for i in range(n)]
    rows["neuron_shares"] += [_neurons(mlps.get(i), 1) for i in range(n)]


def _edges(rows: Rows, prompt: int, circuit: Circuit) -> None:
    """A row per edge, with who is at both ends."""
    edges, nodes = circuit.edges, circuit.nodes
    rows["prompt"] += [prompt] * len(edges)
    rows["edge"] += range(len(edges))
    rows["from_node"] += map(attrgetter("source"), edges)
    rows["to_node"] += map(attrgetter("target"), edges)
    _read(rows, [nodes[edge.source] for edge in edges], PLACE, "from_")
    _read(rows, [nodes[edge.target] for edge in edges], PLACE, "to_")
    _read(rows, edges, ("side", "weight", "ig", "alone", "influence", "channels"))


def _measured_columns(rows: Mapping[str, Rows], circuit: Circuit) -> None:
    """What was measured of a circuit, its nodes and its edges; all null where nothing was."""
    found = circuit.measured
    for table, names in (("nodes", NODE_VALUES), ("edges", EDGE_VALUES)):
        for column, name in zip(MEASURED, names, strict=True):
            values = getattr(found, name, ()) or [None] * len(getattr(circuit, table))
            rows[table][column] += values
    own = {name: getattr(found, name, None) for name in MEASURED_OWN}
    sizes = {column: getattr(getattr(found, "faithfulness", None), name, None) for column, name in FAITHFULNESS.items()}
    measured = None if found is None else [name for name in VALUES if getattr(found, name)]
    words = None if found is None else found.words
    _add(rows["circuits"], **own, **sizes, measured=measured, word_effects=words)


def _removals(rows: Rows, prompt: int, circuit: Circuit) -> None:
    """A row per candidate that a firing's search took away, in that order, the dest side first."""
    for traced in circuit.firings:
        for side, removed in (("dest", traced.dest), ("src", traced.src)):
            rows["prompt"] += [prompt] * len(removed)
            rows["node"] += [traced.node] * len(removed)
            rows["side"] += [side] * len(removed)
            _read(rows, [one.writer for one in removed], PLACE)
            _read(rows, removed, ("channel", "ig", "after"))


def _signals(rows: Rows, outcome: Outcome, length: int) -> None:
    """A row per signal: its edge, and its vector in residual space."""
    found = outcome.signals
    if found is None or any(vector.shape != (length,) for vector in found.values()):
        raise KeyholeError(f"this store keeps signals of {length} numbers, and prompt {outcome.index} has no such.")
    rows["prompt"] += [outcome.index] * len(found)
    rows["edge"] += found
    rows["vector"] += found.values()


def _add(rows: Rows, **values: Any) -> None:
    for name, value in values.items():
        rows[name].append(value)


def _read(rows: Rows, found: Sequence[Any], names: Iterable[str], prefix: str = "") -> None:
    for name in names:
        rows[f"{prefix}{name}"] += map(attrgetter(name), found)


def _neurons(one: TracedMlp | None, of: int) -> list[Any] | None:
    return None if one is None else [pair[of] for pair in one.neurons]


def _unlike(own: Mapping[str, str], common: Mapping[str, str]) -> str | None:
    return None if own == common else _json(dict(own))


def _json(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, allow_nan=False, sort_keys=True)


# How do rows become an outcome again? A circuit by way of the document of its file, with that file's validation.

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
    return document | ({"measured": _read_measured(row, own)} if row.get("baseline") is not None else {})


def _read_measured(row: Row, own: Mapping[str, list[Row]]) -> Row:
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
