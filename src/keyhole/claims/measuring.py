"""What does a removal cost in many prompts? In the model's own passes; prompts of one length and the same tokens together.

    lost            the answer without edits, less the answer with them, as a share of the answer in the claim's prompts
    random writes   a vector of the same norm and a random direction, instead of what a head writes, or beside it
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
from keyhole.models.capture import Notes
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
    return torch.tensor([case.run.token_ids for case in cases], device=model.hf.device)


def mean_answer(cases: Cases) -> float:
    """What shares of the answer are shares of."""
    return float(np.mean([case.answer for case in cases]))


# Directions at random, as long as what a head writes.


@dataclass(frozen=True)
class Written:
    """What a head moves from one token to another."""

    head: Head
    dest: str
    src: str

    def edit(self, case: Case, head: Head | None = None, src: int | None = None) -> WriteEdit:
        """Its removal in a prompt, or that of another head's or token's."""
        at = At((case.at(self.src) if src is None else src,))
        return WriteEdit(writer=Source("head", *(head or self.head), at), dest=At((case.at(self.dest),)))

    def vector(self, case: Case) -> Float[Tensor, "d_model"]:
        """It, in the residual stream."""
        dest = case.at(self.dest)
        return written_by(case.run, Writer("head", *self.head, dest, case.at(self.src)), [dest])[0]


def lost_to_random(
    model: "Model", cases: Sequence[Case], written: Written, draws: int, seed: int, *, instead: bool
) -> Float[np.ndarray, "draw case"]:
    """By how much the answer is less with a random vector of the same norm `instead` of a write, or beside it."""
    rng = torch.Generator().manual_seed(seed)
    results = np.zeros((draws, len(cases)))
    groups = defaultdict[tuple[int, int, int], list[int]](list)
    for i, case in enumerate(cases):
        groups[len(case.run), case.at(written.dest), case.at(written.src)].append(i)
    for (length, dest, _), numbers in groups.items():
        rows = [(draw, i) for draw in range(draws) for i in numbers]
        size = max(1, TOKENS // length)
        for start in range(0, len(rows), size):
            some = rows[start : start + size]
            of = [cases[i] for _, i in some]
            norms = torch.stack([written.vector(case).double().norm() for case in of]).cpu()
            vectors = torch.randn(len(of), model.dims.d_model, generator=rng, dtype=torch.float64)
            vectors *= (norms / vectors.norm(dim=1))[:, None]
            edits = [written.edit(of[0])] if instead else []
            logits = _with_vectors(model, _ids(model, of), edits, written.head[0], dest, vectors)
            for (draw, i), row in zip(some, logits, strict=True):
                results[draw, i] = cases[i].answer - score(cases[i].metric, row)
    return results


def _with_vectors(
    model: "Model", ids: Tensor, edits: Sequence[Edit], layer: int, dest: int, vectors: Float[Tensor, "row d_model"]
) -> Float[Tensor, "row vocab"]:
    """Logits at the last token, with a vector added to what the attention of a layer writes at `dest`."""

    def changed(x: Tensor, by: float) -> Tensor:
        rows = x.view(len(ids), -1, model.dims.d_model).clone()
        rows[:, dest] += (vectors.to(x.device) / by).to(x.dtype)
        return rows.view(x.shape)

    block = model.blocks[layer]
    with edited(model, edits), ExitStack() as stack, exact_matmul():
        on_write(stack, model, Notes(block, optional(block, model.family.attn)), "attention", changed)
        logits: Tensor = model.hf(ids).logits[:, -1]
        return logits


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
