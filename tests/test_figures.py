"""Every figure renders from synthetic data, shows what it was given, and refuses what it cannot show."""

import math
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import rcParams
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from drawn import MAGIC, check_drawn
from keyhole.errors import KeyholeError
from keyhole.features.contrast.clouds import joint_pca, pca_figure, umap_figure
from keyhole.features.contrast.figures import attribution_figure, interaction_figure, intervention_figure, stack
from keyhole.features.contrast.moves import Effect
from keyhole.features.contrast.study_figures import RankCurve, plateau, rank_figure, rank_grid_figure, spectrum_figure
from keyhole.figures import save
from keyhole.figures.network import Carried, TokenEdge, network_figure
from keyhole.figures.style import BLUE, GREY, PALETTE, SUFFIXES, blank, colours, heading, legend, plain


def written(figure: Figure, folder: Path, *suffixes: str) -> None:
    for suffix in suffixes or (".png", ".svg"):
        check_drawn(figure, save(figure, folder / f"figure{suffix}"))


def test_an_empty_panel_is_not_drawn(tmp_path: Path) -> None:
    """What the other tests rely on: a panel without marks, or with marks out of sight, is noticed."""
    for draw in (lambda axis: None, lambda axis: axis.plot([math.nan], [1.0]), lambda axis: axis.plot([], [])):
        figure = blank(3.0, 2.0)
        draw(figure.subplots())
        with pytest.raises(AssertionError):
            written(figure, tmp_path)
    figure = blank(3.0, 2.0)
    axis = figure.subplots()
    axis.plot([5.0, 6.0], [5.0, 6.0])
    axis.set(xlim=(0, 1), ylim=(0, 1))
    with pytest.raises(AssertionError):
        check_drawn(figure, save(figure, tmp_path / "figure.png"))


def entries(figure: Figure) -> list[str]:
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def points(labels: int = 4, d: int = 5, n: int = 60) -> tuple[torch.Tensor, torch.Tensor, list[str], list[str]]:
    """Clusters of queries and keys: a key lies beside the queries of its label."""
    generator = torch.Generator().manual_seed(labels)
    centres = 3 * torch.randn(labels, d, generator=generator)
    which = torch.arange(2 * n) % labels
    placed = centres[which] + 0.2 * torch.randn(2 * n, d, generator=generator)
    names = [f"label {i}" for i in which.tolist()]
    return placed[:n], placed[n:] + 0.5, names[:n], names[n:]


# Style


def test_saves_by_suffix_and_refuses_others(tmp_path: Path) -> None:
    figure = spectrum_figure(torch.tensor([2.0, 1.0]))
    written(figure, tmp_path, *SUFFIXES)
    with pytest.raises(KeyholeError, match=r"\.png, \.svg or \.pdf"):
        save(figure, tmp_path / "figure.jpg")
    with pytest.raises(KeyholeError, match="there is no folder"):
        save(figure, tmp_path / "nowhere" / "figure.png")


def test_figures_leave_global_state_alone_and_show_themselves() -> None:
    before = dict(rcParams)
    figure = spectrum_figure(torch.tensor([2.0, 1.0]))
    assert figure._repr_png_().startswith(MAGIC[".png"])  # type: ignore[attr-defined]
    assert dict(rcParams) == before


def lab(linear: np.ndarray) -> np.ndarray:
    xyz = linear @ np.array([[0.4124, 0.2126, 0.0193], [0.3576, 0.7152, 0.1192], [0.1805, 0.0722, 0.9505]])
    f = np.cbrt(np.maximum(xyz / [0.9505, 1, 1.089], 1e-9))
    return np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], axis=1)


def test_palette_survives_colour_blindness() -> None:
    rgb = np.array([to_rgb(colour) for colour in PALETTE])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    deutan = [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]  # Machado et al. 2009
    protan = [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]
    for eye in (np.eye(3), np.array(deutan), np.array(protan)):
        seen = lab(np.clip(linear @ eye.T, 0, 1))
        nearest = min(float(np.linalg.norm(a - b)) for a, b in combinations(seen, 2))
        assert nearest > 15  # 2.3 is just noticeable


