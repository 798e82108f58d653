"""Published figures on singular vectors and features: quick runs end to end, shared models, and the thresholds."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from drawn import check_drawn, keep_saved
from keyhole import KeyholeError
from keyhole.figures.svf import matrices_figure, sweep_figure, terms_figure
from keyhole.lab import svf_train
from keyhole.lab.alignment import alignment
from keyhole.lab.catalogue import CATALOGUE
from keyhole.lab.experiments import (
    svf,
    svf_dynamics,
    svf_models,
    svf_scores,
    svf_sparse,
    svf_store,
    svf_sweeps,
    svf_theorems,
)
from keyhole.lab.job import Experiment, Job, silent
from keyhole.lab.outcome import Progress
from keyhole.lab.svf import SVF, SVFSettings, SVFWeights
from keyhole.lab.svf_train import train
from keyhole.qk.channels import sparsity

RUNS: dict[str, Experiment] = {
    **svf.RUNS,
    **svf_dynamics.RUNS,
    **svf_sparse.RUNS,
    **svf_sweeps.RUNS,
    **svf_theorems.RUNS,
}


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
    assert outcome.verdict in ("reproduced", "partly", "not")
    assert outcome.measured and outcome.note
    for value in outcome.numbers.values():
        assert all(math.isfinite(one) for one in (value if isinstance(value, list) else [value]))
    for path in outcome.figures:
        check_drawn(saved[path], path)
    assert outcome.figures or id == "svf-thm2"


def test_all_toys_and_theorems_of_the_catalogue_are_served() -> None:
    toys = {id for id, one in CATALOGUE.items() if id.startswith("svf-") and not one.needs and not one.schematic}
    assert set(RUNS) == toys


def test_figures_share_their_models(folder: Path) -> None:
    job = quick(folder, "shared")
    first = svf_models.trained(job, svf_models.four_pairs(job))[4.0]
    files = sorted((folder / "toys").iterdir())
    again = svf_models.trained(job, svf_models.four_pairs(job))[4.0]
    assert sorted((folder / "toys").iterdir()) == files
    assert not any(file.is_dir() for file in files), "a finished sweep leaves no checkpoint behind"
    for one, other in zip(first, again, strict=True):
        assert one.settings == other.settings
        assert [step for step, _ in one.snapshots] == svf_store.snapshots(one.settings.steps)
        assert torch.equal(one.W, other.W) and torch.equal(one.at(0).W_Q, other.at(0).W_Q)


def test_the_paper_s_settings_are_swept_around() -> None:
    job = Job(Path())
    default = svf_models.four_pairs(job)[4.0]
    assert default[0] == SVFSettings.paper(seed=0) and len(default) == svf_models.SEEDS
    for sweep, value in (
        (svf_models.by_probability, 0.52),
        (svf_models.by_lambda, 4.0),
        (svf_models.by_features, 20),
        (svf_models.by_dimension, 10),
        (svf_models.by_context, 4),
    ):
        assert sweep(job)[value] == default, "a sweep's middle is the default toy, which is trained once"


def test_inputs_hold_the_pairs_asked_for() -> None:
    settings = SVFSettings.paper()
    for present in (0, 1, 2):
        f = svf_sparse.inputs(settings, present, 50, seed=3)
        meets = (f[:, -1, :4] > 0) & (f[:, 0, 4:8] > 0)
        assert (meets.sum(1) == present).all()
        assert (f[:, 1:-1, :8] == 0).all() and (f[:, :, 8:] > 0).any()
    only = svf_sparse.inputs(settings, 1, 50, seed=3, first=True)
    assert (only[:, -1, 0] > 0).all() and (only[:, 0, 4] > 0).all()


def test_terms_sum_to_relative_attention(folder: Path) -> None:
    job = quick(folder, "terms")
    model = svf_models.trained(job, svf_models.four_pairs(job))[4.0][0]
    f = svf_sparse.inputs(model.settings, 2, 20, seed=1)
    a, b = svf_sparse.sides(model, alignment(model), f)
    logits = model.logits(f[:, -1], f)
    relative = logits[:, 0] - logits[:, 1:].mean(1)
    assert torch.allclose((a * b).sum(1), relative, atol=1e-9)
    assert svf_sparse.sparsities(a * b)[0].item() == pytest.approx(sparsity((a * b)[0]))


def test_geometry_of_perfect_features() -> None:
    Q = torch.linalg.qr(torch.randn(10, 10, generator=torch.Generator().manual_seed(0))).Q
    W = torch.cat([Q, -Q], dim=1)
    assert svf.spread(W) < 1e-5 and svf.anisotropy(W) < 1e-5
    assert (svf.cosines(W).amin(1) < -0.999).all()
    W[:, 3] *= 1e-3
    assert svf.cosines(W)[3].isnan().all()


def test_grades() -> None:
    assert svf_scores.graded([1.0, 0.9]) == "reproduced"
    assert svf_scores.graded([1.0, 0.2]) == "partly"
    assert svf_scores.graded([0.6, 0.6]) == "partly"
    assert svf_scores.graded([0.4, 0.2, 1.0]) == "not"


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


@pytest.mark.parametrize("id", sorted(set(RUNS) - {"svf-fig19"} - {id for id in RUNS if "thm" in id or "lemma" in id}))
def test_untrained_toys_show_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, id: str) -> None:
    """But for Figure 19, whose claim is that nothing is sparse."""
    monkeypatch.setattr(svf_models, "trained_models", untrained)
    (tmp_path / id).mkdir()
    assert RUNS[id](Job(tmp_path / id)).verdict == "not"


def test_vanished_features_are_not_orthogonal() -> None:
    model = train([SVFSettings.fast(pairs=((0, 1, 1.0),), steps=1)])[0]
    W = model.W.clone()
    W[:, 0] = 0
    assert math.isnan(svf.geometry(dataclasses.replace(model, W=W)).apart)


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
    assert not [path for path in (tmp_path / "toys").iterdir() if path.is_dir()], "no checkpoint is left behind"


def test_damaged_and_old_models_are_trained_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    svf_store.trained_models(SHARED, tmp_path, "cpu", silent)
    file = next(tmp_path.glob("svf-*-0-*.pt"))
    file.write_bytes(file.read_bytes()[:100])
    reports: list[int] = []
    svf_store.trained_models(SHARED, tmp_path, "cpu", lambda done, _: reports.append(done))
    assert reports == [100, 200], "one model of three"
    monkeypatch.setattr(svf_store, "RECIPE", 2)
    svf_store.trained_models(SHARED, tmp_path, "cpu", lambda done, _: reports.append(done))
    assert reports[-1] == 600, "all of them"
