"""Does a circuit hold together? Files are typed by `files.py`; here their parts are held against each other.

What a file alone can tell is checked when it is read: who can read whom, at which token, in which channels, and that
influence is conserved. What only the model can tell (which heads and channels there are) is checked when the circuit is
used with it. Checks are of whole columns: a store has millions of rows.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from keyhole.circuits.circuit import Circuit
from keyhole.circuits.columns import NONE, SHARES, Nodes, Removals
from keyhole.circuits.records import Accpp, Kind, Parameters, Removal, Sizes, Sufficient, Svt
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
_READERS = {"dest": "head", "src": "head", "value": "head", "mlp": "mlp", "target": "target"}  # by side
_OF_HEADS = ("head", "offset", "value_offset")
_CONSTANTS = ("offset", "mlp_offset", "value_offset")
_WRITERS: tuple[str, ...] = get_args(Kind)
_NODES = {*_WRITERS, "target"}
Good = Bool[np.ndarray, "row"]


def require_consistent(circuit: Circuit) -> None:
    """Refuse a circuit whose parts contradict each other, with the first reason."""
    _require_texts(circuit.model)
    require(all(is_index(i, _TOKEN_IDS) for i in circuit.token_ids), f"a token id is not from 0 to {_TOKEN_IDS - 1:,}.")
    _require_nodes(circuit)
    of_nodes = (circuit.firings.node >= 0) & (circuit.firings.node < len(circuit.nodes))
    _every(of_nodes, lambda i: f"a firing is of node {circuit.firings.node[i]}, which does not exist.")
    (target,) = np.nonzero(circuit.nodes.kind == "target")[0].tolist()
    _require_parameters(circuit.parameters, len(circuit.tokens), end=int(circuit.nodes.dest[target]))
    _require_continued(circuit)
    _require_edges(circuit)
    _require_firings(circuit)
    _require_mlps(circuit)
    _require_measured(circuit)
    _require_numbers(circuit)
    if circuit.sizes is not None:
        _require_within(circuit, circuit.sizes)
    if circuit.influence:
        _require_conserved(circuit, target)


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
    theirs = Sizes.of(model)
    require(
        circuit.sizes in (None, theirs), f"the circuit is of a model of {circuit.sizes}, and {model.name} has {theirs}."
    )
    attends = frozenset(model.attention_layers)
    named = [node.writer for node in circuit.nodes if node.kind != "target"]
    for who in {*named, *(removal.writer for removal in circuit.firings.removals)}:
        require(who.layer < dims.layers, f"the circuit names {_who(who)}, and {_has(run)}.")
        of_attention = who.kind in (*_OF_HEADS, "bias")
        exists = of_attention == (who.layer in attends) or who.kind in ("embedding", "mlp", "mlp_offset", "rounding")
        require(exists, f"the circuit names {_who(who)}, and that layer of {model.name} has none.")
        require(who.head is None or who.head < dims.heads, f"the circuit names {_who(who)}, and {_has(run)}.")
        if who.kind in ("mlp", "mlp_offset"):
            require(run.layers[who.layer].mlp is not None, f"layer {who.layer} of {model.name} has no MLP.")
    most = max((int(channels.max(initial=-1)) for channels in _channels(circuit)), default=-1)
    require(
        most < dims.d_head,
        f"the circuit names channel {most}, and heads of {model.name} have channels 0 to {dims.d_head - 1}.",
    )
    for token in (*circuit.parameters.target_ids, *circuit.parameters.against_ids):
        require(
            token < dims.vocab,
            f"the circuit's answer is token {token}, and {model.name} has tokens 0 to {dims.vocab - 1}.",
        )
    layer = circuit.parameters.probe_layer
    require(layer is None or layer <= dims.layers, f"the circuit's probe is read by layer {layer}, and {_has(run)}.")


def _has(run: "Run") -> str:
    dims = run.model.dims
    return f"{run.model.name} has {dims.layers} layers of {dims.heads} heads"


def _every(good: Good, reason: Callable[[int], str]) -> None:
    """Go on only if this holds of every row; the reason is about the first of which it does not."""
    if not good.all():
        require(False, reason(int(np.argmin(good))))


def _rows(*columns: Shaped[np.ndarray, "row"]) -> list[tuple[Any, ...]]:
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _distinct(*columns: Shaped[np.ndarray, "row"]) -> bool:
    """Does no row occur twice?"""
    rows = _rows(*columns)
    return len(set(rows)) == len(rows)


def _marked(n: int, rows: Int[np.ndarray, "row"]) -> Bool[np.ndarray, "all"]:
    """Which of all n are among these rows?"""
    marks = np.zeros(n, dtype=bool)
    marks[rows] = True
    return marks


def _any_of(values: Shaped[np.ndarray, "row"], *choices: str) -> Good:
    return np.asarray(np.logical_or.reduce([values == choice for choice in choices]))


def _require_texts(model: Mapping[str, str]) -> None:
    for name in ("name", "family", "fingerprint"):
        text = model.get(name)
        require(text is not None and 0 < len(text) <= _NAME, f"its model has no {name}.")
        require(printable(str(text)) == text, f"its model's {name} is {quoted(text)}, which has control characters.")


def _require_nodes(circuit: Circuit) -> None:
    nodes, last = circuit.nodes, len(circuit.tokens)
    heads, targets = nodes.kind == "head", nodes.kind == "target"
    require(set(nodes.plain("kind")) <= _NODES, "a node is of no kind that there is.")
    require(_distinct(nodes.kind, nodes.layer, nodes.head, nodes.dest, nodes.src), "a node occurs twice.")
    require(int(targets.sum()) == 1, "it should have exactly one target.")
    inside = (np.minimum(nodes.dest, nodes.src) >= 0) & (np.maximum(nodes.dest, nodes.src) < last)
    _every(inside, lambda i: f"node {i} has tokens that are outside the prompt.")
    _every((nodes.layer == NONE) == targets, lambda i: f"node {i} has a layer exactly if it is no target.")
    of_heads = _any_of(nodes.kind, *_OF_HEADS)
    _every(of_heads == (nodes.head != NONE), lambda i: f"node {i} should have a head exactly if it is one.")
    sizes = (np.minimum(nodes.layer, nodes.head) >= NONE) & (np.maximum(nodes.layer, nodes.head) < _SIZE)
    _every(sizes, lambda i: f"node {i} has a layer or head that no model has.")
    low = (nodes.kind != "embedding") | (nodes.layer == 0)
    _every(low, lambda i: f"node {i} is an embedding above layer 0.")
    _every(
        ~heads | (nodes.src <= nodes.dest),
        lambda i: f"node {i} is a head at token {nodes.dest[i]} that reads token {nodes.src[i]}, which comes later.",
    )
    alone = heads | (nodes.src == nodes.dest)
    _every(alone, lambda i: f"node {i} reads another token than its own, which heads alone do.")
    _require_attention(circuit.attention, heads)


def _require_attention(attention: Sequence[float | None], heads: Good) -> None:
    weighted = np.array([weight is not None for weight in attention], dtype=bool)
    _every(~weighted | heads, lambda i: f"node {i} has an attention weight, which heads alone have.")
    weights = np.array([2.0 if weight is None else weight for weight in attention], dtype=np.float64)
    good = ~heads | ((weights >= -_ROUNDING) & (weights <= 1 + _ROUNDING))
    _every(good, lambda i: f"node {i} is a head whose attention is no weight from 0 to 1.")


def _require_parameters(chosen: Parameters, n: int, *, end: int) -> None:
    require(chosen.end == end, f"its answer is at token {end}, and its parameters say token {chosen.end}.")
    for ids, texts, likely in (
        (chosen.target_ids, chosen.target_text, chosen.target_probability),
        (chosen.against_ids, chosen.against_text, chosen.against_probability),
    ):
        require(all(is_index(i, _TOKEN_IDS) for i in ids), f"the id of an answer is not from 0 to {_TOKEN_IDS - 1:,}.")
        require(
            len(texts) in (0, len(ids)) and len(likely) in (0, len(ids)), "its answers and their texts do not match."
        )
        require(all(0 <= p <= 1 + _ROUNDING for p in likely), "the probability of an answer is not from 0 to 1.")
    probe = chosen.seeds == "probe"
    require(
        probe == (chosen.probe_layer is not None),
        "its parameters should have a probe_layer exactly where its seeds are a probe.",
    )
    require(chosen.probe_layer is None or is_index(chosen.probe_layer, _SIZE), "its probe_layer is wrong.")
    require(chosen.top_k is None or is_index(chosen.top_k, _TOKEN_IDS), "its parameter top_k is wrong.")
    shares = {
        name: getattr(chosen, name, None)
        for name in ("seed_tau", "top_p", "tau", "cover", "eps", "share", "threshold", "level")
    }
    for name, value in shares.items():
        require(
            not isinstance(value, int | float) or 0 <= value <= 1,
            f"its parameter {name} is {value}, which is not from 0 to 1.",
        )
    for layer, head, dest, src in (chosen.start or ()) if isinstance(chosen, Svt) else ():
        good = is_index(layer, _SIZE) and is_index(head, _SIZE) and is_index(dest, n) and is_index(src, dest + 1)
        require(good, "a firing that it started with is outside the model or the prompt.")


def _require_continued(circuit: Circuit) -> None:
    """An answer of several tokens is one that tracing gives: its prompt has all but the last of them."""
    chosen = circuit.parameters
    if not chosen.continuation:
        return
    ids, end = chosen.target_ids, chosen.end
    fits = 1 < len(ids) <= end + 1 and tuple(circuit.token_ids[end - len(ids) + 2 : end + 1]) == tuple(ids[:-1])
    require(fits, "its answer is a continuation, whose tokens but the last do not end its prompt.")
    plain = type(chosen) is Accpp and chosen.seeds in ("prob", "linear") and not chosen.against_ids
    require(plain, "its answer is a continuation, which its method does not trace.")


def _require_edges(circuit: Circuit) -> None:
    edges, nodes = circuit.edges, circuit.nodes
    if isinstance(circuit.parameters, Sufficient):
        count = circuit.parameters.found
        require(0 < count <= len(edges), f"it says that {count} of its {len(edges)} edges suffice.")
    require(_distinct(edges.sender, edges.receiver, edges.side), "an edge occurs twice.")
    ends = np.minimum(edges.sender, edges.receiver), np.maximum(edges.sender, edges.receiver)
    _every((ends[0] >= 0) & (ends[1] < len(nodes)), lambda i: f"edge {i} joins nodes that do not exist.")
    into_mlps = bool(circuit.influence) or isinstance(circuit.parameters, Sufficient)
    causes = _any_of(edges.side, "mlp", "value")
    require(into_mlps or not causes.any(), "a circuit of heads has no edges into MLPs.")
    writers, readers = nodes.take(edges.sender), nodes.take(edges.receiver)
    fits = np.logical_or.reduce([(edges.side == side) & (readers.kind == kind) for side, kind in _READERS.items()])
    _every(fits, lambda i: f"edge {i} has side {edges.side[i]} and ends at {_who(readers[i])}.")
    _every(writers.kind != "target", lambda i: f"edge {i} begins at the answer, which writes nothing.")
    _require_below(writers, readers, lambda i: f"edge {i}")
    tokens = np.where(_any_of(edges.side, "src", "value"), readers.src, readers.dest)
    given = (edges.side == "target") & (circuit.parameters.seeds == "given")  # firings anywhere in the prompt
    answers = [end for end, _ in circuit.parameters.predicted]  # several, of a continuation
    given |= (edges.side == "target") & np.isin(writers.dest, answers)
    _every(
        given | (writers.dest == tokens),
        lambda i: (
            f"edge {i}: {_who(writers[i])} writes at token {writers.dest[i]}, and {_who(readers[i])} reads "
            f"token {tokens[i]}."
        ),
    )
    signals, channels = edges.signals, edges.channels
    _every(
        signals == (channels.sizes > 0),
        lambda i: f"edge {i} should have channels exactly if it is a signal.",
    )
    if not _distinct(np.repeat(np.arange(len(edges)), channels.sizes), channels.values):
        twice = (len(set(named)) < len(named) for named in channels.tuples())
        require(False, f"edge {next(i for i, is_twice in enumerate(twice) if is_twice)} names a channel twice.")
    searched = _marked(len(nodes), circuit.firings.node)
    _every(~signals | searched[edges.receiver], lambda i: f"edge {i} ends at a firing that was not searched.")


def _require_firings(circuit: Circuit) -> None:
    firings, nodes = circuit.firings, circuit.nodes
    require(_distinct(firings.node), "a firing occurs twice.")
    heads = nodes.take(firings.node)

    def name(i: int) -> str:
        return f"the firing of node {firings.node[i]}"

    _every(heads.kind == "head", lambda i: f"{name(i)} is of {_who(heads[i])}, which is no head.")
    _every(
        (firings.tau >= 0) & (firings.tau <= 1),
        lambda i: f"{name(i)} has tau {firings.tau[i]}, which is not from 0 to 1.",
    )
    _every(
        (firings.visible > 0) & (firings.visible <= heads.dest + 1),
        lambda i: f"{name(i)} sees {firings.visible[i]} keys, and token {heads.dest[i]} sees 1 to {heads.dest[i] + 1}.",
    )
    _require_removals(circuit, heads)
    if isinstance(circuit.parameters, Sufficient):
        return  # its edges are whole, all channels of a head; signals are attached to them
    if isinstance(circuit.parameters, Accpp):
        _require_removed(circuit)
    else:
        require(not len(firings.removals), "it is of a method that removes nothing, and has removals.")


def _require_removals(circuit: Circuit, heads: Nodes) -> None:
    removed, (firing, side) = circuit.firings.removals, circuit.firings.of_removals

    def name(i: int) -> str:
        return f"the firing of node {circuit.firings.node[firing[i]]}, {side[i]}"

    require(set(removed.plain("kind")) <= {*_WRITERS}, "a removed candidate is of no kind that there is.")
    once = _distinct(firing, side, removed.kind, removed.layer, removed.head, removed.src, removed.channel)
    require(once, "a firing has a candidate that was removed twice.")
    of_heads = _any_of(removed.kind, *_OF_HEADS)
    _every(
        (removed.layer >= 0) & (removed.layer < _SIZE),
        lambda i: f"{name(i)}: a candidate is of a layer that no model has.",
    )
    _every(
        (of_heads == (removed.head != NONE)) & (removed.head >= NONE),
        lambda i: f"{name(i)}: {_who(removed[i].writer)} should have a head exactly if it is one.",
    )
    _every(
        (removed.src >= 0) & (removed.src < len(circuit.tokens)),
        lambda i: f"a removed candidate reads token {removed.src[i]}, which is outside the prompt.",
    )
    _every(
        (removed.kind == "head") | (removed.src == removed.dest),
        lambda i: f"{name(i)}: {_who(removed[i].writer)} reads another token than its own.",
    )
    low = (removed.kind != "embedding") | (removed.layer == 0)
    _every(low, lambda i: f"{name(i)}: an embedding is above layer 0.")
    _every(
        ~_any_of(removed.kind, "mlp_offset", "value_offset"),
        lambda i: f"{name(i)}: {_who(removed[i].writer)} writes no signals.",
    )
    _require_below(removed, heads.take(firing), name)


def _require_removed(circuit: Circuit) -> None:
    """A signal is what was removed of its writer, channel by channel."""
    firings, nodes, edges = circuit.firings, circuit.nodes, circuit.edges
    (firing, side), gone = firings.of_removals, firings.removals
    removed: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    places = _rows(firings.node[firing], side, gone.kind, gone.layer, gone.head, gone.dest, gone.src)
    for place, channel in zip(places, gone.channel.tolist(), strict=True):
        removed[place].append(channel)
    at = np.nonzero(edges.signals)[0]
    who = nodes.take(edges.sender[at])
    places = _rows(edges.receiver[at], edges.side[at], who.kind, who.layer, who.head, who.dest, who.src)
    for edge, place, channels in zip(at.tolist(), places, edges.channels[at].tuples(), strict=True):
        same = list(channels) == removed.get(place, [])
        require(same, f"edge {edge} has other channels than were removed of its writer.")


def _require_below(writers: Nodes | Removals, readers: Nodes, name: Callable[[int], str]) -> None:
    """A writer has written before its reader reads; constants are their reader's own."""
    constant, mlp = _any_of(writers.kind, *_CONSTANTS), writers.kind == "mlp_offset"
    same = (writers.layer == readers.layer) & (writers.head == readers.head) & (mlp == (readers.kind == "mlp"))
    _every(
        ~constant | same,
        lambda i: f"{name(i)}: {_who(writers[i])} is a constant of another reader than {_who(readers[i])}.",
    )
    _every(
        constant | (_written(writers) < _read(readers)),
        lambda i: f"{name(i)}: {_who(writers[i])} does not write below {_who(readers[i])}.",
    )


