"""What does a head lose when a signal is removed? Its change of query or key, in head space, RoPE included.

Removing what writer c puts into channels S changes the rotated query by  part G_d[:, S] G_s[S]  and the rotated key by
G_d[:, S] G_s[S] part, with `part` the writer's share of the rotated query or key. Scores change by exactly the rows
of the search.

Signals of SVT are in the homogeneous basis, where u_k and v_k have one more coordinate for the biases. A head's query
or key loses all of their channels, as the score does. The residual stream has no such coordinate: it is dropped there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.records import SideName, Signal, predicted_at
from keyhole.errors import KeyholeError, require_choice
from keyhole.intervene.rerun import Edits, HeadEdit, Rerun, WriterEdit, rerun_each
from keyhole.models.numbers import exact_matmul
from keyhole.progress import Progress
from keyhole.qk.omega import Basis, omega
from keyhole.tracing.candidates import Keys
from keyhole.tracing.writers import read_of, read_vectors

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.models.run import Run


@dataclass(frozen=True)
class Cut:
    """Signals to take from one side of one firing."""

    layer: int  # of the firing's head
    head: int  # in its layer
    dest: int  # the token that attends
    src: int  # the token attended to
    signals: tuple[Signal, ...]  # of one side
    keys: Keys = "all"  # which keys a src-side cut touches

    def __post_init__(self) -> None:
        if len({(signal.side, signal.basis) for signal in self.signals}) != 1:
            raise KeyholeError(
                "a cut takes one or more signals of one side and basis: make one cut for dest and one for src."
            )

    @property
    def side(self) -> SideName:
        """Of the firing, and of all signals here."""
        return self.signals[0].side

    @property
    def basis(self) -> Basis:
        """That the channels of all signals here are numbered in."""
        return self.signals[0].basis

    def tokens(self, run: "Run") -> list[int]:
        """The tokens at which the head's input changes.

        Args:
            run: The run of the prompt.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> circuit = run.trace("Mary", against="John", through="heads")
        >>> from keyhole.intervene import side_cut
        >>> cut = side_cut(circuit, next(traced for traced in circuit.firings if traced.dest), "dest")
        >>> cut.tokens(run) == [cut.dest]
        True
        """
        if self.side == "dest":
            return [self.dest]
        return [self.src] if self.keys == "source" else list(range(self.dest + 1))


def head_delta(run: "Run", cut: Cut) -> Float[Tensor, "token d_head"]:
    """What the head's rotated query (at dest) or rotated keys lose, at each of the cut's tokens."""
    tokens, head = cut.tokens(run), (cut.layer, cut.head)
    shares = [read_of(run, head, signal, tokens) for signal in cut.signals]
    kept = [_in_channels(run, cut, share, signal) for share, signal in zip(shares, cut.signals, strict=True)]
    return torch.stack(kept).sum(0)


def vector_delta(run: "Run", cut: Cut, vector: Float[Tensor, "d_model"]) -> Float[Tensor, "1 d_head"]:
    """What a vector in the residual stream at a signal's token puts into the signal's channels."""
    (signal,), (token,) = cut.signals, cut.tokens(run)
    share = read_vectors(run, (cut.layer, cut.head), vector[None], [token], side=cut.side)
    return _in_channels(run, cut, share, signal)


def _in_channels(run: "Run", cut: Cut, share: Float[Tensor, "token d_head"], signal: Signal) -> Tensor:
    om, ks = omega(run.model, cut.layer, cut.basis), list(signal.channels)
    G_d, G_s = om.G_d[cut.head][:, ks], om.G_s[cut.head][ks]
    return share @ G_d @ G_s if cut.side == "dest" else share @ G_s.T @ G_d.T


def residual_delta(run: "Run", cut: Cut, delta: Float[Tensor, "token d_head"]) -> Float[Tensor, "token d_model"]:
    """The shortest change of the residual stream, before the norm, that the head reads as this change of q or k.

    Without RoPE this is the projection of what was written onto the channels' directions u_k (or v_k). With RoPE, what
    turns into directions that the head does not read stays: nothing in the residual stream could change it.
    """
    record, at = run.attention_run(cut.layer), cut.tokens(run)
    scales = record.q_scale[cut.head] if cut.side == "dest" else record.k_scale[record.kv(cut.head)]
    scale = scales[at][:, None]
    if cut.basis == "homogeneous":
        delta = delta - _of_bias(run, cut, delta)
    if record.rotary is not None:
        turn = record.rotary.at(torch.tensor(at))
        norm = (turn.cos[:, :1].square() + turn.sin[:, :1].square()).to(delta.dtype)  # YaRN scales cos and sin
        delta = turn.transpose(delta)
        n = 2 * turn.cos.shape[1]
        delta = torch.cat([delta[:, :n] / norm, delta[:, n:]], dim=-1)
    read = delta / scale
    lift = _lift(run.model, cut.layer, cut.head, cut.side)
    return read @ lift.to(read.dtype) * record.norm_scale[at][:, None]


def _of_bias(run: "Run", cut: Cut, delta: Float[Tensor, "token d_head"]) -> Float[Tensor, "token d_head"]:
    """What the last coordinate of a homogeneous change is read as: a multiple of the head's own bias."""
    om, w = omega(run.model, cut.layer, "homogeneous"), run.model.folded(cut.layer)
    n = int(om.rank[cut.head])
    if cut.side == "dest":
        last = (delta @ om.G_d[cut.head, :, :n] / om.sigma[cut.head, :n]) @ om.u(cut.head)[-1]
        return last[:, None] * w.b_Q[cut.head]
    last = (delta @ om.G_s[cut.head, :n].T) @ om.v(cut.head)[-1]
    return last[:, None] * w.b_K[w.kv(cut.head)]


