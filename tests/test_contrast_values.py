"""Every number that a contrast tells, computed a second time from its definition, in plain sums over pairs."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from conftest import tiny_model
from contrasts import box_contrast, collected_of, random_contrast
from keyhole import Model
from keyhole.features.contrast import subspace
from keyhole.features.contrast.attribution import attribute
from keyhole.features.contrast.collect import Collected, collect
from keyhole.features.contrast.finding import Feature, find_features
from keyhole.features.contrast.moves import NOTHING, Effect, Move, effect, pair_keys
from keyhole.features.contrast.ranking import HeadAttention, head_attention, rank_heads, select_heads
from keyhole.features.contrast.report import record, summary, swap_rows
from keyhole.features.contrast.sites import Contrast, Sample, Site, token
from keyhole.features.contrast.studies import StudySettings, study
from keyhole.features.contrast.subspace import coefficients, contrasts, permuted_signs, quantile_range, random_bases
from keyhole.features.contrast.sums import contrast_matrix, mean_shift_share, product_size, tally
from keyhole.features.contrast.swaps import answer_effects, query_effects, swap_effects
from keyhole.intervene.rerun import Edits, HeadEdit, rerun
from tiny import Sizes

CENTRES = ("none", "each", "pooled")
SCALING = 0.7


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def uneven(n: int = 60, heads: int = 4, kv: int = 2, d: int = 6) -> Collected:
    """One layer with means, weights, padding, and different numbers of keys; every query asks for its first key."""
    g = seeded(1)
    z = torch.randn(n, 5, kv, 2, generator=g).double()
    maps = torch.randn(kv, 2, d, generator=g).double()
    k = torch.einsum("nkar,ard->nkad", z, maps) + 0.3 * torch.randn(n, 5, kv, d, generator=g).double() + 2.0
    asked = torch.einsum("nar,ard->nad", z[:, 0], maps).repeat_interleave(heads // kv, dim=1)
    q = asked * torch.arange(heads)[:, None] + torch.randn(n, heads, d, generator=g).double() - 1.5
    sign = torch.tensor([[1, -1, -1, -1, -1], [1, 1, -1, -1, 0], [1, -1, -1, 0, 0]]).repeat(n // 3, 1)
    made = collected_of(q, k, sign, weight=1.0 + torch.arange(n).double() % 2, rest=0.5)
    layer = replace(made.kept[0], rule=replace(made.kept[0].rule, scaling=SCALING))
    return replace(made, kept={0: layer})


@pytest.fixture(scope="module")
def some() -> Collected:
    return uneven()


def plain(
    q: Tensor, k: Tensor, sign: Tensor, weight: Tensor, *, centre: str = "none", balance: str = "pairs"
) -> Tensor:
    """dC by its definition, head by head: [heads, d, d]."""
    group, made = q.shape[1] // k.shape[2], []
    for h in range(q.shape[1]):
        own_q, own_k = q[:, h].double(), k[:, :, h // group].double()
        sides = []
        for side in (1, -1):
            w = weight[:, None] * (sign == side)
            per_key = w.sum() if balance == "pairs" else (weight * (sign == 1).any(1)).sum()
            C = torch.einsum("nm,nd,nme->de", w, own_q, own_k) / per_key
            sides.append(
                (C, (w.sum(1)[:, None] * own_q).sum(0) / w.sum(), torch.einsum("nm,nme->e", w, own_k) / per_key)
            )
        (plus, q_plus, k_plus), (minus, q_minus, k_minus) = sides
        if centre == "each":
            plus, minus = plus - torch.outer(q_plus, k_plus), minus - torch.outer(q_minus, k_minus)
        elif centre == "pooled":
            mid_q, mid_k = (q_plus + q_minus) / 2, (k_plus + k_minus) / 2
            plus = plus - torch.outer(mid_q, k_plus) - torch.outer(q_plus, mid_k)
            minus = minus - torch.outer(mid_q, k_minus) - torch.outer(q_minus, mid_k)
        made.append(plus - minus)
    return torch.stack(made)


def parts(seen: Collected, chosen: Tensor | slice = slice(None)) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    kept, slots = seen.layer(0), seen.slots
    return kept.queries[chosen], kept.keys[chosen], slots.sign[chosen], slots.weight[chosen]


def half_of(seen: Collected, half: int) -> Tensor:
    return (seen.slots.half == half).nonzero()[:, 0]


# -- sums and nulls -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("centre", CENTRES)
@pytest.mark.parametrize("balance", ["pairs", "prompts"])
def test_contrasts_are_sums_over_pairs(some: Collected, centre: Any, balance: Any) -> None:
    q, k, sign, weight = parts(some)
    want = plain(q, k, sign, weight, centre=centre, balance=balance)
    assert torch.allclose(contrast_matrix(some.sums[0], centre=centre, balance=balance), want, atol=1e-10)
    again = contrasts(q, k, coefficients(sign[None], weight, balance), centre)[0]
    assert torch.allclose(again, want, atol=1e-10)
    for half in (0, 1):
        own = plain(*parts(some, half_of(some, half)), centre=centre, balance=balance)
        assert torch.allclose(
            contrast_matrix(some.sums[0].of_half(half), centre=centre, balance=balance), own, atol=1e-10
        )


def test_sums_of_parts_add_up(some: Collected) -> None:
    q, k, sign, weight = parts(some)
    half = some.slots.half
    first, second = (tally(q[s], k[s], sign[s], weight[s], half[s]) for s in (slice(25), slice(25, None)))
    for name in ("qk", "q", "k", "qq", "kk", "pairs", "queries"):
        assert torch.allclose(getattr(first + second, name), getattr(some.sums[0], name), atol=1e-10), name


@pytest.mark.parametrize("balance", ["pairs", "prompts"])
def test_mean_shift_and_size_are_told_of_the_uncentred_contrast(some: Collected, balance: Any) -> None:
    q, k, sign, weight = parts(some)
    whole, left = (plain(q, k, sign, weight, centre=c, balance=balance) for c in ("none", "each"))
    want = 1 - left.square().sum((1, 2)) / whole.square().sum((1, 2))
    assert torch.allclose(mean_shift_share(some.sums[0], balance=balance), want)
    told = find_features(some, centre="each", balance=balance, permutations=0).mean_shift[0]
    assert torch.allclose(told, want)
    sides = [weight[:, None] * (sign == side) for side in (1, -1)]
    products = [torch.einsum("nm,nd,nme->de", w, q[:, 0], k[:, :, 0]) / w.sum() for w in sides]
    size = product_size(some.sums[0], centre="none")[0]
    assert float(size) == pytest.approx(float(products[0].norm() + products[1].norm()))
    size, want = product_size(some.sums[0], centre="each", balance=balance)[3], 0.0
    for w in sides:
        q_rows, k_rows = q[:, 3].repeat_interleave(5, dim=0), k[:, :, 1].flatten(0, 1)
        (a, s_a), (b, s_b) = (_square_and_spread(x, w.flatten()) for x in (q_rows, k_rows))
        per_key = w.sum() if balance == "pairs" else weight.sum()
        want += float(w.sum() / per_key) * (a * s_b + s_a * b)
    assert float(size) == pytest.approx(want)


def _square_and_spread(x: Tensor, w: Tensor) -> tuple[float, float]:
    mean = (w[:, None] * x).sum(0) / w.sum()
    return tuple(math.sqrt(float((w * y.square().sum(1)).sum() / w.sum())) for y in (x, x - mean))  # type: ignore[return-value]


@pytest.mark.parametrize("centre", CENTRES)
def test_every_permuted_contrast_is_centred_like_the_real_one(
    some: Collected, centre: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subspace, "_BLOCK_BYTES", 30_000)  # a few draws at a time
    q, k, _, weight = parts(some)
    signs = permuted_signs(some.slots, 8, seed=3)
    made = contrasts(q, k, coefficients(signs, weight, "pairs"), centre)
    for draw, sign in zip(made, signs, strict=True):
        assert torch.allclose(draw, plain(q, k, sign, weight, centre=centre), atol=1e-10)


def test_every_key_of_a_query_is_as_likely_to_be_positive(some: Collected) -> None:
    signs = permuted_signs(some.slots, 3000, seed=0)
    for slot, (positives, keys) in enumerate(((1, 5), (2, 4), (1, 3))):
        share = (signs[:, slot, :keys] == 1).double().mean(0)
        assert (share - positives / keys).abs().max() < 5 * math.sqrt(0.25 / 3000)
    together = (signs[:, 0] == signs[:, 3]).all(-1).double().mean()  # two queries of the same kind are not drawn alike
    assert together == pytest.approx(1 / 5, abs=0.05)


def test_the_quantile_range_covers_the_true_quantile() -> None:
    draws = torch.rand(200, 2000, generator=seeded(0)).double()
    low, high = quantile_range(draws, 0.95)
    for missed in ((low > 0.95).double().mean(), (high < 0.95).double().mean()):
        assert 0.005 < missed < 0.035  # 2.5 % at most on either side, and not much less
    assert bool(quantile_range(draws[:40], 0.95)[1].isinf().all())  # 40 draws may all lie below it


# -- features -------------------------------------------------------------------------------------------------------


def bars(seen: Collected, chosen: Tensor, centre: str, signs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Singular values, and those of permuted contrasts: largest first, [heads, d] and [draws, heads]."""
    q, k, sign, weight = parts(seen, chosen)
    S = torch.linalg.svdvals(plain(q, k, sign, weight, centre=centre))
    null = torch.stack([torch.linalg.svdvals(plain(q, k, s, weight, centre=centre))[:, 0] for s in signs])
    return S, null, null.sort(0).values


