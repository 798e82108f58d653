"""Which channels has a head? Each is two subjects: what u_k and v_k have in common, and what their opposites have."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from keyhole.models.heads import Head
from keyhole.naming.subject import Subject
from keyhole.naming.subjects.pairs import opposite, paired, require_head
from keyhole.naming.subjects.signals import told_coordinates
from keyhole.qk.omega import omega

if TYPE_CHECKING:
    from keyhole.models.model import Model


def channel_subjects(model: "Model", head: Head, channels: Sequence[int] | None = None) -> list[Subject]:
    """Both signs of some channels of a head, or of all that it has: "3.1:4" and "3.1:4-"."""
    layer, index = head
    require_head(model, head)
    rank = int(omega(model, layer).rank[index])
    found = []
    for channel in range(rank) if channels is None else channels:
        directions = paired(model, head, "src", [channel], coordinates=torch.ones(1))
        name = f"{layer}.{index}:{channel}"
        about = {"channels": str(channel), "coordinates": told_coordinates(torch.ones(1)), "sign": "both positive"}
        one = Subject(name, "channel", head, *directions, about=about)
        other = opposite(one)
        found += [one, Subject(f"{name}-", "channel", head, other.query, other.key, about=other.about)]
    return found
