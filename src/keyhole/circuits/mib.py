"""Which circuit is in a file of EAP-IG or MIB? Edges between components without tokens, with scores; read strictly.

    {"cfg": {"n_layers": 12, "n_heads": 12, "parallel_attn_mlp": false, "d_model": 768},
     "nodes": {"a9.h6": {"in_graph": true}, ...},
     "edges": {"a7.h9->a9.h6<q>": {"score": 0.3, "in_graph": true}, "m0->logits": ...}}

`exports.to_mib` writes such files. Older ones have no d_model, and true or false for a node. Those of neurons, and
those that torch pickles (.pt), are not read.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keyhole.circuits.circuit import EdgeSide
from keyhole.circuits.writer import Component
from keyhole.errors import KeyholeError
from keyhole.strict import is_index, is_number, is_whole, parse_json, quoted, read_text, require

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
    d_model: int | None  # older files do not tell
    parallel: bool  # does an MLP read what its layer's heads read?
    edges: Mapping[MibEdge, Scored]

    @property
    def kept(self) -> frozenset[MibEdge]:
        """The circuit itself, if there is one: files of scores alone have none."""
        return frozenset(edge for edge, own in self.edges.items() if own.kept)

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
    require(
        cfg["n_layers"] * cfg["n_heads"] <= _MOST, f"its cfg tells of more than {_MOST:,} heads, which no model has."
    )
    parallel = cfg.get("parallel_attn_mlp", False)
    require(isinstance(parallel, bool), "its cfg says of parallel_attn_mlp neither true nor false.")
    for node in document["nodes"].values():
        require(not (isinstance(node, dict) and "neurons" in node), "it is a circuit of neurons, not of edges.")
    found = MibFile(name, cfg["n_layers"], cfg["n_heads"], cfg.get("d_model"), parallel, {})
    edges = {_edge(text, found): _scored(text, own) for text, own in document["edges"].items()}
    require(any(own.score or own.kept for own in edges.values()), "no edge has a score, and none is in the graph.")
    return MibFile(name, found.layers, found.heads, found.d_model, parallel, edges)


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
    own: EdgeSide = "target" if target.kind == "target" else "mlp"
    return MibEdge(source, target, _SIDES[parts["slot"]] if of_head else own)


def _place(text: str, file: MibFile) -> Component:
    if text in ("input", "logits"):
        return Component("embedding", 0, None) if text == "input" else Component("target", None, None)
    layer, head = (int(number) for number in [*re.findall(r"\d+", text), "0"][:2])
    there = is_index(layer, file.layers) and is_index(head, file.heads)
    require(there, f"it names {text}, and has {file.layers} layers of {file.heads} heads.")
    return Component("head", layer, head) if text[0] == "a" else Component("mlp", layer, None)


def _when(place: Component, file: MibFile, *, reads: bool) -> float:
    """The order of the forward pass: when a component reads, or has written."""
    kind, layer = place.kind, place.layer or 0
    if kind in ("embedding", "target"):
        return -1.0 if kind == "embedding" else float(file.layers)
    late = 0.5 if kind == "mlp" and not (reads and file.parallel) else 0.0
    return layer + late + (0.0 if reads else 0.25)


def _scored(text: str, own: Any) -> Scored:
    require(isinstance(own, dict), f"{quoted(text)} should have a score and in_graph.")
    score, kept = own.get("score", 0.0), own.get("in_graph")
    require(is_number(score) and isinstance(kept, bool), f"{quoted(text)} should have a score and in_graph.")
    return Scored(float(score), kept)
