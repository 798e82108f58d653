"""Which direction of keys belongs to one of queries? The one that Omega makes of it, both of unit length.

In residual space s_v = Omega^T s_u, or s_u = Omega s_v. With a signal's coordinates, a_k of a query or b_k of a key:

    dest side   s_u = sum a_k / sigma_k u_k     s_v = sum a_k v_k     query weights a_k / sigma_k^2, key weights a_k
    src side    s_u = sum sigma_k b_k u_k       s_v = sum b_k v_k     query weights b_k,             key weights b_k

Then query = G_d w and key = G_s^T w' in head space: (x_d . s_u)(x_s . s_v) is read from the rotated q and k.

In the homogeneous basis s_u and s_v have one more coordinate, which reads the constant 1. It is dropped: what it adds
to the two values is taken off again, by their offsets.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.writer import SideName
from keyhole.errors import KeyholeError
from keyhole.models.heads import Head, head_name
from keyhole.models.recording.visit import Seen, visit
from keyhole.models.tokens.prompts import Encoded
from keyhole.naming.subject import Subject
from keyhole.qk.omega import Basis, omega

if TYPE_CHECKING:
    from keyhole.models.model import Model

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
    w = model.weights(head[0])
    return float(w.b_Q[head[1]].to(query) @ query), float(w.b_K[w.kv(head[1])].to(key) @ key)


def rotates(model: "Model", layer: int) -> bool:
    """Does RoPE turn the queries of this layer? Two tokens tell."""
    turned: dict[int, bool] = {}

    def see(number: int, layer_seen: Seen) -> None:
        turned[number] = layer_seen.rotary is not None

    def look() -> bool:
        visit(model, [Encoded((0, 0), (), False)], see)
        return turned[layer]

    return model.cached_of_layer(("rotates",), layer, look)


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
