"""The payload-retrieval head: trained cells reach what is possible, and the contrast finds the latents put in."""

import copy
import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from keyhole import KeyholeError
from keyhole.features.contrast.subspace import principal_cosines
from keyhole.lab.payload import Payload, PayloadSettings, accuracy, activations, batches, ceiling, sample, train
from keyhole.lab.payload_features import (
    LatentFeature,
    Swaps,
    diagonal_share,
    interaction,
    key_overlap,
    latent_feature,
    swaps,
)
from keyhole.lab.payload_task import draw_maps, purpose_seed

pytestmark = pytest.mark.xdist_group("payload")  # its cells are trained once
fast, paper = PayloadSettings.fast, PayloadSettings.paper


def both_features(cell: Payload, **options: Any) -> tuple[LatentFeature, LatentFeature]:
    return latent_feature(cell, "z1", **options), latent_feature(cell, "z2", **options)


def ranks(cell: Payload, **options: Any) -> tuple[int, int]:
    z1, z2 = both_features(cell, **options)
    return z1.rank, z2.rank


def truth(cell: Payload) -> tuple[int, int]:
    return cell.settings.r1, cell.settings.r2


def swaps_of(cell: Payload) -> Swaps:
    return swaps(cell, *both_features(cell), samples=10_240)


@pytest.fixture(scope="module")
def cells() -> list[Payload]:
    """Trained as far as the preset comes, in fewer and larger steps; Gaussian latents split up later than signs do."""
    quick, later = {"lr": 5e-3, "max_steps": 1000}, {"lr": 2e-3, "max_steps": 2000}
    signs = train([fast(r1, 4, 8, **quick) for r1 in (3, 4)])
    return signs + train([fast(r1, 4, 8, latents="gaussian", **later) for r1 in (3, 4)])


def weights(cell: Payload) -> tuple[Tensor, ...]:
    return cell.W_Q, cell.W_K, cell.W_V, cell.W_O


def same(a: Payload, b: Payload, tolerance: float = 0.0) -> bool:
    return all(torch.allclose(x, y, atol=tolerance, rtol=0) for x, y in zip(weights(a), weights(b), strict=True))


def test_ranks_are_exact(cells: list[Payload]) -> None:
    assert [ranks(cell) for cell in cells] == [truth(cell) for cell in cells]
    assert [ranks(cell, differ=True) for cell in cells] == [truth(cell) for cell in cells]
    assert ranks(cells[0], triplets=64) == truth(cells[0])


def test_discrete_cells_reach_their_ceiling(cells: list[Payload]) -> None:
    for cell in cells[:2]:
        assert accuracy(cell) == pytest.approx(cell.ceiling, abs=0.015)
        assert cell.accuracy == pytest.approx(cell.ceiling, abs=0.015)
    assert all(math.isnan(cell.ceiling) and cell.accuracy > 0.8 for cell in cells[2:])


@pytest.mark.slow
def test_the_preset_reaches_its_ceiling() -> None:
    (cell,) = train([fast(3, 4, 8)])
    assert accuracy(cell) == pytest.approx(cell.ceiling, abs=0.015) and ranks(cell) == truth(cell)


def test_key_subspaces_are_the_true_ones(cells: list[Payload]) -> None:
    for cell in cells:
        for feature, A, B in zip(
            both_features(cell), (cell.maps.A1, cell.maps.A2), (cell.maps.B1, cell.maps.B2), strict=True
        ):
            for basis, image in ((feature.key_basis, cell.W_K @ A), (feature.query_basis, cell.W_Q @ B)):
                assert float(principal_cosines(basis, torch.linalg.qr(image).Q).min()) > 0.99


def test_contrast_is_its_population_value(cells: list[Payload]) -> None:
    cell = cells[0]
    expected = (cell.W_Q @ cell.maps.B1 @ cell.maps.A1.T @ cell.W_K.T).double()
    for differ, factor in ((False, 1.0), (True, 1 + 1 / 7)):  # E[z z'^T] = -I / (2^3 - 1)
        found = latent_feature(cell, "z1", differ=differ).contrast
        assert float((found - factor * expected).norm() / expected.norm()) < 0.05


def test_swapping_both_latents_moves_what_a_full_swap_moves(cells: list[Payload]) -> None:
    for cell in cells:
        s = swaps_of(cell)
        assert s.both.shift >= 0.95 * s.full.shift
        assert s.null.shift == 0 and s.full.normalised == pytest.approx(1)
        assert max(s.z1.shift, s.z2.shift) < 0.75 * s.both.shift
        if sum(truth(cell)) < cell.settings.d_head:
            assert s.both.rank == 7 and s.both.interval[0] > 0.95
            assert s.both.shift > s.random_both.shift + 0.05
            assert s.random_both.shift == pytest.approx(s.both.random)
        else:  # any basis of the whole space swaps everything
            assert s.random_both.shift == pytest.approx(s.full.shift)


