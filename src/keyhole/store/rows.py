"""How does an outcome become rows of tables? Plain lists, a column each, that grow over the prompts of a part."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from keyhole.circuits.circuit import Circuit
from keyhole.circuits.columns import SHARES
from keyhole.errors import KeyholeError
from keyhole.models.numbers import require_same_weights
from keyhole.store.manifest import Manifest, Outcome
from keyhole.store.schema import MEASURED, PLACE, columns, tables

Rows = dict[str, list[Any]]  # a table while it grows
ERRORS = ("scores", "residuals", "logits")
OWN = ("end", *(f"{of}_{part}" for of in ("target", "against") for part in ("ids", "text", "probability")))
NODE_VALUES, EDGE_VALUES = ("nodes", "node_shares"), ("edges", "edge_shares")  # what `MEASURED` columns hold
VALUES = ("words", *NODE_VALUES, *EDGE_VALUES)
MEASURED_OWN = ("baseline", "metric", "everything", "nothing", "completeness", "note")
FAITHFULNESS = {  # by column
    **{name: name for name in ("kept", "cut", "rest", "random", "rank", "others")},
    "kept_edges": "edges",
    "model_edges": "of",
}
MLP_COLUMNS = {  # of a table, by column of `Mlps`
    **{name: name for name in (*SHARES, "causes", "neurons")},
    "shares": "neuron_shares",
}
ENDS: dict[str, str] = {"embedding": "words", "head": "heads", "mlp": "mlps", "mixer": "mixers"}  # others: constants


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
    result = ("status", "error", "correct", "predicted", "probability", "difference")
    _add(rows, prompt=outcome.index, **{name: getattr(outcome, name) for name in result})
    texts = ("task", "text", "answer", "answers", "against", "template", "continuation")
    _add(rows, **{name: getattr(example, name) for name in texts})
    starts, ends = [start for start, _ in example.roles.values()], [end for _, end in example.roles.values()]
    _add(rows, roles=list(example.roles), role_start=starts, role_end=ends)
    _add(rows, **{f"label_{name}": example.labels.get(name) for name in manifest.labels})


def _circuit(rows: Rows, prompt: int, circuit: Circuit, manifest: Manifest) -> None:
    """What a circuit is of, how exact, and how large; what it shares with the manifest is not repeated."""
    refusal = f"the circuit of prompt {prompt} is of another model than this store."
    require_same_weights(circuit.model.get("fingerprint"), manifest.model["fingerprint"], refusal)
    if set(circuit.errors) - {"rounding"} != set(ERRORS):  # which is computed again with the run
        raise KeyholeError(f"the circuit of prompt {prompt} has other errors than {', '.join(ERRORS)}.")
    parameters = circuit.parameters.record()
    counted = {name: len(getattr(circuit, name)) for name in ("nodes", "edges", "firings", "mlps")}
    counted |= {"heads": int((circuit.nodes.kind == "head").sum()), "removals": len(circuit.firings.removals)}
    _add(rows, prompt=prompt, **counted, **_ends(circuit))
    _add(rows, token_ids=circuit.token_ids, tokens=circuit.tokens, **{name: parameters.pop(name) for name in OWN})
    _add(rows, **{f"error_{name}": circuit.errors[name] for name in ERRORS})
    unlike = {name: _unlike(getattr(circuit, name), getattr(manifest, name)) for name in ("model", "versions")}
    _add(rows, parameters=_json(parameters), **unlike)


def _ends(circuit: Circuit) -> dict[str, float | None]:
    """Where the answer's influence ends: its shares by what was not explained further, which add up to 1."""
    kinds = (*ENDS.values(), "constants")
    if not circuit.influence:
        return {f"ends_{kind}": None for kind in kinds}
    shares = dict.fromkeys(kinds, 0.0)
    for kind, share, leaf in zip(circuit.nodes.plain("kind"), circuit.influence, circuit.leaves, strict=True):
        if leaf is not None and kind != "target":
            shares[ENDS.get(kind, "constants")] += share
    return {f"ends_{kind}": share for kind, share in shares.items()}


