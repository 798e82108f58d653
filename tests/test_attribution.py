"""Edge attribution patching, EAP-IG-inputs and GIM agree with slow, plain definitions and with finite differences."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from keyhole import KeyholeError
from keyhole.faithfulness.masked import Masked, masked
from keyhole.faithfulness.token_masks import Mask, everything
from keyhole.intervene import Metric
from keyhole.studies.curves.attribution import GIM, Backward, eap, eap_ig_inputs, gim, with_backward
from keyhole.studies.curves.cohort import Group
from keyhole.studies.curves.scores import slopes
from test_curves import METRIC, runs_of
from tiny import tiny

KINDS = ["gpt2", "llama", "gemma2", "olmo2", "gpt_neox", "qwen3", "mixtral"]
DENSE = KINDS[:-1]
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


# -- plain gradients of the model's own modules ------------------------------------------------------------------------


def part_of(x: Tensor, factor: float) -> Tensor:
    """X, whose gradient is multiplied by a factor."""
    return factor * x + ((1 - factor) * x).detach()


def plain_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Any,
    scaling: Any = None,
    softcap: Any = None,
    **_: Any,
) -> Any:
    b: Backward = module.backward_rules
    group, n = query.shape[1] // key.shape[1], query.shape[2]
    q, k, v = (part_of(x, f) for x, f in ((query, b.query), (key, b.key), (value, b.value)))
    S = q @ k.repeat_interleave(group, 1).mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    S = S if softcap is None else softcap * torch.tanh(S / softcap)
    S = S + mask[..., :n]
    soft = (S / b.temperature).softmax(-1)
    A = S.softmax(-1).detach() + b.temperature * (soft - soft.detach())
    return (A @ v.repeat_interleave(group, 1)).transpose(1, 2), A


def frozen(norm: torch.nn.Module, inputs: Any, y: Tensor) -> Tensor:
    """The norm's output with the ratio to its input held fixed."""
    (x,), bias = inputs, getattr(norm, "bias", None)
    bias = torch.zeros_like(y) if bias is None else bias
    x = x - x.mean(-1, keepdim=True) if isinstance(norm, torch.nn.LayerNorm) else x
    return x * ((y - bias) / x).detach() + bias


def plain_model(variant: str, backward: Backward) -> Any:
    AttentionInterface.register("plain", plain_attention)
    AttentionMaskInterface.register("plain", eager_mask)
    model = tiny(variant, dtype=torch.float64)
    model.set_attn_implementation("plain")
    factors = {"gate_proj": backward.gate, "up_proj": backward.up}
    for name, module in model.named_modules():
        module.backward_rules = backward
        if "Norm" in type(module).__name__ and backward.frozen_norms:
            module.register_forward_hook(frozen)
        if (factor := factors.get(name.split(".")[-1])) is not None:
            module.register_forward_hook(lambda _, __, y, f=factor: part_of(y, f))
    return model


def plain_gradients(model: Any, embeds: Tensor, metric: Metric) -> list[Tensor]:
    """Of the answer, by the residual stream before each layer."""
    layers = next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == 3)
    streams: list[Tensor] = []
    hooks = [layer.register_forward_pre_hook(lambda _, args: streams.append(args[0])) for layer in layers]
    logits = model(inputs_embeds=embeds.clone().requires_grad_(), use_cache=False).logits[0, -1]
    for hook in hooks:
        hook.remove()
    return [g[0] for g in torch.autograd.grad(metric.value(logits), streams)]


def ids_of(seed: int) -> Tensor:
    return torch.tensor([[(7 * i + 11 * seed) % 61 for i in range(1, 10)]])


def rounding(variant: str) -> float:
    """The RMSNorms of transformers compute in float32, whatever the model's precision is."""
    return 1e-8 if variant in ("gpt2", "gpt_neox") else 1e-5


UNEQUAL = Backward(temperature=3.0, query=0.3, key=0.7, value=0.2, gate=0.4, up=0.9)


@pytest.mark.parametrize("variant", DENSE)
@pytest.mark.parametrize("backward", [ORDINARY, GIM, UNEQUAL])
def test_gradients_are_those_of_plain_modules_under_the_four_rules(variant: str, backward: Backward) -> None:
    """The embedding's edges into all readers from a layer on are one product with the stream's gradient there."""
    made, model = against_others(variant), plain_model(variant, backward)
    assert made.baseline is not None
    found, per_layer = gim(made, METRICS, backward), 3 * made.model.dims.heads + 1
    for prompt, metric in enumerate(METRICS):
        change = made.words[prompt] - made.baseline[0, prompt]
        for layer, g in enumerate(plain_gradients(model, model.get_input_embeddings()(ids_of(prompt)), metric)):
            expected = (change * g).sum(-1).numpy()
            assert found[prompt, 0, layer * per_layer :].sum(0) == pytest.approx(expected, abs=rounding(variant))
            assert np.abs(expected).max() > 1e-3


@pytest.mark.parametrize("variant", DENSE)
def test_eap_ig_inputs_is_a_mean_of_plain_gradients(variant: str) -> None:
    made, model = against_others(variant), plain_model(variant, ORDINARY)
    assert made.baseline is not None
    found, per_layer, table = eap_ig_inputs(made, METRICS), 3 * made.model.dims.heads + 1, model.get_input_embeddings()
    for prompt, metric in enumerate(METRICS):
        clean, other = table(ids_of(prompt)), table(ids_of((prompt + 1) % 3))
        points = [other + k / 5 * (clean - other) for k in (1, 2, 3, 4, 5)]
        change = made.words[prompt] - made.baseline[0, prompt]
        for layer, gs in enumerate(zip(*(plain_gradients(model, x, metric) for x in points), strict=True)):
            expected = (change * torch.stack(gs).mean(0)).sum(-1).numpy()
            assert found[prompt, 0, layer * per_layer :].sum(0) == pytest.approx(expected, abs=rounding(variant))


# -- what they have in common ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", KINDS)
def test_gim_changes_no_value_and_without_its_changes_nothing(variant: str) -> None:
    made = against_others(variant)
    with torch.no_grad():
        masks = [everything(1.0, prompt) for prompt in range(3)]
        assert torch.equal(with_backward(made).masked_logits(masks), made.masked_logits(masks))
    plain = eap(made, METRICS)
    assert gim(made, METRICS, ORDINARY) == pytest.approx(plain, abs=1e-9)
    assert np.abs(gim(made, METRICS) - plain).max() > 0.05 * np.abs(plain).max()


def test_the_softmax_has_the_jacobian_of_the_formula() -> None:
    """J = diag(p) - p p^T at p = softmax(S / T), where the values are those of softmax(S)."""
    made = with_backward(against_others("llama"), Backward(temperature=3.0))
    rule, visible = made.blocks[0].rule, torch.tensor([[True, True, False, True]])
    S = torch.tensor([[[4.0, -2.0, 9.0, 1.0]]], dtype=torch.float64)
    shown = [0, 1, 3]
    p = (S[0, 0, shown] / 3).softmax(-1)
    found = torch.autograd.functional.jacobian(lambda scores: rule.weights(scores, visible), S)[0, 0, :, 0, 0]
    assert (
        torch.allclose(found[shown][:, shown], p.diag() - p.outer(p)) and not found[2].any() and not found[:, 2].any()
    )
    assert torch.allclose(rule.weights(S, visible)[0, 0, shown], S[0, 0, shown].softmax(-1))


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
