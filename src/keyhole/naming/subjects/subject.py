"""What can be named? Anything that a head compares: a direction of its queries with a direction of its keys.

At (dest, src) it is worth the product of two values, read from the rotated query and key as the scores use them:

    ask_d = query . q_d + offset        offer_s = key . k_s + offset        value_ds = ask_d offer_s

Both values carry a sign. Two negative values are no match; the subject that matches there is the `opposite`. Signals
of circuits, channels of a head, features of contrasts and discovered features are all such pairs of directions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypedDict

import numpy as np
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cosine_similarity

from keyhole.brief import Head, brief, head_name
from keyhole.circuits.records import SideName
from keyhole.errors import KeyholeError
from keyhole.models.stacks import Seen, visit
from keyhole.models.tokens import Encoded
from keyhole.qk.omega import Basis, omega

if TYPE_CHECKING:
    from keyhole.models.model import Model

SubjectKind = Literal["signal", "channel", "contrast", "discovered", "random"]


class About(TypedDict, total=False):
    """Where a subject comes from. Keys that do not apply to its kind are left out."""

    side: SideName  # which side of the head a signal or channel is read on
    channels: tuple[int, ...]  # in increasing order
    coordinates: tuple[float, ...]  # the direction within these channels, of unit length
    basis: Basis  # in which channels are numbered; left out: linear
    writer: str  # of a signal
    into: str  # the head with its two tokens
    edge: int  # index in the circuit
    prompts: int  # of a store that have this signal
    also: tuple[str, ...]  # ids of the subjects with the same direction
    sign: str  # "both positive" or "both negative"
    contrast: str  # the feature's name
    dimension: int  # of that feature
    feature: int  # index of a discovered feature
    share: float  # of the held-out gap between attended and rest, by a discovered feature
    like: str  # the subject that a random direction stands beside


@dataclass(frozen=True, eq=False)
class Subject:
    """A pair of directions in one head that may have a name."""

    __repr__ = brief

    id: str  # unique in one naming, and the same in every run: "9.6 dest 3 <- 7.9"
    kind: SubjectKind
    head: Head
    query: Float[Tensor, "d_head"] = field(repr=False)
    key: Float[Tensor, "d_head"] = field(repr=False)
    query_offset: float = 0.0
    key_offset: float = 0.0
    about: About = field(default_factory=lambda: About())


# Which direction of keys belongs to one of queries? The one that Omega makes of it, both of unit length.
#
# In residual space s_v = Omega^T s_u, or s_u = Omega s_v. With a signal's coordinates, a_k of a query or b_k of a
# key:
#
#     dest side   s_u = sum a_k / sigma_k u_k     s_v = sum a_k v_k     query weights a_k / sigma_k^2, key weights a_k
#     src side    s_u = sum sigma_k b_k u_k       s_v = sum b_k v_k     query weights b_k,             key weights b_k
#
# Then query = G_d w and key = G_s^T w' in head space: (x_d . s_u)(x_s . s_v) is read from the rotated q and k.
#
# In the homogeneous basis s_u and s_v have one more coordinate, which reads the constant 1. It is dropped: the offsets
# subtract what it adds to the two values.


def require_head(model: "Model", head: Head) -> None:
    """Refuse a head that the model does not have."""
    if head[0] not in model.attention_layers or not 0 <= head[1] < model.dims.heads:
        raise KeyholeError(f"{model.name} has no head {head_name(head)}.")


def paired(
    model: "Model",
    head: Head,
    side: SideName,
    channels: Sequence[int],
    *,
    coordinates: Float[Tensor, "channels"],
    basis: Basis = "linear",
) -> tuple[Float[Tensor, "d_head"], Float[Tensor, "d_head"], float, float]:
    """(query, key, their offsets) in head space of a signal with these coordinates in these channels, a_k or b_k."""
    om, indices = omega(model, head[0], basis), list(channels)
    rank = int(om.rank[head[1]])
    if not indices or max(indices) >= rank or min(indices) < 0:
        raise KeyholeError(f"head {head_name(head)} has channels 0 to {rank - 1}, and not {indices}.")
    sigma, values = om.sigma[head[1], indices].double(), coordinates.double()
    values = values.to(sigma.device)
    if not float(values.norm()) > 0:
        raise KeyholeError(f"a signal into head {head_name(head)} is zero in channels {indices}: it has no direction.")
    query_coordinates = values / sigma if side == "dest" else values * sigma  # of s_u in u_k
    G_d, G_s = om.G_d[head[1]][:, indices].double(), om.G_s[head[1]][indices].double()
    query, key = G_d @ (query_coordinates / query_coordinates.norm() / sigma), (values / values.norm()) @ G_s
    constant = (0.0, 0.0) if basis == "linear" else _constants(model, head, query, key)
    return query.to(om.sigma.dtype), key.to(om.sigma.dtype), -constant[0], -constant[1]


def _constants(model: "Model", head: Head, query: Tensor, key: Tensor) -> tuple[float, float]:
    """What a head's biases add to the values of both directions.

    RoPE rotates the biases with the position, so that there is no constant: values keep them, as in the linear basis.
    """
    if rotates(model, head[0]):
        return 0.0, 0.0
    w = model.folded(head[0])
    return float(w.b_Q[head[1]].to(query) @ query), float(w.b_K[w.kv(head[1])].to(key) @ key)


def rotates(model: "Model", layer: int) -> bool:
    """Does RoPE rotate the queries of this layer? A run of two tokens shows it."""
    rotating: dict[int, bool] = {}

    def see(number: int, layer_seen: Seen) -> None:
        rotating[number] = layer_seen.rotary is not None

    def look() -> bool:
        visit(model, [Encoded((0, 0), (), False)], see)
        return rotating[layer]

    return model._cached_of_layer(("rotates",), layer, look)


def basis_of(about: About) -> Basis:
    """The basis that the channels of a subject are numbered in."""
    return about.get("basis", "linear")


def unit_coordinates(values: Float[Tensor, "channels"]) -> tuple[float, ...]:
    """The direction that a signal has within its channels: its coordinates, scaled to unit length.

    >>> import torch
    >>> unit_coordinates(torch.tensor([3.0, -4.0]))
    (0.6, -0.8)
    """
    return tuple((values.double() / values.double().norm()).tolist())


def opposite(subject: Subject) -> Subject:
    """The subject with both signs turned: it fires where this one has two negative values.

    Args:
        subject: The subject.

    >>> from keyhole.naming.subjects import channel_subjects
    >>> import keyhole
    >>> opposite(channel_subjects(keyhole.load(), (3, 1), [4])[0]).about["coordinates"]
    (-1.0,)
    """
    about = About(**subject.about)
    if "coordinates" in about:
        about["coordinates"] = tuple(-value for value in about["coordinates"])
    about["sign"] = "both negative"
    return replace(
        subject,
        id=f"{subject.id} (opposite)",
        query=-subject.query,
        key=-subject.key,
        query_offset=-subject.query_offset,
        key_offset=-subject.key_offset,
        about=about,
    )


# What is an example of a signal? A chunk of text with one dest and one src marked, and why it was picked.

Pick = Literal["top", "decile", "random", "same pair", "other channels", "wrong src"]
NEGATIVES: tuple[Pick, ...] = ("random", "same pair", "other channels", "wrong src")
HARD: tuple[Pick, ...] = ("same pair", "other channels", "wrong src")


@dataclass(frozen=True)
class Shown:
    """A chunk of text in which a pair of tokens is marked. Its `pick` says how it was chosen:

    - `top`: one of the largest values; `decile`: drawn from one tenth of the positive values
    - `random`: any visible pair
    - `same pair`: the two tokens of a top example at another place, where the signal does not fire
    - `other channels`: the head attends here, but not by this signal
    - `wrong src`: the dest of a top example with another src

    The last three are hard negatives.
    """

    chunk: int  # its number in the corpus
    tokens: tuple[str, ...]
    dest: int
    src: int
    value: float  # of the signal: ask_d offer_s, zero where the signs do not match
    attention: float  # of the head
    pick: Pick
    decile: int | None = None  # 0 holds the smallest positive values


@dataclass(frozen=True)
class Examples:
    """Where one signal fires and where it does not."""

    subject: Subject
    shown: tuple[Shown, ...]
    chunks: int  # that were read
    tokens: int
    positive: float  # share of visible pairs with a positive value

    def of(self, *picks: Pick) -> tuple[Shown, ...]:
        """The examples with one of these picks, in their order."""
        return tuple(example for example in self.shown if example.pick in picks)


# Which signals are the same direction? Those of one head whose queries and keys point the same way, sign and all.

SAME = 0.999  # cosine of both directions
ALIKE = 0.9  # of coordinates in the same channels: both signals then share a name


def distinct(subjects: Sequence[Subject]) -> list[Subject]:
    """One subject for every direction, the first of each; `about["also"]` has the ids of the others."""
    kept: list[Subject] = []
    others: list[list[str]] = []
    heads: dict[Head, list[int]] = {}
    for subject in subjects:
        of_head = heads.setdefault(subject.head, [])
        same = next((i for i in of_head if same_direction(kept[i], subject)), None)
        if same is None:
            of_head.append(len(kept))
            kept.append(subject)
            others.append([])
        else:
            others[same].append(subject.id)
    return [
        replace(subject, about={**subject.about, "also": tuple(ids)}) if ids else subject
        for subject, ids in zip(kept, others, strict=True)
    ]


def same_direction(a: Subject, b: Subject) -> bool:
    """Do both have the same query and key with the same signs, and the same offsets?"""
    offsets = ((a.query_offset, b.query_offset), (a.key_offset, b.key_offset))
    if not all(math.isclose(x, y, rel_tol=1 - SAME, abs_tol=1e-6) for x, y in offsets):
        return False
    sides = ((a.query, b.query), (a.key, b.key))
    return all(float(cosine_similarity(x.double(), y.double(), dim=0)) >= SAME for x, y in sides)


def alike(a: About, b: About) -> float:
    """Cosine of two signals of one head by their coordinates; 0 in other channels or bases.

    In one channel the sides do not differ; in several they do, since Omega pairs queries with keys.

    >>> about = About(channels=(4,), coordinates=(1.0,), side="dest")
    >>> alike(about, About(channels=(4,), coordinates=(-1.0,))), alike(about, About(channels=(5,), coordinates=(1.0,)))
    (-1.0, 0.0)
    """
    if "coordinates" not in a or "coordinates" not in b:
        return 0.0
    if (a.get("channels"), basis_of(a)) != (b.get("channels"), basis_of(b)):
        return 0.0
    x, y = np.array(a["coordinates"]), np.array(b["coordinates"])
    if len(x) != len(y) or (len(x) > 1 and a.get("side") != b.get("side")):
        return 0.0
    return float(x @ y / (np.linalg.norm(x) * np.linalg.norm(y)))