def _written(writers: Nodes | Removals) -> Float[np.ndarray, "row"]:
    """When they have written, in the order of the forward pass: a layer's attention before its MLP and rounding."""
    late = np.where(_any_of(writers.kind, "mlp", "rounding"), 0.75, 0.25)
    return np.where(writers.kind == "embedding", -1.0, writers.layer + late)


def _read(readers: Nodes) -> Float[np.ndarray, "row"]:
    return np.where(readers.layer == NONE, np.inf, readers.layer + np.where(readers.kind == "mlp", 0.5, 0.0))


def _require_mlps(circuit: Circuit) -> None:
    mlps, nodes, edges = circuit.mlps, circuit.nodes, circuit.edges
    require(_distinct(mlps.node), "an MLP is explained twice.")
    into, read = edges.side == "mlp", edges.influence > 0
    causes = set(zip(edges.receiver[into].tolist(), edges.sender[into].tolist(), strict=True))
    exists = (mlps.node >= 0) & (mlps.node < len(nodes))
    good = (nodes.kind == "mlp") & _marked(len(nodes), edges.sender[read])
    _every(
        exists & good[np.where(exists, mlps.node, 0)],
        lambda i: f"node {mlps.node[i]} is explained as an MLP, and is none, or nobody reads it.",
    )
    for node, senders in zip(mlps.node.tolist(), mlps.causes.tuples(), strict=True):
        require(all((node, cause) in causes for cause in senders), f"causes of the MLP of node {node} lack edges.")
        require(len(set(senders)) == len(senders), f"the MLP of node {node} has a cause twice.")
    neurons = mlps.neurons.values
    require(bool(((neurons >= 0) & (neurons < _TOKEN_IDS)).all()), "an MLP has neurons that no model has.")


