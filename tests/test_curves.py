"""Edges that are cut are gone, and no other; slopes are slopes; a planted circuit carries its answer."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import keyhole
from commands import keyhole as typed
from conftest import edge_name, prompts_of, tiny_model
from keyhole import KeyholeError, Model, Run
from keyhole.circuits.circuit import Circuit, Edge, Node
from keyhole.circuits.records import Component
from keyhole.faithfulness.masked import Masked, masked
from keyhole.faithfulness.wiring import Reader
from keyhole.intervene import Metric, answers_without, mean_writes, places
from keyhole.lab.known import Known, build
from keyhole.models.tokens import token_id
from keyhole.store import Outcome
from keyhole.store.manifest import spread
from keyhole.studies.curves.cohort import CohortQuestion, Group, StandIn, groups_of, means_of, usable
from keyhole.studies.curves.curves import _halves, compare_methods, curves, own_circuits
from keyhole.studies.curves.cutting import kept, ordered
from keyhole.studies.curves.record import SHARES, Curve, Curves, OwnCircuits, area, require_gap
from keyhole.studies.curves.scores import circuit_scores, slopes
from keyhole.studies.curves.settings import CurveSettings
from stores import stored
from tiny import VARIANTS

REFUSED = {"olmo-clip", "lfm2", "mamba", "xglm"}  # tested elsewhere, but for lfm2
METRIC = Metric(8, (3,), (5,))


def runs_of(variant: str, n: int = 3, dtype: torch.dtype = torch.float64, length: int = 9) -> list[Run]:
    model = tiny_model(variant, dtype=dtype)
    return model.run_many([[(7 * i + 11 * seed) % 61 for i in range(1, length + 1)] for seed in range(n)], bos=False)


def group_of(runs: list[Run], pool: list[Run] | None = None) -> Group:
    made = masked(runs)
    made = made if pool is None else replace(made, baseline=masked(pool).written().mean(1))
    return Group(made, (METRIC,) * len(runs), tuple(range(len(runs))))


# -- the pass --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", sorted(set(VARIANTS) - REFUSED))
def test_with_all_edges_it_is_the_model(variant: str) -> None:
    model = tiny_model(variant)
    made = masked(model.run_many(prompts_of(model, 20, 20), bos=False))
    assert made.error < 1e-5
    every = made.logits(torch.ones(made.wiring.joined.shape))
    some = made.logits(made.kept(np.arange(len(made.wiring)) % 2))
    assert (some - every).abs().max() > 0.01 * every.abs().max()


def test_what_cannot_be_taken_apart_is_refused() -> None:
    model = tiny_model("lfm2")
    with pytest.raises(KeyholeError, match="mix tokens with another block"):
        masked([model.run([1, 2, 3])])
    one, other = tiny_model("gpt2").run([1, 2, 3]), tiny_model("gpt2").run([1, 2, 3])
    for runs in ([], [one, other], [one, one.model.run([1, 2])]):
        with pytest.raises(KeyholeError, match="one model and of as many tokens"):
            masked(runs)


def test_another_attention_is_not_taken_for_the_models_own() -> None:
    """A pass that misses the model's logits is refused rather than used."""
    run = tiny_model("gpt2").run([1, 2, 3, 4])
    with pytest.raises(KeyholeError, match="pass edge by edge cannot be reconstructed"):
        masked([replace(run, logits=run.logits + 0.1)])


def test_every_writer_reaches_every_later_reader() -> None:
    made = masked(runs_of("gpt2", 1))
    wiring, dims = made.wiring, made.model.dims
    below = [1 + layer * (dims.heads + 1) for layer in range(dims.layers)]
    expected = sum(3 * dims.heads * n + n + dims.heads for n in below) + 1 + dims.layers * (dims.heads + 1)
    assert len(wiring) == expected == sum(wiring.sides().values())
    at = wiring.writers.index(Component("head", 1, 2))
    readers = {wiring.readers[r] for w, r in wiring.edges if w == at}
    assert Reader("mlp", 1) in readers and Reader("target") in readers and Reader("src", 2, 0) in readers
    assert not readers & {Reader("mlp", 0), Reader("dest", 1, 3), Reader("value", 0, 0)}
    assert edge_name(wiring, 0) == "embedding -> 0.0 dest" and edge_name(wiring, len(wiring) - 1) == "MLP 2 -> answer"
    beside = masked(runs_of("gptj", 1)).wiring  # its MLPs read what its heads read
    assert not beside.joined[beside.writers.index(Component("head", 1, 2)), beside.readers.index(Reader("mlp", 1))]


