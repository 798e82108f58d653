"""Circuits of any size, made up: for what pages do with large ones, and with texts that nobody would trust."""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from keyhole.circuits.circuit import Circuit, Edge, EdgeSide, Node, Traced
from keyhole.circuits.records import Accpp, Removal

HOSTILE = ("<img src=x onerror=alert(1)>", "</script><script>alert(2)</script>", " ", "\n", "'\"&amp;")
_PLACES = 19  # tokens where something happens


def synthetic(nodes: int, tokens: int, *, layers: int = 12, further: int = 2, through: bool = True) -> Circuit:
    """So many nodes at a few tokens of a prompt, each read by some above it; influence adds up on the way down."""
    rng = random.Random(nodes * 10_007 + tokens)
    read = _grown(rng, nodes, tokens, layers=layers, further=further)
    kept = sorted({*read, *(cause for causes in read.values() for cause in causes)}, key=lambda node: node.key)
    index = {node: i for i, node in enumerate(kept)}
    influence, edges = [0.0] * len(kept), []
    influence[-1] = 1.0
    for reader in reversed(kept):
        parts = {cause: rng.random() ** 3 + 1e-3 for cause in read.get(reader, [])}
        for cause, part in parts.items():
            share = influence[index[reader]] * part / sum(parts.values())
            influence[index[cause]] += share
            edges.append(_edge(rng, (index[cause], cause), (index[reader], reader), share if through else None))
    return Circuit(
        model={"name": "made up", "family": "gpt2", "fingerprint": "0" * 64},
        versions={},
        parameters=Accpp(
            end=tokens - 1,
            seeds="linear",
            through="mlps" if through else "heads",
            target_ids=(0,),
            target_text=("Mary",),
        ),
        errors={"scores": 0.0},
        token_ids=tuple(range(tokens)),
        tokens=tuple(f" word{i}" for i in range(tokens)),
        nodes=tuple(kept),
        attention=tuple(rng.random() if node.kind == "head" else None for node in kept),
        edges=tuple(edges),
        firings=_searched(kept, edges),
        influence=tuple(influence) if through else (),
        leaves=tuple(None if node in read else "pruned" for node in kept) if through else (),
    )


def _grown(
    rng: random.Random, nodes: int, tokens: int, *, layers: int, further: int
) -> defaultdict[Node, dict[Node, None]]:
    """Who reads whom, from the answer down: a writer stands at a token that its reader reads, in a lower layer."""
    target = Node("target", None, None, tokens - 1, tokens - 1)
    places = [*sorted(rng.sample(range(tokens - 1), min(tokens - 1, _PLACES - 1))), tokens - 1]
    read: defaultdict[Node, dict[Node, None]] = defaultdict(dict)
    found = {target: None}
    while len(found) < nodes:
        reader = rng.choice([target, *found])
        top = layers if reader.layer is None else reader.layer
        dest = rng.choice([reader.dest, reader.src])
        layer, head = rng.randrange(top) if top else 0, rng.random() < 0.7
        src = rng.choice([place for place in places if place <= dest]) if head else dest
        writer = Node("head" if head else "mlp", layer, rng.randrange(12) if head else None, dest, src)
        if top and writer not in found:
            found[writer] = read[reader][writer] = None
            above = [o for o in found if o.layer is not None and o.layer > layer and dest in (o.dest, o.src)]
            for other in rng.sample(above, min(further, len(above))):
                read[other][writer] = None
    return read


def _edge(rng: random.Random, writer: tuple[int, Node], reader: tuple[int, Node], share: float | None) -> Edge:
    aimed: EdgeSide = "dest" if writer[1].dest == reader[1].dest else "src"
    sides: dict[str, EdgeSide] = {"target": "target", "mlp": "mlp"}
    side = sides.get(reader[1].kind, aimed)
    channels = tuple(rng.sample(range(32), 3)) if side in ("dest", "src") else ()
    return Edge(writer[0], reader[0], side, rng.random(), rng.random(), rng.random(), channels, share)


def _searched(nodes: Sequence[Node], edges: Sequence[Edge]) -> tuple[Traced, ...]:
    """The firings that signals end at, with what was removed: a candidate for every channel of a signal."""
    removed: dict[int, dict[str, list[Removal]]] = {}
    for edge in edges:
        if edge.side in ("dest", "src"):
            sides = removed.setdefault(edge.receiver, {"dest": [], "src": []})
            sides[edge.side] += [Removal(nodes[edge.sender].writer, channel, 0.1, 0.0) for channel in edge.channels]
    return tuple(Traced(i, 0.1, 1, tuple(sides["dest"]), tuple(sides["src"])) for i, sides in sorted(removed.items()))


def hostile(circuit: Circuit) -> Circuit:
    """The same circuit of a prompt, and a model, whose texts are markup."""
    texts = tuple(HOSTILE[i % len(HOSTILE)] for i in range(len(circuit.tokens)))
    parameters = replace(circuit.parameters, target_text=(HOSTILE[0],))
    return replace(circuit, tokens=texts, parameters=parameters, model={**circuit.model, "name": HOSTILE[1]})
