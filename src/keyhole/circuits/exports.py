"""How do other tools read a circuit? pandas, networkx, GraphML, and the edge names of EAP-IG and MIB."""

import json
from collections.abc import Hashable
from dataclasses import asdict, fields
from io import BytesIO
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from keyhole.circuits.circuit import Circuit, Node
from keyhole.circuits.consistency import require_model
from keyhole.circuits.mib import mib_edge_name, mib_node_name
from keyhole.circuits.text import node_label, score_of, sufficing
from keyhole.circuits.writer import Component
from keyhole.dataframes import Table, as_dataframe
from keyhole.errors import KeyholeError
from keyhole.files import xml_text
from keyhole.models.architecture.mlp_facts import mlp_facts

if TYPE_CHECKING:
    import networkx as nx

    from keyhole.models.model import Model

_IDENTITY = tuple(field.name for field in fields(Node))  # of the writer
_MEASURED = ("effect", "share")  # of a node or an edge, against a baseline; None: not measured


def to_networkx(circuit: Circuit) -> "nx.MultiDiGraph[int]":
    """A directed multigraph: nodes are indices with their identity as attributes, edges carry side and weights."""
    import networkx as nx  # only those who export need it

    graph: nx.MultiDiGraph[int] = nx.MultiDiGraph(model=circuit.model["name"], fingerprint=circuit.model["fingerprint"])
    if circuit.measured is not None:
        graph.graph["baseline"] = circuit.measured.baseline
    for index, node in enumerate(circuit.nodes):
        attributes: dict[str, Any] = {"kind": node.kind, "layer": node.layer, "head": node.head}
        attributes |= {
            "dest": node.dest,
            "src": node.src,
            "attention": circuit.attention[index],
            "sink": circuit.is_sink(index),
        }
        if circuit.influence:
            attributes |= {"influence": circuit.influence[index], "leaf": circuit.leaves[index]}
        if circuit.measured is not None:
            attributes |= dict(zip(_MEASURED, circuit.measured.of_node(index), strict=True))
        graph.add_node(index, label=node_label(node, circuit.tokens), **attributes)
    for index, edge in enumerate(circuit.edges):
        numbers: dict[str, float | None] = {"weight": edge.weight, "ig": edge.ig, "alone": edge.alone}
        if edge.influence is not None:
            numbers["influence"] = edge.influence
        if circuit.measured is not None:
            numbers |= dict(zip(_MEASURED, circuit.measured.of_edge(index), strict=True))
        graph.add_edge(edge.source, edge.target, side=edge.side, channels=tuple(edge.channels), **numbers)
    return graph


def to_dataframe(circuit: Circuit) -> Table:
    """Which writer causes what, through which channels? A row per signal, strongest first; labels and integers.

    `effect` and `share` are None where they were not measured (`circuit.effects`).
    """
    return as_dataframe(signal_rows(circuit))


def signal_rows(circuit: Circuit) -> list[dict[str, Any]]:
    """The rows of `to_dataframe`."""
    rows = []
    for index, edge in sorted(enumerate(circuit.edges), key=lambda pair: -score_of(pair[1])):
        writer, caused = circuit.nodes[edge.source], circuit.nodes[edge.target]
        labels = {"writer": node_label(writer, circuit.tokens), "causes": node_label(caused, circuit.tokens)}
        found = (None, None) if circuit.measured is None else circuit.measured.of_edge(index)
        measured = dict(zip(_MEASURED, found, strict=True))
        rows.append({**labels, **asdict(edge), **measured, **{name: getattr(writer, name) for name in _IDENTITY}})
    return rows


