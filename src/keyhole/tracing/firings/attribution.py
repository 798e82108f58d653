"""How much does each score entry matter to one attention weight? Integrated gradients, collapsed to one vector.

Along the path alpha S from no scores at all to the model's own, with cap c and p = softmax(c(alpha S)),

    w = integral of p_s (e_s - p) c'(alpha S) d alpha,        attribution of any row C_i = C_i . w

so that all rows together receive S . w = p_s(S) - p_s(0).
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from keyhole.models.recording.attention import AttentionRule

INTERVALS = 64  # of the trapezoid rule, as in the reference


def ig_vectors(
    scores: Float[Tensor, "firing key"],
    visible: Bool[Tensor, "firing key"],
    src: Int[Tensor, "firing"],
    rule: AttentionRule,
    *,
    heads: Int[Tensor, "firing"],
) -> Float[Tensor, "firing key"]:
    """The vector w of each firing; zero at keys that dest does not see.

    >>> S = torch.tensor([[2.0, 0.0, 1.0]], dtype=torch.float64)
    >>> first = torch.tensor([0])
    >>> w = ig_vectors(S, torch.ones(1, 3, dtype=torch.bool), first, AttentionRule(1.0), heads=first)
    >>> bool(abs((S * w).sum() - (S.softmax(-1)[0, 0] - 1 / 3)) < 1e-3)
    True
    """
    scores = scores.double().masked_fill(~visible, 0.0)
    alphas = torch.linspace(0, 1, INTERVALS + 1, dtype=torch.float64, device=scores.device)
    step = torch.full_like(alphas, 1 / INTERVALS)
    step[[0, -1]] /= 2
    path = alphas[:, None] * scores[:, None, :]
    p = rule.of_heads(path, visible, heads)
    at_src = p.gather(-1, src[:, None, None].expand(-1, len(alphas), 1))
    pull = -p
    pull.scatter_add_(-1, src[:, None, None].expand(-1, len(alphas), 1), torch.ones_like(at_src))
    if rule.softcap is not None:
        pull = pull * (1 - torch.tanh(path / rule.softcap).square())
    return torch.einsum("a,faq->fq", step, at_src * pull).masked_fill(~visible, 0.0)
