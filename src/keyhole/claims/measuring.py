"""What does a removal cost in many prompts? In the model's own passes, prompts of one length together.

lost            the answer without edits, less the answer with them, as a share of the answer in the claim's prompts
changes         what a head writes at one token, exchanged: without it, with a random direction of the same norm, ...
attention       a head's weights at a token, with channels removed in the model's own pass, or as predicted
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.brief import Head
from keyhole.circuits.records import Writer
from keyhole.claims.cases import Case, Cases, score
from keyhole.edits.applying import edited
from keyhole.edits.changes import predicted
from keyhole.edits.records import At, Edit, Source, WriteEdit
from keyhole.intervene.silence import on_write
from keyhole.models.capture import Notes, alone
from keyhole.models.numbers import exact_matmul
from keyhole.models.weights import optional
from keyhole.tracing.writers import written_by

if TYPE_CHECKING:
    from keyhole.models.model import Model

EditsOf = Callable[[Case], Sequence[Edit]]  # what is removed in a prompt, at its own tokens
TOKENS = 4096  # in one batch


def lost(model: "Model", cases: Sequence[Case], edits_of: EditsOf) -> Float[np.ndarray, "case"]:
    """By how much the answer is less with these edits, prompt by prompt."""
    groups = defaultdict[tuple[int, tuple[Edit, ...]], list[int]](list)
    for i, case in enumerate(cases):
        groups[len(case.run), tuple(edits_of(case))].append(i)
    answers = np.zeros(len(cases))
    for (length, edits), numbers in groups.items():
        size = max(1, TOKENS // length)
        for start in range(0, len(numbers), size):
            some = numbers[start : start + size]
            ids = _ids(model, [cases[i] for i in some])
            with edited(model, edits), exact_matmul():
                logits = model.hf(ids).logits[:, -1]
            answers[some] = [score(cases[i].metric, row) for i, row in zip(some, logits, strict=True)]
    return np.array([case.answer for case in cases]) - answers


def _ids(model: "Model", cases: Sequence[Case]) -> Tensor:
    return torch.tensor([case.run.token_ids for case in cases], device=model.device)


def mean_answer(cases: Cases) -> float:
    """What shares of the answer are shares of."""
    return float(np.mean([case.answer for case in cases]))


# What one head writes at one token, changed by vectors: many changes of many prompts in one pass.
#
# An edge from a value, or a signal into one head's scores, changes nothing below the head, and above it what the head
# writes at its token alone. That change is known from the run, so that it can be added where the layer's attention
# writes: the same pass as with the edit, but for rounding, and rows of one batch may have different changes.


@dataclass(frozen=True)
class Written:
    """What a head moves from one token to another."""

    head: Head
    dest: str
    src: str

    def edit(self, case: Case) -> WriteEdit:
        """Its removal in a prompt."""
        source = Source("head", *self.head, At((case.at(self.src),)))
        return WriteEdit(writer=source, dest=At((case.at(self.dest),)))

    def vector(self, case: Case, head: Head | None = None, src: int | None = None) -> Float[Tensor, "d_model"]:
        """It, in the residual stream, or what another head or token writes there."""
        dest, src = case.at(self.dest), case.at(self.src) if src is None else src
        return written_by(case.run, Writer("head", *(head or self.head), dest, src), [dest])[0].double().cpu()


@dataclass(frozen=True, eq=False)
class Change:
    """A vector that is added to what a layer's attention writes at one token of a prompt."""

    case: int
    dest: int
    vector: Float[Tensor, "d_model"]


