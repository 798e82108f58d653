"""Circuits of any size, made up: for what pages do with large ones, and with texts that nobody would trust."""

import random
from dataclasses import replace

from keyhole.circuits.circuit import Circuit, Edge, Node
from keyhole.circuits.parameters import Accpp

HOSTILE = ("<img src=x onerror=alert(1)>", "</script><script>alert(2)</script>", " ", "\n", "'\"&amp;")


def synthetic(nodes: int, tokens: int, *, layers: int = 12, per_node: int = 3, through: bool = True) -> Circuit:
    """So many nodes at a few tokens of a long prompt, each read by some above it; influence halves on the way down."""
    rng = random.Random(nodes * 10_007 + tokens)
    places = sorted(rng.sample(range(tokens - 1), min(tokens - 1, 18))) + [tokens - 1]
    found: set[Node] = set()
    while len(found) < nodes - 1:
        layer, dest = rng.randrange(layers), rng.choice(places)
        head = rng.random() < 0.6
        src = rng.choice([p for p in places if p <= dest]) if head else dest
        found.add(Node("head" if head else "mlp", layer, rng.randrange(12) if head else None, dest, src))
    kept = (*sorted(found, key=lambda node: node.key), Node("target", None, None, tokens - 1, tokens - 1))
    edges: dict[tuple[int, int, str], Edge] = {}
    for source, node in enumerate(kept[:-1]):
        above = [i for i, other in enumerate(kept[:-1]) if (other.layer or 0) > (node.layer or 0)] or [len(kept) - 1]
        for target in rng.sample(above, min(per_node, len(above))):
            reader = kept[target]
            side = {"target": "target", "mlp": "mlp"}.get(reader.kind) or ("src" if node.dest == reader.src else "dest")
            share = rng.random() ** 4 * 0.3 + 1e-4
            channels = tuple(rng.sample(range(32), 3)) if side in ("dest", "src") else ()
            edges[source, target, side] = Edge(source, target, side, share, share, share, channels, share if through else None)  # type: ignore[arg-type]
    return Circuit(
        model={"name": "made up", "family": "gpt2", "fingerprint": "0" * 64},
        versions={},
        parameters=Accpp(end=tokens - 1, seeds="linear", through="mlps" if through else "heads", target_text=("Mary",)),
        errors={"scores": 0.0},
        token_ids=tuple(range(tokens)),
        tokens=tuple(f" word{i}" for i in range(tokens)),
        nodes=kept,
        attention=tuple(rng.random() if node.kind == "head" else None for node in kept),
        edges=tuple(edges.values()) if through else tuple(e for e in edges.values() if e.side != "mlp"),
        firings=(),
        influence=tuple(0.5 ** (1 + layers - (layers if n.layer is None else n.layer)) for n in kept) if through else (),
        leaves=tuple(None for _ in kept) if through else (),
    )


def hostile(circuit: Circuit) -> Circuit:
    """The same circuit of a prompt, and a model, whose texts are markup."""
    texts = tuple(HOSTILE[i % len(HOSTILE)] for i in range(len(circuit.tokens)))
    parameters = replace(circuit.parameters, target_text=(HOSTILE[0],))
    return replace(circuit, tokens=texts, parameters=parameters, model={**circuit.model, "name": HOSTILE[1]})
