"""Which directions has a sparse autoencoder? The rows of its decoder, out of a file whose names tell its layout.

SAELens and EleutherAI's sparsify keep `W_dec` [features, d_model], Gemma Scope the same in numpy's .npz (its second
edition `w_dec`, in safetensors), others `decoder.weight` as torch keeps it, [d_model, features]. Where both sides are
as long, the name decides.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from safetensors import safe_open
from torch import Tensor

from keyhole.errors import KeyholeError
from keyhole.strict import shortened

ROWS = ("W_dec", "w_dec", "decoder", "dec")  # a feature per row
COLUMNS = ("decoder.weight", "W_d", "dec.weight")  # a feature per column


@dataclass(frozen=True, eq=False)
class Dictionary:
    """Directions of unit length, and where they are from."""

    name: str
    tensor: str  # its name in the file
    directions: Float[Tensor, "feature d_model"]
    dead: int  # features without a direction, which are left as zeros

    def __len__(self) -> int:
        return len(self.directions)

    def __repr__(self) -> str:
        size = f"{len(self):,} features of {self.directions.shape[1]} dimensions"
        return f"<Dictionary of {size}, {self.name}: {self.tensor}>"


def read_dictionary(path: str | Path, d_model: int) -> Dictionary:
    """The decoder of an autoencoder of `d_model` dimensions; what has none is refused with what was found."""
    path = Path(path)
    if path.suffix.lower() not in (".safetensors", ".npz"):
        raise KeyholeError(
            f"{path.name} is no .safetensors or .npz file, and only these are read: others may run code."
        )
    try:
        name, held, turned = (_from_arrays if path.suffix.lower() == ".npz" else _from_tensors)(path, d_model)
    except KeyholeError:
        raise
    except Exception as error:  # of damaged bytes numpy and zipfile raise everything from KeyError to MemoryError
        raise KeyholeError(f"cannot read {path}: {shortened(str(error) or type(error).__name__)}.") from error
    rows = held.to(torch.float32)
    return dictionary_of(rows.T if turned else rows, name=path.name, tensor=name)


def _from_tensors(path: Path, d_model: int) -> tuple[str, Tensor, bool]:
    """The decoder, its name, and whether features are its columns; other tensors are not read."""
    with safe_open(path, framework="pt") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - no mapping
        name, turned = _decoder(shapes, d_model, path.name)
        return name, file.get_tensor(name), turned


def _from_arrays(path: Path, d_model: int) -> tuple[str, Tensor, bool]:
    """The same out of a file of numpy's."""
    with np.load(path, allow_pickle=False) as file:
        shapes = {name: file[name].shape for name in file.files}  # one at a time in memory
        name, turned = _decoder(shapes, d_model, path.name)
        return name, torch.from_numpy(file[name]), turned


def dictionary_of(rows: Float[Tensor, "feature d_model"], *, name: str = "directions", tensor: str = "") -> Dictionary:
    """Directions in hand, a row each, of any length."""
    if not bool(torch.isfinite(rows).all()):
        raise KeyholeError(f"{name} has directions that are not finite.")
    lengths = rows.norm(dim=1, keepdim=True)
    return Dictionary(name, tensor, rows / lengths.clamp_min(1e-12), int((lengths <= 1e-12).sum()))


def _decoder(shapes: dict[str, tuple[int, ...]], d_model: int, file: str) -> tuple[str, bool]:
    """The decoder's name, and whether features are its columns."""
    known = {
        name: own for name, shape in shapes.items() if (own := _known(name)) and len(shape) == 2 and d_model in shape
    }
    if len(known) > 1:
        raise KeyholeError(
            f"{file} has several decoders ({', '.join(sorted(known)[:8])}): save the one that you mean in a file of "
            "its own, or give its rows to dictionary_of."
        )
    for name, own in known.items():
        as_rows, as_columns = shapes[name][1] == d_model, shapes[name][0] == d_model
        return name, not as_rows if as_rows != as_columns else own in COLUMNS
    found = ", ".join(f"{name} {list(shape)}" for name, shape in sorted(shapes.items())[:8]) or "nothing"
    raise KeyholeError(
        f"{file} has no decoder of {d_model} dimensions. It has {found}; a decoder is called W_dec (a feature per row) "
        "or decoder.weight (a feature per column)."
    )


def _known(name: str) -> str | None:
    """What a tensor is called by those who keep decoders, without the modules that it is in; None: it is no decoder.

    >>> _known("layers.3.mlp.W_dec"), _known("model.decoder.weight"), _known("decoder.bias")
    ('W_dec', 'decoder.weight', None)
    """
    parts = name.split(".")
    return next((own for own in (".".join(parts[-2:]), parts[-1]) if own in (*ROWS, *COLUMNS)), None)
