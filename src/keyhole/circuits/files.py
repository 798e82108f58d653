"""How is a circuit stored? One JSON document, read back strictly: what is not validated is not accepted."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from keyhole.circuits.circuit import SCHEMA, Circuit, Edge, EdgeSide, Node, Traced, TracedMlp
from keyhole.circuits.consistency import require_consistent
from keyhole.circuits.records import Accpp, Kind, NodeKind, Removal, Sufficient, Writer, measured_from, parameters_from
from keyhole.errors import KeyholeError
from keyhole.files import is_file, require_file, write_at_once
from keyhole.strict import is_index, is_list, is_number, parse_json, quoted, read_text, require, require_fields

if TYPE_CHECKING:
    from keyhole.faithfulness.routes import Story

DOCUMENTS = (".json", ".graphml", ".html", ".mib")
PICTURES = (".png", ".svg", ".pdf")
SUFFIXES = (*DOCUMENTS, *PICTURES)
_NODE_KINDS, _KINDS, _SIDES = get_args(NodeKind), get_args(Kind), get_args(EdgeSide)
_KEYS = ("schema", "model", "versions", "parameters", "errors", "token_ids", "tokens", "nodes", "edges", "firings")


def save(
    circuit: Circuit, path: str | Path, *, names: Mapping[Edge, str] | None = None, story: "Story | None" = None
) -> None:
    """Write a circuit as .json, .neuronpedia.json, .graphml, .html, .mib or a picture (.png, .svg, .pdf), at once.

    `names` of its edges are for the page, the picture and Neuronpedia's graph, a measured `story` is for the page: the
    other files tell the circuit alone.
    """
    from keyhole.circuits.exports import to_graphml, to_mib
    from keyhole.circuits.neuronpedia import SUFFIX as NEURONPEDIA
    from keyhole.circuits.neuronpedia import to_neuronpedia
    from keyhole.web.page import to_html

    path = require_file(path, SUFFIXES)
    if path.suffix.lower() in PICTURES:
        _draw(circuit, path, names)
        return
    made: tuple[Callable[[Circuit], str], ...] = (
        to_json,
        to_graphml,
        partial(to_html, names=names, story=story),
        to_mib,
    )
    writers = dict(zip(DOCUMENTS, made, strict=True))
    if path.name.lower().endswith(NEURONPEDIA):
        writers[".json"] = partial(to_neuronpedia, names=names)
    write_at_once(path, writers[path.suffix.lower()](circuit))


def _draw(circuit: Circuit, path: Path, names: Mapping[Edge, str] | None) -> None:
    from keyhole.figures.circuit import circuit_figure
    from keyhole.figures.style import save as save_figure

    save_figure(circuit_figure(circuit, names=names), path)


def to_json(circuit: Circuit) -> str:
    """A circuit as a JSON document; `from_json` gives back an equal one."""
    through = bool(circuit.influence)
    later = circuit.measured is not None or isinstance(circuit.parameters, Sufficient)
    document = {
        "schema": SCHEMA if later else 2 if through else 1,
        "model": dict(circuit.model),
        "versions": dict(circuit.versions),
        "parameters": circuit.parameters.record(),
        "errors": dict(circuit.errors),
        "token_ids": list(circuit.token_ids),
        "tokens": list(circuit.tokens),
        "nodes": [_node_record(circuit, i) for i in range(len(circuit.nodes))],
        "edges": [_edge_record(edge, through) for edge in circuit.edges],
        "firings": [_traced_record(traced) for traced in circuit.firings],
    }
    if through:
        document["mlps"] = [asdict(one) for one in circuit.mlps]
    if circuit.measured is not None:
        document["measured"] = circuit.measured.record()
    return json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def load_circuit(path: str | Path) -> Circuit:
    """Read a circuit file; anything damaged, foreign or of another schema is refused with the reason."""
    _require_own(Path(path))
    text = read_text(path)
    try:
        return from_json(text)
    except KeyholeError as error:
        raise KeyholeError(f"{path} is not a circuit that can be read: {error}") from error


def _require_own(path: Path) -> None:
    """Refuse a circuit's other files, which do not hold all of it."""
    from keyhole.circuits.neuronpedia import SUFFIX as NEURONPEDIA

    ends = (NEURONPEDIA, *SUFFIXES[1:])
    end = next((end for end in ends if path.name.lower().endswith(end)), None)
    if end is not None and is_file(path):
        own = f"{path.name[: -len(end)]}.json"
        raise KeyholeError(
            f"{path} is a circuit to look at, or for other tools; circuits are read from their .json. Write that, "
            f'too: `keyhole trace ... --out {own}`, circuit.save("{own}").'
        )