def to_graphml(circuit: Circuit) -> str:
    """GraphML; channels become text such as "3 0 12", and what is None is left out."""
    import networkx as nx

    graph = to_networkx(circuit)
    graph.graph.update({name: xml_text(text) for name, text in graph.graph.items()})
    for _, attributes in graph.nodes(data=True):
        for name, value in list(attributes.items()):
            if value is None:
                del attributes[name]
            elif isinstance(value, str):
                attributes[name] = xml_text(value)
    for _, _, attributes in graph.edges(data=True):
        attributes["channels"] = " ".join(str(k) for k in attributes["channels"])
        for name in [name for name, value in attributes.items() if value is None]:
            del attributes[name]
    buffer = BytesIO()
    nx.write_graphml(graph, buffer)
    return _with_booleans(buffer.getvalue().decode("utf-8"))


def _with_booleans(text: str) -> str:
    """GraphML says true and false, where networkx writes what Python says."""
    keys = [key.attrib for key in ElementTree.fromstring(text.encode()).iter() if key.tag.endswith("}key")]
    for key in (key["id"] for key in keys if key["attr.type"] == "boolean"):
        for value in ("True", "False"):
            text = text.replace(f'<data key="{key}">{value}</data>', f'<data key="{key}">{value.lower()}</data>')
    return text


def to_mib(circuit: Circuit, model: "Model | None" = None) -> str:
    """Edge scores under EAP-IG's names, as MIB reads them: `a1.h2->a3.h0<q>`, `m0->logits`.

    Those graphs know no tokens: edges of all tokens between two components are summed. Their scores are shares, which
    have a sign, where these were measured; else influence, where a circuit goes through MLPs. Biases and offsets have
    no place there and are left out, and so are the signals attached to a circuit that suffices. The sizes of the model
    have: a circuit that was read from a file needs the `model` that made it.
    """
    if any(node.kind == "mixer" for node in circuit.nodes):
        raise KeyholeError(
            "EAP-IG and MIB have no name for a block that mixes tokens without attention, and this circuit has some: "
            "save it as .json or .graphml."
        )
    edges: dict[str, float] = {}
    for name, scores in _mib_scores(circuit).items():
        edges[name] = sum(scores.values())
    ends = {end for edge in circuit.edges[: sufficing(circuit)] for end in (edge.source, edge.target)}
    nodes = {mib_node_name(node.kind, node.layer, node.head) for node in (circuit.nodes[end] for end in ends)}
    document = {
        "cfg": _mib_sizes(circuit, model),
        "nodes": {name: {"in_graph": True} for name in sorted(n for n in nodes if n is not None)},
        "edges": {name: {"score": score, "in_graph": True} for name, score in sorted(edges.items())},
    }
    return json.dumps(document, indent=1) + "\n"


def _mib_scores(circuit: Circuit) -> dict[str, dict[Hashable, float]]:
    """The scores of token-level edges, by the name of the edge without its token.

    Edges that differ in the token that a head takes something from alone have one share, which is counted once.
    """
    found: dict[str, dict[Hashable, float]] = {}
    shares = circuit.measured.edge_shares if circuit.measured is not None else ()
    for index, edge in enumerate(circuit.edges[: sufficing(circuit)]):
        writer, reader = circuit.nodes[edge.source], circuit.nodes[edge.target]
        name = mib_edge_name(Component.of(writer), Component.of(reader), edge.side)
        if name is None or (edge.influence == 0 and not shares):
            continue
        share = shares[index] if shares else None
        token = writer.dest if share is not None else index
        found.setdefault(name, {})[token] = score_of(edge) if share is None else share
    return found


def _mib_sizes(circuit: Circuit, model: "Model | None") -> dict[str, Any]:
    """What EAP-IG makes all edges of a model from."""
    model = model if model is not None or circuit.run is None else circuit.run.model
    if model is None:
        raise KeyholeError(
            "files for MIB tell the sizes of the model, which a circuit from a file does not know: give it."
        )
    require_model(circuit, model)
    facts, dims = mlp_facts(model.hf.config), model.dims
    if facts is None:
        raise KeyholeError(f"it is not known of {model.name} what its MLPs read, which files for MIB tell.")
    sizes = {"n_layers": dims.layers, "n_heads": dims.heads, "d_model": dims.d_model}
    return {**sizes, "parallel_attn_mlp": facts.parallel}
