"""Families of circuits: planted ones are found and no others; every number against a slow, plain one."""

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.sparse import csr_array, vstack
from scipy.spatial.distance import pdist, squareform

import keyhole
from commands import keyhole as typed
from drawn import check_drawn, keep_saved
from keyhole import Circuit, KeyholeError, Model
from keyhole.files import json_text
from keyhole.store import Store
from keyhole.studies.families import (
    Families,
    adjusted_rand,
    agreements,
    between,
    clusters,
    jaccard,
    medoid,
    mutual_information,
)
from keyhole.studies.families import cuts as cuts_module
from keyhole.studies.families import record as rest
from keyhole.studies.families.agreement import Beside, _beside, representatives, share_between
from keyhole.studies.families.clusters import Clustering, dip, explained, first_coordinate, margin_of, modes_of
from keyhole.studies.families.cuts import (
    Trades,
    cuts_of,
    matches,
    one_cloud,
    shuffled_distances,
    silhouettes,
    stabilities,
    summed,
    tree_of,
)
from keyhole.studies.families.record import average, averages
from keyhole.studies.families.report import plain_verdict, significance_text, split_text, verdict
from keyhole.tasks import ioi
from planted import planted, planted_store

pytestmark = pytest.mark.xdist_group("families")  # they share a store that is made once
SEEDS = (11, 12, 13)
clusters_module: Any = import_module("keyhole.studies.families.clusters")  # the package has a function of this name


