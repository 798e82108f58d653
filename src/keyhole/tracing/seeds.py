"""Where does an answer come from? The writers at the predicting token whose loss would undo it: a circuit's seeds.

`prob`    J(z) = sum over targets of q log softmax(cap(z + b_U)), with q the model's own probabilities renormalised on
          the targets. Writers are ordered by integrated gradients from z = 0 and removed until J has lost the share
          `tau` of J(z) - J(0).
`linear`  a logit direction, target against another token; with a final softcap, the capped difference, integrated
          along the same path (without a cap that is the plain inner product).
`probe`   any direction in the residual stream that a layer reads.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.brief import brief
from keyhole.circuits.parameters import Parameters
from keyhole.circuits.text import words_label
from keyhole.circuits.writer import Writer
from keyhole.errors import KeyholeError, NothingToTraceError
from keyhole.models.prompts import token_texts
from keyhole.models.weights import HeadOut
from keyhole.tracing.upstream import Writes

_INTERVALS = 64
_FIRST_PICKS = 16  # writers tried at first
_ROUNDING = 1e-5  # of a logit: float32 leaves so much of writers that are long beside what is read of them


@dataclass(frozen=True)
class Seed:
    """A writer at the predicting token that the answer rests on."""

    writer: Writer
    weight: float  # its attribution
    alone: float  # what the objective loses when it alone is removed
    along: Float[Tensor, "d_model"] | None = field(default=None, repr=False, compare=False)  # weight = along . write


@dataclass(frozen=True)
class Probability:
    """Seeds "prob" with another threshold than usual: the share of the answer's log-likelihood that they carry."""

    tau: float = 0.8

    def __post_init__(self) -> None:
        if not 0 < self.tau <= 1:
            raise KeyholeError(f"seed_tau is {self.tau}, but a share of the answer lies between 0 and 1, not 0.")


@dataclass(frozen=True)
class Probe:
    """A direction in the residual stream that `layer` reads (number of layers: what the final norm reads)."""

    __repr__ = brief

    direction: Float[Tensor, "d_model"]
    layer: int


def prob_seeds(writes: Writes, end: int, targets: list[int], seed_tau: float = 0.8) -> list[Seed]:
    """Writers whose removal costs the targets the share `seed_tau` of their log-likelihood."""
    loss, z = _loss(writes, end, targets)
    whole, nothing = float(loss.of(z)), float(loss.of(torch.zeros_like(z)))
    if whole - nothing <= 0:
        share = float(writes.run.logits[end].double().softmax(-1)[targets].sum())
        raise NothingToTraceError(
            f"the model gives {_words(writes, targets)} (probability {share:.1g}) no more probability than its bias "
            "alone would: there is nothing to trace. Choose a target the model predicts."
        )
    direction = _prob_direction(loss, z)
    attribution = _attributions(writes, end, direction)
    seeds = _prob_prefix(writes, end, attribution, loss, enough=seed_tau * (whole - nothing))
    return _read_along(seeds, direction / writes.run.final_scale[end])


def _loss(writes: Writes, end: int, targets: list[int]) -> tuple["Loss", Float[Tensor, "vocab"]]:
    """The objective, and the state that the run has in it."""
    out = writes.run.model.head_out()
    z = _state(writes, end) @ out.W_U
    return Loss(out, targets, out.logits(z)[targets].softmax(-1)), z


def _prob_direction(loss: "Loss", z: Float[Tensor, "vocab"]) -> Float[Tensor, "d_model"]:
    W_U = loss.out.W_U
    return W_U @ _mean_along_path(loss.pull, z).to(W_U.dtype)


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


