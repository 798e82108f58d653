"""Relative attention, S(v), N_recon, rotation controls, firings and slice sets."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import keyhole
from conftest import prompts_of, tiny_model
from keyhole import KeyholeError
from keyhole.qk.channels import n_recon, sparsity, sparsity_each
from keyhole.qk.controls import ambient_draws, haar, refactored, rotation_control, rotations, slice_sets, slice_use
from keyhole.qk.firings import find_firings
from keyhole.qk.omega import omega

vectors = st.lists(st.floats(-10, 10).filter(lambda x: x == 0 or abs(x) > 1e-3), min_size=1, max_size=12)


@given(vectors)
def test_sparsity_is_between_one_over_n_and_one(values: list[float]) -> None:
    s = sparsity(torch.tensor(values))
    assert math.isnan(s) if not any(values) else 1 / len(values) - 1e-9 <= s <= 1 + 1e-9


@pytest.mark.parametrize(("carrying", "of"), [(1, 4), (3, 8), (8, 8)])
def test_sparsity_is_the_share_of_channels_that_carry_all(carrying: int, of: int) -> None:
    terms = torch.zeros(of)
    terms[:carrying] = torch.tensor([2.0, -2.0] * of)[:carrying]
    assert sparsity(terms) == pytest.approx(carrying / of)


@given(vectors, st.sampled_from([1.0, 0.95, 0.5]))
def test_n_recon_is_the_smallest_set(values: list[float], tolerance: float) -> None:
    terms, total = torch.tensor(values), sum(values)
    n = n_recon(terms, tolerance)
    if total <= 0:
        assert n is None or total > -1e-5
        return
    assert n is not None
    best = sorted(values, reverse=True)
    assert sum(best[:n]) >= tolerance * total - 1e-3
    assert all(sum(best[:m]) < tolerance * total for m in range(1, n))


@pytest.mark.parametrize("variant", ["gpt2", "gpt_neox", "llama", "mistral", "qwen3", "cohere-qknorm", "bloom"])
def test_terms_add_up_and_firing_means_positive_relative_attention(variant: str) -> None:
    model = tiny_model(variant)
    run = model.run(prompts_of(model, 14)[0])
    strongest = [(s.layer, s.head, s.dest, s.src) for s in find_firings(run)[:2]]
    for layer, head, dest, src in [(0, 0, 13, 13), (1, 2, 13, 9), (2, 3, 8, 6), (1, 1, 5, 3), *strongest]:
        split = run.channels((layer, head), dest, src)
        record = run.attention_run(layer)
        first = int(record.first[dest])
        row = record.scores([head], [dest])[0, 0, first : dest + 1]
        others = torch.cat([row[: src - first], row[src - first + 1 :]]).mean()
        assert split.score == pytest.approx(float(row[src - first]), abs=1e-5)
        assert split.relative_attention == pytest.approx(float(row[src - first] - others), abs=1e-3)
        assert float(split.relative_terms.sum()) + split.relative_rest == pytest.approx(split.relative_attention)
        assert split.attention == pytest.approx(float(run.pattern(layer)[head, dest, src]), abs=1e-6)
        assert split.attention <= 1 / split.visible or split.relative_attention > 0 or variant == "bloom"  # ALiBi
    assert len(strongest) == 2  # so that the last line has judged firings


def test_refactoring_keeps_the_sum() -> None:
    g = torch.Generator().manual_seed(0)
    left, right = torch.randn(8, generator=g).double(), torch.randn(8, generator=g).double()
    drawn = refactored(left[None], right[None], torch.rand(8, generator=g) + 0.1, rotations(8, 5))
    assert drawn.sum(-1).flatten().tolist() == pytest.approx([float(left @ right)] * 5)


def test_rotated_bases_are_less_sparse_than_one_channel() -> None:
    one = torch.zeros(32).double()
    one[3] = 2.0
    assert sparsity(one * one) == pytest.approx(1 / 32)
    drawn = refactored(one[None], one[None], torch.ones(32), rotations(32, 20))
    assert float(sparsity_each(drawn).mean()) > 0.2


def test_ambient_terms_keep_the_spectrum_and_forget_the_directions() -> None:
    """Up to a factor they are what rotated frames read of any two tokens: the same S(v), the same shares."""
    g = torch.Generator().manual_seed(0)
    x, y, sigma = torch.ones(40).double(), torch.arange(40).double(), torch.tensor([4.0, 1.0, 1.0]).double()
    turned = torch.stack([(x @ haar(40, 3, g)) * sigma * (y @ haar(40, 3, g)) for _ in range(4000)])
    draws = ambient_draws(sigma, 4000, g)
    assert draws.mean(0).abs().max() < 0.2
    torch.testing.assert_close(draws.square().mean(0).sqrt(), sigma, rtol=0.1, atol=0)
    assert float(sparsity_each(draws).mean()) == pytest.approx(float(sparsity_each(turned).mean()), abs=0.02)


def test_a_refactored_control_rotates_the_square_roots_of_sigma(gpt2: keyhole.Model) -> None:
    """Omega = (U Sigma^1/2 R)(V Sigma^1/2 R)^T, read with vectors that the head reads as its query and key."""
    run = gpt2.run(prompts_of(gpt2, 12)[0])
    control = rotation_control(run, (1, 1), -1, 3, kind="refactor", draws=1, seed=3)
    om, w, record = omega(gpt2, 1), gpt2.folded(1), run.attention_run(1)
    R = haar(8, 8, torch.Generator().manual_seed(3)).float()
    left, right = ((side(1) * om.sigma[1].sqrt()) @ R for side in (om.u, om.v))
    torch.testing.assert_close(left @ right.T, w.W_Q[1] @ w.W_K[1].T, rtol=1e-3, atol=1e-4)
    k = record.k[1]
    beyond = k[3] - torch.cat([k[:3], k[4:]]).mean(0)
    x, y = torch.linalg.pinv(w.W_Q[1].T) @ record.q[1, -1], torch.linalg.pinv(w.W_K[1].T) @ beyond
    assert control.rotated[0] == pytest.approx(sparsity((x @ left) * (y @ right)), rel=1e-3)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"src": 5, "dest": 2}, "comes after dest"),
        ({"src": 2, "dest": 19}, "outside the attention window"),
        ({"src": 19, "dest": 19, "draws": 0}, "at least one draw"),
    ],
)
def test_rotation_control_refuses_what_is_no_weight(bad: dict, message: str) -> None:
    model = tiny_model("mistral")
    with pytest.raises(KeyholeError, match=message):
        rotation_control(model.run(prompts_of(model, 20)[0]), (1, 0), **bad)


@pytest.mark.parametrize("kind", ["ambient", "refactor"])
def test_rotation_control_is_reproducible_and_averages_draws(kind: str, gpt2: keyhole.Model) -> None:
    run = gpt2.run(prompts_of(gpt2, 12)[0])
    control, again = (rotation_control(run, (1, 1), -1, 3, kind=kind, draws=7, seed=3) for _ in range(2))
    assert control == again and len(control.rotated) == 7
    assert control.sparsity == pytest.approx(run.channels((1, 1), -1, 3).sparsity)
    assert 1 / 8 <= control.mean_rotated <= 1


@pytest.mark.parametrize("variant", ["gpt2", "mistral", "gpt_oss"])
def test_firings_are_exactly_the_weights_above_threshold(variant: str) -> None:
    model = tiny_model(variant)
    run = model.run(prompts_of(model, 20)[0])
    found = {(s.layer, s.head, s.dest, s.src): s for s in find_firings(run)}
    expected = set()
    for layer in range(3):
        first = run.attention_run(layer).first
        for h, row in enumerate(run.pattern(layer)):
            for d in range(20):
                tau = min(1.0, 2.5 / (d - int(first[d]) + 1))
                expected |= {(layer, h, d, s) for s in range(20) if float(row[d, s]) >= tau}
    assert set(found) == expected and found
    order = [s.times_uniform for s in find_firings(run)]
    assert order == sorted(order, reverse=True)
    for (layer, h, d, s), site in found.items():
        visible = d - int(run.attention_run(layer).first[d]) + 1
        assert site.times_uniform == pytest.approx(float(run.pattern(layer)[h, d, s]) * visible)
    assert all(s.dest == 19 for s in find_firings(run, 0.3, dest=-1))
    least = find_firings(run, 1e-30)
    assert all(int(run.attention_run(s.layer).first[s.dest]) <= s.src <= s.dest for s in least)
    for tau in (0.0, 7.0):
        with pytest.raises(KeyholeError, match="between 0 and 1"):
            find_firings(run, tau)


def test_slice_sets_leave_out_what_sums_to_nothing() -> None:
    terms = torch.randn(200, 16, generator=torch.Generator().manual_seed(0))
    total, used = terms.sum(-1), slice_sets(terms)
    left_out = (terms * ~used).sum(-1)
    assert (left_out * total.sign() <= 1e-5).all()
    for row, chosen, t in zip(terms, used, total, strict=True):  # one fewer would not do
        kept = row[chosen] * t.sign()
        assert kept.sum() - kept.min() <= t.abs() + 1e-5


def test_slices_of_firings_over_prompts(gpt2: keyhole.Model) -> None:
    runs = gpt2.run_many(prompts_of(gpt2, 16, 17, 18, 19))
    firing, quiet = slice_use(runs, (1, 3)), slice_use(runs, (1, 3), firing=False)
    assert len(quiet.pairs) == 4 and firing.basis == "homogeneous"
    for (prompt, dest, src), terms in zip(firing.pairs.tolist(), firing.terms, strict=True):
        assert float(runs[prompt].pattern(1)[3, dest, src]) >= 0.5 and src != 0
        assert float(terms.sum()) == pytest.approx(runs[prompt].channels((1, 3), dest, src).score, abs=1e-3)
    assert torch.equal(firing.counts, firing.used.sum(0)) and (firing.sizes >= 1).all()
    for prompt, dest, src in quiet.pairs.tolist():
        assert float(runs[prompt].pattern(1)[3, dest, src]) < 0.5
    short = gpt2.run_many(prompts_of(gpt2, 3, 4, 5))  # where four in ten pairs look at the first token
    drawn = [slice_use(short, (1, 3), firing=False, seed=seed).pairs[:, 2] for seed in range(6)]
    assert len(torch.cat(drawn)) > 12 and bool((torch.cat(drawn) > 0).all())
    with pytest.raises(KeyholeError, match="fires nowhere"):
        slice_use(runs, (1, 3), threshold=2.0)


@pytest.mark.parametrize(
    ("head", "dest", "src", "message"),
    [
        ((9, 0), -1, 0, "no layer 9"),
        ((0, 9), -1, 0, "no head 0.9"),
        ((0, 0), 40, 0, "outside the prompt"),
        ((0, 0), 2, 5, "comes after dest"),
        ((0, 0), "x", 0, "not a token"),
        ((0, 0), "2", 0, "ambiguous"),
    ],
)
def test_bad_places_are_named(gpt2: keyhole.Model, head, dest, src, message: str) -> None:
    run = gpt2.run([1, 2, 3, 2, 5, 6])
    with pytest.raises(KeyholeError, match=message):
        run.channels(head, dest, src)


def test_the_only_visible_key_has_no_relative_attention(gpt2: keyhole.Model) -> None:
    split = gpt2.run([1, 2, 3]).channels((1, 0), 0, 0)
    assert split.attention == 1 and math.isnan(split.relative_attention) and split.n_recon() is None
    assert float(split.terms.sum()) == pytest.approx(split.score, abs=1e-4)


def test_a_key_outside_the_window_is_named() -> None:
    model = tiny_model("mistral")
    with pytest.raises(KeyholeError, match="outside the attention window"):
        model.run(prompts_of(model, 20)[0]).channels((1, 0), 19, 2)
