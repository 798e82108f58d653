"""How do others' viewers show a circuit? As an attribution graph, by itself or in circuit-tracer's folder.

How do Neuronpedia and circuit-tracer read a circuit? As an attribution graph, one JSON document.

Nodes are called as their viewers know them, if they do; what these do not know is a circle:

    head at dest, for one src      "lorsa" (a triangle on Neuronpedia); who wrote query and key: `qk_tracing_results`
    embedding, answer              "embedding", "logit"; all tokens are there, because viewers name tokens by them
    MLP, mixer                     "mlp", "mixer", and no "cross layer transcoder": a feature would be looked up for it
    bias, offset                   "bias"

What is lost: a link has no side and no channels, so that several edges between two nodes become one link, their sum;
`ig`, `alone`, thresholds, the order of removal and errors are in our own file alone. No node has a feature to look up.
The strongest edges are pinned: viewers draw them as a graph of their own.
"""

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keyhole.brief import Head, model_label
from keyhole.circuits.circuit import Circuit, Edge, Node
from keyhole.circuits.records import Sufficient
from keyhole.circuits.shown import SHOWN, strongest
from keyhole.circuits.text import answer_label, faithfulness_label, node_label, score_of, words_label
from keyhole.errors import KeyholeError
from keyhole.files import require_folder, write_at_once
from keyhole.strict import parse_json, read_text, require
from keyhole.version import __version__

SUFFIX = ".neuronpedia.json"
PINNED = 16  # edges
_TYPES = {"head": "lorsa", "mlp": "mlp", "mixer": "mixer", "embedding": "embedding", "target": "logit"}


def to_neuronpedia(
    circuit: Circuit, *, names: Mapping[Edge, str] | None = None, slug: str | None = None, scan: str | None = None
) -> str:
    """A circuit as the graph that neuronpedia.org and circuit-tracer show.

    Args:
        circuit: The circuit.
        names: Names of edges, for the labels of the heads they end at.
        slug: What the graph is called there. Default: made from the model and the prompt.
        scan: The model's name on Neuronpedia. Default: the name it was loaded by.

    >>> import keyhole
    >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
    >>> circuit = run.trace("Mary", against="John")
    >>> '"slug":"mary"' in to_neuronpedia(circuit, slug="mary").replace(" ", "")
    True
    """
    if not any(node.layer for node in circuit.nodes if node.kind not in ("embedding", "target")):
        raise KeyholeError(
            "Neuronpedia's viewer draws no graph that has nothing above layer 0, and this circuit has not: save it as "
            ".json or .html."
        )
    if circuit.parameters.continuation:
        raise KeyholeError(
            "Neuronpedia's viewer draws answers of one token, each at the token that predicts it, and this circuit's "
            "answer is several: save it as .json or .html, or trace one of its tokens."
        )
    ids = [_node_id(circuit, node) for node in circuit.nodes]
    text = _prompt(circuit)
    metadata: dict[str, Any] = {
        "slug": slug or _slug(f"{text} {words_label(circuit.parameters.target_text)}"),
        "scan": scan or model_label(circuit.model.get("name", "model")).rpartition("/")[2],
        "transcoder_list": [],  # circuit-tracer requires the key
        "prompt_tokens": [_plain(token) for token in circuit.tokens],
        "prompt": _plain(text),
        "schema_version": 1,  # features are pairs of layer and number; without a set of features none is looked up
        "info": {"description": _description(circuit), "generator": {"name": "keyhole", "version": __version__}},
        "generation_settings": circuit.parameters.record(),
    }
    cumulative = _cumulative(circuit)
    if cumulative:
        shown = [total for total, share in zip(cumulative, circuit.influence, strict=True) if share >= SHOWN]
        metadata["node_threshold"] = max((total for total in shown if total is not None), default=1.0)
    nodes = [_node(circuit, i, ids, cumulative, names or {}) for i in range(len(ids))]
    pinned = [_node_id(circuit, node) for node in strongest(circuit, PINNED).nodes]
    query = {"pinnedIds": pinned, "supernodes": [], "linkType": "both", "clickedId": "", "sg_pos": ""}
    document = {
        "metadata": metadata,
        "qParams": query,
        "nodes": nodes + _silent(circuit),
        "links": _links(circuit, ids),
    }
    return json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def _node(
    circuit: Circuit, i: int, ids: list[str], cumulative: list[float | None], names: Mapping[Edge, str]
) -> dict[str, Any]:
    node = circuit.nodes[i]
    record = _identity(circuit, node, _label(circuit, i, names))
    if cumulative:
        record["influence"] = cumulative[i]
    if node.kind == "head":
        record["activation"] = circuit.attention[i]
        record["qk_tracing_results"] = {
            "pair_wise_contributors": [],  # the two sides are removed one after the other: there are no pairs
            "top_q_marginal_contributors": _contributors(circuit, i, "dest", ids),
            "top_k_marginal_contributors": _contributors(circuit, i, "src", ids),
        }
    if node.kind == "target":
        record["is_target_logit"] = True
        if circuit.parameters.target_probability:
            record["token_prob"] = sum(circuit.parameters.target_probability)
    return record


