"""Does a circuit for each group keep more than one for all? Against plain comparisons of one group, and by tasks."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import keyhole
from commands import keyhole as typed
from keyhole import KeyholeError, Model
from keyhole.studies.curves.cohort import CohortQuestion, StandIn, questions_from
from keyhole.studies.curves.curves import compare_methods
from keyhole.studies.curves.settings import CurveSettings
from keyhole.studies.curves.split_record import ALL, Splits, random_name
from keyhole.studies.curves.splits import compare_splits, splits
from keyhole.tasks import examples

pytestmark = pytest.mark.xdist_group("splits")  # what they share is computed once
PATCHED = StandIn("counterfactual")
SHARE = CurveSettings(methods=("share",), ranking="absolute", draws=4)
Halves = tuple[list[CohortQuestion], list[CohortQuestion]]


def of_task(organism: Model, task: str, n: int) -> list[CohortQuestion]:
    drawn = questions_from(organism, examples(task, organism, 4 * n, 3), counterfactuals=True)
    return [question for question in drawn if question.counterfactual is not None][:n]


@pytest.fixture(scope="module")
def mixed(organism: Model) -> Halves:
    """Eight prompts of each of two tasks, in either half."""
    two = [of_task(organism, task, 16) for task in ("ioi", "greater_than")]
    return [q for some in two for q in some[::2]], [q for some in two for q in some[1::2]]


TASK = ["ioi"] * 8 + ["years"] * 8
NOTHING = ["even", "odd"] * 8  # says nothing of a prompt


@pytest.fixture(scope="module")
def by_task(mixed: Halves) -> Splits:
    labels = {"task": TASK, "number": NOTHING}
    return compare_splits(mixed, (labels, labels), SHARE, stand_in=PATCHED)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, organism: Model) -> keyhole.store.Store:
    return keyhole.bulk("ioi", organism, n=60, out=tmp_path_factory.mktemp("splits") / "ioi.store")


def sorted_answers(result: Splits, name: str) -> np.ndarray:
    """Answers at every share, whatever the order of the prompts is."""
    return np.sort(result.curves[name].answers[0], axis=-1)


def test_one_circuit_and_those_of_groups_are_plain_curves(mixed: Halves, by_task: Splits) -> None:
    """Each group's answers are those of a comparison that knows of no other group."""
    shown, tried = mixed
    whole = compare_methods(shown, tried, SHARE, stand_in=PATCHED)
    assert np.allclose(sorted_answers(by_task, ALL), np.sort(whole["share"].answers[0]), atol=1e-4)
    assert by_task.cmd(ALL)[0] == pytest.approx(whole.cmd("share")[0], abs=1e-5)
    halves = [compare_methods(shown[some], tried[some], SHARE, stand_in=PATCHED) for some in (slice(8), slice(8, 16))]
    both = np.concatenate([half["share"].answers[0] for half in halves], -1)
    assert np.allclose(sorted_answers(by_task, "task"), np.sort(both), atol=1e-4)


def test_tasks_have_circuits_of_their_own_and_even_numbers_have_not(by_task: Splits) -> None:
    value, low, _ = by_task.gain("task", random_name("task"), each=True)
    assert low > 0 and by_task.draws_beaten("task", each=True) == (4, 4)
    assert by_task.gain("task", each=True)[1] > 0  # and better than one circuit
    nothing = by_task.gain("number", random_name("number"), each=True)[0]
    assert abs(nothing) < value and by_task.gain("number", each=True)[1] < 0  # fewer prompts to average over


def test_random_splits_have_the_same_sizes_and_are_drawn_anew(mixed: Halves) -> None:
    uneven = ["a"] * 12 + ["b"] * 4
    result = compare_splits(mixed, ({"x": uneven}, {"x": uneven}), SHARE, stand_in=PATCHED)
    assert result.splits[0].groups == (("a", 12, 12), ("b", 4, 4))
    drawn = result.curves[random_name("x")].answers
    assert len(drawn) == 4 and not any(np.allclose(drawn[0], other) for other in drawn[1:])
    again = compare_splits(mixed, ({"x": uneven}, {"x": uneven}), SHARE, stand_in=PATCHED)
    assert np.array_equal(drawn, again.curves[random_name("x")].answers)


def test_overshot_answers_do_not_make_up_for_others(by_task: Splits) -> None:
    curves = by_task.curves
    gap = curves.everything - curves.nothing
    sign = np.where(np.arange(len(gap)) < len(gap) / 2, 1, -1) * gap.mean()
    off = np.tile(curves.everything + 0.5 * sign, (1, len(curves.shares), 1))
    swung = replace(by_task, curves=replace(curves, curves=(replace(curves[ALL], answers=off),)))
    width = curves.shares[-1] - curves.shares[0]
    assert swung.cmd(ALL)[0] == pytest.approx(0, abs=1e-9)
    assert swung.cmd(ALL, each=True)[0] == pytest.approx(0.5 * width)


def test_what_cannot_be_split_is_refused(mixed: Halves, store: keyhole.store.Store, organism: Model) -> None:
    for wrong in ({"methods": ("share", "gim")}, {"methods": ("random",)}, {"tokens": "kept"}, {"per": "prompt"}):
        with pytest.raises(KeyholeError, match=r"one method|tokens dropped"):
            compare_splits(mixed, ({}, {}), replace(SHARE, **wrong))  # type: ignore[arg-type]
    with pytest.raises(KeyholeError, match="at least two"):
        compare_splits(mixed, ({"x": ["a"] * 16}, {"x": ["a"] * 16}), SHARE, stand_in=PATCHED)
    with pytest.raises(KeyholeError, match=r"this store has families, .*wording"):
        splits(store, ["colour"], organism, replace(SHARE, baseline="counterfactual"))
    with pytest.raises(KeyholeError, match="take more prompts"):
        splits(store, ["IO"], organism, replace(SHARE, baseline="counterfactual", prompts=4))


def test_a_store_is_split_in_families(store: keyhole.store.Store, organism: Model, tmp_path: Path) -> None:
    settings = CurveSettings(prompts=16, baseline="counterfactual", ranking="absolute", draws=1)
    result = splits(store, ["families", "order"], organism, settings)
    assert [split.name for split in result.splits] == ["families", "order"] and result.method == "share"
    assert all(min(shown, tried) >= 2 for split in result.splits for _, shown, tried in split.groups)
    assert [row["split"] for row in result.rows()] == [
        ALL,
        "families",
        "random, as families",
        "order",
        "random, as order",
    ]
    assert "Random splits have the same sizes" in str(result) and "families" in result.to_html()
    for name in ("s.json", "s.csv", "s.png"):
        assert result.save(tmp_path / name).stat().st_size > 0
    assert json.loads((tmp_path / "s.json").read_text())["splits"][1]["name"] == "order"


def test_the_command_splits(store: keyhole.store.Store, tmp_path: Path) -> None:
    first = ("curves", str(store.path), "--prompts", "8", "--baseline", "counterfactual", "--draws", "1")
    told = typed(*first, "--split", "order", columns=200)
    assert told.returncode == 0, told.stderr
    assert "one circuit" in told.stdout and "random, as order" in told.stdout and "of 1 random splits" in told.stdout
    told = typed(*first, "--split", "order", "--save-scores", str(tmp_path / "scores"))
    assert told.returncode == 2 and "leave out --file and --save-scores" in told.stderr
