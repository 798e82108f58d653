"""How do gradients score every edge? EAP, EAP-IG-inputs, and GIM with its changed gradients.

GIM (Edin and others, 2025) takes an ordinary forward pass, value for value, with four changes to the backward pass:

    norms      x / s(x): the scale s is held fixed (a LayerNorm's mean is not)
    softmax    dA = J dS with J = diag(p) - p p^T at p = softmax(S / 2), where A = softmax(S) itself
    attention  gradients into query, key and value are multiplied by 1/4, 1/4 and 1/2
    gated MLP  gradients into gate and up-projection are multiplied by 1/2 each

The last two divide a product among its factors, of which gradients give the whole to each. The second gives a saturated
softmax a slope. Nothing else changes: activations, softcaps and routers of experts have their ordinary slopes. A block
is replaced by one whose parts differ in their gradients alone, so ordinary passes are not affected.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from keyhole.errors import KeyholeError
from keyhole.faithfulness.blocks import After, Block, InHead, Read, Side
from keyhole.faithfulness.masked import Masked
from keyhole.faithfulness.shares import Slopes, add_products, by_edge, integrated, reader_slopes, rows_with_slopes
from keyhole.faithfulness.token_masks import everything
from keyhole.intervene.removal import Metric
from keyhole.models.attention import AttentionRule
from keyhole.models.facts import Norm
from keyhole.models.mlps import MlpWeights, Neurons, Shape
from keyhole.models.numbers import exact_matmul


@dataclass(frozen=True)
class Backward:
    """The numbers of the four changes; by default those of the paper."""

    frozen_norms: bool = True
    temperature: float = 2.0  # at which the slope of the softmax is taken
    query: float = 0.25  # factors on gradients
    key: float = 0.25
    value: float = 0.5
    gate: float = 0.5
    up: float = 0.5


GIM = Backward()


def with_backward(masked: Masked, backward: Backward = GIM) -> Masked:
    """The same pass, with these changes of its gradients."""
    blocks = tuple(_block(block, backward) for block in masked.blocks)
    norm = masked.final_norm
    return replace(masked, blocks=blocks, final_norm=_norm(norm, backward) if backward.frozen_norms else norm)


def _block(block: Block, backward: Backward) -> Block:
    after = block.after
    rule = {name: getattr(block.rule, name) for name in ("scaling", "softcap", "sinks", "key_bias")}
    return replace(
        block,
        query=_side(block.query, backward.query, backward),
        key=_side(block.key, backward.key, backward),
        value=_side(block.value, backward.value, backward),
        rule=_Rule(**rule, temperature=backward.temperature),
        after=None if after is None else After(_norm(after.norm, backward), after.W, after.b),
        mlp=_mlp(block.mlp, backward),
        mlp_norm=None if block.mlp_norm is None else _norm(block.mlp_norm, backward),
        mlp_after=None if block.mlp_after is None else _norm(block.mlp_after, backward),
    )


def _with_gradient_of(value: Tensor, surrogate: Tensor) -> Tensor:
    """The value itself with the gradient of a surrogate: surrogate - surrogate is 0, but has a slope."""
    return value.detach() + (surrogate - surrogate.detach())


def _scaled(x: Tensor, factor: float) -> Tensor:
    """The tensor itself, with its gradient times a factor."""
    return x if factor == 1 else _with_gradient_of(x, factor * x)


# -- norms: a scale without a gradient ---------------------------------------------------------------------------------


class _FrozenNorm(Norm):
    def scale(self, x: Float[Tensor, "... dim"]) -> Float[Tensor, "..."]:
        return super().scale(x).detach()


def _norm(norm: Norm, backward: Backward) -> Norm:
    return _FrozenNorm(norm.kind, norm.gain, norm.bias, norm.eps) if backward.frozen_norms else norm


class _FrozenModule(nn.Module):
    """A norm as routers of experts read it: the module's values, with the gradient of the norm at a fixed scale."""

    def __init__(self, module: nn.Module, norm: Norm) -> None:
        super().__init__()
        self.module, self.norm = module, norm

    def forward(self, x: Tensor) -> Tensor:
        linear = self.norm.centre(x) / self.norm.scale(x).detach().to(x)[..., None]
        linear = linear if self.norm.gain is None else linear * self.norm.gain.to(x)
        values: Tensor = self.module(x)
        return _with_gradient_of(values, linear)


# -- attention: factors on three gradients, and a softer softmax -------------------------------------------------------


@dataclass(frozen=True)
class _Side(Side):
    factor: float = 1.0

    def linear(self, x: Read, lost: InHead | None = None) -> InHead:
        return _scaled(super().linear(x, lost), self.factor)


def _side(side: Side, factor: float, backward: Backward) -> Side:
    norms = [None if norm is None else _norm(norm, backward) for norm in (side.norm, side.qk_norm)]
    return _Side(norms[0], side.W, side.b, norms[1], side.spans_all, factor)


@dataclass(frozen=True)
class _Rule(AttentionRule):
    temperature: float = 1.0

    def weights(
        self, scores: Float[Tensor, "*batch heads query key"], visible: Bool[Tensor, "*any query key"]
    ) -> Float[Tensor, "*batch heads query key"]:
        logits = self.logits(scores, visible)
        softer = (logits / self.temperature).softmax(-1)  # its slope by the logits is J / T
        weights = _with_gradient_of(logits.softmax(-1), self.temperature * softer)
        return weights[..., : scores.shape[-1]]


# -- gated MLPs: factors on two gradients ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Shape(Shape):
    gate: float = 1.0
    up: float = 1.0

    def gated(self, h: Tensor, p: Tensor) -> Tensor:
        return super().gated(_scaled(h, self.gate), _scaled(p, self.up))


