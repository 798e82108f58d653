"""Which directions has a sparse autoencoder? The rows of its decoder, out of a safetensors file that tells its layout.

SAELens and Gemma Scope keep `W_dec` [features, d_model], EleutherAI's sparsify the same, others `decoder.weight` as
torch keeps it, [d_model, features]. Where both sides are as long, the name decides.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.errors import KeyholeError

ROWS = ("W_dec", "decoder", "dec")  # a feature per row
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
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if path.suffix != ".safetensors":
        raise KeyholeError(f"{path.name} is no .safetensors file, and only these are read: others may run code.")
    try:
        with safe_open(path, framework="pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - no mapping
            name, turned = _decoder(shapes, d_model, path.name)
            rows = file.get_tensor(name).to(torch.float32)
    except (OSError, SafetensorError) as error:
        raise KeyholeError(f"cannot read {path}: {error}.") from error
    return dictionary_of(rows.T if turned else rows, name=path.name, tensor=name)


def dictionary_of(rows: Float[Tensor, "feature d_model"], *, name: str = "directions", tensor: str = "") -> Dictionary:
    """Directions in hand, a row each, of any length."""
    if not bool(torch.isfinite(rows).all()):
        raise KeyholeError(f"{name} has directions that are not finite.")
    lengths = rows.norm(dim=1, keepdim=True)
    return Dictionary(name, tensor, rows / lengths.clamp_min(1e-12), int((lengths <= 1e-12).sum()))


def _decoder(shapes: dict[str, tuple[int, ...]], d_model: int, file: str) -> tuple[str, bool]:
    """The decoder's name, and whether features are its columns."""
    for name, shape in shapes.items():
        last = name if name in (*ROWS, *COLUMNS) else ".".join(name.split(".")[-2:])
        own = last if last in (*ROWS, *COLUMNS) else name.rsplit(".", 1)[-1]
        if own not in (*ROWS, *COLUMNS) or len(shape) != 2 or d_model not in shape:
            continue
        as_rows, as_columns = shape[1] == d_model, shape[0] == d_model
        return name, not as_rows if as_rows != as_columns else own in COLUMNS
    found = ", ".join(f"{name} {list(shape)}" for name, shape in sorted(shapes.items())[:8]) or "nothing"
    raise KeyholeError(
        f"{file} has no decoder of {d_model} dimensions. It has {found}; a decoder is called W_dec (a feature per row) "
        "or decoder.weight (a feature per column)."
    )
