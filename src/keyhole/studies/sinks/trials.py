"""Which subspaces drive firings on the first token, and what happens to firings and answers without them?

alone    The subspace is taken out of what each head reads, on one side of its scores: out of the query's stream, or out
         of every key's stream, so that what all keys have in common makes no difference. Norms stay as they were.
passing  It is taken out of the stream before every block from a layer on, at the tokens after the first (dest) or at
         the first (src), in the model's own pass, with all that follows from it.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from keyhole.circuits.records import SideName
from keyhole.models.capture import Captured, Notes, attention_batch, capture
from keyhole.models.model import Model
from keyhole.models.numbers import exact_matmul
from keyhole.models.run import AttentionRun
from keyhole.models.stacks import read_keys, read_queries
from keyhole.progress import Progress
from keyhole.stats import Interval, interval
from keyhole.studies.directions.alike import TAKEN, Ambient, directions, shuffled
from keyhole.studies.directions.heard import Heard
from keyhole.studies.sinks.firings import StoredQuestion, batches, fires_in, layers_of
from keyhole.studies.sinks.record import HALF, Removal
from keyhole.tracing.firing import Tau
from keyhole.tracing.upstream import Writes

Basis = Float[Tensor, "d_model rank"]
_TOKENS = 1024  # of a batch


@dataclass(frozen=True)
class Passed:
    """What was measured in one pass, a number per prompt."""

    sinks: tuple[float, ...]  # mean weight on the first token, over heads from the layer on and tokens after the first
    answers: tuple[float, ...]  # the metric of each prompt


def explained(
    model: Model, questions: Sequence[StoredQuestion], cuts: Sequence[tuple[SideName, Basis]], tau: Tau
) -> list[tuple[float, ...]]:
    """For each cut and prompt, the share of firings on the first token that are below tau without the subspace."""
    gone = [list[float]() for _ in cuts]
    with exact_matmul(), model._steady():
        for batch, writes in batches(model, questions):
            lost, total = torch.zeros(len(cuts), len(batch)), torch.zeros(len(batch))
            for layer in layers_of(model):
                record = writes.record(layer)
                weights = record.weights(record.heads, range(writes.n))
                before = fires_in(record, writes.runs, weights, tau)[..., 0]
                total += before.sum((1, 2)).cpu()
                for number, (side, basis) in enumerate(cuts):
                    after = _without(writes, layer, side, basis)
                    still = fires_in(after, writes.runs, after.weights(after.heads, range(writes.n)), tau)[..., 0]
                    lost[number] += (before & ~still).sum((1, 2)).cpu()
            for number, values in enumerate(lost):
                gone[number] += [float(a / b) for a, b in zip(values, total, strict=True) if b > 0]
    return [tuple(values) for values in gone]


def _without(writes: Writes, layer: int, side: SideName, basis: Basis) -> AttentionRun:
    """A layer's attention with a subspace taken out of the streams that queries, or all keys, are read from."""
    streams, w, record = writes.layer(layer), writes.folded(layer), writes.record(layer)
    B = basis.to(streams.resid)
    less = replace(streams, resid=streams.resid - streams.resid @ B @ B.T)
    if side == "dest":
        return replace(record, q=read_queries(less, w).to(record.q))
    return replace(record, k=read_keys(less, w).to(record.k))


def passed(
    model: Model, questions: Sequence[StoredQuestion], cuts: Sequence[tuple[SideName, Basis] | None], layer: int
) -> list[Passed]:
    """The model's own passes, each with a cut from a layer on, or with none."""
    return [_passed(model, questions, cut, layer) for cut in cuts]


def _passed(
    model: Model, questions: Sequence[StoredQuestion], cut: tuple[SideName, Basis] | None, layer: int
) -> Passed:
    sinks, answers = [0.0] * len(questions), [0.0] * len(questions)
    for batch in model._batches([len(question.token_ids) for question in questions], _TOKENS):
        lengths = [len(questions[i].token_ids) for i in batch]
        rows = [[*questions[i].token_ids, *[0] * (max(lengths) - n)] for i, n in zip(batch, lengths, strict=True)]
        captured = _pass(model, torch.tensor(rows, device=model.device), cut, layer)
        for row, (i, weight) in enumerate(zip(batch, _resting(model, captured, lengths, layer), strict=True)):
            sinks[i], answers[i] = weight, questions[i].metric.of(captured.logits[row, questions[i].metric.end])
    return Passed(tuple(sinks), tuple(answers))


