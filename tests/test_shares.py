"""Shares are slopes along the way from the baseline to the prompt; they add up, over edges and over channels."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from keyhole import Model
from keyhole.faithfulness.baseline import baseline
from keyhole.faithfulness.effects import effects
from keyhole.faithfulness.masked import Masked
from keyhole.faithfulness.search import LEAST_GAP
from keyhole.faithfulness.shares import (
    FEWEST,
    WITHIN,
    MaskedQuestion,
    along,
    channel_shares,
    integrated,
    placed,
    question,
    shares,
)
from keyhole.faithfulness.token_masks import EdgeList
from keyhole.intervene import Metric
from keyhole.tasks import greater_than, induction, ioi
from keyhole.tasks.answers import answer_ids
from keyhole.tasks.catalogue import like
from keyhole.tasks.example import Example
from test_curves import METRIC, by_hand
from test_token_masks import all_edges, at_a_mean, exists

# Norms after a block, QK-norm, sinks, ALiBi, grouped keys, MLPs beside attention, experts.
KINDS = ["gpt2", "llama", "gemma2", "olmo2", "qwen3", "gpt_oss", "falcon-alibi", "gptj", "mixtral"]


def question_of(model: Model, example: Example, n: int = 32) -> MaskedQuestion:
    """A task's prompt, at the mean of prompts like it."""
    run, answer = model.run(example.text), answer_ids(model, example)
    mean = baseline(run, like=like(example, model, n))
    return question(run, Metric(len(run) - 1, answer.answers, answer.against), mean)


def one_of_each_kind(made: Masked, rng: np.random.Generator, of: EdgeList | None = None) -> EdgeList:
    every = all_edges(made) if of is None else of
    sides = np.array([reader.side for reader in made.wiring.readers])[every[:, 1]]
    picked = [every[rng.choice(np.flatnonzero(sides == side), 2)] for side in ("dest", "src", "value", "mlp", "target")]
    return np.concatenate(picked)


