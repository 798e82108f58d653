"""Has this head been trained before? Trained payload heads on disk: figures share them, and a restart keeps them."""

from collections.abc import Sequence
from dataclasses import fields
from itertools import groupby
from pathlib import Path
from typing import Any

from torch import Tensor

from keyhole.lab.payload.task import draw_maps
from keyhole.lab.payload.toy import Payload, PayloadSettings, train
from keyhole.lab.stored import Shelf
from keyhole.progress import Progress
from keyhole.strict import require

_TOGETHER = 16  # heads trained at once: more save little time, and a stop would lose more
_NUMBERS = ("step", "trained", "loss", "accuracy")
_WEIGHTS = ("W_Q", "W_K", "W_V", "W_O")


def trained_heads(cells: Sequence[PayloadSettings], folder: Path, progress: Progress) -> list[Payload]:
    """The head of every cell, read from the folder or else trained and kept there."""
    return HEADS.filled(folder, cells, lambda missing: _trained(missing, folder, progress))


def _trained(cells: Sequence[PayloadSettings], folder: Path, progress: Progress) -> dict[PayloadSettings, Payload]:
    heads = {}
    chunks = _chunks(cells)
    for number, chunk in enumerate(chunks):

        def told(step: int, steps: int, number: int = number) -> None:
            progress(number * steps + step, len(chunks) * steps)

        for trained in train(chunk, progress=told):
            HEADS.put(folder, trained.settings, trained)
            heads[trained.settings] = trained
    return heads


def _chunks(cells: Sequence[PayloadSettings]) -> list[list[PayloadSettings]]:
    """Cells that may share a batch, a few at a time."""
    own = {"r1", "r2", "latents", "seed", "noise", "scaled_maps"}
    shared = [field.name for field in fields(PayloadSettings) if field.name not in own]

    def key(cell: PayloadSettings) -> str:
        return str([getattr(cell, name) for name in shared])

    chunks = []
    for _, group in groupby(sorted(cells, key=key), key):
        alike = list(group)
        chunks += [alike[i : i + _TOGETHER] for i in range(0, len(alike), _TOGETHER)]
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