def _mlp(mlp: MlpWeights, backward: Backward) -> MlpWeights:
    neurons = tuple(_neurons(neurons, backward) for neurons in mlp.neurons)
    module = mlp.norm
    if mlp.route is not None and backward.frozen_norms and module is not None and mlp.reads is not None:
        module = _FrozenModule(module, mlp.reads)
    return replace(mlp, neurons=neurons, norm=module)


def _neurons(neurons: Neurons, backward: Backward) -> Neurons:
    shape = neurons.shape
    return replace(neurons, shape=_Shape(shape.a, shape.b, shape.slope_b, backward.gate, backward.up))


# Three methods of the field score every edge at every token by attribution patching.
#
# With w_u what writer u writes in the prompt, base_u its baseline (what it writes in a counterfactual prompt, or on
# average), m the answer and x_r what reader r reads, every method scores a token-level edge (u, r, t) by
#
#     (w_u - base_u)[t] . g_r[t]              above 0: the edge supports the answer
#
# eap             g_r = dm/dx_r in the prompt: edge attribution patching (Syed and others, 2023)
# eap_ig_inputs   the mean of dm/dx_r over passes of the plain model, on input embeddings at 1/n, 2/n ... 1 of the line
#                 from the baseline's to the prompt's (Hanna and others, 2024: EAP-IG-inputs)
# gim             as eap, with the changed gradients above (Edin and others, 2025)
#
# All take prompts of one length (a `Masked`), and a metric for each. Scores of components are sums over tokens. Our
# "integrated" takes another path: masks on all edges (`keyhole.faithfulness.shares`).

STEPS = 5  # on the line between input embeddings
EdgeScores = Float[np.ndarray, "prompt writer reader pos"]


def eap(masked: Masked, metrics: Sequence[Metric]) -> EdgeScores:
    """Edge attribution patching: gradients in the prompt itself."""
    return along_masks(masked, metrics, [(1.0, 1.0)])


def gim(masked: Masked, metrics: Sequence[Metric], backward: Backward = GIM) -> EdgeScores:
    """Edge attribution patching with GIM's gradients; `backward` is for other factors than the paper's."""
    return eap(with_backward(masked, backward), metrics)


def along_masks(masked: Masked, metrics: Sequence[Metric], points: Sequence[tuple[float, float]]) -> EdgeScores:
    """Slopes by masks in passes with all masks at one point, summed over points with a weight each: (point, weight)."""
    _require_metrics(masked, metrics)
    return integrated(masked, metrics, [points] * len(metrics), range(len(metrics)))


def eap_ig_inputs(masked: Masked, metrics: Sequence[Metric], steps: int = STEPS) -> EdgeScores:
    """Edge attribution patching with gradients averaged between the input embeddings of baseline and prompt."""
    _require_metrics(masked, metrics)
    if masked.baseline is None:
        raise KeyholeError(
            "EAP-IG-inputs goes from the embeddings of a counterfactual prompt, or of a mean, to those of the prompt, "
            "and there is no baseline to start from: give one, or take eap."
        )
    if steps < 1:
        raise KeyholeError(f"give at least one step between the input embeddings, and not {steps}.")
    values = np.empty((len(metrics), *masked.wiring.joined.shape, masked.words.shape[1]))
    size = max(1, rows_with_slopes(masked) // steps)  # prompts at a time
    for start in range(0, len(metrics), size):
        chunk = slice(start, start + size)
        part = prompts_of(masked, chunk)
        with exact_matmul(), torch.no_grad():
            _, stream = part.read([everything(1.0, prompt) for prompt in range(len(part.words))])
        total = part.words.new_zeros(values.shape[-1], len(part.words), *masked.wiring.joined.shape)
        add_products(total, stream.changes, _mean_slopes(part, metrics[chunk], steps), masked.wiring)
        values[chunk] = by_edge(total, masked.wiring)
    return values


def prompts_of(masked: Masked, which: slice) -> Masked:
    """Some of the prompts, with their baselines."""
    baseline = masked.baseline
    if baseline is not None and baseline.ndim == masked.words.ndim + 1:  # of each prompt
        baseline = baseline[:, which]
    return replace(masked, words=masked.words[which], baseline=baseline)


def _mean_slopes(masked: Masked, metrics: Sequence[Metric], steps: int) -> Slopes:
    """Slopes by what readers read, averaged over passes of the plain model between the two input embeddings."""
    assert masked.baseline is not None
    n = len(masked.words)
    start = masked.baseline[0].expand_as(masked.words)
    total: Slopes = []
    size = max(1, rows_with_slopes(masked) // n)  # steps at a time
    for first in range(0, steps, size):
        parts = [(step + 1) / steps for step in range(first, min(first + size, steps))]
        words = torch.cat([start + part * (masked.words - start) for part in parts])
        interpolated = replace(masked, words=words, baseline=None)
        _, slopes = reader_slopes(
            interpolated, list(metrics) * len(parts), [everything(1.0, row) for row in range(len(words))]
        )
        means = [
            (readers, slope.reshape(len(readers), -1, *masked.words.shape).sum(1) / steps) for readers, slope in slopes
        ]
        total = means if not total else [(a[0], a[1] + b[1]) for a, b in zip(total, means, strict=True)]
    return total


def _require_metrics(masked: Masked, metrics: Sequence[Metric]) -> None:
    if len(metrics) != len(masked.words):
        raise KeyholeError(f"there are {len(masked.words)} prompts and {len(metrics)} metrics: give one for each.")
    if not all(metric.targets for metric in metrics):
        raise KeyholeError("edges are scored by what they do to an answer, and a metric names none: give it targets.")
