"""How exact is Keyhole on this model? What it decomposes is put together again and compared with the model's numbers.

Scores are summed from channels, residual streams from writers, logits from the last residual stream, and what MLPs
write from their folded weights.

In half precision what was rounded away is a writer, so that a run adds up whatever Keyhole believes of its model. So
the facts are checked apart: the same is summed up in float32, by the model's own code on float32 copies of a layer's
weights at a time, once for a model.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole._moved import attributes_of
from keyhole.brief import brief, model_label
from keyhole.models.capture import plain_logits
from keyhole.models.mlps import NoMlp, read_mlp
from keyhole.models.numbers import exact_matmul, require_exact, tolerance_of
from keyhole.models.stacks import read_values, stack
from keyhole.models.widened import float_copy, widened_logits, widened_run
from keyhole.qk.channels import layer_in_channels
from keyhole.report import Report, Reported, Section, Table
from keyhole.tracing.mlp_places import mlp_places
from keyhole.tracing.rounding import Rounding, layer_rounding, require_bounded, rounding_at, rounding_of, sizes_of
from keyhole.tracing.upstream import Writes

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.models.run import Run
    from keyhole.models.tokens import Prompt

_RANDOM_TOKENS = 24
_TOKENS = 64  # at which residual streams are summed up, at most
_FLOATS = 1 << 24  # of what heads move, held at once: 64 MB in float32


@dataclass(frozen=True)
class LayerCheck:
    """Errors of one layer: scores relative to the largest of their head, residuals to the largest of their token."""

    layer: int
    scores: float | None  # from channels, over all heads and all pairs of tokens; None: a layer without attention
    values: float | None  # from the residual stream
    residual: float  # of what the next layer reads, as the sum of all writers up to here
    deficient_heads: int  # heads with directions that no channel holds: their scores have a rest
    largest_term: float | None = None  # upper bound of any score's split, relative to the largest score of the head
    mlp: float | None = None  # of what the MLP writes, from its folded weights; None: not compared
    rounded: float | None = None  # in half precision: what it rounded away, relative to the stream after it; the median
    rounded_bound: float | None = None  # the largest share of what rounding explains that any entry of it uses


@dataclass(frozen=True)
class Check(Reported):
    """How exact Keyhole is on one model and one prompt. All errors are relative to the largest value compared."""

    __repr__ = brief

    model: str  # its name
    n_tokens: int  # of the prompt
    dtype: str  # in which the model runs
    tolerance: float  # errors up to here are rounding
    layers: tuple[LayerCheck, ...]
    logits: float  # error of the logits of everything that was written
    plain_pass: float | None = None  # of the recorded pass against one with the model's own attention; None: not run
    rounding: Rounding | None = None  # what half precision rounded away; errors are those in float32, then

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
        errors = [c.mlp for c in self.layers if c.mlp is not None]
        return _worst(errors) if errors else None

    @property
    def exact(self) -> bool:
        """Do all errors stay within what rounding explains?"""
        errors = (self.scores, self.residuals, self.logits, self.plain_pass or 0.0, self.mlps or 0.0)
        bounded = self.rounding is None or self.rounding.share <= 1
        return all(e <= self.tolerance for e in errors) and bounded

    def report(self, layers: bool = False) -> Report:
        """The largest errors, and those of every layer if they are wanted.

        Args:
            layers: Show every layer's errors, too.
        """
        errors = [
            ("attention scores", "singular channels", self._judged(self.scores)),
            ("residual streams", "writers", self._judged(self.residuals)),
            ("logits", "writers", self._judged(self.logits)),
            ("MLP writes", "folded weights", "no facts" if self.mlps is None else self._judged(self.mlps)),
        ]
        if self.plain_pass is not None:
            errors.append(("logits, captured", "a plain pass", self._judged(self.plain_pass)))
        notes = []
        if deficient := sum(layer.deficient_heads for layer in self.layers):
            notes.append(
                f"{deficient} heads have directions that no channel holds (of no weight, or too weak to be told); that "
                "part of a score is shown as rest."
            )
        if (missed := self.rounding) is not None:
            used = f"{missed.share:.0%}" if missed.share <= 1 else f"{missed.share:.0%}, too large"
            errors.append(("what was rounded", "unit roundoff, magnitudes", used))
            notes.append(
                f"These are errors in float32, of one layer's weights at a time. In {self.dtype} all layers together "
                f"round away {missed.typical:.2%} of the last residual stream (its norm at a token, median; "
                f"{missed.largest:.1%} at token {missed.token}), and no entry is farther off than {missed.share:.0%} "
                "of what rounding explains."
            )
        table = Table(("reconstructed", "from", ">largest error"), errors)
        return Report(
            f"How exact: {model_label(self.model)}",
            f"{self.n_tokens} tokens, {self.dtype}: {'exact' if self.exact else 'NOT exact'} within "
            f"{self.tolerance:.0e} of the largest value (of the head, or of the token).",
            [
                Section("Errors", [table]),
                Section("Layers", [self._layers()] if layers else []),
                Section("Notes", ["\n".join(notes)]),
            ],
            table,
        )

    def _judged(self, value: float) -> str:
        return f"{value:.1e}" if value <= self.tolerance else f"{value:.1e}, too large"

    def _layers(self) -> Table:
        rows = [
            (
                str(layer.layer),
                "no attention" if layer.scores is None else f"{layer.scores:.1e}",
                "" if layer.values is None else f"{layer.values:.1e}",
                f"{layer.residual:.1e}",
                "" if layer.mlp is None else f"{layer.mlp:.1e}",
                *(() if layer.rounded is None else (f"{layer.rounded:.2%}", f"{layer.rounded_bound:.0%}")),
            )
            for layer in self.layers
        ]
        columns = ("layer", ">scores from channels", ">values", ">residual after it, from writers", ">MLP")
        further = () if self.rounding is None else (">rounded away", ">of what rounding explains")
        return Table((*columns, *further), rows)

    def record(self) -> dict[str, Any]:
        """As plain data."""
        summary = {name: getattr(self, name) for name in ("scores", "residuals", "mlps", "exact")}
        record = {**asdict(self), **summary}
        if self.rounding is None:  # nothing is rounded away in full precision
            del record["rounding"]
            for layer in record["layers"]:
                del layer["rounded"], layer["rounded_bound"]
        return record

    if not TYPE_CHECKING:  # a type checker would take it for a promise that every attribute exists
        __getattr__ = attributes_of("Check")


def check(model: "Model", prompt: "Prompt | None" = None, *, tolerance: float | None = None, seed: int = 0) -> Check:
    """How exact is Keyhole on this model? Everything it decomposes is summed up and compared with the model's numbers.

    A plain forward pass, under the model's own attention implementation, checks the recorded one.

    Args:
        model: As `keyhole.load` returns it.
        prompt: Text or token ids. Default: 24 random tokens.
        tolerance: Errors up to here count as rounding. Default: 1e-4, and 1e-5 in float64. Of a model in half precision
            these are errors in float32; what it rounds away is in `rounding`.
        seed: Of the random tokens.

    Returns:
        A `Check`: `exact` (yes or no), the largest errors of `scores`, `residuals`, `logits` and `mlps`, and those of
        each layer in `layers`.

    >>> import keyhole
    >>> keyhole.check(keyhole.load(), "Mary gave a drink to John").exact
    True
    """
    run = model.run(random_ids(model, seed=seed) if prompt is None else prompt)
    if run.is_rounded:
        return _check_rounded(run, check_widened(run, tolerance), tolerance)
    with exact_matmul():
        logits = plain_logits(model.hf, model.family, torch.tensor([list(run.token_ids)], device=model.device))
        writes = Writes([run])
        (result,) = check_runs(writes, tolerance=tolerance)
        layers = tuple(replace(errors, mlp=_mlp_error(writes, errors.layer)) for errors in result.layers)
        (error,) = _relative((run.logits - logits[0])[None], logits, writes.inside)
    return replace(result, plain_pass=error, layers=layers)


def _check_rounded(run: "Run", facts: Check, tolerance: float | None) -> Check:
    """The same in half precision: in float32, in the run itself with what was rounded away, and how much that is."""
    (rounded,) = check_runs(Writes([run]), tolerance=tolerance)
    layers = [layer_rounding(run, layer) for layer in range(len(run.layers))]
    together = [
        replace(
            fact,
            scores=_larger(fact.scores, here.scores),
            residual=_worst([fact.residual, here.residual]),
            rounded=size,
            rounded_bound=bounds.share,
        )
        for fact, here, bounds, size in zip(facts.layers, rounded.layers, layers, sizes_of(run), strict=True)
    ]
    return replace(
        rounded,
        plain_pass=facts.plain_pass,
        layers=tuple(together),
        logits=_worst([facts.logits, rounded.logits]),
        rounding=rounding_of(run, layers),
    )


def _larger(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else _worst([a, b])


def check_widened(run: "Run", tolerance: float | None = None) -> Check:
    """`check` on the prompt of a run in half precision, all in float32."""
    model, wide = run.model, widened_run(run.model, run)
    with exact_matmul():
        plain, writes = widened_logits(model, run), Writes([wide])
        (result,) = check_runs(writes, tolerance=tolerance)
        layers = []
        for errors in result.layers:  # the weights of one MLP at a time
            block = float_copy(model.blocks[errors.layer])
            writes._mlps[errors.layer] = read_mlp(block, model.family, model.hf.config)
            layers.append(replace(errors, mlp=_mlp_error(writes, errors.layer)))
            del writes._mlps[errors.layer]
        (error,) = _relative((wide.logits - plain)[None], plain[None], writes.inside)
    return replace(result, plain_pass=error, layers=tuple(layers))


def facts_of(model: "Model") -> Check:
    """Do the facts of a model in half precision hold? Checked in float32, once, on random tokens."""
    return model._cached(("facts",), lambda: [model.hf], lambda: check_widened(model.run(random_ids(model))))


def require_explained(run: "Run") -> Float[Tensor, "pos"]:
    """Refuse a run in half precision of a model whose facts are wrong, or in which rounding does not explain a gap.

    Returns what was rounded away at each token, relative to the norm of the last stream there.
    """
    facts = facts_of(run.model)
    of = "of this model, computed in float32,"
    for name, error in (("scores", facts.scores), ("residual streams", facts.residuals), ("logits", facts.logits)):
        require_exact(error, torch.float32, f"the {name} {of}")
    assert facts.plain_pass is not None
    require_exact(facts.plain_pass, torch.float32, f"the logits {of} recorded and in a plain pass,")
    require_bounded(run)
    return rounding_at(run)


def check_run(run: "Run", *, tolerance: float | None = None) -> Check:
    """`check` of a run that exists, without the plain pass; in half precision, with facts checked on other tokens."""
    if run.is_rounded:
        return _check_rounded(run, facts_of(run.model), tolerance)
    (result,) = check_runs(Writes([run]), tolerance=tolerance)
    return result


def check_runs(
    writes: Writes, *, tolerance: float | None = None, logits_at: Sequence[Sequence[int]] | None = None
) -> list[Check]:
    """`check_run` of several runs side by side; with `logits_at`, logits are compared at these positions of each run.

    Residual streams and logits are summed up at every token, in long prompts at some that are spread over them.
    """
    layers: list[list[LayerCheck]] = [[] for _ in writes.runs]
    at = _spread(writes.n, [end for ends in logits_at or () for end in ends])
    inside = writes.inside[:, at]
    with exact_matmul():
        total, depth = writes.layer(0).resid[:, at].to(writes.dtype), len(writes.runs[0].layers)
        for index in range(depth):
            layer, errors = writes.layer(index), dict[str, list[Any]]()
            if layer.attention is not None:
                errors = _score_errors(writes, index)
                # in half precision a value is compared with what rounding explains, and in float32
                values = read_values(layer, writes.folded(index)) - layer.attention.v
                values = torch.zeros_like(values) if writes.runs[0].is_rounded else values
                errors["values"] = _relative(values, layer.attention.v, writes.inside)
                total = total.to(layer.resid.device) + _attention_written(writes, index, at)
            if layer.mixer is not None:
                total = total + layer.mixer[:, at]
            total = total + layer.mlp[:, at]
            if writes.runs[0].is_rounded:
                total = total + writes.rounding(index)[:, at].to(total)
            after = (writes.layer(index + 1).resid if index + 1 < depth else writes.final_resid)[:, at]
            errors["residual"] = _relative(total - after.to(total), after, inside)
            for row, checked in enumerate(layers):
                of_run = {name: column[row] for name, column in errors.items()}
                checked.append(LayerCheck(index, **{**_NO_ATTENTION, **of_run}))
        logits = _logits_errors(writes, total, at, logits_at)
    dtype = writes.runs[0].dtype
    return [
        Check(
            model=writes.model.name,
            n_tokens=len(run),
            dtype=str(dtype).removeprefix("torch."),
            tolerance=tolerance_of(dtype) if tolerance is None else tolerance,
            layers=tuple(checked),
            logits=error,
        )
        for run, checked, error in zip(writes.runs, layers, logits, strict=True)
    ]


def _spread(n: int, needed: Sequence[int]) -> list[int]:
    """Some of n tokens, the last among them, and those that are needed.

    >>> _spread(3, ()), len(_spread(1000, (500,))), _spread(1000, ())[-1]
    ([0, 1, 2], 64, 999)
    """
    step = max(1, -(-n // _TOKENS))
    return sorted({*range(n - 1, -1, -step), *needed})


def _attention_written(writes: Writes, layer: int, at: list[int]) -> Float[Tensor, "runs at d_model"]:
    """What attention writes at some tokens: the sum over heads h and sources b of A_tb (v_b - b_V) W_O / m_t, and bias.

    The model projects the sum of all heads at once. To do the same again would come out equal to the bit, whatever the
    weights of single writers are worth: so each (head, source) is a term of its own here.
    """
    index = writes.attention_layers.index(layer)
    A = writes.patterns.from_dests(index, at)
    total = A.new_zeros(len(A), len(at), writes.model.dims.d_model)
    step = max(1, _FLOATS // (len(A) * writes.n * total.shape[-1]))
    for start in range(0, A.shape[1], step):  # some heads at a time: memory stays linear in the prompt
        heads = slice(start, start + step)
        weights = A[:, heads].transpose(1, 2).flatten(2)  # runs, at, (head, source)
        total += weights @ writes.moved_by_heads(index, heads).flatten(1, 2)
    return total / writes.record(layer).out_scale[:, at, None] + writes.biases(layer, at)


_NO_ATTENTION: dict[str, Any] = {"scores": None, "values": None, "deficient_heads": 0}


def _logits_errors(
    writes: Writes, total: Float[Tensor, "runs at d_model"], at: list[int], ends: Sequence[Sequence[int]] | None
) -> list[float]:
    """Logits of what all writers wrote together, against the model's own: at all tokens, or at some of each run."""
    out = writes.model.head_out()
    state = total.to(out.W_U.device) / writes.final_scale[:, at, None]
    if ends is None:
        logits = stack([run.logits for run in writes.runs])[:, at]
        return _relative(out.logits(state @ out.W_U) - logits.to(out.W_U), logits, writes.inside[:, at])
    of = [(row, end) for row, some in enumerate(ends) for end in some]
    logits = torch.stack([writes.runs[row].logits[end] for row, end in of])[:, None]
    rows, places = torch.tensor([row for row, _ in of], device=state.device), [at.index(end) for _, end in of]
    summed = out.logits(state[rows, places] @ out.W_U)[:, None]
    errors = iter(_relative(summed - logits.to(summed), logits, torch.ones_like(summed[..., 0])))
    return [_worst(list(islice(errors, len(some)))) for some in ends]


