"""Which direction did a name stand for? Made again from the channels and coordinates that it was stored with."""

from typing import TYPE_CHECKING

import torch

from keyhole.circuits.writer import SideName
from keyhole.errors import KeyholeError
from keyhole.naming.named import Named
from keyhole.naming.subject import Subject
from keyhole.naming.subjects.pairs import basis_of, paired

if TYPE_CHECKING:
    from keyhole.models.model import Model


def subject_again(model: "Model", named: Named) -> Subject:
    """The subject of a name of a signal or channel, up to the four digits of its coordinates."""
    if "coordinates" not in named.about:
        raise KeyholeError(f"{named.id} is no signal and no channel: its direction is not stored with its name.")
    channels = [int(k) for k in named.about["channels"].split(",")]
    coordinates = torch.tensor([float(x) for x in named.about["coordinates"].split(",")])
    side: SideName = "dest" if named.about.get("side") == "dest" else "src"
    directions = paired(model, named.head, side, channels, coordinates=coordinates, basis=basis_of(named.about))
    return Subject(named.id, named.kind, named.head, *directions, about=named.about)