def _require_measured(circuit: Circuit) -> None:
    nodes, edges = len(circuit.nodes), len(circuit.edges)
    sizes = {"words": len(circuit.tokens), "nodes": nodes, "edges": edges, "node_shares": nodes, "edge_shares": edges}
    for name, size in sizes.items() if circuit.measured is not None else ():
        length = len(getattr(circuit.measured, name))
        require(length in (0, size), f"it has {length} measured {name}, and {size} would fit.")


def _require_numbers(circuit: Circuit) -> None:
    for numbers in _numbers(circuit):
        require(bool((np.abs(numbers) <= _LARGEST).all()), f"it has a number beyond {_LARGEST:.0e}.")
    for channels in _channels(circuit):
        require(bool(((channels >= 0) & (channels < _SIZE)).all()), "it has a channel that no head has.")


def _require_within(circuit: Circuit, sizes: Sizes) -> None:
    """Refuse layers, heads, channels and tokens that a model of the file's own sizes does not have."""
    limits = {"layers": _SIZE, "heads": _SIZE, "kv_heads": sizes.heads + 1, "d_head": _SIZE}
    for name, limit in (limits | {"d_model": _TOKEN_IDS, "vocab": _TOKEN_IDS}).items():
        size = getattr(sizes, name)
        require(0 < size < limit, f"its model has {size} {name}, which no model has.")
    for rows in (circuit.nodes, circuit.firings.removals):
        inside = (rows.layer < sizes.layers) & (rows.head < sizes.heads)
        _every(inside, partial(_beyond, rows, sizes))
    most = max(int(channels.max(initial=-1)) for channels in _channels(circuit))
    require(most < sizes.d_head, f"it names channel {most}, and heads of its model have {sizes.d_head}.")
    chosen = circuit.parameters
    token = max(*circuit.token_ids, *chosen.target_ids, *chosen.against_ids)
    require(token < sizes.vocab, f"it names token {token}, and its model has {sizes}.")
    layer = chosen.probe_layer or 0
    require(layer <= sizes.layers, f"its probe is read by layer {layer}, and its model has {sizes}.")


