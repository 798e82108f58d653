"""Two circuits, families or stores, compared: against slow looks, and on a machine whose circuits are known."""

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import networkx as nx
import numpy as np
import pytest
import torch
from scipy import stats
from scipy.sparse import csr_array

import keyhole
from commands import keyhole as command
from drawn import check_drawn
from keyhole.circuits.records import Component
from keyhole.figures.style import save
from keyhole.intervene import Cut, edge_cut, intervene
from keyhole.intervene.cuts import metric_of
from keyhole.lab.known import Known, build
from keyhole.lab.known_machine import places
from keyhole.models.model import Model
from keyhole.qk.omega import omega
from keyhole.stats import Interval, difference, interval, median_interval
from keyhole.store import Outcome, Store
from keyhole.studies.comparison import compare as comparing
from keyhole.studies.comparison import figure as drawing
from keyhole.studies.comparison.compare import Comparison, compare
from keyhole.studies.comparison.exclusive import (
    Cell,
    Exclusive,
    PlacedEdge,
    cut_in,
    judge,
    of_both,
    of_one_alone,
    placed_edges,
    remove_exclusive,
)
from keyhole.studies.comparison.operands import compare_terms, halves, medoid_of, operand
from keyhole.studies.comparison.score import EdgeEffect, Score, edge_effects, overlap, prune_by_effect, score
from keyhole.studies.comparison.signals import (
    Aggregated,
    Member,
    Place,
    _unit,
    aggregated,
    compare_signals,
    draw,
    head_row,
    member,
)
from keyhole.studies.comparison.signals import judge as judge_signals
from keyhole.studies.comparison.unified import (
    MISSING,
    PUBLISHED,
    TARGET,
    Link,
    Often,
    Published,
    Unified,
    part,
    prune,
    published,
    unify,
)
from keyhole.studies.families.sets import Sets, Term, circuit_sets, store_sets
from keyhole.tasks.example import Example
from keyhole.tracing.writers import written_by
from stores import stored

OF_ANY_MODEL = replace(PUBLISHED["gpt2-ioi"], model="")  # to be scored against circuits of the organism

CUES = ("big", "red")
TRUE_HEADS, TRUE_MLPS = ((1, 0), (2, 0), (2, 1)), (0, 2)


def cosine_matrix(a: Aggregated, b: Aggregated, side: Literal["dest", "src"]) -> np.ndarray:
    """Cosines between all heads of two circuits, in the order of their places."""
    mine, its = a.side(side), b.side(side)
    if not mine or not its:
        return np.zeros((len(mine), len(its)))
    rows, columns = (np.stack([one[place] for place in sorted(one)]) for one in (mine, its))
    return np.asarray(rows @ columns.T)


def known_example(prompt: str) -> Example:
    """A prompt of the machine, with its places as roles."""
    at, words = places(prompt), prompt.split()
    starts = [sum(len(word) + 1 for word in words[:i]) for i in range(len(words))]
    named = {"TOPIC": at.topic, "BEFORE": at.before, "NEXT": at.next, "END": at.end}  # tokens: a <bos> comes first
    roles = {role: (starts[t - 1], starts[t - 1] + len(words[t - 1])) for role, t in named.items()}
    return Example("known", prompt, at.answer, (at.against,), (at.answer,), roles, "", "", {"cue": words[-1]})


def known_prompts(cue: str, n: int, seed: int) -> list[str]:
    """Prompts that end in one cue, of various lengths: its noun, and another cue's before or after."""
    rng, found = random.Random(seed), set[str]()
    while len(found) < n:
        nouns = rng.sample(("cat", "dog", "sun"), 2)
        other = rng.choice([one for one in ("old", "new") if one != cue])
        pairs = [f"{cue} {nouns[0]}", f"{other} {nouns[1]}", ", ," if rng.random() < 0.5 else "."]
        rng.shuffle(pairs)
        found.add(f"{rng.choice(('French', 'Paris', 'German', 'Berlin'))} : {' , '.join(pairs)} . {cue}")
    return sorted(found)


@pytest.fixture(scope="module")
def machine() -> Known:
    return build(seed=1)


@pytest.fixture(scope="module")
def planted(machine: Known) -> dict[str, list[Member]]:
    """Two families: the cue decides through which channel the machine looks back."""
    families = {}
    for seed, cue in enumerate(CUES):
        families[cue] = []
        for number, prompt in enumerate(known_prompts(cue, 9, seed)):
            told = machine.ask(prompt)
            circuit = machine.model.run(prompt).trace(told.answer, against=told.against, through="mlps")
            families[cue].append(Member.of(circuit, known_example(prompt), 100 * seed + number))
    return families


@pytest.fixture(scope="module")
def reference() -> Published:
    """What the weights say that the machine's circuit is."""
    classes = {
        "heads": frozenset(Component("head", *head) for head in TRUE_HEADS),
        "MLPs": frozenset(Component("mlp", layer, None) for layer in TRUE_MLPS),
    }
    told = {"model": "known", "task": "known", "method": "written down", "source": "machine.py"}
    return Published(name="known", classes=classes, kinds=frozenset({"head", "mlp"}), shape=(3, 3), **told)


@pytest.fixture(scope="module")
def store(organism: Model, tmp_path_factory: pytest.TempPathFactory) -> Store:
    return keyhole.bulk("ioi", organism, n=40, out=tmp_path_factory.mktemp("comparison") / "ioi.store")


@pytest.fixture(scope="module")
def known_store(machine: Known, planted: dict[str, list[Member]], tmp_path_factory: pytest.TempPathFactory) -> Store:
    members = [one for family in planted.values() for one in family]
    texts = [" ".join(one.circuit.tokens[1:]) for one in members]
    outcomes = [
        Outcome(i, known_example(text), "circuit", replace(one.circuit, run=None), correct=True)
        for i, (one, text) in enumerate(zip(members, texts, strict=True))
    ]
    return stored(tmp_path_factory.mktemp("known") / "known.store", outcomes, task={"name": "known"})


# Unified circuits.


