"""How is a circuit stored? One JSON document, read back strictly: what is not validated is not accepted."""

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import numpy as np
from jaxtyping import Float

from keyhole.circuits.circuit import SCHEMA, Circuit
from keyhole.circuits.columns import Directions, Edges, Firings, Mlps, Nodes
from keyhole.circuits.consistency import require_consistent
from keyhole.circuits.graph import Edge, EdgeSide, Node, Traced, TracedMlp
from keyhole.circuits.records import Kind, Measured, NodeKind, Removal, Sizes, Sufficient, Writer, parameters_from
from keyhole.errors import KeyholeError
from keyhole.files import is_file, require_file, write_at_once
from keyhole.strict import Index, is_whole, parse_json, quoted, read, read_text, require

if TYPE_CHECKING:
    from keyhole.faithfulness.routes import Story

DOCUMENTS = (".json", ".graphml", ".html", ".mib")
PICTURES = (".png", ".svg", ".pdf")
SUFFIXES = (*DOCUMENTS, *PICTURES)

# What has a document? Those of circuits through MLPs have `mlps`, and influence at nodes and edges.


class _Node(TypedDict):
    kind: NodeKind
    layer: Index | None
    head: Index | None
    dest: Index
    src: Index
    attention: float | None
    influence: NotRequired[float]
    leaf: NotRequired[str | None]


_Edge = TypedDict(
    "_Edge",
    {
        "from": Index,
        "to": Index,
        "side": EdgeSide,
        "weight": float,
        "ig": float,
        "alone": float,
        "channels": tuple[Index, ...],
        "influence": NotRequired[float],
    },
)


class _Removal(TypedDict):
    """Without the writer's own token, which is the firing's dest or src."""

    kind: Kind
    layer: Index
    head: Index | None
    src: Index
    channel: Index
    ig: float
    after: float


class _Firing(TypedDict):
    node: Index
    tau: float
    visible: Index
    dest: tuple[_Removal, ...]
    src: tuple[_Removal, ...]


class _Mlp(TypedDict):
    node: Index
    offset: float
    left: float
    left_renormed: float
    kept: float
    cancellation: float
    causes: tuple[Index, ...]
    neurons: tuple[tuple[Index, float], ...]
    direction: NotRequired[str]  # float32, little-endian, as base64: a third of what decimal numbers take


class About(TypedDict):
    """What a circuit is of: all but its graph, which a store keeps in other tables."""

    model: Mapping[str, str]
    versions: Mapping[str, str]
    parameters: Mapping[str, Any]
    errors: Mapping[str, float]
    token_ids: tuple[int, ...]
    tokens: tuple[str, ...]
    measured: NotRequired[Measured]
    sizes: NotRequired[Sizes]


class _Document(About):
    schema: int
    nodes: tuple[_Node, ...]
    edges: tuple[_Edge, ...]
    firings: tuple[_Firing, ...]
    mlps: NotRequired[tuple[_Mlp, ...]]


def save(
    circuit: Circuit, path: str | Path, *, names: Mapping[Edge, str] | None = None, story: "Story | None" = None
) -> None:
    """Write a circuit as a file: its suffix says which kind.

    .json holds all of it. .html is a page, .png, .svg and .pdf are pictures; .graphml, .mib and .neuronpedia.json are
    for other programs.

    Args:
        circuit: The circuit.
        path: The file. It appears whole or not at all.
        names: Names of edges, for the page, the picture and Neuronpedia's graph.
        story: A measured story, for the page.

    >>> import keyhole
    >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
    >>> circuit = run.trace("Mary", against="John", through="heads")
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     save(circuit, f"{folder}/mary.json")
    ...     load_circuit(f"{folder}/mary.json") == circuit
    True
    """
    from keyhole.circuits.exports import to_graphml, to_mib
    from keyhole.circuits.neuronpedia import SUFFIX as NEURONPEDIA
    from keyhole.circuits.neuronpedia import to_neuronpedia
    from keyhole.web.page import to_html

    path = require_file(path, SUFFIXES)
    if path.suffix.lower() in PICTURES:
        _draw(circuit, path, names)
        return
    writers: dict[str, Callable[[Circuit], str]] = {
        ".json": to_json,
        ".graphml": to_graphml,
        ".html": partial(to_html, names=names, story=story),
        ".mib": to_mib,
    }
    if path.name.lower().endswith(NEURONPEDIA):
        writers[".json"] = partial(to_neuronpedia, names=names)
    write_at_once(path, writers[path.suffix.lower()](circuit))


def _draw(circuit: Circuit, path: Path, names: Mapping[Edge, str] | None) -> None:
    from keyhole.figures.circuit import circuit_figure
    from keyhole.figures.style import save as save_figure

    save_figure(circuit_figure(circuit, names=names), path)


