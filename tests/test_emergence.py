"""Emergence: measures agree with the channels behind them, controls with rotations, trainings with their seed."""

import argparse
import importlib.util
import json
import math
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import keyhole
from conftest import ROOT
from keyhole import KeyholeError, Model
from keyhole.cli.app import app
from keyhole.errors import MissingModelError
from keyhole.lab import roles
from keyhole.lab import watched as emergence_trainings
from keyhole.lab.checkpoints import PYTHIA_160M, hub_checkpoints, list_revisions, snapshot_checkpoints, steps_of
from keyhole.lab.emergence import Emergence, Place, Push, emergence, measure, pushes
from keyhole.lab.language import (
    LanguageSettings,
    Trained,
    checkpoints,
    held_out,
    read_trained,
    save_trained,
    snapshot_steps,
    train_language,
)
from keyhole.lab.roles import IOI_ROLES, ROLES, Looks, Role, bystanders, find_roles, plays, role_attention
from keyhole.lab.training_curves import MEASURES, Point, change, curve, emergence_figure, gap, together
from keyhole.lab.watched import Source
from keyhole.models.tokens import token_id
from keyhole.qk.channels import sparsity
from keyhole.qk.controls import ambient_draws, refactor_draws, refactored, rotation_control, rotations
from keyhole.stats import Interval, interval
from keyhole.tasks import Example, ioi, published_ioi
from keyhole_papers.experiment import Choices, torch_dtype
from keyhole_papers.runner import reproduce
from keyhole_papers.svf.emergence import RUNS, fall
from tiny import Sizes, tiny

pytestmark = pytest.mark.xdist_group("emergence")  # its model is trained once

SMALL = LanguageSettings(width=32, layers=2, heads=2, documents=400, steps=50, batch=32)
NAME_MOVER = Place("name mover", (1, 6), "END", "IO", "ioi")


@pytest.fixture(scope="module")
def prompts() -> list[Example]:
    return [example for group in held_out(4, seed=11).values() for example in group]


@pytest.fixture(scope="module")
def balanced() -> list[Example]:
    """Prompts in both orders of names, and of induction."""
    people = [example for order in ("ABBA", "BABA") for example in ioi(8, 5, order=order, held_out=True)]
    return [*people, *held_out(8, seed=11)["induction"]]


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
    rotated = refactored(left[None], right[None], torch.ones(8), rotations(8, 3000))
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
    near = curve(organism_emergence, window=2)
    moved = change(organism_emergence, window=2)
    assert moved.mean == pytest.approx(near[-1].mean - near[0].mean) != pytest.approx(change(organism_emergence).mean)
    above = gap(organism_emergence, "sparsity", "ambient", at=0, window=2)
    assert above.mean == pytest.approx(near[0].mean - curve(organism_emergence, "ambient", window=2)[0].mean)


def test_trainings_together(organism_emergence: Emergence) -> None:
    other = tuple(tuple(replace(row, source="other") for row in rows) for rows in organism_emergence.rows)
    both = together([organism_emergence, replace(organism_emergence, rows=other)])
    assert curve(both)[0].count == 4 and curve(both, over="sources")[0].count == 2
    assert curve(both, over="sources")[0].mean == pytest.approx(curve(organism_emergence)[0].mean)
    with pytest.raises(KeyholeError, match="same source"):
        together([organism_emergence, organism_emergence])
    with pytest.raises(KeyholeError, match="same steps"):
        together([])