def test_a_store_and_its_circuits_unify_alike(store: Store) -> None:
    circuits = [circuit for _, circuit in store.circuits()]
    mine, its = unify(store), unify(circuits)
    assert mine.circuits == its.circuits == len(circuits)
    assert {(one.component, one.circuits) for one in mine.components} == {
        (one.component, one.circuits) for one in its.components
    }
    weights = {edge.term: (edge.circuits, pytest.approx(edge.weight)) for edge in its.edges}
    assert {edge.term: (edge.circuits, edge.weight) for edge in mine.edges} == weights


def test_unified_weights_and_counts_are_those_of_a_slow_look(store: Store) -> None:
    chosen = [3, 5, 8, 13]
    found = unify(store, prompts=chosen)
    circuits = [store.circuit(i) for i in chosen]
    for link in found.edges:
        weights = [
            [
                edge.weight
                for edge in circuit.edges
                for source, target in [(circuit.nodes[edge.sender], circuit.nodes[edge.receiver])]
                if (source.kind, source.layer, source.head, edge.side)
                == (link.term.source.kind, link.term.source.layer, link.term.source.head, link.term.side)
                and link.term.target is not None
                and (target.kind, target.layer, target.head)
                == (link.term.target.kind, link.term.target.layer, link.term.target.head)
            ]
            for circuit in circuits
        ]
        assert link.circuits == sum(bool(own) for own in weights)
        assert link.weight == pytest.approx(sum(map(sum, weights)) / 4, abs=1e-12)
    heads = {(one.component.layer, one.component.head): one.circuits for one in found.components}
    for (layer, head), count in heads.items():
        if head is not None:
            assert count == sum(any((n.layer, n.head) == (layer, head) for n in c.heads) for c in circuits)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("threshold", [0.0, 0.25, 0.5, 0.9])
def test_pruning_keeps_what_is_frequent_and_joined_to_the_target(seed: int, threshold: float) -> None:
    rng = random.Random(seed)
    heads = [Component("head", layer, head) for layer in range(5) for head in range(4)]
    often = {one: rng.randint(1, 10) for one in heads}
    pairs = [(a, b) for a in heads for b in heads if (a.layer or 0) < (b.layer or 0) and rng.random() < 0.08]
    pairs += [(a, TARGET) for a in heads if rng.random() < 0.1]
    links = tuple(Link(Term(a, b, "dest" if b != TARGET else "target"), 1, 1.0) for a, b in pairs)
    found = prune(Unified(10, tuple(Often(one, often[one]) for one in heads), links), threshold)
    graph: nx.Graph = nx.Graph()
    graph.add_node(TARGET)
    kept = [one for one in heads if often[one] >= round(threshold * 10)]
    graph.add_edges_from((a, b) for a, b in pairs if a in kept and (b == TARGET or b in kept))
    joined = nx.node_connected_component(graph, TARGET)
    assert {one.component for one in found.components} == joined - {TARGET}
    edges = {frozenset(pair) for pair in graph.subgraph(joined).edges}
    assert {frozenset((e.term.source, e.term.target)) for e in found.edges} == edges


def test_thresholds_that_are_no_shares_are_refused() -> None:
    with pytest.raises(keyhole.KeyholeError, match="share of circuits"):
        prune(Unified(1, (), ()), 20.0)
    with pytest.raises(keyhole.KeyholeError, match="no circuits to unify"):
        unify([])


def test_effects_are_those_of_one_removal_at_a_time(store: Store, organism: Model) -> None:
    one = member(store, 4)
    circuit, run = one.circuit, organism.run(list(one.circuit.token_ids), bos=False)
    effects = {effect.term: effect for effect in edge_effects([one], organism)}
    cuts: dict[Term, list[Cut]] = {}
    for edge in circuit.edges:
        source, target = circuit.nodes[edge.sender], circuit.nodes[edge.receiver]
        if edge.side in ("dest", "src") and source.kind in ("head", "mlp"):
            ends = [Component.of(node) for node in (source, target)]
            cuts.setdefault(Term(ends[0], ends[1], edge.side), []).append(edge_cut(circuit, edge))
    assert set(effects) == set(cuts) and len(cuts) > 5
    for term in list(cuts)[:6]:
        (outcome,) = intervene(run, [cuts[term]], metric_of(circuit), mode="local")
        assert effects[term].changes == (pytest.approx(outcome.metric_after - outcome.metric_before, abs=1e-5),)


def test_pruning_by_effect_keeps_what_acts(planted: dict[str, list[Member]], machine: Known) -> None:
    members = [one for family in planted.values() for one in family]
    whole = unify([one.circuit for one in members])
    effects = edge_effects(members, machine.model)
    assert {len(one.changes) for one in effects} == {len(members)}
    # without "previous" or without the flag there is no answer: both matter as much as the answer is large
    assert min(abs(one.spread[0]) for one in effects) > 5
    assert prune_by_effect(whole, effects, 1.0).named == whole.named
    weak = [EdgeEffect(one.term, tuple(change * 1e-6 for change in one.changes)) for one in effects]
    left = prune_by_effect(whole, weak, 1.0)
    assert {edge.term.side for edge in left.edges} <= {"target", "mlp", "value"}
    assert Component("head", 1, 0) not in left.named and Component("head", 2, 0) in left.named
    few = prune_by_effect(whole, effects, 1.0, least=len(members) + 1)
    assert few.named == left.named
    with pytest.raises(keyhole.KeyholeError, match="at least 0"):
        prune_by_effect(whole, effects, -1.0)


# Scores.


def test_the_planted_circuit_is_found_whole(planted: dict[str, list[Member]], reference: Published) -> None:
    unified = unify([one.circuit for family in planted.values() for one in family])
    for found in score(unified, reference):
        assert (found.score.precision, found.score.recall, found.score.f1) == (1.0, 1.0, 1.0)
        assert not found.missed and all(own.recall == 1.0 for _, own in found.classes)
        assert 0.2 < found.random_f1 < 0.6  # 5 of 12 components, by chance


