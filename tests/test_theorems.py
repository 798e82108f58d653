"""The theorems hold in numbers, with the tolerances and the tightness that were measured before."""

import math

import pytest
import torch

from keyhole import KeyholeError
from keyhole.lab.svf_alignment import MISMATCH, PENALTIES, overlaps, theorem_4
from keyhole.lab.svf_theorems import Check, D, Measure, Minimiser, lemma_3, theorem_1, theorem_2, theorem_3


def test_the_only_minimiser_is_the_rank_one_teacher() -> None:
    check = theorem_1([0], alphas=(5.0, 50.0))
    assert check.holds and check.margin > 0.9
    assert check.measure("distance to the teacher").limit == check.measure("sigma_2 / sigma_1").limit == 1e-4
    assert check.measure("1 - |cos| with the detectors").worst < 1e-9
    assert all(0.4 < cosine < 0.95 for cosine in check.beside["|cos| with the features"])  # detectors, not features


def test_isotropic_features_are_the_singular_vectors() -> None:
    check = theorem_2()
    assert check.holds and check.drawn == 3
    assert check.measure("1 - |cos| with the features").worst < 1e-9


def test_a_wrong_minimiser_is_seen() -> None:
    teacher = torch.zeros(D, D).double()
    teacher[0, 0] = 2.0
    wrong = Minimiser(teacher / 2 + 0.01 * torch.eye(D).double(), teacher)
    assert wrong.error > 0.4 and wrong.second > 1e-3
    axes = torch.eye(D).double()
    assert wrong.misalignment(axes[0], axes[0]) == pytest.approx(0) and wrong.misalignment(axes[0], axes[1]) == 1


def test_second_moments_of_tokens() -> None:
    check = lemma_3([0], samples=200_000)
    assert check.holds and all(1e-4 < measure.worst < 0.01 for measure in check.measures)
    assert not lemma_3([0], samples=500).holds  # the error falls with the samples


def test_nearly_isotropic_features_stay_within_both_bounds() -> None:
    check = theorem_3()
    assert check.holds and 1700 < check.applicable <= check.drawn == 2000
    theorem, one_sided, plain = check.measures
    assert theorem.violations == one_sided.violations == plain.violations == 0
    assert theorem.worst < 0.5  # loose
    assert 0.7 < one_sided.worst < 1 and 0.7 < plain.worst < 1  # tight
    assert len(theorem.values) == check.applicable and len(plain.values) == 2 * check.applicable


def test_frames_far_from_isotropy_are_left_out() -> None:
    assert theorem_3([0], frames=100, spread=1.0).applicable < 20


def test_the_bound_by_e_alone_is_attained() -> None:
    """For a symmetric matrix with eigenvalues 1 - e and 1 + e the worst vector turns by exactly arcsin e."""
    e = 0.3
    turn = torch.diag(torch.tensor([1 / (1 - e), 1 / (1 + e)])).double()
    angles = torch.linspace(0, math.pi, 10_001).double()
    x = torch.stack([angles.cos(), angles.sin()])
    u = torch.nn.functional.normalize(turn @ x, dim=0)
    sine = (u[0] * x[1] - u[1] * x[0]).abs()
    assert float(sine.max()) == pytest.approx(e, abs=1e-6)


def test_the_second_pair_becomes_orthogonal_within_the_bound() -> None:
    check = theorem_4([1])
    assert check.holds and check.measure("overlap, realisable teacher").worst < 1e-7
    found = {(o.realisable, o.penalty): o for o in overlaps([0])}
    for penalty, overlap, bound in zip(
        PENALTIES, (0.368, 0.185, 0.025, 0.0026), (1.13, 0.359, 0.113, 0.036), strict=True
    ):
        assert found[False, penalty].overlap == pytest.approx(overlap, abs=6e-4)
        assert found[False, penalty].bound == pytest.approx(bound, abs=6e-3)
    assert found[True, 0.0].overlap < 1e-6  # cross-entropy alone orthogonalises
    assert found[False, 0.0].overlap == pytest.approx(1 - MISMATCH, abs=1e-6) and math.isinf(found[False, 0.0].bound)


def test_measures_fail_above_their_limit_and_where_nothing_was_measured() -> None:
    low, high, none = Measure("a", (0.1, 0.4), 0.5), Measure("b", (0.1, 0.6), 0.5), Measure("c", (math.nan,), 0.5)
    assert low.holds and low.margin == pytest.approx(0.2) and low.median == 0.1
    assert not high.holds and high.violations == 1 and high.margin < 0
    assert not none.holds and not Measure("d", (), 1.0).holds
    check = Check("both", "", (low, high), 2, 2)
    assert not check.holds and check.margin == high.margin
    with pytest.raises(KeyholeError, match="no measure 'x'"):
        check.measure("x")


@pytest.mark.parametrize("theorem", [theorem_1, theorem_2, lemma_3, theorem_3, theorem_4])
def test_theorems_need_a_seed(theorem) -> None:
    with pytest.raises(KeyholeError, match="none was given"):
        theorem([])