@pytest.mark.parametrize("centre", CENTRES)
@pytest.mark.parametrize("half", [None, 0, 1])
def test_null_ranks_and_p_values(some: Collected, centre: Any, half: int | None) -> None:
    found = find_features(some, half=half, centre=centre, permutations=99, seed=4)
    chosen = torch.arange(60) if half is None else half_of(some, half)
    S, null, ordered = bars(some, chosen, centre, permuted_signs(some.slots.of(chosen), 99, 4))
    assert found.samples == len(chosen) and found.null is not None and found.null_range is not None
    assert torch.allclose(found.S[0], S, atol=1e-9)
    bar = ordered[94]  # of 99: the smallest with at least 95 % of the draws up to it
    assert torch.allclose(found.threshold[0], bar, atol=1e-9)
    assert torch.equal(found.null[0], (bar[:, None] < S).sum(1))
    assert torch.allclose(found.p[0], (1 + (null >= S[:, 0]).sum(0)) / 100)
    # Bin(99, .95): at most 88 below in 1.4 %, 89 in 3.2 %; at least 98 in 3.9 %, all 99 in 0.6 %
    low, high = ordered[89 - 1], ordered[99 - 1]
    assert torch.equal(found.null_range[0, :, 1], (low[:, None] < S).sum(1))
    assert torch.equal(found.null_range[0, :, 0], (high[:, None] < S).sum(1))
    energy = S.square().cumsum(1) / S.square().sum(1, keepdim=True)
    assert torch.equal(found.energy[0], (energy < 0.99).sum(1) + 1)