def from_json(text: str) -> Circuit:
    """A circuit from its JSON document."""
    return from_document(parse_json(text))


def from_document(document: Any) -> Circuit:
    """A circuit from its document, as JSON or a store has it; everything in it is checked."""
    require(isinstance(document, dict), "it is not a JSON object.")
    schema = document.get("schema")
    require(schema in (1, 2, SCHEMA), f"its schema is {quoted(schema)}, and this version reads 1, 2 and {SCHEMA}.")
    through = schema == 2 or (schema == SCHEMA and "mlps" in document)
    keys = (*_KEYS, "mlps") if through else _KEYS
    optional = {"measured"} if schema == SCHEMA else set()
    require(set(document) - optional == set(keys), f"its keys should be {', '.join(keys)}.")
    for name in ("model", "versions", "parameters", "errors"):
        require(isinstance(document[name], dict), f"{name} should be an object.")
    ids, tokens = document["token_ids"], document["tokens"]
    require(
        is_list(ids, int) and is_list(tokens, str) and len(ids) == len(tokens) > 0, "token_ids and tokens do not match."
    )
    require(all(is_number(v) for v in document["errors"].values()), "errors should be numbers.")
    own = [_own(record) for record in document["nodes"]] if through and is_list(document["nodes"], dict) else []
    nodes, attention = _nodes(document["nodes"], len(ids))
    parameters = parameters_from(document["parameters"])
    told = isinstance(parameters, Accpp) and parameters.through == "mlps"
    require(told == through, f"its schema is {schema}, but its parameters are of a circuit of the other kind.")
    edges = _edges(document["edges"], len(nodes), through, joined=through or isinstance(parameters, Sufficient))
    sizes = {"nodes": len(nodes), "edges": len(edges), "tokens": len(ids)}
    circuit = Circuit(
        model=document["model"],
        versions=document["versions"],
        parameters=parameters,
        errors=document["errors"],
        token_ids=tuple(ids),
        tokens=tuple(tokens),
        nodes=nodes,
        attention=attention,
        edges=edges,
        firings=_firings(document["firings"], nodes, len(ids)),
        influence=tuple(influence for influence, _ in own),
        leaves=tuple(leaf for _, leaf in own),
        mlps=_mlps(document["mlps"], nodes, edges) if through else (),
        measured=measured_from(document["measured"], **sizes) if "measured" in document else None,
    )
    require_consistent(circuit)
    return circuit


def _node_record(circuit: Circuit, index: int) -> dict[str, Any]:
    record = {**asdict(circuit.nodes[index]), "attention": circuit.attention[index]}
    if not circuit.influence:
        return record
    return {**record, "influence": circuit.influence[index], "leaf": circuit.leaves[index]}


def _own(record: dict[str, Any]) -> tuple[float, str | None]:
    """A node's influence, and why it was not explained; taken out of its record."""
    influence, leaf = record.pop("influence", None), record.pop("leaf", None)
    require(is_number(influence), "a node's influence is not a number.")
    require(leaf is None or isinstance(leaf, str), "a node's reason not to be explained is no text.")
    return influence, leaf


def _mlps(records: Any, nodes: tuple[Node, ...], edges: tuple[Edge, ...]) -> tuple[TracedMlp, ...]:
    require(is_list(records, dict), "mlps should be a list.")
    n, sources = len(nodes), {(edge.target, edge.source) for edge in edges if edge.side == "mlp"}
    read = {edge.source for edge in edges if edge.influence}
    shares, found = ("offset", "left", "left_renormed", "kept", "cancellation"), []
    for record in records:
        require_fields(record, {"node", *shares, "causes", "neurons"}, "an MLP")
        require(is_index(record["node"], n) and all(is_number(record[name]) for name in shares), "an MLP is wrong.")
        node = record["node"]
        require(nodes[node].kind == "mlp" and node in read, "an MLP that is explained is none, or nobody reads it.")
        causes = record["causes"]
        require(is_list(causes, int) and all((node, i) in sources for i in causes), "causes of an MLP lack edges.")
        pairs = record["neurons"]
        good = is_list(pairs, list) and all(len(p) == 2 and is_index(p[0]) and is_number(p[1]) for p in pairs)
        require(good, "an MLP's neurons are wrong.")
        lists = {"causes": tuple(record["causes"]), "neurons": tuple((index, share) for index, share in pairs)}
        found.append(TracedMlp(**{**record, **lists}))
    return tuple(found)


def _edge_record(edge: Edge, through: bool) -> dict[str, Any]:
    record = asdict(edge)
    if not through:
        del record["influence"]
    return {"from": record.pop("source"), "to": record.pop("target"), **record, "channels": list(edge.channels)}


