"""In which forms do others want a circuit? Tables, graphs, and MIB's edge scores.

Which circuit is in a file of EAP-IG or MIB? Edges between components without tokens, with scores; read strictly.

    {"cfg": {"n_layers": 12, "n_heads": 12, "parallel_attn_mlp": false, "d_model": 768},
     "nodes": {"a9.h6": {"in_graph": true}, ...},
     "edges": {"a7.h9->a9.h6<q>": {"score": 0.3, "in_graph": true}, "m0->logits": ...}}

`exports.to_mib` writes such files. Older ones have no d_model, and true or false for a node. Those of neurons, and
those that torch pickles (.pt), are not read.
"""

import json
import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, fields, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from keyhole.brief import Table, as_dataframe
from keyhole.circuits.circuit import Circuit, EdgeSide, Node
from keyhole.circuits.consistency import require_model
from keyhole.circuits.records import Component, Sizes
from keyhole.circuits.text import node_label, score_of, sufficing
from keyhole.errors import KeyholeError
from keyhole.files import xml_text
from keyhole.strict import is_index, is_number, is_whole, parse_json, quoted, read_text, require

if TYPE_CHECKING:
    import networkx as nx

    from keyhole.models.model import Model

_MOST = 1_000_000  # heads: all of a model's are listed, to draw random ones
_SIDES: dict[str | None, EdgeSide] = {"q": "dest", "k": "src", "v": "value"}
_NODE = r"input|logits|m[0-9]{1,6}|a[0-9]{1,6}\.h[0-9]{1,6}"  # Python makes no numbers of thousands of digits
_EDGE = re.compile(rf"(?P<source>{_NODE})->(?P<target>{_NODE})(?:<(?P<slot>[qkv])>)?")


@dataclass(frozen=True)
class MibEdge:
    """From whom to whom, into which of a head's three inputs."""

    source: Component
    target: Component
    side: EdgeSide


@dataclass(frozen=True)
class Scored:
    """What a method thinks of an edge, and whether it is in the circuit."""

    score: float
    kept: bool


@dataclass(frozen=True)
class MibFile:
    """Edges of one model with their scores, as somebody else found them."""

    name: str
    layers: int
    heads: int
    d_model: int | None  # older files do not say
    parallel: bool  # does an MLP read what its layer's heads read?
    edges: Mapping[MibEdge, Scored]

    @property
    def kept(self) -> frozenset[MibEdge]:
        """The circuit itself, if there is one: files of scores alone have none."""
        return frozenset(edge for edge, scored in self.edges.items() if scored.kept)

    @property
    def possible(self) -> int:
        """How many edges such a model has between heads, MLPs and the answer: all but those that words write."""
        below = [layer * (self.heads + 1) for layer in range(self.layers + 1)]  # who has written before each layer
        beside = 0 if self.parallel else self.heads  # heads of its own layer, that an MLP reads
        return sum((3 * self.heads + 1) * n + beside for n in below[:-1]) + below[-1]

    def require_sizes(self, layers: int, heads: int, d_model: int) -> None:
        """Refuse another model than the file's."""
        ours, its = (layers, heads, d_model), (self.layers, self.heads, self.d_model or d_model)
        if ours != its:
            raise KeyholeError(
                f"{self.name} is of a model of {its[0]} layers, {its[1]} heads and {its[2]} dimensions, and this one "
                f"has {ours[0]}, {ours[1]} and {ours[2]}: give the file's own model."
            )


def is_mib(path: str | Path) -> bool:
    """Is it such a file? By its suffix, or, of a .json file, by what it holds."""
    if str(path).lower().endswith(".mib"):
        return True
    try:
        document = parse_json(read_text(path))
    except KeyholeError:
        return False
    return isinstance(document, dict) and "schema" not in document and {"cfg", "edges"} <= set(document)


def read_mib(path: str | Path) -> MibFile:
    """A file of EAP-IG, MIB or ours; anything damaged or of another kind is refused with the reason."""
    if str(path).lower().endswith(".pt"):
        raise KeyholeError(f"{path} is a pickle, which may run code when it is read: write it anew by graph.to_json.")
    try:
        return mib_from(parse_json(read_text(path)), str(path))
    except KeyholeError as error:
        raise KeyholeError(f"{path} is no circuit of EAP-IG or MIB that can be read: {error}") from error