def test_colours() -> None:
    assert len(PALETTE) == len(set(PALETTE)) == 13
    assert len(set(colours(30, ordered=True))) == 30
    assert colours(1, ordered=True) and colours(0) == []
    with pytest.raises(KeyholeError, match="14 colours"):
        colours(14)


def test_long_titles_wrap_and_dollars_are_text(tmp_path: Path) -> None:
    figure = blank(3.0, 2.0)
    heading(figure, "a word " * 20)
    assert figure.get_suptitle().count("\n") >= 3
    assert plain("$5\n") == r"\$5↵"
    tokens = ["$x", "{_$", "\n"]
    written(attribution_figure(tokens, torch.ones(1, 3), torch.ones(3), ["$a_b$"]), tmp_path)


# PCA and UMAP


def test_joint_pca_is_fitted_on_the_union() -> None:
    queries, keys, _, _ = points()
    pca = joint_pca(queries, keys)
    union = torch.cat([queries, keys]).double()
    values = torch.linalg.eigvalsh(torch.cov(union.T)).flip(0)
    assert torch.allclose(pca.shares, (values / values.sum())[:3])
    placed = torch.cat([pca.queries, pca.keys])
    assert placed.mean(0).abs().max() < 1e-12  # the mean is the union's, not either side's
    assert pca.queries.mean(0).abs().max() > 0.01
    assert torch.allclose(torch.cov(placed.T), torch.diag(values[:3]), atol=1e-10)


def test_joint_pca_keeps_distances_and_is_the_same_for_swapped_sides() -> None:
    queries, keys, _, _ = points(d=3)
    pca, swapped = joint_pca(queries, keys), joint_pca(keys, queries)
    assert torch.allclose(torch.cdist(pca.queries, pca.keys), torch.cdist(queries.double(), keys.double()))
    assert torch.allclose(pca.queries, swapped.keys) and torch.allclose(pca.shares, swapped.shares)


@pytest.mark.parametrize("d", [1, 2, 3, 6])
def test_joint_pca_gives_no_more_components_than_there_are(d: int) -> None:
    queries, keys, _, _ = points(d=d)
    lifted = torch.randn(d, 8, generator=torch.Generator().manual_seed(0))
    pca = joint_pca(queries @ lifted, keys @ lifted)
    assert len(pca.shares) == pca.queries.shape[1] == min(3, d)


def test_joint_pca_refuses() -> None:
    for bad in (torch.ones(3, 2), torch.zeros(3, 2), 1e6 + torch.zeros(3, 2), torch.full((3, 2), 0.1)):
        with pytest.raises(KeyholeError, match="all points are equal"):
            joint_pca(bad, bad)
    with pytest.raises(KeyholeError, match="not finite"):
        joint_pca(torch.tensor([[1.0, math.nan]]), torch.ones(1, 2))
    with pytest.raises(KeyholeError, match="nothing to place"):
        joint_pca(torch.ones(0, 2), torch.ones(0, 2))


@pytest.mark.parametrize(("labels", "d", "panels"), [(3, 5, 3), (13, 5, 3), (1, 4, 3), (4, 2, 1), (4, 1, 1)])
def test_pca_figure(labels: int, d: int, panels: int, tmp_path: Path) -> None:
    queries, keys, query_labels, key_labels = points(labels, d)
    figure = pca_figure(queries, keys, query_labels, key_labels)
    assert len(figure.axes) == panels
    for axis in figure.axes:
        drawn_keys, drawn_queries = axis.collections
        assert (len(drawn_queries.get_offsets()), len(drawn_keys.get_offsets())) == (60, 60)
        assert len({to_hex(c) for c in drawn_keys.get_facecolors()}) == labels
        assert len({to_hex(c) for c in drawn_queries.get_edgecolors()}) == labels
        assert len(drawn_queries.get_facecolors()) == 0  # outlines: keys are seen through them
    share = 100 * float(joint_pca(queries, keys).shares[0])
    assert figure.axes[0].get_xlabel() == f"PC 1 ({share:.0f} % of variance)"
    assert entries(figure) == [*sorted({f"label {i}" for i in range(labels)}), "queries", "keys"]
    written(figure, tmp_path)