def by_hand(run: Run, mask: Tensor, baseline: Tensor, made: Masked) -> Tensor:
    """GPT-2 read with its own modules, one reader at a time; the slow way. The mask may have a token axis."""
    hf, wiring, heads = run.model.hf.transformer, made.wiring, run.model.dims.heads
    written, always = [run.layers[0].resid], torch.zeros_like(run.layers[0].resid)

    def read(reader: Reader) -> Tensor:
        r = wiring.readers.index(reader)
        kept = mask[:, r, ..., None]
        changed = [kept[u] * w + (1 - kept[u]) * baseline[u] for u, w in enumerate(written)]
        return sum(changed) + always

    for layer, block in enumerate(hf.h):
        W = block.attn.c_attn.weight.view(32, 3, heads, 8)
        b = block.attn.c_attn.bias.view(3, heads, 8)
        moved, constants = [], [block.attn.c_proj.bias]
        for h in range(heads):
            own = [block.ln_1(read(Reader(side, layer, h))) for side in ("dest", "src", "value")]
            q, k, v = (x @ W[:, i, h] + b[i, h] for i, x in enumerate(own))
            scores = (q @ k.T / 8**0.5).masked_fill(torch.ones(len(q), len(q)).triu(1).bool(), -torch.inf)
            out = block.attn.c_proj.weight.view(heads, 8, 32)[h]
            constants.append((block.ln_1.bias @ W[:, 2, h] + b[2, h]) @ out)  # a bias of values always stays
            moved.append(scores.softmax(-1) @ v @ out - constants[-1])
        always = always + sum(constants)
        written += moved
        written.append(block.mlp(block.ln_2(read(Reader("mlp", layer)))))
    return run.model.hf.lm_head(hf.ln_f(read(Reader("target"))))[-1]


def test_edges_are_masked_one_by_one() -> None:
    runs = runs_of("gpt2", 2)
    made = masked(runs)
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(made.wiring.joined.shape, generator=generator, dtype=torch.float64)
    baseline = 0.3 * torch.randn(len(made.wiring.writers), 9, 32, generator=generator, dtype=torch.float64)
    found = replace(made, baseline=baseline).logits(mask)
    for run, row in zip(runs, found, strict=True):
        assert row == pytest.approx(by_hand(run, mask, baseline, made), abs=1e-9)
    assert (found - made.logits(mask)).abs().max() > 0.1


@pytest.mark.parametrize("variant", ["gpt2", "gemma2", "gptj", "olmo2", "gpt_oss", "granite"])
@pytest.mark.parametrize("mean", [False, True])
def test_a_component_without_any_edge_is_silent(variant: str, mean: bool) -> None:
    """As in the model's own pass when it writes nothing, or its mean, whatever it reads."""
    pool = runs_of(variant, dtype=torch.float32)
    run, made = pool[0], masked(pool[:1])
    made = replace(made, baseline=masked(pool).written().mean(1)) if mean else made
    instead = mean_writes(pool) if mean else None
    for source in (Component("head", 0, 1), Component("head", 1, 2), Component("mlp", 1, None)):
        mask = torch.ones(made.wiring.joined.shape)
        mask[made.wiring.writers.index(source)] = 0
        gone = [w for w in places(run) if (w.kind, w.layer, w.head) == (source.kind, source.layer, source.head)]
        (expected,) = answers_without(run, [gone], METRIC, instead=instead)
        found = METRIC.of(made.logits(mask)[0])
        assert found == pytest.approx(expected, abs=1e-4)
        assert abs(found - METRIC.of(run.logits[-1])) > 5e-3


# -- scores ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["gpt2", "opt", "falcon"])
def test_slopes_are_those_of_single_masks(variant: str) -> None:
    """A difference of two points, for one edge of every kind; and sums over prompts, in parts of any size."""
    runs = runs_of(variant)
    group, h = group_of(runs[:2], runs), 1e-5
    wiring = group.masked.wiring
    found = slopes([group])
    assert slopes(list(group.parts(1))) == pytest.approx(found, abs=1e-12)
    chosen = {wiring.readers[r].side: (i, w, r) for i, (w, r) in enumerate(wiring.edges)}
    assert set(chosen) == {"dest", "src", "value", "mlp", "target"}
    for i, w, r in chosen.values():
        ends = []
        for change in (-h, h):
            mask = torch.ones(wiring.joined.shape, dtype=torch.float64)
            mask[w, r] += change
            ends.append(float(group.answers(mask).sum()))
        assert found[i] == pytest.approx((ends[1] - ends[0]) / (2 * h), abs=1e-5)
    assert np.abs(found).max() > 0.1