def _pass(model: Model, ids: Tensor, cut: tuple[SideName, Basis] | None, layer: int) -> Captured:
    def prepare(stack: ExitStack, layers: tuple[Notes, ...]) -> None:
        for notes in layers[layer:] if cut is not None else ():
            assert cut is not None
            _take_out(stack, notes.block, *cut)

    with torch.no_grad():
        return capture(model.hf, model.family, ids, prepare)


def _take_out(stack: ExitStack, block: nn.Module, side: SideName, basis: Basis) -> None:
    at = slice(1, None) if side == "dest" else slice(0, 1)

    def less(x: Tensor) -> Tensor:
        x, B = x.clone(), basis.to(x)
        x[:, at] = x[:, at] - x[:, at] @ B @ B.T
        return x

    def before(module: nn.Module, args: Any, kwargs: Any) -> Any:
        if args:
            return (less(args[0]), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": less(kwargs["hidden_states"])}

    # prepended, so that the recording hooks see the stream without the subspace, as the block does
    hook = block.register_forward_pre_hook(before, with_kwargs=True, prepend=True)
    stack.callback(hook.remove)


def _resting(model: Model, captured: Captured, lengths: Sequence[int], layer: int) -> list[float]:
    """The mean attention weight on the first token, of each prompt."""
    total, count = torch.zeros(len(lengths), dtype=torch.float64), 0
    inside = _inside(lengths)
    with exact_matmul():
        for notes in captured.layers[layer:]:
            if notes.attn is None:
                continue
            record = attention_batch(notes, notes.attn, model.family, model.dims)
            weights = record.weights(record.heads, range(inside.shape[1]))[..., 0].double().cpu()
            total += (weights * inside[:, None]).sum((1, 2))
            count += weights.shape[1]
    return (total / (count * inside.sum(1))).tolist()


def _inside(lengths: Sequence[int]) -> Bool[Tensor, "runs pos"]:
    """The tokens after the first, of each prompt."""
    at = torch.arange(max(lengths))
    return (at[None] < torch.tensor(lengths)[:, None]) & (at[None] > 0)


def energy(model: Model, questions: Sequence[StoredQuestion], cuts: Sequence[tuple[SideName, Basis]]) -> list[float]:
    """How much of the stream's squared length lies in each subspace, at its tokens, on average over layers?"""
    shares = torch.zeros(len(cuts), dtype=torch.float64)
    count = 0
    for _, writes in batches(model, questions):
        for run in writes.runs:
            for layer in layers_of(model):
                x = run.layers[layer].resid.double().cpu()
                share = [_share(x[1:] if side == "dest" else x[:1], basis) for side, basis in cuts]
                shares += torch.tensor(share, dtype=torch.float64)
                count += 1
    return (shares / count).tolist()


def _share(x: Float[Tensor, "pos d_model"], basis: Basis) -> float:
    return float(((x @ basis.to(x)).square().sum(1) / x.square().sum(1).clamp_min(1e-300)).mean())


# Which subspaces are taken out? The directions that control signals share most, and two kinds of others.
#
# Random subspaces are drawn from the covariance of the streams after the first token, so that they take as much as any
# large part of the streams would. The first token is no part of that covariance: what sets it apart is what we look
# for. The second kind is what the same writers put into other channels of the same heads. Where all heads receive one
# vector, this kind spans that vector again, whichever the channels, and shows that the effect is the writers'.

WAYS = (TAKEN[0], TAKEN[-1])  # signals as they are, and with most taken out of them


@dataclass(frozen=True)
class Trial:
    """What removals are tried on."""

    model: Model
    questions: Sequence[StoredQuestion]
    ambient: Ambient
    tau: Tau
    ranks: tuple[int, ...]
    controls: int
    seed: int


@dataclass(frozen=True)
class Done:
    """The removals by side, and the means before any removal."""

    of: Mapping[SideName, tuple[Removal, ...]]
    before: float
    answer: float
    layer: int


@dataclass(frozen=True)
class _Subspaces:
    """The subspace that control signals share, of one rank, and its controls."""

    side: SideName
    taken: int | None
    rank: int
    shared: Basis
    random: tuple[Basis, ...]
    shuffled: tuple[Basis, ...]

    @property
    def cuts(self) -> list[tuple[SideName, Basis]]:
        """All of them, the shared one first."""
        return [(self.side, basis) for basis in (self.shared, *self.random, *self.shuffled)]

    def parted(self, values: Sequence[float]) -> tuple[float, tuple[float, ...], tuple[float, ...]]:
        """A number for each cut, in three parts: of the shared one, and of both controls."""
        n = len(self.random)
        return values[0], tuple(values[1 : 1 + n]), tuple(values[1 + n :])


def removals(trial: Trial, controlled: Mapping[SideName, Sequence[Heard]], progress: Progress) -> Done:
    """Remove every rank head by head; and in the model's own pass the smallest that takes half of the firings."""
    layers = [signals.layer for heard in controlled.values() for signals in heard]
    layer = min(layers, default=layers_of(trial.model)[0])
    clean = passed(trial.model, trial.questions, [None], layer)[0]
    sets = [subspace for side, heard in controlled.items() for subspace in _sets(trial, side, heard)]
    results: dict[SideName, list[Removal]] = {side: [] for side in controlled}
    total, done = 2 * len(sets), 0
    for subspace in sets:
        results[subspace.side].append(_alone(trial, subspace))
        progress(done := done + 1, total)
    for side, tried in results.items():
        for taken in WAYS:
            here = [i for i, removal in enumerate(tried) if removal.taken == taken]
            enough = [i for i in here if tried[i].explained[0] >= HALF] or here[-1:]
            for i in enough[:1]:
                subspace = next(s for s in sets if (s.side, s.taken, s.rank) == (side, taken, tried[i].rank))
                tried[i] = _passing(trial, subspace, tried[i], layer)
            progress(done := min(total, done + max(1, len(here))), total)
    tuples = {side: tuple(tried) for side, tried in results.items()}
    return Done(tuples, fmean(clean.sinks), fmean(clean.answers), layer)


def _sets(trial: Trial, side: SideName, heard: Sequence[Heard]) -> list[_Subspaces]:
    """The subspaces of one side, for signals as they are and without what streams have in common, by rank."""
    generator = torch.Generator().manual_seed(trial.seed)
    sets = []
    for way in WAYS if heard else ():
        taken = trial.ambient.taken(way)
        right = _right(directions(heard, taken))
        others = [_right(draw.double()) for draw in shuffled(heard, taken, trial.controls, generator)]
        for rank in [rank for rank in trial.ranks if rank <= right.shape[1]]:
            random = tuple(trial.ambient.draw(rank, generator) for _ in range(trial.controls))
            sets.append(
                _Subspaces(side, way, rank, right[:, :rank], random, tuple(basis[:, :rank] for basis in others))
            )
    return sets


def _right(vectors: torch.Tensor) -> Basis:
    """The right singular vectors of some vectors, the largest singular value first."""
    _, S, Vh = torch.linalg.svd(vectors, full_matrices=False)
    basis: torch.Tensor = Vh[1e-6 * S.max() < S].T
    return basis


def _alone(trial: Trial, subspace: _Subspaces) -> Removal:
    shares = explained(trial.model, trial.questions, subspace.cuts, trial.tau)
    means = [fmean(values) if values else 0.0 for values in shares]
    _, random, other = subspace.parted(means)
    size, *others = energy(trial.model, trial.questions, subspace.cuts[: 1 + len(subspace.random)])
    gone = interval(shares[0]) if shares[0] else Interval(0.0, float("nan"), float("nan"))
    return Removal(subspace.taken, subspace.rank, size, fmean(others), gone, random, other)


def _passing(trial: Trial, subspace: _Subspaces, removal: Removal, layer: int) -> Removal:
    """The same removal in the model's own passes."""
    passes = passed(trial.model, trial.questions, subspace.cuts, layer)
    _, random_sinks, shuffled_sinks = subspace.parted([fmean(result.sinks) for result in passes])
    _, random_answers, shuffled_answers = subspace.parted([fmean(result.answers) for result in passes])
    without: Passed = passes[0]
    return replace(
        removal,
        sinks=interval(without.sinks),
        answer=interval(without.answers),
        random_sinks=random_sinks,
        random_answers=random_answers,
        shuffled_sinks=shuffled_sinks,
        shuffled_answers=shuffled_answers,
    )
