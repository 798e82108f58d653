"""From the answer to the first writers: seeds, and those that a probability or likelihood rests on.

Where does an answer come from? The writers at the predicting token whose loss would undo it: a circuit's seeds.

A goal is a direction there, and a rule that chooses from what each writer has along it. Writers of all runs are weighed
together.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.records import Writer
from keyhole.circuits.text import words_label
from keyhole.errors import NothingToTraceError
from keyhole.models.tokens import token_texts
from keyhole.models.weights import HeadOut
from keyhole.settings.tracing import Probability as Probability
from keyhole.tracing.mlp_attribution import parts_at
from keyhole.tracing.upstream import Writes

_INTERVALS = 64


@dataclass(frozen=True)
class Seed:
    """A writer at the predicting token that the answer rests on."""

    writer: Writer
    weight: float  # its attribution
    alone: float  # what the objective loses when it alone is removed
    along: Float[Tensor, "d_model"] | None = field(default=None, repr=False, compare=False)  # weight = along . write


@dataclass(frozen=True)
class Goal:
    """Along which direction at one token of a run writers are weighed, and which of them are then chosen."""

    run: int
    end: int
    along: Float[Tensor, "d_model"]  # in the residual stream
    layer: int  # that reads it; number of layers: the final norm
    choose: Callable[[Float[Tensor, "component"]], list[Seed]]  # from what each writer has along it


def seeds_of(writes: Writes, goals: Sequence[Goal]) -> list[Callable[[], list[Seed]]]:
    """How to choose the seeds of each goal; writers of all runs are weighed together."""
    choices: dict[int, Callable[[], list[Seed]]] = {}
    for layer in {goal.layer for goal in goals}:
        group = [(i, goal) for i, goal in enumerate(goals) if goal.layer == layer]
        along, places = torch.stack([goal.along for _, goal in group]), [(goal.run, goal.end) for _, goal in group]
        parts = parts_at(writes, places, along, layer=layer, attended=False)
        for (i, goal), attribution in zip(group, parts.values, strict=True):
            choices[i] = partial(_chosen, goal, attribution)
    return [choices[i] for i in range(len(goals))]


def _chosen(goal: Goal, attribution: Float[Tensor, "component"]) -> list[Seed]:
    return [replace(seed, along=goal.along) for seed in goal.choose(attribution)]


def mean_along_path(pull: Callable[[Tensor], Tensor], z: Float[Tensor, "*run vocab"]) -> Float[Tensor, "*run vocab"]:
    """Trapezoid mean of the objective's gradient along alpha z."""
    total = torch.zeros_like(z, dtype=torch.float64)
    for step in range(_INTERVALS + 1):
        share = 0.5 if step in (0, _INTERVALS) else 1.0
        total += share * pull(step / _INTERVALS * z.double())
    return total / _INTERVALS


def state_of(writes: Writes, run: int, end: int) -> Float[Tensor, "d_model"]:
    """What a run's unembedding is given at a token."""
    record = writes.runs[run]
    return record.final_resid[end].to(writes.dtype) / record.final_scale[end]


def shares_of(writes: Writes, run: int, end: int, writers: Sequence[Writer]) -> Float[Tensor, "writer d_model"]:
    """Writers' shares of the normalised last residual stream."""
    return writes.written([run] * len(writers), writers) / writes.runs[run].final_scale[end]


def writer_at(writes: Writes, component: int, end: int, layer: int | None = None) -> Writer:
    """Which writer at a token is this component of what a layer (the final norm, if none is given) reads?"""
    return writes.writer(component, len(writes.runs[0].layers) if layer is None else layer, -1, end)


def words_of(writes: Writes, ids: list[int]) -> str:
    """Tokens, for messages."""
    return words_label(token_texts(writes.model.tokenizer, ids))


# Which writers make an answer likely?
#
#     J(z) = sum over targets of q log softmax(cap(z + b_U))
#
# with q the model's own probabilities renormalised on the targets. Writers are ordered by integrated gradients from z
# = 0 and removed until J has lost the share `tau` of J(z) - J(0).