def test_pca_figure_draws_a_seeded_sample_of_a_fit_on_all() -> None:
    queries, keys, query_labels, key_labels = points(n=300)
    options: dict[str, Any] = {"points": 100}
    first, again, other = (
        pca_figure(queries, keys[:20], query_labels, key_labels[:20], seed=seed, **options) for seed in (0, 0, 1)
    )
    offsets = [[np.asarray(c.get_offsets()) for c in figure.axes[0].collections] for figure in (first, again, other)]
    assert [len(side) for side in offsets[0]] == [20, 80]  # few keys leave their room to queries
    assert all(np.array_equal(a, b) for a, b in zip(offsets[0], offsets[1], strict=True))
    assert not np.array_equal(offsets[0][1], offsets[2][1])
    assert first.axes[0].get_xlabel() == other.axes[0].get_xlabel()


def test_pca_figure_with_one_side_in_order_and_solid(tmp_path: Path) -> None:
    queries, keys, query_labels, key_labels = points(labels=6)
    only_keys = pca_figure(queries[:0], keys, [], [int(name[-1]) + 8 for name in key_labels], ordered=True)
    assert entries(only_keys) == ["8", "9", "10", "11", "12", "13", "keys"]  # numbers sort as numbers
    solid = pca_figure(queries, keys, query_labels, key_labels, view="solid")
    assert [axis.name for axis in solid.axes] == ["3d"]
    written(solid, tmp_path)


def test_pca_figure_refuses() -> None:
    queries, keys, query_labels, key_labels = points()
    with pytest.raises(KeyholeError, match="no points"):
        pca_figure(queries[:0], keys[:0], [], [])
    with pytest.raises(KeyholeError, match="one label for each point"):
        pca_figure(queries, keys, query_labels[1:], key_labels)
    with pytest.raises(KeyholeError, match="at least one point"):
        pca_figure(queries, keys, query_labels, key_labels, points=0)
    with pytest.raises(KeyholeError, match="ordered=True"):
        pca_figure(queries, keys, list(range(60)), list(range(60)))


@pytest.mark.parametrize(("dims", "panels"), [(2, 1), (3, 3)])
def test_umap_figure_settings(dims: Any, panels: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, Any] = {}

    class Stub:
        def __init__(self, **options: Any) -> None:
            asked.update(options)

        def fit_transform(self, x: np.ndarray) -> np.ndarray:
            return x[:, : asked["n_components"]]

    monkeypatch.setitem(sys.modules, "umap", types.SimpleNamespace(UMAP=Stub))
    queries, keys, query_labels, key_labels = points()
    figure = umap_figure(queries, keys, query_labels, key_labels, dims=dims)
    assert asked == {
        "n_components": dims, "n_neighbors": 30, "min_dist": 0.7, "metric": "cosine", "random_state": 99, "n_jobs": 1
    }  # fmt: skip
    assert len(figure.axes) == panels and len(entries(figure)) == 6
    written(figure, tmp_path)


@pytest.mark.slow
def test_umap_figure_keeps_clusters_apart() -> None:
    queries, keys, query_labels, key_labels = points(labels=3, n=40)
    figure = umap_figure(queries, keys, query_labels, key_labels)
    drawn_keys, drawn_queries = figure.axes[0].collections
    placed = np.concatenate([drawn_keys.get_offsets(), drawn_queries.get_offsets()])
    shades = np.array([to_hex(c) for c in (*drawn_keys.get_facecolors(), *drawn_queries.get_edgecolors())])
    distances = np.linalg.norm(placed[:, None] - placed[None], axis=-1) + np.diag(np.full(len(placed), np.inf))
    assert (shades[distances.argmin(1)] == shades).mean() > 0.95