def test_integrated_slopes_add_up_to_the_answer() -> None:
    runs = runs_of("gpt2", 4)
    group = group_of(runs, runs)
    ends = [group.answers(torch.full(group.masked.wiring.joined.shape, end)).sum() for end in (0.0, 1.0)]
    whole = float(ends[1] - ends[0])
    assert slopes([group], 40).sum() == pytest.approx(whole, rel=0.01)
    assert abs(slopes([group], 1).sum() - whole) > 0.1 * abs(whole)
    with pytest.raises(KeyholeError, match="no prompts"):
        slopes([])


def small_circuit(run: Run, influence: bool) -> Circuit:
    """The words, two heads, an MLP, a bias and the answer, with edges of every side."""
    traced = run.trace(3, against=5, through="heads")
    nodes = (
        Node("embedding", 0, None, 2, 2),
        Node("head", 0, 1, 3, 2),
        Node("head", 0, 1, 4, 1),  # the same head at other tokens
        Node("head", 1, 2, 8, 3),
        Node("mlp", 1, None, 8, 8),
        Node("bias", 0, None, 8, 8),
        Node("target", None, None, 8, 8),
    )
    told = [(1, 3, "src", 0.3, 0.2), (2, 3, "src", 0.1, 0.25), (5, 3, "src", 0.4, 0.1), (0, 3, "value", 5.0, 0.5)]
    told += [(3, 4, "mlp", 2.0, 0.75), (4, 6, "target", 3.0, 0.5), (3, 6, "target", 1.0, 0.25)]
    edges = [Edge(a, b, side, weight, 0.0, 0.0, (), share if influence else None) for a, b, side, weight, share in told]
    shares = (1.0,) * len(nodes) if influence else ()
    return replace(
        traced, nodes=nodes, attention=(None,) * 7, edges=tuple(edges), firings=(), influence=shares, mlps=()
    )


def test_circuits_are_added_up_without_tokens() -> None:
    (run,) = runs_of("gpt2", 1)
    wiring = masked([run]).wiring
    numbers = {edge_name(wiring, i): i for i in range(len(wiring))}
    circuit = small_circuit(run, True)
    by_token = circuit_scores(circuit, wiring, 9)
    value, key = (wiring.readers.index(Reader(side, 1, 2)) for side in ("value", "src"))
    assert by_token[0, value, 3] == 0.5 and by_token[0, value].sum() == 0.5  # where the head looks
    assert by_token[wiring.writers.index(Component("head", 0, 1)), key, 3] == pytest.approx(0.45)
    assert by_token[-1, -1, 8] == 0 and by_token[wiring.writers.index(Component("mlp", 1, None)), -1, 8] == 0.5
    found = by_token.sum(-1)[tuple(wiring.edges.T)]
    expected = {"0.1 -> 1.2 src": 0.45, "embedding -> 1.2 value": 0.5, "1.2 -> MLP 1": 0.75}
    expected |= {"MLP 1 -> answer": 0.5, "1.2 -> answer": 0.25}
    assert {name: found[numbers[name]] for name in expected} == pytest.approx(expected)
    assert (found > 0).sum() == len(expected)
    without = circuit_scores(small_circuit(run, False), wiring, 9)
    found = without.sum(-1)[tuple(wiring.edges.T)]  # shares of all into the same firing and side
    expected |= {"0.1 -> 1.2 src": 0.5, "embedding -> 1.2 value": 1.0, "1.2 -> MLP 1": 1.0, "MLP 1 -> answer": 0.75}
    assert {name: found[numbers[name]] for name in expected} == pytest.approx(expected)


def test_what_a_method_does_not_know_comes_last_in_random_order() -> None:
    scores = np.array([0.0, 2.0, 0.0, 1.0, 0.0, 0.0])
    orders = {tuple(ordered(scores, 6, np.random.default_rng(seed))) for seed in range(20)}
    assert {order[:2] for order in orders} == {(1, 3)} and len(orders) > 5
    assert {ordered(None, 6, np.random.default_rng(seed))[0] for seed in range(40)} == set(range(6))


# -- areas -----------------------------------------------------------------------------------------------------------