_FIRST_PICKS = 16  # writers tried at first
_STATES = 1 << 20  # logits held at once on the path, in float64


@dataclass(frozen=True)
class Likely:
    """Whose probability is explained, at one token of a run."""

    run: int
    end: int
    targets: tuple[int, ...]
    tau: float = 0.8


def prob_goals(writes: Writes, answers: Sequence[Likely]) -> list[Callable[[], Goal]]:
    """Writers whose removal costs the targets the share `tau` of their log-likelihood; or why there are none."""
    if not answers:
        return []
    loss, z = loss_of(writes, answers)
    whole, nothing = loss.of(z).tolist(), loss.of(torch.zeros_like(z)).tolist()
    along = prob_directions(writes, answers, loss, z)
    return [
        partial(_prob_goal, writes, answer, loss[i], along[i], whole[i] - nothing[i])
        for i, answer in enumerate(answers)
    ]


def _prob_goal(writes: Writes, answer: Likely, loss: "Loss", along: Float[Tensor, "d_model"], gained: float) -> Goal:
    if gained <= 0:
        targets = list(answer.targets)
        share = float(writes.runs[answer.run].logits[answer.end].double().softmax(-1)[targets].sum())
        raise NothingToTraceError(
            f"the model gives {words_of(writes, targets)} (probability {share:.1g}) no more probability than if "
            "nothing had been written (its bias alone): there is nothing to trace. Choose a likelier answer."
        )
    choose = partial(_prob_prefix, writes, answer.run, answer.end, loss=loss, enough=answer.tau * gained)
    return Goal(answer.run, answer.end, along, len(writes.runs[answer.run].layers), choose)


def loss_of(writes: Writes, answers: Sequence[Likely]) -> tuple["Loss", Float[Tensor, "run vocab"]]:
    """The objectives, and the states that the runs have in them."""
    out = writes.model.head_out()
    z = torch.stack([state_of(writes, answer.run, answer.end) for answer in answers]) @ out.W_U
    logits, q = out.logits(z), torch.zeros_like(z)
    for row, model, answer in zip(q, logits, answers, strict=True):
        row[list(answer.targets)] = model[list(answer.targets)].softmax(-1).to(row.dtype)
    return Loss(out, q), z


def prob_directions(
    writes: Writes, answers: Sequence[Likely], loss: "Loss", z: Float[Tensor, "run vocab"]
) -> Float[Tensor, "run d_model"]:
    """J's mean gradient along the path, as a direction in the residual stream."""
    W_U, size, directions = loss.out.W_U, max(1, _STATES // z.shape[1]), []
    for start in range(0, len(z), size):
        some = slice(start, start + size)
        directions.append(mean_along_path(loss[some].pull, z[some]).to(W_U.dtype) @ W_U.T)
    scale = torch.stack([writes.runs[answer.run].final_scale[answer.end] for answer in answers])
    return torch.cat(directions) / scale[:, None]


@dataclass(frozen=True)
class Loss:
    """J(z) = sum over tokens of q log softmax(cap(z + b_U)), and its gradient; q is zero but for the targets."""

    out: HeadOut
    q: Float[Tensor, "*run vocab"]

    def __getitem__(self, run: int | slice) -> "Loss":
        return Loss(self.out, self.q[run])

    def of(self, z: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch"]:
        """J at each state."""
        logits = self.out.logits(z)
        return (logits * self.q.to(logits.dtype)).sum(-1) - logits.logsumexp(-1)

    def pull(self, z: Float[Tensor, "*run vocab"]) -> Float[Tensor, "*run vocab"]:
        """dJ/dz."""
        return (self.q - self.out.logits(z).softmax(-1)) * self.out.slope(z)


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
        for writer, weight, drop, each in zip(group, weights, lost, alone, strict=True):
            seeds.append(Seed(writer, weight, each))
            if drop >= enough:
                return seeds
        x, before, picks = left[-1], states[-1], min(64, 2 * picks)
    return seeds
