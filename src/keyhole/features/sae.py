"""Which directions of a sparse autoencoder are nearest to a signal, compared with random ones?

The directions are the rows of its decoder, read from a file whose tensor names show its layout.

SAELens and EleutherAI's sparsify keep `W_dec` [features, d_model], Gemma Scope the same in numpy's .npz (its second
edition `w_dec`, in safetensors), others `decoder.weight` as torch keeps it, [d_model, features]. Where both sides are
as long, the name decides.
"""

from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from safetensors import safe_open
from torch import Tensor

from keyhole.circuits.circuit import Circuit
from keyhole.errors import KeyholeError
from keyhole.intervene.cuts import fresh_run
from keyhole.strict import shortened
from keyhole.tracing.firing import Firing
from keyhole.tracing.why import Flavour, signal_vector

if TYPE_CHECKING:
    from keyhole.models.model import Model

ROWS = ("W_dec", "w_dec", "decoder", "dec")  # a feature per row
COLUMNS = ("decoder.weight", "W_d", "dec.weight")  # a feature per column


@dataclass(frozen=True, eq=False)
class Dictionary:
    """Directions of unit length, and the file that they were read from."""

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
    """Read the decoder of an autoencoder of `d_model` dimensions from a .safetensors or .npz file.

    Args:
        path: A .safetensors or .npz file.
        d_model: Dimensions of the model's residual stream.

    >>> read_dictionary("x.pt", 16)
    Traceback (most recent call last):
    keyhole.errors.KeyholeError: x.pt is no .safetensors or .npz file, and only these are read: others may run code.
    """
    path = Path(path)
    if path.suffix.lower() not in (".safetensors", ".npz"):
        raise KeyholeError(
            f"{path.name} is no .safetensors or .npz file, and only these are read: others may run code."
        )
    try:
        name, held, turned = (_from_arrays if path.suffix.lower() == ".npz" else _from_tensors)(path, d_model)
    except KeyholeError:
        raise
    except Exception as error:  # for damaged files, numpy and zipfile raise anything from KeyError to MemoryError
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
    """The same for a file of numpy."""
    with np.load(path, allow_pickle=False) as file:
        shapes = {name: file[name].shape for name in file.files}  # one at a time in memory
        name, turned = _decoder(shapes, d_model, path.name)
        return name, torch.from_numpy(file[name]), turned


def dictionary_of(rows: Float[Tensor, "feature d_model"], *, name: str = "directions", tensor: str = "") -> Dictionary:
    """A dictionary of directions in memory, a row each, of any length.

    Args:
        rows: A direction a row, of any length but 0.
        name: What the dictionary is called.
        tensor: The name of the tensor that it came from.

    >>> len(dictionary_of(torch.eye(4)))
    4
    """
    if not bool(torch.isfinite(rows).all()):
        raise KeyholeError(f"{name} has directions that are not finite.")
    lengths = rows.norm(dim=1, keepdim=True)
    return Dictionary(name, tensor, rows / lengths.clamp_min(1e-12), int((lengths <= 1e-12).sum()))


def _decoder(shapes: dict[str, tuple[int, ...]], d_model: int, file: str) -> tuple[str, bool]:
    """The decoder's name, and whether features are its columns."""
    known = {
        name: stem for name, shape in shapes.items() if (stem := _known(name)) and len(shape) == 2 and d_model in shape
    }
    if len(known) > 1:
        raise KeyholeError(
            f"{file} has several decoders ({', '.join(sorted(known)[:8])}): save the one that you mean in a file of "
            "its own, or give its rows to dictionary_of."
        )
    for name, stem in known.items():
        as_rows, as_columns = shapes[name][1] == d_model, shapes[name][0] == d_model
        return name, not as_rows if as_rows != as_columns else stem in COLUMNS
    listed = ", ".join(f"{name} {list(shape)}" for name, shape in sorted(shapes.items())[:8]) or "nothing"
    raise KeyholeError(
        f"{file} has no decoder of {d_model} dimensions. It has {listed}; a decoder is called W_dec (a feature per "
        "row) or decoder.weight (a feature per column)."
    )


