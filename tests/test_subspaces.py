"""Features of several dimensions are found whole, and independent ones are never merged."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from keyhole.features.contrast.places import split_groups
from keyhole.features.discovery.discovery import discover
from keyhole.features.discovery.features import (
    LEAST,
    LEVEL,
    Dependence,
    Discovery,
    energy_dependence,
    merged,
    weaker_side,
)
from keyhole.features.discovery.keys import Samples, samples_of
from test_discover import coins, gaussian, planted, planted_maps, seeded


def sphere(*shape: int, seed: int) -> Tensor:
    """Of unit variance in every direction."""
    return torch.nn.functional.normalize(gaussian(*shape, seed=seed), dim=-1) * shape[-1] ** 0.5


def independent(n: int, keys: int, seed: int) -> Tensor:
    """Two signs, a uniform, a normal and two heavy-tailed latents."""
    flat = (torch.rand(n, keys, 1, generator=seeded(seed)).double() - 0.5) * 12**0.5
    heavy = gaussian(n, keys, 2, seed=seed + 1) * gaussian(n, keys, 2, seed=seed + 2)
    return torch.cat([coins(n, keys, 2, seed=seed + 3), flat, gaussian(n, keys, 1, seed=seed + 4), heavy], dim=-1)


@pytest.fixture(scope="module")
def mixed() -> tuple[Samples, Discovery]:
    """A ring, a sphere of rank three, two signs and a uniform latent, in this order."""
    rest = independent(3000, 8, seed=20)[..., :3]
    latents = torch.cat([sphere(3000, 8, 2, seed=1), sphere(3000, 8, 3, seed=2), rest], dim=-1)
    samples = samples_of(*planted(latents, 12))
    return samples, discover(samples, refits=1)


def held_out(samples: Samples) -> Samples:
    return samples.where(split_groups(samples.group, 0) == 1)


def test_features_of_several_dimensions_are_found_whole(mixed: tuple[Samples, Discovery]) -> None:
    _, found = mixed
    assert sorted(one.rank for one in found.subspaces) == [1, 1, 1, 2, 3]
    assert sorted(j for one in found.subspaces for j in one.members) == list(range(8))
    Q, K = planted_maps(12, 8)
    for known in ([0, 1], [2, 3, 4], [5], [6], [7]):
        near = [torch.cat(one.cosines(Q[:, known], K[:, known])).min() for one in found.subspaces]
        best = found.subspaces[int(torch.stack(near).argmax())]
        assert best.rank == len(known) and max(near) > 0.99
        assert best.query_basis.shape == best.key_basis.shape == (12, best.rank)
        if best.rank > 1:
            assert best.dependence is not None and best.p is not None
            assert best.dependence == pytest.approx(2 / (best.rank + 2), abs=0.05) and best.p <= LEVEL
        else:
            assert best.dependence is None and best.p is None


def test_shares_of_subspaces_are_those_of_the_held_out_gap(mixed: tuple[Samples, Discovery]) -> None:
    samples, found = mixed
    held = held_out(samples)
    shares = [one.share for one in found.subspaces]
    assert shares == sorted(shares, reverse=True) and all(one.share_error > 0 for one in found.subspaces)
    for one in found.subspaces:
        A_q = torch.stack([found.features[j].query.pattern for j in one.members])
        A_k = torch.stack([found.features[j].key.pattern for j in one.members])
        asked, offered = (
            values[:, list(one.members)] @ A
            for values, A in (
                (found.query_sources(held.q), A_q),
                (found.key_sources(held.attended) - found.key_sources(held.rest), A_k),
            )
        )
        term = found.scaling * (asked * offered).sum(1).mean()
        assert one.share == pytest.approx(float(term) / found.gap)
        assert one.share == pytest.approx(one.rank / 8, abs=0.03)  # every latent counts alike
    assert abs(found.between) < 0.02


def test_a_share_is_the_same_however_its_features_are_turned(mixed: tuple[Samples, Discovery]) -> None:
    samples, found = mixed
    (ring,) = [one for one in found.subspaces if one.rank == 2]
    i, j = ring.members
    a, b = found.features[i].query, found.features[j].query
    c, s = 0.6, 0.8
    turned = list(found.features)
    for at, (x, y, sign) in ((i, (a, b, 1)), (j, (b, a, -1))):
        names = ("direction", "offset", "pattern")
        side = replace(x, **{name: c * getattr(x, name) + sign * s * getattr(y, name) for name in names})
        turned[at] = replace(found.features[at], query=side)
    other, held = replace(found, features=tuple(turned)), held_out(samples)
    assert not torch.allclose(other.query_sources(held.q), found.query_sources(held.q), atol=0.1)
    terms = found.subspace_terms(held.q, held.attended)
    assert torch.allclose(other.subspace_terms(held.q, held.attended), terms, atol=1e-9)


def test_independent_features_stay_apart() -> None:
    for seed in range(0, 50, 10):
        found = discover(samples_of(*planted(independent(2000, 8, seed), 8)), refits=1, permutations=99)
        assert [one.rank for one in found.subspaces] == [1] * 6
        assert [one.share for one in found.subspaces] == pytest.approx([f.share for f in found.features])
        assert found.between == pytest.approx(found.cross)


def test_traces_that_signs_leave_in_each_other_merge_none() -> None:
    samples = samples_of(*planted(coins(1500, 8, 8, seed=0), 12))
    found, held = discover(samples, refits=1), held_out(samples)
    energies = torch.corrcoef(found.query_sources(held.q).square().T).fill_diagonal_(0)
    assert energies.abs().max() > 0.3  # though there is next to no energy to vary
    assert [one.rank for one in found.subspaces] == [1] * 8


def test_independent_sources_depend_as_often_as_the_level_says() -> None:
    seeds, level = 120, 0.05
    tables = [energy_dependence(independent(150, 1, 10 * s)[:, 0], permutations=39, seed=s).p for s in range(seeds)]
    rate = sum(bool((p <= level).any()) for p in tables) / seeds
    assert 0 < rate <= 0.11  # within three standard errors


def test_samples_of_a_group_are_no_further_evidence() -> None:
    """Prompts in which one feature is loud and others in which another is: few prompts show no dependence."""
    groups, wrong, alone = torch.arange(600) // 30, 0, 0
    for seed in range(20):
        loud = (2 + coins(20, 3, seed=seed))[groups]
        S = loud * coins(600, 3, seed=100 + seed)
        wrong += bool((energy_dependence(S, groups, permutations=39).p <= 0.05).any())
        alone += bool((energy_dependence(S, permutations=39).p <= 0.05).any())
    assert wrong <= 4 < 10 <= alone


def test_both_sides_must_depend() -> None:
    """By size and beyond doubt."""
    one = torch.ones(2, 2).double()
    ring, weak, doubtful = Dependence(-0.5 * one, LEVEL * one), Dependence(0.1 * one, LEVEL * one), Dependence(one, one)
    for other in (weak, doubtful):
        for sides in ((ring, other), (other, ring)):
            both = weaker_side(*sides)
            assert not bool(((both.value >= LEAST) & (both.p <= LEVEL)).any())
    assert bool((weaker_side(ring, ring).value == 0.5).all())


@pytest.mark.parametrize("seed", range(4))
def test_order_and_signs_of_components_do_not_matter(mixed: tuple[Samples, Discovery], seed: int) -> None:
    samples, found = mixed
    order = torch.randperm(8, generator=seeded(seed))
    signs = coins(8, seed=seed).tolist()

    def flipped(j: int, sign: float) -> object:
        feature = found.features[j]
        sides = {
            name: replace(side, direction=sign * side.direction, offset=sign * side.offset, pattern=sign * side.pattern)
            for name, side in (("query", feature.query), ("key", feature.key))
        }
        return replace(feature, **sides)

    features = tuple(flipped(j, sign) for j, sign in zip(order.tolist(), signs, strict=True))
    again = merged(
        replace(found, features=features),
        held_out(samples),
        permutations=99,
        seed=seed,  # type: ignore[arg-type]
    )
    back = [{int(order[j]) for j in one.members} for one in again.subspaces]
    assert sorted(map(sorted, back)) == sorted(sorted(one.members) for one in found.subspaces)
    shares = {frozenset(one.members): one.share for one in found.subspaces}
    for members, one in zip(back, again.subspaces, strict=True):
        assert one.share == pytest.approx(shares[frozenset(members)])
