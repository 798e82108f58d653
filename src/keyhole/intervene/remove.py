"""Does removing these signals do what was predicted? One cut or many, in the model's own forward pass.

`exact`   edits exactly the traced row of that head's scores
`local`   edits that head's query (dest) or its keys (src), RoPE included; other heads, GQA siblings too, keep theirs
`global`  edits what the writers add to the residual stream, so everything downstream feels it
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.writer import Signal
from keyhole.errors import KeyholeError, require_choice
from keyhole.intervene.deltas import Cut, head_delta, predicted, residual_delta, signal_delta
from keyhole.intervene.rerun import Edits, HeadEdit, Rerun, WriterEdit, rerun_each
from keyhole.models.numbers.precision import exact_matmul
from keyhole.progress import Progress
from keyhole.qk.omega import omega

if TYPE_CHECKING:
    from keyhole.models.run import Run

CutMode = Literal["exact", "local", "global"]
Mode = Literal["exact", "local", "chain", "global"]  # chain: of MLPs alone, see `keyhole.intervene.chains`
AGREES = 1e-4  # how close prediction and measurement must be


@dataclass(frozen=True)
class Outcome:
    """What one cut (or a set of cuts made together) did."""

    cuts: tuple[Cut, ...]  # made together
    mode: Mode  # where they were made
    factor: float  # -1 removes, +1 doubles
    before: float  # attention weight of the first cut's firing
    after: float  # the same weight, measured
    predicted: float  # from the scores alone
    metric_before: float  # logit difference, or log-probability of the target
    metric_after: float  # the same, measured
    norm_ratio: float  # of the residual stream at the cut's token, after over before
    cosine: float  # of the stream before with the stream after
    row: Float[Tensor, "pos"] | None = field(
        default=None, repr=False, compare=False
    )  # all weights of the first cut's dest
    logits: Float[Tensor, "vocab"] | None = field(default=None, repr=False, compare=False)  # at the metric's end

    @property
    def drop(self) -> float:
        """How much attention was lost."""
        return self.before - self.after


@dataclass(frozen=True)
class Metric:
    """What the answer is measured by at position `end`."""

    end: int  # position that predicts the answer
    targets: tuple[int, ...] = ()  # ids of right tokens
    against: tuple[int, ...] = ()  # ids of tokens they are held against

    def of(self, logits: Float[Tensor, "vocab"]) -> float:
        """Mean logit of the targets minus that of the others; without others, the targets' log-probability."""
        return float(self.value(logits)) if self.targets else float("nan")

    def rank(self, logits: Float[Tensor, "vocab"]) -> int:
        """Which place the likeliest target has among all tokens, from 1."""
        return 1 + int((logits > logits[list(self.targets)].max()).sum())

    def value(self, logits: Float[Tensor, "vocab"]) -> Float[Tensor, ""]:
        """The same, to take gradients of; there must be targets."""
        logits = logits.double()
        if self.against:
            return logits[list(self.targets)].mean() - logits[list(self.against)].mean()
        return logits.log_softmax(-1)[list(self.targets)].logsumexp(0)


@dataclass(frozen=True, eq=False)
class Question:
    """A prompt that ran, and what its answer is measured by: which tokens, and what they are held against.

    What else is needed to ask it stands in records that extend this one.
    """

    run: "Run"
    metric: Metric


def intervene(
    run: "Run",
    cuts: Sequence[Cut | Sequence[Cut]],
    metric: Metric,
    *,
    mode: CutMode = "exact",
    boost: bool = False,
    keep: bool = False,
    progress: Progress | None = None,
) -> list[Outcome]:
    """Make each cut (or each set of cuts at once) in a copy of the prompt; many copies share a batch.

    `keep`: each outcome has the attention row and the logits afterwards, too.
    """
    run.require_fresh()
    require_choice("mode", mode, CutMode)
    sets = [tuple([c] if isinstance(c, Cut) else c) for c in cuts]
    factor = 1.0 if boost else -1.0
    outcomes: dict[int, Outcome] = {}
    with exact_matmul(), run.model.steady():
        edits = [edits_of(run, chosen, mode, factor) for chosen in sets]
        for i, result, copy in rerun_each(run, edits, progress):
            outcomes[i] = outcome_of(run, sets[i], result, copy, metric=metric, mode=mode, factor=factor)
            if keep:
                row = result.weights(run, copy, sets[i][0].layer, sets[i][0].head)[sets[i][0].dest].clone()
                logits = result.logits(run, copy, metric.end).clone()
                outcomes[i] = replace(outcomes[i], row=row, logits=logits)
    return [outcomes[i] for i in range(len(sets))]


