"""Sets of edges are connected as the definition says; effects and faithfulness are plain masks; circuits suffice."""

import itertools
import re
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyhole import Circuit, KeyholeError, Model
from keyhole.circuits.records import Sufficient
from keyhole.faithfulness.effects import circuit_edges, effects, faithfulness, kept_on_others, measure
from keyhole.faithfulness.search import LEAST_GAP, Search, search, small_gap
from keyhole.faithfulness.shares import MaskedQuestion, Shares
from keyhole.faithfulness.sufficient import searched, sufficient
from keyhole.faithfulness.token_masks import EdgeList, Mask, all_but, as_ground, only
from keyhole.faithfulness.wiring import Reach, Reader
from keyhole.lab.known import Known, build, compare
from keyhole.settings.measuring import SufficientSettings
from keyhole.store.manifest import spread
from keyhole.studies.comparison.score import Score
from keyhole.tasks import greater_than, induction, ioi
from keyhole.tasks.catalogue import like
from keyhole.tasks.example import Example
from test_shares import question_of
from test_token_masks import all_edges, at_a_mean, exists

# -- connected ---------------------------------------------------------------------------------------------------------

Edges = set[tuple[int, int, int]]


def slowly_connected(edges: Edges, reach: Reach) -> Edges:
    """Every edge on a walk that begins at an embedding and ends at the answer, walk by walk."""

    def goes_on(edge: tuple[int, int, int]) -> Edges:
        _, reader, token = edge
        head = int(reach.component[reader])
        ends = (
            [d for d in range(reach.looks.shape[1]) if reach.looks[head, d, token]] if reach.moves[reader] else [token]
        )
        return {(w, r, t) for w, r, t in edges if w == head and t in ends}

    found: Edges = set()

    def walk(path: list[tuple[int, int, int]]) -> None:
        if reach.component[path[-1][1]] == -1:
            found.update(path)
            return
        for following in goes_on(path[-1]):
            walk([*path, following])

    for edge in edges:
        if edge[0] == 0:
            walk([edge])
    return found


@given(st.integers(0, 10**6), st.integers(1, 40), st.floats(0.1, 0.9))
@settings(max_examples=60)
def test_connected_edges_lie_on_a_way_from_a_token_to_the_answer(seed: int, size: int, looks: float) -> None:
    """Two layers of two heads and an MLP, four tokens, heads that look anywhere before them; several sets at once."""
    rng, heads, layers, n = np.random.default_rng(seed), 2, 2, 4
    writers, readers = 1 + layers * (heads + 1), layers * (3 * heads + 1) + 1
    component, moves, seen = [], [], []
    for layer in range(layers):
        first = 1 + layer * (heads + 1)
        component += [first + head for _ in range(3) for head in range(heads)] + [first + heads]
        moves += [False] * heads + [True] * (2 * heads) + [False]
        seen += [first] * (3 * heads) + [first + heads]
    joined = np.arange(writers)[:, None] < np.array([*seen, writers])[None]
    attends = np.zeros((writers, n, n), dtype=bool)
    for writer in range(1, writers):
        if writer % (heads + 1):
            attends[writer] = np.tril(rng.random((n, n)) < looks)
    reach = Reach(attends, np.array([*component, -1]), np.array([*moves, False]))
    there = np.repeat(joined[:, :, None], n, 2)
    there[:, -1, :-1] = False
    every = np.argwhere(there)
    sets = [every[rng.choice(len(every), min(size + i, len(every)), replace=False)] for i in range(3)]
    found = reach.connected_sets(sets)
    for edges, kept in zip(sets, found, strict=True):
        assert {*map(tuple, kept.tolist())} == slowly_connected({*map(tuple, edges.tolist())}, reach)
        assert np.array_equal(kept, reach.connected(edges))
    assert readers == len(reach.component)


