"""Slides on families: verdicts follow planted effects and nothing else; untrained models show none."""

import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from scipy.sparse import csr_array

from conftest import SMOLLM2
from drawn import check_drawn, keep_saved
from keyhole import KeyholeError
from keyhole.errors import MissingModelError
from keyhole.models.load import load
from keyhole.models.organism import folder as organism_folder
from keyhole.store.settings import Tracing
from keyhole.studies.comparison.exclusive import Cell, Exclusive
from keyhole.studies.comparison.signals import Aggregated, Place, compare_aggregated
from keyhole.studies.families import Agreement, Level, agreements, averages, clusters, jaccard
from keyhole.tasks import ioi, published_ioi
from keyhole.tasks.example import Example
from keyhole_papers import talk
from keyhole_papers.catalogue import CATALOGUE
from keyhole_papers.experiment import Attempt, Experiment, Job
from keyhole_papers.results import Verdict
from keyhole_papers.runner import Task, experiments
from keyhole_papers.svt import LEAST
from keyhole_papers.talk import Prompts, families, names, orders, representatives
from keyhole_papers.talk.families import Mixed, Split, tells_of
from keyhole_papers.talk.orders import Compared, Removed, shuffled_of
from keyhole_papers.talk.representatives import Representatives, stood_for
from planted import planted
from tiny import Sizes, tiny

pytestmark = pytest.mark.xdist_group("talk families")  # their studies are made once
MODULES = (families, orders, representatives)
OTHERS = ("talk-20", "talk-21")  # of names: test_talk_names has them
RUNS: dict[str, Attempt] = {id: run for mod in MODULES for id, run in mod.RUNS.items() if id not in OTHERS}
POSITIVE = ("reproduced", "partly")
GPT2, PYTHIA, OTHER = (
    Prompts(name, 100, 99, 98, "100 prompts") for name in ("gpt2", "EleutherAI/pythia-160m", "a/stand-in")
)


def verdicts(id: str, make: Callable[[Prompts], Any], *, real: Prompts = GPT2) -> tuple[Verdict, Verdict]:
    """How a record is judged if it is the published model's, and if it is another's; told and drawn as well."""
    run, found = RUNS[id], []
    assert isinstance(run, Experiment)
    for of in (real, OTHER):
        record = make(of)
        told = run.findings(record)
        assert told.measured and "nan" not in told.measured and ("stood in" in told.note) == (of is OTHER)
        found.append(told.verdict)
    run.draw(make(real))
    return found[0], found[1]


SHOWN, PART, NOTHING = ("reproduced", "partly"), ("partly", "partly"), ("not", "needs a model")


# What families follow


def levels(matrix: csr_array, values: dict[str, tuple[str, ...]]) -> tuple[Level, ...]:
    apart = jaccard(matrix)
    made = clusters(matrix, apart, draws=39, resamples=10)
    told = agreements(values, made, apart, permutations=39)
    return (Level("channels", matrix.shape[1], 40.0, float(apart.mean()), made, told),)


def split(k: int, values: Callable[[np.ndarray], dict[str, tuple[str, ...]]], seed: int = 31) -> Callable[..., Split]:
    matrix, truth = planted(k, 120, seed)
    labels = values(truth)
    found = levels(matrix, labels)
    cut = found[0].clustering.cut
    tells = {} if cut is None else {name: tells_of(own, cut.labels) for name, own in labels.items()}
    return lambda of: Split(of, found, tells)


def by_order(truth: np.ndarray) -> dict[str, tuple[str, ...]]:
    """Wordings have both orders alike."""
    wordings = np.arange(len(truth)) // 2 % 15
    orders = truth % 2 if truth.any() else np.arange(len(truth)) % 2
    return {"order": tuple(np.array(["ABBA", "BABA"])[orders]), "wording": tuple(map(str, wordings))}