def test_umap_figure_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, keys, query_labels, key_labels = points()
    with pytest.raises(KeyholeError, match="use pca_figure"):
        umap_figure(queries[:4], keys[:5], query_labels[:4], key_labels[:5])
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(KeyholeError, match=r"pip install 'keyhole\[cluster\]'"):
        umap_figure(queries, keys, query_labels, key_labels)


# Ranks


@pytest.mark.parametrize(
    ("ranks", "begins"),
    [
        ((1, 2, 3, 3, 3), 4),
        ((1, 2, 3, 4, 5), None),
        ((9, 10, 9, 10, 9), 3),
        ((4, 4, 4, 4, 4), 2),
        ((1, 5, 5, 5, 6), None),
        ((1, 4, 5, 5, 6), None),
        ((1, 6, 6, 5, 5), 3),
    ],
)
def test_plateau(ranks: tuple[int, ...], begins: int | None) -> None:
    assert plateau((2, 3, 4, 5, 6), ranks) == begins


def test_a_slow_rise_is_no_plateau() -> None:
    assert plateau(range(2, 10), (1, 2, 3, 4, 5, 6, 6, 7)) is None
    assert plateau(range(2, 10), (1, 2, 3, 4, 5, 6, 6, 6)) == 7


def test_rank_figure(tmp_path: Path) -> None:
    entities = (2, 3, 4, 5, 6)
    curves = [
        RankCurve("16.1", entities, (1, 2, 3, 3, 3), (1, 1, 2, 2, 2)),
        RankCurve("20.1", entities, (1, 2, 3, 4, 5)),
    ]
    figure = rank_figure(curves)
    energy, null = figure.axes
    assert len(energy.lines) == 2 + 1 + 1  # two heads, one ring, the diagonal
    assert len(null.lines) == 1 + 1 + 1
    assert [line.get_xdata()[0] for line in energy.lines if len(line.get_xdata()) == 1] == [4]
    assert np.allclose(energy.lines[0].get_ydata(), curves[0].energy, atol=0.1)  # moved a little, to stay visible
    assert entries(figure) == ["16.1", "20.1", "one per entity", "plateau begins"]
    written(figure, tmp_path)
    assert len(rank_figure(curves[1:]).axes) == 1  # without a null, no second panel


def test_rank_figure_refuses() -> None:
    with pytest.raises(KeyholeError, match="at least one RankCurve"):
        rank_figure([])
    for bad in (RankCurve("a", (2, 3), (1,)), RankCurve("a", (2, 3), (1, 2), (1,)), RankCurve("a", (), ())):
        with pytest.raises(KeyholeError, match="one rank for each number"):
            rank_figure([bad])
    with pytest.raises(KeyholeError, match="do not rise"):
        rank_figure([RankCurve("a", (3, 2), (1, 2))])


def test_rank_grid(tmp_path: Path) -> None:
    r1, r2 = [2, 3, 4], [2, 4, 6, 8]
    recovered = torch.tensor([[[a, b] for b in r2] for a in r1])
    recovered[2, 3] = torch.tensor([2, 5])
    recovered[0, 3] = -1
    figure = rank_grid_figure(recovered, r1, r2, 8)
    axis = figure.axes[0]
    texts = {(int(t.get_position()[1]), int(t.get_position()[0])): t.get_text() for t in axis.texts}
    assert len(texts) == 11 and texts[0, 0] == "2, 2" and texts[2, 3] == "2, 5" and (0, 3) not in texts
    missed = axis.images[0].get_array()
    assert missed[2, 3] == 5 and missed[0, 0] == 0 and np.ma.getmaskarray(missed)[0, 3]
    edges = {(tuple(line.get_xdata()), tuple(line.get_ydata())) for line in axis.lines}
    # sums up to 8 fit: columns r2 = 2, 4, 6 beside r1 = 2; 2, 4 beside 3; 2, 4 beside 4
    assert edges == {
        ((2.5, 2.5), (-0.5, 0.5)),
        ((1.5, 1.5), (0.5, 1.5)),
        ((1.5, 1.5), (1.5, 2.5)),
        ((1.5, 2.5), (0.5, 0.5)),
    }
    assert entries(figure) == ["r1 + r2 = d_head"]
    written(figure, tmp_path)
    assert rank_grid_figure(torch.tensor([[[1, 1]]]), [1], [1], 8).legends == []  # the border lies outside


