"""How exact is Keyhole on this model? Scores from channels, residual streams from writers, logits from both, MLPs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.brief import brief
from keyhole.models.capture import plain_logits
from keyhole.models.mlps import NoMlp
from keyhole.models.numbers import exact_matmul, tolerance_of
from keyhole.models.stacks import read_values, stack
from keyhole.qk.channels import layer_in_channels
from keyhole.tracing.mlp_places import mlp_places
from keyhole.tracing.upstream import Writes
from keyhole.tracing.writers import biases_of, values_of

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.models.run import Run
    from keyhole.models.tokens import Prompt

_RANDOM_TOKENS = 24
_TOKENS = 64  # at which residual streams are rebuilt, at most


@dataclass(frozen=True)
class LayerCheck:
    """Errors of one layer: scores relative to the largest of their head, residuals to the largest of their token."""

    layer: int
    scores: float | None  # from channels, over all heads and all pairs of tokens; None: no attention here
    values: float | None  # from the residual stream
    residual: float  # what the layer's successor reads, as the sum of all writers so far
    deficient_heads: int  # heads with directions that no channel holds: their scores have a rest
    largest_term: float | None = None  # of any score's split, at most, relative to the largest score of the head
    mlp: float | None = None  # what the MLP writes, from its folded weights; None: not rebuilt


@dataclass(frozen=True)
class Check:
    """How exact Keyhole is on one model and one prompt."""

    __repr__ = brief

    model: str
    n_tokens: int
    dtype: str
    tolerance: float
    layers: tuple[LayerCheck, ...]
    logits: float
    own: float | None = None  # the captured pass against a plain one, under the model's own attention; None: not run

    @property
    def scores(self) -> float:
        """The largest error of any score, or of the values it moves."""
        return _worst([e for c in self.layers for e in (c.scores, c.values) if e is not None])

    @property
    def residuals(self) -> float:
        """The largest error of any residual stream."""
        return _worst([c.residual for c in self.layers])

    @property
    def mlps(self) -> float | None:
        """The largest error of what any MLP writes; None where Keyhole has no facts of this model's MLPs."""
        found = [c.mlp for c in self.layers if c.mlp is not None]
        return _worst(found) if found else None

    @property
    def exact(self) -> bool:
        """Do all errors stay within what rounding explains?"""
        errors = (self.scores, self.residuals, self.logits, self.own or 0.0, self.mlps or 0.0)
        return all(e <= self.tolerance for e in errors)


def check(model: "Model", prompt: "Prompt | None" = None, *, tolerance: float | None = None, seed: int = 0) -> Check:
    """Rebuild everything Keyhole decomposes and compare with the model's own. Random tokens if no prompt is given.

    A plain forward pass, under the model's own attention implementation, guards the captured one.
    """
    run = model.run(random_ids(model, seed=seed) if prompt is None else prompt)
    with exact_matmul():
        own = plain_logits(model.hf, model.family, torch.tensor([list(run.token_ids)], device=model.hf.device))
        writes = Writes([run])
        (found,) = check_runs(writes, tolerance=tolerance)
        layers = tuple(replace(one, mlp=_mlp_error(writes, one.layer)) for one in found.layers)
        (error,) = _relative((run.logits - own[0])[None], own, writes.inside)
    return replace(found, own=error, layers=layers)


def check_run(run: "Run", *, tolerance: float | None = None) -> Check:
    """`check` for a run that exists, without the plain pass."""
    (found,) = check_runs(Writes([run]), tolerance=tolerance)
    return found


def check_runs(
    writes: Writes, *, tolerance: float | None = None, logits_at: Sequence[int] | None = None
) -> list[Check]:
    """The same for several runs, side by side; logits at one position of each only, if asked.

    Residual streams and logits are rebuilt at every token, in long prompts at some that are spread over them.
    """
    layers: list[list[LayerCheck]] = [[] for _ in writes.runs]
    at = _spread(writes.n, logits_at or ())
    inside = writes.inside[:, at]
    with exact_matmul():
        total, depth = writes.layer(0).resid[:, at].to(writes.dtype), len(writes.runs[0].layers)
        for index in range(depth):
            record, own = writes.layer(index), dict[str, list[Any]]()
            if record.attention is not None:
                own = _score_errors(writes, index)
                values = read_values(record, writes.weights(index)) - record.attention.v
                own["values"] = _relative(values, record.attention.v, writes.inside)
                total = total.to(record.resid.device) + _moved(writes, index, at)
            if record.mixer is not None:
                total = total + record.mixer[:, at]
            total = total + record.mlp[:, at]
            after = (writes.layer(index + 1).resid if index + 1 < depth else writes.final_resid)[:, at]
            residual = _relative(total - after.to(total), after, inside)
            for row, found in enumerate(layers):
                told = {name: column[row] for name, column in own.items()}
                found.append(LayerCheck(index, residual=residual[row], **{**_NO_ATTENTION, **told}))
        logits = _logits_errors(writes, total, at, logits_at)
    dtype = writes.runs[0].logits.dtype
    return [
        Check(
            model=writes.model.name,
            n_tokens=len(run),
            dtype=str(dtype).removeprefix("torch."),
            tolerance=tolerance_of(dtype) if tolerance is None else tolerance,
            layers=tuple(found),
            logits=error,
        )
        for run, found, error in zip(writes.runs, layers, logits, strict=True)
    ]