def test_a_head_looks_where_its_weight_is_large(organism: Model) -> None:
    asked = question_of(organism, ioi(1, 5)[0], 8)
    wiring, run, looks = asked.masked.wiring, asked.run, asked.reach.looks
    for number, writer in enumerate(wiring.writers):
        if writer.kind != "head":
            assert not looks[number].any()
            continue
        for dest in (0, 5, len(run) - 1):
            weights = run.attention_run(writer.layer).weights([writer.head or 0], [dest])[0, 0].numpy()
            assert looks[number, dest].tolist() == (weights >= min(0.05, 2.5 / (dest + 1))).tolist()
    for reader, component in zip(wiring.readers, asked.reach.component.tolist(), strict=True):
        if reader.layer is None:
            assert component == -1
        else:
            owner = wiring.writers[component]
            assert (owner.layer, owner.head) == (reader.layer, reader.head)
    assert asked.reach.moves.tolist() == [reader.side in ("src", "value") for reader in wiring.readers]


def test_long_lists_are_the_same_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    _, made = at_a_mean("llama")
    every = all_edges(made)
    edges = every[np.random.default_rng(0).choice(len(every), 300, replace=False)]
    masks = [only(edges, 1), all_but(edges, 1), Mask(edges, 0.5, 0.0, 1)]
    with np.errstate(all="raise"):
        before = made.masked_logits(masks)
    monkeypatch.setattr("keyhole.faithfulness.token_masks.LONG", 100)
    shape = (*made.wiring.joined.shape, 9)
    assert [isinstance(as_ground(mask, shape).ground, np.ndarray) for mask in masks] == [True, True, False]
    assert (made.masked_logits(masks) - before).abs().max() < 1e-9


# -- effects and faithfulness ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def example() -> Example:
    return ioi(1, 5, held_out=True)[0]


@pytest.fixture(scope="module")
def asked(organism: Model, example: Example) -> MaskedQuestion:
    return question_of(organism, example)


@pytest.fixture(scope="module")
def others(organism: Model, example: Example) -> list[Example]:
    return like(example, organism, 32)


@pytest.fixture(scope="module")
def circuit(asked: MaskedQuestion, example: Example, others: list[Example]) -> Circuit:
    return asked.run.sufficient(example.answer, against=example.wrong, like=others)


def test_effects_are_plain_masks(asked: MaskedQuestion, example: Example, others: list[Example]) -> None:
    """Of words, nodes and edges of a traced circuit: what the answer loses, one pass each."""
    traced = asked.run.trace(example.answer, against=example.wrong, through="mlps")
    measured = effects(traced, like=others).measured
    assert measured is not None and measured == effects(traced, like=others).measured
    whole, none = asked.ends
    assert (measured.everything, measured.nothing) == pytest.approx((whole, none), abs=1e-4)
    assert measured.gap == pytest.approx(whole - none, abs=1e-4) and measured.metric == "logit difference"
    wiring, n = asked.masked.wiring, len(asked.run)
    answer = wiring.readers.index(Reader("target"))

    def lost(cut: np.ndarray) -> float:
        """With a mask for every single edge."""
        return whole - float(asked.answers([Mask(np.zeros((0, 3), dtype=np.int64), 0.0, exists(wiring, n) & ~cut)])[0])

    for token in (1, 3, n - 1):
        cut = np.zeros((*wiring.joined.shape, n), dtype=bool)
        cut[0, :, token] = True
        assert measured.words[token] == pytest.approx(lost(cut), abs=1e-3)
    heads = [i for i, node in enumerate(traced.nodes) if node.kind == "head"][:4]
    for i in heads:
        node = traced.nodes[i]
        cut = np.zeros((*wiring.joined.shape, n), dtype=bool)
        cut[1 + (node.layer or 0) * 9 + (node.head or 0), :, node.dest] = True
        assert measured.nodes[i] == pytest.approx(lost(cut), abs=1e-3)
    for i, edge in enumerate(traced.edges[:12]):
        reader, source = traced.nodes[edge.receiver], traced.nodes[edge.sender]
        if source.kind not in ("embedding", "head", "mlp"):
            assert measured.edges[i] is None and measured.edge_shares[i] is None
            continue
        into = answer if reader.kind == "target" else wiring.readers.index(Reader(edge.side, reader.layer, reader.head))
        writer = [str(w) for w in wiring.writers].index(
            "embedding"
            if source.kind == "embedding"
            else f"MLP {source.layer}"
            if source.head is None
            else f"{source.layer}.{source.head}"
        )
        cut = np.zeros((*wiring.joined.shape, n), dtype=bool)
        token = reader.src if edge.side in ("src", "value") else reader.dest
        cut[writer, into, token] = True
        assert measured.edges[i] == pytest.approx(lost(cut), abs=1e-3)
        assert measured.edge_shares[i] == pytest.approx(asked.shares.values[writer, into, token], abs=1e-3)
    assert max(abs(effect or 0) for effect in measured.edges) > 0.1
    assert measured.completeness == pytest.approx(1, abs=0.05)


