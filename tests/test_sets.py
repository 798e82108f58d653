"""Circuits as sets: what a store's tables give is what a slow look at each circuit gives."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from keyhole import KeyholeError, Model
from keyhole.circuits.circuit import Circuit, Node
from keyhole.store import Outcome, Store, Tracing, bulk
from keyhole.studies.families import Component, Granularity, Sets, Term, circuit_sets, store_sets
from keyhole.tasks import ioi
from keyhole.tasks.example import place_names
from stores import outcomes_of_every_kind, stored

LEFT_OUT = ("embedding", "bias", "offset", "mlp_offset", "value_offset")
GRANULARITIES: tuple[Granularity, ...] = ("heads", "edges", "channels")


@pytest.fixture(scope="module")
def store(organism: Model, tmp_path_factory: pytest.TempPathFactory) -> Store:
    return bulk(ioi(12, seed=5), organism, out=tmp_path_factory.mktemp("sets") / "store", part=5)


def oracle(outcome: Outcome, granularity: str, side: bool, role: bool) -> dict[Term, float]:
    """A circuit's terms and their influence, one node or edge at a time."""
    circuit = outcome.circuit
    assert circuit is not None
    roles = place_names(outcome.example.places(circuit.tokens), len(circuit.tokens))

    def component(node: Node) -> Component:
        return Component(node.kind, node.layer, node.head, *((roles[node.dest], roles[node.src]) if role else ()))

    found: dict[Term, float] = defaultdict(float)
    if granularity == "heads":
        for i, node in enumerate(circuit.nodes):
            if node.kind not in (*LEFT_OUT, "target"):
                found[Term(component(node))] += circuit.influence[i] if circuit.influence else 0
        return found
    for edge in circuit.edges:
        source, target = circuit.nodes[edge.sender], circuit.nodes[edge.receiver]
        if source.kind in LEFT_OUT:
            continue
        channels = edge.channels if granularity == "channels" and edge.channels else (None,)
        for channel in channels:
            term = Term(component(source), component(target), edge.side if side else None, channel)
            found[term] += (edge.influence or 0) / len(channels)
    return found


def rows(sets: Sets) -> dict[int, Mapping[Term, float]]:
    """Every circuit's terms with their values."""
    dense = sets.matrix.toarray()
    return {
        prompt: {sets.terms[j]: row[j] for j in np.flatnonzero(row)}
        for prompt, row in zip(sets.prompts.tolist(), dense, strict=True)
    }


@pytest.mark.parametrize(("granularity", "side", "role"), list(product(GRANULARITIES, (True, False), (True, False))))
def test_sets_are_those_of_a_slow_look(store: Store, granularity: Granularity, side: bool, role: bool) -> None:
    found = rows(store_sets(store, granularity, side=side, role=role))
    weighted = rows(store_sets(store, granularity, side=side, role=role, weighted=True))
    assert list(found) == list(range(12))
    for outcome in store:
        told = oracle(outcome, granularity, side, role)
        assert found[outcome.index] == dict.fromkeys(told, 1.0) and len(told) > 5
        positive = {term: value for term, value in told.items() if value}
        assert weighted[outcome.index] == pytest.approx(positive, abs=1e-12)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_circuits_give_what_their_store_gives(store: Store, granularity: Granularity) -> None:
    outcomes = [one for one in store if one.index in (9, 2, 7)]
    circuits: list[Circuit] = [one.circuit for one in outcomes if one.circuit is not None]
    for side, role, weighted in product((True, False), repeat=3):
        kept = store_sets(store, granularity, side=side, role=role, weighted=weighted, prompts=[9, 2, 7])
        examples = [one.example for one in outcomes]
        made = circuit_sets(
            circuits, granularity, side=side, role=role, weighted=weighted, prompts=[2, 7, 9], examples=examples
        )
        assert kept.terms == made.terms and kept.prompts.tolist() == made.prompts.tolist() == [2, 7, 9]
        assert (kept.matrix != made.matrix).nnz == 0
    turned = circuit_sets(circuits[::-1], granularity, prompts=[9, 7, 2])
    assert rows(turned) == rows(circuit_sets(circuits, granularity, prompts=[2, 7, 9]))


def test_circuits_of_every_kind(organism: Model, tmp_path: Path) -> None:
    """Without MLPs, by other methods, without heads; what has no circuit is no set."""
    outcomes = outcomes_of_every_kind(organism)
    kept = stored(tmp_path / "store", outcomes)
    for granularity in GRANULARITIES:
        found = rows(store_sets(kept, granularity))
        assert list(found) == list(range(7))
        for outcome in outcomes[:7]:
            assert found[outcome.index] == dict.fromkeys(oracle(outcome, granularity, True, False), 1.0)
    right = store_sets(kept, "edges", where={"label_number": ["1", "4", "8"]})
    assert right.prompts.tolist() == [1, 4]
    with pytest.raises(KeyholeError, match="no influence to weigh by"):
        store_sets(kept, "edges", weighted=True)


def test_terms_stand_in_one_order(store: Store) -> None:
    terms = store_sets(store, "edges").terms
    layers = [term.source.layer for term in terms]
    assert layers == sorted(layers, key=lambda layer: layer or 0) and len(set(terms)) == len(terms)
    assert {term.target.kind for term in terms if term.target} == {"head", "mlp", "target"}


def test_bad_requests(organism: Model, store: Store, tmp_path: Path) -> None:
    with pytest.raises(KeyholeError, match="prompt 99 has no circuit here"):
        store_sets(store, "edges", prompts=[3, 99])
    circuit = store.circuit(0)
    with pytest.raises(KeyholeError, match="2 circuits need as many different numbers"):
        circuit_sets([circuit, circuit], "edges", prompts=[1, 1])
    with pytest.raises(KeyholeError, match="give one for each circuit"):
        circuit_sets([circuit], "edges", role=True)
    nothing = store_sets(store, "edges", where={"correct": False})
    assert len(nothing) == 0 and nothing.matrix.shape == (0, 0)
    heads = bulk(ioi(2, seed=5), organism, out=tmp_path / "heads", tracing=Tracing(through="heads"))
    with pytest.raises(KeyholeError, match="keep to heads and have no influence to weigh by"):
        store_sets(heads, "heads", weighted=True)
    assert len(circuit_sets([replace(circuit, nodes=(), edges=())], "edges").terms) == 0
