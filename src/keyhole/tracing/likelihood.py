"""Which writers make an answer likely?

    J(z) = sum over targets of q log softmax(cap(z + b_U))

with q the model's own probabilities renormalised on the targets. Writers are ordered by integrated gradients from z = 0
and removed until J has lost the share `tau` of J(z) - J(0).
"""

from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.errors import KeyholeError, NothingToTraceError
from keyhole.models.weights import HeadOut
from keyhole.tracing.seeds import Goal, Seed, mean_along_path, shares_of, state_of, words_of, writer_at
from keyhole.tracing.upstream import Writes

_FIRST_PICKS = 16  # writers tried at first


@dataclass(frozen=True)
class Probability:
    """Seeds "prob" with another threshold than usual: the share of the answer's log-likelihood that they carry."""

    tau: float = 0.8

    def __post_init__(self) -> None:
        if not 0 < self.tau <= 1:
            raise KeyholeError(f"seed_tau is {self.tau}, but a share of the answer lies between 0 and 1, not 0.")


def prob_goal(writes: Writes, run: int, end: int, targets: list[int], *, seed_tau: float = 0.8) -> Goal:
    """Writers whose removal costs the targets the share `seed_tau` of their log-likelihood."""
    loss, z = loss_of(writes, run, end, targets)
    whole, nothing = float(loss.of(z)), float(loss.of(torch.zeros_like(z)))
    if whole - nothing <= 0:
        share = float(writes.runs[run].logits[end].double().softmax(-1)[targets].sum())
        raise NothingToTraceError(
            f"the model gives {words_of(writes, targets)} (probability {share:.1g}) no more probability than its bias "
            "alone would: there is nothing to trace. Choose a target the model predicts."
        )
    along = prob_direction(loss, z) / writes.runs[run].final_scale[end]
    choose = partial(_prob_prefix, writes, run, end, loss=loss, enough=seed_tau * (whole - nothing))
    return Goal(run, end, along, len(writes.runs[run].layers), choose)


def loss_of(writes: Writes, run: int, end: int, targets: list[int]) -> tuple["Loss", Float[Tensor, "vocab"]]:
    """The objective, and the state that the run has in it."""
    out = writes.model.head_out()
    z = state_of(writes, run, end) @ out.W_U
    return Loss(out, targets, out.logits(z)[targets].softmax(-1)), z


def prob_direction(loss: "Loss", z: Float[Tensor, "vocab"]) -> Float[Tensor, "d_model"]:
    """J's mean gradient along the path, as a direction in the normalised stream."""
    W_U = loss.out.W_U
    return W_U @ mean_along_path(loss.pull, z).to(W_U.dtype)


@dataclass(frozen=True)
class Loss:
    """J(z) = sum over targets of q log softmax(cap(z + b_U)), and its gradient."""

    out: HeadOut
    targets: list[int]
    q: Float[Tensor, "target"]

    def of(self, z: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch"]:
        """J at each state."""
        logits = self.out.logits(z)
        return (logits[..., self.targets] * self.q.to(logits.dtype)).sum(-1) - logits.logsumexp(-1)

    def pull(self, z: Float[Tensor, "vocab"]) -> Float[Tensor, "vocab"]:
        """dJ/dz."""
        gradient = -self.out.logits(z).softmax(-1)
        gradient[self.targets] += self.q.to(gradient.dtype)
        return gradient * self.out.slope(z)


def _prob_prefix(
    writes: Writes, run: int, end: int, attribution: Float[Tensor, "component"], *, loss: Loss, enough: float
) -> list[Seed]:
    """The shortest prefix of writers whose removal loses enough, or all with a positive attribution.

    Shares are summed before the unembedding, so one product gives the states after every removal; their
    differences are what each writer alone pushes.
    """
    values, order = attribution.sort(descending=True)
    useful = int((values > 0).sum())
    x, W_U = state_of(writes, run, end), loss.out.W_U
    z = before = x @ W_U
    whole, seeds, picks = loss.of(z), list[Seed](), _FIRST_PICKS
    while len(seeds) < useful:
        named = order[len(seeds) : min(len(seeds) + picks, useful)].tolist()
        group = [writer_at(writes, component, end) for component in named]
        shares = shares_of(writes, run, end, group)
        left = x - shares.cumsum(0)
        states = left @ W_U
        lost = (whole - loss.of(states)).tolist()
        alone = (whole - loss.of(z - (torch.cat([before[None], states[:-1]]) - states))).tolist()
        weights = values[len(seeds) : len(seeds) + len(group)].tolist()
        for writer, weight, drop, own in zip(group, weights, lost, alone, strict=True):
            seeds.append(Seed(writer, weight, own))
            if drop >= enough:
                return seeds
        x, before, picks = left[-1], states[-1], min(64, 2 * picks)
    return seeds