def test_random_circuits_are_as_large(reference: Published) -> None:
    """Two of the twelve components that could be named, five of which are there: what chance has of them."""
    found = tuple(Often(Component("head", layer, 0), 10) for layer in (1, 2))
    links = tuple(Link(Term(one.component, TARGET, "target"), 10, 1.0) for one in found)
    (told,) = score(Unified(10, found, links), reference, thresholds=[0.1], draws=3000)
    assert told.score == Score(2, 5, 2) and len(reference.universe) == 12
    assert told.random_f1 == pytest.approx(2 * (2 * 5 / 12) / (2 + 5), rel=0.05)


def test_a_wrong_reference_scores_low(planted: dict[str, list[Member]], reference: Published) -> None:
    unified = unify([one.circuit for family in planted.values() for one in family])
    distractors = {"heads": frozenset(Component("head", i, i) for i in range(3))}
    (found,) = score(unified, replace(reference, classes=distractors, kinds=frozenset({"head"})), thresholds=[0.1])
    assert found.score == Score(found=3, there=3, both=0) and found.score.f1 == 0.0 < found.random_f1
    assert found.missed == tuple(Component("head", i, i) for i in range(3))


def test_only_kinds_that_could_be_named_are_scored(planted: dict[str, list[Member]], reference: Published) -> None:
    unified = unify([one.circuit for one in planted["big"]])
    heads = replace(reference, classes={"heads": reference.classes["heads"]}, kinds=frozenset({"head"}))
    assert score(unified, heads, thresholds=[0.1])[0].score == Score(3, 3, 3)
    both = replace(heads, kinds=frozenset({"head", "mlp"}))
    assert score(unified, both, thresholds=[0.1])[0].score == Score(5, 3, 3)


def test_thresholds_take_rare_components_away(reference: Published) -> None:
    rare, often = Component("head", 0, 0), Component("head", 2, 0)
    links = tuple(Link(Term(one, TARGET, "target"), n, 1.0) for one, n in ((rare, 1), (often, 10)))
    unified = Unified(10, (Often(rare, 1), Often(often, 10)), links)
    found = score(unified, reference, thresholds=[0.1, 0.2])
    assert [one.score.precision for one in found] == [0.5, 1.0]


def test_published_circuits_are_as_large_as_they_say() -> None:
    sizes = {name: len(own) for name, own in published("gpt2-ioi").classes.items()}
    assert sum(sizes.values()) == 26 == len(published("gpt2-ioi").components)
    assert list(sizes.values()) == [3, 8, 2, 4, 4, 3, 2]
    years = published("gpt2-greater-than")
    assert sum(one.kind == "head" for one in years.components) == 8
    assert {one.layer for one in years.components if one.kind == "mlp"} == {8, 9, 10, 11}
    for one in PUBLISHED.values():
        assert one.components <= set(one.universe) and one.source
    for name in MISSING:
        with pytest.raises(keyhole.KeyholeError, match="cannot be compared with"):
            published(name)


def test_published_numbers_come_out() -> None:
    """P and R of ACC's comparisons (with sizes and hits that give them), and the F1 that was published beside them."""
    for precision, recall, f1, there in ((0.576, 0.731, 0.644, 26), (0.40, 1.0, 0.571, 12)):
        both = round(recall * there)
        told = Score(round(both / precision), there, both)
        assert (round(told.precision, 3), round(told.recall, 3), round(told.f1, 3)) == (precision, recall, f1)
    assert overlap(set(), {1}).f1 == overlap({1}, set()).recall == overlap(set(), set()).f1 == 0.0


# Signals.


def test_aggregated_signals_are_projections_of_what_was_written(store: Store, organism: Model) -> None:
    one = member(store, 7)
    circuit, run = one.circuit, organism.run(list(one.circuit.token_ids), bos=False)
    found = aggregated(one, organism, offsets=False)
    assert one.names is not None and found.dest and found.src
    for node in {edge.receiver for edge in circuit.edges if edge.side in ("dest", "src")}:
        into = circuit.nodes[node]
        assert into.layer is not None and into.head is not None
        om, scale = omega(organism, into.layer), run.attention_run(into.layer).norm_scale
        for side, U, token in (("dest", om.u(into.head), into.dest), ("src", om.v(into.head), into.src)):
            total = torch.zeros(U.shape[0], dtype=torch.float64)
            for edge in circuit.edges_into(node):
                who = circuit.nodes[edge.sender]
                if edge.side == side and who.kind != "offset":
                    basis = U[:, list(edge.channels)].double()
                    written = written_by(run, who.writer, [token])[0].double() / float(scale[token])
                    total += basis @ (basis.T @ written)
            place = Place(into.layer, into.head, one.names[into.dest], one.names[into.src])
            if total.norm() > 0:
                vector = found.side(side)[place]
                assert np.linalg.norm(vector) == pytest.approx(1.0)
                assert vector == pytest.approx((total / total.norm()).numpy(), abs=1e-4)
            else:
                assert place not in found.side(side)


def test_a_circuit_is_like_itself(store: Store, organism: Model) -> None:
    one = aggregated(member(store, 2), organism)
    for side in ("dest", "src"):
        matrix = cosine_matrix(one, one, side)
        assert matrix.diagonal() == pytest.approx(1.0) and np.abs(matrix).max() <= 1 + 1e-9
    assert cosine_matrix(Aggregated({}, {}), one, "dest").shape == (0, len(one.dest))


def test_without_roles_firings_are_summed_by_head(store: Store, organism: Model) -> None:
    one = member(store, 2)
    apart, summed = aggregated(one, organism), aggregated(replace(one, names=None), organism)
    assert {(place.layer, place.head) for place in apart.dest} == {(place.layer, place.head) for place in summed.dest}
    assert all(place.dest is None and place.layer >= 1 for place in summed.dest)
    by_head: dict[tuple[int, int], list[Place]] = {}
    for place in apart.src:
        by_head.setdefault((place.layer, place.head), []).append(place)
    for (layer, head), own in by_head.items():
        if len(own) == 1:
            assert summed.src[Place(layer, head)] == pytest.approx(apart.src[own[0]])
    found = compare_signals((one, replace(one, names=None)), ([], []), organism)
    assert found.matched == "heads" and [row.cosine for row in found.rows] == pytest.approx([1.0] * len(found.rows))
    assert {row.verdict for row in found.rows} == {"no floor"}