def test_changes_are_those_of_each_place(organism_emergence: Emergence) -> None:
    row = organism_emergence.rows[0][0]
    early = [replace(row, head=(0, 0), n_recon=2.0), replace(row, head=(0, 1), n_recon=math.nan)]
    late = [replace(row, head=(0, 0), n_recon=2.0), replace(row, head=(0, 1), n_recon=10.0)]
    trainings = [
        Emergence((0, 1), tuple(tuple(replace(one, source=source) for one in rows) for rows in (early, late)))
        for source in "abc"
    ]
    for over in ("places", "sources"):  # one head is the same, the other was not defined: nothing has changed
        moved = change(together(trainings), "n_recon", over=over)
        assert (moved.mean, moved.dropped) == (0, 3)
    prompts = [replace(row, prompt=1, n_recon=math.nan), replace(row, prompt=1, n_recon=9.0)]
    same = replace(row, prompt=0, n_recon=4.0)
    one = Emergence((0, 1), tuple((same, other) for other in prompts))
    assert change(one, "n_recon").mean == 0
    below = gap(one, "n_recon", "n_recon", at=-1)
    assert below.mean == 0 and gap(together(trainings), "n_recon", "sparsity", over="sources").count == 3


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
    assert snapshot_steps(3000, 2) == (0, 3000)
    assert all(math.isfinite(point.mean) for name in MEASURES[:5] for point in curve(emerged, name))
    start = curve(emerged)[0]
    assert start.mean > 0.25  # random weights have no reason to be sparse
    half = dict(checkpoints(trained, dtype=torch.bfloat16))
    assert {model.hf.dtype for model in half.values()} == {torch.bfloat16}


def test_small_models_compute_in_the_dtype_that_is_chosen(
    monkeypatch: pytest.MonkeyPatch, trained: Trained, tmp_path: Path
) -> None:
    monkeypatch.setattr(emergence_trainings, "_trained", lambda asked, folder, seed, progress: trained)
    found = {}
    for dtype in ("float32", "bfloat16", "auto"):
        seen = emergence_trainings.watched(Source(dtype=torch_dtype(dtype), quick=True), tmp_path)
        found[dtype] = [row.attention for row in seen.heads.rows[-1]]
    assert found["auto"] == found["float32"] != found["bfloat16"]
    assert found["bfloat16"] == pytest.approx(found["float32"], abs=0.05)


# --- roles ------------------------------------------------------------------------------------------------


def test_roles_of_the_organism(organism: Model, balanced: list[Example]) -> None:
    played = find_roles(organism, balanced, heads=3, required=False)
    heads = {(one.place.role, one.place.head): one.attention for one in played}
    assert heads["previous token", (0, 6)] > 0.9
    assert heads["induction", (3, 3)] > 0.7
    assert heads["S-inhibition", (1, 4)] > 0.4
    assert all(attention >= 0.3 for attention in heads.values())
    assert len({head for _, head in heads}) == len(heads)  # a head has one role
    assert all(head[0] > 0 or role in ("previous token", "duplicate token") for role, head in heads)
    idle = bystanders(organism, played)
    assert not {place.head for place in idle} & {one.place.head for one in played}
    looks = role_attention(organism, balanced, ROLES[0])
    assert looks.shape == (4, 8) and float(looks.max()) == heads["previous token", (0, 6)]


def test_looking_at_both_names_makes_no_name_mover(organism: Model, balanced: list[Example]) -> None:
    mover = next(role for role in IOI_ROLES if role.name == "name mover")
    looks = {src: role_attention(organism, balanced, replace(mover, src=src)) for src in ("IO", "S1")}
    assert float(looks["IO"][1, 6]) > 0.3 and float(looks["IO"][1, 6]) < 1.3 * float(looks["S1"][1, 6])
    assert not plays(organism, balanced, mover, threshold=0.2)[1, 6]
    assert "name mover" not in {one.place.role for one in find_roles(organism, balanced, IOI_ROLES, required=False)}
    loose = find_roles(organism, balanced, IOI_ROLES, required=False, clear=False)
    assert ("name mover", (1, 6)) in {(one.place.role, one.place.head) for one in loose}


