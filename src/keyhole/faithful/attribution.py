"""What do the field's methods think of every edge at every token? Attribution patching, three ways.

With w_u what writer u writes in the prompt, base_u its baseline (what it writes in a counterfactual prompt, or on
average), m the answer and x_r what reader r reads, every method scores a token-level edge (u, r, t) by

    (w_u - base_u)[t] . g_r[t]              above 0: the edge supports the answer

eap             g_r = dm/dx_r in the prompt: edge attribution patching (Syed and others, 2023)
eap_ig_inputs   the mean of dm/dx_r over passes of the plain model on input embeddings along the straight line from the
                baseline's to the prompt's, at 1/n, 2/n ... 1 of it (Hanna and others, 2024: EAP-IG-inputs)
gim             as eap, with changes on the way back (Edin and others, 2025): see `keyhole.faithfulness.gim`

All take prompts of one length (a `Masked`), and a metric for each. Scores of components are the sums over tokens.
Our "integrated" goes another way: along masks on all edges (`keyhole.faithfulness.shares`).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float

from keyhole.errors import KeyholeError
from keyhole.faithfulness.gim import GIM, Backward, with_backward
from keyhole.faithfulness.masked import Masked
from keyhole.faithfulness.shares import (
    Slopes,
    add_products,
    by_edge,
    integrated,
    reader_slopes,
    rows_with_slopes,
)
from keyhole.faithfulness.token_masks import everything
from keyhole.intervene.remove import Metric
from keyhole.models.numbers.precision import exact_matmul

STEPS = 5  # on the line between input embeddings
EdgeScores = Float[np.ndarray, "prompt writer reader pos"]


def eap(masked: Masked, metrics: Sequence[Metric]) -> EdgeScores:
    """Edge attribution patching: gradients in the prompt itself."""
    return along_masks(masked, metrics, [(1.0, 1.0)])


def gim(masked: Masked, metrics: Sequence[Metric], backward: Backward = GIM) -> EdgeScores:
    """Edge attribution patching with GIM's gradients; `backward` is for other factors than the paper's."""
    return eap(with_backward(masked, backward), metrics)


def along_masks(masked: Masked, metrics: Sequence[Metric], points: Sequence[tuple[float, float]]) -> EdgeScores:
    """Slopes by masks, in passes with all masks at the same point, summed with weights: (point, weight) each."""
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
        own = slice(start, start + size)
        part = prompts_of(masked, own)
        with exact_matmul(), torch.no_grad():
            _, stream = part.read([everything(1.0, prompt) for prompt in range(len(part.words))])
        total = part.words.new_zeros(values.shape[-1], len(part.words), *masked.wiring.joined.shape)
        add_products(total, stream.changes, _mean_slopes(part, metrics[own], steps), masked.wiring)
        values[own] = by_edge(total, masked.wiring)
    return values


def prompts_of(masked: Masked, which: slice) -> Masked:
    """Some of the prompts, with their baselines."""
    baseline = masked.baseline
    if baseline is not None and baseline.ndim == masked.words.ndim + 1:  # of each prompt
        baseline = baseline[:, which]
    return replace(masked, words=masked.words[which], baseline=baseline)


def _mean_slopes(masked: Masked, metrics: Sequence[Metric], steps: int) -> Slopes:
    """Slopes by what readers read, over passes of the plain model on the way between input embeddings."""
    assert masked.baseline is not None
    n = len(masked.words)
    start = masked.baseline[0].expand_as(masked.words)
    total: Slopes = []
    size = max(1, rows_with_slopes(masked) // n)  # steps at a time
    for first in range(0, steps, size):
        parts = [(step + 1) / steps for step in range(first, min(first + size, steps))]
        words = torch.cat([start + part * (masked.words - start) for part in parts])
        there = replace(masked, words=words, baseline=None)
        _, slopes = reader_slopes(
            there, list(metrics) * len(parts), [everything(1.0, row) for row in range(len(words))]
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
