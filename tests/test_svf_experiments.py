"""Published figures on singular vectors and features: quick runs end to end, shared models, and the thresholds."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure

from drawn import check_drawn, keep_saved
from keyhole import KeyholeError
from keyhole.lab import svf_train as svf_store
from keyhole.lab import svf_train as svf_train
from keyhole.lab.svf import SVF, SVFSettings, SVFWeights, anisotropy, cosines, inputs, spread
from keyhole.lab.svf_alignment import alignment, sides
from keyhole.lab.svf_figures import matrices_figure, sweep_figure, terms_figure
from keyhole.lab.svf_theorems import Check, Measure
from keyhole.lab.svf_train import train
from keyhole.progress import Progress, silent
from keyhole.qk.channels import sparsity, sparsity_each
from keyhole_papers import svf as svf_toys
from keyhole_papers.catalogue import CATALOGUE
from keyhole_papers.experiment import Attempt, Job
from keyhole_papers.finding import TOY, Finding, Findings
from keyhole_papers.results import Verdict
from keyhole_papers.svf import HEAVY, MEAN, PRINTED, PRINTED_LONG, Recipe, Tried
from keyhole_papers.svf import dynamics as svf_dynamics
from keyhole_papers.svf import geometry as svf_geometry
from keyhole_papers.svf import sparse as svf_sparse
from keyhole_papers.svf import sweeps as svf_sweeps
from keyhole_papers.svf.dynamics import Times
from keyhole_papers.svf.sparse import Decomposed, Emerged, Ends, Terms

MODULES = (svf_geometry, svf_dynamics, svf_sparse, svf_sweeps)
RUNS: dict[str, Attempt] = {id: run for module in MODULES for id, run in module.RUNS.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("svf")


def quick(folder: Path, id: str) -> Job:
    own = folder / id
    own.mkdir(exist_ok=True)
    return Job(own, quick=True)


@pytest.mark.parametrize("id", ["svf-fig1b", "svf-fig3", "svf-fig6a", "svf-fig10", "svf-fig18a", "svf-thm2"])
def test_a_quick_run_measures_and_draws(folder: Path, id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = keep_saved(monkeypatch)
    outcome = RUNS[id](quick(folder, id))
    assert outcome.state in ("reproduced", "partly", "not")
    assert outcome.measured and outcome.note
    for value in outcome.numbers.values():
        assert all(math.isfinite(one) for one in (value if isinstance(value, list) else [value]))
    for name in outcome.figures:
        check_drawn(saved[folder / id / name], folder / id / name)
    assert outcome.figures or id == "svf-thm2"


def test_all_toys_and_theorems_of_the_catalogue_are_served() -> None:
    toys = {id for id, one in CATALOGUE.items() if id.startswith("svf-") and not one.needs and not one.schematic}
    assert set(RUNS) == toys


def test_figures_share_their_models(folder: Path) -> None:
    job = quick(folder, "shared")
    first = svf_toys.alike(job, PRINTED)
    files = sorted((folder / "toys").glob("[!.]*"))
    again = svf_toys.alike(job, PRINTED)
    assert sorted((folder / "toys").glob("[!.]*")) == files
    assert not any(file.is_dir() for file in files), "a finished sweep leaves no checkpoint behind"
    for one, other in zip(first, again, strict=True):
        assert one.settings == other.settings
        assert [step for step, _ in one.snapshots] == svf_store.snapshots(one.settings.steps)
        assert torch.equal(one.W, other.W) and torch.equal(one.at(0).W_Q, other.at(0).W_Q)


@pytest.mark.parametrize("recipe", [PRINTED, MEAN])
def test_the_paper_s_settings_are_swept_around(recipe: Recipe) -> None:
    job = Job(Path())
    default = svf_toys.cells(job, recipe, {4.0: svf_toys.DEFAULT})[4.0]
    assert len(default) == svf_toys.SEEDS
    middle = {"p": 0.52, "lambda": 4.0, "N": 20, "H": 10, "m": 4}
    assert [axis.name for axis in svf_sweeps.AXES.values()] == [*middle]
    for axis in svf_sweeps.AXES.values():
        cell = axis.cells(job, recipe)[middle[axis.name]]
        assert cell == default, "a sweep's middle is the default toy, which is trained once"


def test_inputs_hold_the_pairs_asked_for() -> None:
    settings = SVFSettings.paper()
    for present in (0, 1, 2):
        f = inputs(settings, present, 50, seed=3)
        meets = (f[:, -1, :4] > 0) & (f[:, 0, 4:8] > 0)
        assert (meets.sum(1) == present).all()
        assert (f[:, 1:-1, :8] == 0).all() and (f[:, :, 8:] > 0).any()
    only = inputs(settings, 1, 50, seed=3, first=True)
    assert (only[:, -1, 0] > 0).all() and (only[:, 0, 4] > 0).all()


def test_terms_sum_to_relative_attention(folder: Path) -> None:
    job = quick(folder, "terms")
    model = svf_toys.alike(job, PRINTED)[0]
    f = inputs(model.settings, 2, 20, seed=1)
    a, b = sides(model, alignment(model), f)
    logits = model.logits(f[:, -1], f)
    relative = logits[:, 0] - logits[:, 1:].mean(1)
    assert torch.allclose((a * b).sum(1), relative, atol=1e-9)
    assert sparsity_each(a * b)[0].item() == pytest.approx(sparsity((a * b)[0]))


def test_geometry_of_perfect_features() -> None:
    Q = torch.linalg.qr(torch.randn(10, 10, generator=torch.Generator().manual_seed(0))).Q
    W = torch.cat([Q, -Q], dim=1)
    assert spread(W) < 1e-5 and anisotropy(W) < 1e-5
    assert (cosines(W).amin(1) < -0.999).all()
    W[:, 3] *= 1e-3
    assert cosines(W)[3].isnan().all()


def test_grades() -> None:
    assert svf_toys.graded([1.0, 0.9]) == "reproduced"
    assert svf_toys.graded([1.0, 0.2]) == "partly"
    assert svf_toys.graded([0.6, 0.6]) == "partly"
    assert svf_toys.graded([0.4, 0.2, 1.0]) == "not"


def test_drawing_nothing_is_refused() -> None:
    for draw in (lambda: matrices_figure([]), lambda: terms_figure({}), lambda: sweep_figure([1.0], [], [], x="p")):
        with pytest.raises(KeyholeError, match="give"):
            draw()


def untrained(configs: Sequence[SVFSettings], *_: Any, **__: Any) -> list[SVF]:
    """Each model after a single step, under the name of the settings asked for."""
    once = [dataclasses.replace(config, steps=1) for config in configs]
    return [
        dataclasses.replace(model, settings=config, snapshots=((0, model.snapshots[0][1]), (config.steps, now(model))))
        for config, model in zip(configs, train(once, snapshots=[0]), strict=True)
    ]


def now(model: SVF) -> SVFWeights:
    return SVFWeights(model.W, model.b, model.W_Q, model.W_K)


@pytest.mark.parametrize("id", sorted(id for id in RUNS if "thm" not in id and "lemma" not in id))
def test_untrained_toys_show_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, id: str) -> None:
    monkeypatch.setattr(svf_toys, "trained_models", untrained)
    monkeypatch.setattr(svf_toys, "SEEDS", 5)  # fewer are met by chance more easily
    (tmp_path / id).mkdir()
    assert RUNS[id](Job(tmp_path / id)).state == "not"


# -- what verdicts ask for ------------------------------------------------------------------------------------------


def test_what_only_chosen_settings_show_is_a_part() -> None:
    over = svf_toys.over_recipes
    assert over({PRINTED: "not", PRINTED_LONG: "not", MEAN: "reproduced"}) == "partly"
    assert over({PRINTED: "not", PRINTED_LONG: "reproduced", MEAN: "not"}) == "reproduced"
    assert over({PRINTED: "partly", HEAVY: "not"}) == "partly"
    assert over({PRINTED: "untold", MEAN: "untold"}) == "untold" and over({PRINTED: "not", MEAN: "not"}) == "not"
    assert [one.printed for one in (PRINTED, PRINTED_LONG, MEAN, HEAVY)] == [True, True, False, False]


def test_one_figure_says_what_each_recipe_shows(tmp_path: Path) -> None:
    def measure(job: Job, recipe: Recipe) -> Verdict:
        return "not" if recipe.printed else "reproduced"

    def findings(holds: Verdict) -> Findings:
        return Findings([Finding("x", [1.0]), Finding("it", holds)], TOY, remark="Alike.", judged=holds)

    def draw(holds: Verdict, said: str) -> Figure:
        return terms_figure({holds: torch.ones(1, 2)}, title=said)

    both = svf_toys.by_recipe((PRINTED, MEAN), measure, findings, draw, "it")(Job(tmp_path))
    assert both.state == "partly"
    assert (
        both.measured == "summed errors, lambda 4, 10,000 steps: x 1.000; it not.\n"
        "mean errors, lambda 4, 30,000 steps: x 1.000; it reproduced."
    )
    assert both.note.count("Alike.") == 1 and MEAN.said in both.note
    assert [*both.numbers] == [f"{recipe.said}: x" for recipe in (PRINTED, MEAN)] and len(both.figures) == 2
    assert [*both.figures] == ["it-sum-4-10000.png", "it-mean-4-30000.png"]


def test_table_1_tells_what_is_not_as_printed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    as_printed = SVFSettings.fast(**vars(PRINTED))
    assert svf_sweeps.differ([as_printed]) == []
    changes: dict[str, Any] = {"p": 0.5, "lam": 20.0, "m": 8, "recon_reduction": "mean", "pairs": ((0, 4, 24.0),)}
    for name, value in changes.items():
        assert svf_sweeps.differ([as_printed, dataclasses.replace(as_printed, **{name: value})]) == [name]
    monkeypatch.setattr(svf_toys, "trained_models", aligned)
    assert RUNS["svf-table1"](Job(tmp_path / "one")).state == "reproduced"
    monkeypatch.setitem(svf_toys.DEFAULT, "m", 8)
    told = RUNS["svf-table1"](Job(tmp_path / "one"))
    assert told.state == "partly" and "not as printed m (not as claimed)" in told.measured


def aligned(configs: Sequence[SVFSettings], *_: Any, **__: Any) -> list[SVF]:
    """Toys in which every pair lies along a singular pair, whatever their settings: attended features are axes."""
    return [perfect(config) for config in configs]


def perfect(config: SVFSettings) -> SVF:
    W, Omega = torch.zeros(config.D, config.N), torch.zeros(config.D, config.D)
    for axis, feature in enumerate(sorted({f for i, j, _ in config.pairs for f in (i, j)})):
        W[axis, feature] = 1.0
    for i, j, T in config.pairs:
        Omega += T * torch.outer(W[:, i], W[:, j])
    return SVF(config, W, torch.zeros(config.N), torch.eye(config.D), Omega, torch.zeros(1, 2))


def ends(*, left: bool, matter: bool, spread: bool) -> Ends:
    def terms(S: float, largest: float, size: float) -> Terms:
        return Terms(torch.full((10,), 0.1), S, largest, size, 1.0, 1.0)

    none = terms(0.3 if spread else 0.1, 0.5, 0.5 if matter else 4e-6)
    return Ends(terms(0.4, 0.4, 1.0), terms(0.1 if left else 0.4, 1.0 if left else 0.4, 2.0), none, none)


def test_sparsity_of_nothing_tells_nothing() -> None:
    def judged(one: Ends, *, present: bool = False) -> Verdict:
        return svf_sparse.terms(Decomposed(present, 100, 10_000, [one] * 10)).verdict

    assert judged(ends(left=True, matter=True, spread=True)) == "reproduced"
    assert judged(ends(left=True, matter=True, spread=False)) == "not"
    assert judged(ends(left=True, matter=False, spread=True)) == "untold"
    assert judged(ends(left=False, matter=True, spread=True)) == "not", "nothing was learnt"
    assert judged(ends(left=True, matter=False, spread=False), present=True) == "reproduced"
    assert judged(ends(left=False, matter=True, spread=True), present=True) == "not"


def test_sparsity_counts_where_one_pair_is_sparsest() -> None:
    def held(size: float, scale: float = 1.0) -> list[bool]:
        values = dict(zip(svf_sparse._SHADES, (0.1, 0.2, 0.3, 0.2, 0.4, 0.3), strict=True))
        curves = {name: torch.tensor([[1.0, scale * S]], dtype=torch.float64) for name, S in values.items()}
        return [all(part) for part in svf_sparse.claims(Emerged((0, 1), curves, [size], 0.1)).values()]

    assert [held(0.5), held(4e-6)] == [[True] * 4, [True, True, False, True]]
    assert held(0.5, scale=2.0) == [False] * 4


def test_what_never_aligns_has_no_time() -> None:
    never = svf_dynamics._NEVER
    assert svf_dynamics.order([400, 300, 200, never, never]) == -1.0
    assert svf_dynamics.order([400, never]) is None


def test_printed_settings_that_show_the_reverse_refute_others() -> None:
    def judged(printed: list[float], chosen: list[float]) -> Verdict:
        tried = {recipe: Times({}, {}, tau, tau) for recipe, tau in ((PRINTED, printed), (MEAN, chosen))}
        return svf_dynamics.times(Tried(tried)).verdict

    nothing = [0.5, -0.4, 0.1]
    assert judged([1.0] * 5, nothing) == "reproduced" and judged([0.3, 0.5, 0.4], nothing) == "partly"
    assert judged(nothing, nothing) == "not" and judged([1.0], [1.0]) == "not"
    assert judged([-0.8, -0.9, -0.7], [1.0] * 5) == "not" and judged([-0.8, 0.9, -0.7], [1.0] * 5) == "partly"


def test_a_theorem_can_fail(tmp_path: Path) -> None:
    for values, verdict in (((0.5, 0.9), "reproduced"), ((0.5, 1.1), "not"), ((), "not"), ((math.nan,), "not")):
        check = Check("Theorem", "x", (Measure("sine", values, 1.0),), 3, len(values))
        assert svf_geometry.RUNS["svf-thm1"].result(check, tmp_path).state == verdict


def test_vanished_features_are_not_orthogonal() -> None:
    model = train([SVFSettings.fast(pairs=((0, 1, 1.0),), steps=1)])[0]
    W = model.W.clone()
    W[:, 0] = 0
    assert math.isnan(svf_geometry.geometry(dataclasses.replace(model, W=W)).apart)


SHARED = [SVFSettings.fast(N=6, D=4, H=3, batch=32, steps=200, pairs=((0, 2, 9.0),), seed=seed) for seed in range(3)]


def stop_after(calls: int) -> Progress:
    """Interrupts a training at its so-manieth report."""
    left = [calls]

    def progress(done: int, total: int) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt

    return progress


def test_a_stopped_sweep_goes_on_though_others_trained_some_of_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(svf_train, "_SAVE_SECONDS", 0.0)
    whole = svf_store.trained_models(SHARED, tmp_path / "whole", "cpu", silent)
    with pytest.raises(KeyboardInterrupt):
        svf_store.trained_models(SHARED, tmp_path / "toys", "cpu", stop_after(1))
    svf_store.trained_models(SHARED[:1], tmp_path / "toys", "cpu", silent)
    reports: list[int] = []
    again = svf_store.trained_models(SHARED, tmp_path / "toys", "cpu", lambda done, _: reports.append(done))
    assert reports == [600], "the first half was not trained again"
    assert all(torch.equal(one.W, other.W) for one, other in zip(whole, again, strict=True))
    assert not [*(tmp_path / "toys").glob("sweep-*")], "no checkpoint is left behind"


def test_damaged_and_old_models_are_trained_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    svf_store.trained_models(SHARED, tmp_path, "cpu", silent)
    file = next(tmp_path.glob("svf-*-0-*.safetensors"))
    file.write_bytes(file.read_bytes()[:100])
    reports: list[int] = []
    svf_store.trained_models(SHARED, tmp_path, "cpu", lambda done, _: reports.append(done))
    assert reports == [100, 200], "one model of three"
    monkeypatch.setattr(svf_store, "TOYS", dataclasses.replace(svf_store.TOYS, recipe=2))
    svf_store.trained_models(SHARED, tmp_path, "cpu", lambda done, _: reports.append(done))
    assert reports[-1] == 600, "all of them"
