"""Does a circuit hold together? Files are typed by `files.py`; here their parts are held against each other.

What a file alone can tell is checked when it is read: who can read whom, at which token, in which channels, and that
influence is conserved. What only the model can tell (which heads and channels there are) is checked when the circuit is
used with it.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from keyhole.circuits.circuit import Circuit, Node, Traced
from keyhole.circuits.records import Accpp, Parameters, Removal, Sufficient, Svt, Writer
from keyhole.models.numbers import require_same_weights
from keyhole.strict import is_index, printable, quoted, require

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.models.run import Run

_TOKEN_IDS = 2**31  # no vocabulary is larger
_SIZE = 100_000  # layers, heads of a layer, channels of a head: no model has more
_LARGEST = 1e30  # weights, attributions, shares: their sums and squares are still numbers
_ROUNDING = 1e-4  # of attention weights and influence: circuits of half precision are saved too
_NAME = 4096  # characters of a model's name: a path has no more
_AT = {"dest": "dest", "mlp": "dest", "target": "dest", "src": "src", "value": "src"}  # which token of the reader
_READERS = {"dest": "head", "src": "head", "value": "head", "mlp": "mlp", "target": "target"}  # by side


def require_consistent(circuit: Circuit) -> None:
    """Refuse a circuit whose parts contradict each other, with the first reason."""
    _require_texts(circuit.model)
    require(all(is_index(i, _TOKEN_IDS) for i in circuit.token_ids), f"a token id is not from 0 to {_TOKEN_IDS - 1:,}.")
    _require_nodes(circuit)
    _require_parameters(circuit.parameters, len(circuit.tokens), target=circuit.nodes[_target(circuit)])
    _require_edges(circuit)
    _require_firings(circuit)
    _require_mlps(circuit)
    _require_measured(circuit)
    _require_sizes(circuit)
    if circuit.influence:
        _require_conserved(circuit)


def require_model(circuit: Circuit, model: "Model") -> None:
    """Refuse another model than the one that made a circuit."""
    require_same_weights(
        model.fingerprint(),
        circuit.model["fingerprint"],
        f"the circuit was traced on {circuit.model['name']} with other weights than {model.name} has: "
        "load the model that made it.",
    )


def require_fits(circuit: Circuit, run: "Run") -> None:
    """Refuse a circuit that names layers, heads, channels or tokens that its model does not have."""
    model, dims = run.model, run.model.dims
    attends = frozenset(model.attention_layers)
    named = [node.writer for node in circuit.nodes if node.kind != "target"]
    for who in {*named, *(removal.writer for removal in _removals(circuit.firings))}:
        require(who.layer < dims.layers, f"the circuit names {_who(who)}, and {_has(run)}.")
        of_attention = who.kind in ("head", "offset", "value_offset", "bias")
        there = of_attention == (who.layer in attends) or who.kind in ("embedding", "mlp", "mlp_offset")
        require(there, f"the circuit names {_who(who)}, and that layer of {model.name} has none.")
        require(who.head is None or who.head < dims.heads, f"the circuit names {_who(who)}, and {_has(run)}.")
        if who.kind in ("mlp", "mlp_offset"):
            require(run.layers[who.layer].mlp is not None, f"layer {who.layer} of {model.name} has no MLP.")
    most = max(_channels(circuit), default=-1)
    require(
        most < dims.d_head,
        f"the circuit names channel {most}, and heads of {model.name} have channels 0 to {dims.d_head - 1}.",
    )
    for one in (*circuit.parameters.target_ids, *circuit.parameters.against_ids):
        require(
            one < dims.vocab, f"the circuit's answer is token {one}, and {model.name} has tokens 0 to {dims.vocab - 1}."
        )
    layer = circuit.parameters.probe_layer
    require(layer is None or layer <= dims.layers, f"the circuit's probe is read by layer {layer}, and {_has(run)}.")


def _has(run: "Run") -> str:
    dims = run.model.dims
    return f"{run.model.name} has {dims.layers} layers of {dims.heads} heads"


def _require_texts(model: Mapping[str, str]) -> None:
    for name in ("name", "family", "fingerprint"):
        text = model.get(name)
        require(text is not None and 0 < len(text) <= _NAME, f"its model has no {name}.")
        require(printable(str(text)) == text, f"its model's {name} is {quoted(text)}, which has control characters.")


def _require_nodes(circuit: Circuit) -> None:
    require(len(set(circuit.nodes)) == len(circuit.nodes), "a node occurs twice.")
    require(sum(node.kind == "target" for node in circuit.nodes) == 1, "it should have exactly one target.")
    for index, node in enumerate(circuit.nodes):
        require(max(node.dest, node.src) < len(circuit.tokens), f"node {index} has tokens that are outside the prompt.")
        require(
            (node.layer is None) == (node.kind == "target"), f"node {index} has a layer exactly if it is no target."
        )
        of_heads = node.kind in ("head", "offset", "value_offset")
        require(of_heads == (node.head is not None), f"node {index} should have a head exactly if it is one.")
        require(
            (node.layer or 0) < _SIZE and (node.head or 0) < _SIZE,
            f"node {index} has a layer or head that no model has.",
        )
        require(node.kind != "embedding" or node.layer == 0, f"node {index} is an embedding above layer 0.")
        if node.kind == "head":
            require(
                node.src <= node.dest,
                f"node {index} is a head at token {node.dest} that reads token {node.src}, which comes later.",
            )
            weight = circuit.attention[index]
            require(
                weight is not None and -_ROUNDING <= weight <= 1 + _ROUNDING,
                f"node {index} is a head whose attention is no weight from 0 to 1.",
            )
        else:
            require(node.dest == node.src, f"node {index} reads another token than its own, which heads alone do.")
            require(circuit.attention[index] is None, f"node {index} has an attention weight, which heads alone have.")


def _require_parameters(told: Parameters, n: int, *, target: Node) -> None:
    require(told.end == target.dest, f"its answer is at token {target.dest}, and its parameters say token {told.end}.")
    for ids, texts, likely in (
        (told.target_ids, told.target_text, told.target_probability),
        (told.against_ids, told.against_text, told.against_probability),
    ):
        require(all(is_index(i, _TOKEN_IDS) for i in ids), f"the id of an answer is not from 0 to {_TOKEN_IDS - 1:,}.")
        require(
            len(texts) in (0, len(ids)) and len(likely) in (0, len(ids)), "its answers and their texts do not match."
        )
        require(all(0 <= p <= 1 + _ROUNDING for p in likely), "the probability of an answer is not from 0 to 1.")
    probe = told.seeds == "probe"
    require(
        probe == (told.probe_layer is not None),
        "its parameters should have a probe_layer exactly where its seeds are a probe.",
    )
    require(told.probe_layer is None or is_index(told.probe_layer, _SIZE), "its probe_layer is wrong.")
    require(told.top_k is None or is_index(told.top_k, _TOKEN_IDS), "its parameter top_k is wrong.")
    shares = {
        name: getattr(told, name, None)
        for name in ("seed_tau", "top_p", "tau", "cover", "eps", "share", "threshold", "level")
    }
    for name, value in shares.items():
        require(
            not isinstance(value, int | float) or 0 <= value <= 1,
            f"its parameter {name} is {value}, which is not from 0 to 1.",
        )
    for layer, head, dest, src in (told.start or ()) if isinstance(told, Svt) else ():
        good = is_index(layer, _SIZE) and is_index(head, _SIZE) and is_index(dest, n) and is_index(src, dest + 1)
        require(good, "a firing that it started with is outside the model or the prompt.")


def _require_edges(circuit: Circuit) -> None:
    if isinstance(circuit.parameters, Sufficient):
        found = circuit.parameters.found
        require(0 < found <= len(circuit.edges), f"it says that {found} of its {len(circuit.edges)} edges suffice.")
    joined = {(edge.source, edge.target, edge.side) for edge in circuit.edges}
    require(len(joined) == len(circuit.edges), "an edge occurs twice.")
    searched = {traced.node for traced in circuit.firings}
    into_mlps = bool(circuit.influence) or isinstance(circuit.parameters, Sufficient)
    for index, edge in enumerate(circuit.edges):
        require(max(edge.source, edge.target) < len(circuit.nodes), f"edge {index} joins nodes that do not exist.")
        require(into_mlps or edge.side not in ("mlp", "value"), "a circuit of heads has no edges into MLPs.")
        reader, writer = circuit.nodes[edge.target], circuit.nodes[edge.source]
        require(reader.kind == _READERS[edge.side], f"edge {index} has side {edge.side} and ends at {_who(reader)}.")
        require(writer.kind != "target", f"edge {index} begins at the answer, which writes nothing.")
        _require_below(writer, reader, f"edge {index}")
        token = getattr(reader, _AT[edge.side])
        given = edge.side == "target" and circuit.parameters.seeds == "given"  # firings anywhere in the prompt
        require(
            given or writer.dest == token,
            f"edge {index}: {_who(writer)} writes at token {writer.dest}, and {_who(reader)} reads token {token}.",
        )
        is_signal = edge.side in ("dest", "src")
        require(is_signal == bool(edge.channels), f"edge {index} should have channels exactly if it is a signal.")
        require(len(set(edge.channels)) == len(edge.channels), f"edge {index} names a channel twice.")
        require(not is_signal or edge.target in searched, f"edge {index} ends at a firing that was not searched.")


def _require_firings(circuit: Circuit) -> None:
    nodes = [traced.node for traced in circuit.firings]
    require(len(set(nodes)) == len(nodes), "a firing occurs twice.")
    for traced in circuit.firings:
        node, name = circuit.nodes[traced.node], f"the firing of node {traced.node}"
        require(node.kind == "head", f"{name} is of {_who(node)}, which is no head.")
        require(0 <= traced.tau <= 1, f"{name} has tau {traced.tau}, which is not from 0 to 1.")
        require(
            0 < traced.visible <= node.dest + 1,
            f"{name} sees {traced.visible} keys, and token {node.dest} sees 1 to {node.dest + 1}.",
        )
        for side in ("dest", "src"):
            _require_removals(getattr(traced, side), node, f"{name}, {side}")
    if isinstance(circuit.parameters, Sufficient):
        return  # its edges are whole, all channels of a head; signals are attached to them
    if isinstance(circuit.parameters, Accpp):
        _require_removed(circuit)
    else:
        require(
            not any(traced.dest or traced.src for traced in circuit.firings),
            "it is of a method that removes nothing, and has removals.",
        )


def _require_removals(removals: tuple[Removal, ...], reader: Node, name: str) -> None:
    pairs = {(removal.writer, removal.channel) for removal in removals}
    require(len(pairs) == len(removals), f"{name}: a candidate was removed twice.")
    for writer in {writer for writer, _ in pairs}:
        of_heads = writer.kind in ("head", "offset", "value_offset")
        require(
            of_heads == (writer.head is not None), f"{name}: {_who(writer)} should have a head exactly if it is one."
        )
        require(
            writer.kind == "head" or writer.src == writer.dest,
            f"{name}: {_who(writer)} reads another token than its own.",
        )
        require(writer.kind != "embedding" or writer.layer == 0, f"{name}: an embedding is above layer 0.")
        require(writer.kind not in ("mlp_offset", "value_offset"), f"{name}: {_who(writer)} writes no signals.")
        _require_below(writer, reader, name)


def _require_removed(circuit: Circuit) -> None:
    """A signal is what was removed of its writer, channel by channel."""
    removed: dict[tuple[int, str, Writer], list[int]] = defaultdict(list)
    for traced in circuit.firings:
        for side in ("dest", "src"):
            for removal in getattr(traced, side):
                removed[traced.node, side, removal.writer].append(removal.channel)
    for index, edge in enumerate(circuit.edges):
        if edge.side in ("dest", "src"):
            channels = removed.get((edge.target, edge.side, circuit.nodes[edge.source].writer), [])
            require(
                list(edge.channels) == channels, f"edge {index} has other channels than were removed of its writer."
            )


def _require_below(writer: Node | Writer, reader: Node, name: str) -> None:
    """A writer has written before its reader reads; constants are their reader's own."""
    if writer.kind in ("offset", "mlp_offset", "value_offset"):
        own = (writer.layer, writer.head) == (reader.layer, reader.head)
        require(
            own and (writer.kind == "mlp_offset") == (reader.kind == "mlp"),
            f"{name}: {_who(writer)} is a constant of another reader than {_who(reader)}.",
        )
    else:
        require(_written(writer) < _read(reader), f"{name}: {_who(writer)} does not write below {_who(reader)}.")


