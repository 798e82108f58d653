"""Channels across tasks and heads: planted overlaps are found, chance is not, bad input is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import keyhole
from commands import keyhole as typed
from drawn import check_drawn
from keyhole.errors import KeyholeError
from keyhole.qk.omega import omega
from keyhole.stats import Interval, benjamini_hochberg
from keyhole.studies.directions.directions import _used, shared
from keyhole.studies.directions.record import HeadUse, Place, Shared, SharedSide, Use, channel_use, compare_use
from keyhole.studies.families.distances import in_common
from stores import stored


@pytest.fixture(scope="module")
def study(whole: Path, organism: keyhole.Model) -> Shared:
    return shared(whole, whole, organism, draws=19)


# Two tasks.


def use_of(probability: np.ndarray, prompts: int, seed: int) -> Use:
    rng = np.random.default_rng(seed)
    return Use(np.arange(prompts), rng.random((prompts, len(probability))) < probability)


def test_planted_channels_of_two_tasks_are_told_apart() -> None:
    few, often = np.array([0.9, 0.8, 0.1, 0.0, 0.0, 0.0]), np.array([0.0, 0.0, 0.1, 0.9, 0.8, 0.0])
    part = np.array([0.9, 0.5, 0.1, 0.0, 0.4, 0.0])
    heads: list[tuple[Place, np.ndarray, np.ndarray]] = [
        (("dest", 1, 0), few, few),
        (("dest", 1, 1), few, often),
        (("src", 2, 0), few, part),
    ]
    one = {place: use_of(a, 60, i) for i, (place, a, _) in enumerate(heads)}
    two = {place: use_of(b, 40, 9 + i) for i, (place, _, b) in enumerate(heads)}
    one["src", 3, 3] = use_of(few, 60, 5)  # not in the other task
    one["src", 3, 4], two["src", 3, 4] = use_of(few, 60, 5), use_of(few, 9, 5)  # in too few prompts
    found = {(made.side, made.layer, made.head): made for made in compare_use(one, two)}
    assert list(found) == [place for place, _, _ in heads]
    same, other, half = found.values()
    assert same.verdict == "same" and same.p > 0.05 and same.share == pytest.approx(1, abs=0.1)
    assert other.verdict == "others" and other.q <= 0.05 and other.between < 0.15 < 0.8 < min(other.within)
    assert half.verdict == "in part" and 0.5 < half.share < 0.8 and half.q <= 0.05
    assert 0.8 < min(same.within) <= max(same.within) < 1  # two halves, not one and itself
    assert same.prompts == (60, 40) and same.chance < 0.6 * same.between


def test_tasks_dealt_at_random_do_not_differ() -> None:
    rng = np.random.default_rng(0)
    small = []
    for seed in range(60):
        own = use_of(rng.random(8), 60, seed)
        one, two = ({("dest", 1, 0): Use(own.prompts[part], own.used[part])} for part in (slice(0, 30), slice(30, 60)))
        small.append(compare_use(one, two, draws=39, seed=seed)[0].p <= 0.05)
    assert sum(small) <= 9  # 3 are expected


def test_overlaps_by_hand() -> None:
    a, b = np.array([[1, 1, 0], [1, 0, 0]], bool), np.array([[1, 0, 1], [0, 0, 1]], bool)
    assert float(in_common(a.mean(0), b.mean(0))) == pytest.approx((0.5 + 0 + 0) / (1 + 0.5 + 1))
    many = (
        {("dest", 1, 0): Use(np.arange(20), np.repeat(a, 10, 0))},
        {("dest", 1, 0): Use(np.arange(20), np.repeat(b, 10, 0))},
    )
    (made,) = compare_use(*many)
    assert made.overlap == pytest.approx(0.2) and made.verdict == "others"
    same = {("dest", 2, 0): many[0]["dest", 1, 0]}
    first, second = compare_use(many[0] | same, many[1] | same)
    assert [first.q, second.q] == benjamini_hochberg([first.p, second.p]) and first.q == 2 * first.p
    assert benjamini_hochberg([]) == []
    assert benjamini_hochberg([0.5, 0.001]) == [0.5, 0.002]


def test_tasks_are_compared_by_as_many_prompts_as_halves_have() -> None:
    """Frequencies of few prompts overlap less; against slow draws of ten of twenty prompts, and of thirty."""
    often = np.full(12, 0.3)
    one, two = use_of(often, 20, 1), use_of(often, 30, 2)
    (made,) = compare_use({("src", 2, 1): one}, {("src", 2, 1): two}, draws=499)
    rng = np.random.default_rng(0)
    drawn = [[own.used[rng.permutation(len(own.used))[:10]].mean(0) for own in (one, two)] for _ in range(499)]
    assert made.between == pytest.approx(np.mean([in_common(f, g) for f, g in drawn]), abs=0.02)
    assert made.between < made.overlap - 0.05 and made.verdict == "same"


def test_channel_use_is_that_of_the_circuits(whole: Path) -> None:
    store = keyhole.open_store(whole)
    slow: dict[Place, dict[int, set[int]]] = {}
    for number, circuit in store.circuits():
        for edge in circuit.edges:
            if edge.side in ("dest", "src"):
                into = circuit.nodes[edge.receiver]
                assert into.layer is not None and into.head is not None
                slow.setdefault((edge.side, into.layer, into.head), {}).setdefault(number, set()).update(edge.channels)
    found = channel_use(store)
    assert {place: {int(n): set(np.nonzero(row)[0].tolist()) for n, row in zip(own.prompts, own.used, strict=True)}
            for place, own in found.items()} == slow  # fmt: skip


# Signals and channels.


def test_often_used_channels_are_vectors_of_their_heads(whole: Path, organism: keyhole.Model) -> None:
    use = channel_use(keyhole.open_store(whole))
    found = _used(organism, use, "src")
    expected = []
    for (side, layer, head), own in sorted(use.items()):
        if side == "src" and len(own.prompts) >= 4:
            often = np.nonzero(own.used.mean(0) >= 0.2)[0]
            expected += [omega(organism, layer).v(head)[:, k].double() for k in often.tolist()]
    assert len(found) == len(expected) > 5
    for one, vector in zip(found, expected, strict=True):
        assert torch.allclose((one.used @ one.basis.T)[0], vector)


def test_a_study_of_the_organism(study: Shared, whole: Path) -> None:
    for side in study.sides:
        assert side.signals[0].pairs == sum(a[0] != b[0] for i, a in enumerate(side.heads) for b in side.heads[:i])
        assert np.allclose(np.diag(side.cosines), 1) and np.abs(side.cosines).max() < 1 + 1e-9
        near = sum(
            side.cosines[i, j] > study.limit
            for i, a in enumerate(side.heads)
            for j, b in enumerate(side.heads[:i])
            if a[0] != b[0]
        )
        assert side.signals[0].near[0] * side.signals[0].pairs == pytest.approx(near)
    assert study.stores == (str(whole), str(whole))
    assert all(one.verdict == "same" and one.p == 1 for one in study.tasks)  # a store beside itself


def test_channels_have_no_sign(study: Shared, whole: Path, organism: keyhole.Model) -> None:
    """Their vectors are as near as the other way round; signals are not."""
    use = channel_use(keyhole.open_store(whole))
    for side in study.sides:
        own = _used(organism, use, side.side)
        rows = torch.stack([(one.used @ one.basis.T)[0] for one in own])
        i, j = (np.array(ends) for ends in zip(*pairs_of([one.layer for one in own]), strict=True))
        found = (rows @ rows.T).numpy()[i, j]
        assert side.used == len(own) and side.channels[0].pairs == len(found)
        assert side.channels[0].cosine[0] == pytest.approx(np.abs(found).mean(), abs=1e-6)
        assert side.channels[0].near[0] == pytest.approx((np.abs(found) > study.limit).mean())
        assert side.signals[0].cosine[0] == pytest.approx(
            np.mean([side.cosines[a, b] for a, b in pairs_of([layer for layer, _ in side.heads])]), abs=1e-6
        )


def pairs_of(layers: list[int]) -> list[tuple[int, int]]:
    return [(a, b) for b in range(len(layers)) for a in range(b) if layers[a] != layers[b]]


def side_of(near: list[float], p: list[float]) -> SharedSide:
    from keyhole.studies.directions.alike import Likeness

    control = (0.0, 0.0, 0.0)
    made = [
        Likeness(None, 10, 1.0, Interval(n, n, n), Interval(*control), 2, control, control, control, x, x)
        for n, x in zip(near, p, strict=True)
    ]
    return SharedSide("dest", ((1, 0), (2, 0)), np.eye(2), (), tuple(made), 0, ())


def test_coordination_must_survive() -> None:
    assert side_of([0.2, 0.1], [0.01, 0.01]).coordinate
    assert not side_of([0.2, 0.0], [0.01, 1.0]).coordinate and not side_of([0.2, 0.1], [0.01, 0.05]).coordinate
    assert not side_of([], []).coordinate


# What is told, drawn, written and refused.


def test_it_reads_and_is_drawn(study: Shared, tmp_path: Path) -> None:
    text = str(study)
    assert "dest side" in text and "the same channels" in text and "pairs nearly equal" in text
    for name in ("a.png", "a.html", "a.json", "a.csv"):
        study.save(tmp_path / name)
    check_drawn(study.plot(), tmp_path / "a.png")
    told = json.loads((tmp_path / "a.json").read_text())
    assert told["tasks"][0]["found"] == "same" and told["sides"][0]["coordinate"] == study.sides[0].coordinate
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 1 + len(study.tasks)
    assert "Channels in two tasks" in (tmp_path / "a.html").read_text()


def test_bad_requests(whole: Path, organism: keyhole.Model, outcomes: list[Any], tmp_path: Path) -> None:
    told = {"name": "other", "family": "gpt2", "fingerprint": "0" * 64}
    foreign = [replace(one, circuit=one.circuit and replace(one.circuit, model=told)) for one in outcomes]
    other = stored(tmp_path / "other.store", foreign, model=told)
    with pytest.raises(KeyholeError, match="Give two stores of one model"):
        shared(whole, other, organism)
    (bald,) = [one for one in outcomes if one.status == "headless"]
    bare = stored(tmp_path / "bare.store", [replace(bald, index=0)])
    with pytest.raises(KeyholeError, match="no signals"):
        shared(bare, None, organism)


def test_the_command(whole: Path, tmp_path: Path) -> None:
    told = typed("shared", str(whole), "--prompts", "8", "--draws", "19", "--json", "--out", "s.csv", folder=tmp_path)
    assert told.returncode == 0, told.stderr
    record = json.loads(told.stdout)
    assert record["prompts"] == 8 and record["tasks"] == [] and (tmp_path / "s.csv").read_text().startswith("side,head")
    for wrong, why in (([str(tmp_path)], "is no store"), ([str(whole), "--out", "s.txt"], "should end in")):
        refused = typed("shared", *wrong, folder=tmp_path)
        assert refused.returncode == 2 and why in refused.stderr and len(refused.stderr.strip().splitlines()) == 1


def test_shares_are_of_what_halves_share() -> None:
    made = HeadUse(1, 0, "dest", (20, 20), 0.3, 0.3, (0.6, 0.4), 0.1, 0.001, 0.001)
    assert made.share == pytest.approx(0.6) and made.verdict == "in part"
    less = replace(made, between=0.2)
    assert less.verdict == "others" and replace(less, q=0.06).verdict == "in part"
