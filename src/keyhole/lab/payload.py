"""What is the payload toy, and how are its heads trained, once, and kept?

Can a method find the features of a head whose features are known? One head trained to retrieve payloads.

    q = W_Q x_q,  k_i = W_K x_i,  v_i = W_V x_i,  a = softmax_i(q . k_i / sqrt(d_head)),  output = W_O sum_i a_i v_i

with cross-entropy against the payload of the selected token. The task is in `task.py`.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.errors import KeyholeError
from keyhole.lab.payload_task import Maps, PayloadBatch, PayloadSettings, ceiling, draw, draw_maps, generator
from keyhole.lab.stored import Shelf
from keyhole.progress import Progress
from keyhole.strict import require

__all__ = [
    "Activations",
    "Maps",
    "Payload",
    "PayloadBatch",
    "PayloadSettings",
    "accuracy",
    "activations",
    "batches",
    "ceiling",
    "sample",
    "train",
]

VALIDATION = (20, 512)  # batches of a fixed set, and their size
_TOGETHER = (
    *("d_head", "d", "context", "payloads", "lr", "weight_decay", "batch"),
    *("max_steps", "check_every", "patience", "min_gain"),
)
_Weights = tuple[Tensor, Tensor, Tensor, Tensor]  # W_Q, W_K, W_V [cell d_head d] and W_O [cell payload d_head]


@dataclass(frozen=True)
class Payload:
    """A trained cell with the truth that its data came from."""

    settings: PayloadSettings
    maps: Maps
    W_Q: Float[Tensor, "d_head d"]
    W_K: Float[Tensor, "d_head d"]
    W_V: Float[Tensor, "d_head d"]
    W_O: Float[Tensor, "payload d_head"]
    step: int  # after which these weights were kept
    trained: int  # steps until this cell stopped
    loss: float  # on the validation set
    accuracy: float  # on the validation set

    @property
    def ceiling(self) -> float:
        """The accuracy that repeated latents leave; NaN where none repeat."""
        return ceiling(self.settings)


@dataclass(frozen=True)
class Activations:
    """What the head computes on a batch."""

    q: Float[Tensor, "sample d_head"]
    k: Float[Tensor, "sample token d_head"]
    logits: Float[Tensor, "sample token"]  # scaled by 1 / sqrt(d_head)
    attention: Float[Tensor, "sample token"]
    output: Float[Tensor, "sample payload"]


def sample(cell: Payload, n: int, seed: int = 0) -> PayloadBatch:
    """Fresh samples of the cell's task; other random numbers than those it was trained on."""
    if n < 1:
        raise KeyholeError(f"{n} samples were asked for: give n, a positive number.")
    return draw(cell.settings, cell.maps, n, generator(seed, "sample"))


def batches(cell: Payload, n: int, seed: int = 0) -> Iterator[PayloadBatch]:
    """The same task in pieces of 512: for more samples than one wants in memory."""
    if n < 1:
        raise KeyholeError(f"{n} samples were asked for: give n, a positive number.")
    stream, size = generator(seed, "sample"), 512
    for start in range(0, n, size):
        yield draw(cell.settings, cell.maps, min(size, n - start), stream)


def activations(cell: Payload, batch: PayloadBatch) -> Activations:
    """What do the selectors ask and the tokens offer, and where does the head look?"""
    q, k = batch.x_q @ cell.W_Q.T, batch.x @ cell.W_K.T
    logits = torch.einsum("nh,nth->nt", q, k) / math.sqrt(cell.settings.d_head)
    attention = logits.softmax(-1)
    mixed = torch.einsum("nt,ntd->nd", attention, batch.x)
    return Activations(q, k, logits, attention, mixed @ cell.W_V.T @ cell.W_O.T)


def accuracy(cell: Payload, *, samples: int = 10_240, seed: int = 0) -> float:
    """How often is the largest output the right payload, on fresh samples?"""
    right = [activations(cell, b).output.argmax(-1) == b.answer for b in batches(cell, samples, seed)]
    return float(torch.cat(right).double().mean())