def _written(writer: Node | Writer) -> float:
    """When it has written, in the order of the forward pass: attention of a layer before its MLP."""
    assert writer.layer is not None
    return -1.0 if writer.kind == "embedding" else writer.layer + (0.75 if writer.kind == "mlp" else 0.25)


def _read(reader: Node) -> float:
    return math.inf if reader.layer is None else reader.layer + (0.5 if reader.kind == "mlp" else 0.0)


def _require_mlps(circuit: Circuit) -> None:
    nodes = [one.node for one in circuit.mlps]
    require(len(set(nodes)) == len(nodes), "an MLP is explained twice.")
    causes = {(edge.target, edge.source) for edge in circuit.edges if edge.side == "mlp"}
    read = {edge.source for edge in circuit.edges if edge.influence}
    for one in circuit.mlps:
        is_mlp = one.node < len(circuit.nodes) and circuit.nodes[one.node].kind == "mlp"
        require(
            is_mlp and one.node in read, f"node {one.node} is explained as an MLP, and is none, or nobody reads it."
        )
        require(all((one.node, i) in causes for i in one.causes), f"causes of the MLP of node {one.node} lack edges.")
        require(len(set(one.causes)) == len(one.causes), f"the MLP of node {one.node} has a cause twice.")
        require(
            all(neuron < _TOKEN_IDS for neuron, _ in one.neurons),
            f"the MLP of node {one.node} has neurons that no model has.",
        )


