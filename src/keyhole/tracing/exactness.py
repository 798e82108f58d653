"""How exact is Keyhole on this model? Scores from channels, residual streams from writers, logits from both, MLPs."""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from keyhole.brief import brief
from keyhole.models.capture import plain_logits
from keyhole.models.mlps import NoMlp
from keyhole.models.precision import exact_matmul
from keyhole.models.reading import read_values
from keyhole.models.tolerance import tolerance_of
from keyhole.qk.coordinates import in_channels
from keyhole.tracing.mlps.places import mlp_places
from keyhole.tracing.mlps.spots import Spot
from keyhole.tracing.upstream import Writes

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.models.prompts import Prompt
    from keyhole.models.run import Run

_RANDOM_TOKENS = 24


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
        found = check_run(run, tolerance=tolerance)
        writes = Writes(run)
        layers = tuple(replace(one, mlp=_mlp_error(writes, one.layer)) for one in found.layers)
    return replace(found, own=_relative(run.logits, own[0]), layers=layers)


def check_run(
    run: "Run", *, writes: Writes | None = None, tolerance: float | None = None, logits_at: slice = slice(None)
) -> Check:
    """`check` for a run that exists, without the plain pass; logits at some positions only, if asked."""
    layers, writes = [], Writes(run) if writes is None else writes
    with exact_matmul():
        total = run.layers[0].resid.to(run.final_scale.dtype)
        for index, record in enumerate(run.layers):
            scores, values, deficient, term = None, None, 0, None
            if record.attention is not None:
                scores, deficient, term = _score_error(run, index)
                values = _relative(read_values(run, index), record.attention.v)
                total = total.to(record.resid.device) + writes.attention(index)
            if record.mixer is not None:
                total = total + record.mixer
            total = total + record.mlp
            after = run.layers[index + 1].resid if index + 1 < len(run.layers) else run.final_resid
            layers.append(LayerCheck(index, scores, values, _relative(total, after), deficient, term))
        out = run.model.head_out()
        logits = (total.to(out.W_U.device) / run.final_scale[:, None])[logits_at] @ out.W_U
        logits = out.logits(logits)
    dtype = run.logits.dtype
    return Check(
        model=run.model.name,
        n_tokens=len(run),
        dtype=str(dtype).removeprefix("torch."),
        tolerance=tolerance_of(dtype) if tolerance is None else tolerance,
        layers=tuple(layers),
        logits=_relative(logits, run.logits[logits_at]),
    )


def random_ids(model: "Model", n: int = _RANDOM_TOKENS, seed: int = 0) -> list[int]:
    """Token ids for a model without a tokenizer."""
    limit = model.dims.positions
    n = n if limit is None else min(n, limit)
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(model.dims.vocab, (n,), generator=generator).tolist()


def _score_error(run: "Run", layer: int) -> tuple[float, int, float]:
    """Error of all scores of a layer: channel sums of rebuilt queries and keys against the captured ones.

    Also how many heads have a rest, and a bound on the largest term.

    In blocks of destinations, so that memory stays linear in the prompt; relative to the largest score of each head.
    """
    record, found = run.layer(layer), in_channels(run, layer)
    missed = largest = found.a.new_zeros(len(found.a))
    for dests in record.blocks:
        own = record.scores(record.heads, dests)
        missed = torch.maximum(missed, (found.scores(slice(dests.start, dests.stop)) - own).abs().amax((1, 2)))
        largest = torch.maximum(largest, own.abs().amax((1, 2)))
    largest = largest.clamp_min(1e-30)
    terms = (found.a.abs().amax(1) * found.B.abs().amax(1)).amax(1)
    return float((missed / largest).max()), int((found.rank < found.k.shape[-1]).sum()), float((terms / largest).max())


def _mlp_error(writes: Writes, layer: int) -> float | None:
    """What an MLP writes at all tokens, against what it wrote; as exact as the stream that it reads is rounded."""
    run = writes.run
    weights = run.model.mlp(layer)
    if isinstance(weights, NoMlp):
        return None
    places = mlp_places([Spot(writes, t) for t in range(len(run))], weights, layer, constants=False)
    return float(places.errors.max())


def _relative(ours: Tensor, own: Tensor) -> float:
    """Largest difference in each row relative to that row's largest value; the worst row.

    Row by row, because one token with a massive activation would hide errors at all others.
    """
    ours, own = ours.flatten(1), own.to(ours.device, ours.dtype).flatten(1)
    return float(((ours - own).abs().amax(1) / own.abs().amax(1).clamp_min(1e-30)).max())


def _worst(errors: list[float]) -> float:
    """The largest; NaN if any is, for what cannot be compared is not exact."""
    return float("nan") if any(math.isnan(e) for e in errors) else max(errors, default=0.0)