def train(cells: Sequence[PayloadSettings], *, progress: Callable[[int, int], None] | None = None) -> list[Payload]:
    """Trains many cells at once, each on its own data stream, so that none knows of the others.

    Cells may differ in ranks, latents, noise, maps and seed. `progress(step, max_steps)` is called as training goes.

    Args:
        cells: The heads, one setting each.
        progress: Called with the step, and how many there are at most.

    >>> train([PayloadSettings(2, 2, 4, max_steps=1, batch=8)])[0].W_Q.shape
    torch.Size([4, 32])
    """
    _require_together(cells)
    maps = [draw_maps(settings) for settings in cells]
    streams = [generator(settings.seed, "data") for settings in cells]
    weights = _initial(cells)
    # AdamW acts on every number by itself and the losses are summed: no cell feels another
    optimiser = torch.optim.AdamW(weights, lr=cells[0].lr, weight_decay=cells[0].weight_decay, fused=True)
    best = _Best(cells, maps, weights)
    last = cells[0].max_steps
    for step in range(1, last + 1):
        loss, _ = _loss(weights, [draw(s, m, s.batch, g) for s, m, g in zip(cells, maps, streams, strict=True)])
        optimiser.zero_grad()
        loss.sum().backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        done = best.check(weights, step, final=step == last)
        if progress is not None and (done or step % 50 == 0):
            progress(step, last)
        if done:
            break
    return best.payloads()


class _Best:
    """The best state of every cell so far, and which cells still hope for a better one."""

    def __init__(self, cells: Sequence[PayloadSettings], maps: Sequence[Maps], weights: _Weights) -> None:
        n = len(cells)
        self.cells, self.maps = cells, maps
        self.weights = [w.detach().clone() for w in weights]
        self.loss, self.accuracy = torch.full((n,), math.inf), torch.zeros(n)
        self.step, self.trained, self.waited = (torch.zeros(n, dtype=torch.int64) for _ in range(3))
        self.running = torch.ones(n, dtype=torch.bool)

    def check(self, weights: _Weights, step: int, final: bool) -> bool:
        """Validates when it is time; True when no cell trains on. A stopped cell idles along, unused."""
        settings = self.cells[0]
        every = settings.check_every
        if not (final or (every is not None and (step == 1 or step % every == 0))):
            return False
        loss, accuracy = _validate(weights, self.cells, self.maps)
        better = self.running & (loss < self.loss - settings.min_gain)
        for kept, current in zip(self.weights, weights, strict=True):
            kept[better] = current.detach()[better]
        self.loss[better], self.accuracy[better], self.step[better] = loss[better], accuracy[better], step
        self.waited = torch.where(better, 0, self.waited + 1)
        self.trained[self.running] = step
        self.running &= self.waited < settings.patience
        return final or not bool(self.running.any())

    def payloads(self) -> list[Payload]:
        """The restored cells."""
        if not bool(self.loss.isfinite().all()):
            raise KeyholeError("training diverged: the validation loss is not finite. Use a smaller lr or noise.")
        W_Q, W_K, W_V, W_O = self.weights
        return [
            Payload(
                settings=settings,
                maps=self.maps[c],
                W_Q=W_Q[c].clone(),
                W_K=W_K[c].clone(),
                W_V=W_V[c].clone(),
                W_O=W_O[c].clone(),
                step=int(self.step[c]),
                trained=int(self.trained[c]),
                loss=float(self.loss[c]),
                accuracy=float(self.accuracy[c]),
            )
            for c, settings in enumerate(self.cells)
        ]


def _initial(cells: Sequence[PayloadSettings]) -> _Weights:
    """Uniform in +-1/sqrt(fan in), the default of a linear layer."""
    streams = [generator(settings.seed, "init") for settings in cells]
    d, h, P = cells[0].d, cells[0].d_head, cells[0].payloads

    def matrix(rows: int, columns: int) -> Tensor:
        uniform = torch.stack([torch.rand(rows, columns, generator=stream) for stream in streams])
        return ((2 * uniform - 1) / math.sqrt(columns)).requires_grad_()

    return matrix(h, d), matrix(h, d), matrix(h, d), matrix(P, h)


def _loss(
    weights: _Weights, data: Sequence[PayloadBatch]
) -> tuple[Float[Tensor, "cell"], Float[Tensor, "cell sample"]]:
    """Cross-entropy of every cell, and which samples it gets right.

    Keys and values are never formed: q . W_K x = (W_K^T q) . x and sum_i a_i W_V x_i = W_V sum_i a_i x_i, so that a
    step reads every token a few times and multiplies no matrix per token.
    """
    W_Q, W_K, W_V, W_O = weights
    x, x_q = torch.stack([b.x for b in data]), torch.stack([b.x_q for b in data])
    answer = torch.stack([b.answer for b in data])
    wanted = x_q @ W_Q.mT @ W_K / math.sqrt(W_Q.shape[1])  # [cell sample d]
    attention = (x @ wanted[..., None])[..., 0].softmax(-1)  # [cell sample token]
    mixed = (attention[:, :, None] @ x)[:, :, 0]
    output = mixed @ W_V.mT @ W_O.mT
    loss = -output.log_softmax(-1).gather(-1, answer[..., None])[..., 0].mean(-1)
    return loss, (output.argmax(-1) == answer).float()


