"""The factored SVD against a dense one, its signs, blocks, ranks and bases."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import keyhole
from conftest import prompts_of, tiny_model
from keyhole.qk.omega import blocks, decompose, omega
from test_exact import SUPPORTED

GOLDENS = Path(__file__).parent / "goldens"


def factors(heads: int, kv: int, d: int, r: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(heads, d, r, generator=g), torch.randn(kv, d, r, generator=g)


@given(st.sampled_from([(4, 2), (3, 3), (4, 1)]), st.integers(5, 40), st.integers(1, 5), st.integers(0, 99))
def test_it_is_the_svd_of_omega(heads: tuple[int, int], d: int, r: int, seed: int) -> None:
    W_Q, W_K = factors(*heads, d, r, seed)
    om = decompose(W_Q, W_K)
    for h in range(heads[0]):
        dense = W_Q[h] @ W_K[h // (heads[0] // heads[1])].T
        U, V = om.u(h), om.v(h)
        torch.testing.assert_close(U * om.sigma[h] @ V.T, dense, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(om.sigma[h], torch.linalg.svdvals(dense)[:r], rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(U.T @ U, torch.eye(r), rtol=0, atol=1e-3)
        torch.testing.assert_close(V.T @ V, torch.eye(r), rtol=0, atol=1e-3)
        assert (U.gather(0, U.abs().argmax(0, keepdim=True)) > 0).all()
    torch.testing.assert_close(om.G_d @ om.G_s, torch.eye(r).expand(heads[0], r, r), rtol=0, atol=1e-3)
    assert float(om.error.max()) < 1e-6


def test_signs_do_not_depend_on_the_routine() -> None:
    W_Q, W_K = factors(2, 2, 20, 4, 0)
    once, turned = decompose(W_Q, W_K), decompose(-W_Q, -W_K)  # the same Omega from other factors
    torch.testing.assert_close(once.u(0), turned.u(0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(once.v(0), turned.v(0), rtol=1e-4, atol=1e-5)


def test_rank_deficient_heads_keep_what_they_have() -> None:
    W_Q, W_K = factors(2, 2, 20, 4, 0)
    W_Q[1, :, 3] = W_Q[1, :, 2]
    om = decompose(W_Q, W_K)
    assert om.rank.tolist() == [4, 3] and torch.isfinite(om.G_s).all()
    assert om.u(1).shape == (20, 3)
    torch.testing.assert_close(om.u(1) * om.sigma[1, :3] @ om.v(1).T, W_Q[1] @ W_K[1].T, rtol=1e-3, atol=1e-4)


def test_blocks_join_near_equal_values() -> None:
    sigma = torch.tensor([[5.0, 5.0 - 1e-4, 3.0, 1.0], [4.0, 3.0, 2.0, 2.0]])
    assert blocks(sigma).tolist() == [[0, 0, 1, 2], [0, 1, 2, 2]]


@pytest.mark.parametrize("variant", SUPPORTED)
def test_both_bases_split_the_same_score(variant: str) -> None:
    model = tiny_model(variant)
    run = model.run(prompts_of(model, 12)[0])
    layer = model.attention_layers[-1]
    linear, homogeneous = (run.channels((layer, 1), -1, -2, basis=b) for b in ("linear", "homogeneous"))
    for split in (linear, homogeneous):
        assert float(split.terms.sum()) + split.rest == pytest.approx(split.score, abs=1e-3, rel=1e-3)
    same = len(linear.sigma) == len(homogeneous.sigma) and torch.allclose(linear.sigma, homogeneous.sigma, rtol=1e-4)
    w = model.folded(layer)
    assert same == (not w.b_Q.any() and not w.b_K.any())  # a bias is one more row of Omega, and only that


@pytest.mark.parametrize("name", ["tiny_gpt2", "tiny_neox"])
def test_singular_values_match_an_independent_implementation(name: str) -> None:
    model = keyhole.load(GOLDENS / name)
    reference = np.load(GOLDENS / name / "reference_arrays.npz")["S"]
    ours = torch.stack([omega(model, layer).sigma for layer in range(model.dims.layers)])
    np.testing.assert_allclose(ours.numpy(), reference, rtol=1e-4, atol=1e-5)
    ids = json.loads((GOLDENS / f"{name}.json").read_text())["cases"][0]["token_ids"]
    assert keyhole.check(model, ids).exact