def _nodes(rows: Rows, prompt: int, circuit: Circuit) -> None:
    """A row per node, with what was found where it was explained."""
    nodes, firings, mlps, n = circuit.nodes, circuit.firings, circuit.mlps, len(circuit.nodes)
    explained = [*firings.node.tolist(), *mlps.node.tolist()]
    if len(set(explained)) != len(explained):
        raise KeyholeError(f"the circuit of prompt {prompt} explains a node twice, which a store cannot keep.")
    rows["prompt"] += [prompt] * n
    rows["node"] += range(n)
    for name in PLACE:
        rows[name] += nodes.plain(name)
    for name in ("dest", "src"):
        rows[f"{name}_token"] += [circuit.tokens[token] for token in nodes.plain(name)]
    rows["attention"] += circuit.attention
    rows["influence"] += circuit.influence or [None] * n
    rows["leaf"] += circuit.leaves or [None] * n
    rows["explained"] += _at(explained, [*range(len(firings)), *range(len(mlps))], n)
    for name in ("tau", "visible"):
        rows[name] += _at(firings.plain("node"), firings.plain(name), n)
    for name, column in MLP_COLUMNS.items():
        rows[column] += _at(mlps.plain("node"), mlps.plain(name), n)


def _at(nodes: Sequence[int], values: Sequence[Any], n: int) -> list[Any]:
    """Values of some nodes among those of all n."""
    column = [None] * n
    for node, value in zip(nodes, values, strict=True):
        column[node] = value
    return column


def _edges(rows: Rows, prompt: int, circuit: Circuit) -> None:
    """A row per edge, with who is at both ends."""
    edges, nodes = circuit.edges, circuit.nodes
    rows["prompt"] += [prompt] * len(edges)
    rows["edge"] += range(len(edges))
    for end, at in (("from", edges.sender), ("to", edges.receiver)):
        rows[f"{end}_node"] += at.tolist()
        place = nodes.take(at)
        for name in PLACE:
            rows[f"{end}_{name}"] += place.plain(name)
    for name in ("side", "weight", "ig", "alone", "influence", "channels"):
        rows[name] += edges.plain(name)


def _measured_columns(rows: Mapping[str, Rows], circuit: Circuit) -> None:
    """What was measured of a circuit, its nodes and its edges; all null where nothing was."""
    measured = circuit.measured
    for table, names in (("nodes", NODE_VALUES), ("edges", EDGE_VALUES)):
        for column, name in zip(MEASURED, names, strict=True):
            values = getattr(measured, name, ()) or [None] * len(getattr(circuit, table))
            rows[table][column] += values
    about = {name: getattr(measured, name, None) for name in MEASURED_OWN}
    faithfulness = getattr(measured, "faithfulness", None)
    kept = {column: getattr(faithfulness, name, None) for column, name in FAITHFULNESS.items()}
    known = None if measured is None else [name for name in VALUES if getattr(measured, name)]
    words = None if measured is None else measured.words
    _add(rows["circuits"], **about, **kept, measured=known, word_effects=words)


def _removals(rows: Rows, prompt: int, circuit: Circuit) -> None:
    """A row per candidate that a firing's search took away, in that order, the dest side first."""
    removals, (firing, side) = circuit.firings.removals, circuit.firings.of_removals
    rows["prompt"] += [prompt] * len(removals)
    rows["node"] += circuit.firings.node[firing].tolist()
    rows["side"] += side.tolist()
    for name in (*PLACE, "channel", "ig", "after"):
        rows[name] += removals.plain(name)


def _signals(rows: Rows, outcome: Outcome, length: int) -> None:
    """A row per signal: its edge, and its vector in residual space."""
    vectors = outcome.signals
    if vectors is None or any(vector.shape != (length,) for vector in vectors.values()):
        raise KeyholeError(f"this store keeps signals of {length} numbers, and prompt {outcome.index} has no such.")
    rows["prompt"] += [outcome.index] * len(vectors)
    rows["edge"] += vectors
    rows["vector"] += vectors.values()


def _add(rows: Rows, **values: Any) -> None:
    for name, value in values.items():
        rows[name].append(value)


def _unlike(facts: Mapping[str, str], common: Mapping[str, str]) -> str | None:
    return None if facts == common else _json(dict(facts))


def _json(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, allow_nan=False, sort_keys=True)