@torch.no_grad()
def _validate(
    weights: _Weights, cells: Sequence[PayloadSettings], maps: Sequence[Maps]
) -> tuple[Float[Tensor, "cell"], Float[Tensor, "cell"]]:
    """Loss and accuracy on each cell's fixed set, which its seed redraws every time instead of staying in memory."""
    streams = [generator(settings.seed, "validation") for settings in cells]
    n, size = VALIDATION
    loss, right = torch.zeros(len(cells)), torch.zeros(len(cells))
    for _ in range(n):
        part, hits = _loss(weights, [draw(s, m, size, g) for s, m, g in zip(cells, maps, streams, strict=True)])
        loss, right = loss + part / n, right + hits.mean(-1) / n
    return loss, right


def _require_together(cells: Sequence[PayloadSettings]) -> None:
    if not cells:
        raise KeyholeError("there are no cells to train: give at least one PayloadSettings.")
    for name in _TOGETHER:
        values = {getattr(settings, name) for settings in cells}
        if len(values) > 1:
            listed = " and ".join(sorted(map(str, values)))
            raise KeyholeError(
                f"cells with {name} {listed} cannot be trained together: they share one batch. Train each {name} apart."
            )


# Has this head been trained before? Trained payload heads on disk: figures share them, and a restart keeps them.

_AT_ONCE = 16  # heads trained at once: more save little time, and a stop would lose more
_NUMBERS = ("step", "trained", "loss", "accuracy")
_WEIGHTS = ("W_Q", "W_K", "W_V", "W_O")


def trained_heads(cells: Sequence[PayloadSettings], folder: Path, progress: Progress) -> list[Payload]:
    """The head of every cell, read from the folder or else trained and kept there."""
    return HEADS.filled(folder, cells, lambda missing: _trained(missing, folder, progress))


def _trained(cells: Sequence[PayloadSettings], folder: Path, progress: Progress) -> dict[PayloadSettings, Payload]:
    heads = {}
    chunks = _chunks(cells)
    for number, chunk in enumerate(chunks):

        def report(step: int, steps: int, number: int = number) -> None:
            progress(number * steps + step, len(chunks) * steps)

        for trained in train(chunk, progress=report):
            HEADS.put(folder, trained.settings, trained)
            heads[trained.settings] = trained
    return heads


def _chunks(cells: Sequence[PayloadSettings]) -> list[list[PayloadSettings]]:
    """Cells that may share a batch, a few at a time."""
    may_differ = {"r1", "r2", "latents", "seed", "noise", "scaled_maps"}
    shared = [field.name for field in fields(PayloadSettings) if field.name not in may_differ]

    def key(cell: PayloadSettings) -> str:
        return str([getattr(cell, name) for name in shared])

    chunks = []
    for _, group in groupby(sorted(cells, key=key), key):
        alike = list(group)
        chunks += [alike[i : i + _AT_ONCE] for i in range(0, len(alike), _AT_ONCE)]
    return chunks


def _parts(head: Payload) -> tuple[dict[str, Tensor], dict[str, object]]:
    return {name: getattr(head, name) for name in _WEIGHTS}, {name: getattr(head, name) for name in _NUMBERS}


def _whole(cell: PayloadSettings, weights: dict[str, Tensor], numbers: dict[str, Any]) -> Payload:
    # the maps follow from the cell's seed, so they need not be kept
    head = Payload(settings=cell, maps=draw_maps(cell), **{**weights, **numbers})
    require(head.W_Q.shape == head.W_K.shape == (cell.d_head, cell.d), "its weights are of another shape.")
    return head


HEADS = Shelf[PayloadSettings, Payload](
    recipe=1,
    name=lambda cell: f"{cell.latents}-{cell.d_head}-{cell.r1}-{cell.r2}-{cell.seed}",
    parts=_parts,
    whole=_whole,
)