def _identity(circuit: Circuit, node: Node, label: str) -> dict[str, Any]:
    return {
        "node_id": _node_id(circuit, node),
        "feature": _feature(circuit, node),
        "layer": _layer(circuit, node),
        "ctx_idx": node.dest,
        "feature_type": _TYPES.get(node.kind, "bias"),
        "jsNodeId": _node_id(circuit, node),
        "clerp": label,
    }


def _silent(circuit: Circuit) -> list[dict[str, Any]]:
    """Nodes without links for tokens whose embeddings cause nothing: viewers show a token only if it has a node."""
    heard = {node.dest for node in circuit.nodes if node.kind == "embedding"}
    others = [Node("embedding", 0, None, i, i) for i in range(len(circuit.tokens)) if i not in heard]
    return [_identity(circuit, node, _plain(node_label(node, circuit.tokens))) for node in others]


def _links(circuit: Circuit, ids: list[str]) -> list[dict[str, Any]]:
    """One for all edges between two nodes: viewers find a link by its two ends."""
    total: dict[Head, float] = defaultdict(float)
    for edge in circuit.edges:
        total[edge.sender, edge.receiver] += score_of(edge)
    return [{"source": ids[a], "target": ids[b], "weight": weight} for (a, b), weight in total.items() if weight]


def _contributors(circuit: Circuit, i: int, side: str, ids: list[str]) -> list[list[str | float]]:
    """Who wrote one side of a firing, the largest drop of its attention, or contribution, first."""
    edges = sorted((edge for edge in circuit.edges_into(i) if edge.side == side), key=lambda edge: -edge.weight)
    return [[ids[edge.sender], edge.weight] for edge in edges]


def _cumulative(circuit: Circuit) -> list[float | None]:
    """What their pruning goes by: the share of all influence that a node has together with all larger ones.

    The answer has none: it is what is influenced, and always shown.
    """
    cumulative: list[float | None] = [None] * len(circuit.influence)
    nodes = [i for i in range(len(cumulative)) if circuit.nodes[i].kind != "target"]
    total, so_far = sum(circuit.influence[i] for i in nodes) or 1.0, 0.0
    for i in sorted(nodes, key=lambda i: -circuit.influence[i]):
        so_far += circuit.influence[i]
        cumulative[i] = min(so_far / total, 1.0)  # rounding above 1 would hide a node at every threshold
    return cumulative


def _layer(circuit: Circuit, node: Node) -> str:
    if node.kind == "target":
        return str(max(other.layer or 0 for other in circuit.nodes) + 1)
    return "E" if node.kind == "embedding" else str(node.layer)


def _number(circuit: Circuit, node: Node) -> int:
    """A different number for each node of one layer and token, from its writer and, for heads, the token it reads."""
    plain = ("mlp", "mixer", "bias", "mlp_offset")
    of_heads = ("head", "offset", "value_offset")
    if node.kind in plain:
        slot = plain.index(node.kind)
    else:
        slot = len(plain) + len(of_heads) * (node.head or 0) + of_heads.index(node.kind)
    return slot * len(circuit.tokens) + node.src


def _feature(circuit: Circuit, node: Node) -> int:
    """Tokens by their place, answers by their token, others as Cantor's pair of layer and number."""
    if node.kind == "embedding":
        return node.dest
    if node.kind == "target":
        return circuit.parameters.target_ids[0] if circuit.parameters.target_ids else 0
    layer, number = node.layer or 0, _number(circuit, node)
    return (layer + number) * (layer + number + 1) // 2 + number


def _node_id(circuit: Circuit, node: Node) -> str:
    if node.kind == "embedding":
        return f"E_{circuit.token_ids[node.dest]}_{node.dest}"
    number = _feature(circuit, node) if node.kind == "target" else _number(circuit, node)
    return f"{_layer(circuit, node)}_{number}_{node.dest}"


def _label(circuit: Circuit, i: int, names: Mapping[Edge, str]) -> str:
    """What a node is; of answers in the form that viewers read the token and its probability from."""
    node, parameters = circuit.nodes[i], circuit.parameters
    if node.kind == "target":
        likely = f"{sum(parameters.target_probability):.3f}" if parameters.target_probability else "?"
        answer = _quoted(parameters.target_text) or "a direction"
        other = f' against "{_quoted(parameters.against_text)}"' if parameters.against_text else ""
        return _plain(f'Output "{answer}"{other} (p={likely})')
    named = [f"{edge.side}: {names[edge]}" for edge in circuit.edges_into(i) if edge in names]
    effect = None if circuit.measured is None else circuit.measured.of_node(i)[0]
    lost = [] if effect is None else [f"effect {effect:+.2f}"]
    return _plain("; ".join([node_label(node, circuit.tokens), *lost, *named]))