def made_up(answers: np.ndarray, **other: object) -> Curves:
    told = {"model": "m", "task": "t", "settings": CurveSettings(), "edges": 1000, "shares": SHARES, "found_on": 2}
    whole, none = np.array([4.0, 8.0]), np.array([0.0, 2.0])
    curve = Curve("one", 20, answers, None)
    return Curves(
        **{**told, "tried_on": 2, "everything": whole, "nothing": none, "error": 0.0, "curves": (curve,), **other}
    )


def test_areas_are_those_of_the_definition() -> None:
    """f is a ratio of means over prompts; areas are trapezoids over the shares, beginning with the smallest."""
    whole, none = np.array([4.0, 8.0]), np.array([0.0, 2.0])
    same = made_up(np.tile(whole, (1, 10, 1)))
    assert same.cpr("one")[0] == pytest.approx(0.999) and same.cmd("one") == pytest.approx((0, 0, 0))
    half = made_up(np.concatenate([np.tile(none, (1, 9, 1)), whole[None, None]], axis=1))
    assert half.cpr("one")[0] == pytest.approx(0.25) and half.cmd("one")[0] == pytest.approx(0.749)
    uneven = np.tile(np.array([6.0, 2.0]), (1, 10, 1))  # 1.5 of one answer and nothing of the other: 6 of 10
    assert made_up(uneven).faithfulness("one")[0][0] == pytest.approx(0.6)
    low, high = made_up(uneven).faithfulness("one")[0][1:]
    assert low == pytest.approx(0) and high == pytest.approx(1.5)
    both = np.concatenate([np.tile(none, (1, 10, 1)), np.tile(2 * whole - none, (1, 10, 1))])
    drawn = made_up(both)  # one draw at 0, another at 2: 1 on average, and 1 away from 1
    assert drawn.cpr("one")[0] == pytest.approx(0.999) and drawn.cmd("one")[0] == pytest.approx(0.999)
    assert area((0.0, 1.0), np.array([[0.0, 1.0], [2.0, 2.0]])) == pytest.approx([0.5, 2.0])
    assert [kept(share, 1519) for share in (0.0001, 0.001, 0.5, 1.0)] == [1, 2, 760, 1519]
    with pytest.raises(KeyholeError, match="no curve of 'two'"):
        same.cpr("two")
    with pytest.raises(KeyholeError, match="nothing that edges could carry"):
        require_gap(none, none)


def test_intervals_are_those_of_resampled_prompts() -> None:
    """Of forty prompts whose answers are as large, 95 % of means lie within 1.96 standard errors."""
    f = np.random.default_rng(0).normal(0.5, 0.2, 40)
    ends = {"everything": np.full(40, 4.0), "nothing": np.zeros(40), "tried_on": 40}
    found = made_up(np.tile(4 * f, (1, 10, 1)), **ends)
    half = 1.96 * f.std() / 40**0.5
    for told in (found.faithfulness("one")[3], [one / 0.999 for one in found.cpr("one")]):
        assert told[0] == pytest.approx(f.mean())
        assert (told[2] - told[0], told[0] - told[1]) == pytest.approx((half, half), rel=0.12)


def test_results_are_told_and_saved(tmp_path: Path) -> None:
    own = OwnCircuits(np.array([4.0, 2.0]), np.array([0.0, 2.0]), 7.0)
    found = made_up(np.tile(np.array([4.0, 8.0]), (1, 10, 1)), own_circuits=own)
    assert "f = 0.40" in found.own_text and found.own_text in str(found)
    columns, (row, *_) = found.cells
    cmd = str(row[columns.index(">CMD")])
    assert cmd.startswith("0.000") and "CMD" in str(found) and cmd in str(found)
    for name in ("a.json", "a.csv", "a.html", "a.png"):
        found.save(tmp_path / name)
    record = json.loads((tmp_path / "a.json").read_text())
    assert record["own_circuits"]["own"][0] == pytest.approx(0.4) and record["methods"][0]["found"] == 20
    rows = (tmp_path / "a.csv").read_text().splitlines()
    assert len(rows) == 11 and rows[1].startswith("one,0.001,1.0")
    assert "<table>" in (tmp_path / "a.html").read_text()
    with pytest.raises(KeyholeError, match="\\.txt"):
        found.save(tmp_path / "a.txt")


# -- a planted circuit -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def known() -> Known:
    return build()