@pytest.fixture(scope="module")
def store(organism: Model, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Ninety circuits of three families; one label says which, another says nothing."""
    matrix, truth = planted(3, 90, seed=21)
    rng = np.random.default_rng(5)
    labels = [{"kind": "abc"[one], "coin": str(rng.integers(2)), "same": "x"} for one in truth]
    return planted_store(tmp_path_factory.mktemp("families") / "store", example_circuit(organism), matrix, labels)


def example_circuit(model: Model) -> Circuit:
    example = ioi(1, seed=3)[0]
    return model.run(example.text).trace(example.answer, against=list(example.against), through="heads")


@pytest.fixture(scope="module")
def found(store: Store) -> Families:
    return keyhole.families(store, granularity="edges")


# Distances


def slow_jaccard(one: np.ndarray, other: np.ndarray) -> float:
    whole = np.maximum(one, other).sum()
    return 1 - float(np.minimum(one, other).sum()) / float(whole) if whole else 0.0


@pytest.mark.parametrize("weighted", [False, True])
def test_distances_are_those_of_a_slow_look(weighted: bool) -> None:
    rng = np.random.default_rng(0)
    often, rare = rng.random((70, 15)) < 0.5, rng.random((70, 200)) < 0.02  # both ways of counting are met
    dense = np.concatenate([often, rare], 1).astype(np.float64)
    dense[[3, 4]] = 0
    if weighted:
        dense *= rng.random(dense.shape)
    found = jaccard(csr_array(dense))
    told = np.array([[slow_jaccard(one, other) for other in dense] for one in dense])
    assert found == pytest.approx(told, abs=2e-6) and found[3, 4] == 0 and found[3, 5] == 1
    assert between(csr_array(dense[:9]), csr_array(dense[5:])) == pytest.approx(told[:9, 5:], abs=2e-6)
    if not weighted:
        assert found == pytest.approx(squareform(pdist(dense.astype(bool), "jaccard")), abs=2e-6)


def test_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix, _ = planted(2, 40, seed=1)
    whole = jaccard(matrix)
    monkeypatch.setattr("keyhole.studies.families.distances._ROWS", 7)
    assert (jaccard(matrix) == whole).all()


# Cuts


def test_cuts_are_those_of_the_tree() -> None:
    """Where no cluster is too small, they are scipy's; silhouettes are counted one by one."""
    matrix, _ = planted(3, 45, seed=2)
    apart = jaccard(matrix)
    tree = tree_of(apart)
    assert tree == pytest.approx(linkage(squareform(apart, checks=False), "average"))
    for families, cut in cuts_of(apart, tree, least=1, most=6).items():
        assert adjusted_rand(fcluster(tree, families, "maxclust"), cut.labels) == 1 and cut.outside == 0
        each = [slow_silhouette(apart, cut.labels, i) for i in range(45)]
        assert cut.silhouette == pytest.approx(np.mean(each), abs=1e-6)
        assert silhouettes(summed(apart, cut.labels), cut.labels) == pytest.approx(each, abs=1e-6)
        assert fcluster(tree, cut.height - 1e-9, "distance").max() == families


def slow_silhouette(apart: np.ndarray, labels: np.ndarray, i: int) -> float:
    if labels[i] == 0:
        return 0.0
    others = [j for j in np.flatnonzero(labels == labels[i]) if j != i]
    within = float(np.mean(apart[i, others])) if others else 0.0
    next_one = min(float(apart[i, labels == one].mean()) for one in {*labels.tolist()} - {0, labels[i]})
    return (next_one - within) / max(next_one, within)


def test_outliers_are_no_family() -> None:
    """They lie outside, are counted, and pull the silhouette down as 0."""
    matrix, truth = planted(2, 60, seed=3)
    rng = np.random.default_rng(0)
    strange = csr_array((rng.random((3, matrix.shape[1])) < 0.1).astype(np.float64))
    apart = jaccard(csr_array(vstack([matrix, strange])))
    cut = cuts_of(apart, tree_of(apart), least=5, most=8)[2]
    assert cut.outside == 3 and cut.labels[60:].tolist() == [0, 0, 0]
    assert adjusted_rand(truth, cut.labels[:60]) == 1
    each = [slow_silhouette(apart, cut.labels, i) for i in range(63)]
    assert cut.silhouette == pytest.approx(np.mean(each), abs=1e-6)


def test_of_all_cuts_into_as_many_families_the_best_is_told() -> None:
    """The largest family first; a tree of circuits without families has many cuts into as few."""
    matrix = planted(2, 60, seed=6, keep=0.5)[0][np.r_[0:60:2, 1:30:2]]  # thirty of one, fifteen of the other
    apart = jaccard(matrix)
    tree = tree_of(apart)
    best: dict[int, list[float]] = {}
    for clusters_ in range(2, 45):
        labels = fcluster(tree, clusters_, "maxclust")
        labels = np.where(np.bincount(labels)[labels] >= 4, labels, 0)
        if (labels > 0).mean() >= 0.5 and (families := len({*labels.tolist()} - {0})) > 1:
            best.setdefault(families, []).append(float(np.mean([slow_silhouette(apart, labels, i) for i in range(45)])))
    found = cuts_of(apart, tree, least=4, most=8)
    assert {one: cut.silhouette for one, cut in found.items()} == pytest.approx({k: max(v) for k, v in best.items()})
    assert len(best[4]) > 1 and best[4][0] < max(best[4]) > best[4][-1]  # neither the first nor the last
    for cut in found.values():
        sizes = np.bincount(cut.labels)
        assert (np.diff(sizes[1:]) <= 0).all() and sizes[1] > sizes[-1]


def test_a_cut_that_leaves_most_outside_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two groups of six among thirty circuits that share nothing."""
    dense = np.zeros((42, 60))
    dense[:6, :10] = dense[6:12, 10:20] = 1
    dense[np.arange(12, 42), np.arange(20, 50)] = 1
    apart = jaccard(csr_array(dense))
    assert cuts_of(apart, tree_of(apart), least=5, most=8) == {}
    monkeypatch.setattr(cuts_module, "COVERED", 0.0)
    assert cuts_of(apart, tree_of(apart), least=5, most=8)[2].outside == 30


# Families or one


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("k", [2, 3, 5])
def test_planted_families_are_found(k: int, seed: int) -> None:
    matrix, truth = planted(k, 100, seed)
    made = clusters(matrix, jaccard(matrix), draws=39, resamples=10)
    assert made.cut is not None and made.cut.families == k and made.separate
    assert adjusted_rand(truth, made.cut.labels) >= 0.95


def test_families_are_believed_only_if_all_says_so() -> None:
    """They must be stable, and better than both worlds by both measures; of stable cuts the best is told."""
    matrix, _ = planted(2, 60, seed=11)
    made = clusters(matrix, jaccard(matrix), draws=19, resamples=5)
    assert made.separate and made.best is not None and len(made.nulls) == 4 and {one.p for one in made.nulls} == {0.05}
    shaky = replace(made, stability=tuple(np.full(len(own), 0.74) for own in made.stability))
    assert not shaky.stable and not shaky.separate and not replace(made, nulls=()).separate
    for i in range(4):
        nulls = [replace(one, p=0.1) if j == i else one for j, one in enumerate(made.nulls)]
        assert not replace(made, nulls=tuple(nulls)).separate
    two, three = (replace(made.cuts[0], families=k, silhouette=s) for k, s in ((2, 0.6), (3, 0.4)))
    firm, loose = np.full(3, 0.8), np.full(2, 0.7)
    assert clusters_module._best({2: two, 3: three}, {2: loose, 3: firm}) == 3
    assert clusters_module._best({2: two, 3: three}, {2: loose, 3: loose}) == 2
    assert clusters_module._best({}, {}) is None


def test_worlds_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is as good as what was found counts against it, and so does what was found."""
    matrix, truth = planted(2, 40, seed=8)
    apart, drawn = jaccard(matrix), np.linspace(0, 1, 39)
    values = margin_of(apart, truth + 1), explained(apart, truth + 1)
    worlds = iter([(values[0], one) for one in drawn] * 2)
    monkeypatch.setattr(clusters_module, "_measures", lambda *_: next(worlds))
    cut = replace(clusters_cut(apart), labels=truth + 1)
    found = clusters_module._beside_nulls(matrix, apart, cut, draws=39, rng=np.random.default_rng(0))
    assert [(one.name, one.measure) for one in found[1:3]] == [("shuffled", "explained"), ("one cloud", "margin")]
    for margin, share in (found[:2], found[2:]):
        assert (margin.value, share.value) == pytest.approx(values, abs=1e-6) and margin.p == 1
        assert share.p == (1 + (drawn >= values[1]).sum()) / 40 and 0.1 < values[1] < 0.9
        assert (share.mean, share.high) == pytest.approx((0.5, np.quantile(drawn, 0.95)))


def clusters_cut(apart: np.ndarray) -> cuts_module.Cut:
    return cuts_of(apart, tree_of(apart), least=5, most=2)[2]


def test_planted_families_of_other_sizes_are_found() -> None:
    matrix, truth = planted(3, 120, 14, sizes=0.7)
    made = clusters(matrix, jaccard(matrix), draws=39, resamples=10)
    assert made.cut is not None and made.cut.families == 3 and made.separate
    inside = made.cut.labels > 0
    assert adjusted_rand(truth[inside], made.cut.labels[inside]) >= 0.95 and inside.mean() > 0.9


@pytest.mark.parametrize("sizes", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_one_family_is_one(sizes: float, seed: int) -> None:
    """Also where circuits differ in size: of about 50 terms, from 10 to 120."""
    matrix, _ = planted(1, 100, seed, sizes=sizes)
    assert not clusters(matrix, jaccard(matrix), draws=39, resamples=10).separate


def test_terms_that_hang_together_are_no_families() -> None:
    """A head that is missing takes its edges along: a cloud of many directions, and no two families."""
    for seed in SEEDS:
        matrix, _ = planted(1, 100, seed)
        dense, rng = matrix.toarray(), np.random.default_rng(seed)
        for start in range(0, 48, 6):
            dense[np.ix_(rng.random(100) < 0.3, range(start, start + 6))] = 0
        made = clusters(csr_array(dense), jaccard(csr_array(dense)), draws=39, resamples=10)
        assert not made.separate


def test_a_gradient_is_no_two_families() -> None:
    """Circuits between two extremes, most of them in the middle: any cut is stable, and none is believed."""
    for seed in SEEDS[:2]:
        rng = np.random.default_rng(seed)
        lean = rng.standard_normal((120, 1))
        odds = np.concatenate([np.full((120, 30), 1.5), np.tile(2 * lean, 30), np.tile(-2 * lean, 30)], 1)
        matrix = csr_array((rng.random(odds.shape) < 1 / (1 + np.exp(-odds))).astype(np.float64))
        made = clusters(matrix, jaccard(matrix), draws=39, resamples=10)
        assert made.stable and not made.separate


def test_the_longest_direction_is_the_first_principal_coordinate() -> None:
    matrix, _ = planted(2, 60, 5)
    apart = jaccard(matrix).astype(float)
    centre = np.eye(60) - 1 / 60
    values, vectors = np.linalg.eigh(-centre @ apart @ centre)
    along, share = first_coordinate(jaccard(matrix))
    assert abs(along @ vectors[:, -1]) > 0.999 and share == pytest.approx(values[-1] / values.sum(), rel=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_planted_families_heap_up_in_several_places(seed: int) -> None:
    """Where one family with as much noise does not."""
    for k, heaps in ((1, False), (2, True), (3, True)):
        matrix, _ = planted(k, 150, seed, own=8)
        found = modes_of(jaccard(matrix), draws=99, rng=np.random.default_rng(seed))
        assert (found.p <= 0.05) == heaps, (k, found)


# Dips of known values, by another program (the package diptest 0.12): of `np.random.default_rng(0)`, as the test draws.
DIPS = {12: 0.0746644441, 40: 0.0462329052, 150: 0.0390105992}


def test_dips_are_those_of_another_program() -> None:
    rng = np.random.default_rng(0)
    for n, known in DIPS.items():
        values = rng.normal(size=n) + 3 * (rng.random(n) < 0.5)
        assert dip(values) == pytest.approx(known, abs=1e-9)
        assert dip(-5 * values + 1) == pytest.approx(known, abs=1e-9)
    assert dip(np.array([0.0, 0, 0, 1, 1, 1])) == 0.25  # equal values are one step


def test_one_mode_is_rejected_at_its_level() -> None:
    """Whatever its shape: a uniform distribution has the largest dips of all."""
    rng = np.random.default_rng(1)
    uniform = np.sort([dip(rng.uniform(size=120)) for _ in range(200)])[190]
    for draw in (rng.standard_normal, rng.exponential, lambda size: rng.standard_t(3, size=size)):
        assert not any(dip(draw(size=120)) > uniform for _ in range(20))
    assert sum(dip(rng.uniform(size=120)) > uniform for _ in range(60)) <= 8  # 5 % of them


def test_a_split_is_stable_beyond_chance_and_has_two_modes() -> None:
    """Each of the three is needed, and none of them says that there is a border."""
    matrix, _ = planted(2, 150, 0)
    found = clusters(matrix, jaccard(matrix), draws=19, resamples=5)
    assert found.split and found.separate and found.modes is not None
    cloud = replace(
        found, nulls=tuple(replace(null, p=0.5) if null.name != "shuffled" else null for null in found.nulls)
    )
    chance = replace(found, nulls=tuple(replace(null, p=0.5) for null in found.nulls))
    smooth = replace(found, modes=replace(found.modes, p=0.5))
    loose = replace(found, stability=tuple(0 * own for own in found.stability))
    assert cloud.split and not cloud.separate and not (chance.split or smooth.split or loose.split)
    assert "there is a split" in split_text(cloud) and "--k 2" in split_text(cloud) and not split_text(smooth)
    assert significance_text(cloud).endswith("though a split") and significance_text(chance) == ", not significant"


def test_a_number_may_be_asked_for() -> None:
    matrix, truth = planted(3, 60, seed=15)
    apart = jaccard(matrix)
    two = clusters(matrix, apart, k=2, draws=1, resamples=2)
    assert two.given and two.cut is not None and two.cut.families == 2
    for k, message in (
        (61, "60 circuits cannot be cut into 61"),
        (1, "cannot be cut into 1"),
        (50, "no cut has 50 families of 5 circuits or more"),
    ):
        with pytest.raises(KeyholeError, match=message):
            clusters(matrix, apart, k=k)
    assert truth.max() == 2


# Worlds without families


@pytest.mark.parametrize("weighted", [False, True])
def test_trades_keep_sizes_and_frequencies(weighted: bool) -> None:
    matrix, _ = planted(2, 41, seed=6)  # an odd number: one circuit waits
    rng = np.random.default_rng(0)
    if weighted:
        matrix.data = rng.random(len(matrix.data))
    has = matrix.toarray() > 0
    trades = Trades(has.copy())
    for _ in range(20):
        trades.sweep(rng)
    assert (trades.has.sum(0) == has.sum(0)).all() and (trades.has.sum(1) == has.sum(1)).all()
    assert (trades.has != has).sum() / has.sum() > 0.2
    drawn = shuffled_distances(matrix)
    one, other = drawn(rng), drawn(rng)
    assert (one != other).any() and one.max() <= 1
    mean = jaccard(matrix)
    assert one.mean() > mean.mean(), "what circuits share beyond chance should be gone"


def test_weights_stay_with_their_terms() -> None:
    from keyhole.studies.families.cuts import _dealt

    rng = np.random.default_rng(1)
    matrix = csr_array(np.where(rng.random((12, 6)) < 0.5, rng.random((12, 6)), 0))
    dealt = _dealt(matrix.toarray() > 0, matrix.tocsc(), rng).toarray()
    assert (np.sort(dealt, 0) == np.sort(matrix.toarray(), 0)).all() and (dealt != matrix.toarray()).any()


def test_one_cloud_is_as_wide_as_the_circuits() -> None:
    """Mean distance and the spread along the widest direction, over draws."""
    matrix, _ = planted(2, 80, seed=7)
    apart = jaccard(matrix)
    rng, draw = np.random.default_rng(0), one_cloud(apart)
    drawn = [draw(rng) for _ in range(20)]
    assert np.mean([one.mean() for one in drawn]) == pytest.approx(apart.mean(), rel=0.05)
    widest = [float(np.linalg.eigvalsh(centred(1 - one))[-1]) for one in (apart, *drawn)]
    assert np.mean(widest[1:]) == pytest.approx(widest[0], rel=0.2)


def centred(similar: np.ndarray) -> np.ndarray:
    return similar - similar.mean(0) - similar.mean(1)[:, None] + similar.mean()


def test_measures_of_a_cut() -> None:
    """The margin is a quantile; what is explained is one minus the distances within, by group and size."""
    matrix, truth = planted(2, 40, seed=8)
    apart, labels = jaccard(matrix), truth + 1
    each = sorted(slow_silhouette(apart, labels, i) for i in range(40))
    assert each[7] - 1e-6 <= margin_of(apart, labels) <= each[8] + 1e-6
    within = sum(float(apart[np.ix_(truth == g, truth == g)].sum()) / int((truth == g).sum()) for g in (0, 1))
    assert explained(apart, labels) == pytest.approx(1 - within / (float(apart.sum()) / 40), abs=1e-6)


# Stability


def test_planted_families_are_stable_and_chance_is_not() -> None:
    rng = np.random.default_rng(0)
    for k, least, most in ((3, 0.95, 1.0), (1, 0.0, 0.75)):
        matrix, _ = planted(k, 90, seed=16)
        apart = jaccard(matrix)
        found = cuts_of(apart, tree_of(apart), least=5, most=6)
        steady = stabilities(apart, found, least=5, draws=15, rng=rng)
        best = max(found.values(), key=lambda cut: cut.silhouette).families
        assert least <= steady[best].mean() <= most


def test_families_are_matched_with_the_most_similar() -> None:
    """Of three, two are in a family of two: 2/3; of one, it is in one of two (the other was outside)."""
    assert matches(np.array([1, 1, 1, 2, 0]), np.array([2, 2, 1, 1, 1]), 2) == pytest.approx([2 / 3, 1 / 3])
    assert matches(np.array([1, 1, 2]), np.array([0, 0, 1]), 2).tolist() == [0, 1]


# Agreement


def test_agreement_of_partitions_against_pairs() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        one, other = rng.integers(4, size=30), rng.integers(3, size=30)
        pairs = list(combinations(range(30), 2))
        both = sum(one[a] == one[b] and other[a] == other[b] for a, b in pairs)
        mine, theirs = (sum(x[a] == x[b] for a, b in pairs) for x in (one, other))
        chance = mine * theirs / len(pairs)
        assert adjusted_rand(one, other) == pytest.approx((both - chance) / ((mine + theirs) / 2 - chance))
        assert mutual_information(one, other) == pytest.approx(slow_information(one, other))
        assert adjusted_rand(one, 5 - one) == 1 and mutual_information(one, 5 - one) == pytest.approx(1)


def slow_information(one: np.ndarray, other: np.ndarray) -> float:
    def shares(values: list[Any]) -> dict[Any, float]:
        return {value: values.count(value) / len(values) for value in values}

    joint, rows, columns = (
        shares([*zip(one.tolist(), other.tolist(), strict=True)]),
        *map(shares, (one.tolist(), other.tolist())),
    )
    shared = sum(p * np.log(p / rows[a] / columns[b]) for (a, b), p in joint.items())
    entropy = [-sum(p * np.log(p) for p in x.values()) for x in (rows, columns)]
    return float(shared / np.mean(entropy))


def test_explained_is_the_share_of_an_analysis_of_variance() -> None:
    """On points, distances between groups are what an analysis of variance has."""
    rng = np.random.default_rng(0)
    codes = rng.integers(3, size=40)
    points = rng.standard_normal((40, 5)) + codes[:, None]
    total = ((points - points.mean(0)) ** 2).sum()
    within = sum(((points[codes == g] - points[codes == g].mean(0)) ** 2).sum() for g in range(3))
    assert share_between(squareform(pdist(points)) ** 2, codes) == pytest.approx(1 - within / total)


def test_shuffled_labels_agree_with_nothing() -> None:
    """ARI is about 0, and p as often small as it should be."""
    matrix, truth = planted(2, 80, seed=17)
    apart = jaccard(matrix)
    made = clusters(matrix, apart, k=2, draws=1, resamples=1)
    rng = np.random.default_rng(3)
    labels = {str(i): tuple(map(str, rng.permutation(truth))) for i in range(60)}
    told = agreements(labels, made, apart, permutations=39)
    for measure in ("ari", "nmi", "explained", "nearest"):
        p = np.array([getattr(one, measure).p for one in told])
        assert 0.35 < p.mean() < 0.7 and (p <= 0.05).mean() <= 0.15, measure
    assert abs(np.mean([one.ari.value for one in told if one.ari])) < 0.02
    right = agreements({"truth": tuple(map(str, truth))}, made, apart, permutations=39)[0]
    assert right.ari is not None and right.ari.value >= 0.95 and right.ari.p == 1 / 40
    assert right.tree is not None and right.tree.value == right.ari.value
    assert right.within < right.between and right.nearest.value > 0.95 and right.explained.p == 1 / 40
    same = truth[:, None] == truth[None, :]
    off = ~np.eye(80, dtype=bool)
    assert right.within == pytest.approx(apart[same & off].mean(), abs=1e-6)
    assert right.between == pytest.approx(apart[~same].mean(), abs=1e-6)
    share = right.explained.value
    assert right.pseudo_f == pytest.approx(share / 1 / ((1 - share) / 78))


def test_shuffled_labels_are_counted() -> None:
    """One that is as good as the labels counts against them, and so do the labels."""
    codes, rng = np.arange(8), np.random.default_rng(0)
    assert _beside(lambda one: 0.5, codes, 19, rng) == Beside(0.5, 0.5, 0.5, 1.0)
    values = iter([0.55, *np.linspace(0, 1, 19)])
    told = _beside(lambda one: float(next(values)), codes, 19, rng)
    assert (told.value, told.mean, told.p) == pytest.approx((0.55, 0.5, 10 / 20))
    assert told.high == pytest.approx(np.quantile(np.linspace(0, 1, 19), 0.95))


def test_circuits_outside_count_in_no_agreement() -> None:
    """Two families and three outliers; a label of three values says what its F should be."""
    matrix, truth = planted(2, 60, seed=3)
    strange = csr_array((np.random.default_rng(0).random((3, matrix.shape[1])) < 0.1).astype(np.float64))
    matrix = csr_array(vstack([matrix, strange]))
    apart = jaccard(matrix)
    made = clusters(matrix, apart, k=2, draws=1, resamples=1)
    assert made.cut is not None and made.cut.outside == 3
    labels = {"kind": (*map(str, truth), "0", "1", "0"), "three": tuple("abc"[i % 3] for i in range(63))}
    kind, three = agreements(labels, made, apart, permutations=9)
    assert kind.ari is not None and kind.ari.value == 1 and kind.circuits == 63
    share = three.explained.value
    assert three.pseudo_f == pytest.approx(share / 2 / ((1 - share) / 60)) and three.values == 3


def test_prompts_without_a_label_are_left_out() -> None:
    matrix, truth = planted(2, 40, seed=18)
    apart = jaccard(matrix)
    made = clusters(matrix, apart, k=2, draws=1, resamples=1)
    some = tuple(str(one) if i % 2 == 0 or i < 20 else None for i, one in enumerate(truth))
    told = agreements({"some": some}, made, apart, permutations=19)[0]
    assert told.circuits == 30 and told.values == 2 and told.ari is not None and told.ari.value == 1


# Representatives and averages


def test_representatives_are_nearest_to_all() -> None:
    matrix, truth = planted(3, 50, seed=19)
    apart, prompts = jaccard(matrix), 7 * np.arange(50)
    found = representatives(
        apart, prompts, {"kind": tuple("abc"[t] for t in truth), "name": tuple(map(str, range(50)))}
    )
    assert [one.group for one in found] == ["all", "kind=a", "kind=b", "kind=c"]
    for one, members in zip(found, [np.arange(50), *(np.flatnonzero(truth == g) for g in range(3))], strict=True):
        totals = {i: sum(float(apart[i, j]) for j in members) for i in members}
        best = min(totals, key=lambda i: totals[i])
        assert one.prompt == 7 * best and one.circuits == len(members)
        assert one.mean_distance == pytest.approx(totals[best] / (len(members) - 1), abs=1e-6)
    assert medoid(apart, np.array([4])) == (4, 0.0)


def test_an_average_that_is_no_circuit() -> None:
    """Two families of two: all share one term, and no circuit has what half of them have."""
    dense = np.array([[1, 1, 1, 0, 0, 0], [1, 1, 1, 0, 0, 1], [1, 0, 0, 1, 1, 0], [1, 0, 0, 1, 1, 0]], float)
    rng = np.random.default_rng(0)
    whole = average(csr_array(dense), np.arange(4), "all", rng=rng)
    assert (whole.union, whole.size, whole.circuits, whole.mean_size) == (6, 5, 4, 3.25)
    assert whole.nearest == pytest.approx(3 / 5) and whole.held == pytest.approx(3 / 5) and whole.whole == 0
    assert whole.typical == pytest.approx((3 * 3 / 5 + 3 / 6) / 4, abs=1e-6)
    assert whole.missed == pytest.approx(1 / 16) and whole.variance == pytest.approx(4 * 0.25 / 5)
    one = average(csr_array(dense), np.array([2, 3]), "family 2", rng=rng)
    assert (one.size, one.nearest, one.whole, one.variance, one.again, one.deviation) == (3, 1, 1, 0, 1, 0)


def test_shares_vary_under_bootstrap_as_they_should() -> None:
    rng = np.random.default_rng(0)
    dense = (rng.random((50, 40)) < 0.7).astype(float)
    told = average(csr_array(dense), np.arange(50), "all", rng=rng)
    shares = dense.mean(0)
    kept = shares[shares >= 0.5]
    assert told.deviation == pytest.approx(np.sqrt(kept * (1 - kept) / 50).mean(), rel=0.05)
    close = rng.random((50, 40)) < 0.5  # most terms are in about half of the circuits: the average changes
    own, again = close.mean(0) >= 0.5, []
    for _ in range(400):
        other = close[rng.integers(50, size=50)].mean(0) >= 0.5
        again.append((own & other).sum() / (own | other).sum())
    told = average(csr_array(close.astype(float)), np.arange(50), "all", rng=rng)
    assert told.again == pytest.approx(np.mean(again), abs=0.02) and told.again < 0.9


def test_families_are_nearer_to_their_average_than_random_groups() -> None:
    matrix, truth = planted(3, 90, seed=20)
    told = averages(matrix, [(f"family {g}", np.flatnonzero(truth == g)) for g in range(3)])
    assert [one.group for one in told[:3]] == ["all", "family 0", "as many at random (family 0)"]
    for own, random in zip(told[1::2], told[2::2], strict=True):
        assert own.circuits == random.circuits == 30
        assert own.typical > random.typical + 0.1 and own.missed < random.missed


# All of it, on a store


def test_families_of_a_store(found: Families, store: Store) -> None:
    truth = store.table("prompts", columns=["label_kind"])["label_kind"].to_pylist()
    assert found.clustering.separate and len(found.families) == 3 and found.prompts.tolist() == list(range(90))
    codes = np.unique(truth, return_inverse=True)[1]
    assert adjusted_rand(codes, found.labels) >= 0.95
    for family in found.families:
        kinds = [truth[i] for i in family.members]
        assert family.common["kind"] == (max(set(kinds), key=kinds.count), kinds.count(kinds[0]) / len(kinds))
        assert family.representative in family.members and family.size == len(family.members)
        assert store.circuit(family.representative).edges
    assert {one.label for level in found.levels for one in level.agreement} == {"coin", "kind", "template"}
    by_label = {one.label: one for one in found.levels[0].agreement}
    assert by_label["kind"].ari is not None and by_label["kind"].ari.value >= 0.95
    assert by_label["coin"].ari is not None and by_label["coin"].ari.p > 0.01
    assert [level.granularity for level in found.levels] == ["edges", "heads", "channels"]
    apart, level, best = found.distances, found.levels[0], found.levels[0].clustering.best
    assert level.mean_distance == pytest.approx(apart[np.triu_indices(90, 1)].mean(), abs=1e-6) and best is not None
    for family in found.families:
        members = np.array(family.members)
        own = apart[np.ix_(members, members)][np.triu_indices(family.size, 1)]
        assert family.mean_distance == pytest.approx(own.mean(), abs=1e-6)
        assert family.stability == level.clustering.stability[best][family.number - 1]
        each = [slow_silhouette(apart, found.labels, i) for i in members]
        assert family.silhouette == pytest.approx(np.mean(each), abs=1e-6)
    assert "3 families: other prompts would give the same, and" in str(found) and "kind b 100%" in str(found)


def test_the_verdict_is_a_plain_sentence_first(found: Families) -> None:
    """What is believed, what was only asked for, what is not stable, and what chance gives as well."""
    own = found.clustering
    loose = replace(own, stability=tuple(0 * one for one in own.stability))
    chance = replace(own, nulls=tuple(replace(null, p=0.5) for null in own.nulls))

    def said(clustering: Clustering) -> str:
        first, *others = found.levels
        return plain_verdict(replace(found, levels=(replace(first, clustering=clustering), *others)))

    assert verdict(found).startswith(said(own)) and said(own).startswith(
        "3 families: other prompts would give the same"
    )
    assert said(loose).startswith("One family: the best cut, into 3, is not stable") and "clearly" not in said(loose)
    assert said(chance).endswith("into 3, is not clearly better than cuts where there are no families.")
    assert said(replace(chance, given=True)).startswith("3 families, as asked, but this cut is not clearly better")
    assert said(replace(own, best=None)).startswith("One family: no cut of the tree")
    assert not any(digit in said(one).replace("3", "") for one in (own, loose, chance) for digit in "0123456789")


def test_the_rest_is_assigned(found: Families, store: Store) -> None:
    """Thirty circuits are not cut; they go where they would have been."""
    told = keyhole.families(store, granularity="edges", most=60, seed=1)
    assert told.about.sampled == len(told.sample) == 60 and told.rest is not None and told.rest.circuits == 30
    assert told.prompts.tolist() == list(range(90)) and sum(one.size for one in told.families) >= 85
    inside = told.labels > 0
    assert adjusted_rand(found.labels[inside], told.labels[inside]) >= 0.95
    assert told.rest.held_out == 12 and told.rest.agreement >= 0.9
    assert "30 circuits beyond the sample went to the nearest family" in str(told)


def test_right_answers_of_one_family(organism: Model, tmp_path: Path) -> None:
    """Prompts that the model gets wrong are left out; a cut that nobody believes is not made."""
    matrix, _ = planted(1, 26, seed=26)
    circuit = example_circuit(organism)
    store = planted_store(tmp_path / "store", circuit, matrix, [{"same": "x"}] * 26, wrong=(3, 8))
    found = keyhole.families(store, granularity="edges")
    assert found.prompts.tolist() == [i for i in range(26) if i not in (3, 8)]
    level = found.levels[0].clustering
    assert level.cut is not None and level.cut.families > 1 and not level.separate and not level.given
    assert found.labels.tolist() == [1] * 24 and found.families[0].size == 24 and "One family" in str(found)


def test_held_out_circuits_may_go_astray() -> None:
    """Those of planted families get where they were; if labels say nothing, no better than chance."""
    matrix, truth = planted(2, 100, seed=24)
    apart = jaccard(matrix)
    held, agreement = rest._held_out(apart, truth + 1, np.random.default_rng(0))
    assert held == 20 and agreement == 1
    dealt = [rest._held_out(apart, np.random.default_rng(i).permutation(truth) + 1, np.random.default_rng(i))[1]
             for i in range(5)]  # fmt: skip
    assert abs(np.mean(dealt)) < 0.3


def test_far_circuits_are_not_assigned() -> None:
    means = np.array([[0.2, 0.6], [0.6, 0.3], [0.9, 0.8]])
    assert rest._nearest(means.astype(np.float32), np.array([1, 2]), 0.5).tolist() == [1, 2, 0]


def test_saved_in_every_form(found: Families, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = keep_saved(monkeypatch)
    for suffix in ("png", "svg"):
        path = found.save(tmp_path / f"map.{suffix}")
        check_drawn(figures[path], path)
    record = json.loads(found.save(tmp_path / "all.json").read_text())
    assert record["separate"] is True and [one["number"] for one in record["families"]] == [1, 2, 3]
    assert record["levels"][0]["nulls"][0]["name"] == "shuffled" and record["outside"] == []
    rows = list(csv.DictReader(found.save(tmp_path / "all.csv").open()))
    assert [int(row["family"]) for row in rows] == found.labels.tolist()
    assert sum(int(row["representative"]) for row in rows) == 3
    page = found.save(tmp_path / "page.html").read_text()
    assert "Families of circuits" in page and "data:image/png;base64," in page and "<script" not in page
    with pytest.raises(KeyholeError, match="should end in"):
        found.save(tmp_path / "all.txt")


def test_real_circuits_by_influence_and_role(organism: Model, tmp_path: Path) -> None:
    made = keyhole.bulk(ioi(24, seed=5), organism, out=tmp_path / "store")
    plain = keyhole.families(made, granularity="heads", k=2)
    other = keyhole.families(made, granularity="heads", role=True, weighted=True, side=False, k=2)
    assert (
        other.levels[0].terms > plain.levels[0].terms and other.levels[0].mean_distance > plain.levels[0].mean_distance
    )
    assert "weighted by influence" in str(other) and "with the roles of tokens" in str(other)
    assert {one.group for one in plain.representatives} >= {"all", "order=ABBA", "order=BABA"}


def test_bad_requests(store: Store) -> None:
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: keyhole.families(store, where={"correct": False}), "has 0 circuits that are as correct=False"),
        (lambda: keyhole.families(store, where={"label_none": "x"}), "no column 'label_none'"),
        (lambda: keyhole.families(store, most=5), "most is 5, but should be at least 10"),
        (lambda: keyhole.families(store, k=91), "90 circuits cannot be cut into 91"),
        (lambda: keyhole.families(store, weighted=True), "no influence to weigh by"),
    ]
    for call, message in cases:
        with pytest.raises(KeyholeError, match=message):
            call()


# The command


def test_command(store: Store, found: Families, tmp_path: Path) -> None:
    """In another process, the same numbers."""
    at = str(store.path)
    told = typed("families", at, "--granularity", "edges", "--json", "--out", "map.png", folder=tmp_path)
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout) == json.loads(json_text(found.record()))
    assert (tmp_path / "map.png").stat().st_size > 10_000
    few = typed("families", at, "--where", "label_kind=a", "--all", "--out", "few.csv", folder=tmp_path)
    assert few.returncode == 0 and "30 of 90 circuits (label_kind=a) from 90 prompts" in few.stdout
    assert "One family" in few.stdout and len((tmp_path / "few.csv").read_text().splitlines()) == 31


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--where", "label_kind=z"], "has 0 circuits"),
        (["--where", "label_none=z"], "no column 'label_none'"),
        (["--k", "80"], "no cut has 80 families"),
        (["--out", "map.txt"], "should end in"),
        (["--granularity", "nodes"], "'nodes' is not one of"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(store: Store, tmp_path: Path, options: list[str], message: str) -> None:
    done = typed("families", str(store.path), *options, folder=tmp_path)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    done = typed("families", str(tmp_path), folder=tmp_path)
    assert done.returncode == 2 and "is no store" in done.stderr
