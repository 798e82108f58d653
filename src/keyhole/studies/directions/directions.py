"""Do heads coordinate through shared directions: are there near-equal signals, and channels that serve two tasks?

Signals are those of a store's circuits in residual space, averaged per head and side. Channels are the vectors u_k and
v_k that a head uses often. Two heads of different layers are near-equal above a cosine of 0.8. As a control, near-equal
pairs are counted with other channels of the same heads. All is repeated without the mean and the largest variance of
the streams, since these make any two signals alike (anisotropy).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Unpack, get_args

import numpy as np
import torch

from keyhole.circuits.records import SideName
from keyhole.errors import KeyholeError
from keyhole.models.load import Source
from keyhole.models.model import Model
from keyhole.models.numbers import exact_matmul, require_same_weights
from keyhole.progress import Progress, Stage, quiet
from keyhole.qk.omega import omega
from keyhole.settings.fields import chosen
from keyhole.store.manifest import some_prompts
from keyhole.store.model import model_of
from keyhole.store.store import Store, open_store
from keyhole.studies.directions.alike import TAKEN, Ambient, Likeness, Moments, clusters, directions, likeness, members
from keyhole.studies.directions.heard import Heard, hear, joined, of_circuit
from keyhole.studies.directions.record import HeadUse, Place, Shared, SharedSide, Use, channel_use, compare_use
from keyhole.studies.settings import SharedOptions, SharedSettings
from keyhole.tracing.upstream import Writes

LIMIT = 0.8  # a cosine from which two signals are nearly equal
_LEAST = 4  # firings of a head that a mean signal needs
_OFTEN = 0.2  # share of a head's prompts from which a channel is used often
_BATCH = 8  # prompts side by side


def shared(
    store: Store | Path | str,
    other: Store | Path | str | None = None,
    model: Model | Source | None = None,
    *,
    settings: SharedSettings | None = None,
    stage: Stage = quiet,
    **options: Unpack[SharedOptions],
) -> Shared:
    """Do heads coordinate through shared directions, and use the same channels in two tasks?

    Args:
        store: Traced with accpp, or its folder.
        other: A store of another task of the same model: each head's channels in both are compared. Default: none.
        model: The model that made the stores. Default: it is loaded from where it was.
        settings: How heads are compared: a `keyhole.studies.settings.SharedSettings`, whose fields are the choices
            below.
        stage: Opens a part of the work by its name, and gives what its progress is reported to.
        **options: Choices by name; with a record they change it:
            - `prompts`: How many of the store's prompts are run again for their signals.
            - `draws`: How many draws of shuffled heads; prompts are dealt to two halves twice as often.
            - `seed`: Seed of everything that is drawn at random.

    Returns:
        Both sides of all heads: their cosines and near-equal pairs against controls; and the heads in both tasks.

    >>> import keyhole, tempfile
    >>> model = keyhole.load()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = keyhole.bulk("ioi", model, n=4, out=f"{folder}/ioi.store")
    ...     result = shared(store, None, model, prompts=4, draws=19)
    >>> [side.side for side in result.sides], result.tasks
    (['dest', 'src'], ())
    """
    settings = chosen(settings, SharedSettings, options)
    draws, seed = settings.draws, settings.seed
    first = store if isinstance(store, Store) else open_store(store)
    second = other if other is None or isinstance(other, Store) else open_store(other)
    stores = [first] if second is None else [first, second]
    for each in stores:
        if each.manifest.method == "svt":
            raise KeyholeError(
                f"{each.path} was traced with svt, whose channels are numbered in another basis: give a store of accpp."
            )
    if second is not None:
        models = first.manifest.model, second.manifest.model
        require_same_weights(
            models[0].get("fingerprint"),
            models[1].get("fingerprint"),
            f"{first.path} is of {models[0].get('name')}, and {second.path} of {models[1].get('name')} with other "
            "weights: their channels are not the same. Give two stores of one model.",
        )
    loaded, use = model_of(first, model), channel_use(first)
    with stage("Reading signals") as progress:
        heard, ambient, count = _signals(first, loaded, settings.prompts, progress)
    sides = []
    with stage("Comparing heads") as progress:
        for number, side in enumerate(get_args(SideName)):
            sides.append(_side(side, heard, _used(loaded, use, side), ambient, draws=draws, seed=seed))
            progress(number + 1, 2)
    tasks: tuple[HeadUse, ...] = ()
    if second is not None:
        with stage("Comparing tasks"):
            tasks = compare_use(use, channel_use(second), draws=2 * draws + 1, seed=seed)
    paths = tuple(str(each.path) for each in stores)
    return Shared(loaded.name, paths, count, LIMIT, (sides[0], sides[1]), tasks, {"draws": draws, "seed": seed})


def _signals(store: Store, model: Model, prompts: int, progress: Progress) -> tuple[list[Heard], Ambient, int]:
    """The signals of heads in some of the store's circuits, and what the streams have in common."""
    circuits = list(store.circuits({"prompt": some_prompts(store, prompts)}))
    parts, moments, layers = list[Heard](), Moments(), model.attention_layers
    with exact_matmul(), model._steady():
        for start in range(0, len(circuits), _BATCH):
            batch = circuits[start : start + _BATCH]
            writes = Writes(model.run_many([list(circuit.token_ids) for _, circuit in batch], bos=False))
            moments.add(writes, layers)
            caused = [cause for i, (_, circuit) in enumerate(batch) for cause in of_circuit(circuit, i)]
            parts += hear(writes, caused, [number for number, _ in batch])
            progress(start + len(batch), len(circuits))
    if not parts:
        raise KeyholeError(f"the circuits of {store.path} have no signals that are written: nothing to compare.")
    return joined(parts), moments.ambient(), len(circuits)