def _beyond(rows: Nodes | Removals, sizes: Sizes, i: int) -> str:
    return f"it names {_who(rows[i])}, and its model has {sizes}."


def _require_conserved(circuit: Circuit, target: int) -> None:
    """All influence of a node comes through its edges out, and an explained node hands all of it on."""
    edges, n = circuit.edges, len(circuit.nodes)
    require(bool((edges.influence >= 0).all()), "an edge has negative influence, or none.")
    out = np.bincount(edges.sender, edges.influence, minlength=n)
    out[target] += 1.0
    handed = np.bincount(edges.receiver, edges.influence, minlength=n)
    influence = np.array(circuit.influence)
    whole = np.where([leaf is None for leaf in circuit.leaves], influence, 0.0)
    _every(
        np.abs(influence - out) <= _ROUNDING,
        lambda i: f"node {i} has influence {influence[i]:.3g}, and its edges carry {out[i]:.3g}.",
    )
    _every(
        np.abs(handed - whole) <= _ROUNDING,
        lambda i: f"node {i} should hand on {whole[i]:.3g} of the answer, and hands on {handed[i]:.3g}.",
    )


def _numbers(circuit: Circuit) -> Iterator[Float[np.ndarray, "number"]]:
    edges, removals, mlps = circuit.edges, circuit.firings.removals, circuit.mlps
    yield np.array([*circuit.errors.values(), *circuit.influence])
    yield from (edges.weight, edges.ig, edges.alone, removals.ig, removals.after)
    if circuit.measured is not None:
        yield np.array(list(circuit.measured.numbers()), dtype=np.float64)
    yield from (getattr(mlps, name) for name in SHARES)
    yield mlps.shares.values


def _channels(circuit: Circuit) -> tuple[Int[np.ndarray, "channel"], Int[np.ndarray, "removal"]]:
    return circuit.edges.channels.values, circuit.firings.removals.channel


def _who(writer: Any) -> str:
    """Without its tokens, which a message may be about."""
    if isinstance(writer, Removal):
        writer = writer.writer
    if writer.kind == "target":
        return "the answer"
    return f"{writer.kind} {writer.layer}" + ("" if writer.head is None else f".{writer.head}")