def _quoted(words: Sequence[str]) -> str:
    """Words without what would end their quotes, or pass for the probability behind them."""
    return " ".join(words).replace('"', "\u2033").replace("(p=", "( p=")


def _plain(text: str) -> str:
    """Without what a browser would take for a tag: viewers put labels into their pages as they are.

    >>> "<" in _plain("<bos>"), _plain("0:a <- 3:b")
    (False, '0:a <- 3:b')
    """
    return re.sub(r"<(?=[A-Za-z/!?])", "\u2039", text)  # a character that looks like <


def _prompt(circuit: Circuit) -> str:
    spaced = any(token.startswith((" ", "\n")) for token in circuit.tokens)
    return ("" if spaced else " ").join(circuit.tokens)


def _description(circuit: Circuit) -> str:
    svt = circuit.parameters.method == "svt"
    signal = "contributions (equation 8 of the 2024 paper)" if svt else "drops of attention"
    unit = "shares of the answer" if circuit.influence else f"{signal}, and parts of the answer at its end"
    if isinstance(circuit.parameters, Sufficient):
        unit = "shares of the answer's gap to the baseline, and at queries and keys drops of attention"
    measured = "contributions to its score" if svt else "drops of its attention when that is removed"
    return (
        f"Keyhole's circuit{_plain(answer_label(circuit))}. Nodes are attention heads (triangles here), one per token "
        f"that they read, and whole MLPs and constants (circles); links are {unit}. Who wrote a head's query and key "
        f"is under QK tracing, as {measured}." + _plain(f" {faithfulness_label(circuit)}").rstrip()
    )


def _slug(text: str) -> str:
    """Words and numbers alone.

    >>> _slug("When Mary and John, 'Mary'")
    'when-mary-and-john-mary'
    """
    return "-".join(re.findall(r"[a-z0-9]+", text.lower()))[-80:].strip("-") or "circuit"


# How does circuit-tracer's own server show a circuit? From a folder of graphs, with a list of them beside.
#
# keyhole.circuits.add_to_viewer(circuit, "graphs")
# circuit-tracer start-server --graph_file_dir graphs     (in a shell; then http://localhost:8041)

LIST = "graph-metadata.json"


def add_to_viewer(
    circuit: Circuit, folder: str | Path, *, names: Mapping[Edge, str] | None = None, slug: str | None = None
) -> Path:
    """Add a circuit to the graphs of `circuit-tracer start-server --graph_file_dir FOLDER`.

    This writes SLUG.json and a line in the folder's list. Graphs that are already there stay; one of the same slug is
    replaced. The folder is created if it does not exist. Returns the path of the graph.

    Args:
        circuit: The circuit.
        folder: The folder that the server shows.
        names: Names of edges, for the labels of the heads they end at.
        slug: What the graph is called in the viewer. Default: made from the model and the prompt.

    >>> import keyhole
    >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
    >>> circuit = run.trace("Mary", against="John")
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     print(add_to_viewer(circuit, folder, slug="mary").name)
    mary.json
    """
    folder = Path(folder)
    listed = _listed(folder / LIST)
    text = to_neuronpedia(circuit, names=names, slug=slug)
    metadata = json.loads(text)["metadata"]
    if "node_threshold" in metadata:
        metadata["node_threshold"] = 1.0  # this viewer takes it as the largest threshold, not as the initial one
    path = folder / f"{metadata['slug']}.json"
    plain = path.parent == folder and path.name != LIST and metadata["slug"].isprintable()
    require(plain, f"a graph cannot be called {metadata['slug']!r} in a folder: give a slug of letters and numbers.")
    require_folder(folder)
    write_at_once(path, text)
    others = [graph for graph in listed if graph.get("slug") != metadata["slug"]]
    write_at_once(folder / LIST, json.dumps({"graphs": [*others, metadata]}, ensure_ascii=False, indent=1) + "\n")
    return path


def _listed(path: Path) -> list[dict[str, object]]:
    """The graphs that are there; a file of that name with anything else in it is not touched."""
    if not path.exists():
        return []
    try:
        document = parse_json(read_text(path))
        graphs = document.get("graphs") if isinstance(document, dict) else None
        require(isinstance(graphs, list) and all(isinstance(graph, dict) for graph in graphs), "it has no graphs.")
    except KeyholeError as error:
        raise KeyholeError(f"{path} is no list of circuit-tracer's graphs ({error}): choose another folder.") from error
    assert isinstance(graphs, list)
    return graphs
