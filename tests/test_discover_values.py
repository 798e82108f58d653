"""Every number that a discovery tells, computed a second time from its definition, on the half it is about."""

import math

import pytest
import torch
from torch import Tensor

from conftest import prompts_of, tiny_model
from keyhole.features.contrast.places import split_groups
from keyhole.features.contrast.subspace import decompose, energy_rank
from keyhole.features.discovery.all_heads import survey
from keyhole.features.discovery.discovery import discover
from keyhole.features.discovery.features import Discovery
from keyhole.features.discovery.ica import correlations, excess_kurtosis, fast_ica, mean_error, pair_sources, stability
from keyhole.features.discovery.keys import Samples, View, attended, contrast_of, groups_of, samples_of
from keyhole.features.discovery.one_head import head_samples


def gaussian(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def uneven(n: int = 900, d: int = 6) -> Samples:
    """Queries and keys with means, heavy tails, and groups of five."""
    keys = gaussian(n, 7, d, seed=4) ** 3 + gaussian(d, seed=5)
    q = gaussian(n, d, seed=6) ** 3 @ gaussian(d, d, seed=7) * 0.2 + keys[:, 0] + 1.0
    attention = ((keys @ q[..., None])[..., 0] / 10).softmax(-1)
    return samples_of(q, keys, attention, groups=torch.arange(n) // 5, scaling=0.3)


@pytest.fixture(scope="module")
def both() -> tuple[Samples, Discovery]:
    samples = uneven()
    return samples, discover(samples, rank=3, refits=2, seed=1)


def halves(samples: Samples, seed: int = 1) -> tuple[Samples, Samples]:
    fit = split_groups(samples.group, seed) == 0
    return samples.where(fit), samples.where(~fit)


def test_half_of_the_groups_are_fitted_and_none_is_parted() -> None:
    groups = torch.arange(40) // 3
    fit = split_groups(groups, 5) == 0
    assert len(torch.unique(groups[fit])) == 7 and len(torch.unique(groups[~fit])) == 7
    assert not set(groups[fit].tolist()) & set(groups[~fit].tolist())
    assert not torch.equal(fit, split_groups(groups, 6) == 0)


@pytest.mark.parametrize("centre", [True, False])
def test_directions_come_from_the_fitted_half(centre: bool) -> None:
    samples = uneven()
    fit, held = halves(samples)
    found = discover(samples, centre=centre, refits=1, seed=1)
    U, S, V = decompose(contrast_of(fit, centre=centre))
    r = int(energy_rank(S))
    assert found.rank == r and found.samples == (len(fit.q), len(held.q))
    assert torch.allclose(found.S, S) and torch.allclose(found.U, U[:, :r]) and torch.allclose(found.V, V[:, :r])
    q, d = fit.q, fit.attended - fit.rest
    plain, means = q.T @ d / len(q), torch.outer(q.mean(0), d.mean(0))
    assert torch.allclose(contrast_of(fit), plain) and torch.allclose(contrast_of(fit, centre=True), plain - means)
    assert found.mean_energy == pytest.approx(float(means.square().sum() / plain.square().sum()))


def shares(found: Discovery, samples: Samples) -> tuple[Tensor, Tensor]:
    """What each part adds to the gap of these samples, and the gap, sample by sample."""
    rows = []
    for k in (samples.attended, samples.rest):
        split = found.split(samples.q, k)
        rows.append(torch.cat([split.terms, torch.stack([split.cross, split.mean, split.outside], dim=1)], dim=1))
    gap = 0.3 * (samples.q * (samples.attended - samples.rest)).sum(-1)
    return rows[0] - rows[1], gap


def test_shares_are_of_the_held_out_gap(both: tuple[Samples, Discovery]) -> None:
    samples, found = both
    fit, held = halves(samples)
    rows, gap = shares(found, held)
    told = torch.tensor([*(f.share for f in found.features), found.cross, found.mean, found.outside]).double()
    assert found.gap == pytest.approx(float(gap.mean()))
    assert torch.allclose(told, rows.mean(0) / gap.mean())
    fitted, own = shares(found, fit)
    assert (told - fitted.mean(0) / own.mean()).abs().max() > 1e-3 and abs(found.gap - float(own.mean())) > 1e-3
    # the error of a ratio of means over groups, which are the independent observations
    kinds = torch.unique(held.group)
    off = torch.stack([(rows - told * gap[:, None])[held.group == g].sum(0) for g in kinds])
    errors = off.square().sum(0).sqrt() / len(gap) / abs(float(gap.mean()))
    assert torch.allclose(torch.tensor([f.share_error for f in found.features]).double(), errors[:3])


def test_sources_are_paired_on_the_fitted_half_and_their_kurtosis_is_held_out(
    both: tuple[Samples, Discovery],
) -> None:
    samples, found = both
    fit, held = halves(samples)
    pairs = correlations(found.query_sources(fit.q), found.key_sources(fit.attended))
    assert torch.allclose(pairs.diagonal(), torch.tensor([f.correlation for f in found.features]).double())
    assert bool((pairs.diagonal() > 0).all())
    for side, values in (("query", found.query_sources(held.q)), ("key", found.key_sources(held.attended))):
        x = values - values.mean(0)
        kurtosis = (x**4).mean(0) / (x**2).mean(0) ** 2 - 3
        told = excess_kurtosis(values, held.group)
        for j, feature in enumerate(found.features):
            own = getattr(feature, side)
            assert own.kurtosis == pytest.approx(float(kurtosis[j]))
            assert own.kurtosis_error == pytest.approx(float(told.error[j]))
    for feature in found.features:
        assert feature.coupling == pytest.approx(0.3 * float(feature.query.pattern @ feature.key.pattern))
    sources = found.query_sources(fit.q)
    assert torch.allclose(sources.T @ sources / len(sources), torch.eye(3).double(), atol=1e-8)
    assert sources.mean(0).abs().max() < 1e-10


def test_stability_is_the_mean_over_refits_on_other_halves() -> None:
    Z, groups = gaussian(600, 3, seed=1) ** 3 @ gaussian(3, 3, seed=2), torch.arange(600) // 4
    sources = fast_ica(Z, seed=3)
    want = torch.zeros(3).double()
    for run in (1, 2, 3):
        refit = fast_ica(Z[split_groups(groups, 3 + run) == 0], seed=3 + run)
        pairing = pair_sources(sources.of(Z), refit.of(Z))
        want[pairing.query] += pairing.correlation / 3
    assert torch.allclose(stability(Z, sources, groups=groups, runs=3, seed=3), want)


def test_errors_of_means_and_kurtosis() -> None:
    x = gaussian(400, 2, seed=8)
    x = x - x.mean(0)
    assert torch.allclose(mean_error(x), x.std(0, correction=0) / 20)
    groups = torch.arange(400) // 8
    sums = torch.stack([x[groups == g].sum(0) for g in range(50)])
    assert torch.allclose(mean_error(x, groups), sums.square().sum(0).sqrt() / 400)
    coin = torch.tensor([1.0, -1.0, 1.0, -1.0])[:, None].double()
    assert float(excess_kurtosis(coin).value) == pytest.approx(-2) and float(excess_kurtosis(coin).error) < 1e-9
    # the error is that of a jackknife
    y = gaussian(2000, 1, seed=9) + 0.3 * gaussian(2000, 1, seed=10) ** 3
    left = torch.stack([excess_kurtosis(y[torch.arange(2000) // 20 != g]).value for g in range(100)])
    jackknife = math.sqrt(99 / 100 * float((left - left.mean()).square().sum()))
    assert float(excess_kurtosis(y).error) == pytest.approx(jackknife, rel=0.25)


def test_correlations_are_pearsons() -> None:
    a, b = gaussian(50, 2, seed=1) + 3, gaussian(50, 3, seed=2)
    b[:, 0] += a[:, 1]
    want = torch.corrcoef(torch.cat([a, b], dim=1).T)[:2, 2:]
    assert torch.allclose(correlations(a, b), want)


# -- models ---------------------------------------------------------------------------------------------------------


def test_what_is_attended_and_what_is_left() -> None:
    """Row by row, with the first token left out, and heads that rest there not used."""
    model = tiny_model("gpt2", dtype=torch.float64)
    (prompt,) = prompts_of(model, 14)
    record = model.run(prompt).attention_run(1)
    for skip, active in ((True, 0.4), (False, 0.0)):
        seen = attended(record, [2], View("post_rope", skip_first=skip, active=active))
        weights, k, first = record.weights([2], range(14))[0], record.k[2], int(skip)
        for dest in range(14):
            a, keys = weights[dest, first : dest + 1], k[first : dest + 1]
            assert bool(seen.used[0, dest]) == (len(a) > 1 and float(a.sum()) >= active)
            if not bool(seen.used[0, dest]):
                continue
            a = a / a.sum()
            assert torch.allclose(seen.attended[0, dest], a @ keys)
            assert torch.allclose(seen.rest[0, dest], (1 - a) @ keys / (1 - a).sum())
            assert int(seen.top[0, dest]) == first + int(a.argmax())
            assert torch.allclose(seen.top_key[0, dest], keys[int(a.argmax())])
    assert not bool(seen.used[0, 0]) and bool(seen.used[0, 1:].all())


@pytest.mark.parametrize("centre", [True, False])
def test_a_survey_confirms_one_half_by_the_other(centre: bool) -> None:
    model = tiny_model("llama", dtype=torch.float64)
    prompts = prompts_of(model, 20, 31, 9, 17, 25, 28)
    view = View(active=0.2)
    found = survey(model, prompts, view=view, centre=centre, energy=0.9, seed=2)
    data = head_samples(model, prompts, (1, 3), view=view).samples
    fit = split_groups(groups_of(model, prompts), 2)[_prompt_of(model, prompts, view)] == 0
    own = found.head(1, 3)
    U, S, V = decompose(contrast_of(data, centre=centre))
    rank = int(energy_rank(S, 0.9))
    assert own.rank == rank and own.queries == len(data.q) and torch.allclose(own.S, S, atol=1e-9)
    assert own.gap == pytest.approx(float(data.gap.mean()), rel=1e-9)
    q, d = data.q, data.attended - data.rest
    mean = torch.outer(q.mean(0), d.mean(0)).square().sum() / (q.T @ d / len(q)).square().sum()
    assert own.mean_energy == pytest.approx(float(mean))
    sides = data.where(fit), data.where(~fit)
    held, values, share = [], [], []
    for one, other in (sides, sides[::-1]):
        U, S, V = decompose(contrast_of(one, centre=centre))
        elsewhere = contrast_of(other, centre=centre)
        held.append((U * (elsewhere @ V)).sum(0))
        values.append(S)
        U, V = U[:, :rank], V[:, :rank]
        inside = ((other.q @ U @ U.T) * ((other.attended - other.rest) @ V @ V.T)).sum(-1)
        share.append(other.scaling * float(inside.mean()) / float(other.gap.mean()))
    assert torch.allclose(own.held_out, (held[0] + held[1]) / 2, atol=1e-9)
    agreement = float((held[0] + held[1])[:rank].sum() / (values[0] + values[1])[:rank].sum())
    assert own.agreement == pytest.approx(agreement)
    assert own.subspace_share == pytest.approx(sum(share) / 2)
    ranked = [head.gap * head.subspace_share for head in found.ranked]
    assert ranked == sorted(ranked, reverse=True)


def _prompt_of(model: object, prompts: list[list[int]], view: View) -> Tensor:
    return head_samples(model, prompts, (1, 3), view=view).prompt  # type: ignore[arg-type]
