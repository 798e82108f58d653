"""Where do workers get the model from? By its name, as the driver did; its fingerprint says whether it is the same."""

import os
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from keyhole.errors import KeyholeError
from keyhole.files import user_path
from keyhole.models.loading.load import load
from keyhole.models.model import Model
from keyhole.models.numbers.stamps import require_same_weights
from keyhole.models.organism import source_named


@dataclass(frozen=True)
class ModelSource:
    """All that a worker needs to load a model, and to know it again."""

    name: str  # what the model is called here, and so in its circuits
    path: str | None  # as `keyhole.load` takes it
    revision: str | None
    dtype: str
    device: str
    spread: bool  # over several devices
    fingerprint: str


def source_of(model: Model) -> ModelSource:
    """Where another process finds this model. Paths are made absolute: workers may stand elsewhere."""
    path = user_path(model.name)
    organism, here = source_named(model.name) is None, os.path.exists(path)
    return ModelSource(
        name=model.name,
        path=None if organism else str(path.resolve()) if here else model.name,
        revision=None if organism or here else getattr(model.hf.config, "_commit_hash", None),
        dtype=str(model.hf.dtype).removeprefix("torch."),
        device=model.hf.device.type,
        spread=len(getattr(model.hf, "hf_device_map", {})) > 1,
        fingerprint=model.fingerprint(),
    )


@lru_cache(maxsize=1)
def load_again(source: ModelSource) -> Model:
    """The same model in another process, kept there; one that cannot be loaded, or is another, is refused."""
    where: dict[str, Any] = {"device_map": "auto"} if source.spread else {"device": source.device}
    try:
        found = load(source.path, revision=source.revision, dtype=getattr(torch, source.dtype), **where)
    except KeyholeError as error:
        raise KeyholeError(
            f"a worker cannot load the model: {error} Workers load it by its name or path: save a model in hand "
            "(save_pretrained) where every worker finds it and load that folder, or trace with one local worker."
        ) from error
    require_same_weights(
        found.fingerprint(),
        source.fingerprint,
        f"a worker found other weights under {source.name} than this process has ({found.fingerprint()[:12]}, not "
        f"{source.fingerprint[:12]}): give every worker the same files, or trace with one local worker.",
    )
    return replace(found, name=source.name)
