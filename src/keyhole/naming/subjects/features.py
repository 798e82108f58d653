"""Which features of contrasts, and which discovered ones, can be looked for in any text? Fixed directions of q and k.

A feature that was found with queries and keys turned back by RoPE is no such direction: it is refused, unless the model
does not rotate.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from keyhole.contrast.features.finding import Feature
from keyhole.contrast.onepass.frames import Frame
from keyhole.discover.one_head import HeadFeatures
from keyhole.errors import KeyholeError
from keyhole.models.heads import Head, head_name
from keyhole.naming.subject import Subject, SubjectKind
from keyhole.naming.subjects.pairs import opposite, require_head, rotates

if TYPE_CHECKING:
    from keyhole.models.model import Model


def contrast_subjects(model: "Model", features: Sequence[Feature], frame: Frame) -> list[Subject]:
    """Every dimension of some features, with both signs; `frame` is that of the study which found them."""
    found: list[Subject] = []
    for feature in features:
        require_fixed(model, feature.head, frame, f"the feature {feature.name!r}")
        for k in range(feature.rank):
            name = f"{head_name(feature.head)} {feature.name} {k}"
            about = {"contrast": feature.name, "dimension": str(k)}
            query, key = (feature.U[:, k], 0.0), (feature.V[:, k], 0.0)
            found += _both("contrast", name, feature.head, query=query, key=key, about=about)
    return found


def discovered_subjects(model: "Model", features: HeadFeatures) -> list[Subject]:
    """Every discovered feature of a head, with both signs; the key's is turned where the two sides repel each other."""
    head = features.data.layer, features.data.head
    require_fixed(model, head, features.data.view.frame, "a discovered feature")
    found: list[Subject] = []
    for number, one in enumerate(features.found.features):
        sign = -1.0 if one.coupling < 0 else 1.0
        key = sign * one.key.direction, sign * one.key.offset
        about = {"feature": str(number), "share": f"{one.share:.3f}"}
        name = f"{head_name(head)} discovered {number}"
        query = one.query.direction, one.query.offset
        found += _both("discovered", name, head, query=query, key=key, about=about)
    return found


Direction = tuple[Tensor, float]  # and its offset


def _both(
    kind: SubjectKind, name: str, head: Head, *, query: Direction, key: Direction, about: dict[str, str]
) -> list[Subject]:
    """A subject and its opposite."""
    one = Subject(
        name, kind, head, query[0].float(), key[0].float(), query[1], key[1], {**about, "sign": "both positive"}
    )
    return [one, opposite(one)]


def require_fixed(model: "Model", head: Head, frame: Frame, what: str) -> None:
    """Refuse a frame in which a feature is no direction of queries and keys."""
    require_head(model, head)
    if frame != "post_rope" and rotates(model, head[0]):
        raise KeyholeError(
            f"{what} of head {head_name(head)} was found in the frame {frame!r}, where it turns with positions: find "
            "it again with the frame 'post_rope'."
        )