# -- slopes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", KINDS)
def test_shares_over_all_tokens_are_slopes_of_masks(variant: str) -> None:
    """Of each edge without tokens, by a gradient through the mask itself."""
    _, made = at_a_mean(variant)
    cells = [(0.3, 0.5), (0.9, 0.25)]
    found = integrated(made, [METRIC], [cells], [1])[0]
    assert not found[~exists(made.wiring, 9)].any()
    expected = np.zeros(made.wiring.joined.shape)
    for point, width in cells:
        mask = torch.full(made.wiring.joined.shape, point, dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(METRIC.value(made.logits(mask)[1]), mask)
        expected += width * slope.numpy()
    assert found.sum(-1) == pytest.approx(expected, abs=1e-9) and np.abs(expected).max() > 0.05


def test_shares_are_slopes_token_by_token() -> None:
    """Two points apart, of GPT-2's own modules."""
    runs, made = at_a_mean("gpt2")
    assert made.baseline is not None
    found, h = integrated(made, [METRIC], [[(0.6, 1.0)]], [2])[0], 1e-5
    for writer, reader, token in one_of_each_kind(made, np.random.default_rng(0)).tolist():
        ends = []
        for change in (-h, h):
            mask = torch.full(found.shape, 0.6, dtype=torch.float64)
            mask[writer, reader, token] += change
            with torch.no_grad():
                ends.append(METRIC.of(by_hand(runs[2], mask, made.baseline, made)))
        assert found[writer, reader, token] == pytest.approx((ends[1] - ends[0]) / (2 * h), abs=1e-7)


def test_shares_along_a_circuit_are_slopes_within_it() -> None:
    """Of each edge of a list, where these alone are there, more and more of them."""
    runs, made = at_a_mean("gpt2")
    assert made.baseline is not None
    every, rng = all_edges(made), np.random.default_rng(3)
    edges = np.unique(np.concatenate([every[rng.choice(len(every), 300)], one_of_each_kind(made, rng)]), axis=0)
    found, h = along(made, [METRIC], [edges], [1])[0], 1e-5
    tried = one_of_each_kind(made, rng, edges)
    for edge in tried:
        expected = 0.0
        for point, width in WITHIN:
            ends = []
            for change in (-h, h):
                mask = torch.zeros((*made.wiring.joined.shape, 9), dtype=torch.float64)
                mask[tuple(torch.from_numpy(edges.T))] = point
                mask[tuple(edge)] += change
                with torch.no_grad():
                    ends.append(METRIC.of(by_hand(runs[1], mask, made.baseline, made)))
            expected += width * (ends[1] - ends[0]) / (2 * h)
        at = int((edges == edge).all(1).argmax())
        assert found[at] == pytest.approx(expected, abs=1e-7)
    assert np.abs(found).max() > 0.1 and sum(width for _, width in WITHIN) == pytest.approx(1)


@pytest.mark.parametrize("variant", KINDS)
def test_shares_do_not_depend_on_how_many_copies_fit(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, made = at_a_mean(variant)
    cells = placed(np.linspace(0, 1, 5), np.linspace(0, 1, 5), 5)
    together = integrated(made, [METRIC], [cells], [0])[0]
    monkeypatch.setattr("keyhole.faithfulness.masked.FLOATS", 1)
    assert integrated(made, [METRIC], [cells], [0])[0] == pytest.approx(together, abs=1e-12)


# -- they add up -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [ioi, greater_than, induction])
def test_shares_add_up_to_the_gap(organism: Model, task: object) -> None:
    there = 0
    for example in task(6, 5, held_out=True):  # type: ignore[operator]
        asked = question_of(organism, example)
        everything, nothing = asked.ends
        assert everything == pytest.approx(asked.metric.of(asked.run.logits[-1]), abs=1e-4)
        if everything - nothing < LEAST_GAP:
            continue
        there += 1
        assert asked.shares.completeness == pytest.approx(1, abs=0.05)
        assert asked.shares.values.sum() == pytest.approx(everything - nothing, rel=0.051)
        assert (asked.shares.everything, asked.shares.nothing) == pytest.approx((everything, nothing), abs=1e-4)
    assert there > 1


def test_shares_of_a_language_model_add_up(smollm2: Model) -> None:
    asked = question_of(smollm2, ioi(1, 3)[0], 8)
    assert asked.shares.completeness == pytest.approx(1, abs=0.05) and asked.shares.gap > 1


def test_more_points_are_taken_until_they_add_up(organism: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = question_of(organism, ioi(1, 5)[0])
    assert asked.shares.points == FEWEST
    monkeypatch.setattr("keyhole.faithfulness.shares.CLOSE", 1e-9)
    assert shares(asked.masked, asked.metric).points == 32


def test_shares_report_their_progress(organism: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forwards only, also where more points are taken; and once they are known they are not computed again."""
    asked = question_of(organism, ioi(1, 5)[0])
    monkeypatch.setattr("keyhole.faithfulness.shares.CLOSE", 1e-9)
    monkeypatch.setattr("keyhole.faithfulness.shares.rows_with_slopes", lambda _: 4)
    done: list[float] = []
    known = asked.with_shares(lambda now, total: done.append(now / total))
    assert len(done) == 2 + 4 + 8 and done == sorted(set(done)) and done[0] > 0 and done[-1] < 1
    assert known.with_shares() is known and known.shares is known.precomputed
    whole: list[float] = []
    circuit = asked.run.trace(list(asked.metric.targets))
    effects(circuit, what=("shares",), progress=lambda now, total: whole.append(now / total))
    assert whole == sorted(whole) and len({part for part in whole if 0.6 <= part <= 0.84}) == len(done)


@pytest.mark.parametrize("variant", ["gpt2", "llama", "qwen3"])
def test_channels_add_up_to_their_edge(variant: str) -> None:
    """And the first of them is the slope by this channel alone."""
    _, made = at_a_mean(variant)
    cells = [(0.3, 0.5), (0.9, 0.5)]
    every = all_edges(made)
    sides = np.array([reader.side for reader in made.wiring.readers])[every[:, 1]]
    edges = np.concatenate([every[sides == side][::97] for side in ("dest", "src")])
    values = integrated(made, [METRIC], [cells], [0])[0][tuple(edges.T)]
    by_channel = channel_shares(made, METRIC, edges, cells)
    assert [parts.sum() for parts in by_channel] == pytest.approx(values, abs=1e-12)
    assert max(len(parts) for parts in by_channel) == made.model.dims.d_head + 1
    assert max(np.abs(parts[:-1]).max() for parts in by_channel) > 1e-3


# -- where points are placed -------------------------------------------------------------------------------------------


@given(st.lists(st.floats(-50, 50), min_size=2, max_size=20), st.integers(1, 40))
def test_points_lie_where_the_answer_changes(answers: list[float], points: int) -> None:
    """Cells are a partition of the way, and hold as much of it and of the changes together as each other."""
    looks = np.linspace(0, 1, len(answers))
    cells = placed(looks, np.array(answers), points)
    ends = np.concatenate([[0.0], np.cumsum([width for _, width in cells])])
    assert len(cells) == points and ends[-1] == pytest.approx(1)
    assert [point for point, _ in cells] == pytest.approx((ends[:-1] + ends[1:]) / 2)
    changed = np.concatenate([[0.0], np.abs(np.diff(answers)).cumsum()])
    total = changed[-1]
    mass = 0.5 * ends + 0.5 * (np.interp(ends, looks, changed) / total if total > 0 else ends)
    assert np.diff(mass) == pytest.approx(1 / points, abs=1e-6)


def test_a_baseline_of_its_own_changes_shares(organism: Model) -> None:
    """Edges out of a writer that stands at its baseline anyway have no share."""
    asked = question_of(organism, ioi(1, 5)[0])
    written = asked.masked.written()[:, 0]
    own = asked.baseline.writes.clone()
    own[0] = written[0]  # every token's embedding
    again = shares(replace(asked.masked, baseline=own), asked.metric)
    assert np.abs(again.values[0]).max() < 1e-5 < np.abs(asked.shares.values[0]).max()