def _prob_prefix(writes: Writes, end: int, attribution: Tensor, loss: Loss, *, enough: float) -> list[Seed]:
    """The shortest prefix of writers whose removal loses enough, or all with a positive attribution.

    Shares are summed before the unembedding, so one product gives the states after every removal; their
    differences are what each writer alone pushes.
    """
    values, order = attribution.sort(descending=True)
    useful = int((values > 0).sum())
    x, W_U = _state(writes, end), loss.out.W_U
    z = before = x @ W_U
    whole, seeds, picks = loss.of(z), list[Seed](), _FIRST_PICKS
    while len(seeds) < useful:
        group = [_writer(writes, int(c), end) for c in order[len(seeds) : min(len(seeds) + picks, useful)]]
        shares = torch.stack([_share(writes, end, writer) for writer in group])
        left = x - shares.cumsum(0)
        states = left @ W_U
        lost = (whole - loss.of(states)).tolist()
        alone = (whole - loss.of(z - (torch.cat([before[None], states[:-1]]) - states))).tolist()
        for writer, drop, own in zip(group, lost, alone, strict=True):
            seeds.append(Seed(writer, float(values[len(seeds)]), own))
            if drop >= enough:
                return seeds
        x, before, picks = left[-1], states[-1], min(64, 2 * picks)
    return seeds


def linear_seeds(writes: Writes, end: int, targets: list[int], against: list[int]) -> list[Seed]:
    """Writers that push the targets' logits up against others' (against the mean of all, if none are named)."""
    if set(targets) == set(against):
        raise NothingToTraceError(
            f"the answer and the one it is held against are the same, {_words(writes, targets)}: between them there is "
            "no difference to trace. Name another `against`."
        )
    out = writes.run.model.head_out()
    direction, z = _difference(out, targets, against), _state(writes, end) @ out.W_U
    along = _linear_direction(out, direction, z)
    seeds = _linear_prefix(writes, end, _attributions(writes, end, along))
    if not seeds:
        raise NothingToTraceError(_not_favoured(writes, end, targets, against))
    seeds = _read_along(seeds, along / writes.run.final_scale[end])
    if out.softcap is None:
        return seeds
    pushed = torch.stack([_share(writes, end, seed.writer) for seed in seeds]) @ out.W_U
    alone = (out.logits(z) - out.logits(z - pushed)).double() @ direction
    return [replace(seed, alone=float(a)) for seed, a in zip(seeds, alone, strict=True)]


def _difference(out: HeadOut, targets: list[int], against: list[int]) -> Float[Tensor, "vocab"]:
    """One answer's logits against others', or against the mean of all."""
    direction = torch.zeros_like(out.b_U, dtype=torch.float64)
    direction[targets] += 1 / len(targets)
    if against:
        direction[against] -= 1 / len(against)
    else:
        direction -= 1 / len(direction)
    return direction


def _linear_direction(out: HeadOut, direction: Tensor, z: Tensor) -> Float[Tensor, "d_model"]:
    pulled = _mean_along_path(lambda state: out.slope(state) * direction, z) if out.softcap else direction
    return out.W_U @ pulled.to(out.W_U.dtype)


def answer_direction(writes: Writes, told: Parameters, probe: Tensor | None = None) -> Float[Tensor, "d_model"]:
    """Along which direction at the end did the seeds of a circuit write? `weight` of a seed is its write along it."""
    end, targets, out = told.end, list(told.target_ids), writes.run.model.head_out()
    if told.seeds == "probe":
        if probe is None:
            raise KeyholeError("a circuit file keeps no probe's direction: trace again from the probe to verify MLPs.")
        return probe.to(writes.local)
    if told.seeds == "prob":
        along = _prob_direction(*_loss(writes, end, targets))
    else:
        difference = _difference(out, targets, list(told.against_ids))
        along = _linear_direction(out, difference, _state(writes, end) @ out.W_U)
    return along / writes.run.final_scale[end]


def probe_seeds(writes: Writes, end: int, probe: Probe) -> list[Seed]:
    """Writers that push the residual stream along a direction, before a layer reads it."""
    if probe.direction.shape != (writes.run.model.dims.d_model,):
        raise KeyholeError(f"a probe direction has {writes.run.model.dims.d_model} entries for this model.")
    direction = probe.direction.to(writes.local)
    if not 0 < probe.layer <= len(writes.run.layers):
        raise KeyholeError(f"a probe reads layer 1 to {len(writes.run.layers)} (the last: the final norm).")
    contributions = _attributions(writes, end, direction, layer=probe.layer)
    seeds = _linear_prefix(writes, end, contributions, layer=probe.layer)
    if not seeds:
        raise NothingToTraceError(
            f"what layer {probe.layer} reads at token {end} lies {float(contributions.double().sum()):.3g} along the "
            "probe: nothing pushes that way, all in all. Turn the direction round to trace what pushes against it."
        )
    return _read_along(seeds, direction)