def test_planted_signals_differ_where_the_cue_is_read(planted: dict[str, list[Member]], machine: Known) -> None:
    big, red = planted["big"], planted["red"]
    found = compare_signals((big[0], red[0]), (big[1:], red[1:]), machine.model)
    rows = {(row.place.layer, row.place.head, row.side): row for row in found.rows}
    for side in ("dest", "src"):  # "induction" has a channel for each word
        row = rows[2, 0, side]
        assert row.verdict == "different" and abs(row.cosine) < 0.05 < 0.95 < row.floor
        assert row.place == Place(2, 0, "END", "NEXT") and row.pairs == (4, 4, 8)
    assert rows[2, 1, "src"].verdict == "as within"  # "listens" hears flags, whatever the cue
    same = compare_signals((big[0], big[1]), (big[2::2], big[3::2]), machine.model)
    assert "different" not in {row.verdict for row in same.rows}


def test_heads_of_the_first_layer_are_left_out() -> None:
    told = {Place(0, 1): np.array([1.0, 0.0]), Place(1, 2): np.array([3.0, 4.0]), Place(2, 0): np.zeros(2)}
    found = _unit(told)
    assert list(found) == [Place(1, 2)] and found[Place(1, 2)].tolist() == [0.6, 0.8]  # nor signals that cancel