def test_halves_confirm_each_other(some: Collected) -> None:
    found = find_features(some, permutations=99, seed=4)
    signs = permuted_signs(some.slots, 99, 4)
    confirmed = []
    for part in (0, 1):
        own, other = half_of(some, part), half_of(some, 1 - part)
        U, _, Vh = torch.linalg.svd(plain(*parts(some, own), centre="each"))
        q, k, sign, weight = parts(some, other)
        cross = [
            torch.einsum("hik,hij,hkj->hk", U, plain(q, k, s, weight, centre="each"), Vh)
            for s in (sign, *signs[:, other])
        ]
        bar = torch.stack(cross[1:]).amax(-1).sort(0).values[94]
        confirmed.append((cross[0] > bar[:, None]).long().cumprod(1).sum(1))
    assert found.halves is not None and torch.equal(found.halves[0], torch.minimum(*confirmed))
    assert int(found.halves.max()) >= 1 and int(found.halves.min()) == 0


def test_a_feature_is_the_leading_part_of_the_decomposition(some: Collected) -> None:
    found = find_features(some, permutations=0)
    feature = found.of((0, 3), 2)
    dC = plain(*parts(some), centre="each")[3]
    assert torch.allclose(feature.U.T @ dC @ feature.V, feature.S.diag(), atol=1e-9)
    assert torch.allclose(feature.S, torch.linalg.svdvals(dC)[:2]) and feature.rank == 2


# -- biases ---------------------------------------------------------------------------------------------------------

KINDS, PER_KIND = 4, 4