def test_rank_grid_refuses() -> None:
    with pytest.raises(KeyholeError, match="one row for each r1"):
        rank_grid_figure(torch.ones(2, 2, 2, dtype=torch.long), [1], [1, 2], 8)
    with pytest.raises(KeyholeError, match="at least one"):
        rank_grid_figure(torch.ones(0, 2, 2, dtype=torch.long), [], [1, 2], 8)


def test_spectrum(tmp_path: Path) -> None:
    S = torch.tensor([5.0, 3.0, 0.4, 0.35, 0.1])
    null = torch.tensor([1.0, 0.8, 0.5, 0.3, 0.2])
    figure = spectrum_figure(S, null)
    axis = figure.axes[0]
    blue = next(line for line in axis.lines if line.get_color() == BLUE)
    assert np.allclose(blue.get_ydata(), [5, 3])  # the fourth is above its level, but behind one that is not
    assert entries(figure) == ["99 % of energy: rank 2", "95 % of permutations", "above them: rank 2"]
    written(figure, tmp_path)
    assert entries(spectrum_figure(S[:1])) == ["99 % of energy: rank 1"]
    assert spectrum_figure(S, 10 * null).axes[0].get_ylim()[1] > 10  # the null's line is never cut off


def test_spectrum_refuses() -> None:
    for bad in (torch.ones(0), torch.zeros(3), torch.tensor([math.inf, 1.0]), torch.tensor([1.0, -1.0])):
        with pytest.raises(KeyholeError, match="no spectrum"):
            spectrum_figure(bad)
    with pytest.raises(KeyholeError, match="one for each"):
        spectrum_figure(torch.ones(3), torch.ones(2))


# Attribution


@given(st.lists(st.lists(st.floats(-9, 9), min_size=4, max_size=4), min_size=1, max_size=6))
def test_stacks_sum_to_the_total_and_do_not_overlap(rows: list[list[float]]) -> None:
    table = torch.tensor(rows, dtype=torch.float64)
    bars = stack(table[:, :3].T, table[:, 3])
    assert (bars.heights.sum(0) - table[:, 3]).abs().max() < 1e-6
    ends = bars.bottoms + bars.heights
    assert (ends.clamp(min=0).amax(0) + ends.clamp(max=0).amin(0) - table[:, 3]).abs().max() < 1e-6
    for token in range(len(rows)):
        spans = sorted((min(a, b), max(a, b)) for a, b in zip(bars.bottoms[:, token], ends[:, token], strict=True))
        spans = [span for span in spans if span[1] - span[0] > 1e-9]
        assert all(low[1] <= high[0] + 1e-9 for low, high in pairwise(spans))