def test_the_floor_is_the_lower_of_two_quantiles() -> None:
    """Of all pairs within each family; means are over pairs that share no prompt."""
    place = Place(1, 0)

    def at(degrees: float) -> Aggregated:
        return Aggregated({place: np.array([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))])}, {})

    angles = np.linspace(0, 30, 9), np.array([0, 2, 3, 9, 31, 40, 52, 54])
    row = head_row(place, "dest", (at(0), at(70)), ([*map(at, angles[0])], [*map(at, angles[1])]))
    low = [np.quantile([np.cos(np.radians(b - a)) for a, b in combinations(own, 2)], 0.05) for own in angles]
    assert (
        row.floor == pytest.approx(min(low)) and low[1] < low[0] - 0.1 and row.cosine == pytest.approx(0.342, abs=1e-3)
    )
    pairs = [np.cos(np.radians(own[1::2] - own[: 2 * (len(own) // 2) : 2])) for own in angles]
    assert (row.within_a, row.within_b) == (pytest.approx(interval(pairs[0])), pytest.approx(interval(pairs[1])))
    assert row.between == pytest.approx(interval(np.cos(np.radians(angles[0][:8] - angles[1]))))
    assert row.pairs == (4, 4, 8)


WITHIN = (Interval(0.9, 0.8, 1.0), Interval(0.8, 0.6, 1.0))


@pytest.mark.parametrize(
    ("cosine", "between", "verdict"),
    [
        (0.4, Interval(0.4, 0.3, 0.5), "different"),
        (0.8, Interval(0.4, 0.3, 0.5), "less alike"),
        (0.4, Interval(0.5, 0.3, 0.7), "unclear"),  # below the means of both families, but an interval overlaps
        (
            0.8,
            Interval(0.6, 0.5, 0.7),
            "as within",
        ),  # less alike than those of one family, and no less than the other's
        (0.7, Interval(0.9, 0.8, 1.0), "as within"),
        (0.4, None, "no floor"),
    ],
)
def test_signals_differ_only_if_intervals_are_apart(cosine: float, between: Any, verdict: str) -> None:
    assert judge_signals(cosine, 0.7, WITHIN, between) == verdict
    assert judge_signals(cosine, 0.7, WITHIN[::-1], between) == verdict
    assert judge_signals(cosine, math.nan, WITHIN, between) == "no floor"


def test_a_cosine_within_noise_is_not_called_different() -> None:
    rng, place = np.random.default_rng(0), Place(3, 1)

    def drawn(mean: Sequence[float], spread: float) -> Aggregated:
        vector = np.array(mean) + spread * rng.normal(size=3)
        return Aggregated({place: vector / np.linalg.norm(vector)}, {})

    x, y = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0)
    pair = (Aggregated({place: np.array(x)}, {}), Aggregated({place: np.array(y)}, {}))
    sharp = [drawn(x, 0.02) for _ in range(12)], [drawn(y, 0.02) for _ in range(12)]
    assert head_row(place, "dest", pair, sharp).verdict == "different"
    noisy = [drawn(x, 2.0) for _ in range(12)], [drawn(y, 2.0) for _ in range(12)]
    assert head_row(place, "dest", pair, noisy).verdict == "as within"
    one = [drawn(x, 0.02) for _ in range(12)], [drawn(x, 0.02) for _ in range(12)]
    assert head_row(place, "dest", pair, one).verdict == "unclear"  # the representatives alone are odd
    for many, few in ((12, 3), (12, 5), (5, 12)):  # one pair, or two, of one family
        apart = [drawn(x, 0.02) for _ in range(many)], [drawn(y, 0.02) for _ in range(few)]
        assert head_row(place, "dest", pair, apart).verdict == "no floor"


# Edges of one alone.


def test_edges_are_placed_where_they_were(store: Store) -> None:
    one = member(store, 6)
    assert one.names is not None
    edges = placed_edges(one)
    cuts = [cut_in(edge, one.names) for edge in edges]
    circuit = one.circuit
    own = [e for e in circuit.edges if e.side in ("dest", "src") and circuit.nodes[e.sender].kind in ("head", "mlp")]
    assert len(own) > 5
    assert [(c.layer, c.head, c.dest, c.src, c.signals[0].writer, c.signals[0].channels) for c in cuts if c] == [
        (c.layer, c.head, c.dest, c.src, c.signals[0].writer, c.signals[0].channels)
        for c in (edge_cut(circuit, edge) for edge in own)
    ]


def test_edges_without_a_place_are_left_out(store: Store) -> None:
    one = member(store, 6)
    assert one.names is not None
    edge = next(edge for edge in placed_edges(one) if edge.writer.kind == "head")
    assert cut_in(replace(edge, dest="NOBODY"), one.names) is None
    back, here = tuple(reversed(one.names)), one.names[1]
    assert cut_in(edge, one.names) is not None and here not in (edge.dest, edge.src)
    assert cut_in(replace(edge, writer_dest=here, writer_src=here), one.names) is None  # written where nobody reads
    assert cut_in(replace(edge, writer_dest=one.names[1], writer_src=one.names[3]), one.names) is None
    assert cut_in(edge, back) is None or edge.dest == edge.src
    with pytest.raises(keyhole.KeyholeError, match="by roles"):
        placed_edges(replace(one, names=None))


def test_channels_are_of_one_alone_or_of_both(store: Store) -> None:
    mine, its = placed_edges(member(store, 1)), placed_edges(member(store, 9))
    known = {term for edge in its for term in edge.terms}
    alone, both = of_one_alone(mine, its), of_both(mine, its)
    assert {t for e in alone for t in e.terms} == {t for e in mine for t in e.terms} - known
    assert {t for e in both for t in e.terms} == {t for e in mine for t in e.terms} & known
    sets = circuit_sets([store.circuit(1), store.circuit(9)], "channels")
    rows = [{sets.terms[j] for j in sets.matrix[[i]].indices} for i in range(2)]
    signals = {term for term in rows[0] - rows[1] if term.side in ("dest", "src")}
    assert {t for e in alone for t in e.terms} == signals  # as families count them
    assert not of_one_alone(mine, mine) and of_both(mine, mine) == mine


def test_planted_edges_act_on_their_own_family(planted: dict[str, list[Member]], machine: Known) -> None:
    big, red = planted["big"], planted["red"]
    found = remove_exclusive((big[0], red[0]), (big[1:], red[1:]), machine.model, mode="exact")
    for which, other in (("a", "b"), ("b", "a")):
        own, its = found.cell(which, which), found.cell(which, other)
        assert own.spread[0] < -0.5 and abs(its.spread[0]) < 0.05
        assert own.placed == its.placed == 1.0 and len(own.measured) == 8
        assert abs(found.cell(which, which, "random").spread[0]) < 0.05
        assert found.cell(which, which, "shared").spread[0] < -0.5  # the flag, which both families need
        assert found.verdict(which) == (True, "acts on its own family")
    assert found.shared == (1, 1) == (len(found.a), len(found.b))
    assert found.interaction[2] < -0.25
    assert all(edge.writer == Component("head", 1, 0) and edge.head == (2, 0) for edge in (*found.a, *found.b))


def test_as_many_shared_edges_are_removed(store: Store, organism: Model) -> None:
    """As a control: some of those that both have, drawn by the seed."""
    pair, others = (member(store, 1), member(store, 9)), [member(store, 5)]
    mine, its = placed_edges(pair[0]), placed_edges(pair[1])
    few, most = of_one_alone(mine, its)[:2], of_both(mine, its)
    assert len(most) > 4
    close = replace(pair[1], circuit=pair[0].circuit, names=pair[0].names)
    for edge in few:  # a circuit that lacks these edges alone
        close = replace(close, circuit=without(close.circuit, edge))
    found = remove_exclusive((pair[0], close), (others, others), organism, draws=1)
    both = of_both(placed_edges(pair[0]), placed_edges(close))
    assert 0 < len(found.a) <= 2 < len(both) and not found.b and found.shared == (len(found.a), 0)


def without(circuit: keyhole.Circuit, edge: PlacedEdge) -> keyhole.Circuit:
    """The circuit without what an edge counts as, wherever it stands."""
    kept = [
        one
        for one in circuit.edges
        for source, into in [(circuit.nodes[one.sender], circuit.nodes[one.receiver])]
        if (Component.of(source), into.layer, into.head, one.side) != (edge.writer, *edge.head, edge.side)
    ]
    return replace(circuit, edges=tuple(kept))


def test_the_interaction_is_half_of_a_difference_of_differences() -> None:
    """Per prompt a's edges less b's; prompts without one of both are left out."""
    rng = np.random.default_rng(0)
    values = {(edges, prompts): rng.normal(size=6) for edges in "ab" for prompts in "ab"}
    values["a", "b"][2] = math.nan
    cells = [Cell(e, p, "exclusive", tuple(own.tolist()), 1.0) for (e, p), own in values.items()]  # type: ignore[arg-type]
    made = Exclusive((), (), (0, 0), (0, 0), (0, 0), "local", tuple(cells))
    mine, its = (values["a", p] - values["b", p] for p in "ab")
    its = its[~np.isnan(its)]
    low, high = stats.ttest_ind(mine, its, equal_var=False).confidence_interval()
    assert made.interaction == pytest.approx(((mine.mean() - its.mean()) / 2, low / 2, high / 2))


def test_one_family_has_no_edges_of_its_own(planted: dict[str, list[Member]], machine: Known) -> None:
    big = planted["big"]
    found = remove_exclusive((big[0], big[1]), (big[2:5], big[5:]), machine.model)
    assert not found.a and not found.b and found.verdict("a") == (None, "there is nothing to remove")
    assert math.isnan(found.interaction[0])


def test_effects_are_changes_over_the_size_of_the_answer(store: Store, organism: Model) -> None:
    pair, others = (member(store, 1), member(store, 9)), [member(store, 5)]
    found = remove_exclusive(pair, (others, others), organism, draws=1)
    circuit, names = others[0].circuit, others[0].names
    assert names is not None
    cuts = [cut_in(edge, names) for edge in of_one_alone(placed_edges(pair[0]), placed_edges(pair[1]))]
    run = organism.run(list(circuit.token_ids), bos=False)
    (outcome,) = intervene(run, [[cut for cut in cuts if cut]], metric_of(circuit), mode="local")
    effect = (outcome.metric_after - outcome.metric_before) / abs(outcome.metric_before)
    assert found.cell("a", "a").effects == (pytest.approx(effect, abs=1e-5),) == found.cell("a", "b").effects
    assert found.cell("a", "a").placed == pytest.approx(sum(cut is not None for cut in cuts) / len(cuts))
    assert abs(effect) > 1e-3 and outcome.metric_before > 0


def test_prompts_that_the_model_gets_wrong_are_left_out(store: Store, organism: Model) -> None:
    pair, right = (member(store, 1), member(store, 9)), member(store, 5)
    told = right.circuit.parameters
    swapped = replace(told, target_ids=told.against_ids, against_ids=told.target_ids)
    wrong = replace(right, circuit=replace(right.circuit, parameters=swapped))
    found = remove_exclusive(pair, ([wrong, right], [right]), organism, draws=1)
    assert found.wrong == (1, 0) and len(found.cell("a", "a").effects) == 1


def test_intervals_are_those_of_scipy() -> None:
    rng = np.random.default_rng(0)
    mine, its = rng.normal(0, 1, 12).tolist(), rng.normal(0.5, 3, 7).tolist()
    found = difference(mine, its)
    low, high = stats.ttest_ind(mine, its, equal_var=False).confidence_interval()
    assert found == pytest.approx((np.mean(mine) - np.mean(its), low, high))
    assert math.isnan(difference(mine, its[:1])[0]) and difference([1.0, 1.0], [0.0, 0.0]) == (1.0, 1.0, 1.0)
    for n in (6, 17, 40):
        values = rng.permutation(n).astype(float).tolist()
        middle, low, high = median_interval(values)
        left = stats.binom.cdf(low, n, 0.5)  # values are ranks: so many may lie below the median by chance
        assert left <= 0.025 < stats.binom.cdf(low + 1, n, 0.5) and middle == (n - 1) / 2 and low + high == n - 1
    assert math.isnan(median_interval([1.0] * 5)[1])


def cell(values: Sequence[float], placed: float = 1.0) -> Cell:
    return Cell("a", "a", "exclusive", tuple(values), placed)


STRONG, WEAK = (-0.5, -0.6, -0.55, -0.5, -0.6), (-0.1, -0.2, -0.15, -0.1, -0.2)
NONE, WIDE = (0.0, 0.01, -0.01, 0.0, 0.01), (-0.9, 0.1, -0.7, 0.2, -0.3)


@pytest.mark.parametrize(
    ("own", "other", "control", "answer"),
    [
        (cell(STRONG), cell(WEAK), cell(NONE), True),
        (cell(STRONG), cell(STRONG), cell(NONE), False),
        (cell(STRONG), cell(WEAK), cell(STRONG), False),  # random channels do as much
        (cell(WEAK), cell(STRONG), cell(NONE), False),
        (cell((-0.9, 0.0, -0.9, 0.0, -0.5)), cell(WEAK), cell(NONE), False),  # the intervals overlap
        (cell(STRONG), cell(NONE), cell(WIDE), False),  # with that of random channels alone
        (cell(STRONG), cell(WIDE), cell(NONE), False),  # with that of the other family alone
        (cell(STRONG), cell(WEAK[:3]), cell(NONE), None),
        (cell(STRONG), cell(WEAK, placed=0.3), cell(NONE), None),
        (cell(STRONG[:3]), cell(WEAK), cell(NONE), None),
        (cell(STRONG), cell([math.nan] * 5, placed=0.0), cell(NONE), None),
        (cell([math.nan] * 5), cell(WEAK), cell(NONE), None),
    ],
)
def test_edges_act_only_if_all_controls_say_so(own: Cell, other: Cell, control: Cell, answer: bool | None) -> None:
    assert judge(own, other, control)[0] is answer


# Terms and sides.


def test_terms_and_frequencies_are_those_of_a_slow_look(store: Store) -> None:
    a, b = range(0, 40, 2), range(1, 40, 2)
    found = compare_terms(*(store_sets(store, "edges", prompts=list(own)) for own in (a, b)), threshold=0.5)
    sets = circuit_sets([store.circuit(i) for i in range(40)], "edges")
    has = [{sets.terms[j] for j in sets.matrix[[i]].indices} for i in range(40)]
    share = {own: {t: sum(t in has[i] for i in own) / 20 for t in sets.terms} for own in (a, b)}
    assert {row.term: (row.a, row.b) for row in found.rows} == {
        term: (share[a][term], share[b][term]) for term in sets.terms
    }
    often = [{t for t in sets.terms if share[own][t] >= 0.5} for own in (a, b)]
    assert found.score == Score(len(often[0]), len(often[1]), len(often[0] & often[1]))
    sums = [sum(pick(share[a][t], share[b][t]) for t in sets.terms) for pick in (min, max)]
    assert found.likeness == pytest.approx(sums[0] / sums[1])
    assert len(found.only_a) + len(found.only_b) + len(found.shared) == len(found.rows)
    assert compare_terms(sets, sets, threshold=0.1).likeness == 1.0


def test_halves_of_one_side_are_alike(known_store: Store) -> None:
    big, red = (operand(f"{known_store.path}[cue={cue}]").sets("channels") for cue in CUES)
    found = compare_terms(big, red, threshold=0.1)
    assert found.halves is None  # of nine circuits, halves are too small
    whole = operand(str(known_store.path)).sets("channels")
    same = halves(whole, whole, draws=20)
    assert same is not None and same.circuits == 9
    assert same.within_a == pytest.approx(same.within_b, abs=0.1) == pytest.approx(same.between, abs=0.1)
    doubled = [
        circuit_sets([store_circuit for _ in range(2) for store_circuit in side], "channels")
        for side in (
            [known_store.circuit(i) for i in big.prompts.tolist()],
            [known_store.circuit(i) for i in red.prompts.tolist()],
        )
    ]
    apart = halves(*doubled)
    assert apart is not None and min(apart.within_a, apart.within_b) > apart.between + 0.2


def test_halves_are_halves() -> None:
    """Circuits of one kind, few on one side: halves of both are as large, and all are as alike."""
    rng = np.random.default_rng(0)
    terms = tuple(Term(Component("head", 1, head)) for head in range(30))
    few, many = (
        Sets("heads", np.arange(n), terms, csr_array((rng.random((n, 30)) < 0.5).astype(float))) for n in (21, 60)
    )
    for one, other in ((few, many), (many, few)):
        found = halves(one, other, draws=20)
        assert found is not None and found.circuits == 10
        told = (found.within_a, found.within_b, found.between)
        assert max(told) < 0.85 and min(told) > 0.6 and max(told) - min(told) < 0.1


def test_the_representative_is_nearest_to_all(store: Store) -> None:
    best = {}
    for granularity in ("channels", "heads"):
        sets = store_sets(store, granularity)
        has = [set(sets.matrix[[i]].indices.tolist()) for i in range(len(sets.prompts))]
        sums = [sum(1 - len(mine & its) / len(mine | its) for its in has) for mine in has]
        best[granularity] = int(sets.prompts[int(np.argmin(sums))])
        assert medoid_of(sets) == best[granularity]
    assert operand(store).representative().prompt == best["channels"] != best["heads"]


def test_operands_are_read(store: Store, tmp_path: Path) -> None:
    text = str(store.path)
    assert len(operand(text).prompts) == 40 == len(operand(store).prompts)
    orders = {one: operand(f"{text}[order={one}]").prompts for one in ("ABBA", "BABA")}
    rows = store.table("prompts", columns=["prompt", "label_order"]).to_pylist()
    for order, prompts in orders.items():
        assert list(prompts) == [row["prompt"] for row in rows if row["label_order"] == order]
    assert operand(f"{text}[order=ABBA, status=circuit]").prompts == orders["ABBA"]
    assert operand(f"{text}#7").prompts == (7,)
    circuit = store.circuit(7)
    circuit.save(tmp_path / "seven.json")
    own = operand(str(tmp_path / "seven.json")).circuit
    assert own is not None and own.circuit == circuit and own.names is None
    assert operand("published:gpt2-ioi").reference is PUBLISHED["gpt2-ioi"]


def test_families_of_a_store_are_sides(store: Store) -> None:
    known: dict[Path, Any] = {}
    first = operand(f"{store.path}:1", known)
    (found,) = known.values()  # families were found once, for all sides
    for family in found.families:
        side = first if family.number == 1 else operand(f"{store.path}:{family.number}", known)
        assert side.prompts == family.members and side.representative().prompt == family.representative
    with pytest.raises(keyhole.KeyholeError, match="has no family 99"):
        operand(f"{store.path}:99", known)


def test_members_are_drawn_by_the_seed(store: Store) -> None:
    pool = list(range(20))
    drawn = [one.prompt for one in draw(store, pool, 6, seed=3, but=[4, None])]
    assert drawn == [one.prompt for one in draw(store, pool, 6, seed=3, but=[4, None])]
    assert len(set(drawn)) == 6 and set(drawn) <= set(pool) - {4}
    assert drawn != [one.prompt for one in draw(store, pool, 6, seed=4, but=[4])]
    assert len(draw(store, pool, 99)) == 20


# All of it.


@pytest.fixture(scope="module")
def orders(store: Store, organism: Model) -> Comparison:
    sides = [f"{store.path}[order={order}]" for order in ("ABBA", "BABA")]
    return compare(*sides, model=organism, members=7)


def test_two_selections_are_compared_in_every_way(orders: Comparison) -> None:
    assert [one.granularity for one in orders.terms] == ["heads", "edges", "channels"]
    assert orders.signals is not None and orders.signals.matched == "roles" and orders.signals.members == (7, 7)
    assert orders.exclusive is not None and len(orders.exclusive.cells) == 12 and not orders.notes
    assert None not in orders.representatives
    told = json.loads(json.dumps(comparing.Comparison.record(orders), default=str))
    assert told["signals"]["rows"] and told["exclusive"]["verdicts"]["a"][1]
    assert "its representative is prompt" in str(orders) and "edges of a alone" in str(orders)


def test_neither_representative_is_among_the_prompts(
    store: Store, organism: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Member] = []

    def spy(pair: tuple[Member, Member], families: tuple[list[Member], list[Member]], *_: object, **__: object) -> None:
        seen.extend([*families[0], *families[1]])
        assert not {one.prompt for one in pair} & {one.prompt for one in seen}
        raise keyhole.KeyholeError("seen")

    monkeypatch.setattr(comparing, "compare_signals", spy)
    with pytest.raises(keyhole.KeyholeError, match="seen"):
        compare(store, f"{store.path}[order=ABBA]", model=organism, members=99)
    assert len(seen) > 40


def test_planted_families_of_a_store_are_told_apart(
    known_store: Store, machine: Known, reference: Published, tmp_path: Path
) -> None:
    sides = [f"{known_store.path}[cue={cue}]" for cue in CUES]
    found = compare(*sides, model=machine.model, members=9)
    assert found.signals is not None and found.exclusive is not None
    different = {(row.place.layer, row.place.head) for row in found.signals.rows if row.verdict == "different"}
    assert different == {(2, 0)}
    assert found.exclusive.verdict("a")[0] is True and found.exclusive.verdict("b")[0] is True
    heads = {one.granularity: one for one in found.terms}["heads"]
    assert heads.score.f1 == heads.likeness == 1.0  # the same components
    channels = {one.granularity: one for one in found.terms}["channels"]
    assert channels.only_a and channels.only_b  # that do other things
    against = compare(known_store, reference)
    assert {one.score.f1 for one in against.published} == {1.0} and not against.notes
    assert compare(reference, known_store).published == against.published


def test_a_contrast_beside_a_plain_answer_is_noted(organism: Model) -> None:
    run = organism.run("When Mary and John went to the store, John gave a drink to")
    plain, contrast, linear = run.trace("Mary"), run.trace("Mary", against="John"), run.trace("Mary", metric="linear")
    said = "one side explains Mary against John, a difference of logits, and the other Mary alone, a log-probability"
    for pair in ((plain, contrast), (contrast, plain)):
        assert said in str(compare(*pair, members=0))
    assert "the other Mary alone, a logit" in str(compare(contrast, linear, members=0))
    for pair in ((plain, plain), (contrast, contrast)):
        assert "one side explains" not in str(compare(*pair, members=0))


def test_what_cannot_be_compared_is_said(
    store: Store, known_store: Store, organism: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = compare(store, known_store)
    assert other.terms and other.signals is None and "models differ" in str(other)
    assert "other tasks" in str(other)
    alone = compare(f"{store.path}#3", f"{store.path}#4", model=organism)
    assert alone.signals is not None and alone.exclusive is None and "single circuit" in str(alone)
    assert "cannot be compared with a floor" in str(alone) or "no signal to compare" in str(alone)
    sets = compare(store, f"{store.path}[order=ABBA]", members=0)
    assert "on both sides" in str(sets) and "only what circuits consist of is compared" in str(sets)
    assert "no prompts were run" not in str(sets) and "--prompts" in str(sets)
    with pytest.raises(keyhole.KeyholeError, match="a circuit of gpt2, and these circuits are of organism: heads"):
        compare(store, "published:gpt2-ioi")
    folder = replace(store.circuit(3), model={**store.circuit(3).model, "name": "/models/mine"})
    assert "unless mine is that model, these scores mean nothing" in str(compare(folder, "published:gpt2-ioi"))
    with pytest.raises(keyhole.KeyholeError, match="these circuits are of mine: heads of two models"):
        compare(replace(folder, model={**folder.model, "family": "llama"}), "published:gpt2-ioi")
    with pytest.raises(keyhole.KeyholeError, match="other weights"):
        compare(store, f"{store.path}#3", model=build().model)

    def gone(*_: object, **__: object) -> None:
        raise keyhole.KeyholeError("the model is on another machine")

    monkeypatch.setattr(comparing, "model_of", gone)
    assert "not compared: the model is on another machine" in str(compare(store, f"{store.path}#3"))


def test_two_circuit_files_are_compared(store: Store, organism: Model, tmp_path: Path) -> None:
    for number in (3, 4):
        store.circuit(number).save(tmp_path / f"{number}.json")
    found = compare(tmp_path / "3.json", tmp_path / "4.json", model=organism)
    assert found.signals is not None and found.signals.matched == "heads" and "summed" in str(found)
    assert found.circuits == (1, 1) and found.terms[0].rows


@pytest.mark.parametrize(
    ("a", "reason"),
    [
        ("nowhere.store", "there is no such store"),
        ("{store}[colour=blue]", "have no label 'colour': they have"),
        ("{store}[order=CDDC]", "order is one of ABBA, BABA"),
        ("{store}[order]", "selected as in"),
        ("{store}#4000", "there is no prompt 4000"),
        ("published:gpt9", "there are gpt2-ioi, gpt2-greater-than"),
        ("published:gpt2-pronouns", "no list of the 16 components"),
        ("published:gpt2-ioi", "both sides are published circuits"),
        ("missing.json", "missing.json"),
    ],
)
def test_bad_requests_are_one_line(a: str, reason: str, store: Store) -> None:
    result = command("compare", a.format(store=store.path), "published:gpt2-ioi")
    assert result.returncode == 2 and result.stdout == ""
    assert reason in result.stderr and result.stderr.count("\n") == 1


def test_the_command_tells_and_writes(store: Store, tmp_path: Path) -> None:
    sides = [f"{store.path}[order={order}]" for order in ("ABBA", "BABA")]
    files = [tmp_path / f"c{suffix}" for suffix in (".html", ".json", ".csv", ".png")]
    outs = [text for file in files for text in ("--out", str(file))]
    result = command("compare", *sides, "--members", "2")
    assert result.returncode == 0, result.stderr
    assert "edges of a alone" in result.stdout and "within a" in result.stdout and "likeness" in result.stdout
    told = json.loads(command("compare", *sides, "--members", "2", "--json", *outs).stdout)
    assert all(file.stat().st_size > 500 for file in files)
    assert told == json.loads(files[1].read_text())
    assert files[2].read_text().startswith("granularity,term,a,b\n")
    wrong = command("compare", *sides, "--out", str(tmp_path / "c.doc"))
    assert wrong.returncode == 2 and "should end in" in wrong.stderr


def test_figures_show_what_they_say(orders: Comparison, store: Store, tmp_path: Path) -> None:
    against = compare(store, OF_ANY_MODEL)
    figures = {
        "signals": drawing.comparison_figure(orders),
        "removals": drawing.removals_figure(orders),
        "terms": drawing.terms_figure(orders),
        "scores": drawing.comparison_figure(against),
    }
    for name, figure in figures.items():
        check_drawn(figure, save(figure, tmp_path / f"{name}.png"))
    assert orders.signals is not None
    dots = [line for line in figures["signals"].axes[0].lines if line.get_marker() == "o"]
    assert sorted(float(line.get_xdata()[0]) for line in dots) == sorted(
        row.cosine for row in orders.signals.rows if row.side == "dest"
    )
    with pytest.raises(keyhole.KeyholeError, match="nothing to draw"):
        drawing.removals_figure(against)


def test_the_page_has_every_table(orders: Comparison) -> None:
    page = orders.to_html()
    for text in ("Same heads, same signals?", "Do edges act on their own family?", "channels that differ most"):
        assert text in page
    assert "<script" not in page and page.count("data:image/png") == 3


def test_a_part_of_a_unified_circuit_is_joined_to_the_target() -> None:
    near, far = Component("head", 3, 0), Component("head", 1, 0)
    links = (Link(Term(near, TARGET, "target"), 1, 1.0), Link(Term(far, near, "dest"), 1, 1.0))
    whole = Unified(1, (Often(near, 1), Often(far, 1)), links)
    assert part(whole, lambda edge: True) == whole
    assert part(whole, lambda edge: edge.term.side == "dest").named == frozenset()
    assert whole.frequency(whole.edges[0]) == 1.0