def _used(model: Model, use: Mapping[Place, Use], side: SideName) -> list[Heard]:
    """The vector of every channel that a head uses often, as if it were a signal of one firing."""
    channels = []
    for (which, layer, head), head_use in sorted(use.items()):
        if which != side or len(head_use.prompts) < _LEAST:
            continue
        om = omega(model, layer)
        basis = (om.u(head) if side == "dest" else om.v(head)).double().cpu()
        for channel in np.nonzero(head_use.often >= _OFTEN)[0].tolist():
            row = torch.zeros(1, basis.shape[1], dtype=torch.float64)
            row[0, channel] = 1.0
            prompt = torch.zeros(1, dtype=torch.long)
            channels.append(Heard(layer, head, side, prompt, row, torch.ones_like(row), row > 0, basis, {}))
    return channels


def _side(
    side: SideName, heard: Sequence[Heard], used: Sequence[Heard], ambient: Ambient, *, draws: int, seed: int
) -> SharedSide:
    compared = [each for each in heard if each.side == side and len(each) >= _LEAST]
    heads = tuple(each.place for each in compared)
    vectors = directions(compared)
    labels = clusters(vectors, 1 - LIMIT)
    groups = tuple(group for group in members(labels, heads) if len(group) > 1)
    signals = _conditions(compared, ambient, draws=draws, seed=seed, absolute=False)
    channels = _conditions(used, ambient, draws=draws, seed=seed, absolute=True)
    table = (vectors @ vectors.T).numpy() if compared else np.zeros((0, 0))
    return SharedSide(side, heads, table, groups, signals, len(used), channels)


def _conditions(
    heard: Sequence[Heard], ambient: Ambient, *, draws: int, seed: int, absolute: bool
) -> tuple[Likeness, ...]:
    """Near-equal pairs, with nothing taken out, then more and more; empty if all heads are in one layer."""
    if len({each.layer for each in heard}) < 2:
        return ()
    return tuple(
        likeness(heard, ambient.taken(top), top=top, limit=LIMIT, draws=draws, seed=seed, absolute=absolute)
        for top in TAKEN
    )