def _traced_record(traced: Traced) -> dict[str, Any]:
    sides = {name: [_removal_record(removal) for removal in getattr(traced, name)] for name in ("dest", "src")}
    return {"node": traced.node, "tau": traced.tau, "visible": traced.visible, **sides}


def _removal_record(removal: Removal) -> dict[str, Any]:
    """Without the writer's own token, which is the firing's dest or src."""
    who, rest = asdict(removal.writer), {"channel": removal.channel, "ig": removal.ig, "after": removal.after}
    return {name: who[name] for name in ("kind", "layer", "head", "src")} | rest


def _nodes(records: Any, n: int) -> tuple[tuple[Node, ...], tuple[float | None, ...]]:
    require(isinstance(records, list), "nodes should be a list.")
    nodes, attention = [], []
    for record in records:
        require_fields(record, {"kind", "layer", "head", "dest", "src", "attention"}, "a node")
        require(record["kind"] in _NODE_KINDS, f"there is no kind of node {quoted(record['kind'])}.")
        require(is_index(record["dest"], n) and is_index(record["src"], n), "a node's tokens are outside the prompt.")
        target, head = record["kind"] == "target", record["kind"] in ("head", "offset", "value_offset")
        require((record["layer"] is None) if target else is_index(record["layer"]), "a node's layer is wrong.")
        require(is_index(record["head"]) if head else record["head"] is None, "a node's head is wrong.")
        weight = record.pop("attention")
        require(weight is None or is_number(weight), "a node's attention is not a number.")
        nodes.append(Node(**record))
        attention.append(weight)
    require(len(set(nodes)) == len(nodes), "a node occurs twice.")
    require(sum(node.kind == "target" for node in nodes) == 1, "it should have exactly one target.")
    return tuple(nodes), tuple(attention)


def _edges(records: Any, n: int, through: bool, *, joined: bool) -> tuple[Edge, ...]:
    require(isinstance(records, list), "edges should be a list.")
    edges = []
    names = {"from", "to", "side", "weight", "ig", "alone", "channels", *(["influence"] if through else [])}
    for record in records:
        require_fields(record, names, "an edge")
        share = record.get("influence")
        require(not through or is_number(share), "an edge's influence is no number.")
        require(joined or record["side"] not in ("mlp", "value"), "a circuit of heads has no edges into MLPs.")
        require(is_index(record["from"], n) and is_index(record["to"], n), "an edge joins nodes that do not exist.")
        require(record["side"] in _SIDES, f"there is no side {quoted(record['side'])}.")
        require(all(is_number(record[name]) for name in ("weight", "ig", "alone")), "an edge's weight is no number.")
        require(isinstance(record["channels"], list) and all(map(is_index, record["channels"])), "wrong channels.")
        edges.append(
            Edge(record["from"], record["to"], record["side"], *_numbers(record), tuple(record["channels"]), share)
        )
    return tuple(edges)


def _numbers(record: dict[str, Any]) -> tuple[float, float, float]:
    return record["weight"], record["ig"], record["alone"]


def _firings(records: Any, nodes: tuple[Node, ...], n: int) -> tuple[Traced, ...]:
    require(isinstance(records, list), "firings should be a list.")
    traced = []
    for record in records:
        require_fields(record, {"node", "tau", "visible", "dest", "src"}, "a firing")
        require(is_index(record["node"], len(nodes)) and is_number(record["tau"]), "a firing's node or tau is wrong.")
        require(is_index(record["visible"]), "a firing's number of visible keys is wrong.")
        require(is_list(record["dest"], dict) and is_list(record["src"], dict), "a firing's sides should be lists.")
        node = nodes[record["node"]]
        sides = [tuple(_removal(r, n, getattr(node, side)) for r in record[side]) for side in ("dest", "src")]
        traced.append(Traced(record["node"], record["tau"], record["visible"], *sides))
    return tuple(traced)


def _removal(record: Any, n: int, dest: int) -> Removal:
    require_fields(record, {"kind", "layer", "head", "src", "channel", "ig", "after"}, "a removed candidate")
    require(record["kind"] in _KINDS and is_index(record["layer"]), "a removed candidate is wrong.")
    require(record["head"] is None or is_index(record["head"]), "a removed candidate's head is wrong.")
    require(is_index(record["src"], n) and is_index(record["channel"]), "a removed candidate is out of range.")
    require(is_number(record["ig"]) and is_number(record["after"]), "a removed candidate's numbers are wrong.")
    who = Writer(record["kind"], record["layer"], record["head"], dest, record["src"])
    return Removal(who, record["channel"], record["ig"], record["after"])