@pytest.fixture(scope="module")
def asked(known: Known) -> list[CohortQuestion]:
    cues, nouns = (
        list(itertools.permutations(("big", "red", "old"))),
        list(itertools.permutations(("cat", "dog", "sun"))),
    )
    prompts = [
        f"{topic} : {c[0]} {n[0]} , {c[1]} {n[1]} , {c[2]} {n[2]} . {c[k]}"
        for topic, c, n, k in itertools.product(("French", "Berlin", "Paris", "German"), cues, nouns, range(3))
    ]
    found = []
    for prompt in spread(prompts, 53):  # a number that shares no cycle with theirs
        own, run = known.ask(prompt), known.model.run(prompt)
        right, wrong = (token_id(known.model, word) for word in (own.answer, own.against))
        found.append(CohortQuestion(run, Metric(len(run) - 1, (right,), (wrong,))))
    return found


def test_the_planted_circuit_carries_the_answer(known: Known, asked: list[CohortQuestion]) -> None:
    """The 13 true edges alone do; one of them less, or as many random ones, do not; and ACC++ finds just these."""
    means = StandIn("mean", means_of(known.model, [("", question.run.token_ids) for question in asked]))
    (group,) = groups_of(asked[:10], means)
    wiring, target = group.masked.wiring, Node("target", None, None, 0, 0)
    steps = {(w, into, side) for w, into, side in known.truth.edges}
    true = {wiring.number(Node.of(w), target if into is None else Node.of(into), side) for w, into, side in steps}
    edges = np.array([i for i, edge in enumerate(wiring.edges) if tuple(edge) in true])
    assert len(edges) == len(true) == 13
    with torch.no_grad():
        whole, none = (group.answers(torch.full(wiring.joined.shape, m)).mean() for m in (1.0, 0.0))
        f = [(group.answers(group.masked.kept(own)).mean() - none) / (whole - none) for own in (edges, edges[:-1])]
    assert float(f[0]) == pytest.approx(1, abs=0.02) and float(f[1]) < 0.1
    found = compare_methods(
        asked[:10], asked[10:20], CurveSettings(methods=("accpp", "heads", "random")), stand_in=means
    )
    assert found["accpp"].found == 13 and found.alone("accpp")[0] == pytest.approx(1, abs=0.02)
    at = SHARES.index(0.1)  # 17 of 172 edges
    assert found.faithfulness("accpp")[at][0] == pytest.approx(1, abs=0.02)
    assert found.faithfulness("random")[at][2] < 0.2 and found.faithfulness("heads")[at][2] < 0.2
    assert found.cmd("accpp")[2] < 0.1 < 0.5 < found.cmd("random")[1]
    own, other = found.of_own_circuits() or ()
    assert own[0] == pytest.approx(1, abs=0.02) and other[0] == pytest.approx(1, abs=0.02)  # one circuit for all


def test_own_circuits_are_their_own(known: Known, asked: list[CohortQuestion]) -> None:
    """A prompt keeps its answer with its own circuit, and loses it with one that has nothing."""
    empty = replace(known.model.run(known.prompt).trace(known.answer), nodes=(), edges=(), influence=(1.0,))
    means = StandIn("mean", means_of(known.model, [("", question.run.token_ids) for question in asked]))
    own = asked[0].run.trace(list(asked[0].metric.targets), against=list(asked[0].metric.against))
    tried = [replace(asked[0], circuit=own), replace(asked[1], circuit=empty)]
    groups = groups_of(tried, means)
    found = own_circuits(groups, tried, np.random.default_rng(0))
    with torch.no_grad():
        none = groups[0].answers(torch.zeros(groups[0].masked.wiring.joined.shape)).numpy()
    whole = [question.metric.of(question.run.logits[-1]) for question in tried]
    assert found.with_own == pytest.approx([whole[0], none[1]], abs=0.1) and found.edges == 13 / 2
    assert found.with_other == pytest.approx([none[0], whole[1]], abs=0.1)


def test_groups_are_of_one_length(organism: Model) -> None:
    runs = organism.run_many(["Mary and John went", "Mary and John went to", "John and Mary went"])
    questions = [CohortQuestion(run, Metric(len(run) - 1, (3,), (5,))) for run in runs]
    assert [group.numbers for group in groups_of(questions)] == [(0, 2), (1,)]
    only = StandIn("mean", {("", len(runs[1])): masked(runs[1:2]).written()[:, 0]})
    assert groups_of(questions, only)[0].numbers == (1,)
    few = means_of(organism, [("", run.token_ids) for run in runs])
    assert few == {}
    with pytest.raises(KeyholeError, match="last token"):
        CohortQuestion(runs[0], Metric(1, (3,), (5,)))
    with pytest.raises(KeyholeError, match="to take a mean over"):
        compare_methods(questions, questions, CurveSettings(methods=("random",)), stand_in=StandIn("mean", few))
    with pytest.raises(KeyholeError, match="at least one method"):
        CurveSettings(methods=())