@pytest.mark.parametrize("n", [1, 10, 100])
def test_attribution_figure(n: int, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(n)
    parts, total = torch.randn(2, n, generator=generator), torch.randn(n, generator=generator)
    tokens = [f"t{i}" for i in range(n)]
    figure = attribution_figure(tokens, parts, total, ["order", "lexical"], marked=[0])
    (axis,) = figure.axes
    order, lexical, rest = axis.containers
    heights = torch.tensor([[float(bar.get_height()) for bar in bars] for bars in (order, lexical, rest)])
    assert torch.allclose(heights.sum(0), total, atol=1e-6) and torch.allclose(heights[:2], parts)
    assert [to_hex(bars[0].get_facecolor()) for bars in (order, rest)] == [BLUE, GREY]
    dots = next(line for line in axis.lines if line.get_marker() == "o")
    assert np.allclose(dots.get_ydata(), total.numpy())
    labels = axis.get_xticklabels()
    assert [label.get_text() for label in labels] == tokens  # none is skipped
    assert [label.get_fontweight() for label in labels[:2]] == ["bold", "normal"][: len(labels)]
    assert entries(figure) == ["order", "lexical", "unexplained rest", "logit"]
    written(figure, tmp_path)
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in labels]
    assert n < 100 or all(a.x1 <= b.x0 + 0.5 for a, b in pairwise(boxes))


def test_attribution_figure_refuses() -> None:
    with pytest.raises(KeyholeError, match="no tokens"):
        attribution_figure([], torch.ones(1, 0), torch.ones(0), ["a"])
    with pytest.raises(KeyholeError, match="do not fit"):
        attribution_figure(["x"], torch.ones(2, 1), torch.ones(1), ["a"])
    with pytest.raises(KeyholeError, match="causal mask"):
        attribution_figure(["x"], torch.ones(1, 1), torch.tensor([-math.inf]), ["a"])


# Interventions


def an_effect(name: str, rank: int, orig: float, target: float, random: float = math.nan) -> Effect:
    shift = ((0.96 - orig) + target) / 2
    normalised = (shift - random) / (0.96 - random) if rank else math.nan
    interval = (normalised - 0.05, normalised + 0.05)
    return Effect(name, rank, orig, target, shift, random, 0.96, normalised, interval, (shift, shift))


def a_head(order: int = 3) -> list[Effect]:
    return [
        an_effect("null", 0, 0.96, 0.0),
        an_effect("order", order, 0.28, 0.23, 0.12),
        an_effect("lexical", 5, 0.17, 0.33, 0.27),
        an_effect("both", order + 5, 0.0, 0.96, 0.45),
        an_effect("random", order + 5, 0.29, 0.25),
        an_effect("full swap", 16, 0.0, 0.96),
    ]


def test_intervention_figure_of_one_head(tmp_path: Path) -> None:
    figure = intervention_figure({"3.1": a_head()})
    attention, effects = figure.axes
    orig, target = attention.containers
    assert [bar.get_width() for bar in orig] == [e.orig for e in a_head()]
    assert [bar.get_width() for bar in target] == [e.target for e in a_head()]
    names = [label.get_text() for label in attention.get_yticklabels()]
    assert names[:2] == ["null", "order (rank 3)"] and names[-1] == "full swap (rank 16)"
    values = [float(line.get_xdata()[0]) for line in effects.lines if line.get_marker() == "o"]
    assert values == pytest.approx([e.normalised for e in a_head()[1:4]])  # only what has controls
    intervals = [tuple(line.get_xdata()) for line in effects.lines if line.get_linewidth() == 1.6]
    assert intervals == [e.interval for e in a_head()[1:4]]
    assert attention.get_ylim() == effects.get_ylim()  # rows line up
    assert len(entries(figure)) == 3
    written(figure, tmp_path)


def test_intervention_figure_has_bars_of_random_subspaces(tmp_path: Path) -> None:
    row = [replace(one, random_orig=0.7, random_target=0.2) if one.rank == 3 else one for one in a_head()]
    figure = intervention_figure({"3.1": row})
    orig, random_orig, target, random_target = figure.axes[0].containers
    assert [bar.get_width() for bar in random_orig] == [0.7] and [bar.get_width() for bar in random_target] == [0.2]
    assert [len(orig), len(target)] == [len(row)] * 2 and random_orig[0].get_hatch()
    for own, control in ((orig[1], random_orig[0]), (target[1], random_target[0])):  # side by side, none hides another
        assert control.get_y() + control.get_height() == pytest.approx(own.get_y())
    assert "the same for random subspaces" in entries(figure) and len(entries(figure)) == 4
    written(figure, tmp_path)