def test_latents_split_into_their_entries(cells: list[Payload]) -> None:
    shares = [diagonal_share(interaction(cell)) for cell in cells]
    assert min(shares[:2]) > 0.93 and min(shares[2:]) > 0.99
    assert all(key_overlap(*both_features(cell)) < 0.3 for cell in cells)


def quick(r1: int = 2, r2: int = 3, d_head: int = 4, **changes: Any) -> Payload:
    return train([fast(r1, r2, d_head, **{"max_steps": 3, "batch": 32, **changes})])[0]


def test_seeds_decide_everything() -> None:
    assert same(quick(), quick()) and not same(quick(), quick(seed=1))
    cell = quick()
    assert torch.equal(sample(cell, 5, 3).x, sample(cell, 5, 3).x)
    assert not torch.equal(sample(cell, 5, 3).x, sample(cell, 5, 4).x)
    assert torch.equal(latent_feature(cell, "z2").S, latent_feature(cell, "z2").S)
    assert torch.equal(cell.maps.A1, draw_maps(cell.settings).A1)
    first, again = (repr(swaps(cell, *both_features(cell), samples=64)) for _ in range(2))  # NaN differs from itself
    assert first == again


@pytest.mark.parametrize("check_every", [None, 20])
def test_a_cell_trains_among_others_as_it_does_alone(check_every: int | None) -> None:
    options: dict[str, Any] = {"max_steps": 150, "check_every": check_every, "patience": 1, "min_gain": 0.02}
    settings = [
        fast(2, 3, 4, **options),
        fast(3, 1, 4, latents="gaussian", seed=5, **options),
        fast(2, 2, 4, noise=1.0, scaled_maps=False, **options),
    ]
    together = train(settings)
    for cell, alone in zip(together, (train([s])[0] for s in settings), strict=True):
        assert same(cell, alone, 1e-4)
        assert (cell.step, cell.trained) == (alone.step, alone.trained)
        assert cell.accuracy == pytest.approx(alone.accuracy, abs=0.01)


def test_early_stopping_restores_the_best_state() -> None:
    cell = quick(max_steps=50, check_every=5, patience=2, min_gain=100.0)  # nothing after the first check is a gain
    assert (cell.step, cell.trained) == (1, 10)
    assert same(cell, quick(max_steps=1))


def test_progress_reaches_the_end() -> None:
    seen: list[tuple[int, int]] = []
    train([fast(1, 1, 2, max_steps=60, batch=8)], progress=lambda step, of: seen.append((step, of)))
    assert seen == [(50, 60), (60, 60)]


def test_samples_follow_the_equations() -> None:
    cell = quick(noise=0.0)
    batch, maps = sample(cell, 40), cell.maps
    heads = activations(cell, batch)
    one_hot = torch.nn.functional.one_hot(batch.y, cell.settings.payloads).float()
    assert torch.allclose(batch.x, batch.z1 @ maps.A1.T + batch.z2 @ maps.A2.T + one_hot @ maps.A_y.T, atol=1e-5)
    rows = torch.arange(40)
    chosen1, chosen2 = batch.z1[rows, batch.star], batch.z2[rows, batch.star]
    assert torch.allclose(batch.x_q, chosen1 @ maps.B1.T + chosen2 @ maps.B2.T, atol=1e-5)
    assert torch.equal(batch.answer, batch.y[rows, batch.star])
    mixed = (heads.attention[..., None] * (batch.x @ cell.W_V.T)).sum(1)
    assert torch.allclose(heads.output, mixed @ cell.W_O.T, atol=1e-5)
    assert torch.allclose(heads.attention, (heads.q[:, None] @ heads.k.mT / 2)[:, 0].softmax(-1), atol=1e-5)
    z = torch.cat([batch.z1, batch.z2], dim=-1)
    key_scores = torch.einsum("nr,rs,nts->nt", torch.cat([chosen1, chosen2], -1), interaction(cell), z)
    payload_scores = torch.einsum("nh,hp,ntp->nt", heads.q, cell.W_K @ maps.A_y, one_hot)
    assert torch.allclose(2 * heads.logits, key_scores + payload_scores, atol=1e-4)


def test_a_swap_is_an_edit_of_the_keys() -> None:
    cell = quick(context=2)  # the other token is the only target
    z1, z2 = both_features(cell)
    result = swaps(cell, z1, z2, samples=300, seed=2)
    batch = next(iter(batches(cell, 300, 2)))
    rows, star = torch.arange(300), batch.star
    differ = ((batch.z1[:, 0] != batch.z1[:, 1]).any(-1)) & ((batch.z2[:, 0] != batch.z2[:, 1]).any(-1))
    heads = activations(cell, batch)
    k, P = heads.k.double(), z1.key_basis @ z1.key_basis.T
    edited = k + (k.flip(1) - k) @ P  # with two tokens each takes the other's coordinates
    after = (edited @ heads.q.double()[..., None])[..., 0].div(2).softmax(-1)
    assert result.samples == int(differ.sum()) < 300
    assert result.z1.orig == pytest.approx(float(after[rows, star][differ].mean()), abs=1e-6)
    assert result.z1.target == pytest.approx(float(after[rows, 1 - star][differ].mean()), abs=1e-6)


