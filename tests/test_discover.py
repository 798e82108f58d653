"""Label-free discovery finds planted features, says when it cannot, and its sums are exact."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from conftest import prompts_of, tiny_model
from keyhole import Model, tasks
from keyhole.errors import KeyholeError
from keyhole.features.discovery.all_heads import survey
from keyhole.features.discovery.discovery import discover
from keyhole.features.discovery.features import Discovery
from keyhole.features.discovery.ica import (
    Nonlinearity,
    correlations,
    excess_kurtosis,
    fast_ica,
    pair_sources,
    stability,
)
from keyhole.features.discovery.keys import Samples, View, contrast_of, samples_of
from keyhole.features.discovery.one_head import head_features, head_samples, token_pairs
from keyhole.lab.payload import Payload, PayloadSettings, activations, sample, train
from keyhole.models.attention import visible_mask
from keyhole.models.facts import Rotary


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def gaussian(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def coins(*shape: int, seed: int) -> Tensor:
    return torch.randint(0, 2, shape, generator=seeded(seed)).double() * 2 - 1


# -- independent components -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("nonlinearity", ["cube", "tanh"])
def test_ica_unmixes_what_was_mixed(nonlinearity: Nonlinearity) -> None:
    n = 4000
    flat, heavy = torch.rand(n, generator=seeded(0)).double(), gaussian(n, seed=1) ** 3
    truth = torch.stack([flat, coins(n, seed=2), heavy, (flat.roll(7) < 0.1).double()], dim=1)
    mixed = truth @ gaussian(4, 4, seed=3) + 5.0
    sources = fast_ica(mixed, nonlinearity=nonlinearity)
    table = correlations(sources.of(mixed), truth).abs()
    assert sources.converged
    assert table.max(0).values.min() > 0.99
    assert torch.allclose(sources.unmixing @ sources.mixing, torch.eye(4, dtype=torch.float64), atol=1e-9)
    assert torch.allclose(sources.mean + sources.of(mixed) @ sources.mixing.T, mixed, atol=1e-9)
    rare = table[:, 3].argmax()
    assert correlations(sources.of(mixed), truth)[rare, 3] > 0  # the rarer side is the positive one


def test_directions_that_do_not_vary_hold_no_source() -> None:
    mixed = torch.cat([coins(500, 2, seed=0), torch.ones(500, 1, dtype=torch.float64)], dim=1)
    assert fast_ica(mixed).unmixing.shape == (2, 3)


def test_sources_pair_across_order_and_sign() -> None:
    s = coins(500, 3, seed=0)
    pairing = pair_sources(s, s[:, [2, 0, 1]] * torch.tensor([1.0, -1.0, 1.0]))
    assert pairing.key.tolist() == [1, 2, 0]
    assert pairing.sign.tolist() == [-1.0, 1.0, 1.0]
    assert torch.allclose(pairing.correlation, torch.ones(3, dtype=torch.float64))


def test_kurtosis_and_its_error() -> None:
    found = excess_kurtosis(torch.stack([gaussian(20_000, seed=0), coins(20_000, seed=1)], dim=1))
    assert found.value[0].abs() < 3 * found.error[0]
    assert found.error[0] == pytest.approx((24 / 20_000) ** 0.5, rel=0.1)
    assert found.value[1] == pytest.approx(-2, abs=0.01)
    twice = gaussian(500, 1, seed=2).repeat(2, 1)  # copies are no new evidence
    known = excess_kurtosis(twice, torch.arange(500).repeat(2)).error
    assert torch.allclose(known, excess_kurtosis(twice[:500]).error)


def test_stability_tells_coins_from_gaussians() -> None:
    mixing = gaussian(5, 5, seed=0)
    for truth, low, high in ((coins(3000, 5, seed=1), 0.99, 1.01), (gaussian(3000, 5, seed=1), 0.0, 0.95)):
        mixed = truth @ mixing
        steady = stability(mixed, fast_ica(mixed), runs=3)
        assert low < steady.min()
        assert steady.mean() < high


# -- planted heads --------------------------------------------------------------------------------------------------


def planted_maps(d: int, r: int) -> tuple[Tensor, Tensor]:
    """How latents go into queries and keys."""
    frame = torch.linalg.qr(gaussian(max(d, r), max(d, r), seed=10)).Q[:d, :r]
    stretch = torch.eye(d, dtype=torch.float64) + 0.1 * gaussian(d, d, seed=11)
    return torch.linalg.inv(stretch).T @ frame, stretch @ frame  # Q^T K = frame^T frame


def planted(latents: Tensor, d: int) -> tuple[Tensor, Tensor, Tensor]:
    """q, keys and attention of a head whose query asks for the latents of one key; every latent counts alike.

    Latents [samples, keys, r]; the asked-for key is the first. With r > d the maps share directions evenly.
    """
    n, _, r = latents.shape
    Q, K = planted_maps(d, r)
    keys = latents @ K.T + 0.01 * gaussian(n, latents.shape[1], d, seed=12)
    q = 12 * latents[:, 0] @ Q.T + 0.01 * gaussian(n, d, seed=13)
    return q, keys, ((keys @ q[..., None])[..., 0] / d**0.5).softmax(-1)


@pytest.fixture(scope="module")
def bits() -> tuple[Tensor, Samples, Discovery]:
    latents = coins(4000, 12, 8, seed=0)  # three bits and five
    samples = samples_of(*planted(latents, 16))
    return latents, samples, discover(samples)


def test_planted_bits_are_found_without_labels(bits: tuple[Tensor, Samples, Discovery]) -> None:
    latents, _, found = bits
    q, keys, _ = planted(latents, 16)
    asked = correlations(found.query_sources(q), latents[:, 0])
    offered = correlations(found.key_sources(keys.flatten(0, 1)), latents.flatten(0, 1))
    assert found.rank == 8 == len(found.features)
    assert asked.abs().max(1).values.min() >= 0.99
    assert offered.abs().max(1).values.min() >= 0.99
    assert torch.equal(asked.abs().argmax(1), offered.abs().argmax(1))  # the pairs are of one bit
    assert sorted(asked.abs().argmax(1).tolist()) == list(range(8))
    assert (asked.amax(1) * offered.amax(1) + asked.amin(1) * offered.amin(1) > 0.9).all()  # with one sign
    assert all(f.identified and f.correlation > 0.99 and f.coupling > 0 for f in found.features)
    assert found.warnings == ()
    assert sum(f.share for f in found.features) == pytest.approx(1, abs=0.02)
    for f in found.features:
        assert f.query.kurtosis == pytest.approx(-2, abs=0.05)
        assert 0 < f.share_error < 0.1 * f.share


def test_gaussian_latents_give_the_subspace_but_no_features() -> None:
    latents = gaussian(4000, 12, 6, seed=1)
    q, keys, attention = planted(latents, 16)
    found = discover(samples_of(q, keys, attention), refits=3)
    asked = correlations(found.query_sources(q), latents[:, 0]).abs()
    assert found.rank == 6
    assert asked.square().sum(0).min() > 0.9  # every latent lies in the subspace
    assert asked.max(0).values.min() < 0.9
    assert not any(f.identified for f in found.features)
    assert any("Gaussian" in said for said in found.warnings)
    assert any("not identified" in said for said in found.warnings)


def test_more_features_than_dimensions_is_a_warning() -> None:
    found = discover(samples_of(*planted(coins(4000, 12, 12, seed=2), 8)), refits=1)
    assert found.rank == 8
    assert any("superposition" in said for said in found.warnings)


def test_a_rank_that_leaves_out_features_is_a_warning(bits: tuple[Tensor, Samples, Discovery]) -> None:
    found = discover(bits[1], rank=5, refits=1)
    assert found.outside > 0.2
    assert any("outside" in said for said in found.warnings)


@pytest.fixture(scope="module")
def trained() -> list[Payload]:
    return train([PayloadSettings.fast(2, 3, 8, latents=kind, max_steps=800) for kind in ("discrete", "sphere")])


def test_a_trained_head_gives_up_its_spheres(trained: list[Payload]) -> None:
    """Latents whose entries depend on each other come out whole, each with its own rank, on both sides."""
    cell = trained[1]
    head = activations(cell, sample(cell, 4000))
    found = discover(samples_of(head.q, head.k, head.attention), refits=1)
    assert sorted(one.rank for one in found.subspaces) == [2, 3]
    for A, B in ((cell.maps.A1, cell.maps.B1), (cell.maps.A2, cell.maps.B2)):
        (own,) = [one for one in found.subspaces if one.rank == A.shape[1]]
        assert torch.cat(own.cosines(cell.W_Q @ B, cell.W_K @ A)).min() > 0.99


def test_a_trained_head_gives_up_its_bits(trained: list[Payload]) -> None:
    cell = trained[0]
    batch = sample(cell, 4000)
    head = activations(cell, batch)
    found = discover(samples_of(head.q, head.k, head.attention), refits=2)
    truth = torch.cat([batch.z1, batch.z2], dim=-1)
    asked = truth[torch.arange(len(truth)), batch.star]
    assert found.rank == 5 == len(found.subspaces)
    assert correlations(found.query_sources(head.q), asked).abs().max(0).values.min() >= 0.99
    offered = correlations(found.key_sources(head.k.flatten(0, 1)), truth.flatten(0, 1))
    assert offered.abs().max(0).values.min() >= 0.99


# -- sums are exact -------------------------------------------------------------------------------------------------


def uneven(n: int = 1500, d: int = 6) -> Samples:
    """Queries and keys with means, correlations and a few heavy tails: nothing here is tidy."""
    keys = gaussian(n, 9, d, seed=4) ** 3 + gaussian(d, seed=5)
    q = gaussian(n, d, seed=6) ** 3 @ gaussian(d, d, seed=7) * 0.2 + keys[:, 0] + 1.0
    attention = ((keys @ q[..., None])[..., 0] / 10).softmax(-1)
    return samples_of(q, keys, attention, groups=torch.arange(n) // 5, scaling=0.3)


def test_terms_and_rests_sum_to_the_score() -> None:
    samples = uneven()
    found = discover(samples, rank=4, refits=1)
    q, k = samples.q, samples.rest
    split = found.split(q, k)
    assert torch.allclose(split.total, 0.3 * (q * k).sum(-1), rtol=1e-10, atol=1e-10)
    # each part once more, from its own formula
    A_q = torch.stack([f.query.pattern for f in found.features], dim=1)
    A_k = torch.stack([f.key.pattern for f in found.features], dim=1)
    s_q, s_k, M = found.query_sources(q), found.key_sources(k), A_q.T @ A_k
    pairs = 0.3 * s_q[:, :, None] * M * s_k[:, None, :]
    assert torch.allclose(split.terms, pairs.diagonal(dim1=1, dim2=2), atol=1e-9)
    assert torch.allclose(split.cross, pairs.sum((1, 2)) - pairs.diagonal(dim1=1, dim2=2).sum(1), atol=1e-8)
    m_q, m_k = found.U @ found.query_mean, found.V @ found.key_mean
    mean = (s_q @ A_q.T) @ m_k + (s_k @ A_k.T) @ m_q + m_q @ m_k
    assert torch.allclose(split.mean, 0.3 * mean, atol=1e-8)
    q_in, k_in = q @ found.U @ found.U.T, k @ found.V @ found.V.T
    outside = ((q - q_in) * k).sum(-1) + (q_in * (k - k_in)).sum(-1)
    assert torch.allclose(split.outside, 0.3 * outside, atol=1e-8)


@pytest.mark.parametrize("centre", [False, True])
def test_held_out_shares_sum_to_one(centre: bool) -> None:
    found = discover(uneven(), rank=3, centre=centre, refits=1)
    total = sum(f.share for f in found.features) + found.cross + found.mean + found.outside
    assert total == pytest.approx(1, abs=1e-10)
    assert [f.share for f in found.features] == sorted((f.share for f in found.features), reverse=True)
    assert sum(found.samples) == 1500
    assert found.mean_energy > 0


def test_the_order_of_samples_does_not_matter(bits: tuple[Tensor, Samples, Discovery]) -> None:
    _, s, found = bits
    order = torch.randperm(len(s.q), generator=seeded(0))
    again = discover(Samples(s.q[order], s.attended[order], s.rest[order], s.group[order], s.scaling))
    assert torch.allclose(again.S, found.S)
    for a, b in zip(again.features, found.features, strict=True):
        assert torch.allclose(a.query.direction, b.query.direction, atol=1e-5)
        assert a.share == pytest.approx(b.share, abs=1e-6)


def test_padded_keys_change_nothing() -> None:
    q, keys, attention = planted(coins(300, 5, 3, seed=3), 4)
    plain = samples_of(q, keys, attention)
    padding = torch.cat([keys, torch.full((300, 2, 4), 9.0, dtype=torch.float64)], dim=1)
    visible = (torch.arange(7) < 5).expand(300, 7)
    padded = samples_of(q, padding, torch.cat([attention, torch.zeros(300, 2)], dim=1), visible=visible)
    assert torch.allclose(padded.attended, plain.attended)
    assert torch.allclose(padded.rest, plain.rest)
    left = (1 - attention)[..., None] * keys
    assert torch.allclose(plain.rest, left.sum(1) / (1 - attention).sum(1, keepdim=True))
    alone = samples_of(q, keys, attention, visible=torch.arange(5).expand(300, 5) == 0)
    assert len(alone.q) == 0  # one visible key is no contrast


def test_refusals_say_why() -> None:
    samples = uneven()
    with pytest.raises(KeyholeError, match="30 queries"):
        discover(samples.where(torch.arange(1500) < 30))
    with pytest.raises(KeyholeError, match="rank 7 is impossible"):
        discover(samples, rank=7)
    with pytest.raises(KeyholeError, match="one group"):
        discover(replace(samples, group=torch.zeros(1500, dtype=torch.long)))
    with pytest.raises(KeyholeError, match="NaN"):
        samples_of(samples.q * float("nan"), samples.q[:, None], torch.ones(1500, 1))
    with pytest.raises(KeyholeError, match="do not vary"):
        discover(replace(samples, q=torch.ones_like(samples.q)))
    with pytest.raises(KeyholeError, match="contrast is zero"):
        discover(replace(samples, rest=samples.attended))


# -- models ---------------------------------------------------------------------------------------------------------


def stored(model: Model, prompts: list[list[int]], head: tuple[int, int], view: View) -> Samples:
    """The same samples with every key written out, each turned by its own rotation matrix."""
    rows = []
    for number, prompt in enumerate(prompts):
        run = model.run(prompt)
        record, n = run.attention_run(head[0]), len(prompt)
        k = record.k[head[1] * record.k.shape[0] // record.q.shape[0]].double()
        q, weights = record.q[head[1]].double(), run.pattern(head[0])[head[1]].double()
        R = _matrices(record.rotary, n, q.shape[1])
        keys = torch.stack([k] * n)
        if view.frame == "pre_rope":
            keys = torch.stack([(R.mT @ k[..., None])[..., 0]] * n)
        elif view.frame == "relative":
            keys = torch.stack([k @ R[d] for d in range(n)])
        q = q if view.frame == "post_rope" else (R.mT @ q[..., None])[..., 0]
        seen = visible_mask(record.first, torch.arange(n), n)
        if view.skip_first:
            seen[:, 0] = False
        active = (weights * seen).sum(1) >= view.active
        scaling = record.rule.scaling
        of = samples_of(q[active], keys[active], weights[active], visible=seen[active], scaling=scaling)
        rows.append(replace(of, group=torch.full((len(of.q),), number)))
    columns = ([getattr(row, name) for row in rows] for name in ("q", "attended", "rest", "group"))
    q, attended, rest, group = (torch.cat(column) for column in columns)
    return Samples(q, attended, rest, group, rows[0].scaling)


def _matrices(rotary: Rotary | None, n: int, d: int) -> Tensor:
    eye = torch.eye(d, dtype=torch.float64)
    if rotary is None:
        return eye.expand(n, d, d)
    R = rotary.rotate(eye[:, None].expand(d, n, d)).permute(1, 2, 0)
    return R / torch.linalg.det(R).abs()[:, None, None] ** (1 / d)  # only YaRN over all dimensions stretches


@pytest.mark.parametrize("variant", ["llama", "llama-yarn", "gpt_oss"])
@pytest.mark.parametrize("frame", ["post_rope", "pre_rope", "relative"])
def test_streamed_sums_equal_the_stored_ones(variant: str, frame: str) -> None:
    model, view = tiny_model(variant, dtype=torch.float64), View(frame=frame, active=0.3)  # type: ignore[arg-type]
    prompts = prompts_of(model, 20, 31, 9, 17, 25)
    found = survey(model, prompts, view=view, centre=False, batch=2)
    assert len(found.heads) == model.dims.layers * model.dims.heads
    for head in ((0, 1), (2, 2)):
        truth = stored(model, prompts, head, view)
        own = found.head(*head)
        assert own.queries == len(truth.q)
        contrast = own.U @ own.S.diag() @ own.V.T
        assert torch.allclose(contrast, contrast_of(truth), rtol=1e-6, atol=1e-6)
        assert own.gap == pytest.approx(float(truth.gap.mean()), rel=1e-6)
        data = head_samples(model, prompts, head, view=view, batch=3)
        assert torch.allclose(data.samples.attended, truth.attended, atol=1e-6)
        assert torch.allclose(data.samples.rest, truth.rest, atol=1e-6)


def test_the_relative_frame_keeps_scores() -> None:
    model = tiny_model("llama-yarn", dtype=torch.float64)
    prompts = prompts_of(model, 30, 40, 50)
    post, relative, pre = (survey(model, prompts, view=View(f)) for f in ("post_rope", "relative", "pre_rope"))
    for a, b, c in zip(post.heads, relative.heads, pre.heads, strict=True):
        assert a.gap == pytest.approx(b.gap, rel=1e-9)
        assert abs(c.gap - a.gap) > 1e-6
    data = head_samples(model, prompts, (1, 0), view=View("relative"))
    run = model.run(prompts[1])
    at = int((data.prompt == 1).nonzero()[-1])
    score = run.attention_run(1).scores([0], [int(data.dest[at])])[0, 0, int(data.src[at])]
    assert data.samples.scaling * float(data.samples.q[at] @ data.top_key[at]) == pytest.approx(float(score), rel=1e-9)
    assert data.query_tokens[at] == run.tokens[int(data.dest[at])]
    assert data.key_tokens[at] == run.tokens[int(data.src[at])]


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [example.text for task in tasks.TASKS.values() for example in task(20, 1)]


def test_organism_heads_have_contrasts_that_come_back(organism: Model, texts: list[str]) -> None:
    seen: list[tuple[int, int]] = []
    found = survey(organism, texts, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (120, 120)
    assert all(head.agreement > 0.9 and 0 < head.subspace_share < 1.1 for head in found.ranked[:10])
    assert max(head.rank for head in found.ranked if head.rank) < organism.dims.d_head
    again = survey(organism, texts[::-1], batch=7)
    for a, b in zip(found.heads, again.heads, strict=True):
        assert torch.allclose(a.S, b.S, atol=1e-4)
        assert a.agreement == pytest.approx(b.agreement, abs=1e-3)


def test_a_head_that_matches_equal_words_shows_them(organism: Model, texts: list[str]) -> None:
    shown = head_features(organism, texts, (3, 1), refits=1, show=3)
    assert sum(f.share for f in shown.discovery.features) > 0.4
    same = [any(pair.query == pair.key for pair in row) for row in shown.pairs]
    assert sum(same) > len(same) / 2
    first = shown.pairs[0][0]
    tokens = organism.run(texts[first.prompt]).tokens
    assert (tokens[first.dest], tokens[first.src]) == (first.query, first.key)
    everything = token_pairs(shown.discovery, shown.data, show=10_000)
    assert sum(pair.total for pair in everything[0]) == pytest.approx(1)
    assert sum(pair.count for pair in everything[0]) == len(shown.data.samples.q)


def test_surveys_refuse_what_they_cannot_answer(organism: Model, texts: list[str]) -> None:
    with pytest.raises(KeyholeError, match="list of prompts"):
        survey(organism, [])
    with pytest.raises(KeyholeError, match="all prompts are the same"):
        survey(organism, texts[:1] * 3)
    with pytest.raises(KeyholeError, match="takes 160"):
        survey(organism, texts[:2])
    with pytest.raises(KeyholeError, match=r"no head 3\.9"):
        head_samples(organism, texts, (3, 9))
    with pytest.raises(KeyholeError, match="no layer 9"):
        head_samples(organism, texts, (9, 0))
    with pytest.raises(KeyholeError, match="batch is 0"):
        survey(organism, texts, batch=0)
    with pytest.raises(KeyholeError, match="active is 2"):
        View(active=2.0)
    with pytest.raises(KeyholeError, match="queries, but"):
        head_features(organism, texts[:4], (3, 1))