def to_json(circuit: Circuit) -> str:
    """A circuit as a JSON document; `from_json` gives back an equal one.

    Args:
        circuit: The circuit.

    >>> import keyhole
    >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
    >>> circuit = run.trace("Mary", against="John", through="heads")
    >>> from_json(to_json(circuit)) == circuit
    True
    """
    through = bool(circuit.influence)
    document: dict[str, Any] = {
        "schema": _schema(circuit),
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
        document["mlps"] = [asdict(mlp) for mlp in circuit.mlps]
        for record in document["mlps"]:
            if (direction := circuit.directions.get(record["node"])) is not None:
                record["direction"] = _packed(direction)
    if circuit.measured is not None:
        document["measured"] = circuit.measured.record()
    if circuit.sizes is not None:
        document["sizes"] = asdict(circuit.sizes)
    return json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def _schema(circuit: Circuit) -> int:
    """The schema that has all of it: a circuit of an older file is written as it was read."""
    if circuit.sizes is not None:
        return SCHEMA
    if circuit.measured is not None or isinstance(circuit.parameters, Sufficient):
        return 3
    return 2 if circuit.influence else 1


def _packed(direction: Float[np.ndarray, "d_model"]) -> str:
    return base64.b64encode(direction.astype("<f4").tobytes()).decode("ascii")


def _unpacked(text: str, node: int, sizes: Sizes) -> Float[np.ndarray, "d_model"]:
    """The direction of an MLP, which is refused unless it is one."""
    try:
        data = base64.b64decode(text.encode("ascii"), validate=True)
    except (UnicodeEncodeError, binascii.Error) as error:
        raise KeyholeError(f"the direction of node {node} is not base64: {error}.") from error
    require(
        len(data) == 4 * sizes.d_model,
        f"the direction of node {node} has {len(data)} bytes, and {sizes.d_model} float32 numbers have "
        f"{4 * sizes.d_model}.",
    )
    direction = np.frombuffer(data, dtype="<f4").astype(np.float32)
    require(bool(np.isfinite(direction).all()), f"the direction of node {node} has NaN or infinite numbers.")
    require(bool(direction.any()), f"the direction of node {node} is zero.")
    return direction


def load_circuit(path: str | Path) -> Circuit:
    """Read a circuit file (.json).

    What is damaged, of another program or of another schema is refused, with the reason.

    Args:
        path: The file, as `save` wrote it.

    >>> import keyhole
    >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
    >>> circuit = run.trace("Mary", against="John", through="heads")
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     save(circuit, f"{folder}/mary.json")
    ...     load_circuit(f"{folder}/mary.json") == circuit
    True
    """
    _require_lossless(Path(path))
    text = read_text(path)
    try:
        return from_json(text)
    except KeyholeError as error:
        raise KeyholeError(f"{path} is not a circuit that can be read: {error}") from error


def _require_lossless(path: Path) -> None:
    """Refuse a circuit's other files, which do not hold all of it."""
    from keyhole.circuits.neuronpedia import SUFFIX as NEURONPEDIA

    ends = (NEURONPEDIA, *SUFFIXES[1:])
    end = next((end for end in ends if path.name.lower().endswith(end)), None)
    if end is not None and is_file(path):
        lossless = f"{path.name[: -len(end)]}.json"
        raise KeyholeError(
            f"{path} is a circuit to look at, or for other tools; circuits are read from their .json. Write that, "
            f'too: `keyhole trace ... --out {lossless}`, circuit.save("{lossless}").'
        )


def from_json(text: str) -> Circuit:
    """A circuit from its JSON document.

    Everything in it is checked. What is damaged or of another schema is refused, with the reason.

    Args:
        text: The document, as `to_json` writes it.

    >>> import keyhole
    >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
    >>> circuit = run.trace("Mary", against="John", through="heads")
    >>> from_json(to_json(circuit)) == circuit
    True
    """
    return from_document(parse_json(text))


def from_document(document: Any) -> Circuit:
    """A circuit from its document, as JSON or a store has it; everything in it is checked."""
    require(isinstance(document, dict), "it is not a JSON object.")
    schema = document.get("schema")
    known = schema in range(1, SCHEMA + 1) and is_whole(schema)
    require(known, f"its schema is {quoted(schema)}, and this version reads 1 to {SCHEMA}.")
    parts = read(_Document, document)
    through = "mlps" in parts
    older = schema > 2 or (through == (schema == 2) and "measured" not in parts)
    require(older and ("sizes" in parts) == (schema == SCHEMA), f"its keys are not of schema {schema}.")
    require(
        schema == SCHEMA or "continuation" not in parts["parameters"],
        f"its answer is a continuation, which files have from schema {SCHEMA} on.",
    )
    accounted = {"influence"} if through else set()
    require(
        all(record.keys() & {"influence"} == accounted for record in (*parts["nodes"], *parts["edges"]))
        and all(("leaf" in record) == through for record in parts["nodes"]),
        "nodes and edges have influence exactly where a circuit goes through MLPs.",
    )
    of_mlps = parts["parameters"].get("through") == "mlps"
    require(of_mlps == through, f"its schema is {schema}, but its parameters are of a circuit of the other kind.")
    nodes = Nodes.of(Node(x["kind"], x["layer"], x["head"], x["dest"], x["src"]) for x in parts["nodes"])
    return assembled(
        parts,
        nodes=nodes,
        attention=tuple(record["attention"] for record in parts["nodes"]),
        edges=Edges.of(_edge(record) for record in parts["edges"]),
        firings=Firings.of(_firing(record, nodes) for record in parts["firings"]),
        influence=tuple(record["influence"] for record in parts["nodes"] if "influence" in record),
        leaves=tuple(record["leaf"] for record in parts["nodes"] if "leaf" in record),
        mlps=Mlps.of(_mlp(record) for record in parts.get("mlps", ())),
        directions=_directions(parts),
    )


def _mlp(record: _Mlp) -> TracedMlp:
    columns: dict[str, Any] = {name: value for name, value in record.items() if name != "direction"}
    return TracedMlp(**columns)


def _directions(parts: _Document) -> Directions:
    """Of all MLPs that are explained, or of none: parts that are shown have none."""
    mlps, sizes = parts.get("mlps", ()), parts.get("sizes")
    packed = {record["node"]: record["direction"] for record in mlps if "direction" in record}
    if not packed:
        return {}
    require(
        sum("direction" in record for record in mlps) == len(mlps),
        "some of its MLPs have a direction, and others have none.",
    )
    require(sizes is not None, f"it has directions, which files have from schema {SCHEMA} on.")
    assert sizes is not None
    return {node: _unpacked(text, node, sizes) for node, text in packed.items()}


def assembled(about: About, **graph: Any) -> Circuit:
    """A circuit of what it is of and its graph, which must hold together."""
    require(len(about["token_ids"]) == len(about["tokens"]) > 0, "token_ids and tokens do not match.")
    circuit = Circuit(
        model=about["model"],
        versions=about["versions"],
        parameters=parameters_from(about["parameters"]),
        errors=about["errors"],
        token_ids=about["token_ids"],
        tokens=about["tokens"],
        measured=about.get("measured"),
        sizes=about.get("sizes"),
        **graph,
    )
    require_consistent(circuit)
    return circuit


def _node_record(circuit: Circuit, index: int) -> dict[str, Any]:
    record = {**asdict(circuit.nodes[index]), "attention": circuit.attention[index]}
    if not circuit.influence:
        return record
    return {**record, "influence": circuit.influence[index], "leaf": circuit.leaves[index]}


def _edge_record(edge: Edge, through: bool) -> dict[str, Any]:
    record = asdict(edge)
    if not through:
        del record["influence"]
    return {"from": record.pop("sender"), "to": record.pop("receiver"), **record, "channels": list(edge.channels)}


def _traced_record(traced: Traced) -> dict[str, Any]:
    sides = {name: [_removal_record(removal) for removal in getattr(traced, name)] for name in ("dest", "src")}
    return {"node": traced.node, "tau": traced.tau, "visible": traced.visible, **sides}


def _removal_record(removal: Removal) -> dict[str, Any]:
    """Without the writer's own token, which is the firing's dest or src."""
    who, rest = asdict(removal.writer), {"channel": removal.channel, "ig": removal.ig, "after": removal.after}
    return {name: who[name] for name in ("kind", "layer", "head", "src")} | rest


def _edge(record: _Edge) -> Edge:
    ends, numbers = (record["from"], record["to"]), (record["weight"], record["ig"], record["alone"])
    return Edge(*ends, record["side"], *numbers, record["channels"], record.get("influence"))


def _firing(record: _Firing, nodes: Nodes) -> Traced:
    require(record["node"] < len(nodes), f"a firing is of node {record['node']}, which does not exist.")
    node = nodes[record["node"]]
    sides = (tuple(_removal(gone, getattr(node, side)) for gone in record[side]) for side in ("dest", "src"))
    return Traced(record["node"], record["tau"], record["visible"], *sides)


def _removal(record: _Removal, dest: int) -> Removal:
    who = Writer(record["kind"], record["layer"], record["head"], dest, record["src"])
    return Removal(who, record["channel"], record["ig"], record["after"])