def mib_from(document: Any, name: str) -> MibFile:
    """The same out of a document."""
    require(isinstance(document, dict), "it is not a JSON object.")
    for part in ("cfg", "nodes", "edges"):
        require(isinstance(document.get(part), dict), f"it lacks {part}.")
    cfg = document["cfg"]
    for size in ("n_layers", "n_heads", *(["d_model"] if "d_model" in cfg else [])):
        require(is_whole(cfg.get(size)) and cfg[size] > 0, f"its cfg has no {size}.")
    require(cfg["n_layers"] * cfg["n_heads"] <= _MOST, f"its cfg has more than {_MOST:,} heads, which no model has.")
    parallel = cfg.get("parallel_attn_mlp", False)
    require(isinstance(parallel, bool), "its cfg says of parallel_attn_mlp neither true nor false.")
    for node in document["nodes"].values():
        require(not (isinstance(node, dict) and "neurons" in node), "it is a circuit of neurons, not of edges.")
    file = MibFile(name, cfg["n_layers"], cfg["n_heads"], cfg.get("d_model"), parallel, {})
    edges = {_edge(text, file): _scored(text, scored) for text, scored in document["edges"].items()}
    useful = any(scored.score or scored.kept for scored in edges.values())
    require(useful, "no edge has a score, and none is in the graph.")
    return MibFile(name, file.layers, file.heads, file.d_model, parallel, edges)


def mib_node_name(kind: str, layer: int | None = None, head: int | None = None) -> str | None:
    """A component as those files call it; None: they have no name for it.

    >>> mib_node_name("head", 1, 2), mib_node_name("mlp", 3), mib_node_name("target"), mib_node_name("bias", 3)
    ('a1.h2', 'm3', 'logits', None)
    """
    return {"head": f"a{layer}.h{head}", "mlp": f"m{layer}", "embedding": "input", "target": "logits"}.get(kind)


def mib_edge_name(source: Component, target: Component, side: EdgeSide) -> str | None:
    """An edge as those files call it, from a writer into a side of a reader; None: they have no name for an end.

    >>> mib_edge_name(Component("head", 1, 2), Component("head", 3, 0), "dest")
    'a1.h2->a3.h0<q>'
    """
    writer, reader = (mib_node_name(end.kind, end.layer, end.head) for end in (source, target))
    slot = next((f"<{slot}>" for slot, name in _SIDES.items() if name == side), "")
    return None if writer is None or reader is None else f"{writer}->{reader}{slot}"


def _edge(text: str, file: MibFile) -> MibEdge:
    parts = _EDGE.fullmatch(text)
    require(
        parts is not None, f"it has an edge {quoted(text)}, and edges are called as in a1.h2->a3.h0<q> or m0->logits."
    )
    assert parts is not None
    source, target = (_place(parts[end], file) for end in ("source", "target"))
    of_head = target.kind == "head"
    require(
        of_head == (parts["slot"] is not None),
        f"{quoted(text)}: edges into heads, and no others, end in <q>, <k> or <v>.",
    )
    early = _when(source, file, reads=False) < _when(target, file, reads=True)
    require(early and source.kind != "target", f"{quoted(text)}: what is written there is not read here.")
    whole: EdgeSide = "target" if target.kind == "target" else "mlp"
    return MibEdge(source, target, _SIDES[parts["slot"]] if of_head else whole)


def _place(text: str, file: MibFile) -> Component:
    if text in ("input", "logits"):
        return Component("embedding", 0, None) if text == "input" else Component("target", None, None)
    layer, head = (int(number) for number in [*re.findall(r"\d+", text), "0"][:2])
    exists = is_index(layer, file.layers) and is_index(head, file.heads)
    require(exists, f"it names {text}, and has {file.layers} layers of {file.heads} heads.")
    return Component("head", layer, head) if text[0] == "a" else Component("mlp", layer, None)


def _when(place: Component, file: MibFile, *, reads: bool) -> float:
    """The order of the forward pass: when a component reads, or has written."""
    kind, layer = place.kind, place.layer or 0
    if kind in ("embedding", "target"):
        return -1.0 if kind == "embedding" else float(file.layers)
    late = 0.5 if kind == "mlp" and not (reads and file.parallel) else 0.0
    return layer + late + (0.0 if reads else 0.25)


def _scored(text: str, record: Any) -> Scored:
    require(isinstance(record, dict), f"{quoted(text)} should have a score and in_graph.")
    score, kept = record.get("score", 0.0), record.get("in_graph")
    require(is_number(score) and isinstance(kept, bool), f"{quoted(text)} should have a score and in_graph.")
    return Scored(float(score), kept)


# How do other tools read a circuit? pandas, networkx, GraphML, and the edge names of EAP-IG and MIB.

_IDENTITY = tuple(field.name for field in fields(Node))  # of the writer
_VALUES = ("side", "weight", "ig", "alone", "channels", "influence")  # of an edge
_MEASURED = ("effect", "share")  # of a node or an edge, against a baseline; None: not measured