def _lift(model: "Model", layer: int, head: int, side: SideName) -> Float[Tensor, "d_head d_model"]:
    """The pseudo-inverse of what a head reads its queries or keys with, computed once."""
    w = model.folded(layer)
    index, W = (head, w.W_Q) if side == "dest" else (w.kv(head), w.W_K)
    return model._cached_of_layer(("lift", side, index), layer, lambda: _inverse(W[index]))


def _inverse(W: Float[Tensor, "d_model d_head"]) -> Float[Tensor, "d_head d_model"]:
    # A direction that W reads no better than its rounding could be changed only by a change without bounds.
    rtol = max(W.shape) * torch.finfo(W.dtype).eps
    return cast(Tensor, torch.linalg.pinv(W.double(), rtol=rtol).to(W.dtype))


def signal_delta(run: "Run", cut: Cut, signal: Signal) -> Float[Tensor, "token d_model"]:
    """One signal's change of the residual stream: what a global intervention takes from its writer."""
    alone = replace(cut, signals=(signal,))
    return residual_delta(run, alone, head_delta(run, alone))


def predicted(run: "Run", cut: Cut, delta: Float[Tensor, "token d_head"], factor: float = -1.0) -> float:
    """The attention weight of the firing once its scores have changed by the cut."""
    record = run.attention_run(cut.layer)
    scores = record.scores([cut.head], [cut.dest])[0, 0].double()
    if cut.side == "dest":
        change = record.k[record.kv(cut.head)].double() @ delta[0].double()
        scores = scores + factor * record.rule.scaling * change
    else:
        q = record.q[cut.head, cut.dest].double()
        scores[cut.tokens(run)] += factor * record.rule.scaling * (delta.double() @ q)
    return float(record.rule.of_head(scores, record.visible([cut.dest])[0], cut.head)[cut.src])


# Does removing these signals do what was predicted? One cut or many, in the model's own forward pass.
#
# `exact`   edits exactly the traced row of that head's scores
# `local`   edits that head's query (dest) or its keys (src), RoPE included; those of other heads stay, also of heads
#           that share its KV head
# `global`  edits what the writers add to the residual stream, so that everything downstream changes

CutMode = Literal["exact", "local", "global"]
Mode = Literal["exact", "local", "chain", "global"]  # chain: of MLPs alone, see `keyhole.faithfulness.chains`
AGREES = 1e-4  # how close prediction and measurement must be


@dataclass(frozen=True)
class Outcome:
    """What one cut, or a set of cuts at once, did."""

    cuts: tuple[Cut, ...]  # all at once
    mode: Mode  # where they apply
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
    logits: Float[Tensor, "*token vocab"] | None = field(
        default=None, repr=False, compare=False
    )  # where the metric asks

    @property
    def drop(self) -> float:
        """How much attention was lost."""
        return self.before - self.after