def test_presets_and_ceilings() -> None:
    assert [round(ceiling(fast(a, b, 16)), 3) for a, b in ((2, 2), (3, 3), (3, 4), (4, 4), (4, 8))] == [
        *(0.680, 0.902, 0.949, 0.974, 0.998)
    ]
    assert (fast(3, 5, 16).lr, fast(3, 5, 16).max_steps, fast(3, 5, 16).check_every) == (1e-3, 4000, None)
    assert (paper(3, 5, 16).lr, paper(3, 5, 16).max_steps, paper(3, 5, 16).check_every) == (1e-4, 50_000, 200)
    assert paper(3, 5, 16, noise=1.0, scaled_maps=False).noise == 1
    unscaled = draw_maps(fast(3, 5, 16, scaled_maps=False))
    assert torch.allclose(unscaled.A2, draw_maps(fast(3, 5, 16)).A2 * math.sqrt(5))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"r1": 0}, "r1 is 0"),
        ({"d_head": 0}, "d_head is 0"),
        ({"check_every": 0}, "check_every is 0"),
        ({"noise": -1.0}, "noise"),
        ({"lr": 0.0}, "lr must be positive"),
        ({"lr": math.nan}, "lr is nan"),
        ({"noise": math.nan}, "noise is nan"),
        ({"noise": math.inf}, "noise is inf"),
        ({"min_gain": -1e-4}, "min_gain"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(KeyholeError, match=words):
        dataclasses.replace(fast(2, 2, 4), **changes)


@pytest.mark.parametrize(
    ("name", "value"),
    [("r1", 2.5), ("seed", 1.5), ("batch", True), ("patience", None), ("lr", "fast"), ("weight_decay", True)],
)
def test_settings_of_another_kind_are_refused(name: str, value: object) -> None:
    settings = copy.copy(fast(2, 2, 4))
    object.__setattr__(settings, name, value)  # the tests' type checker would refuse it earlier
    with pytest.raises(KeyholeError, match=f"{name} is {value!r}"):
        settings.__post_init__()


def test_streams_do_not_meet() -> None:
    first = {purpose_seed(seed, purpose) for seed in range(9) for purpose in ("maps", "init", "data", "validation")}
    bases = [purpose_seed(seed, "bases") + index for seed in range(8) for index in range(3)]
    assert len({seed % 2**32 for seed in bases}) == len(bases) and not first & {seed % 2**32 for seed in bases}


def test_bad_requests_are_refused() -> None:
    with pytest.raises(KeyholeError, match="d_head 16 and 8 cannot be trained together"):
        train([fast(2, 2, 8), fast(2, 2, 16)])
    with pytest.raises(KeyholeError, match="no cells"):
        train([])
    with pytest.raises(KeyholeError, match="diverged"):
        quick(noise=1e30)
    cell = quick(context=1)
    with pytest.raises(KeyholeError, match="0 samples"):
        sample(cell, 0)
    with pytest.raises(KeyholeError, match="0 triplets"):
        latent_feature(cell, "z1", triplets=0)
    with pytest.raises(KeyholeError, match="longer context"):
        swaps(cell, *both_features(cell), samples=10)
    with pytest.raises(KeyholeError, match="at least one"):
        swaps(cell, *both_features(cell), samples=10, randoms=0)


@pytest.mark.slow
def test_the_whole_grid_is_exact() -> None:
    pairs = [(a, b) for a in range(2, 7) for b in range(2, 7) if a + b <= 8]
    trained = train([fast(a, b, 8, latents=kind) for a, b in pairs for kind in ("discrete", "gaussian")])
    assert {(truth(c), c.settings.latents): ranks(c) for c in trained if ranks(c) != truth(c)} == {}
    discrete = [cell for cell in trained if cell.settings.latents == "discrete"]
    assert [c.accuracy for c in discrete] == pytest.approx([c.ceiling for c in discrete], abs=0.015)


@pytest.mark.slow
def test_the_published_training_gives_the_published_head() -> None:
    cell = train([paper(3, 5, 16)])[0]
    result = swaps_of(cell)
    assert ranks(cell) == (3, 5)
    assert accuracy(cell) == pytest.approx(0.974, abs=0.01) and cell.trained < 50_000
    assert result.both.shift > 0.95 and result.both.normalised > 0.95
    assert result.random_both.shift < 0.8 * result.both.shift