def _known(name: str) -> str | None:
    """The name of a decoder's tensor without the modules that it is in; None if it is no decoder.

    >>> _known("layers.3.mlp.W_dec"), _known("model.decoder.weight"), _known("decoder.bias")
    ('W_dec', 'decoder.weight', None)
    """
    parts = name.split(".")
    return next((stem for stem in (".".join(parts[-2:]), parts[-1]) if stem in (*ROWS, *COLUMNS)), None)


# The features of a dictionary that make up a signal: the nearest directions, and how much of it they span together.
#
# A cosine in many dimensions is small by chance, but the largest of many is not: it is compared with the largest of as
# many random directions, and the span of the best directions with that of the best random ones. Directions are chosen
# one by one (orthogonal matching pursuit), each by the residual of those before it; signs are not changed.

DRAWS = 5  # of random dictionaries


@dataclass(frozen=True)
class Feature:
    """A direction of the dictionary, compared with a vector."""

    index: int
    cosine: float  # with the vector itself; below 0: the vector points away from it
    share: float  # of the vector's squared length that this and all features before it span together


@dataclass(frozen=True)
class Nearest:
    """The features nearest to a vector, best first, and what random directions reach."""

    dictionary: str
    features: tuple[Feature, ...]
    random_cosine: float  # mean of the largest |cosine| of as many random directions
    random_share: float  # mean share that as many of these span, chosen in the same way
    size: int  # features of the dictionary
    length: float  # of the vector

    @property
    def share(self) -> float:
        """The share that all these features span together."""
        return self.features[-1].share if self.features else 0.0

    @property
    def verdict(self) -> str:
        """The comparison with chance, in words; a single vector gives no significance."""
        best = abs(self.features[0].cosine) if self.features else 0.0
        if best <= self.random_cosine:
            return "no feature is nearer than the nearest of as many random directions"
        return f"the nearest feature is {best / self.random_cosine:.1f} times as near as the nearest random direction"

    def __str__(self) -> str:
        lines = [f"{self.dictionary}, {self.size:,} features: {self.verdict}"]
        lines += [
            f"  {feature.index:>7}  cosine {feature.cosine:+.3f}  together {feature.share:.1%}"
            for feature in self.features
        ]
        best = f"cosine {self.random_cosine:.3f}, together {self.random_share:.1%}"
        return "\n".join([*lines, f"   random  {best} (mean of {DRAWS} dictionaries)"])


def nearest_features(vector: Float[Tensor, "d_model"], decoder: Dictionary, *, top: int = 10, seed: int = 0) -> Nearest:
    """The `top` features of a dictionary that are nearest to a vector, e.g. `firing.vector(signal)`.

    Args:
        vector: A direction of the residual stream.
        decoder: The dictionary.
        top: How many features are returned.
        seed: Seed of the random directions beside them.

    >>> nearest = nearest_features(torch.tensor([0.0, 2.0, 0.0]), dictionary_of(torch.eye(3)), top=1)
    >>> nearest.features[0].index, round(nearest.features[0].cosine, 3)
    (1, 1.0)
    """
    if vector.shape[0] != decoder.directions.shape[1]:
        raise KeyholeError(
            f"the vector has {vector.shape[0]} dimensions, and {decoder.name} has {decoder.directions.shape[1]}: it is "
            "of another model, or of another place than the residual stream."
        )
    x = vector.detach().to("cpu", torch.float64)
    length = float(x.norm())
    if not 0 < length < float("inf"):
        raise KeyholeError("a vector that is zero or not finite is near to nothing.")
    if top < 1:
        raise KeyholeError(f"ask for at least one feature, not for {top}.")
    if len(decoder) == decoder.dead:
        raise KeyholeError(f"{decoder.name} has no feature with a direction: all {len(decoder):,} are zero.")
    top = min(top, len(decoder) - decoder.dead, len(x))
    x = x / length
    chosen, shares = _pursuit(x, decoder.directions, top)
    generator = torch.Generator().manual_seed(seed)
    random = [_random(x, len(decoder) - decoder.dead, top, generator) for _ in range(DRAWS)]
    cosines = (decoder.directions[chosen].double() @ x).tolist()
    features = tuple(Feature(*values) for values in zip(chosen, cosines, shares, strict=True))
    chance = [mean(values) for values in zip(*random, strict=True)]
    return Nearest(decoder.name, features, chance[0], chance[1], len(decoder), length)