def test_a_lead_must_be_clear_in_each_order() -> None:
    role, noise = Role("name mover", "END", "IO"), torch.linspace(-0.05, 0.05, 8)[:, None, None].double()
    ahead = (0.4 + noise).expand(8, 2, 2)
    always_first = {("ABBA", "S1"): ahead, ("BABA", "S1"): -ahead}
    attention = torch.full((16, 2, 2), 0.5).double()
    orders = {"ABBA": 8, "BABA": 8}
    assert not Looks(role, attention, orders, always_first).clear.any()
    assert Looks(role, attention, orders, dict.fromkeys(always_first, ahead)).clear.all()
    in_doubt = {key: 20 * noise.expand(8, 2, 2) + 0.1 for key in always_first}
    assert not Looks(role, attention, orders, in_doubt).clear.any()


def test_a_head_that_looks_at_io_and_writes_against_it_is_no_name_mover(
    smollm2: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SmolLM2's 24.4 gives IO more attention than any other head does, and suppresses it."""
    mover = next(role for role in IOI_ROLES if role.name == "name mover")
    examples = published_ioi(32, design="mixed")
    looking = plays(smollm2, examples, replace(mover, pushes=None), threshold=0.6)
    assert looking[24, 4] and looking[23, 0]
    found: dict[tuple[int, int], Push] = {}
    monkeypatch.setattr(roles, "pushes", lambda ran, heads: found.update(pushes(ran, heads)) or found)
    (best,) = find_roles(smollm2, examples, [mover], heads=2, threshold=0.6)
    assert best.place.head == (23, 0) and best.push == found[23, 0] and best.push.direct[1] > 0
    assert found[24, 4].direct[2] < 0 and found[24, 4].total[2] < 0  # beyond doubt, both ways


def test_roles_at_the_end_are_given_by_effect(
    organism: Model, balanced: list[Example], monkeypatch: pytest.MonkeyPatch
) -> None:
    inhibits = next(role for role in IOI_ROLES if role.name == "S-inhibition")
    (first,) = find_roles(organism, balanced, [inhibits])
    assert first.place.head == (1, 4) and first.push is not None and first.push.total[1] > 0
    doubtful = Push(Interval(2.0, 1.0, 3.0), Interval(0.5, -0.1, 1.1))  # of a name mover, that would do
    monkeypatch.setattr(roles, "pushes", lambda ran, heads: dict.fromkeys(heads, doubtful))
    assert find_roles(organism, balanced, [inhibits], required=False) == []
    with pytest.raises(KeyholeError, match=r"those that look there do not push the answer \(1\.4 adds 2\.000"):
        find_roles(organism, balanced, [inhibits])
    assert find_roles(organism, balanced, [inhibits], clear=False)[0].push is None  # by attention alone
    by_attention = [role for role in IOI_ROLES if role.pushes is None]
    assert {role.name for role in by_attention} == {"induction", "duplicate token", "previous token"}


def test_the_first_of_a_role_pushes_most(
    organism: Model, balanced: list[Example], monkeypatch: pytest.MonkeyPatch
) -> None:
    role = next(role for role in IOI_ROLES if role.name == "induction")
    heads = [one.place.head for one in find_roles(organism, balanced, [role], heads=32, threshold=0.1)]
    assert len(heads) > 1  # most attention first
    given = {head: Push(Interval(1.0 + i, 0.5, 9.0), Interval(0.0, -1.0, 1.0)) for i, head in enumerate(heads)}
    monkeypatch.setattr(roles, "pushes", lambda ran, some: {head: given[head] for head in some})
    found = find_roles(organism, balanced, [replace(role, pushes="directly")], heads=32, threshold=0.1)
    assert [one.place.head for one in found] == heads[::-1]


def test_which_pushes_count() -> None:
    up, doubt, down = Interval(1.0, 0.5, 1.5), Interval(0.1, -0.4, 0.6), Interval(-1.0, -1.5, -0.5)
    assert [Push(up, total).directly for total in (up, doubt, down)] == [True, True, False]
    assert not any(Push(direct, up).directly for direct in (doubt, down))
    assert [Push(down, total).by_all_paths for total in (up, doubt, down)] == [True, False, False]


def test_pushes_are_what_the_models_own_passes_say(organism: Model, balanced: list[Example]) -> None:
    """Each head's slice of the output projection's input at END: as a logit difference, and set to zero."""
    hf = tiny("llama", Sizes(vocab=len(organism.tokenizer), layers=2))
    model = keyhole.load((hf, organism.tokenizer))
    examples, head = balanced[:3], (1, 2)
    projection, size = hf.model.layers[head[0]].self_attn.o_proj, model.dims.d_head
    part = slice(head[1] * size, (head[1] + 1) * size)
    seen: dict[str, Tensor] = {}

    def silence(module: torch.nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        z = args[0].clone()
        z[:, -1, part] = 0
        return (z,)

    direct, total = [], []
    for example in examples:
        ids = torch.tensor([model.run(example.text).token_ids])
        right, wrong = (token_id(model, f" {name}") for name in (example.answer, example.wrong))
        hooks = [
            projection.register_forward_pre_hook(lambda _, args: seen.update(z=args[0][0, -1])),
            hf.model.norm.register_forward_pre_hook(lambda _, args: seen.update(x=args[0][0, -1])),
        ]
        with torch.no_grad():
            before = hf(ids).logits[0, -1]
            written = projection.weight[:, part] @ seen["z"][part]
            scale = (seen["x"].square().mean() + hf.config.rms_norm_eps).sqrt()
            apart = hf.lm_head.weight[right] - hf.lm_head.weight[wrong]
            direct.append(float((written * hf.model.norm.weight / scale) @ apart))
            hooks.append(projection.register_forward_pre_hook(silence))
            after = hf(ids).logits[0, -1]
        total.append(float((before - after)[right] - (before - after)[wrong]))
        for hook in hooks:
            hook.remove()
    found = pushes([(one, model.run(one.text)) for one in examples], [head])[head]
    assert found.direct == pytest.approx(interval(direct), rel=1e-4, abs=1e-6)
    assert found.total == pytest.approx(interval(total), rel=1e-3, abs=1e-5)


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


def test_bad_roles(organism: Model, prompts: list[Example], balanced: list[Example]) -> None:
    with pytest.raises(KeyholeError, match=r"no head of organism plays the role 'duplicate token'.*less than 0\.3"):
        find_roles(organism, balanced)
    with pytest.raises(KeyholeError, match=r"'name mover': .* not clearly more than to others"):
        find_roles(organism, balanced, [Role("name mover", "END", "IO")])
    with pytest.raises(KeyholeError, match=r"each order of names.*only 0 are given"):
        find_roles(organism, balanced[:8], IOI_ROLES)
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
    (tmp_path / "step-last.safetensors").touch()
    with pytest.raises(KeyholeError, match=r"step-last\.safetensors .* has no step number"):
        next(snapshot_checkpoints(tmp_path, organism))
    with pytest.raises(KeyholeError, match="does not fit"):
        next(snapshot_checkpoints(ROOT / "tools" / "snapshots", gpt2))


def test_bad_settings() -> None:
    for bad, reason in (
        ({"steps": 0}, "steps is 0"),
        ({"width": 30, "heads": 4}, "does not divide over 4 heads"),
        ({"documents": 8, "batch": 16}, "needs as many documents"),
    ):
        with pytest.raises(KeyholeError, match=reason):
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

    def stand_in(source: str, *, device: object, dtype: object, revision: str | None) -> Model:
        assert not any(model() for model in alive)  # the one before is gone
        asked.append(revision)
        model = replace(organism, name=str(revision), _cache={})  # channels of its own, as a model from the hub has
        alive.append(weakref.ref(model))
        return model

    monkeypatch.setattr("keyhole.lab.checkpoints.load", stand_in)
    places = [replace(place, head=(1, 6)) for place in PYTHIA_160M.places[:1]]
    stream = hub_checkpoints(PYTHIA_160M, [1000, 2000, 143_000])
    emerged = emergence(stream, places, PYTHIA_160M.prompt, draws=1)
    assert emerged.steps == (1000, 2000, 143_000) and asked == ["step1000", "step2000", "step143000"]


# --- whole studies ----------------------------------------------------------------------------------------


def test_revisions_of_a_model_are_followed(monkeypatch: pytest.MonkeyPatch, organism: Model, tmp_path: Path) -> None:
    early = dict(snapshot_checkpoints(ROOT / "tools" / "snapshots", organism))[100]
    monkeypatch.setattr(
        "keyhole.lab.checkpoints.load",
        lambda name, *, revision, device, dtype: {"main": organism, "v1.2": early}[revision],
    )
    emergence_trainings.watched.cache_clear()
    where = ("--model", "some/model", "--revisions", "v1.2,main", "--prompts", "16", "--out", str(tmp_path))
    done = CliRunner().invoke(app, ["lab", "emergence", *where, "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["steps"] == [1, 2] and found["unit"] == "checkpoint" and "S-inhibition 1.4" in found["about"]
    assert found["attention"][1][0] > found["attention"][0][0] + 0.2  # in the order given, whatever their names are
    assert (tmp_path / "emergence.png").is_file()
    monkeypatch.setattr("keyhole.lab.checkpoints.load", lambda *_, **__: early)
    emergence_trainings.watched.cache_clear()
    done = CliRunner().invoke(app, ["lab", "emergence", *where])
    assert isinstance(done.exception, KeyholeError) and "plays a role in indirect objects" in str(done.exception)


def test_steps_of_revisions() -> None:
    assert steps_of(["step0", "step512", "step143000"]) == ((0, 512, 143_000), "training step")
    assert steps_of(["step1000", "main"]) == ((1, 2), "checkpoint")
    for bad in (["main"], ["a", ""], ["step9", "step2"], ["step9", "step9"]):
        with pytest.raises(KeyholeError, match="--revisions"):
            steps_of(bad)


def test_what_does_not_fall_proves_nothing() -> None:
    still, down, up = (Point(Interval(mean, mean - 0.03, mean + 0.03), 12, 0) for mean in (-0.009, -0.3, 0.1))
    names = ("S(v)", "S(v) beyond ambient", "S(v) beyond refactor", "ambient control", "refactor control")

    def holds(*changes: Point) -> list[bool]:
        return fall(dict(zip(names, changes, strict=True)))

    assert holds(still, down, down, up, up) == [False] * 5
    assert holds(down, down, still, still, down) == [True, True, False, True, False]


def test_a_seed_without_roles_is_told(monkeypatch: pytest.MonkeyPatch, trained: Trained, tmp_path: Path) -> None:
    monkeypatch.setattr(emergence_trainings, "_trained", lambda asked, folder, seed, progress: trained)
    with pytest.raises(MissingModelError, match=f"none of the {emergence_trainings._SEEDS} small models"):
        emergence_trainings.watched(Source(), tmp_path)


def test_notes_say_by_how_many_heads_all_is_carried(organism_emergence: Emergence, tmp_path: Path) -> None:
    asked, (first, *_) = Source(), organism_emergence.rows
    alone = Emergence((0, 1), ((first[0],), (first[0],)))
    assert "carried by one head of one small model." in emergence_trainings._about(asked, [1.0] * 8, [4], alone)
    two = Emergence((0, 1), (first, first))
    assert "carried by 2 heads of 2 small models." in emergence_trainings._about(asked, [1.0] * 8, [4, 5], two)


def test_revisions_are_named_or_all_that_there_are(tmp_path: Path) -> None:
    assert list_revisions("EleutherAI/pythia-70m", "all") == tuple(f"step{1000 * i}" for i in range(1, 144))
    assert list_revisions("some/model", "step1, main") == ("step1", "main")
    with pytest.raises(KeyholeError, match="which checkpoints some/model has is not known"):
        list_revisions("some/model", "all")
    for name in ("step2000", "step300", "other", "step-last"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").touch()
    (tmp_path / "step1").mkdir()  # without a model
    assert list_revisions(str(tmp_path), "all") == ("step300", "step2000") == list_revisions(str(tmp_path))
    assert list_revisions(str(tmp_path), "other,step300") == ("other", "step300")
    with pytest.raises(KeyholeError, match="has no checkpoint 'step1'"):
        list_revisions(str(tmp_path), "step300,step1")


@pytest.fixture(scope="module")
def pythia(organism: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seventeen checkpoints with as many heads as Pythia-160M has, each in a folder of its own."""
    folder = tmp_path_factory.mktemp("hub") / "pythia-160m"
    sizes = Sizes(layers=12, heads=12, d_head=4, mlp=16, vocab=len(organism.tokenizer))
    for number in range(1, 18):
        place = folder / f"step{1000 * number}"
        tiny("gpt_neox", replace(sizes, seed=number)).save_pretrained(place)
        organism.tokenizer.save_pretrained(place)
    return folder


def test_the_published_heads_of_a_pythia_on_disk(pythia: Path, tmp_path: Path) -> None:
    """All checkpoints, the twelve heads of Table 2 in its prompt, averaged over eight: as slow code has it."""
    every = Choices(revisions="all")
    results = reproduce(["svf-fig6b", "svf-table2"], tmp_path / "out", model=str(pythia), choices=every)
    fall, roles = results["svf-fig6b"], results["svf-table2"]
    assert "17 of its 143 checkpoints" in fall.note and "averaged over 8 checkpoints" in fall.note
    assert fall.measured.startswith("Steps 1,000 to 17,000;") and fall.settings["revisions"] == "all"
    assert len(roles.numbers) == 12 and "Pythia-160M name mover 10.7" in roles.numbers
    assert "stood in" not in fall.note
    rows = []
    for number in (*range(1, 6), *range(14, 18)):  # the windows of eight around the first and the last, cut at the ends
        model = keyhole.load(pythia / f"step{1000 * number}")
        rows.append([row.sparsity for row in measure(model, PYTHIA_160M.places, PYTHIA_160M.prompt)])
    values = torch.tensor(rows, dtype=torch.float64)
    moved = (values[5:].mean(0) - values[:5].mean(0)).mean()
    assert fall.numbers["S(v)"][0] == pytest.approx(float(moved), rel=1e-5)
    followed = [id for id in RUNS if id != "svf-fig8a"]  # which is about GPT-2, and follows no training
    two = reproduce(followed, tmp_path / "out", model=str(pythia), choices=Choices(revisions="step1000,step2000"))
    assert {id: one.note for id, one in two.items() if one.state == "failed"} == {}
    assert "2 of its 143 checkpoints" in two["svf-fig6b"].note and "averaged" not in two["svf-fig6b"].note
    assert two["svf-fig6b"].figures != fall.figures


def test_the_command_follows_a_pythia_on_disk(pythia: Path, tmp_path: Path) -> None:
    where = ("--model", str(pythia), "--out", str(tmp_path), "--json")
    done = CliRunner().invoke(app, ["lab", "emergence", *where, "--revisions", "step2000,step9000,step17000"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["steps"] == [2000, 9000, 17_000] and "the heads and prompt of Table 2" in found["about"]
    done = CliRunner().invoke(app, ["lab", "emergence", *where, "--revisions", "step2000,step18000"])
    assert isinstance(done.exception, KeyholeError) and "has no checkpoint 'step18000'" in str(done.exception)


def test_another_models_checkpoints_reproduce_in_part_at_most(organism: Model, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    early = dict(snapshot_checkpoints(ROOT / "tools" / "snapshots", organism))[100]
    for name, model in (("step100", early), ("step10000", organism)):
        model.hf.save_pretrained(folder / name)
        organism.tokenizer.save_pretrained(folder / name)
    seen = emergence_trainings.watched(Source(str(folder), "all"), tmp_path, prompts=16)
    assert seen.heads.steps == (100, 10_000) and not seen.published and seen.window == 1
    assert "heads chosen by role at the last: " in seen.about and "S-inhibition 1.4" in seen.about
    with pytest.raises(MissingModelError, match=r"no checkpoints of .*mine are known: give .*--revisions"):
        emergence_trainings.watched(Source(str(folder)), tmp_path)
    empty = tmp_path / "pythia-160m"
    empty.mkdir()
    with pytest.raises(MissingModelError, match=r"has 0 checkpoints.*step<number>"):
        emergence_trainings.watched(Source(str(empty)), tmp_path)


def test_a_quick_run_takes_the_first_checkpoint_and_the_last(pythia: Path, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    source = Source(str(pythia), quick=True, progress=lambda done, total: told.append((done, total)))
    assert emergence_trainings.watched(source, tmp_path).heads.steps == (1000, 17_000) and told == [(1, 2), (2, 2)]


def test_watched_models_are_freed(organism: Model, balanced: list[Example]) -> None:
    alive: list[weakref.ref[Model]] = []

    def models():
        for step in range(3):
            assert not any(model() for model in alive)
            model = replace(organism, name=str(step))
            alive.append(weakref.ref(model))
            yield step, model
            del model

    kept: dict = {}
    counted = emergence_trainings._counted(models(), 3, lambda done, total: None)
    seen = emergence_trainings._viewing(counted, [NAME_MOVER], balanced, kept, seed=0)
    assert emergence(seen, [NAME_MOVER], balanced[:2], draws=1).steps == (0, 1, 2)
    (views,) = kept.values()
    assert len(views) == 2  # of three checkpoints
    for view in views:  # rotated terms have the same sum
        assert float(view.turned.relative_terms.sum()) == pytest.approx(view.singular.relative_attention, rel=1e-3)


def test_trainings_are_kept_by_all_that_decides_them(
    monkeypatch: pytest.MonkeyPatch, trained: Trained, tmp_path: Path
) -> None:
    asked = Source(quick=True)
    monkeypatch.setattr(
        "keyhole.lab.language.train_language", lambda settings, **_: replace(trained, settings=settings)
    )
    for device in (None, "cpu", "cuda"):
        emergence_trainings._trained(replace(asked, device=device), tmp_path, 0, asked.progress)
    assert len(list(tmp_path.glob("*.safetensors"))) == 2  # no device is the CPU
    path = tmp_path / "one.safetensors"
    save_trained(trained, path)
    again = read_trained(SMALL, path)
    assert again.losses == trained.losses and again.accuracy == trained.accuracy
    for one, other in zip(again.snapshots, trained.snapshots, strict=True):
        assert one.step == other.step and one.state.keys() == other.state.keys()
        assert all(torch.equal(one.state[name], other.state[name]) for name in other.state)
    with pytest.raises(KeyholeError, match="other settings"):
        read_trained(replace(SMALL, seed=1), path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(KeyholeError, match="no trained weights"):
        read_trained(SMALL, path)


def test_the_tool_keeps_a_seed_without_roles(trained: Trained, balanced: list[Example], tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("train_emergence", ROOT / "tools" / "train_emergence.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    save_trained(trained, tmp_path / "e-seed-0.safetensors")
    options = argparse.Namespace(out=tmp_path / "e.json", snapshots=3, first=20, device="cpu", players=1, threshold=0.9)
    found = tool.one_seed(SMALL, balanced, options)
    assert found["roles"] == found["rows"] == [] and found["accuracy"][-1]["step"] == 50
