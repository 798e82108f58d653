"""Numbers that discovery tells, once more by their definitions: means, halves, errors and pairs of tokens."""

import pytest
import torch

from conftest import prompts_of, tiny_model
from keyhole.features.contrast.places import split_groups
from keyhole.features.discovery.all_heads import survey
from keyhole.features.discovery.discovery import discover
from keyhole.features.discovery.keys import Samples, View, contrast_of, groups_of
from keyhole.features.discovery.one_head import HeadSamples, token_pairs
from test_discover import stored, uneven


def test_centring_leaves_out_what_all_queries_prefer() -> None:
    samples = uneven()
    q, d = samples.q, samples.attended - samples.rest
    covariance = (q - q.mean(0)).T @ (d - d.mean(0)) / len(q)
    assert torch.allclose(contrast_of(samples, centre=True), covariance, atol=1e-9)
    assert torch.allclose(contrast_of(samples), q.T @ d / len(q), atol=1e-9)
    assert float((contrast_of(samples) - covariance).norm()) > 0.1 * float(covariance.norm())


def test_shares_are_of_samples_that_were_not_fitted() -> None:
    samples = uneven()
    found = discover(samples, rank=3, refits=1, seed=2)
    held = samples.where(split_groups(samples.group, 2) == 1)
    terms = found.split(held.q, held.attended).terms - found.split(held.q, held.rest).terms
    assert found.samples == (len(samples.q) - len(held.q), len(held.q))
    assert found.gap == pytest.approx(float(held.gap.mean()))
    assert [f.share for f in found.features] == pytest.approx((terms.mean(0) / held.gap.mean()).tolist())


def test_repeated_samples_make_a_share_no_surer() -> None:
    samples = uneven()
    thrice = torch.arange(len(samples.q)).repeat(3)
    tripled = Samples(*(getattr(samples, name)[thrice] for name in ("q", "attended", "rest", "group")), samples.scaling)
    once, again = (discover(one, rank=3, refits=1) for one in (samples, tripled))
    assert len(once.features) == 3
    for a, b in zip(once.features, again.features, strict=True):
        assert b.share == pytest.approx(a.share, rel=1e-4)
        assert b.share_error == pytest.approx(a.share_error, rel=1e-4)


@pytest.mark.parametrize("centre", [True, False])
def test_surveys_hold_one_half_out(centre: bool) -> None:
    """Directions of one half, read in the other: sums over samples, both ways, with every sample written out."""
    model, view, seed = tiny_model("llama", dtype=torch.float64), View("relative", active=0.3), 3
    prompts = prompts_of(model, 20, 31, 9, 17, 25)
    own = survey(model, prompts, view=view, centre=centre, seed=seed).head(1, 2)
    samples = stored(model, prompts, (1, 2), view)
    half = split_groups(groups_of(model, prompts), seed)[samples.group] == 0
    sides = [samples.where(~half), samples.where(half)]
    r = own.rank or int((own.S.square().cumsum(0) < 0.99 * own.S.square().sum()).sum()) + 1
    values, fitted, shares = [], [], []
    for fit, held in (sides, sides[::-1]):
        U, S, Vh = torch.linalg.svd(contrast_of(fit, centre=centre))
        values.append(torch.stack([U[:, k] @ contrast_of(held, centre=centre) @ Vh[k] for k in range(len(S))]))
        fitted.append(S)
        d = held.attended - held.rest
        within = ((held.q @ U[:, :r] @ U[:, :r].T) * (d @ Vh[:r].T @ Vh[:r])).sum(-1)
        shares.append(float(within.mean() / (held.q * d).sum(-1).mean()))
    held_out, whole = torch.stack(values).mean(0), torch.stack(fitted).mean(0)
    assert torch.allclose(own.held_out, held_out, rtol=1e-5, atol=1e-6)
    assert own.agreement == pytest.approx(float(held_out[:r].sum() / whole[:r].sum()), rel=1e-4)
    assert own.subspace_share == pytest.approx(sum(shares) / 2, rel=1e-4)
    assert torch.allclose(own.U @ own.S.diag() @ own.V.T, contrast_of(samples, centre=centre), atol=1e-6)


def test_telling_pairs_are_means_over_their_samples() -> None:
    samples = uneven()
    found, n = discover(samples, rank=3, refits=1), len(samples.q)
    queries, keys = [f"q{i % 3}" for i in range(n)], [f"k{i % 2}" for i in range(n)]
    place, top = torch.arange(n), samples.attended + 0.1
    data = HeadSamples(0, 0, View(), samples, place, place, place, top, tuple(queries), tuple(keys))
    terms = found.split(samples.q, top).terms - found.split(samples.q, samples.rest).terms
    for j, pairs in enumerate(token_pairs(found, data, show=10)):
        assert len(pairs) == 6 and [p.total for p in pairs] == sorted((p.total for p in pairs), reverse=True)
        for pair in pairs:
            mine = torch.tensor([(a, b) == (pair.query, pair.key) for a, b in zip(queries, keys, strict=True)])
            assert pair.count == int(mine.sum())
            assert pair.term == pytest.approx(float(terms[mine, j].mean()))
            assert pair.total == pytest.approx(float(terms[mine, j].sum() / terms[:, j].sum()))
            assert pair.query_value == pytest.approx(float(found.query_sources(samples.q)[mine, j].mean()))
            assert pair.key_value == pytest.approx(float(found.key_sources(top)[mine, j].mean()))
            assert pair.dest == int(torch.where(mine, terms[:, j], -torch.inf).argmax())