def _pursuit(x: Tensor, directions: Tensor, top: int) -> tuple[list[int], list[float]]:
    """Orthogonal matching pursuit: the next direction is the one closest to the residual."""
    chosen, shares, left = list[int](), list[float](), x
    dead = (directions == 0).all(1)  # features without a direction
    for _ in range(top):
        along = (directions @ left.to(directions.dtype)).abs()
        along[chosen], along[dead] = -1.0, -1.0
        chosen.append(int(along.argmax()))
        basis = _span(directions[chosen].double())
        left = x - basis @ (basis.T @ x)
        shares.append(1.0 - float(left @ left))
    return chosen, shares


def _span(rows: Tensor) -> Tensor:
    """An orthonormal basis of the span of some directions, as columns; repeated directions add nothing."""
    _, lengths, basis = torch.linalg.svd(rows, full_matrices=False)
    kept: Tensor = basis[lengths > 1e-6 * lengths[0]]  # directions are float32
    return kept.T


def _random(x: Tensor, size: int, top: int, generator: torch.Generator) -> tuple[float, float]:
    """The largest cosine, and the span of the best, of as many random directions."""
    drawn = torch.randn(size, len(x), generator=generator)
    drawn /= drawn.norm(dim=1, keepdim=True)
    chosen, shares = _pursuit(x, drawn, top)
    return abs(float(drawn[chosen[0]].double() @ x)), shares[-1]


# The vector of a circuit's signal: what its writer put into the channels, in the space of a dictionary's directions.
#
# `raw` vectors are parts of the residual stream as it was written, which is what autoencoders are trained on;
# `rotated` ones are what the head compares.


def edge_vector(
    circuit: Circuit, edge: int, model: "Model | None" = None, *, flavour: Flavour = "raw"
) -> Float[Tensor, "d_model"]:
    """The signal of an edge, by its number; a circuit from a file needs the `model` that made it.

    Args:
        circuit: A circuit.
        edge: The number of one of its edges.
        model: The model that made it, which a circuit from a file needs.
        flavour: Which vector of the signal.

    >>> import keyhole
    >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
    >>> circuit = run.trace("Mary", through="heads")
    >>> edge_vector(circuit, signal_numbers(circuit)[0]).shape
    torch.Size([128])
    """
    if not 0 <= edge < len(circuit.edges):
        raise KeyholeError(f"there is no edge {edge}: this circuit has edges 0 to {len(circuit.edges) - 1}.")
    signal_edge = circuit.edges[edge]
    into, weight = circuit.nodes[signal_edge.receiver], circuit.attention[signal_edge.receiver]
    if signal_edge.side not in ("dest", "src"):
        raise KeyholeError(f"edge {edge} ends at an answer, an MLP or a value: it is no signal, and has no channels.")
    assert into.layer is not None and into.head is not None and weight is not None
    run = fresh_run(circuit, model)
    firing = Firing(into.layer, into.head, into.dest, into.src, weight, 0.0, 0, (), run)
    signal = circuit.signal(signal_edge)
    return signal_vector(firing, signal, flavour=flavour)


def signal_numbers(circuit: Circuit) -> list[int]:
    """Indices of the edges that have a vector, strongest first; a head's own constants have none.

    Args:
        circuit: A circuit.

    >>> import keyhole
    >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
    >>> circuit = run.trace("Mary", through="heads")
    >>> len(signal_numbers(circuit)) <= len(circuit.edges)
    True
    """
    signals = [i for i, edge in enumerate(circuit.edges) if edge.side in ("dest", "src")]
    written = [i for i in signals if circuit.nodes[circuit.edges[i].sender].kind != "offset"]
    return sorted(written, key=lambda i: -circuit.edges[i].weight)
