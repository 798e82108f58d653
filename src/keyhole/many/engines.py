"""Who traces? An engine takes blocks and gives parts back, as they are done; the driver alone writes them."""

from collections.abc import Sequence
from typing import Literal, Protocol, get_args

from keyhole.errors import require_choice
from keyhole.many.blocks import Block
from keyhole.many.local import Local
from keyhole.many.on_ray import Ray
from keyhole.many.worker import Job, Parts
from keyhole.models.model import Model

EngineName = Literal["local", "ray"]


class Engine(Protocol):
    """What `bulk` needs of one."""

    @property
    def workers(self) -> int | None:
        """How many work at the same time; None: as many as there is room for."""

    @property
    def here(self) -> bool:
        """Is this machine's speed the workers'?"""

    def trace(self, model: Model, job: Job, blocks: Sequence[Block]) -> Parts:
        """Each block with its part as soon as it is done, in any order."""


def engine_of(asked: EngineName | Engine) -> Engine:
    """An engine by its name, or as it is given."""
    if not isinstance(asked, str):
        return asked
    require_choice("engine", asked, EngineName)
    return Local() if asked == get_args(EngineName)[0] else Ray()
