"""Which model made a store? The one in hand, or loaded by its name; its fingerprint says whether it is the same."""

from typing import TYPE_CHECKING

from keyhole.errors import KeyholeError
from keyhole.models.numbers import require_same_weights
from keyhole.models.organism import source_named
from keyhole.store.store import Store

if TYPE_CHECKING:
    from keyhole.models.load import Source
    from keyhole.models.model import Model


def model_of(store: Store, model: "Model | Source | None" = None) -> "Model":
    """The model of a store's circuits; one that has other weights is refused.

    Without `model` it is loaded by the name that the store has, which for a file is its path as it was given.
    """
    from keyhole.models.load import load
    from keyhole.models.model import Model

    told = store.manifest.model
    if isinstance(model, Model):
        found = model
    else:
        name = told.get("name")
        source = source_named(name) if model is None else model
        try:
            found = load(source)
        except KeyholeError as error:
            if model is not None:
                raise
            raise KeyholeError(
                f"{store.path} was made with {name}, which cannot be loaded from here: {error}"
            ) from error
    require_same_weights(
        found.fingerprint(),
        told["fingerprint"],
        f"{store.path} was made with {told.get('name')}, and {found.name} has other weights, or the same "
        f"ones in another precision than {found.hf.dtype}: its circuits say nothing of them. Give what made it.",
    )
    return found
