"""Are the weights of a model here? Who cannot do without them says so, and others go on."""

from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.errors import KeyholeError

if TYPE_CHECKING:
    from keyhole.models.model import Model


class MissingModelError(KeyholeError):
    """The experiment needs weights that are not here."""


def load_model(source: str | None, device: str | None = None, *, revision: str | None = None) -> "Model":
    """The model of that name, or the organism; MissingModelError if its weights cannot be found or reached."""
    from keyhole.models.load import load

    try:
        return load(source, device=device, revision=revision)
    except KeyholeError as error:
        # the hub's refusals are OSErrors: unreachable, no such name, no permission; all else is a fault worth seeing
        on_hub = source is not None and not Path(source).expanduser().exists()
        if on_hub and isinstance(error.__cause__, OSError):
            raise MissingModelError(str(error)) from error
        raise