def biased(factor: float) -> tuple[Model, Contrast]:
    """A Qwen2-shaped model whose first head finds tokens of the kind asked for, under biases of this size."""
    model = tiny_model("qwen2", Sizes(layers=1, d_head=8, seed=3))
    block, g = model.hf.model.layers[0], seeded(2)
    asks, items = torch.arange(1, 1 + KINDS), torch.arange(10, 10 + KINDS * PER_KIND)
    with torch.no_grad():
        reads = block.input_layernorm(model.hf.model.embed_tokens.weight)
        for name, ids, kinds in (("q_proj", asks, asks - 1), ("k_proj", items, (items - 10) // PER_KIND)):
            projection = getattr(block.self_attn, name)
            wanted = torch.nn.functional.one_hot(kinds, 8) + 0.3 * torch.randn(len(ids), 8, generator=g)
            projection.weight[:8] = torch.linalg.lstsq(reads[ids].double(), 3 * wanted.double()).solution.T.float()
            projection.bias.copy_(factor * torch.randn(len(projection.bias), generator=g))
    prompts, samples = [], []
    for i in range(160):
        kinds = torch.randperm(KINDS, generator=g)
        asked = int(torch.randint(KINDS, (), generator=g))
        keys = 10 + kinds * PER_KIND + torch.randint(PER_KIND, (KINDS,), generator=g)
        prompts.append((0, *keys.tolist(), 1 + asked))
        right, others = (
            tuple(Site(token(1 + j), i) for j in range(4) if (kinds[j] == asked) == w) for w in (True, False)
        )
        samples.append(Sample(Site(token(5), i), right, others))
    return model, Contrast("kinds", tuple(prompts), tuple(samples))


@pytest.mark.parametrize("factor", [0.0, 30.0, 300.0])
def test_biases_of_queries_and_keys_do_not_hide_a_feature(factor: float) -> None:
    """Four kinds are three dimensions about their mean. Centred, no bias changes anything that is told."""
    seen = collect(*biased(factor), frame="pre_rope")
    found = find_features(seen)
    free = find_features(collect(*biased(0.0), frame="pre_rope"))
    assert torch.allclose(found.S[0, 0], free.S[0, 0], rtol=2e-3, atol=2e-3)
    assert found.null is not None and found.halves is not None
    assert (int(found.null[0, 0]), int(found.halves[0, 0])) == (3, 3)
    if factor:
        uncentred = find_features(seen, centre="none")
        assert uncentred.null is not None and int(uncentred.null[0, 0]) == 0


# -- ranking --------------------------------------------------------------------------------------------------------


def test_gaps_shares_and_p_values_are_of_the_half_asked_for(some: Collected) -> None:
    features = find_features(some, half=0, permutations=0)
    ranking = {score.head[1]: score for score in rank_heads(features, some, half=1, rank=2, permutations=49, seed=6)}
    q, k, sign, weight = parts(some, chosen := half_of(some, 1))
    k = k.repeat_interleave(2, dim=2)
    U = features.U[0, :, :, :2]
    through = torch.einsum("nhd,hdr,her->nhe", q, U, U)
    told = []
    for s in (sign, *permuted_signs(some.slots.of(chosen), 49, 6)):
        rows = []
        for queries in (q, through):
            scores = SCALING * torch.einsum("nhd,nmhd->nmh", queries, k)
            means = [
                torch.einsum("nm,nmh->h", w := weight[:, None] * (s == side), scores) / w.sum() for side in (1, -1)
            ]
            rows.append(means[0] - means[1])
        told.append(torch.stack(rows))
    gap, explained = told[0]
    draws = torch.stack(told)[:, 1]
    z = (draws - draws.mean(0)) / draws.std(0)
    for h, score in ranking.items():
        assert score.gap == pytest.approx(float(gap[h]), rel=1e-6)
        assert score.explained == pytest.approx(float(explained[h]), rel=1e-6)
        assert score.share == pytest.approx(float(explained[h] / gap[h]), rel=1e-6)
        assert score.p == pytest.approx(float((draws[:, h] >= draws[0, h] - 1e-12).double().mean()))
        assert score.z == pytest.approx(float(z[0, h]), rel=1e-5)
        assert score.p_corrected == pytest.approx(float((z.amax(1) >= z[0, h] - 1e-9).double().mean()))
    order = [score.explained for score in rank_heads(features, some, half=1, rank=2, permutations=1)]
    assert order == sorted(order, reverse=True)
    other = {score.head[1]: score.gap for score in rank_heads(features, some, half=0, rank=2, permutations=1)}
    assert all(abs(other[h] - float(gap[h])) > 1e-3 for h in other)


# -- selection ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("half", [None, 1])
def test_attention_on_right_and_other_keys(some: Collected, half: int | None) -> None:
    chosen = torch.arange(60) if half is None else half_of(some, half)
    q, k, sign, _ = parts(some, chosen)
    scores = SCALING * torch.einsum("nhd,nmhd->nmh", q, k.repeat_interleave(2, dim=2))
    for row in head_attention(some, half=half):
        accuracy = among = positive = negative = 0.0
        for s in range(len(chosen)):
            own = [(float(scores[s, j, row.head[1]]), int(sign[s, j])) for j in range(5) if sign[s, j]]
            total = sum(math.exp(x) for x, _ in own) + math.exp(0.5)
            positive += sum(math.exp(x) for x, side in own if side == 1) / total
            negative += sum(math.exp(x) for x, side in own if side == -1) / total
            best, other = (max(x for x, side in own if side == one) for one in (1, -1))
            among += best > other
            accuracy += best > max(other, 0.5)
        n = len(chosen)
        assert (row.accuracy, row.among) == (accuracy / n, among / n)
        assert (row.positive, row.negative) == (pytest.approx(positive / n), pytest.approx(negative / n))
        assert row.ratio == pytest.approx(positive / negative)


def test_queries_without_a_negative_key_do_not_count_among_keys(some: Collected) -> None:
    """They would count as right, whatever the head does."""
    sign = some.slots.sign.clone()
    sign[::2] = sign[::2].clamp_min(0)
    odd = torch.arange(1, 60, 2)
    q, k, _, _ = parts(some, odd)
    scores = SCALING * torch.einsum("nhd,nmhd->nmh", q, k.repeat_interleave(2, dim=2))
    for row in head_attention(_with_signs(some, sign)):
        best, other = (
            scores[..., row.head[1]].masked_fill(sign[odd] != side, -math.inf).amax(1).double() for side in (1, -1)
        )
        assert row.among == float((best > other).double().mean())
    assert all(math.isnan(row.among) for row in head_attention(_with_signs(some, sign.clamp_min(0))))


def _with_signs(collected: Collected, sign: Tensor) -> Collected:
    slots = replace(collected.slots, sign=sign)
    return replace(collected, resolved=replace(collected.resolved, slots=slots))


def test_heads_are_selected_by_their_rule() -> None:
    table = tuple(
        HeadAttention((0, h), *row)
        for h, row in enumerate([(0.5, 0.9, 0.2, 0.1), (0.31, 0.5, 0.4, 0.3), (0.29, 0.5, 0.05, 0.01)])
    )

    def chosen(**how: Any) -> list[int]:
        return [row.head[1] for row in select_heads(table, **how)]

    assert chosen() == [0, 1]
    assert chosen(by="accuracy", at_least=0.31) == [0, 1] and chosen(by="accuracy", at_least=0.32) == [0]
    assert chosen(by="attention", at_least=0.2) == [1, 0]
    assert chosen(by="ratio", at_least=0.1) == [0, 1] and chosen(by="ratio", at_least=0.05) == [2, 0, 1]
    assert chosen(by="ratio", at_least=0.05, top=2) == [2, 0]


# -- swaps ----------------------------------------------------------------------------------------------------------


def swapped(seen: Collected, head: int, slot: int, target: int, P: Tensor | None, donor: int | None = None) -> Tensor:
    """Attention of the two keys before and after an edit, from edited keys (or query) and a softmax: [2, 2]."""
    q, k, sign, _ = parts(seen)
    keys = k[slot, :, head // 2].double()
    query, before = q[slot, head].double(), SCALING * keys @ q[slot, head].double()
    right = [j for j in range(5) if sign[slot, j] == 1]
    orig = max(right, key=lambda j: float(before[j]))
    P = torch.eye(6).double() if P is None else P
    if donor is None:
        change = P @ (keys[target] - keys[orig])
        keys = keys.clone()
        keys[orig], keys[target] = keys[orig] + change, keys[target] - change
    else:
        query = query + P @ (q[donor, head].double() - query)
    rows = []
    for logits in (before, SCALING * keys @ query):
        if donor is None:
            used = torch.cat([logits[sign[slot] != 0], torch.tensor([0.5]).double()])
            rows.append(torch.stack([logits[orig], logits[target]]).exp() / used.exp().sum())
        else:
            rows.append(torch.stack([logits[orig], logits[target]]).softmax(0))
    return torch.stack(rows)


def moved(rows: list[Tensor]) -> tuple[float, float, float]:
    """Mean attention on the two keys after the edit, and the mean of loss and gain."""
    table = torch.stack(rows)
    shift = ((table[:, 0, 0] - table[:, 1, 0]) + (table[:, 1, 1] - table[:, 0, 1])) / 2
    return float(table[:, 1, 0].mean()), float(table[:, 1, 1].mean()), float(shift.mean())


@pytest.mark.parametrize("edit", ["keys", "query"])
def test_swaps_are_edits_of_keys_or_queries(some: Collected, edit: str) -> None:
    pairing = pair_keys(some, half=1, seed=2)
    assert torch.equal(pairing.slots, half_of(some, 1))
    whole = pair_keys(some, seed=2)
    assert torch.equal(whole.target[pairing.slots], pairing.target)  # a half draws what the whole draws
    assert bool((some.slots.sign[pairing.slots, pairing.target] == -1).all())
    (basis,) = random_bases(6, 2, 1, seed=9)
    donors = pairing.slots.flip(0)
    how: dict[str, Any] = {"pairing": pairing, "draws": 3, "seed": 5}
    if edit == "keys":
        none, one, full = swap_effects(some, {(0, 3): {"x": basis}}, **how)[0, 3]
    else:
        none, one, full = query_effects(some, (0, 3), {"x": basis}, donors, **how)

    def brute(P: Tensor | None) -> tuple[float, float, float]:
        given = zip(pairing.slots.tolist(), pairing.target.tolist(), donors.tolist(), strict=True)
        return moved([swapped(some, 3, s, t, P, None if edit == "keys" else d) for s, t, d in given])

    assert (one.orig, one.target, one.shift) == pytest.approx(brute(basis @ basis.T), abs=1e-9)
    assert (full.orig, full.target, full.shift) == pytest.approx(brute(None), abs=1e-9)
    assert none.shift == pytest.approx(0, abs=1e-12) and (none.rank, one.rank, full.rank) == (0, 2, 6)
    random = [brute(V @ V.T)[2] for V in random_bases(6, 2, 3, seed=5)]
    assert one.random == pytest.approx(sum(random) / 3, abs=1e-9)
    assert one.full == pytest.approx(full.shift)
    assert one.normalised == pytest.approx((one.shift - one.random) / (one.full - one.random))


def test_the_first_key_is_the_earliest(some: Collected) -> None:
    pairing = pair_keys(some, orig="first").first(6)
    assert pairing.orig is not None and pairing.orig.tolist() == [0] * 6
    turned = collected_of(*(x.flip(1) if x.dim() == 4 else x for x in parts(some)[:2]), some.slots.sign.flip(1))
    assert pair_keys(turned, orig="first").orig.tolist()[:3] == [4, 3, 4]  # type: ignore[union-attr]


# -- effects --------------------------------------------------------------------------------------------------------


def shifted(shift: Tensor) -> Move:
    zero = torch.zeros_like(shift)
    return Move(zero + 0.5, zero + 0.1, 0.5 - shift, 0.1 + shift)


def test_moves_are_told_as_the_mean_of_loss_and_gain() -> None:
    move = Move(*(torch.tensor(x) for x in ([0.6, 0.2], [0.1, 0.3], [0.2, 0.1], [0.3, 0.5])))
    assert move.shift.tolist() == pytest.approx([(0.4 + 0.2) / 2, (0.1 + 0.2) / 2])
    assert move.flipped == 0.5
    assert move.pair_share.tolist() == pytest.approx([0.3 / 0.5 - 0.1 / 0.7, 0.5 / 0.6 - 0.3 / 0.5])


def test_intervals_of_effects_are_95_percent() -> None:
    """Against the normal approximation, of a mean and of a ratio of means; a 68 % interval would be half as wide."""
    n, g = 400, seeded(0)
    one, full, random = (m + s * torch.randn(n, generator=g).double() for m, s in ((0.3, 0.1), (0.5, 0.1), (0.1, 0.02)))
    told = effect("x", 2, shifted(one), [shifted(random)], shifted(full))
    half = 1.96 * float(one.std()) / n**0.5
    assert (told.shift_interval[1] - told.shift_interval[0]) / 2 == pytest.approx(half, rel=0.1)
    ratio = float((one - random).mean() / (full - random).mean())
    assert told.normalised == pytest.approx(ratio)
    influence = ((one - random) - ratio * (full - random)) / float((full - random).mean())
    half = 1.96 * float(influence.std()) / n**0.5
    assert (told.interval[1] - told.interval[0]) / 2 == pytest.approx(half, rel=0.1)
    assert sum(told.interval) / 2 == pytest.approx(ratio, abs=0.2 * half)


def test_a_share_of_nothing_is_not_told() -> None:
    """Whole keys that move 9e-6 surely, and the feature three quarters of that: there is nothing to have a share of."""
    noise = 1e-7 * torch.randn(100, generator=seeded(0)).double()
    tiny = effect("x", 1, shifted(7e-6 + noise), [shifted(noise)], shifted(9e-6 + noise))
    assert tiny.still and math.isnan(tiny.normalised) and math.isnan(tiny.interval[0])
    row = swap_rows({"0.0": (tiny,)})[0]
    assert row[5] == "7e-06" and row[-1] == "moves nothing"
    clear = effect("x", 1, shifted(0.75 * NOTHING * 1.2 + noise), [shifted(noise)], shifted(NOTHING * 1.2 + noise))
    assert not clear.still and clear.normalised == pytest.approx(0.75, rel=1e-3)
    close = effect("x", 1, shifted(0.3 + noise), [shifted(0.3 + noise)], shifted(0.3 + NOTHING / 2 + noise))
    assert not close.still and swap_rows({"0.0": (close,)})[0][-1] == "-"  # random subspaces do as much


# -- attribution ----------------------------------------------------------------------------------------------------


def test_logits_are_split_as_the_query_is() -> None:
    model = tiny_model("gpt2")
    run = model.run(list(range(1, 12)))
    A, B = random_bases(8, 2, 2, seed=4)
    features = [Feature(name, (1, 2), U, U, torch.ones(2)) for name, U in (("a", A), ("b", B))]
    split = attribute(run, features, -2)
    record = run.attention_run(1)
    q, k = record.q[2, 9].double(), record.k[2, :10].double()
    q_a = A @ A.T @ q
    q_b = B @ B.T @ (q - q_a)
    c = record.rule.scaling
    assert torch.allclose(split.parts, c * torch.stack([k @ q_a, k @ q_b]), atol=1e-6)
    rest = c * k @ (q - q_a - q_b)
    assert torch.allclose(split.rest, rest, atol=1e-6)
    logits = c * k @ q
    assert split.explained == pytest.approx(1 - float(rest.square().sum() / logits.square().sum()), abs=1e-5)
    assert split.explained_differences == pytest.approx(1 - float(rest.var() / logits.var()), abs=1e-5)
    gap, through = split.gap([2, 5], [0, 1, 7])
    means = [x[[2, 5]].mean() - x[[0, 1, 7]].mean() for x in (logits, logits - rest)]
    assert (gap, through) == (pytest.approx(float(means[0]), abs=1e-5), pytest.approx(float(means[1]), abs=1e-5))


# -- answers --------------------------------------------------------------------------------------------------------


def test_answers_are_told_between_the_tokens_of_the_two_keys() -> None:
    model = tiny_model("llama")
    seen = collect(model, random_contrast(model, 12))
    heads = ((0, 1), (2, 3))
    nothing = torch.zeros(8, 0)
    result = answer_effects(seen, {head: {"x": nothing} for head in heads}, half=1, samples=4, draws=2)
    pairing = pair_keys(seen, half=1, orig="first").first(4)
    assert pairing.orig is not None and result.samples == 4
    before, whole, mass = [], {name: [] for name in ("0.1", "2.3", "all")}, 0.0
    for i, slot in enumerate(pairing.slots.tolist()):
        prompt, at = seen.slots.query[slot].tolist()
        o, t = (int(seen.slots.keys[slot, int(key[i]), 1]) for key in (pairing.orig, pairing.target))
        run = model.run(seen.resolved.prompts[prompt].ids[: at + 1])
        tokens = [run.token_ids[o], run.token_ids[t]]
        before.append(run.logits[-1, tokens].softmax(-1))
        mass += float(run.logits[-1].softmax(-1)[tokens].sum()) / 4
        edits = []
        for layer, head in heads:
            k = run.attention_run(layer).k[head // 2]
            delta = torch.zeros_like(k)
            delta[o], delta[t] = k[t] - k[o], k[o] - k[t]
            edits.append(HeadEdit(layer, head, keys=delta))
        out = rerun(run, [Edits((edits[0],)), Edits((edits[1],)), Edits(tuple(edits))]).captured.logits[:, -1, tokens]
        for name, logits in zip(whole, out.softmax(-1), strict=True):
            whole[name].append(torch.stack([before[-1], logits]))
    was = torch.stack(before)
    assert result.right == float((was[:, 0] > was[:, 1]).double().mean()) and result.mass == pytest.approx(
        mass, rel=1e-5
    )
    for name, rows in whole.items():
        nothing_done, full = result.heads[name]
        assert (nothing_done.orig, nothing_done.target) == pytest.approx(tuple(was.mean(0).tolist()), abs=1e-6)
        assert (full.orig, full.target, full.shift) == pytest.approx(moved(rows), abs=1e-6)


# -- the whole study ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def given() -> tuple[Model, Contrast]:
    model = tiny_model("gpt2")
    return model, random_contrast(model, 60)


def same(a: dict[Any, tuple[Effect, ...]], b: dict[Any, tuple[Effect, ...]]) -> bool:
    return {key: [repr(e) for e in row] for key, row in a.items()} == {k: [repr(e) for e in r] for k, r in b.items()}


@pytest.mark.parametrize("centre", CENTRES)
def test_a_study_of_one_contrast_fits_one_half_and_judges_by_the_other(
    given: tuple[Model, Contrast], centre: Any
) -> None:
    model, contrast = given
    seen = collect(model, contrast)
    how: dict[str, Any] = {"centre": centre, "permutations": 40, "seed": 0}
    found = study(model, {"x": contrast}, heads=[(1, 1)], settings=StudySettings(rank=2, answers=3, draws=2, **how))
    want = find_features(seen, half=0, **how)
    features = found.features["x"]
    assert torch.equal(features.S, want.S) and torch.equal(features.threshold, want.threshold)  # type: ignore[arg-type]
    assert not torch.allclose(features.S, find_features(seen, **how).S)
    assert found.ranking["x"] == rank_heads(want, seen, half=1, rank=2)
    assert found.attention == head_attention(seen, half=1)
    bases = {(1, 1): {"x": want.of((1, 1), 2).V}}
    swaps = swap_effects(seen, bases, pairing=pair_keys(seen, half=1), draws=2)
    assert same({(1, 1): found.swaps[1, 1]}, swaps)
    answers = answer_effects(seen, bases, half=1, samples=3)
    assert found.answers is not None and same(found.answers.heads, answers.heads)
    halves = [int((seen.slots.half == half).sum()) for half in (0, 1)]
    assert (features.samples, found.tested) == tuple(halves)
    told = record(found)
    assert told["samples"] == {"given": {"x": 60}, "fitted": {"x": halves[0]}, "tested": halves[1]}
    assert told["centre"] == centre
    assert f"60 samples of x, of which one half makes the feature ({halves[0]})" in summary(found)


def test_a_study_with_a_test_fits_all_and_judges_by_the_test(given: tuple[Model, Contrast]) -> None:
    model, contrast = given
    other = random_contrast(model, 30, seed=9)
    found = study(model, {"x": contrast}, other, settings=StudySettings(permutations=40, rank=2, answers=0))
    seen, test = collect(model, contrast), collect(model, other)
    want = find_features(seen, permutations=40)
    assert torch.equal(found.features["x"].S, want.S) and found.settings.centre == "each"
    assert found.ranking["x"] == rank_heads(want, test, rank=2) and found.attention == head_attention(test)
    assert "60 samples make x; 30 others judge" in summary(found)


def test_boxes_are_read_from_the_organism_as_before(organism: Model) -> None:
    """The binding heads have their lexical feature with and without the mean of all queries."""
    seen = collect(organism, box_contrast(120))
    for centre in CENTRES:
        found = find_features(seen, centre=centre, permutations=40)
        assert found.null is not None and int(found.null[1, 6]) >= 3