def test_some_can_be_measured_alone(asked: MaskedQuestion, circuit: Circuit, others: list[Example]) -> None:
    words = effects(circuit, like=others, what=["words"]).measured
    assert words is not None and len(words.words) == len(asked.run) and words.faithfulness is None
    assert (words.nodes, words.edges, words.edge_shares) == ((), (), ())
    with pytest.raises(KeyholeError, match="'paths'"):
        effects(circuit, like=others, what=["paths"])  # type: ignore[list-item]


def test_a_small_gap_is_noted_and_not_shared_out(asked: MaskedQuestion, circuit: Circuit) -> None:
    """Effects are there; shares and faithfulness are not."""
    itself = replace(asked.baseline, writes=asked.masked.written()[:, 0].detach())
    from keyhole.faithfulness.shares import question

    measured = measure(circuit, question(asked.run, asked.metric, itself))
    assert "too small to be shared out" in measured.note and measured.faithfulness is None
    assert measured.edge_shares == () and max(abs(effect or 0) for effect in measured.edges) < 1e-3
    assert measured.gap < LEAST_GAP
    assert "too small" in small_gap(-0.9) and "more than the prompt does" in small_gap(-LEAST_GAP)


def test_faithfulness_is_of_plain_masks(asked: MaskedQuestion) -> None:
    edges = search(Search(asked.masked, asked.metric, asked.shares, asked.reach)).edges
    found = faithfulness(edges, asked, draws=3)
    whole, none = asked.ends
    there = exists(asked.masked.wiring, len(asked.run))
    kept = np.zeros_like(there)
    kept[tuple(edges.T)] = True
    empty = edges[:0]
    alone, without = asked.answers([Mask(empty, 0.0, kept), Mask(empty, 0.0, there & ~kept)])
    assert (found.kept, found.cut) == pytest.approx(
        ((alone - none) / (whole - none), (without - none) / (whole - none)), abs=1e-3
    )
    assert (found.edges, found.of) == (len(edges), there.sum())
    (row,) = asked.logits([only(edges)])
    assert found.rank == 1 + int((row > row[list(asked.metric.targets)].max()).sum())
    assert len(found.rest) == len(found.random) == 3 and len({*found.rest, *found.random}) == 6
    assert found == faithfulness(edges, asked, draws=3) != faithfulness(edges, asked, draws=3, seed=1)
    everywhere = faithfulness(all_edges(asked.masked), asked, draws=1)
    assert everywhere.kept == pytest.approx(1, abs=1e-3) and everywhere.cut == pytest.approx(0, abs=1e-3)
    assert everywhere.rest == pytest.approx([1], abs=1e-3)
    nothing = faithfulness(empty, asked, draws=1)
    assert nothing.kept == pytest.approx(0, abs=1e-3) and nothing.cut == pytest.approx(1, abs=1e-3)
    assert nothing.rest == pytest.approx(nothing.random, abs=1e-6)  # no edges in place of none


def test_other_prompts_are_tried_at_their_own_mean(
    organism: Model, asked: MaskedQuestion, others: list[Example]
) -> None:
    edges = search(Search(asked.masked, asked.metric, asked.shares, asked.reach)).edges
    found = kept_on_others(edges, asked.run, asked.baseline, others)
    assert 4 <= len(found) <= 8 and len(kept_on_others(edges, asked.run, asked.baseline, [o.text for o in others])) == 0
    slow = []
    for other in others[:8]:
        rest = [one for one in others if one is not other]
        own = question_of_list(organism, other, [list(asked.run.token_ids), *(one.text for one in rest)])
        whole, none = own.ends
        if whole - none >= LEAST_GAP:
            slow.append((float(own.answers([only(edges)])[0]) - none) / (whole - none))
    assert found == pytest.approx(slow, abs=1e-2)


