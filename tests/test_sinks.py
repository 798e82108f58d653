"""Sinks: planted ones are found and told from a common mean, quantities equal slow ones, bad requests are refused."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import keyhole
import planted_sinks as planted
from commands import keyhole as typed
from conftest import tiny_model
from drawn import check_drawn
from keyhole.circuits.records import Component, SideName
from keyhole.errors import KeyholeError
from keyhole.intervene.removal import Metric
from keyhole.qk.firings import find_firings
from keyhole.stats import Interval
from keyhole.studies.directions.alike import (
    Likeness,
    Moments,
    _around,
    _range,
    clusters,
    cosines,
    directions,
    likeness,
    members,
    orthonormal,
    rank_of,
    resampled,
    shuffled,
    spread,
)
from keyhole.studies.directions.heard import Heard, hear, joined, of_circuit, of_firings
from keyhole.studies.sinks import Removal, SinkHead, Sinks, SinkSide, study
from keyhole.studies.sinks.explore import SinkSettings
from keyhole.studies.sinks.firings import StoredQuestion, firing, listen
from keyhole.studies.sinks.record import Others, along, massive
from keyhole.studies.sinks.trials import energy, explained, passed
from keyhole.tracing.upstream import Writes
from keyhole.tracing.why import explain, signal_vector
from keyhole_papers.svt import of_gpt2
from keyhole_papers.talk.single import Rest, found_sinks

SIDES: tuple[SideName, SideName] = ("dest", "src")


@pytest.fixture(scope="module")
def shared() -> Sinks:
    return study(planted.shared_sinks(), planted.prompts())


@pytest.fixture(scope="module")
def common() -> Sinks:
    return study(planted.common_mean(), planted.prompts())


# What is planted.


def test_a_shared_direction_is_found(shared: Sinks) -> None:
    s = planted.stream()
    for side, axis in zip(shared.sides, (s.rest, s.sink), strict=True):
        assert side.verdict == "shared" and len(side.controlled) == len(side.heads) == planted.LISTENERS
        assert [len(own) for own in side.clusters] == [planted.LISTENERS]
        assert all(one.cosine[0] == pytest.approx(0.81, abs=0.02) and one.near[0] == 1 for one in side.likeness)
        one = next(made for made in side.removals if made.rank == 1)
        assert one.explained[0] == 1 and max(one.random_explained) < 0.9 and one.sinks is not None
        assert one.sinks[0] < 0.2 * shared.before < min(one.random_sinks)
        for taken in {made.taken for made in side.removals}:  # a pass is made of the smallest rank that is enough
            own = [made for made in side.removals if made.taken == taken]
            enough = min(made.rank for made in own if made.explained[0] >= 0.5)
            assert [made.rank for made in own if made.sinks is not None] == [enough] and len(own) > 1
        assert axis.norm() == pytest.approx(1)
    assert {writer for head in shared.side("src").heads for writer, _ in head.writers[:1]} == {"MLP 0"}
    assert {writer for head in shared.side("dest").heads for writer, _ in head.writers[:1]} == {"embedding"}


def test_massive_coordinates_are_named(shared: Sinks, common: Sinks) -> None:
    assert {one.coordinate for one in shared.massive} == set(planted.COORDINATES) and not common.massive
    for one in shared.massive:
        assert (one.first, one.last) == (1, planted.LAYERS - 1) and one.times > 100 > 10 > one.elsewhere
        assert one.writer == one.maker == Component("mlp", 0, None) and one.share == pytest.approx(1, abs=0.05)
    assert shared.side("src").along == pytest.approx(0.81, abs=0.03) and shared.side("dest").along < 0.05


def test_a_common_mean_is_not_taken_for_a_shared_signal(common: Sinks) -> None:
    src = common.side("src")
    bare, *others = src.likeness
    assert bare.near[0] == 1 and bare.cosine[0] > 0.5 and bare.p <= 0.01  # alike, to all appearances
    assert all(abs(one.cosine[0]) < 0.1 and one.near[0] == 0 and one.p == 1 for one in others)
    assert [side.verdict for side in common.sides] == ["not shared", "not shared"]


def test_the_mean_is_what_the_planted_heads_read() -> None:
    model, s = planted.common_mean(), planted.stream()
    heard = listen(model, planted.prompts(6), "dynamic")
    ambient = heard.ambient
    mean = ambient.mean[1] / ambient.mean[1].norm()
    assert abs(float(mean @ s.mean.double())) > 0.99
    assert all(float(one @ s.mean.double()) > 0.7 for one in directions([h for h in heard.rest if h.side == "src"]))


# Statistics alone: vectors in, verdict out.


def heads_of(vectors: torch.Tensor, layers: int = 4, noise: float = 0.0, seed: int = 0) -> list[Heard]:
    """A head per vector, whose first channel is that vector; others are random."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for number, vector in enumerate(vectors.double()):
        random = torch.randn(len(vector), 7, generator=generator).double()
        basis = torch.linalg.qr(torch.cat([vector[:, None], random], dim=1))[0]
        basis[:, 0] *= torch.sign(basis[:, 0] @ vector)
        written = 1 + noise * torch.randn(6, 8, generator=generator).double()
        chosen = torch.zeros(6, 8, dtype=torch.bool)
        chosen[:, 0] = True
        place = (1 + number % layers, number // layers)
        found.append(Heard(*place, "src", torch.arange(6), written * chosen, written, chosen, basis, {}))
    return found


def unit(x: torch.Tensor) -> torch.Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def nothing(d: int) -> dict[int, torch.Tensor]:
    return {layer: torch.zeros(d, 0, dtype=torch.float64) for layer in range(1, 5)}


def test_likeness_of_equal_and_of_random_vectors() -> None:
    g = torch.Generator().manual_seed(3)
    own, common = torch.randn(12, 48, generator=g), torch.randn(48, generator=g)
    alike = likeness(heads_of(unit(unit(own) + 2 * unit(common))), nothing(48), top=None)
    assert alike.near[0] == 1 and alike.p == alike.p_cosine == 0.01 and alike.shuffled_near[0] < 0.05
    free = likeness(heads_of(unit(own)), nothing(48), top=None)
    assert free.near[0] == 0 and free.p == 1 and free.p_cosine > 0.05 and free.pairs == 54
    taken = {layer: orthonormal(common.double()[:, None]) for layer in range(1, 5)}
    gone = likeness(heads_of(unit(unit(own) + 2 * unit(common))), taken, top=0)
    assert gone.near[0] == 0 and abs(gone.cosine[0]) < 0.1 and gone.left == pytest.approx(0.2, abs=0.08)


def test_what_lies_in_the_mean_alone_has_no_direction_left() -> None:
    vector = unit(torch.randn(1, 20, generator=torch.Generator().manual_seed(0))).double()
    taken = dict.fromkeys(range(1, 5), vector.T)
    left = directions(heads_of(vector.expand(8, -1)), taken)
    assert not left.any() and likeness(heads_of(vector.expand(8, -1)), taken, top=0).near[0] == 0


def test_directions_are_means_of_unit_signals() -> None:
    g = torch.Generator().manual_seed(1)
    heads = heads_of(unit(torch.randn(6, 24, generator=g)), noise=0.5)
    taken = {layer: orthonormal(torch.randn(24, 2, generator=g).double()) for layer in range(1, 5)}
    for one, found in zip(heads, directions(heads, taken), strict=True):
        Q, total = taken[one.layer], torch.zeros(24, dtype=torch.float64)
        for a in one.used:
            signal = one.basis @ a
            signal = signal - Q @ (Q.T @ signal)
            total += signal / signal.norm()
        assert torch.allclose(found, total / total.norm(), atol=1e-9)


def test_intervals_lie_around_what_was_measured() -> None:
    """Draws say how wide they are, not where they lie; controls lie where they do."""
    draws = torch.arange(1001) / 1000
    assert _range(draws) == pytest.approx((0.5, 0.025, 0.975))
    assert _around(0.9, draws) == pytest.approx((0.9, 0.425, 1.375))


def test_resampled_prompts_are_means_over_some() -> None:
    """Two prompts: a third of the draws or so have either alone, and a head that neither has keeps its own."""
    one, other = heads_of(unit(torch.randn(2, 12, generator=torch.Generator().manual_seed(4))))
    rows = torch.eye(8)[:2].double()
    one = replace(one, prompt=torch.tensor([3, 7]), used=rows, written=rows, chosen=rows > 0)
    other = replace(other, prompt=torch.tensor([7]), used=rows[:1], written=rows[:1], chosen=rows[:1] > 0)
    drawn = resampled([one, other], None, 400, torch.Generator().manual_seed(0)).double()
    weights = (drawn[:, 0] @ one.basis)[:, :2]
    for expected, share in (((1.0, 0.0), 0.25), ((0.5**0.5, 0.5**0.5), 0.5), ((0.0, 1.0), 0.25)):
        near = (weights - torch.tensor(expected).double()).norm(dim=1) < 1e-4
        assert float(near.double().mean()) == pytest.approx(share, abs=0.08)
    assert torch.allclose(drawn[:, 1] @ other.basis[:, 0], torch.ones(400).double(), atol=1e-5)


def test_spread_is_the_mean_distance_of_pairs() -> None:
    (one,) = heads_of(unit(torch.ones(1, 12)))
    rows = torch.randn(5, 8, generator=torch.Generator().manual_seed(2)).double()
    head = replace(one, prompt=torch.arange(5), used=rows, written=rows, chosen=rows != 0)
    slow = [1 - float(unit(rows[i]) @ unit(rows[j])) for i in range(5) for j in range(i)]
    assert spread(head) == pytest.approx(np.mean(slow))
    single = replace(one, prompt=torch.arange(1), used=rows[:1], written=rows[:1], chosen=rows[:1] != 0)
    assert math.isnan(spread(single))


def test_other_channels_keep_count_writers_and_firings() -> None:
    heads = heads_of(unit(torch.randn(4, 24, generator=torch.Generator().manual_seed(5))))
    drawn = shuffled(heads, None, 50, torch.Generator().manual_seed(0))
    for number, one in enumerate(heads):
        inside = (drawn[:, number].double() @ one.basis).abs()
        assert torch.allclose(inside.max(1).values, torch.ones(50, dtype=torch.float64), atol=1e-5)  # one channel each
        assert len(set(inside.argmax(1).tolist())) > 4  # and not always the same


def test_only_heads_of_different_layers_are_compared() -> None:
    vectors = torch.eye(4).double()
    heads = [(1, 0), (1, 1), (2, 0), (3, 0)]
    assert len(cosines(vectors, heads)) == 5
    assert int(rank_of(vectors)) == 4 and int(rank_of(vectors[[0, 0, 0, 1]])) == 2
    labels = clusters(torch.stack([vectors[0], vectors[1], vectors[0], vectors[0]]))
    assert list(members(labels, heads)) == [((1, 0), (2, 0), (3, 0)), ((1, 1),)]


# Verdicts must fail on controls.

HEADS = tuple(SinkHead(1 + i // 2, i % 2, 8, 0.1, True, 0, 1.0, ()) for i in range(8))
LIKE = Likeness(
    None,
    24,
    1.0,
    Interval(0.9, 0.8, 1.0),
    Interval(0.8, 0.7, 0.9),
    2,
    (0.0, 0.0, 0.0),
    (0.0, -0.1, 0.1),
    (7.0, 6.0, 8.0),
    0.01,
    0.01,
)
GONE = Removal(
    *(None, 1, 0.1, 0.1, Interval(0.9, 0.8, 1.0), (0.1, 0.2), (0.9,)),
    *(Interval(0.1, 0.0, 0.2), Interval(1.0, 0.0, 2.0), (0.5, 0.6)),
)
EMPTY = np.zeros((8, 8))


def side_of(
    like: list[Likeness], gone: list[Removal], near: float = 0.0, heads: tuple[SinkHead, ...] = HEADS
) -> SinkSide:
    others = tuple(Others(one.taken, 8, near, near) for one in like)
    return SinkSide("src", heads, EMPTY, EMPTY, tuple(like), others, tuple(gone), 0.0)


def test_a_shared_signal_must_survive_act_and_exceed_its_controls() -> None:
    ways, cleaned = [replace(LIKE, taken=top) for top in (None, 0, 1, 3)], [GONE, replace(GONE, taken=3)]
    assert side_of(ways, cleaned).verdict == "shared"
    part = [replace(one, near=Interval(0.1, 0.0, 0.2)) for one in ways]
    assert side_of(part, cleaned).verdict == "a shared part"
    wide = [replace(one, cosine=Interval(0.8, 0.05, 1.0)) for one in part]  # beside other channels at 0 up to 0.1
    assert side_of(wide, cleaned).verdict == "not shared"
    assert side_of([*ways[:3], part[3]], cleaned).found == "a shared part"
    mean = [
        ways[0],
        *[
            replace(one, near=Interval(0.0, 0.0, 0.0), cosine=Interval(0.0, -0.1, 0.1), p=1.0, p_cosine=0.5)
            for one in ways[1:]
        ],
    ]
    assert side_of(mean, cleaned).found == "not shared"
    assert side_of([*ways[:3], replace(ways[3], p=0.05, p_cosine=0.05)], cleaned).found == "not shared"
    assert side_of(ways, cleaned, near=0.95).found == "not shared"  # as alike on other tokens
    assert side_of(ways, [GONE]).found == "shared" and side_of(ways, []).found == "not shared"
    for weak in ({"explained": Interval(0.4, 0.3, 0.5)}, {"random_explained": (0.95, 0.0)}, {"random_sinks": (0.05,)}):
        assert side_of(ways, [GONE, replace(GONE, taken=3, **weak)]).found == "not shared"
    assert side_of(ways, [GONE, replace(GONE, taken=3, sinks=None)]).found == "not shared"
    assert side_of(ways, cleaned, heads=HEADS[:3]).found == "not shared"
    assert side_of(ways, cleaned, heads=tuple(replace(one, layer=1) for one in HEADS)).found == "not shared"
    assert side_of([], cleaned).found == "not shared"


def test_the_published_claim_needs_nearly_equal_signals(shared: Sinks, common: Sinks) -> None:
    gpt2, other = (Rest(of_gpt2(model, "24 prompts"), 24, shared) for model in ("gpt2", None))
    assert found_sinks(gpt2).verdict == "reproduced" and found_sinks(other).verdict == "partly"
    assert (
        found_sinks(replace(gpt2, sinks=common)).verdict == "not"
        and found_sinks(replace(other, sinks=common)).verdict == "needs a model"
    )
    one = replace(shared, sides=(shared.sides[0], common.sides[1]))
    assert (
        found_sinks(replace(gpt2, sinks=one)).verdict == "partly"
        and found_sinks(replace(gpt2, prompts=4)).verdict == "not"
    )
    ways = [replace(LIKE, taken=top, near=Interval(0.1, 0.0, 0.2)) for top in (None, 3)]
    part = side_of(ways, [GONE])
    assert (
        part.found == "a shared part"
        and found_sinks(replace(gpt2, sinks=replace(shared, sides=(part, part)))).verdict == "not"
    )


# Quantities against slow ones.


@pytest.mark.parametrize("variant", ["gpt2", "llama"])
def test_heard_signals_are_sums_of_signal_vectors(variant: str) -> None:
    model = tiny_model(variant)
    runs = model.run_many([list(range(3, 15)), list(range(20, 29))])
    writes, numbers = Writes(runs), {id(run): i for i, run in enumerate(runs)}
    firings = [
        explain(run, (site.layer, site.head), site.dest, site.src)
        for run in runs
        for site in find_firings(run)
        if site.layer == 2 and site.dest > 4
    ]
    found = {(one.side, one.place): one for one in hear(writes, of_firings(firings, numbers), [5, 9])}
    assert found
    for (name, place), one in found.items():
        rows = []
        for number, made in enumerate(runs):
            for firing_ in [f for f in firings if (f.layer, f.head) == place and f.run is made and f.sides]:
                own = [s for s in firing_.side(name).signals if s.writer.kind != "offset"]
                if own:
                    rows.append((number, sum(signal_vector(firing_, s, flavour="raw").double() for s in own)))
        assert [[5, 9][number] for number, _ in rows] == one.prompt.tolist()
        slow = torch.stack([torch.as_tensor(vector) for _, vector in rows])
        assert torch.allclose(one.used @ one.basis.T, slow, atol=1e-4 * float(slow.abs().max()))
        assert sum(one.authors.values()) == pytest.approx(1, abs=1e-9)


def test_circuits_and_firings_are_heard_alike(organism: keyhole.Model) -> None:
    run = organism.run("When Mary and John went to the store, John gave a drink to")
    circuit = run.trace("Mary", against="John", through="heads")
    writes = Writes([run])
    from_edges = hear(writes, of_circuit(circuit, 0), [0])
    nodes = [circuit.nodes[one.node] for one in circuit.firings]
    firings = [explain(run, (node.layer or 0, node.head or 0), node.dest, node.src) for node in nodes]
    again = hear(writes, of_firings(firings, {id(run): 0}), [0])
    assert [(one.side, one.place) for one in from_edges] == [(one.side, one.place) for one in again]
    for a, b in zip(from_edges, again, strict=True):
        assert torch.allclose(a.used.sum(0), b.used.sum(0), atol=1e-4)
    both = joined([*from_edges, *again])
    assert [len(one) for one in both] == [2 * len(one) for one in from_edges]
    assert all(sum(one.authors.values()) == pytest.approx(1) for one in both)


def test_moments_are_those_of_all_tokens_after_the_first(gpt2: keyhole.Model) -> None:
    runs = gpt2.run_many([list(range(3, 15)), list(range(20, 29))])
    moments = Moments()
    moments.add(Writes(runs), [1, 2])
    found = moments.ambient()
    rows = [torch.cat([unit(run.layers[layer].resid[1:].double()) for run in runs]) for layer in (1, 2)]
    for layer, x in zip((1, 2), rows, strict=True):
        assert torch.allclose(found.mean[layer], x.mean(0))
        centred = x - x.mean(0)
        S = torch.linalg.svdvals(centred)
        assert torch.allclose(found.shares[layer], (S**2 / (S**2).sum())[:3], atol=1e-9)
        basis = found.taken(3)[layer]
        assert torch.allclose(basis.T @ basis, torch.eye(4).double(), atol=1e-9)
        assert float((x.mean(0) - basis @ (basis.T @ x.mean(0))).norm()) < 1e-9
    every = torch.cat(rows)
    assert torch.allclose(found.root @ found.root.T, every.T @ every / len(every), atol=1e-9)
    drawn = torch.cat([found.draw(1, torch.Generator().manual_seed(i)) for i in range(200)], dim=1)
    assert float((drawn.T @ found.root).square().sum(1).mean()) > 2 * float(found.root.square().sum() / len(found.root))


def test_the_share_is_of_tokens_after_the_first(shared: Sinks) -> None:
    """Of the prompts that were explained, and of all heads above the first layer."""
    model, asked = planted.shared_sinks(), planted.prompts()
    fit = [one for i, one in enumerate(asked) if i % 3 < 2]
    assert (shared.prompts, shared.held_out) == (len(fit), len(asked) - len(fit))
    fires, could = 0, 0
    for one in fit:
        run = model.run(list(one.token_ids), bos=False)
        fires += sum(site.src == 0 < site.dest and site.layer > 0 for site in find_firings(run))
        could += (len(run) - 1) * model.dims.heads * (model.dims.layers - 1)
    assert shared.share == pytest.approx(fires / could) and 0 < shared.share < 1


def test_firings_are_those_that_are_found_run_by_run(organism: keyhole.Model) -> None:
    texts = ["When Mary and John went to the store, John gave a drink to", "Mary gave a drink to John"]
    runs = organism.run_many(texts)
    fires = firing(Writes(runs), 2, "dynamic")
    for number, run in enumerate(runs):
        slow = {(s.head, s.dest, s.src) for s in find_firings(run) if s.layer == 2 and s.dest > 0}
        assert {tuple(place) for place in fires[number].nonzero().tolist()} == slow


@pytest.mark.parametrize("variant", ["gpt2", "llama"])
def test_explained_firings_against_scores_by_hand(variant: str) -> None:
    model = tiny_model(variant)
    asked = [StoredQuestion(i, tuple(range(3 + 5 * i, 13 + 4 * i)), Metric(3, (1,), (2,))) for i in range(3)]
    basis = orthonormal(torch.randn(model.dims.d_model, 3, generator=torch.Generator().manual_seed(0)).double())
    cuts: list[tuple[SideName, torch.Tensor]] = [("dest", basis), ("src", basis)]
    found = explained(model, asked, cuts, "dynamic")
    for (side, _), own in zip(cuts, found, strict=True):
        slow = []
        for one in asked:
            run = model.run(list(one.token_ids))
            sites = [s for s in find_firings(run) if s.src == 0 < s.dest and s.layer > 0]
            gone = sum(_weight_without(run, site, side, basis) < min(1, 2.5 / site.visible) for site in sites)
            slow += [gone / len(sites)] if sites else []
        assert own == pytest.approx(slow, abs=1e-6)


def _weight_without(run: keyhole.Run, site: keyhole.qk.firings.Site, side: SideName, basis: torch.Tensor) -> float:
    from keyhole.tracing.writers import read_vectors

    record, head = run.attention_run(site.layer), site.head
    resid = run.layers[site.layer].resid.double()
    lost = (resid @ basis @ basis.T).float()
    q, k = record.q[head, site.dest].clone(), record.k[record.kv(head)].clone()
    if side == "dest":
        q -= read_vectors(run, (site.layer, head), lost[[site.dest]], [site.dest], side="dest")[0]
    else:
        k -= read_vectors(run, (site.layer, head), lost, list(range(len(run))), side="src")
    scores = (k @ q) * record.rule.scaling
    return float(record.rule.of_head(scores, record.visible([site.dest])[0], head)[0])


def test_passes_without_a_subspace(gpt2: keyhole.Model) -> None:
    asked = [StoredQuestion(i, tuple(range(3 + i, 16 - i)), Metric(5, (1,), (2,))) for i in range(3)]
    d = gpt2.dims.d_model
    one = orthonormal(torch.randn(d, 2, generator=torch.Generator().manual_seed(0)).double())
    clean, none, dest, src = passed(gpt2, asked, [None, ("dest", one[:, :0]), ("dest", one), ("src", one)], 1)
    runs = [gpt2.run(list(a.token_ids)) for a in asked]
    slow = [float(torch.stack([run.pattern(layer)[:, 1:, 0].mean() for layer in (1, 2)]).mean()) for run in runs]
    assert clean.sinks == pytest.approx(slow, abs=1e-6) and none.sinks == pytest.approx(clean.sinks)
    assert clean.answers == pytest.approx(
        [a.metric.of(run.logits[5]) for a, run in zip(asked, runs, strict=True)], abs=1e-5
    )
    for cut, side in ((dest, "dest"), (src, "src")):
        by_hand = [_pass_by_hand(gpt2, own, one, side) for own in asked]
        assert cut.answers == pytest.approx(by_hand, abs=1e-4) and cut.answers != pytest.approx(clean.answers, abs=1e-4)
    shares = energy(gpt2, asked, [("dest", torch.eye(d).double()), ("dest", one), ("src", one)])
    by_hand = [
        np.mean([_in(run.layers[layer].resid[at], one) for run in runs for layer in (1, 2)])
        for at in (slice(1, None), slice(0, 1))
    ]
    assert shares == pytest.approx([1.0, *by_hand])


def _in(x: torch.Tensor, basis: torch.Tensor) -> float:
    return float(((x.double() @ basis).square().sum(1) / x.double().square().sum(1)).mean())


def _pass_by_hand(model: keyhole.Model, asked: StoredQuestion, basis: torch.Tensor, side: str) -> float:
    """The model as it is, one prompt at a time, with a hook before every block above the first."""
    B, at = basis.float(), slice(1, None) if side == "dest" else slice(0, 1)

    def less(module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        x = args[0].clone()
        x[:, at] -= x[:, at] @ B @ B.T
        return x, *args[1:]

    hooks = [block.register_forward_pre_hook(less) for block in model.hf.transformer.h[1:]]
    try:
        with torch.no_grad():
            return asked.metric.of(model.hf(torch.tensor([asked.token_ids])).logits[0, asked.metric.end])
    finally:
        for hook in hooks:
            hook.remove()


def test_massive_is_told_by_coordinate(gpt2: keyhole.Model) -> None:
    runs = gpt2.run_many([list(range(3, 15)), list(range(20, 29))])
    assert massive(runs) == () and along(torch.eye(3), ()) == 0
    found = massive(runs, times=2.0)
    for one in found:
        values = [run.layers[one.peak].resid.double().abs() for run in runs]
        ratio = np.median([float(x[0, one.coordinate] / np.median(x.numpy())) for x in values])
        assert one.times == pytest.approx(ratio) and one.times > 2
    assert found and [one.times for one in found] == sorted((one.times for one in found), reverse=True)
    assert along(torch.eye(gpt2.dims.d_model)[:4], found[:1]) in (0.0, 0.25)


# What is refused, told, drawn and written.


def test_models_and_prompts_without_sinks_are_refused(gpt2: keyhole.Model) -> None:
    with pytest.raises(KeyholeError, match=r"no head .* fires on the first token"):
        study(gpt2, [StoredQuestion(i, (3, 4), Metric(1, (1,))) for i in range(6)])
    from tiny import Sizes

    with pytest.raises(KeyholeError, match="one attention layer"):
        study(tiny_model("gpt2", Sizes(layers=1)), planted.prompts(6))
    with pytest.raises(KeyholeError, match="threshold"):
        study(gpt2, [StoredQuestion(i, (3, 4), Metric(1, (1,))) for i in range(6)], SinkSettings(tau=2.0))


def test_stores(whole: Path, organism: keyhole.Model, gpt2: keyhole.Model, tmp_path: Path) -> None:
    with pytest.raises(KeyholeError, match="at least 6"):
        keyhole.sinks(whole, organism, prompts=5)
    with pytest.raises(KeyholeError, match="other weights"):
        keyhole.sinks(whole, gpt2)
    with pytest.raises(KeyholeError, match="is no store"):
        keyhole.sinks(tmp_path)


def test_a_study_reads_and_is_drawn(shared: Sinks, tmp_path: Path) -> None:
    text = str(shared)
    assert "dest side: shared" in text and "coordinate 0 of the first token" in text and "MLP 0" in text
    for name in ("a.png", "a.html", "a.json", "a.csv"):
        shared.save(tmp_path / name)
    figure = shared.plot()
    check_drawn(figure, tmp_path / "a.png")
    told = json.loads((tmp_path / "a.json").read_text())
    assert told["sides"][1]["found"] == "shared" and told["massive"][0]["writer"] == "MLP 0"
    assert np.allclose(told["sides"][0]["cosines"], shared.sides[0].cosines, atol=1e-4)
    assert "src side: shared" in (tmp_path / "a.html").read_text()
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 1 + 2 * planted.LISTENERS
    with pytest.raises(KeyholeError, match="should end in"):
        shared.save(tmp_path / "a.txt")


def test_the_command(whole: Path, tmp_path: Path) -> None:
    told = typed(
        "sinks", str(whole), "--prompts", "6", "--draws", "19", "--controls", "1", "--out", "s.json", folder=tmp_path
    )
    assert told.returncode == 0 and "dest side" in told.stdout, told.stderr
    record = json.loads((tmp_path / "s.json").read_text())
    assert record["prompts"] == 4 and record["held_out"] == 2
    for wrong, why in (
        (["nothing.store"], "is no store"),
        ([str(whole), "--tau", "2"], "threshold"),
        ([str(whole), "--out", "s.txt"], "should end in"),
        ([str(whole), "--out", "no/s.json"], "no folder"),
    ):
        refused = typed("sinks", *wrong, folder=tmp_path)
        assert refused.returncode == 2 and why in refused.stderr and len(refused.stderr.strip().splitlines()) == 1


def test_a_prompt_must_be_left_to_hold_out() -> None:
    with pytest.raises(KeyholeError, match="2 prompts are too few: one in 3 is held out"):
        study(planted.shared_sinks(), planted.prompts()[:2])