def random_ids(model: "Model", n: int = _RANDOM_TOKENS, seed: int = 0) -> list[int]:
    """Token ids for a model without a tokenizer."""
    limit = model.dims.positions
    n = n if limit is None else min(n, limit)
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(model.dims.vocab, (n,), generator=generator).tolist()


def _score_errors(writes: Writes, layer: int) -> dict[str, list[Any]]:
    """Error of all scores of a layer: sums over channels, from the residual stream, against captured queries and keys.

    Also how many heads have a rest, and a bound on the largest term. In blocks of destinations, so that memory stays
    linear in the prompt; relative to the largest score of each head.
    """
    record = writes.record(layer)
    split = layer_in_channels(writes.layer(layer), writes.folded(layer), writes.omega(layer))
    missed = largest = split.a.new_zeros(split.a.shape[:2])
    inside = writes.inside.to(split.a)[:, None]
    for dests in record.blocks:
        block = slice(dests.start, dests.stop)
        pairs = inside[..., block, None] * inside[..., None, :]
        scores = record.scores(record.heads, dests) * pairs
        error = (split.scores(block) * pairs - scores).abs()
        missed, largest = torch.maximum(missed, error.amax((2, 3))), torch.maximum(largest, scores.abs().amax((2, 3)))
    largest = largest.clamp_min(1e-30)
    a, B = (x.abs() * inside[..., None] for x in (split.a, split.B))
    terms = (a.amax(2) * B.amax(2)).amax(2)
    return {
        "scores": (missed / largest).amax(1).tolist(),
        "deficient_heads": [int((split.rank < split.k.shape[-1]).sum())] * len(writes.runs),
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
    missed: Float[Tensor, "runs *any pos size"], model: Float[Tensor, "runs *any pos size"], inside: Tensor
) -> list[float]:
    """The largest difference at each token (of values: in each head) relative to the largest there; the worst of a run.

    Token by token, because one with a massive activation would hide errors at all others.
    """
    counted = inside.view(len(inside), *[1] * (missed.ndim - 3), -1, 1).to(missed)
    missed, model = ((x.to(missed) * counted).abs().flatten(2).amax(2) for x in (missed, model))
    return (missed / model.clamp_min(1e-30)).amax(1).tolist()


def _worst(errors: list[float]) -> float:
    """The largest; NaN if any is, for what cannot be compared is not exact."""
    return float("nan") if any(math.isnan(e) for e in errors) else max(errors, default=0.0)
