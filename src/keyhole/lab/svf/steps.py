"""What does one training step of many SVF toys compute? Losses and their gradients, written out.

With M = W^T W, A = W^T Omega W, G = 1[z > 0] (z - f) and g = sum_j (p_j - p^T_j) f_j:

    z = f M + b        dM ~ f^T G,   dW = W (dM + dM^T)
    l_j = f_r^T A f_j  dA ~ f_r^T g, dW = Omega W dA^T + Omega^T W dA,  dOmega = W dA W^T

so that a step multiplies features by N x N matrices only and never forms a token.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from keyhole.lab.svf.toy import SVFSettings, SVFWeights, generator


@dataclass(frozen=True)
class Constants:
    """What the models of a group differ in, as tensors with the model first."""

    slope: Tensor  # -1/p [model 1 1 1]
    T: Tensor  # [model N key], only the columns of features that some model attends to
    keys: Tensor  # those columns
    recon: Tensor  # weight of a squared error [model 1 1]
    attention: Tensor  # weight of a context's cross-entropy [model 1 1]
    lr: Tensor  # [model 1]
    weight_decay: Tensor  # [model 1]


def constants(configs: Sequence[SVFSettings], device: torch.device) -> Constants:
    """The settings of models of one shape, side by side."""
    N, batch, contexts = configs[0].N, configs[0].batch, configs[0].batch // configs[0].m

    def column(values: list[float], axes: int) -> Tensor:
        return torch.tensor(values, device=device).view(-1, *[1] * axes)

    T = torch.stack([c.T for c in configs])
    keys = T.ne(0).any(0).any(0).nonzero()[:, 0]
    return Constants(
        slope=column([-1 / c.p for c in configs], 3),
        T=T[:, :, keys].to(device),
        keys=keys.to(device),
        recon=column([1 / batch / (N if c.recon_reduction == "mean" else 1) for c in configs], 2),
        attention=column([c.lam / contexts for c in configs], 2),
        lr=column([c.lr for c in configs], 1),
        weight_decay=column([c.weight_decay for c in configs], 1),
    )


def gradients(w: SVFWeights, f: Tensor, query: Tensor | None, c: Constants) -> Tensor:
    """The gradient of every model as flat rows, in the order W, b, W_Q, W_K.

    w: stacked weights; f: key tokens' features [model m context N]; query: [model context N], None without a head.
    """
    flat = f.flatten(1, 2)
    z = torch.baddbmm(w.b[:, None], flat, w.W.mT @ w.W)
    G = torch.ops.aten.threshold_backward(z - flat, z, 0)  # one pass: the difference where z > 0
    dM = 2 * c.recon * (flat.mT @ G)
    dW, db = w.W @ (dM + dM.mT), 2 * c.recon[:, 0] * G.sum(1)
    if query is None:
        return torch.cat([dW.flatten(1), db, torch.zeros_like(w.W_Q.flatten(1)), torch.zeros_like(w.W_K.flatten(1))], 1)
    Omega = w.W_Q.mT @ w.W_K
    read = Omega @ w.W
    logits, target = _logits(f, query, w.W.mT @ read, c)
    off = c.attention * (logits.softmax(1) - target.softmax(1))
    dA = query.mT @ (f * off[..., None]).sum(1)
    dW += read @ dA.mT + Omega.mT @ w.W @ dA
    dOmega = w.W @ dA @ w.W.mT
    parts = (dW, db, w.W_K @ dOmega.mT, w.W_Q @ dOmega)
    return torch.cat([part.flatten(1) for part in parts], 1)


def _logits(f: Tensor, query: Tensor, A: Tensor, c: Constants) -> tuple[Tensor, Tensor]:
    """Learnt and wanted logits [model m context]."""
    # a product with ones is a faster sum over a short last axis
    logits = (f * (query @ A)[:, None]) @ f.new_ones(f.shape[-1])
    return logits, (f[..., c.keys] * (query @ c.T)[:, None]).sum(-1)


def losses(w: SVFWeights, f: Tensor, query: Tensor | None, c: Constants) -> Tensor:
    """(reconstruction, attention) of every model, the latter without lambda."""
    error = torch.relu(torch.baddbmm(w.b[:, None], f.flatten(1, 2), w.W.mT @ w.W)) - f.flatten(1, 2)
    recon = c.recon[:, 0, 0] * error.square().sum((1, 2))
    if query is None:
        return torch.stack([recon, torch.zeros_like(recon)], 1)
    logits, target = _logits(f, query, w.W.mT @ w.W_Q.mT @ w.W_K @ w.W, c)
    return torch.stack([recon, -(target.softmax(1) * logits.log_softmax(1)).sum(1).mean(1)], 1)


def views(flat: Tensor, s: SVFSettings) -> SVFWeights:
    """The weights inside flat rows [*model numbers]."""
    sizes = [s.D * s.N, s.N, s.H * s.D, s.H * s.D]
    W, b, W_Q, W_K = flat.split_with_sizes(sizes, dim=-1)
    lead = flat.shape[:-1]
    return SVFWeights(W.view(*lead, s.D, s.N), b, W_Q.view(*lead, s.H, s.D), W_K.view(*lead, s.H, s.D))


def initial(s: SVFSettings) -> Tensor:
    """Xavier normal, zero bias; no head is a zero head."""
    stream = generator(s.seed, "init")
    W, W_Q, W_K = (
        torch.randn(rows, columns, generator=stream) * math.sqrt(2 / (rows + columns))
        for rows, columns in ((s.D, s.N), (s.H, s.D), (s.H, s.D))
    )
    head = float(s.attention)
    return torch.cat([W.flatten(), torch.zeros(s.N), head * W_Q.flatten(), head * W_K.flatten()])
