"""Sparse decompositions over many prompts agree, pair by pair, with those of single pairs."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conftest import prompts_of, tiny_model
from drawn import check_drawn
from keyhole import KeyholeError, Model
from keyhole.figures.style import save
from keyhole.lab.channel_parts import Rule
from keyhole.lab.head_figures import (
    contributions_figure,
    n_recon_figure,
    slice_counts_figure,
    slice_map_figure,
    slices_figure,
)
from keyhole.lab.head_summary import agreement, pooled, spread, summaries, summarise
from keyhole.lab.sparse import SparseStudy, matched_text, sparse_study
from keyhole.qk.channels import n_recon, n_recon_each, sparsity, sparsity_each
from keyhole.qk.controls import ambient_sparsity, refactored, rotation_control, rotations, slice_sets, slice_use
from keyhole.qk.omega import omega
from keyhole.tasks import filler, ioi
from keyhole_papers.svt.slices import few_and_elsewhere

pytestmark = pytest.mark.xdist_group("sparse")  # its studies are made once


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [example.text for example in ioi(24)]


@pytest.fixture(scope="module")
def study(organism: Model, texts: list[str]) -> SparseStudy:
    return sparse_study(organism, texts, name="ioi", batch=10)


@pytest.fixture(scope="module")
def unrelated(organism: Model, texts: list[str]) -> SparseStudy:
    return sparse_study(organism, matched_text(organism, filler(100, seed=1), texts), name="filler")


@given(st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=12), st.sampled_from([0.7, 0.95, 1.0]))
def test_counts_of_many_pairs_are_those_of_one(values: list[float], tolerance: float) -> None:
    terms = torch.tensor([values, values[::-1]])
    found = n_recon_each(terms, terms.double().sum(-1), tolerance)
    for row, count in zip(terms, found.tolist(), strict=True):
        expected = n_recon(row, tolerance, float(row.double().sum()))
        assert math.isnan(count) if expected is None else count == expected
    one = sparsity(terms[0])
    assert float(sparsity_each(terms)[0]) == pytest.approx(one, nan_ok=True)


@pytest.mark.parametrize("variant", ["gpt2", "gpt_neox", "mistral", "qwen3", "bloom"])
def test_every_row_agrees_with_its_pair(variant: str) -> None:
    model = tiny_model(variant)
    prompts = prompts_of(model, 9, 14, 12)
    study = sparse_study(model, prompts, rule=Rule(threshold=0.4), batch=2)
    runs = [model.run(ids) for ids in prompts]
    assert len(study.tables) == 2 * 3 * 4 and study.error < 1e-4
    for table in study.tables:
        for i, (prompt, dest, src) in enumerate(table.pairs.tolist()[:6]):
            split = runs[prompt].channels((table.layer, table.head), dest, src)
            assert (split.attention >= 0.4) == table.firing and split.error < 1e-4
            assert float(table.attention[i]) == pytest.approx(split.attention, abs=1e-5)
            close = {"rel": 1e-3, "abs": 1e-4, "nan_ok": True}
            assert float(table.relative[i]) == pytest.approx(split.relative_attention, **close)
            assert float(table.sparsity[i]) == pytest.approx(split.sparsity, **close)
            for column, tolerance in ((table.n_recon, 1.0), (table.n_tolerant, 0.95)):
                expected = split.n_recon(tolerance)
                assert float(column[i]) == (
                    pytest.approx(expected) if expected else pytest.approx(math.nan, nan_ok=True)
                )


def test_pairs_and_slices_are_those_of_slice_use(study: SparseStudy, organism: Model, texts: list[str]) -> None:
    runs = organism.run_many(texts)
    for head in ((1, 5), (3, 1), (0, 6)):
        table, use = study.of(head), slice_use(runs, head)
        assert torch.equal(table.pairs, use.pairs)
        assert (table.used == use.used).double().mean() > 0.999  # another order of sums may flip a tie
        assert torch.equal(table.slices.long(), table.used.sum(-1)) and (table.slices >= 1).all()
        quiet = study.of(head, firing=False)
        for i, (prompt, dest, src) in enumerate(quiet.pairs.tolist()[:8]):
            split = runs[prompt].channels(head, dest, src, basis="homogeneous")
            assert (quiet.used[i] == slice_sets(split.terms[None])[0]).double().mean() > 0.9


def test_firing_is_the_papers(study: SparseStudy) -> None:
    for table in study.tables:
        assert ((table.attention >= 0.5) == table.firing).all()
        assert (table.pairs[:, 2] > 0).all()  # no pair, quiet or not, has the first token as its source
        defined = table.n_recon.isfinite()
        assert torch.equal(defined, table.relative > 0)
        assert ((table.n_recon >= 1) & (table.n_recon <= table.channels))[defined].all()
        assert (table.n_tolerant <= table.n_recon)[defined].all()
        assert (table.sparsity >= 1 / table.channels - 1e-9)[table.relative.isfinite()].all()


def test_batches_change_nothing(study: SparseStudy, organism: Model, texts: list[str]) -> None:
    seen: list[tuple[int, int]] = []
    some = sparse_study(organism, texts, heads=[(3, 1), (1, 5), (3, 1)], batch=1, progress=lambda *at: seen.append(at))
    assert some.heads == ((1, 5), (3, 1)) and seen[-1] == (24, 24)
    for head in some.heads:
        one, many = some.of(head), study.of(head)
        assert torch.equal(one.pairs, many.pairs)
        torch.testing.assert_close(one.sparsity, many.sparsity, rtol=1e-3, atol=1e-4)
        assert (one.n_recon == many.n_recon).double().mean() > 0.99


def test_rotated_bases_keep_every_sum_and_share_the_spectrum(study: SparseStudy, organism: Model, texts) -> None:
    g = torch.Generator().manual_seed(0)
    a, b, sigma = torch.randn(5, 8, generator=g), torch.randn(5, 8, generator=g), torch.rand(8, generator=g) + 0.1
    R = rotations(8, 3)
    torch.testing.assert_close(R @ R.mT, torch.eye(8).double().expand(3, -1, -1))
    turned = refactored(a, b, sigma, R)
    torch.testing.assert_close(turned.sum(-1), (a * b).sum(-1).double().expand(3, -1), rtol=1e-4, atol=1e-5)
    table = study.of((2, 7))
    prompt, dest, src = table.pairs[3].tolist()
    run = organism.run(texts[prompt])
    ambient = rotation_control(run, (2, 7), dest, src, kind="ambient", draws=400)
    assert table.ambient == pytest.approx(ambient.mean_rotated, abs=0.02)  # one number, whatever the tokens are
    refactor = rotation_control(run, (2, 7), dest, src, kind="refactor", draws=400)
    assert float(table.rotated[3]) == pytest.approx(refactor.mean_rotated, abs=0.08)
    assert table.ambient == pytest.approx(ambient_sparsity(omega(organism, 2).sigma[7]))


def test_the_organism_is_sparse_in_its_singular_basis(study: SparseStudy, unrelated: SparseStudy) -> None:
    for one in (study, unrelated):
        firing, quiet = pooled(one), pooled(one, firing=False)
        assert firing.sparser.high < 0 and firing.fewer.high < 0 and firing.slices_fewer.high < 0
        assert firing.below_rotated.low > 0.85 and firing.sparsity.high < quiet.sparsity.low
        assert firing.n_recon.low > quiet.n_recon.high  # small totals are reached at once, in any basis
    clear = [summary.sparser.high < 0 for summary in summaries(study)]
    assert sum(clear) >= 0.9 * len(clear) and len(clear) == len(study.firing_heads())
    alike = agreement(study, (2, 7))
    assert alike.firing > alike.between and alike.firing > alike.chance


def test_reshuffled_sets_keep_their_own_sizes(study: SparseStudy) -> None:
    alike = agreement(study, (2, 7))
    table, quiet = study.of((2, 7)), study.of((2, 7), firing=False)
    full = replace(table, used=torch.ones_like(table.used))
    others = tuple(one for one in study.tables if one is not table and one is not quiet)
    firing_always = agreement(replace(study, tables=(*others, full, quiet)), (2, 7))
    assert firing_always.chance == 1  # sets of all slices cannot be reshuffled
    assert firing_always.chance_quiet == pytest.approx(alike.chance_quiet, abs=0.05) and alike.chance_quiet < 0.5


def test_spreads_cover_their_mean_and_ignore_the_undefined() -> None:
    values = torch.tensor([1.0, 2.0, 3.0, 4.0, math.nan])
    of = spread(values, torch.tensor([0, 0, 5, 6, 7]))
    assert (of.count, of.mean, of.median) == (4, 2.5, 2.0) and of.low < 2.5 < of.high
    same = spread(torch.ones(6), torch.arange(6))
    assert same.low == same.high == same.mean == 1
    assert spread(values[4:], torch.tensor([0])).count == 0
    alone = spread(-torch.ones(20), torch.zeros(20, dtype=torch.long))
    assert alone.mean == -1 and math.isnan(alone.low) and math.isnan(alone.high)  # one prompt proves nothing


def test_heads_are_counted_by_prompts(study: SparseStudy) -> None:
    table = study.of((2, 7))
    few = replace(table, pairs=table.pairs * torch.tensor([0, 1, 1]))  # all of one prompt
    crowded = replace(study, tables=(few, study.of((2, 7), firing=False)))
    assert len(few) >= 20 and crowded.firing_heads() == () and crowded.firing_heads(least=1) == ((2, 7),)


def test_small_totals_keep_two_digits(organism: Model, texts: list[str]) -> None:
    split = organism.run(texts[0]).channels((2, 7), 6, 3)
    totals = {-0.0123: "-0.012", 2.0: "2.0", 28.13: "28", 123.4: "123"}
    figure = contributions_figure([replace(split, score=total) for total in totals])
    for axis, told in zip(figure.axes, totals.values(), strict=True):
        assert f": {told} from " in axis.get_title(loc="left")
    turned = contributions_figure([split], relative=True, rotated=True)
    assert turned.axes[0].get_xlabel() == "rotated channel"


def test_slices_are_few_before_anything_else_is_asked() -> None:
    many = [15] * 40
    assert few_and_elsewhere(3, 2, 16, many) == [True, False]  # beyond the chance of 9/16
    assert few_and_elsewhere(12, 9, 64, many) == [True, False] and few_and_elsewhere(12, 2, 64, many) == [True, True]
    assert few_and_elsewhere(10, 0, 16, many) == [False, False]
    rotated = [[12] * often + [15] * (40 - often) for often in (2, 3)]  # as few in 5 % of rotated bases, and in more
    assert [few_and_elsewhere(12, 2, 64, others) for others in rotated] == [[True, True], [False, False]]


def test_sets_in_rotated_bases_are_compared_too(study: SparseStudy) -> None:
    head = study.firing_heads()[0]
    table = study.of(head)
    assert table.used_rotated.shape == (len(table), study.draws, table.used.shape[1])
    alike = agreement(study, head)
    assert len(alike.rotated) == len(alike.rotated_quiet) == study.draws
    same = replace(table, used_rotated=table.used[:, None].expand(-1, study.draws, -1))
    tables = tuple(same if one is table else one for one in study.tables)
    assert set(agreement(replace(study, tables=tables), head).rotated) == {alike.firing}


def test_figures_are_drawn(study: SparseStudy, unrelated: SparseStudy, organism: Model, texts, tmp_path: Path) -> None:
    run = organism.run(texts[0])
    splits = [run.channels((2, 7), 6, 3), run.channels((3, 0), 9, 9)]
    figures = [
        n_recon_figure([study, unrelated]),
        slices_figure([study], [(0, 3), (2, 7)]),
        slice_counts_figure([study, unrelated]),
        slice_map_figure(study, [(2, 7), (0, 3)]),
        contributions_figure(splits),
        contributions_figure(splits, relative=True),
    ]
    for i, figure in enumerate(figures):
        check_drawn(figure, save(figure, tmp_path / f"{i}.png"))
    for refused in (lambda: n_recon_figure([]), lambda: slice_map_figure(study, []), lambda: contributions_figure([])):
        with pytest.raises(KeyholeError, match="at least one"):
            refused()


def test_matched_text_is_as_long_as_the_prompts(organism: Model, texts: list[str]) -> None:
    pieces = matched_text(organism, filler(40), texts[:5])
    assert [len(piece) for piece in pieces] == [len(organism.run(text)) for text in texts[:5]]
    assert len({piece[0] for piece in pieces}) == 1  # the beginning-of-sequence token stands first in each
    with pytest.raises(KeyholeError, match="used up"):
        matched_text(organism, filler(2), texts)


def test_bad_requests_are_named(organism: Model, study: SparseStudy, texts: list[str]) -> None:
    few = texts[:2]
    with pytest.raises(KeyholeError, match="no prompts"):
        sparse_study(organism, [])
    with pytest.raises(KeyholeError, match="no prompts"):
        sparse_study(organism, "When Mary and John")
    for head in ((9, 0), (0, 8)):
        with pytest.raises(KeyholeError, match=f"no head {head[0]}.{head[1]}"):
            sparse_study(organism, few, heads=[head])
    with pytest.raises(KeyholeError, match="no head was chosen"):
        sparse_study(organism, few, heads=[])
    with pytest.raises(KeyholeError, match="none of these 1 heads fires"):
        sparse_study(organism, few, heads=[(0, 3)], rule=Rule(threshold=1.0))
    for bad in ({"rule": Rule(threshold=0.0)}, {"tolerance": 2.0}, {"draws": 0}, {"rule": Rule(quiet=0)}):
        with pytest.raises(KeyholeError, match=r"above 0|at least one"):
            sparse_study(organism, few, **bad)
    with pytest.raises(KeyholeError, match=r"head 7\.7 is not in this study"):
        study.of((7, 7))
    with pytest.raises(KeyholeError, match="all of firing pairs"):
        summarise([study.of((1, 5)), study.of((1, 5), firing=False)])
