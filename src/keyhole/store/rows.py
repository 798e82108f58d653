"""How does an outcome become rows? Plain lists, a column each, that grow over the prompts of a part."""

import json
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from keyhole.circuits.circuit import Circuit, TracedMlp
from keyhole.circuits.writer import Kind
from keyhole.errors import KeyholeError
from keyhole.models.numbers.stamps import require_same_weights
from keyhole.store.manifest import Manifest
from keyhole.store.outcome import Outcome
from keyhole.store.schema import MEASURED, PLACE, columns, tables

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
            _measured(rows, circuit)
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


def _measured(rows: Mapping[str, Rows], circuit: Circuit) -> None:
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