def random_cut(run: "Run", cut: Cut, generator: torch.Generator) -> Cut:
    """A control: the same writers, with as many channels drawn from those that the cut leaves alone."""
    n = int(omega(run.model, cut.layer, cut.basis).rank[cut.head])
    signals = []
    for signal in cut.signals:
        others = torch.tensor([k for k in range(n) if k not in signal.channels])
        count = min(len(signal.channels), len(others))
        chosen = others[torch.randperm(len(others), generator=generator)[:count]].tolist()
        signals.append(Signal(signal.writer, signal.side, tuple(chosen), basis=signal.basis))
    return replace(cut, signals=tuple(signals))


def edits_of(run: "Run", cuts: Sequence[Cut], mode: Mode, factor: float = -1.0) -> Edits:
    """What makes these cuts, all together, in one copy of the prompt."""
    if mode == "global":
        return Edits(writers=tuple(edit for cut in cuts for edit in _writer_edits(run, cut, factor)))
    return Edits(heads=tuple(head_edit(run, cut, factor * head_delta(run, cut), mode) for cut in cuts))


def head_edit(run: "Run", cut: Cut, delta: Float[Tensor, "token d_head"], mode: Mode = "local") -> HeadEdit:
    """A change of a firing's query, of its keys, or, exactly, of its scores alone."""
    record = run.layer(cut.layer)
    if mode == "local":
        if cut.side == "dest":
            return HeadEdit(cut.layer, cut.head, query=(cut.dest, delta[0]))
        keys = delta.new_zeros(len(run), delta.shape[1])
        keys[cut.tokens(run)] = delta
        return HeadEdit(cut.layer, cut.head, keys=keys)
    if cut.side == "dest":
        row = record.rule.scaling * (record.k[record.kv(cut.head)].to(delta.dtype) @ delta[0])
    else:
        row = delta.new_zeros(len(run))
        row[cut.tokens(run)] = record.rule.scaling * (delta @ record.q[cut.head, cut.dest].to(delta.dtype))
    return HeadEdit(cut.layer, cut.head, row=(cut.dest, row))


def _writer_edits(run: "Run", cut: Cut, factor: float) -> list[WriterEdit]:
    edits = []
    for signal in cut.signals:
        writer = signal.writer
        if writer.kind == "offset":
            raise KeyholeError(
                f"an offset is head {cut.layer}.{cut.head}'s own bias and is written nowhere: remove it with mode "
                "'exact' or 'local'."
            )
        delta = torch.zeros_like(run.layers[0].resid, dtype=run.final_scale.dtype)
        delta[cut.tokens(run)] = factor * signal_delta(run, cut, signal)
        kind = "attention" if writer.kind in ("head", "bias") else writer.kind
        edits.append(WriterEdit(kind, writer.layer, delta))
    return edits


def outcome_of(
    run: "Run", cuts: tuple[Cut, ...], result: Rerun, copy: int, *, metric: Metric, mode: Mode, factor: float = -1.0
) -> Outcome:
    """What these cuts did, seen in the copy of the prompt that they were made in."""
    first = cuts[0]
    record = run.layer(first.layer)
    delta = head_delta(run, first)
    before = float(record.weights([first.head], [first.dest])[0, 0, first.src])
    after = result.weights(run, copy, first.layer, first.head)[first.dest, first.src]
    token = first.dest if first.side == "dest" else first.src
    where = first.tokens(run).index(token)
    resid = run.layers[first.layer].resid[token].to(delta.dtype)
    changed = resid + factor * residual_delta(run, first, delta)[where]
    return Outcome(
        cuts=cuts,
        mode=mode,
        factor=factor,
        before=before,
        after=float(after),
        predicted=predicted(run, first, delta, factor),
        metric_before=metric.of(run.logits[metric.end]),
        metric_after=metric.of(result.logits(run, copy, metric.end)),
        norm_ratio=float(changed.norm() / resid.norm()),
        cosine=float(torch.cosine_similarity(changed, resid, dim=0)),
    )