def lost_to_changes(
    model: "Model", cases: Sequence[Case], layer: int, changes: Sequence[Change]
) -> Float[np.ndarray, "change"]:
    """By how much the answer is less with each change of what a layer's attention writes."""
    by_length = defaultdict[int, list[int]](list)
    for number, change in enumerate(changes):
        by_length[len(cases[change.case].run)].append(number)
    results = np.zeros(len(changes))
    for length, numbers in by_length.items():
        size = max(1, TOKENS // length)
        for start in range(0, len(numbers), size):
            some = numbers[start : start + size]
            of = [cases[changes[number].case] for number in some]
            logits = _with_changes(model, _ids(model, of), layer, [changes[number] for number in some])
            answers = [score(case.metric, row) for case, row in zip(of, logits, strict=True)]
            results[some] = [case.answer - answer for case, answer in zip(of, answers, strict=True)]
    return results


def _with_changes(model: "Model", ids: Tensor, layer: int, changes: Sequence[Change]) -> Float[Tensor, "row vocab"]:
    """Logits at the last token, a row for each change."""
    vectors = torch.stack([change.vector for change in changes])
    at = torch.tensor([change.dest for change in changes])

    def changed(x: Tensor, by: float) -> Tensor:
        rows = x.view(len(ids), -1, model.dims.d_model).clone()
        rows[torch.arange(len(ids)), at] += (vectors / by).to(x)
        return rows.view(x.shape)

    block = model.blocks[layer]
    with alone(model.hf), ExitStack() as stack, exact_matmul():
        on_write(stack, model, Notes(block, optional(block, model.family.attn)), "attention", changed)
        logits: Tensor = model.hf(ids).logits[:, -1]
        return logits


def lost_to_random(
    model: "Model", cases: Sequence[Case], written: Written, draws: int, seed: int, *, instead: bool
) -> Float[np.ndarray, "draw case"]:
    """By how much the answer is less with a random vector of the same norm `instead` of a write, or beside it."""
    rng, changes = torch.Generator().manual_seed(seed), []
    writes = [written.vector(case) for case in cases]
    for _ in range(draws):
        for i, (case, write) in enumerate(zip(cases, writes, strict=True)):
            vector = torch.randn(len(write), generator=rng, dtype=torch.float64)
            vector *= write.norm() / vector.norm()
            changes.append(Change(i, case.at(written.dest), vector - write if instead else vector))
    losses = lost_to_changes(model, cases, written.head[0], changes)
    return losses.reshape(draws, len(cases))


def moved(case: Case, head: Head, dest: int, weights: Float[np.ndarray, "pos"]) -> Float[Tensor, "d_model"]:
    """What a head writes more with other attention weights."""
    record, w = case.run.attention_run(head[0]), case.run.model.folded(head[0])
    more = torch.from_numpy(weights) - record.weights([head[1]], [dest])[0, 0].double().cpu()
    v, W_O = record.v[w.kv(head[1])].double().cpu(), w.W_O[head[1]].double().cpu()
    return (more @ v) @ W_O / record.out_scale[dest].double().cpu()


# Where does a head look without some of its channels?


def attention(cases: Sequence[Case], head: Head, dest: str) -> list[Float[np.ndarray, "pos"]]:
    """The head's weights from a role's token, prompt by prompt."""
    return [_row(case.run.attention_run(head[0]).weights([head[1]], [case.at(dest)])[0, 0]) for case in cases]


def attention_with(
    model: "Model", cases: Sequence[Case], head: Head, dest: str, edits_of: EditsOf
) -> list[Float[np.ndarray, "pos"]]:
    """The same with edits, in the model's own passes."""
    groups = defaultdict[tuple[int, tuple[Edit, ...]], list[int]](list)
    for i, case in enumerate(cases):
        groups[len(case.run), tuple(edits_of(case))].append(i)
    weights: dict[int, Float[np.ndarray, "pos"]] = {}
    for (_, edits), numbers in groups.items():
        with edited(model, edits):
            runs = model.run_many([list(cases[i].run.token_ids) for i in numbers], bos=False, max_batch_tokens=TOKENS)
        for i, run in zip(numbers, runs, strict=True):
            weights[i] = _row(run.attention_run(head[0]).weights([head[1]], [cases[i].at(dest)])[0, 0])
    return [weights[i] for i in range(len(cases))]


def attention_predicted(
    cases: Sequence[Case], head: Head, dest: str, edits_of: EditsOf
) -> list[Float[np.ndarray, "pos"]]:
    """The same without a pass, for edits that leave the head's input as it is: then it is exact."""
    rows = []
    for case in cases:
        foreseen = predicted(case.run, edits_of(case), head)
        assert foreseen is not None, "an edit of the head's own channels leaves its input as it is"
        rows.append(_row(foreseen[case.at(dest)]))
    return rows


def _row(weights: Tensor) -> Float[np.ndarray, "pos"]:
    row: Float[np.ndarray, "pos"] = weights.double().cpu().numpy()
    return row