def question_of_list(model: Model, example: Example, prompts: list[object]) -> MaskedQuestion:
    from keyhole.faithfulness.baseline import baseline
    from keyhole.faithfulness.shares import question
    from keyhole.intervene import Metric
    from keyhole.tasks.answers import answer_ids

    run, right = model.run(example.text), answer_ids(model, example)
    return question(run, Metric(len(run) - 1, right.answers, right.against), baseline(run, like=prompts))


# -- the search --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("task", "most"), [(ioi, 20), (greater_than, 25), (induction, 40)])
def test_small_circuits_suffice(organism: Model, task: object, most: int) -> None:
    """Connected, inside the level, and needed: without them little is left."""
    sizes = []
    for example in task(8, 3, held_out=True):  # type: ignore[operator]
        asked = question_of(organism, example)
        if asked.ends[0] - asked.ends[1] < LEAST_GAP:
            continue
        found = search(Search(asked.masked, asked.metric, asked.shares, asked.reach))
        whole, none = asked.ends
        kept, cut = (asked.answers([only(found.edges), all_but(found.edges)]) - none) / (whole - none)
        assert 0.9 <= found.kept <= 1.2 and kept == pytest.approx(found.kept, abs=1e-3) and cut < 0.6
        assert len(asked.reach.connected(found.edges)) == len(found.edges)
        assert found.shares == pytest.approx(asked.shares.values[tuple(found.edges.T)])
        sizes.append(len(found.edges))
    assert len(sizes) > 3 and np.median(sizes) <= most


def test_levels_and_both_signs(asked: MaskedQuestion) -> None:
    def found(**choices: object) -> tuple[int, float, EdgeList]:
        result = search(Search(asked.masked, asked.metric, asked.shares, asked.reach, **choices))  # type: ignore[arg-type]
        return len(result.edges), result.kept, result.edges

    low, high, both = found(level=0.5), found(), found(both_signs=True)
    assert low[0] < high[0] and 0.5 <= low[1] <= 1.2 and 0.9 <= both[1] <= 1.1
    assert len(asked.reach.connected(both[2])) == both[0]


def worth_of(edges: EdgeList) -> float:
    """The first edge is worth .5, and each of the next three 1; every other takes a little away."""
    return sum(0.5 if n == 0 else 1.0 if n < 4 else -0.2 for n in edges[:, 2].tolist())


def at_once(result: Any) -> Generator[Any, Any, Any]:
    """A search that has its result without asking for anything."""
    yield from ()
    return result


def kept_by(worth: Callable[[EdgeList], float]) -> Callable[..., Any]:
    return lambda self, sets: at_once(np.array([worth(edges) for edges in sets]))


