"""Emergence: measures agree with the channels behind them, controls with rotations, trainings with their seed."""

import math
import weakref
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from conftest import ROOT
from keyhole import KeyholeError, Model
from keyhole.figures.emergence import emergence_figure
from keyhole.lab.emergence import (
    Emergence,
    Place,
    ambient_draws,
    emergence,
    measure,
    refactor_draws,
    snapshot_checkpoints,
)
from keyhole.lab.emergence_curves import MEASURES, change, curve, together
from keyhole.lab.emergence_roles import (
    PYTHIA_160M,
    ROLES,
    Role,
    bystanders,
    find_roles,
    hub_checkpoints,
    role_attention,
)
from keyhole.lab.language import LanguageSettings, Trained, checkpoints, held_out, snapshot_steps, train_language
from keyhole.qk.channels import sparsity
from keyhole.qk.controls import refactor_terms, rotation_control
from keyhole.tasks import Example

pytestmark = pytest.mark.xdist_group("emergence")  # its model is trained once

SMALL = LanguageSettings(width=32, layers=2, heads=2, documents=400, steps=50, batch=32)
NAME_MOVER = Place("name mover", (1, 6), "END", "IO", "ioi")


@pytest.fixture(scope="module")
def prompts() -> list[Example]:
    return [example for group in held_out(4, seed=11).values() for example in group]


@pytest.fixture(scope="module")
def trained() -> Trained:
    return train_language(SMALL, at=[0, 20], examples=20)


@pytest.fixture(scope="module")
def organism_emergence(organism: Model, prompts: list[Example]) -> Emergence:
    places = [NAME_MOVER, Place("previous token", (0, 6), "B", "A", "induction")]
    early = [pair for pair in snapshot_checkpoints(ROOT / "tools" / "snapshots", organism) if pair[0] in (100, 1778)]
    return emergence([*early, (10_000, organism)], places, prompts, draws=5, source="organism")


# --- one checkpoint ---------------------------------------------------------------------------------------


def test_rows_agree_with_channels(organism: Model, prompts: list[Example]) -> None:
    rows = measure(organism, [NAME_MOVER], prompts, tolerance=0.9)
    assert [row.prompt for row in rows] == [0, 1, 2, 3]  # the induction prompts have no END <- IO
    for row in rows:
        example = prompts[row.prompt]
        run = organism.run(example.text)
        split = run.channels(row.head, row.dest, row.src)
        assert (row.dest, row.src) == (example.position(run, "END"), example.position(run, "IO"))
        assert (row.channels, row.visible) == (16, split.visible)
        assert row.sparsity == pytest.approx(split.sparsity, rel=1e-4)
        assert row.attention == pytest.approx(split.attention, rel=1e-4)
        assert row.relative_attention == pytest.approx(split.relative_attention, rel=1e-4, abs=1e-5)
        counts = [split.n_recon(tolerance) for tolerance in (1.0, 0.9)]
        expected = [math.nan if count is None else count for count in counts]
        assert [row.n_recon, row.n_recon_tolerant] == pytest.approx(expected, nan_ok=True)
        assert math.isnan(row.n_recon) == (row.relative_attention <= 0) == math.isnan(row.n_recon_refactor)


def test_cheap_controls_have_the_distribution_of_rotations(organism: Model, prompts: list[Example]) -> None:
    example = prompts[0]
    run = organism.run(example.text)
    where = example.position(run, "END"), example.position(run, "IO")
    row = measure(organism, [NAME_MOVER], example, draws=600)[0]
    for kind, mean in (("ambient", row.ambient), ("refactor", row.refactor)):
        control = rotation_control(run, (1, 6), *where, kind=kind, draws=600, seed=1)
        spread = float(torch.tensor(control.rotated).std())
        assert mean == pytest.approx(control.mean_rotated, abs=5 * spread * math.sqrt(2 / 600))


def test_refactored_terms_keep_their_sum() -> None:
    stream = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, 8, generator=stream, dtype=torch.float64)
    drawn = refactor_draws(left, right, 3000, stream)
    assert torch.allclose(drawn.sum(1), (left @ right).expand(3000))
    rotated = torch.stack([refactor_terms(left, right, stream) for _ in range(3000)])
    for moment in (Tensor.abs, Tensor.square):
        assert float(moment(drawn).mean()) == pytest.approx(float(moment(rotated).mean()), rel=0.05)


def test_controls_are_known_in_the_limit() -> None:
    stream, x = torch.Generator().manual_seed(0), torch.randn(4096, dtype=torch.float64)
    equal = [sparsity(terms) for terms in ambient_draws(torch.ones(4096, dtype=torch.float64), 5, stream)]
    assert sum(equal) / 5 == pytest.approx((2 / math.pi) ** 2, abs=0.02)  # products of independent Gaussians
    along = [sparsity(terms) for terms in refactor_draws(x, x, 5, stream)]
    assert sum(along) / 5 == pytest.approx(1 / 3, abs=0.02)  # squares of Gaussians


