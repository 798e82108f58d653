"""Edge attribution patching, EAP-IG-inputs and GIM agree with slow, plain definitions and with finite differences."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from keyhole import KeyholeError
from keyhole.faithful.attribution import eap, eap_ig_inputs, gim
from keyhole.faithful.cohort import Group
from keyhole.faithful.edge_scores import slopes
from keyhole.faithfulness.gim import Backward, with_backward
from keyhole.faithfulness.masked import Masked, masked
from keyhole.faithfulness.token_masks import Mask, everything
from keyhole.intervene import Metric
from test_curves import METRIC, runs_of

KINDS = ["gpt2", "llama", "gemma2", "olmo2", "gpt_neox", "qwen3", "mixtral"]
METRICS = (METRIC, Metric(8, (7,), (11,)), Metric(8, (2, 4)))
ORDINARY = Backward(frozen_norms=False, temperature=1.0, query=1.0, key=1.0, value=1.0, gate=1.0, up=1.0)


def against_others(variant: str) -> Masked:
    """Three prompts, each with the next as its counterfactual."""
    made = masked(runs_of(variant))
    return replace(made, baseline=made.written().detach()[:, [1, 2, 0]])


@pytest.mark.parametrize("variant", KINDS)
def test_eap_is_the_slope_of_a_mask(variant: str) -> None:
    """A difference of two points, token by token, in each prompt with its own metric."""
    rounded = variant == "mixtral"  # its router's softmax is in float32: points further apart
    made, h = against_others(variant), 1e-3 if rounded else 1e-5
    found = eap(made, METRICS)
    order = np.argsort(-np.abs(found).ravel())[[0, 3, 30, 300]]
    for prompt, writer, reader, token in np.stack(np.unravel_index(order, found.shape), 1).tolist():
        edge = np.array([[writer, reader, token]])
        with torch.no_grad():
            ends = made.masked_logits([Mask(edge, 1.0 + change, 1.0, prompt) for change in (-h, h)])
        low, high = (METRICS[prompt].of(row) for row in ends)
        assert found[prompt, writer, reader, token] == pytest.approx(
            (high - low) / (2 * h), abs=2e-4 if rounded else 1e-6
        )


def test_over_tokens_and_prompts_it_is_the_component_score() -> None:
    made = against_others("llama")
    group = Group(made, METRICS, (0, 1, 2))
    expected = eap(made, METRICS).sum((0, 3))[tuple(made.wiring.edges.T)]
    assert slopes([group]) == pytest.approx(expected, abs=1e-12)
    assert slopes(list(group.parts(1))) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("variant", KINDS)
def test_gim_changes_no_value_and_without_its_changes_nothing(variant: str) -> None:
    made = against_others(variant)
    with torch.no_grad():
        masks = [everything(1.0, prompt) for prompt in range(3)]
        assert torch.equal(with_backward(made).masked_logits(masks), made.masked_logits(masks))
    plain = eap(made, METRICS)
    assert gim(made, METRICS, ORDINARY) == pytest.approx(plain, abs=1e-9)
    assert np.abs(gim(made, METRICS) - plain).max() > 0.05 * np.abs(plain).max()


def test_the_same_prompt_has_no_edges() -> None:
    made = masked(runs_of("llama"))
    made = replace(made, baseline=made.written().detach())
    for method in (eap, eap_ig_inputs, gim):
        assert np.abs(method(made, METRICS)).max() < 1e-12


@pytest.mark.parametrize("method", [eap, eap_ig_inputs, gim])
def test_how_many_prompts_fit_does_not_matter(method: object, monkeypatch: pytest.MonkeyPatch) -> None:
    made = against_others("gemma2")
    together = method(made, METRICS)  # type: ignore[operator]
    monkeypatch.setattr("keyhole.faithfulness.masked.FLOATS", 1)
    assert method(made, METRICS) == pytest.approx(together, abs=1e-11)  # type: ignore[operator]


def test_what_cannot_be_scored_is_refused() -> None:
    made = against_others("gpt2")
    with pytest.raises(KeyholeError, match="3 prompts and 1 metrics"):
        eap(made, [METRIC])
    with pytest.raises(KeyholeError, match="no baseline to start from"):
        eap_ig_inputs(replace(made, baseline=None), METRICS)
    with pytest.raises(KeyholeError, match="at least one step"):
        eap_ig_inputs(made, METRICS, 0)