def _require_measured(circuit: Circuit) -> None:
    nodes, edges = len(circuit.nodes), len(circuit.edges)
    sizes = {"words": len(circuit.tokens), "nodes": nodes, "edges": edges, "node_shares": nodes, "edge_shares": edges}
    for name, size in sizes.items() if circuit.measured is not None else ():
        length = len(getattr(circuit.measured, name))
        require(length in (0, size), f"it has {length} measured {name}, and {size} would fit.")


def _require_sizes(circuit: Circuit) -> None:
    require(all(abs(number) <= _LARGEST for number in _numbers(circuit)), f"it has a number beyond {_LARGEST:.0e}.")
    require(all(channel < _SIZE for channel in _channels(circuit)), "it has a channel that no head has.")


def _require_conserved(circuit: Circuit) -> None:
    """All influence of a node comes through its edges out, and an explained node hands all of it on."""
    out, handed = [0.0] * len(circuit.nodes), [0.0] * len(circuit.nodes)
    out[_target(circuit)] = 1.0
    for edge in circuit.edges:
        share = edge.influence or 0.0
        require(share >= 0, "an edge has negative influence.")
        out[edge.source] += share
        handed[edge.target] += share
    for index, (share, leaf) in enumerate(zip(circuit.influence, circuit.leaves, strict=True)):
        require(
            abs(share - out[index]) <= _ROUNDING,
            f"node {index} has influence {share:.3g}, and its edges carry {out[index]:.3g}.",
        )
        whole = share if leaf is None else 0.0
        require(
            abs(handed[index] - whole) <= _ROUNDING,
            f"node {index} should hand on {whole:.3g} of the answer, and hands on {handed[index]:.3g}.",
        )


def _numbers(circuit: Circuit) -> Iterator[float]:
    yield from circuit.errors.values()
    yield from circuit.influence
    for edge in circuit.edges:
        yield from (edge.weight, edge.ig, edge.alone)
    for removal in _removals(circuit.firings):
        yield from (removal.ig, removal.after)
    if circuit.measured is not None:
        yield from circuit.measured.numbers()
    for one in circuit.mlps:
        yield from (one.offset, one.left, one.left_renormed, one.kept, one.cancellation)
        yield from (share for _, share in one.neurons)


def _channels(circuit: Circuit) -> Iterator[int]:
    yield from (channel for edge in circuit.edges for channel in edge.channels)
    yield from (removal.channel for removal in _removals(circuit.firings))


def _removals(firings: Iterable[Traced]) -> Iterator[Removal]:
    return (removal for traced in firings for side in (traced.dest, traced.src) for removal in side)


def _target(circuit: Circuit) -> int:
    return next(i for i, node in enumerate(circuit.nodes) if node.kind == "target")


def _who(one: Node | Writer) -> str:
    """Without its tokens, which a message may be about."""
    if one.kind == "target":
        return "the answer"
    return f"{one.kind} {one.layer}" + ("" if one.head is None else f".{one.head}")