@pytest.mark.parametrize("heads", [2, 6])
def test_intervention_figure_of_several_heads(heads: int, tmp_path: Path) -> None:
    figure = intervention_figure({f"3.{i}": a_head(2 + i % 2) for i in range(heads)})
    assert len(figure.axes) == 2 * heads
    assert [axis.get_title(loc="left") for axis in figure.axes if axis.get_title(loc="left")] == [
        f"3.{i}" for i in range(heads)
    ]
    assert "order (rank 2-3)" in [label.get_text() for label in figure.axes[0].get_yticklabels()]
    written(figure, tmp_path)


def test_intervention_figure_without_controls_or_with_missing_conditions(tmp_path: Path) -> None:
    bare = intervention_figure({"3.1": a_head()[:1]})
    assert len(bare.axes) == 1 and entries(bare) == ["original token", "target token"]
    uneven = intervention_figure({"3.1": a_head(), "3.2": a_head()[:2]})
    assert [len(axis.containers[0]) for axis in uneven.axes if axis.containers] == [6, 2]
    wild = [Effect("wild", 3, 0.5, 0.4, 0.2, 0.1, 0.9, 1.8, (math.nan, math.nan), (0.1, 0.2))]
    assert intervention_figure({"3.1": wild}).axes[1].get_xlim()[1] > 1.8
    written(uneven, tmp_path)


def test_intervention_figure_refuses() -> None:
    for bad in ({}, {"3.1": []}):
        with pytest.raises(KeyholeError, match="at least one head"):
            intervention_figure(bad)
    with pytest.raises(KeyholeError, match="two effects of one name"):
        intervention_figure({"3.1": [*a_head(), a_head()[0]]})


# Interaction


def test_interaction_figure(tmp_path: Path) -> None:
    G = torch.diag(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]))
    G[0, 4] = -3
    figure = interaction_figure(G, [2, 3], ["z1", "z2"])
    axis = figure.axes[0]
    assert axis.images[0].get_clim() == (-5, 5)
    assert np.array_equal(axis.images[0].get_array(), G.numpy())
    assert [line.get_ydata()[0] for line in axis.lines[:1]] == [1.5] and len(axis.lines) == 2
    assert [label.get_text() for label in axis.get_xticklabels()] == ["z1", "z2"]
    assert axis.get_title(loc="left") == f"G: {100 * 55 / 64:.0f} % of energy on the diagonal"
    written(figure, tmp_path)


@pytest.mark.parametrize("G", [torch.ones(1, 1), torch.zeros(4, 4), torch.randn(24, 24)])
def test_interaction_figure_of_one_latent(G: torch.Tensor, tmp_path: Path) -> None:
    figure = interaction_figure(G, [len(G)])
    assert len(figure.axes[0].lines) == 0
    written(figure, tmp_path)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: interaction_figure(torch.ones(0, 0), []), "at least one row"),
        (lambda: interaction_figure(torch.ones(2, 3), [2]), "give a square"),
        (lambda: interaction_figure(torch.ones(3, 3), [2]), "2 rows together"),
        (lambda: interaction_figure(torch.ones(3, 3), [3, 0]), "at least 1"),
        (lambda: interaction_figure(torch.ones(3, 3), [3], ["a", "b"]), "one name for each"),
    ],
)
def test_interaction_figure_refuses(call: Callable[[], Figure], says: str) -> None:
    with pytest.raises(KeyholeError, match=says):
        call()


def token_edge(writer: tuple[int, int], reader: tuple[int, int], token: str = "IO", side: Any = "src") -> TokenEdge:
    return TokenEdge(writer, reader, token, side)