def to_networkx(circuit: Circuit) -> "nx.MultiDiGraph[int]":
    """A directed multigraph: nodes are indices with their identity as attributes, edges carry side and weights.

    Args:
        circuit: The circuit.

    >>> import keyhole
    >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
    >>> circuit = run.trace("Mary", against="John", through="heads")
    >>> graph = to_networkx(circuit)
    >>> graph.number_of_nodes() == len(circuit.nodes), graph.number_of_edges() == len(circuit.edges)
    (True, True)
    """
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
        graph.add_edge(edge.sender, edge.receiver, side=edge.side, channels=tuple(edge.channels), **numbers)
    return graph


def to_dataframe(circuit: Circuit) -> Table:
    """Which writer causes what, through which channels? A row per signal, strongest first; labels and integers.

    `effect` and `share` are None where they were not measured (`circuit.effects`).

    Args:
        circuit: The circuit.

    >>> import keyhole
    >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
    >>> circuit = run.trace("Mary", against="John", through="heads")
    >>> len(to_dataframe(circuit)) == len(circuit.edges)
    True
    """
    return as_dataframe(signal_rows(circuit))


def signal_rows(circuit: Circuit) -> list[dict[str, Any]]:
    """The rows of `to_dataframe`."""
    rows = []
    for index, edge in sorted(enumerate(circuit.edges), key=lambda pair: -score_of(pair[1])):
        writer, caused = circuit.nodes[edge.sender], circuit.nodes[edge.receiver]
        if edge.side == "target" and circuit.parameters.continuation:
            caused = replace(caused, dest=writer.dest, src=writer.dest)  # the token that is predicted there
        labels = {"writer": node_label(writer, circuit.tokens), "causes": node_label(caused, circuit.tokens)}
        numbers = (None, None) if circuit.measured is None else circuit.measured.of_edge(index)
        measured = dict(zip(_MEASURED, numbers, strict=True))
        ends = {"source": edge.sender, "target": edge.receiver}  # as files and tables call them
        values = {name: getattr(edge, name) for name in _VALUES}
        rows.append({**labels, **ends, **values, **measured, **{name: getattr(writer, name) for name in _IDENTITY}})
    return rows


def to_graphml(circuit: Circuit) -> str:
    """A circuit as GraphML, for Gephi, yEd or Cytoscape.

    Channels become text such as "3 0 12". What is None is left out.

    Args:
        circuit: The circuit.

    >>> import keyhole
    >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
    >>> circuit = run.trace("Mary", against="John", through="heads")
    >>> to_graphml(circuit).count("<edge ") == len(circuit.edges)
    True
    """
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

    Those graphs do not distinguish tokens: edges of all tokens between two components are summed. Scores are shares,
    which have a sign, where these were measured; otherwise influence, where the circuit goes through MLPs.

    Biases, offsets and signals attached to a sufficient circuit are left out.

    Args:
        circuit: The circuit.
        model: The model that made the circuit. Needed only if the circuit comes from a store or an older file, which do
            not have the model's sizes.

    >>> import keyhole
    >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
    >>> circuit = run.trace("Mary", against="John", through="heads")
    >>> "a3.h6->logits" in to_mib(circuit)
    True
    """
    if any(node.kind == "mixer" for node in circuit.nodes):
        raise KeyholeError(
            "EAP-IG and MIB have no name for a block that mixes tokens without attention, and this circuit has some: "
            "save it as .json or .graphml."
        )
    edges: dict[str, float] = {}
    for name, scores in _mib_scores(circuit).items():
        edges[name] = sum(scores.values())
    ends = {end for edge in circuit.edges[: sufficing(circuit)] for end in (edge.sender, edge.receiver)}
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
    scores: dict[str, dict[Hashable, float]] = {}
    shares = circuit.measured.edge_shares if circuit.measured is not None else ()
    for index, edge in enumerate(circuit.edges[: sufficing(circuit)]):
        writer, reader = circuit.nodes[edge.sender], circuit.nodes[edge.receiver]
        name = mib_edge_name(Component.of(writer), Component.of(reader), edge.side)
        if name is None or (edge.influence == 0 and not shares):
            continue
        share = shares[index] if shares else None
        token = writer.dest if share is not None else index
        scores.setdefault(name, {})[token] = score_of(edge) if share is None else share
    return scores


def _mib_sizes(circuit: Circuit, model: "Model | None") -> dict[str, Any]:
    """What EAP-IG makes all edges of a model from."""
    model = model if model is not None or circuit.run is None else circuit.run.model
    if model is not None:
        require_model(circuit, model)
    sizes = circuit.sizes if model is None else Sizes.of(model)
    if sizes is None:
        raise KeyholeError("files for MIB have the sizes of the model, which this circuit does not know: give it.")
    if sizes.parallel is None:
        raise KeyholeError(f"it is not known what MLPs of {circuit.model['name']} read, which files for MIB say.")
    numbers = {"n_layers": sizes.layers, "n_heads": sizes.heads, "d_model": sizes.d_model}
    return {**numbers, "parallel_attn_mlp": sizes.parallel}
