"""What can be named? A direction of queries and its keys; an example of where it fires; which are the same.

What can be named? Anything that a head compares: a direction of its queries with a direction of its keys.

At (dest, src) it is worth the product of two values, read from the rotated query and key as the scores use them:

    ask_d = query . q_d + offset        offer_s = key . k_s + offset        value_ds = ask_d offer_s

Both values carry a sign: two negative ones are no match, unless that is asked for. Signals of circuits, channels of a
head, features of contrasts and discovered ones all come to this.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

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


@dataclass(frozen=True, eq=False)
class Subject:
    """Something of one head that may have a name."""

    __repr__ = brief

    id: str  # unique among those named together, and the same in every run: "9.6 dest 3 <- 7.9"
    kind: SubjectKind
    head: Head
    query: Float[Tensor, "d_head"] = field(repr=False)
    key: Float[Tensor, "d_head"] = field(repr=False)
    query_offset: float = 0.0
    key_offset: float = 0.0
    about: Mapping[str, str] = field(default_factory=dict)  # where it is from, in words: side, channels, writer


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
# In the homogeneous basis s_u and s_v have one more coordinate, which reads the constant 1. It is dropped: what it
# adds to the two values is taken off again, by their offsets.

_TURNED = str.maketrans("+-", "-+")


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
    om, ks = omega(model, head[0], basis), list(channels)
    rank = int(om.rank[head[1]])
    if not ks or max(ks) >= rank or min(ks) < 0:
        raise KeyholeError(f"head {head_name(head)} has channels 0 to {rank - 1}, and not {ks}.")
    sigma, c = om.sigma[head[1], ks].double(), coordinates.double()
    c = c.to(sigma.device)
    if not float(c.norm()) > 0:
        raise KeyholeError(f"a signal into head {head_name(head)} is zero in channels {ks}: it has no direction.")
    asked = c / sigma if side == "dest" else c * sigma  # of s_u in u_k
    G_d, G_s = om.G_d[head[1]][:, ks].double(), om.G_s[head[1]][ks].double()
    query, key = G_d @ (asked / asked.norm() / sigma), (c / c.norm()) @ G_s
    constant = (0.0, 0.0) if basis == "linear" else _constants(model, head, query, key)
    return query.to(om.sigma.dtype), key.to(om.sigma.dtype), -constant[0], -constant[1]


def _constants(model: "Model", head: Head, query: Tensor, key: Tensor) -> tuple[float, float]:
    """What a head's own biases add to the values of both directions.

    RoPE turns the biases with the position, so that there is no constant: values keep them, as in the linear basis.
    """
    if rotates(model, head[0]):
        return 0.0, 0.0
    w = model.folded(head[0])
    return float(w.b_Q[head[1]].to(query) @ query), float(w.b_K[w.kv(head[1])].to(key) @ key)


def rotates(model: "Model", layer: int) -> bool:
    """Does RoPE turn the queries of this layer? Two tokens tell."""
    turned: dict[int, bool] = {}

    def see(number: int, layer_seen: Seen) -> None:
        turned[number] = layer_seen.rotary is not None

    def look() -> bool:
        visit(model, [Encoded((0, 0), (), False)], see)
        return turned[layer]

    return model._cached_of_layer(("rotates",), layer, look)


def basis_of(about: Mapping[str, str]) -> Basis:
    """The basis that the channels of a subject are numbered in."""
    return "homogeneous" if about.get("basis") == "homogeneous" else "linear"


def opposite(subject: Subject) -> Subject:
    """The same with both signs turned: it matches where the first has two negative values."""
    turned = {key: value.translate(_TURNED) for key, value in subject.about.items() if key == "coordinates"}
    return replace(
        subject,
        id=f"{subject.id} (opposite)",
        query=-subject.query,
        key=-subject.key,
        query_offset=-subject.query_offset,
        key_offset=-subject.key_offset,
        about={**subject.about, **turned, "sign": "both negative"},
    )


# What is an example of a signal? A piece of text with one dest and one src marked, and why it was picked.

Pick = Literal["top", "decile", "random", "same pair", "other channels", "wrong src"]
NEGATIVES: tuple[Pick, ...] = ("random", "same pair", "other channels", "wrong src")
HARD: tuple[Pick, ...] = ("same pair", "other channels", "wrong src")


@dataclass(frozen=True)
class Shown:
    """A chunk of text in which a pair of tokens is marked.

    `top`: the largest values of all; `decile`: drawn from one tenth of the positive values; `random`: any visible pair.
    Hard negatives, which only attention has: `same pair`: the same two tokens as a top example, and no firing; `other
    channels`: the head attends here, but not by this signal; `wrong src`: a top example's dest with another src.
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
    """All that was kept of one signal."""

    subject: Subject
    shown: tuple[Shown, ...]
    chunks: int  # that were read
    tokens: int
    positive: float  # share of visible pairs with a positive value

    def of(self, *picks: Pick) -> tuple[Shown, ...]:
        """The examples that were picked so, in their order."""
        return tuple(one for one in self.shown if one.pick in picks)


# Which signals are the same direction? Those of one head whose queries and keys point the same way, sign and all.

SAME = 0.999  # cosine of both directions
ALIKE = 0.9  # of coordinates in the same channels: a name is then that of the other signal, too
APART = "; "  # between the ids of those that share a direction


def distinct(subjects: Sequence[Subject]) -> list[Subject]:
    """One subject for every direction, the first of each; the others' ids are kept with it ("also")."""
    found: list[Subject] = []
    others: list[list[str]] = []
    heads: dict[Head, list[int]] = {}
    for one in subjects:
        own = heads.setdefault(one.head, [])
        same = next((i for i in own if same_direction(found[i], one)), None)
        if same is None:
            own.append(len(found))
            found.append(one)
            others.append([])
        else:
            others[same].append(one.id)
    return [
        replace(one, about={**one.about, "also": APART.join(ids)}) if ids else one
        for one, ids in zip(found, others, strict=True)
    ]


def same_direction(a: Subject, b: Subject) -> bool:
    """Do both ask and offer the same, with the same sign? Offsets count, too."""
    offsets = ((a.query_offset, b.query_offset), (a.key_offset, b.key_offset))
    if not all(math.isclose(x, y, rel_tol=1 - SAME, abs_tol=1e-6) for x, y in offsets):
        return False
    sides = ((a.query, b.query), (a.key, b.key))
    return all(float(cosine_similarity(x.double(), y.double(), dim=0)) >= SAME for x, y in sides)


def alike(a: Mapping[str, str], b: Mapping[str, str]) -> float:
    """Cosine of two signals of one head by their coordinates, as `about` tells them; 0 in other channels or bases.

    In one channel the sides do not differ; in several they do, since Omega pairs queries with keys.

    >>> one = {"channels": "4", "coordinates": "+1.0000", "side": "dest"}
    >>> alike(one, {"channels": "4", "coordinates": "-1.0000"}), alike(one, {"channels": "5", "coordinates": "+1.0000"})
    (-1.0, 0.0)
    """
    if "coordinates" not in a or "coordinates" not in b:
        return 0.0
    if (a.get("channels"), a.get("basis")) != (b.get("channels"), b.get("basis")):
        return 0.0
    x, y = (np.array([float(value) for value in one["coordinates"].split(",")]) for one in (a, b))
    if len(x) != len(y) or (len(x) > 1 and a.get("side") != b.get("side")):
        return 0.0
    return float(x @ y / (np.linalg.norm(x) * np.linalg.norm(y)))
