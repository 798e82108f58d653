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

    A model with other weights is refused.

    Args:
        store: The store.
        model: The model, if it is at hand. Default: it is loaded by the name that the store has, which for a file is
            its path as it was given.

    >>> import keyhole
    >>> from tempfile import TemporaryDirectory
    >>> from keyhole.store import make_store, manifest_of
    >>> from keyhole.tasks import ioi
    >>> model = keyhole.load()
    >>> about = {"name": "organism", "fingerprint": model.fingerprint()}
    >>> manifest = manifest_of(ioi(2), model=about, settings={}, task={}, versions={})
    >>> with TemporaryDirectory() as folder:
    ...     model_of(make_store(f"{folder}/ioi.store", manifest), model) is model
    True
    """
    from keyhole.models.load import load
    from keyhole.models.model import Model

    facts = store.manifest.model
    if isinstance(model, Model):
        loaded = model
    else:
        name = facts.get("name")
        source = source_named(name) if model is None else model
        try:
            loaded = load(source)
        except KeyholeError as error:
            if model is not None:
                raise
            raise KeyholeError(
                f"{store.path} was made with {name}, which cannot be loaded from here: {error}"
            ) from error
    require_same_weights(
        loaded.fingerprint(),
        facts["fingerprint"],
        f"{store.path} was made with {facts.get('name')}, and {loaded.name} has other weights, or the same "
        f"ones in another precision than {loaded.hf.dtype}: its circuits say nothing of them. Give what made it.",
    )
    return loaded
