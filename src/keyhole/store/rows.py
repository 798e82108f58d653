"""How does an outcome become rows? Plain lists, a column each, that grow over the prompts of a part."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from keyhole.circuits.circuit import Circuit, TracedMlp
from keyhole.errors import KeyholeError
from keyhole.store.manifest import Manifest
from keyhole.store.outcome import Outcome
from keyhole.store.schema import PLACE

Rows = dict[str, list[Any]]  # a table while it grows
ERRORS = ("scores", "residuals", "logits")
OWN = ("end", *(f"{of}_{what}" for of in ("target", "against") for what in ("ids", "text", "probability")))
SHARES = ("offset", "left", "left_renormed", "kept", "cancellation")


def prompt_row(rows: Rows, outcome: Outcome, manifest: Manifest) -> None:
    """The prompt, what became of it, and what the model said."""
    example = outcome.example
    _add(
        rows,
        prompt=outcome.index,
        status=outcome.status,
        error=outcome.error,
        correct=outcome.correct,
        predicted=outcome.predicted,
        probability=outcome.probability,
        difference=outcome.difference,
        task=example.task,
        text=example.text,
        answer=example.answer,
        wrong=example.wrong,
        answers=example.answers,
        against=getattr(example, "against", ()),
        template=example.template,
        continuation=example.continuation,
        roles=list(example.roles),
        role_start=[start for start, _ in example.roles.values()],
        role_end=[end for _, end in example.roles.values()],
        **{f"label_{name}": getattr(example, "labels", {}).get(name) for name in manifest.labels},
    )


def circuit_row(rows: Rows, prompt: int, circuit: Circuit, manifest: Manifest) -> None:
    """What a circuit is of, how exact, and how large; what it shares with the manifest is not repeated."""
    if circuit.model.get("fingerprint") != manifest.model["fingerprint"]:
        raise KeyholeError(f"the circuit of prompt {prompt} is of another model than this store.")
    if set(circuit.errors) != set(ERRORS):
        raise KeyholeError(f"the circuit of prompt {prompt} tells other errors than {', '.join(ERRORS)}.")
    told = circuit.parameters.record()
    _add(
        rows,
        prompt=prompt,
        nodes=len(circuit.nodes),
        edges=len(circuit.edges),
        heads=len(circuit.heads),
        firings=len(circuit.firings),
        mlps=len(circuit.mlps),
        token_ids=circuit.token_ids,
        tokens=circuit.tokens,
        **{name: told.pop(name) for name in OWN},
        **{f"error_{name}": circuit.errors[name] for name in ERRORS},
        parameters=_json(told),
        model=_unlike(circuit.model, manifest.model),
        versions=_unlike(circuit.versions, manifest.versions),
    )


def node_rows(rows: Rows, prompt: int, circuit: Circuit) -> None:
    """A row per node, with what was found where it was explained."""
    n = len(circuit.nodes)
    rows["prompt"] += [prompt] * n
    rows["node"] += range(n)
    _places(rows, "", circuit.nodes)
    rows["dest_token"] += [circuit.tokens[node.dest] for node in circuit.nodes]
    rows["src_token"] += [circuit.tokens[node.src] for node in circuit.nodes]
    rows["attention"] += circuit.attention
    rows["influence"] += circuit.influence or [None] * n
    rows["leaf"] += circuit.leaves or [None] * n
    traced = {one.node: (place, one) for place, one in enumerate(circuit.firings)}
    mlps = {one.node: (place, one) for place, one in enumerate(circuit.mlps)}
    if len(traced) + len(mlps) != len(circuit.firings) + len(circuit.mlps) or traced.keys() & mlps.keys():
        raise KeyholeError(f"the circuit of prompt {prompt} explains a node twice, which a store cannot keep.")
    firings = [traced.get(i, (None, None)) for i in range(n)]
    writes = [mlps.get(i, (None, None)) for i in range(n)]
    rows["explained"] += [a if a is not None else b for (a, _), (b, _) in zip(firings, writes, strict=True)]
    for name in ("tau", "visible"):
        rows[name] += [getattr(one, name, None) for _, one in firings]
    for name in (*SHARES, "causes"):
        rows[name] += [getattr(one, name, None) for _, one in writes]
    rows["neurons"] += [_neurons(one, 0) for _, one in writes]
    rows["neuron_shares"] += [_neurons(one, 1) for _, one in writes]


def edge_rows(rows: Rows, prompt: int, circuit: Circuit) -> None:
    """A row per edge, with who is at both ends."""
    edges, nodes = circuit.edges, circuit.nodes
    rows["prompt"] += [prompt] * len(edges)
    rows["edge"] += range(len(edges))
    rows["from_node"] += [edge.source for edge in edges]
    rows["to_node"] += [edge.target for edge in edges]
    _places(rows, "from_", [nodes[edge.source] for edge in edges])
    _places(rows, "to_", [nodes[edge.target] for edge in edges])
    for name in ("side", "weight", "ig", "alone", "influence", "channels"):
        rows[name] += [getattr(edge, name) for edge in edges]


def removal_rows(rows: Rows, prompt: int, circuit: Circuit) -> None:
    """A row per candidate that a firing's search took away, in that order, the dest side first."""
    for traced in circuit.firings:
        for side, removed in (("dest", traced.dest), ("src", traced.src)):
            rows["prompt"] += [prompt] * len(removed)
            rows["node"] += [traced.node] * len(removed)
            rows["side"] += [side] * len(removed)
            _places(rows, "", [one.writer for one in removed])
            for name in ("channel", "ig", "after"):
                rows[name] += [getattr(one, name) for one in removed]


CIRCUIT_ROWS: dict[str, Callable[[Rows, int, Circuit], None]] = {
    "nodes": node_rows,
    "edges": edge_rows,
    "removals": removal_rows,
}


def _add(rows: Rows, **values: Any) -> None:
    for name, value in values.items():
        rows[name].append(value)


def _places(rows: Rows, prefix: str, found: Any) -> None:
    for name in PLACE:
        rows[f"{prefix}{name}"] += [getattr(one, name) for one in found]


def _neurons(one: TracedMlp | None, of: int) -> list[Any] | None:
    return None if one is None else [pair[of] for pair in one.neurons]


def _unlike(own: Mapping[str, str], common: Mapping[str, str]) -> str | None:
    return None if own == common else _json(dict(own))


def _json(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, allow_nan=False, sort_keys=True)