@dataclass(frozen=True)
class Metric:
    """What the answer is measured by at position `end`: it is given the logits there, `logits[metric.at]`."""

    end: int  # position that predicts the answer; of a continuation, its last token
    targets: tuple[int, ...] = ()  # ids of right tokens
    against: tuple[int, ...] = ()  # ids of tokens they are held against
    continuation: bool = False  # do the targets follow one another? Their log-probabilities are then summed

    @property
    def at(self) -> int | list[int]:
        """The position that predicts the answer, or of a continuation those of all its tokens: an index of logits."""
        places = predicted_at(self.end, self.targets, continuation=self.continuation)
        return [end for end, _ in places] if self.continuation else self.end

    def of(self, logits: Float[Tensor, "*token vocab"]) -> float:
        """Mean logit of the targets minus that of the others; without others, the targets' log-probability.

        Of a continuation, the sum of its tokens' log-probabilities.

        Args:
            logits: The logits at `metric.at`: of one token, or of a continuation one row per token.

        >>> Metric(0, (1,), (2,)).of(torch.tensor([0.0, 3.0, 1.0]))
        2.0
        """
        return float(self.value(logits)) if self.targets else float("nan")

    def rank(self, logits: Float[Tensor, "*token vocab"]) -> int:
        """Which place the likeliest target has among all tokens, from 1; of a continuation, its worst token.

        Args:
            logits: The logits at `metric.at`: of one token, or of a continuation one row per token.

        >>> Metric(0, (2,)).rank(torch.tensor([0.0, 3.0, 1.0]))
        2
        """
        if self.continuation:
            targets = logits.gather(-1, torch.tensor(self.targets, device=logits.device)[:, None])
            return 1 + int((logits > targets).sum(-1).max())
        return 1 + int((logits > logits[list(self.targets)].max()).sum())

    def value(self, logits: Float[Tensor, "*token vocab"]) -> Float[Tensor, ""]:
        """The same, to take gradients of; there must be targets.

        Args:
            logits: The logits at `metric.at`: of one token, or of a continuation one row per token.

        >>> Metric(0, (1,), (2,)).value(torch.tensor([0.0, 3.0, 1.0])).item()
        2.0
        """
        logits = logits.double()
        if self.continuation:
            tokens = torch.tensor(self.targets, device=logits.device)
            return logits.log_softmax(-1).gather(-1, tokens[:, None]).sum()
        if self.against:
            return logits[list(self.targets)].mean() - logits[list(self.against)].mean()
        return logits.log_softmax(-1)[list(self.targets)].logsumexp(0)


@dataclass(frozen=True, eq=False)
class Question:
    """A prompt that ran, and what its answer is measured by. Records of single methods extend this one."""

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
    """What does the model do without some signals? Each cut, or set of cuts, is made in a copy of the prompt.

    Args:
        run: The prompt.
        cuts: Signals to remove: a `Cut` (`keyhole.intervene.edge_cut(circuit, edge)`), or several that are made at
            once. Many copies share a batch.
        metric: What the answer is measured by.
        mode: "exact" changes the traced row of the head's scores, "local" its query or keys, "global" what the writers
            add to the residual stream.
        boost: Add the signals once more instead of removing them.
        keep: Also keep the attention row and the logits after the cut.
        progress: Called with the number of copies done and their total.

    Returns:
        An `Outcome` for each: the attention weight and the metric before and after, and the predicted weight.

    >>> import keyhole
    >>> from keyhole.intervene import Metric, edge_cut, intervene
    >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
    >>> circuit = run.trace("Mary")
    >>> edge = next(edge for edge in circuit.edges if edge.side == "src")
    >>> (outcome,) = intervene(run, [edge_cut(circuit, edge)], Metric(len(run) - 1))
    >>> abs(outcome.after - outcome.predicted) < 1e-4
    True
    """
    run._require_fresh()
    require_choice("mode", mode, CutMode)
    sets = [tuple([c] if isinstance(c, Cut) else c) for c in cuts]
    factor = 1.0 if boost else -1.0
    outcomes: dict[int, Outcome] = {}
    with exact_matmul(), run.model._steady():
        edits = [edits_of(run, chosen, mode, factor) for chosen in sets]
        for i, result, copy in rerun_each(run, edits, progress):
            outcomes[i] = outcome_of(run, sets[i], result, copy, metric=metric, mode=mode, factor=factor)
            if keep:
                row = result.weights(run, copy, sets[i][0].layer, sets[i][0].head)[sets[i][0].dest].clone()
                logits = result.logits(run, copy, metric.at).clone()
                outcomes[i] = replace(outcomes[i], row=row, logits=logits)
    return [outcomes[i] for i in range(len(sets))]


def random_cut(run: "Run", cut: Cut, generator: torch.Generator) -> Cut:
    """A control: the same writers, with as many channels drawn from those that the cut leaves alone.

    Args:
        run: The run of the prompt.
        cut: What the control is for.
        generator: The source of random numbers.

    >>> import keyhole
    >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
    >>> circuit = run.trace("Mary", against="John", through="heads")
    >>> from keyhole.intervene import side_cut
    >>> cut = side_cut(circuit, next(traced for traced in circuit.firings if traced.src), "src")
    >>> random_cut(run, cut, torch.Generator().manual_seed(0)).side
    'src'
    """
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
    record = run.attention_run(cut.layer)
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
    """What these cuts did, measured in the copy of the prompt that has them."""
    first = cuts[0]
    record = run.attention_run(first.layer)
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
        metric_before=metric.of(run.logits[metric.at]),
        metric_after=metric.of(result.logits(run, copy, metric.at)),
        norm_ratio=float(changed.norm() / resid.norm()),
        cosine=float(torch.cosine_similarity(changed, resid, dim=0)),
    )