def _read_along(seeds: list[Seed], along: Float[Tensor, "d_model"]) -> list[Seed]:
    return [replace(seed, along=along) for seed in seeds]


def _linear_prefix(writes: Writes, end: int, contributions: Tensor, layer: int | None = None) -> list[Seed]:
    """The paper's rule: sort, cut where the running sum first exceeds the total, but never above half of it.

    A sum that misses the total by rounding has reached it: otherwise writers that push nowhere would be seeds, where
    the others make up all of the answer. No seeds where the total is not positive.
    """
    values, order = contributions.double().sort(descending=True)
    total = float(values.sum())
    if total <= 0:
        return []
    reached = values.cumsum(0) > (1 - _ROUNDING) * total
    at = int(reached.int().argmax())
    cutoff = min(float(values[at]), total / 2)
    n = int((values >= cutoff).sum())
    writers = [_writer(writes, int(c), end, layer) for c in order[:n]]
    return [Seed(w, v, v) for w, v in zip(writers, values[:n].tolist(), strict=True)]


def _not_favoured(writes: Writes, end: int, targets: list[int], against: list[int]) -> str:
    """Why nothing pushes towards these tokens: the model prefers the others, or only its bias prefers these."""
    logits, answer = writes.run.logits[end].double(), _words(writes, targets)
    other = _words(writes, against) if against else "the mean of all tokens"
    difference = float(logits[targets].mean() - (logits[against] if against else logits).mean())
    if difference > 0:
        return (
            f"the model prefers {answer} to {other} by {difference:.2f} in logits, but through the unembedding's bias "
            "alone: no writer pushes that way, all in all. Choose another answer."
        )
    swap = "Swap the two to trace what it prefers, or leave `against` out" if against else 'Use seeds "prob"'
    return (
        f"the model prefers {other} to {answer} (logit difference {difference:.2f}), so that nothing pushes towards "
        f"{answer}, all in all. {swap} to trace the answer's own probability."
    )


def _words(writes: Writes, ids: list[int]) -> str:
    return words_label(token_texts(writes.run.model.tokenizer, ids))


def _state(writes: Writes, end: int) -> Float[Tensor, "d_model"]:
    return writes.run.final_resid[end].to(writes.dtype) / writes.run.final_scale[end]


def _mean_along_path(pull: Any, z: Float[Tensor, "vocab"]) -> Float[Tensor, "vocab"]:
    """Trapezoid mean of the objective's gradient along alpha z."""
    total = torch.zeros_like(z, dtype=torch.float64)
    for step in range(_INTERVALS + 1):
        share = 0.5 if step in (0, _INTERVALS) else 1.0
        total += share * pull(step / _INTERVALS * z.double())
    return total / _INTERVALS


def _attributions(
    writes: Writes, end: int, direction: Float[Tensor, "d_model"], layer: int | None = None
) -> Float[Tensor, "component"]:
    """Every writer's share of the (normalised) residual stream at `end`, along a direction."""
    run = writes.run
    scale = run.final_scale[end] if layer is None else 1.0
    n_layers, n_local = writes.below(len(run.layers) if layer is None else layer)
    local = writes.local[:n_local, end] @ direction / scale
    if n_layers == 0:
        return local
    weights = [writes.weights(other).W_O @ direction for other in writes.attention_layers[:n_layers]]
    moved = (writes.values[:n_layers] @ torch.stack(weights)[..., None])[..., 0]
    A = writes.patterns.rows(n_layers, end) / writes.out_scale[:n_layers, end][:, None, None]
    return torch.cat([(moved * A / scale).flatten(), local])


def _share(writes: Writes, end: int, writer: Writer) -> Float[Tensor, "d_model"]:
    """A writer's share of the normalised last residual stream."""
    return writes.written(writer) / writes.run.final_scale[end]


def _writer(writes: Writes, component: int, end: int, layer: int | None = None) -> Writer:
    return writes.writer(component, len(writes.run.layers) if layer is None else layer, -1, end)