def by_wording(truth: np.ndarray) -> dict[str, tuple[str, ...]]:
    """Each wording is of one family, in both orders."""
    wordings = np.arange(len(truth)) // 4 % 7 + 7 * truth
    return {
        "order": tuple(np.array(["ABBA", "BABA"])[np.arange(len(truth)) // 2 % 2]),
        "wording": tuple(map(str, wordings)),
    }


def shuffled(truth: np.ndarray) -> dict[str, tuple[str, ...]]:
    return by_order(np.random.default_rng(2).permutation(truth))


def test_families_that_follow_the_order_of_names() -> None:
    own = split(2, by_order)
    assert own(GPT2).separate
    assert verdicts("talk-14", own) == SHOWN
    assert verdicts("talk-15", own, real=PYTHIA) == NOTHING
    assert families.found_wording(own(GPT2)).verdict == "needs a model"  # GPT-2 says nothing of Pythia
    assert verdicts("talk-14", split(4, by_order)) == PART  # an order has two families: not the split itself


def test_families_that_follow_the_wording() -> None:
    own = split(2, by_wording)
    assert verdicts("talk-15", own, real=PYTHIA) == SHOWN
    assert verdicts("talk-14", own) == NOTHING


@pytest.mark.parametrize(("k", "values"), [(2, shuffled), (1, by_order), (1, by_wording)])
def test_nothing_follows_shuffled_labels_or_one_family(k: int, values: Any) -> None:
    own = split(k, values)
    assert own(GPT2).separate == (k == 2)
    assert verdicts("talk-14", own) == verdicts("talk-15", own, real=PYTHIA) == NOTHING


def test_every_condition_of_a_family_counts() -> None:
    """A cut that is not believed, an order that wording tells better, or distances that do not differ."""
    own = split(2, by_order)(GPT2)
    level, order = own.levels[0], own.agreement("order")
    assert order is not None and order.ari is not None
    doubted = replace(level, clustering=replace(level.clustering, nulls=()))
    chance = replace(order, explained=replace(order.explained, p=0.3))
    alone = replace(order, nearest=replace(order.nearest, p=0.3))
    weak = {**own.tells, "order": replace(own.tells["order"], value=0.49)}
    better = {**own.tells, "wording": replace(own.tells["order"], value=1.1)}
    for record in (
        replace(own, levels=(doubted,)),
        replace(own, levels=(replace(level, agreement=(chance,)),)),
        replace(own, levels=(replace(level, agreement=(alone,)),)),
        replace(own, levels=(replace(level, agreement=()),)),
        replace(own, tells=weak),
        replace(own, tells=better),
        replace(own, tells={}),
    ):
        assert families.found_order(record).verdict == "not"
    rough = replace(order, ari=replace(order.ari, value=0.49))
    assert families.found_order(replace(own, levels=(replace(level, agreement=(rough,)),))).verdict == "partly"


def test_how_well_a_label_tells_a_family() -> None:
    """Certain: 1; nothing to do with it: about 0; what is outside of families does not count."""
    cut = np.array([1, 2] * 40)
    assert tells_of(("x", "y") * 40, cut).value == pytest.approx(1)
    rng = np.random.default_rng(0)
    chance = [tells_of(tuple(rng.permutation(["x", "y"] * 40)), cut, draws=39) for _ in range(40)]
    assert abs(np.mean([one.value for one in chance])) < 0.05 and 0.3 < np.mean([one.p for one in chance]) < 0.75
    half = tells_of(("x", "y") * 20 + ("z",) * 40, cut)  # z has both families: 60 of 80 are told, by chance 40 and more
    assert 0.3 < half.value < 0.5 and half.p == 0.005
    four = np.array([1, 2, 3, 4] * 20)  # two families of each value: the finer tells the coarser
    assert tells_of(("x", "y") * 40, four).value == tells_of(("1", "2", "3", "4") * 20, cut).value == 1
    outside = np.concatenate([cut, np.zeros(10, int)])
    assert tells_of(("x", "y") * 40 + ("x",) * 10, outside).value == pytest.approx(1)
    assert tells_of(("x",) * 80, cut).value <= 0 and tells_of(("x",) * 80, cut).p == 1
    assert tells_of(("x", "y") * 40, np.ones(80, int)).p == 1


# Averages


def mixed(k: int, believed: bool = True) -> Callable[[Prompts], Mixed]:
    matrix, truth = planted(max(k, 2) if k else 1, 90, 33)
    groups = [(f"family {i + 1}", np.flatnonzero(truth == i)) for i in range(k)]
    found = averages(matrix, groups, seed=1)
    return lambda of: Mixed(of, believed, found)


def test_averages_mix_families() -> None:
    own = mixed(3)
    assert verdicts("talk-13", own) == SHOWN
    assert verdicts("talk-13", mixed(3, believed=False)) == verdicts("talk-13", mixed(0)) == NOTHING
    whole, *others = own(GPT2).averages
    for core in (replace(whole, held=1.0), replace(whole, nearest=1.0)):  # a prompt has all of it, or is it
        assert families.found_average(Mixed(GPT2, True, (core, *others))).verdict == "not"
    family, random, *rest = others
    for odd in (replace(family, union=10 * family.union), replace(family, typical=random.typical)):
        assert families.found_average(Mixed(GPT2, True, (whole, odd, random, *rest))).verdict == "not"


def test_random_groups_are_no_families() -> None:
    """A cut that is believed but has nothing to do with the circuits mixes nothing."""
    matrix, _ = planted(3, 90, 33)
    order = np.random.default_rng(4).permutation(90)
    found = averages(matrix, [(f"family {i}", np.sort(order[i::3])) for i in range(3)], seed=1)
    dense = [a.union / a.mean_size < b.union / b.mean_size for a, b in zip(found[1::2], found[2::2], strict=True)]
    alike = [a.typical > b.typical for a, b in zip(found[1::2], found[2::2], strict=True)]
    assert not all(dense) and not all(alike)
    assert verdicts("talk-13", lambda of: Mixed(of, True, found)) == NOTHING


# Representatives


def groups_of(distances: np.ndarray, seed: int = 0) -> Callable[[Prompts], Representatives]:
    rng, n = np.random.default_rng(seed), len(distances)
    halves = np.arange(0, n, 2), np.arange(1, n, 2)
    prompts = 100 + np.arange(n)
    found = tuple(stood_for(distances, own, f"group {i}", prompts, rng=rng) for i, own in enumerate(halves))
    return lambda of: Representatives(of, found)


def test_a_definition_decides_nothing() -> None:
    """Central circuits stand for others; where all are as far apart, none does."""
    points = np.random.default_rng(3).standard_normal((80, 2))
    apart = np.linalg.norm(points[:, None] - points[None], axis=-1)
    assert verdicts("talk-16", groups_of(apart)) == ("untold", "untold")
    noise = np.random.default_rng(5).normal(1, 0.01, (80, 80))
    same = (noise + noise.T) / 2
    np.fill_diagonal(same, 0)
    assert verdicts("talk-16", groups_of(same)) == NOTHING
    assert verdicts("talk-16", lambda of: Representatives(of, ())) == NOTHING


def test_halves_are_measured_on_what_they_were_not_chosen_from() -> None:
    """Against a slow look at the same splits."""
    points = np.random.default_rng(6).standard_normal((24, 3))
    apart = np.linalg.norm(points[:, None] - points[None], axis=-1)
    members = np.arange(3, 22)
    found = stood_for(apart, members, "some", 10 * np.arange(24), rng=np.random.default_rng(7), splits=9)
    rng, held, others, again = np.random.default_rng(7), [], [], []
    whole = min(members, key=lambda i: sum(apart[i, j] for j in members))
    for _ in range(9):
        order = list(rng.permutation(members))
        half, rest = order[:9], order[9:]
        chosen = min(half, key=lambda i: sum(apart[i, j] for j in half))
        to_rest = {i: sum(apart[i, j] for j in rest) / len(rest) for i in half}
        held.append(to_rest.pop(chosen))
        others.append(sum(to_rest.values()) / len(to_rest))
        again.append((apart[chosen, whole], apart[chosen, whole] == 0))
    assert found.prompt == 10 * whole and found.circuits == 19
    assert found.held_out.mean == pytest.approx(np.mean(held)) and found.member.mean == pytest.approx(np.mean(others))
    assert found.nearer == pytest.approx(np.mean([a < b for a, b in zip(held, others, strict=True)]))
    assert (found.again, found.same) == pytest.approx(tuple(np.mean(again, 0)))
    pairs = [apart[i, j] for i in members for j in members if i != j]
    assert found.typical == pytest.approx(np.mean(pairs))
    assert found.mean == pytest.approx(sum(apart[whole, j] for j in members) / 18)


# Signals


@cache
def agreement(apart: bool) -> Agreement:
    matrix, truth = planted(2, 60, 35)
    values = truth if apart else np.random.default_rng(1).permutation(truth)
    distances = jaccard(matrix)
    made = clusters(matrix, distances, k=2, draws=1, resamples=1)
    return agreements({"order": tuple(map(str, values))}, made, distances, permutations=39)[0]


def told(cosines: dict[Place, float], order: int, seed: int, noise: float = 0.02) -> Aggregated:
    """A circuit whose dest signals have these cosines between orders; src signals are the same in both."""
    rng = np.random.default_rng(seed)
    made: dict[str, dict[Place, np.ndarray]] = {"dest": {}, "src": {}}
    for number, (place, cosine) in enumerate(sorted(cosines.items())):
        first, second = np.eye(16)[2 * number % 16], np.eye(16)[(2 * number + 1) % 16]
        turned = first if order == 0 else cosine * first + math.sqrt(1 - cosine**2) * second
        for side, vector in (("dest", turned), ("src", second)):
            noisy = vector + noise * rng.standard_normal(16)
            made[side][place] = noisy / np.linalg.norm(noisy)
    return Aggregated(made["dest"], made["src"])


def mover(layer: int, head: int) -> Place:
    return Place(layer, head, "END", "IO")


def compared(
    cosines: dict[Place, float],
    *,
    apart: bool = True,
    bare: float = 1.0,
    noise: float = 0.02,
    movers: tuple[tuple[int, int], ...] = ((9, 9), (9, 6)),
) -> Callable[[Prompts], Compared]:
    every = [[told(cosines, order, 50 * order + i, noise) for i in range(13)] for order in range(2)]
    others = every[0][1:], every[1][1:]
    real = compare_aggregated((every[0][0], every[1][0]), others, roles=True)
    cosines_bare = {(row.place, row.side): bare for row in real.rows}
    shuffled = shuffled_of(others, seed=0)

    def record(of: Prompts) -> Compared:
        own = frozenset([orders.MOVER] if of is GPT2 else movers)
        return Compared(of, agreement(apart), (3, 4), real, cosines_bare, shuffled, own)

    return record


ALIKE = {Place(*head, "S2", "S1"): 1.0 for head in orders.ALIKE}


def test_heads_that_are_told_the_same() -> None:
    assert verdicts("talk-17", compared(ALIKE)) == SHOWN
    assert verdicts("talk-17", compared(ALIKE, apart=False)) == NOTHING  # both orders are one family
    one_turned = {**ALIKE, Place(7, 0, "S2", "S1"): -0.5}
    assert verdicts("talk-17", compared(one_turned)) == ("partly", "needs a model")  # two of three; too few
    turned = dict.fromkeys(ALIKE, 0.3)
    assert verdicts("talk-17", compared(turned)) == NOTHING
    assert (
        orders.found_alike(compared(ALIKE, bare=0.5)(OTHER)).verdict == "needs a model"
    )  # alike by their biases alone
    others = {Place(layer, 1, "S2", "S1"): 1.0 for layer in (1, 2, 3)}
    assert verdicts("talk-17", compared(others)) == ("not", "partly")  # not the published heads
    assert orders.found_alike(compared(ALIKE, noise=0.5)(GPT2)).verdict == "not"  # as within, but far from 1


def test_name_movers_that_are_told_something_else() -> None:
    negative = compared({mover(9, 9): -0.4, **ALIKE})
    assert verdicts("talk-18", negative) == SHOWN
    assert verdicts("talk-18", compared({mover(9, 9): -0.4}, apart=False)) == NOTHING
    assert verdicts("talk-18", compared({mover(9, 9): 0.5})) == PART  # other than within, not negative
    assert verdicts("talk-18", compared({mover(9, 9): 1.0})) == NOTHING
    assert verdicts("talk-18", compared({mover(9, 6): -0.4})) == ("not", "partly")
    suppressor = compared({mover(9, 9): 1.0, mover(10, 7): -0.4}, movers=((9, 9),))  # looks at IO, and pushes S
    assert orders.found_mover(suppressor(OTHER)).verdict == "needs a model"
    elsewhere = {Place(9, 9, "END", "S2"): -0.4}
    assert verdicts("talk-18", compared(elsewhere)) == NOTHING
    assert verdicts("talk-18", compared({mover(9, 9): -0.1}, noise=2.0)) == NOTHING  # noise alone
    lucky = negative(GPT2)
    assert orders.found_mover(replace(lucky, shuffled=(lucky.real,))).verdict == "not"  # random splits show as much


def test_random_splits_show_nothing() -> None:
    """Groups that are dealt without regard to order: sizes as they were, and nothing different."""
    record = compared({mover(9, 9): -0.4, **ALIKE})(GPT2)
    assert len(record.shuffled) == 19 and {one.members for one in record.shuffled} == {(11, 11)}
    assert not any(orders.different(orders.movers(one)) for one in record.shuffled)
    assert shuffled_of(([], []), seed=0) == ()


# Exclusive edges


def removed(
    own: float, other: float, random: float, prompts: int = 12, *, b: float | None = None, places: float = 1.0
) -> Callable[[Prompts], Removed]:
    """a's edges change answers by this much in both orders, b's the other way round; or by `b` everywhere."""
    rng, cells = np.random.default_rng(9), []
    for on in ("a", "b"):
        for edges in ("a", "b"):
            effect = own if edges == on else other
            effect = b if b is not None and edges == "b" else effect
            for what, mean in (("exclusive", effect), ("shared", other), ("random", random)):
                placed = 1.0 if edges == on else places
                cells.append(Cell(edges, on, what, tuple(mean + 0.02 * rng.standard_normal(prompts)), placed))
    found = Exclusive((), (), (0, 0), (0, 0), (0, 0), "local", tuple(cells))
    return lambda of: Removed(of, (1, 2), found)


def test_edges_act_on_their_own_order() -> None:
    assert verdicts("talk-26", removed(-0.5, -0.1, 0.0)) == SHOWN
    assert verdicts("talk-26", removed(-0.5, -0.1, 0.0, b=-0.3)) == PART  # b's hurt both alike
    assert verdicts("talk-26", removed(-0.1, -0.5, 0.0)) == NOTHING  # the other order more
    assert verdicts("talk-26", removed(-0.5, -0.5, 0.0)) == NOTHING
    assert verdicts("talk-26", removed(-0.5, -0.1, -0.5)) == NOTHING  # random channels do as much
    assert verdicts("talk-26", removed(-0.5, -0.1, 0.0, prompts=LEAST - 1)) == NOTHING
    assert verdicts("talk-26", removed(-0.5, -0.3, 0.0, places=0.9)) == SHOWN
    assert verdicts("talk-26", removed(-0.5, -0.3, 0.0, places=0.55)) == NOTHING  # fewer edges, as much each


# The runners


@pytest.fixture(scope="module", params=[("gpt2", "gpt2"), ("gpt_neox", "pythia-160m"), ("gemma2", "gemma-2-2b")])
def untrained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Random weights in a folder that is called like a published model."""
    variant, name = request.param
    place = tmp_path_factory.mktemp("models") / name
    tiny(variant, Sizes(vocab=len(load().tokenizer))).save_pretrained(place)
    for path in Path(organism_folder()).glob("*token*"):
        shutil.copy(path, place)
    return str(place)


@pytest.fixture
def anything(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Wrong answers are traced, too, as if they were right."""
    monkeypatch.setattr(talk, "TRACING", Tracing(through="heads", wrong="keep"))
    monkeypatch.setattr(talk, "_WHERE", {"status": "circuit"})
    monkeypatch.setattr(talk, "_FEWEST", 10)  # many of their circuits have no head
    monkeypatch.setattr(talk, "require_solved", lambda *args, **options: None)
    yield
    talk.study.cache_clear()
    orders.compared_of.cache_clear()


def test_untrained_models_are_refused(untrained: str, tmp_path: Path) -> None:
    with pytest.raises(KeyholeError, match=r"no more than by chance|answers \d+ of 60 prompts right"):
        RUNS["talk-14"](Job(tmp_path, model=untrained, quick=True))


@pytest.mark.usefixtures("anything")
def test_untrained_models_show_nothing(untrained: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every runner to its end, also where answers count as right; each study is made once."""
    saved, made = keep_saved(monkeypatch), []
    traced = talk.bulk
    monkeypatch.setattr(talk, "bulk", lambda *args, **options: made.append(1) or traced(*args, **options))
    for id, run in RUNS.items():
        assert isinstance(run, Experiment)
        job = Job(tmp_path / id, model=untrained, quick=True)
        job.folder.mkdir()
        record = run.measure(job)
        told = run.findings(record)
        verdict = told.verdict
        assert verdict in get_args(Verdict) and verdict not in POSITIVE, (id, told.measured)
        assert told.measured and told.numbers
        assert "Prompts: 60 held-out indirect objects in the organism's own wordings (balanced)." in told.note
        for name in run.result(record, job.folder).figures if untrained.endswith("gpt2") else ():
            check_drawn(saved[job.folder / name], job.folder / name)
    assert made == [1]


def test_the_organism_says_what_it_stood_in_for(tmp_path: Path) -> None:
    for id, run in RUNS.items():
        assert isinstance(run, Experiment)
        record = run.measure(Job(tmp_path, quick=True))
        told = run.findings(record)
        assert told.verdict in ("partly", "untold", "needs a model") and "The built-in organism" in told.note
        assert ("Pythia-160M" in told.note) == (id == "talk-15")


def test_families_are_of_all_published_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Example, ...]] = []

    def stop(prompts: tuple[Example, ...], *args: Any, **options: Any) -> None:
        asked.append(prompts)
        raise KeyholeError("enough")

    monkeypatch.setattr(talk, "bulk", stop)
    real = Job(tmp_path, model=str(SMOLLM2))
    for study_of in (lambda: talk.study.__wrapped__(real), lambda: names._names.__wrapped__(real, tmp_path)):
        with pytest.raises(KeyholeError, match="enough"):
            study_of()
    assert list(asked[0]) == published_ioi(3000)
    assert {one.labels["wordings"] for one in asked[1]} == {"published"} and len(asked[1]) == 600
    with pytest.raises(KeyholeError, match="enough"):
        talk.study.__wrapped__(Job(tmp_path))
    assert list(asked[2]) == ioi(3000, design="balanced", held_out=True)


def test_few_right_answers_are_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(talk, "_FEWEST", 61)
    with pytest.raises(MissingModelError, match=r"the built-in organism answers 5\d of 60 prompts right"):
        talk.study.__wrapped__(Job(tmp_path, quick=True))


def test_all_are_registered_and_share_a_process(tmp_path: Path) -> None:
    """Otherwise each would trace all prompts again."""
    found = experiments()
    assert set(RUNS) == {f"talk-{i}" for i in (13, 14, 15, 16, 17, 18, 26)}
    assert all(found[id] is run and CATALOGUE[id].later is None and CATALOGUE[id].needs for id, run in RUNS.items())
    tasks = [Task(CATALOGUE[id], Job(tmp_path), {}, tmp_path, run) for id, run in RUNS.items()]
    assert {task.family for task in tasks} == {"keyhole_papers.talk"}
