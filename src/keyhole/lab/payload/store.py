"""Has this head been trained before? Trained payload heads on disk: figures share them, and a restart keeps them."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import groupby
from pathlib import Path

from keyhole.errors import KeyholeError
from keyhole.lab.payload.task import draw_maps
from keyhole.lab.payload.toy import Payload, PayloadSettings, train
from keyhole.lab.stored import gathered, store, stored, weights_path
from keyhole.progress import Progress

RECIPE = 1  # of the training: raise it when the same settings give other weights, and kept heads are trained again
_TOGETHER = 16  # heads trained at once: more save little time, and a stop would lose more
_NUMBERS = ("step", "trained", "loss", "accuracy")
_WEIGHTS = ("W_Q", "W_K", "W_V", "W_O")


def trained_heads(cells: Sequence[PayloadSettings], folder: Path, progress: Progress) -> list[Payload]:
    """The head of every cell, read from the folder or else trained and kept there.

    A file that cannot be read, or that another recipe has made, is replaced.
    """
    paths = {cell: _path(folder, cell) for cell in cells}
    found = gathered(paths, lambda cell: _read(paths[cell], cell), lambda missing: _trained(missing, paths, progress))
    return [found[cell] for cell in cells]


def _trained(
    cells: Sequence[PayloadSettings], paths: Mapping[PayloadSettings, Path], progress: Progress
) -> dict[PayloadSettings, Payload]:
    heads = {}
    chunks = _chunks(cells)
    for number, chunk in enumerate(chunks):

        def told(step: int, steps: int, number: int = number) -> None:
            progress(number * steps + step, len(chunks) * steps)

        for trained in train(chunk, progress=told):
            _write(trained, paths[trained.settings])
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


def _about(cell: PayloadSettings) -> object:
    return {"settings": cell, "recipe": RECIPE}


def _path(folder: Path, cell: PayloadSettings) -> Path:
    return weights_path(folder, f"{cell.latents}-{cell.d_head}-{cell.r1}-{cell.r2}-{cell.seed}", _about(cell))


def _write(head: Payload, path: Path) -> None:
    weights, numbers = ({name: getattr(head, name) for name in names} for names in (_WEIGHTS, _NUMBERS))
    store(path, weights, _about(head.settings), **numbers)


def _read(path: Path, cell: PayloadSettings) -> Payload | None:
    """The head of a file, or None if it has to be trained."""
    try:
        weights, numbers = stored(path, _about(cell))
        # the maps follow from the cell's seed, so they need not be kept
        head = Payload(settings=cell, maps=draw_maps(cell), **{**weights, **numbers})
    except (KeyholeError, TypeError):  # no such file, or not exactly these parts in it
        return None
    return head if head.W_Q.shape == head.W_K.shape == (cell.d_head, cell.d) else None