def test_a_network_has_heads_and_the_tokens_that_they_read() -> None:
    edges = {
        token_edge((0, 1), (1, 2), "IO"): Carried(0.9, 3.0),
        token_edge((0, 1), (1, 2), "END", "dest"): Carried(0.5, 1.5),
        token_edge((0, 4), (1, 2), "END", "src"): Carried(0.5, 0.0),
        token_edge((1, 2), (3, 0), "END", "dest"): Carried(0.4, 6.0),
    }
    figure = network_figure(edges, "Edges", starts=[(3, 0)], fired={(3, 0): 1.0, (0, 4): 0.1}, known=[(1, 2)])
    (axis,) = figure.axes
    at = {text.get_text(): text.get_position() for text in axis.texts}
    boxes = [text.get_text() for text in axis.texts if text.get_bbox_patch().get_boxstyle().pad == 0.25]
    assert sorted(boxes) == ["END", "END", "IO"], "a token of a head stands once, whichever its sides"
    assert [text.get_text() for text in axis.get_xticklabels()] == ["layer 0", "layer 1", "layer 3"]
    assert at["0.1"][0] == at["0.4"][0] < at["IO"][0] < at["1.2"][0] < at["3.0"][0]
    widths = {round(patch.get_linewidth(), 3) for patch in axis.patches}
    assert widths == {0.6, 2.1, 3.6, 6.6}, "as wide as contributions, and never unseen"
    heads = {text.get_text(): text.get_bbox_patch() for text in axis.texts if "." in text.get_text()}
    dark = {name: sum(patch.get_facecolor()[:3]) for name, patch in heads.items()}
    assert dark["3.0"] < dark["0.4"] < dark["1.2"], "the more prompts, the darker"
    borders = {name for name, patch in heads.items() if patch.get_linewidth() > 1}
    assert borders == {"1.2"}
    joined = [line for line in axis.lines if len(line.get_xdata()) == 2 and line.get_xdata()[0] != line.get_xdata()[1]]
    assert len(joined) == 3, "every token is joined with its head"


def test_of_a_dense_network_the_strongest_ways_are_drawn() -> None:
    """From the starts down: an edge into a head that is not reached is not drawn, however frequent it is."""
    edges = {token_edge((1, i), (2, 0)): Carried(0.5, float(i + 1)) for i in range(4)}
    edges |= {token_edge((0, i), (1, i)): Carried(0.5, 1.0) for i in range(4)}
    edges |= {token_edge((0, 7), (1, 7)): Carried(1.0, 100.0)}
    whole = network_figure(edges, "Edges", starts=[(2, 0)], fired={})
    assert len(whole.axes[0].patches) == 9 and whole.get_suptitle() == "Edges"
    figure = network_figure(edges, "Edges", starts=[(2, 0)], fired={}, most=5)
    names = {text.get_text() for text in figure.axes[0].texts}
    # strengths: 1.3 .2, 1.2 .15, 1.1 .1, 1.0 .05; behind them 0.3 .1, 0.2 .075
    assert names == {"IO", "2.0", "1.3", "1.2", "1.1", "0.3", "0.2"} and len(figure.axes[0].patches) == 5
    assert "5 of 9, on the strongest paths" in " ".join(figure.get_suptitle().split())
    empty = network_figure({}, "Edges", starts=[], fired={})
    assert not empty.axes[0].texts and not empty.axes[0].patches


@pytest.mark.parametrize("width", [3.25, 6.0])
def test_a_legend_beneath_has_as_many_columns_as_fit(width: float) -> None:
    figure = blank(width, 3.0)
    figure.subplots().plot([0, 1], [0, 1])
    names = [f"entry {i} with a rather long text" for i in range(6)]
    rows = legend(figure, [Line2D([], [], label=name) for name in names], columns=6, beneath=True)
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.width and entries(figure) == names
    assert rows == {3.25: 6, 6.0: 3}[width]