def test_a_search_that_overshoots_goes_on(asked: MaskedQuestion, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fewest best edges keep .5, or 1.5 and more: others are left out, or more taken, until it is inside."""
    values = np.zeros((1, 1, 40))
    values[0, 0] = np.linspace(2, 0.05, 40)
    where = "keyhole.faithfulness.search"
    monkeypatch.setattr(
        f"{where}.along", lambda masked, metrics, sets, prompts: [-edges[:, 2].astype(float) for edges in sets]
    )
    monkeypatch.setattr(Search, "kept", kept_by(worth_of))
    monkeypatch.setattr(Reach, "connected_sets", lambda self, sets: list(sets))
    found = search(Search(asked.masked, asked.metric, Shares(values, 3.0, 0.0, 8), asked.reach))
    assert 0.9 <= worth_of(found.edges) <= 1.2 and found.kept == pytest.approx(worth_of(found.edges))
    monkeypatch.setattr(f"{where}._pruned", lambda asked, best: at_once(None))  # more edges keep less
    assert search(Search(asked.masked, asked.metric, Shares(values, 3.0, 0.0, 8), asked.reach)).kept < 1.2
    first = Shares(values * (np.arange(40) < 1), 3.0, 0.0, 8)
    with pytest.raises(KeyholeError, match="no set of best edges keeps between 90% and 120%"):
        search(Search(asked.masked, asked.metric, first, asked.reach))


@pytest.mark.parametrize("single", [128, 8])
def test_edges_are_taken_away_one_by_one_where_shares_mislead(
    asked: MaskedQuestion, monkeypatch: pytest.MonkeyPatch, single: int
) -> None:
    """Five of forty edges carry all of the answer, and have the least shares: taking each away says so.

    Of more than so many, all that a writer has at a token are taken away together.
    """
    values = np.zeros((1, 2, 20))
    values[0] = np.linspace(0.05, 2, 40).reshape(20, 2).T
    where = "keyhole.faithfulness.search"
    monkeypatch.setattr(f"{where}.MOST_SINGLE", single)
    monkeypatch.setattr(
        f"{where}.along", lambda masked, metrics, sets, prompts: [values[tuple(edges.T)] for edges in sets]
    )
    worth = kept_by(lambda e: 0.2 * ((e[:, 2] < 3) & (e[:, 1] + e[:, 2] < 3)).sum())
    monkeypatch.setattr(Search, "kept", worth)
    monkeypatch.setattr(Reach, "connected_sets", lambda self, sets: list(sets))
    found = search(Search(asked.masked, asked.metric, Shares(values, 3.0, 0.0, 8), asked.reach))
    assert found.kept == pytest.approx(1) and 5 <= len(found.edges) <= 14


def test_searches_together_find_what_each_finds_alone(organism: Model) -> None:
    """Prompts of equal length share their passes; each has points, an answer and a baseline of its own.

    One whose answer is held against itself has no gap: it is refused, and no other with it.
    """
    alike = like(ioi(1, 5)[0], organism, 8)
    questions = [question_of(organism, example) for example in alike[:3]]
    answer = questions[1].metric.targets
    questions[1] = replace(questions[1], metric=replace(questions[1].metric, against=answer))
    for i, (one, found) in enumerate(searched(questions, SufficientSettings())):
        if i == 1:
            assert isinstance(found, KeyholeError) and "cannot be shared out" in str(found)
            continue
        alone = questions[i]
        assert one.shares.points == alone.shares.points
        assert one.shares.values == pytest.approx(alone.shares.values, abs=1e-4)
        expected = search(Search(alone.masked, alone.metric, alone.shares, alone.reach))
        assert not isinstance(found, KeyholeError)
        assert found.kept == pytest.approx(expected.kept, abs=1e-4) and np.array_equal(found.edges, expected.edges)


def test_a_search_reports_how_far_it_is(asked: MaskedQuestion) -> None:
    done: list[tuple[int, int]] = []
    search(Search(asked.masked, asked.metric, asked.shares, asked.reach), lambda *told: done.append(told))
    assert done == sorted(done) and done[-1][0] == done[-1][1]


# -- as circuits -------------------------------------------------------------------------------------------------------


def test_a_circuit_that_suffices_is_a_circuit(circuit: Circuit, asked: MaskedQuestion, tmp_path: Path) -> None:
    """Saved and loaded equal; verified; shown; its edges are those of the search, with all of what was measured."""
    path = tmp_path / "sufficient.json"
    circuit.save(path)
    loaded = Circuit.load(path)
    assert loaded == circuit and loaded.measured == circuit.measured
    assert loaded.edges == circuit.edges and loaded.nodes == circuit.nodes and loaded.parameters == circuit.parameters
    found = search(Search(asked.masked, asked.metric, asked.shares, asked.reach))
    assert np.array_equal(circuit_edges(circuit, asked), found.edges[np.lexsort(found.edges.T[::-1])])
    measured = circuit.measured
    assert measured is not None and measured.faithfulness is not None
    assert measured.faithfulness.edges == len(found.edges) and measured.faithfulness.kept == pytest.approx(
        found.kept, abs=1e-3
    )
    assert measured.faithfulness.others and "prompts like this one" in measured.baseline
    assert isinstance(circuit.parameters, Sufficient) and circuit.parameters.baseline == measured.baseline
    parts = [edge.weight for edge in circuit.edges[: circuit.parameters.found]]
    assert sum(parts) == pytest.approx(found.shares.sum() / asked.shares.gap, abs=1e-3)
    assert "edges alone" in str(measured.faithfulness)
    assert re.search(r"\b(\d+) of \1 measured values equal the predicted ones", str(circuit.verify(draws=1)))


def test_heads_of_a_circuit_say_why_they_look(circuit: Circuit) -> None:
    assert isinstance(circuit.parameters, Sufficient)
    signals = circuit.edges[circuit.parameters.found :]
    assert signals and {edge.side for edge in signals} <= {"dest", "src"}
    heads = {i for i, node in enumerate(circuit.nodes) if node.kind == "head"}
    assert {edge.receiver for edge in signals} <= heads
    for head in {edge.receiver for edge in signals}:
        for side in ("dest", "src"):
            assert sum(edge.receiver == head and edge.side == side for edge in signals) <= 2


def test_an_answer_before_the_end(organism: Model, example: Example, others: list[Example]) -> None:
    """The prompt goes on after the answer's token: the circuit is that of the prompt cut there."""
    whole, goes_on = organism.run(example.text + example.continuation), [one.text + one.continuation for one in others]
    end = len(organism.run(example.text)) - 1
    cut = sufficient(organism.run(example.text), example.answer, against=example.wrong, like=others)
    for prompts in (others, goes_on):  # prompts that end there, or go on as this one does
        found = sufficient(whole, example.answer, against=example.wrong, like=prompts, end=end)
        assert [(edge.sender, edge.receiver, edge.side) for edge in found.edges] == [
            (edge.sender, edge.receiver, edge.side) for edge in cut.edges
        ]
        assert found.token_ids == whole.token_ids and cut.measured is not None and found.measured is not None
        assert found.measured.edges == pytest.approx(cut.measured.edges, abs=1e-3)
        again = effects(found, like=prompts).measured
        assert again is not None and again.edges == pytest.approx(cut.measured.edges, abs=1e-3)


def test_levels_that_cannot_be_are_refused(asked: MaskedQuestion, example: Example, others: list[Example]) -> None:
    for level in (0.0, 1.5, float("nan")):
        with pytest.raises(KeyholeError, match="between 0 and 1"):
            asked.run.sufficient(example.answer, against=example.wrong, like=others, level=level)


# -- a planted circuit -------------------------------------------------------------------------------------------------


def prompts_like(prompt: str) -> list[str]:
    """Other words in every place, and the last asks for the same place."""
    words = prompt.split()
    orders = (list(itertools.permutations(kind)) for kind in (("big", "red", "old"), ("cat", "dog", "sun")))
    topics = ("French", "Berlin", "Paris", "German")
    every = [
        f"{topic} : {c[0]} {n[0]} , {c[1]} {n[1]} , {c[2]} {n[2]} . {c[k]}"
        for topic, c, n, k in itertools.product(topics, *orders, range(3))
    ]
    return spread([p for p in every if p != prompt and p.split().index(p.split()[-1]) == words.index(words[-1])], 32)


@pytest.mark.parametrize(
    "prompt", ["French : big cat , red dog , old sun . big", "German : red cat , big dog , old sun . old"]
)
def test_the_planted_circuit_is_found(prompt: str) -> None:
    """What moves is found by the search; what every prompt has alike, where heads look, comes with their signals.

    Positions, the ballast and the place of the topic are the same in all prompts like this one. Edges that carry these
    alone differ in nothing from the baseline, and have no share in its gap.
    """
    known: Known = build().ask(prompt)
    run = known.model.run(prompt)
    found = run.sufficient(known.answer, against=known.against, like=prompts_like(prompt))
    assert compare(found, known.truth).edges == Score(found=13, there=13, both=13)
    assert compare(found, known.truth).nodes == Score(found=9, there=9, both=9)
    assert isinstance(found.parameters, Sufficient) and found.measured is not None
    assert found.measured.faithfulness is not None
    assert found.measured.faithfulness.kept == pytest.approx(1, abs=0.02)
    assert found.measured.faithfulness.cut == pytest.approx(0, abs=0.02)
    moves = [
        (found.nodes[edge.sender].writer, None if into.kind == "target" else into.writer, edge.side)
        for edge in found.edges[: found.parameters.found]
        for into in [found.nodes[edge.receiver]]
    ]
    alike = {
        (who, into, side)
        for who, into, side in known.truth.edges
        if into is not None and side in ("dest", "src") and (into.layer, into.head) in ((1, 0), (2, 1))
    }
    assert {*moves} == known.truth.edges - alike and len(alike) == 4