def test_means_are_over_prompts_of_one_template_and_length() -> None:
    """In whatever parts they are taken, over at most so many from all over."""
    model = tiny_model("llama")
    prompts = [[(7 * i + 11 * seed) % 61 for i in range(1, 8)] for seed in range(40)]
    others = [("other", ids) for ids in prompts[:7]]  # as long, but too few of their template
    ((kind, mean),) = means_of(model, [*(("", ids) for ids in prompts), *others, ("", [1, 2, 3])]).items()
    assert kind == ("", 7)
    some = [prompts[i * 40 // 32] for i in range(32)]
    slow = torch.stack([masked([model.run(ids, bos=False)]).written()[:, 0] for ids in some]).mean(0)
    assert mean.shape == slow.shape and torch.allclose(mean, slow, atol=1e-5)
    attention = torch.stack([model.run(ids, bos=False).layers[1].mlp for ids in some]).mean(0)
    assert torch.allclose(mean[2 * (model.dims.heads + 1)], attention, atol=1e-5)  # the second MLP, after the words


# -- a store ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, organism: Model) -> keyhole.store.Store:
    path = tmp_path_factory.mktemp("curves") / "ioi.store"
    return keyhole.bulk("ioi", organism, n=40, out=path, choices={"wordings": [0]})


def test_methods_are_tried_on_other_prompts() -> None:
    """From all over the store; lengths too rare for a mean are left out."""
    there = {i: ("", [0] * (7 if i < 4 else 9)) for i in range(50)}  # four prompts of seven tokens: no mean
    for baseline, first in (("zero", 0), ("mean", 4)):
        shown, tried = _halves(there, CurveSettings(prompts=8, baseline=baseline))
        assert len(shown) == len(tried) == 8 and not {*shown} & {*tried} and {*shown, *tried} <= {*there}
        assert min(shown) == first and min(max(shown), max(tried)) > 40


def test_prompts_that_the_model_gets_wrong_are_not_used(outcomes: list[Outcome], tmp_path: Path) -> None:
    told: dict[int, dict[str, object]] = {1: {"difference": -0.1}, 2: {"difference": None, "correct": False}}
    told[3] = {"difference": None, "correct": True}
    kept = stored(tmp_path / "store", [replace(one, **told.get(one.index, {})) for one in outcomes[:5]])
    assert sorted(usable(kept)) == [0, 3, 4] and usable(kept)[4][1] == list(kept.circuit(4).token_ids)


def test_a_store_gives_its_own_circuits(store: keyhole.store.Store, organism: Model) -> None:
    done: list[tuple[int, int]] = []
    both = CurveSettings(methods=("accpp", "random"), prompts=8)
    found = curves(store, organism, both, progress=lambda *told: done.append(told))
    assert (found.found_on, found.tried_on, found.task) == (8, 8, "ioi") and done[-1] == (done[-1][1], done[-1][1])
    apart = [one.difference for one in store]
    assert all(min(abs(apart_one - own) for apart_one in apart) < 1e-3 for own in found.everything)
    again = curves(store, organism, CurveSettings(methods=("random",), prompts=8))
    assert again.own_circuits is None and again["random"].answers.shape == found["random"].answers.shape
    assert np.array_equal(again.everything, found.everything)
    assert found["random"].answers.shape == (3, 10, 8) and found["accpp"].answers.shape == (1, 10, 8)
    assert np.array_equal(found["accpp"].answers[0, -1], found.everything)
    with pytest.raises(KeyholeError, match="4 are needed"):
        curves(store, organism, CurveSettings(prompts=1))


def test_the_command(store: keyhole.store.Store, tmp_path: Path) -> None:
    path, page = str(store.path), tmp_path / "curves.html"
    told = typed("curves", path, "--prompts", "4", "--methods", "accpp,random", "--out", str(page))
    assert told.returncode == 0 and "CPR" in told.stdout and page.exists(), told.stderr
    told = typed("curves", path, "--prompts", "4", "--methods", "random", "--baseline", "zero", "--json")
    assert json.loads(told.stdout)["baseline"] == "zero"
    for args, message in {
        (path, "--methods", "guess"): "--methods takes some of",
        (path, "--out", "x.txt"): ".txt",
        ("nowhere.store",): "is no store",
    }.items():
        told = typed("curves", *args)
        assert told.returncode == 2 and message in told.stderr and told.stderr.count("\n") == 1