def _spread(n: int, needed: Sequence[int]) -> list[int]:
    """Some of n tokens, the last among them, and those that are needed.

    >>> _spread(3, ()), len(_spread(1000, (500,))), _spread(1000, ())[-1]
    ([0, 1, 2], 64, 999)
    """
    step = max(1, -(-n // _TOKENS))
    return sorted({*range(n - 1, -1, -step), *needed})


def _moved(writes: Writes, layer: int, at: list[int]) -> Float[Tensor, "runs at d_model"]:
    """What attention writes at some tokens, as a sum over what each head moves from each token, and its biases.

    The model projects the sum of all heads at once; to do the same again would come out equal to the bit, whatever the
    weights of single writers are worth.
    """
    record, w = writes.record(layer), writes.weights(layer)
    values, total = values_of(record, w), biases_of(record, w, at)
    for head in range(values.shape[-3]):
        moved = values[..., head, :, :] @ w.W_O[head]
        total = total + record.weights([head], at)[..., 0, :, :] @ moved / record.out_scale[..., at, None]
    return total


_NO_ATTENTION: dict[str, Any] = {"scores": None, "values": None, "deficient_heads": 0}


def _logits_errors(
    writes: Writes, total: Float[Tensor, "runs at d_model"], at: list[int], ends: Sequence[int] | None
) -> list[float]:
    """Logits of what all writers wrote together, against the model's own: at all these tokens, or at one per run."""
    out = writes.model.head_out()
    state = total.to(out.W_U.device) / writes.final_scale[:, at, None]
    if ends is None:
        own = stack([run.logits for run in writes.runs])[:, at]
        return _relative(out.logits(state @ out.W_U) - own.to(out.W_U), own, writes.inside[:, at])
    rows = torch.arange(len(writes.runs), device=state.device)
    own = torch.stack([run.logits[end] for run, end in zip(writes.runs, ends, strict=True)])[:, None]
    ours = out.logits(state[rows, [at.index(end) for end in ends]] @ out.W_U)[:, None]
    return _relative(ours - own.to(ours), own, torch.ones_like(ours[..., 0]))


def random_ids(model: "Model", n: int = _RANDOM_TOKENS, seed: int = 0) -> list[int]:
    """Token ids for a model without a tokenizer."""
    limit = model.dims.positions
    n = n if limit is None else min(n, limit)
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(model.dims.vocab, (n,), generator=generator).tolist()


def _score_errors(writes: Writes, layer: int) -> dict[str, list[Any]]:
    """Error of all scores of a layer: channel sums of rebuilt queries and keys against the captured ones.

    Also how many heads have a rest, and a bound on the largest term. In blocks of destinations, so that memory stays
    linear in the prompt; relative to the largest score of each head.
    """
    record = writes.record(layer)
    found = layer_in_channels(writes.layer(layer), writes.weights(layer), writes.omega(layer))
    missed = largest = found.a.new_zeros(found.a.shape[:2])
    inside = writes.inside.to(found.a)[:, None]
    for dests in record.blocks:
        block = slice(dests.start, dests.stop)
        told = inside[..., block, None] * inside[..., None, :]
        own = record.scores(record.heads, dests) * told
        error = (found.scores(block) * told - own).abs()
        missed, largest = torch.maximum(missed, error.amax((2, 3))), torch.maximum(largest, own.abs().amax((2, 3)))
    largest = largest.clamp_min(1e-30)
    a, B = (x.abs() * inside[..., None] for x in (found.a, found.B))
    terms = (a.amax(2) * B.amax(2)).amax(2)
    return {
        "scores": (missed / largest).amax(1).tolist(),
        "deficient_heads": [int((found.rank < found.k.shape[-1]).sum())] * len(writes.runs),
        "largest_term": (terms / largest).amax(1).tolist(),
    }


def _mlp_error(writes: Writes, layer: int) -> float | None:
    """What an MLP writes at all tokens, against what it wrote; as exact as the stream that it reads is rounded."""
    weights = writes.mlp(layer)
    if isinstance(weights, NoMlp):
        return None
    places = mlp_places(writes, [(0, t) for t in range(writes.n)], weights, layer, constants=False)
    return float(places.errors.max())


def _relative(
    missed: Float[Tensor, "runs *any pos size"], own: Float[Tensor, "runs *any pos size"], inside: Tensor
) -> list[float]:
    """The largest difference at each token (of values: in each head) relative to the largest there; the worst of a run.

    Token by token, because one with a massive activation would hide errors at all others.
    """
    told = inside.view(len(inside), *[1] * (missed.ndim - 3), -1, 1).to(missed)
    missed, own = ((x.to(missed) * told).abs().flatten(2).amax(2) for x in (missed, own))
    return (missed / own.clamp_min(1e-30)).amax(1).tolist()


def _worst(errors: list[float]) -> float:
    """The largest; NaN if any is, for what cannot be compared is not exact."""
    return float("nan") if any(math.isnan(e) for e in errors) else max(errors, default=0.0)