def test_one_visible_key_has_no_sparsity(organism: Model, prompts: list[Example]) -> None:
    row = measure(organism, [Place("first", (0, 0), 0, 0)], prompts[0])[0]
    assert all(math.isnan(value) for value in (row.sparsity, row.ambient, row.refactor, row.n_recon))
    emerged = Emergence((0,), ((row, replace(row, sparsity=0.5, prompt=1)),))
    assert curve(emerged)[0].mean == 0.5 and curve(emerged)[0].dropped == 1


def test_text_prompts_and_positions(organism: Model) -> None:
    text = "When Mary and John went to the store, John gave a drink to"
    by_text, by_number = measure(organism, [Place("x", (1, 6), -1, "Mary"), Place("x", (1, 6), 14, 2)], text)
    assert (by_text.dest, by_text.src, by_text.sparsity) == (by_number.dest, by_number.src, by_number.sparsity)


# --- a training -------------------------------------------------------------------------------------------


def test_snapshots_of_the_organism(organism_emergence: Emergence) -> None:
    assert organism_emergence.steps == (100, 1778, 10_000)
    assert organism_emergence.roles == ("name mover", "previous token")
    for rows in organism_emergence.rows:
        assert all(1 / 16 <= row.sparsity <= 1 for row in rows)
    attention = [point.mean for point in curve(organism_emergence, "attention", role="previous token")]
    assert attention[0] < 0.5 < 0.9 < attention[-1]


def test_curves_are_means_over_places(organism_emergence: Emergence) -> None:
    point = curve(organism_emergence)[-1]
    rows = organism_emergence.rows[-1]
    heads = [sum(row.sparsity for row in rows if row.role == role) / 4 for role in organism_emergence.roles]
    half = 12.706 * abs(heads[0] - heads[1]) / 2  # Student's t with one degree of freedom
    middle = sum(heads) / 2
    assert (point.mean, point.low, point.high) == pytest.approx((middle, middle - half, middle + half), rel=1e-3)
    assert (point.count, point.dropped) == (2, 0)
    moved = change(organism_emergence, "sparsity", against="sparsity")
    assert moved.mean == moved.low == 0
    ends = curve(organism_emergence)
    assert change(organism_emergence).mean == pytest.approx(ends[-1].mean - ends[0].mean)
    smooth = curve(organism_emergence, window=8)
    assert smooth[1].mean == pytest.approx(sum(point.mean for point in ends) / 3)


def test_trainings_together(organism_emergence: Emergence) -> None:
    other = tuple(tuple(replace(row, source="other") for row in rows) for rows in organism_emergence.rows)
    both = together([organism_emergence, replace(organism_emergence, rows=other)])
    assert curve(both)[0].count == 4 and curve(both, over="sources")[0].count == 2
    assert curve(both, over="sources")[0].mean == pytest.approx(curve(organism_emergence)[0].mean)
    with pytest.raises(KeyholeError, match="same source"):
        together([organism_emergence, organism_emergence])
    with pytest.raises(KeyholeError, match="same steps"):
        together([])


def test_figure_is_drawn(organism_emergence: Emergence) -> None:
    figure = emergence_figure(organism_emergence, by_role=True)
    assert [axis.get_ylabel() for axis in figure.axes] == ["S(v)", "N_recon", "attention weight"]
    with pytest.raises(KeyholeError, match="one checkpoint"):
        emergence_figure(Emergence((0,), organism_emergence.rows[:1]))


# --- a model trained here ---------------------------------------------------------------------------------


def test_training_is_deterministic_and_learns(trained: Trained) -> None:
    state = torch.random.get_rng_state()
    again = train_language(SMALL, at=[0, 20], examples=20)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert [snapshot.step for snapshot in trained.snapshots] == [0, 20, 50]
    assert trained.losses == again.losses
    assert trained.losses[-1] < trained.losses[0] - 1
    for one, other in zip(trained.snapshots, again.snapshots, strict=True):
        assert all(torch.equal(value, other.state[name]) for name, value in one.state.items())
    other_seed = train_language(replace(SMALL, seed=1, steps=1), examples=20)
    assert other_seed.losses[0] != trained.losses[0]


def test_its_snapshots_are_checkpoints(trained: Trained, prompts: list[Example]) -> None:
    emerged = emergence(checkpoints(trained), [replace(NAME_MOVER, head=(1, 0))], prompts, draws=3)
    assert emerged.steps == (0, 20, 50)
    assert snapshot_steps(1000, 4, 10) == (0, 10, 100, 1000) and snapshot_steps(5, 3) == (0, 5)
    assert all(math.isfinite(point.mean) for name in MEASURES[:5] for point in curve(emerged, name))
    start = curve(emerged)[0]
    assert start.mean > 0.25  # random weights have no reason to be sparse


# --- roles ------------------------------------------------------------------------------------------------


def test_roles_of_the_organism(organism: Model, prompts: list[Example]) -> None:
    played = find_roles(organism, prompts, heads=3, required=False)
    heads = {(one.place.role, one.place.head): one.attention for one in played}
    assert heads["previous token", (0, 6)] > 0.9
    assert heads["induction", (3, 3)] > 0.8
    assert {role for role, _ in heads} >= {"S-inhibition", "name mover"}
    assert all(attention >= 0.3 for attention in heads.values())
    idle = bystanders(organism, played)
    assert not {place.head for place in idle} & {one.place.head for one in played}
    looks = role_attention(organism, prompts, ROLES[0])
    assert looks.shape == (4, 8) and float(looks.max()) == heads["previous token", (0, 6)]


