"""Which writers push along a direction?

A logit direction, target against another token; with a final softcap, the capped difference, integrated along the path
from nothing (without a cap that is the plain inner product). Or a probe: any direction in the residual stream that a
layer reads.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.brief import Head, brief
from keyhole.circuits.records import Writer
from keyhole.errors import KeyholeError, NothingToTraceError
from keyhole.models.numbers import exact_matmul
from keyhole.models.weights import HeadOut
from keyhole.qk.channels import check_place
from keyhole.settings.tracing import MetricSettings
from keyhole.tracing.mlp_attribution import parts_at
from keyhole.tracing.seeds import Goal, Seed, mean_along_path, shares_of, state_of, words_of, writer_at
from keyhole.tracing.upstream import Writes
from keyhole.tracing.writers import written_by

if TYPE_CHECKING:
    from keyhole.models.run import Run

_ROUNDING = 1e-5  # of a logit: float32 leaves so much of writers that are long beside what is read of them


@dataclass(frozen=True)
class Probe(MetricSettings):
    """A direction in the residual stream that `layer` reads (number of layers: what the final norm reads).

    With `only`, that writer alone is the seed, whoever else pushes along the direction.
    """

    __repr__ = brief

    direction: Float[Tensor, "d_model"]  # along which writers push
    layer: int  # that reads it
    only: Writer | None = None  # the one seed; None: all that push


def firing_probe(run: "Run", head: Head, dest: int | str = -1, src: int | str | None = None) -> Probe:
    """A probe for the circuit behind one firing: along what the head moves from src to dest, and only that head.

    Trace it with `end` at the firing's dest. Without a src: the token that dest attends to most.
    """
    layer, index, d, s = check_place(run, head, dest, src)
    who = Writer("head", layer, index, d, s)
    with exact_matmul():
        moved = written_by(run, who, [d])[0]
    return Probe(moved / moved.norm().clamp_min(1e-30), layer + 1, who)


def linear_goal(writes: Writes, run: int, end: int, targets: list[int], against: list[int]) -> Goal:
    """Writers that push the targets' logits up against others' (against the mean of all, if none are named)."""
    if set(targets) == set(against):
        raise NothingToTraceError(
            f"the answer and the one it is held against are the same, {words_of(writes, targets)}: between them there "
            "is no difference to trace. Hold it against another one."
        )
    along = linear_direction(writes, run, end, targets, against) / writes.runs[run].final_scale[end]

    def choose(attribution: Float[Tensor, "component"]) -> list[Seed]:
        seeds = _linear_prefix(writes, end, attribution)
        if not seeds:
            raise NothingToTraceError(_not_favoured(writes, run, end, targets, against))
        return seeds if writes.model.head_out().softcap is None else _capped(writes, run, end, targets, against, seeds)

    return Goal(run, end, along, len(writes.runs[run].layers), choose)


def _capped(
    writes: Writes, run: int, end: int, targets: list[int], against: list[int], seeds: list[Seed]
) -> list[Seed]:
    """What the capped difference loses with each writer."""
    out = writes.model.head_out()
    z = state_of(writes, run, end) @ out.W_U
    pushed = shares_of(writes, run, end, [seed.writer for seed in seeds]) @ out.W_U
    alone = (out.logits(z) - out.logits(z - pushed)).double() @ _difference(out, targets, against)
    return [replace(seed, alone=a) for seed, a in zip(seeds, alone.tolist(), strict=True)]


def _difference(out: HeadOut, targets: list[int], against: list[int]) -> Float[Tensor, "vocab"]:
    """One answer's logits against others', or against the mean of all."""
    direction = torch.zeros_like(out.b_U, dtype=torch.float64)
    direction[targets] += 1 / len(targets)
    if against:
        direction[against] -= 1 / len(against)
    else:
        direction -= 1 / len(direction)
    return direction


def linear_direction(
    writes: Writes, run: int, end: int, targets: list[int], against: list[int]
) -> Float[Tensor, "d_model"]:
    """One answer's logits against others', as a direction in the normalised stream; with a cap, along the path."""
    out = writes.model.head_out()
    if out.softcap is None:
        other = out.W_U[:, against].mean(1) if against else out.W_U.mean(1)
        return out.W_U[:, targets].mean(1) - other
    difference = _difference(out, targets, against)
    pulled = mean_along_path(lambda state: out.slope(state) * difference, state_of(writes, run, end) @ out.W_U)
    return out.W_U @ pulled.to(out.W_U.dtype)


def probe_goal(writes: Writes, run: int, end: int, probe: Probe) -> Goal:
    """Writers that push the residual stream along a direction, before a layer reads it."""
    depth = len(writes.runs[run].layers)
    if probe.direction.shape != (writes.model.dims.d_model,):
        raise KeyholeError(f"a probe direction has {writes.model.dims.d_model} entries for this model.")
    if not 0 < probe.layer <= depth:
        raise KeyholeError(f"a probe reads layer 1 to {depth} (the last: the final norm).")
    if probe.only is not None and probe.only.dest != end:
        raise KeyholeError(f"{probe.only.kind} {probe.only.layer} writes at token {probe.only.dest}: trace from there.")

    def choose(attribution: Float[Tensor, "component"]) -> list[Seed]:
        if probe.only is not None:
            value = float(writes.written([run], [probe.only])[0] @ probe.direction.to(writes.local))
            return [Seed(probe.only, value, value)]
        seeds = _linear_prefix(writes, end, attribution, layer=probe.layer)
        if not seeds:
            raise NothingToTraceError(
                f"what layer {probe.layer} reads at token {end} lies {float(attribution.double().sum()):.3g} along the "
                "probe: nothing pushes that way, all in all. Turn the direction round to trace what pushes against it."
            )
        return seeds

    return Goal(run, end, probe.direction.to(writes.local), probe.layer, choose)


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
    writers = [writer_at(writes, component, end, layer) for component in order[:n].tolist()]
    return [Seed(w, v, v) for w, v in zip(writers, values[:n].tolist(), strict=True)]


def answer_pushes(run: "Run", end: int) -> dict[tuple[int, int, int], float]:
    """What every head moves from every token (layer, head, src) towards the likeliest answer at `end`, in logits.

    The answer's logit is taken against the mean of all tokens, as in linear seeds; effects through later layers are no
    part of it.
    """
    answer = int(run.logits[end].argmax())
    with exact_matmul(), run.model._steady():
        writes = Writes([run])
        goal = linear_goal(writes, 0, end, [answer], [])
        parts = parts_at(writes, [(0, end)], goal.along[None], layer=goal.layer, attended=False)
        values = parts.values[0, : parts.n_moved].tolist()
    who = [parts.writer(0, component) for component in range(parts.n_moved)]
    return {(writer.layer, writer.head or 0, writer.src): value for writer, value in zip(who, values, strict=True)}


def _not_favoured(writes: Writes, run: int, end: int, targets: list[int], against: list[int]) -> str:
    """Why nothing pushes towards these tokens: the model prefers the others, or only its bias prefers these."""
    logits, answer = writes.runs[run].logits[end].double(), words_of(writes, targets)
    other = words_of(writes, against) if against else "the mean of all tokens"
    difference = float(logits[targets].mean() - (logits[against] if against else logits).mean())
    if difference > 0:
        return (
            f"the model prefers {answer} to {other} by {difference:.2f} in logits, but through the unembedding's bias "
            "alone: no writer pushes that way, all in all. Choose another answer."
        )
    swap = "Swap the two to trace what it prefers, or hold it against nothing" if against else 'Use seeds "prob"'
    return (
        f"the model prefers {other} to {answer} (logit difference {difference:.2f}), so that nothing pushes towards "
        f"{answer}, all in all. {swap} to trace the answer's own probability."
    )