def test_pythia_preset(organism: Model) -> None:
    example = PYTHIA_160M.prompt
    words = {role: example.word(role) for role in example.roles}
    assert words == {"S1": "Simon", "S1+1": "and", "IO": "Andrew", "S2": "Simon", "END": "to"}
    assert example.roles["S1"] < example.roles["S2"]
    assert len(PYTHIA_160M.places) == 12 and len(PYTHIA_160M.steps) == 143
    assert PYTHIA_160M.revision(PYTHIA_160M.steps[-1]) == "step143000"
    places = [replace(place, head=(place.head[0] % 4, place.head[1] % 8)) for place in PYTHIA_160M.places]
    assert len(measure(organism, places, PYTHIA_160M.prompt, draws=1)) == 12


# --- refusals ---------------------------------------------------------------------------------------------


def test_bad_requests(organism: Model, prompts: list[Example]) -> None:
    with pytest.raises(KeyholeError, match="no checkpoints"):
        emergence([], [NAME_MOVER], prompts)
    with pytest.raises(KeyholeError, match="two checkpoints of step 5"):
        emergence([(5, organism), (5, organism)], [NAME_MOVER], prompts, draws=1)
    with pytest.raises(KeyholeError, match="nothing is to be measured"):
        measure(organism, [], prompts)
    with pytest.raises(KeyholeError, match="one draw or more"):
        measure(organism, [NAME_MOVER], prompts, draws=0)
    with pytest.raises(KeyholeError, match="has no role 'S3'"):
        measure(organism, [replace(NAME_MOVER, src="S3")], prompts)
    with pytest.raises(KeyholeError, match="needs a prompt of the task 'boxes'"):
        measure(organism, [replace(NAME_MOVER, task="boxes")], prompts)


def test_bad_roles(organism: Model, prompts: list[Example]) -> None:
    with pytest.raises(KeyholeError, match=r"no head of organism plays the role 'duplicate token'.*less than 0\.3"):
        find_roles(organism, prompts)
    with pytest.raises(KeyholeError, match="needs prompts of the task 'lists'"):
        find_roles(organism, prompts, [Role("x", "END", "LIST", "lists")])
    with pytest.raises(KeyholeError, match="give one or more"):
        find_roles(organism, prompts, heads=0)


def test_bad_curves(organism_emergence: Emergence) -> None:
    with pytest.raises(KeyholeError, match="no measure 'sparse'"):
        curve(organism_emergence, "sparse")
    with pytest.raises(KeyholeError, match="no head was measured as 'mover'"):
        curve(organism_emergence, role="mover")
    with pytest.raises(KeyholeError, match="window of 0"):
        curve(organism_emergence, window=0)


def test_bad_snapshots(organism: Model, gpt2: Model, tmp_path) -> None:
    with pytest.raises(KeyholeError, match="no snapshots"):
        next(snapshot_checkpoints(tmp_path, organism))
    with pytest.raises(KeyholeError, match="does not fit"):
        next(snapshot_checkpoints(ROOT / "tools" / "snapshots", gpt2))


def test_bad_settings() -> None:
    for bad in ({"steps": 0}, {"width": 30, "heads": 4}, {"documents": 8, "batch": 16}):
        with pytest.raises(KeyholeError):
            LanguageSettings(**bad)
    with pytest.raises(KeyholeError, match="positions"):
        train_language(replace(SMALL, positions=8))


def test_the_hub_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keyhole.models.load._hub_reachable", lambda: False)
    monkeypatch.setenv("HF_HUB_CACHE", "/nonexistent")
    with pytest.raises(KeyholeError, match=r"step1000 of EleutherAI/pythia-160m.*hub.*hf download"):
        next(hub_checkpoints(PYTHIA_160M))
    with pytest.raises(KeyholeError, match="no checkpoint of step 1500"):
        next(hub_checkpoints(PYTHIA_160M, [1500]))


def test_the_hub_gives_one_checkpoint_at_a_time(monkeypatch: pytest.MonkeyPatch, organism: Model) -> None:
    asked: list[str | None] = []
    alive: list[weakref.ref[Model]] = []

    def stand_in(source: str, *, revision: str | None, device: object) -> Model:
        assert not any(model() for model in alive)  # the one before is gone
        asked.append(revision)
        model = replace(organism, name=str(revision))
        alive.append(weakref.ref(model))
        return model

    monkeypatch.setattr("keyhole.lab.emergence_roles.load", stand_in)
    places = [replace(place, head=(1, 6)) for place in PYTHIA_160M.places[:1]]
    stream = hub_checkpoints(PYTHIA_160M, [1000, 2000, 143_000])
    emerged = emergence(stream, places, PYTHIA_160M.prompt, draws=1)
    assert emerged.steps == (1000, 2000, 143_000) and asked == ["step1000", "step2000", "step143000"]
