"""Do heads coordinate through shared directions?

Are there near-equal signals over all heads and layers, and channels that serve several tasks?

Signals are those of a store's circuits, in residual space, as means per head and side; channels are the vectors u_k and
v_k that a head uses often. Pairs of heads in different layers are near-equal above a cosine of 0.8; the control counts
them with other channels of the same heads. Streams' mean and largest variance are taken out as well, as anisotropy.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

import numpy as np
import torch

from keyhole.circuits.records import SideName
from keyhole.errors import KeyholeError
from keyhole.models.load import Source
from keyhole.models.model import Model
from keyhole.models.numbers import exact_matmul, require_same_weights
from keyhole.progress import Progress, Stage, quiet
from keyhole.qk.omega import omega
from keyhole.store.manifest import some_prompts
from keyhole.store.model import model_of
from keyhole.store.store import Store, open_store
from keyhole.studies.directions.alike import TAKEN, Ambient, Likeness, Moments, clusters, directions, likeness, members
from keyhole.studies.directions.heard import Heard, hear, joined, of_circuit
from keyhole.studies.directions.record import HeadUse, Place, Shared, SharedSide, Use, channel_use, compare_use
from keyhole.tracing.upstream import Writes

LIMIT = 0.8  # a cosine from which two signals are nearly equal
_LEAST = 4  # firings of a head, without which it has no mean signal
_OFTEN = 0.2  # of a head's prompts: a channel that is used so often
_BATCH = 8  # prompts side by side


def shared(
    store: Store | Path | str,
    other: Store | Path | str | None = None,
    model: Model | Source | None = None,
    *,
    prompts: int = 64,
    draws: int = 99,
    seed: int = 0,
    stage: Stage = quiet,
) -> Shared:
    """Compare heads over so many of a store's prompts, run anew; with `other`, all heads' channels in both tasks."""
    one, two = (None if x is None else x if isinstance(x, Store) else open_store(x) for x in (store, other))
    assert one is not None
    for each in (x for x in (one, two) if x is not None and x.manifest.method == "svt"):
        raise KeyholeError(
            f"{each.path} was traced with {each.manifest.method}, whose channels are numbered in another basis: give a "
            "store of accpp."
        )
    if two is not None:
        models = one.manifest.model, two.manifest.model
        require_same_weights(
            models[0].get("fingerprint"),
            models[1].get("fingerprint"),
            f"{one.path} is of {models[0].get('name')}, and {two.path} of {models[1].get('name')} with other weights: "
            "their channels are not the same. Give two stores of one model.",
        )
    own, use = model_of(one, model), channel_use(one)
    with stage("Reading signals") as progress:
        heard, ambient, count = _signals(one, own, prompts, progress)
    sides = []
    with stage("Comparing heads") as progress:
        for number, side in enumerate(get_args(SideName)):
            sides.append(_side(side, heard, _used(own, use, side), ambient, draws=draws, seed=seed))
            progress(number + 1, 2)
    tasks: tuple[HeadUse, ...] = ()
    if two is not None:
        with stage("Comparing tasks"):
            tasks = compare_use(use, channel_use(two), draws=2 * draws + 1, seed=seed)
    paths = tuple(str(x.path) for x in (one, two) if x is not None)
    settings = {"draws": draws, "seed": seed}
    return Shared(own.name, paths, count, LIMIT, (sides[0], sides[1]), tasks, settings)


def _signals(store: Store, model: Model, prompts: int, progress: Progress) -> tuple[list[Heard], Ambient, int]:
    """What heads hear in circuits of prompts evenly over the store, and what the streams have in common."""
    circuits = list(store.circuits({"prompt": some_prompts(store, prompts)}))
    parts, moments, layers = list[Heard](), Moments(), model.attention_layers
    with exact_matmul(), model._steady():
        for start in range(0, len(circuits), _BATCH):
            own = circuits[start : start + _BATCH]
            writes = Writes(model.run_many([list(circuit.token_ids) for _, circuit in own], bos=False))
            moments.add(writes, layers)
            caused = [one for i, (_, circuit) in enumerate(own) for one in of_circuit(circuit, i)]
            parts += hear(writes, caused, [number for number, _ in own])
            progress(start + len(own), len(circuits))
    if not parts:
        raise KeyholeError(f"the circuits of {store.path} have no signals that are written: nothing to compare.")
    return joined(parts), moments.ambient(), len(circuits)


def _used(model: Model, use: Mapping[Place, Use], side: SideName) -> list[Heard]:
    """Every channel that a head uses often, as a signal of its own: its vector, which no prompt changes."""
    found = []
    for (which, layer, head), own in sorted(use.items()):
        if which != side or len(own.prompts) < _LEAST:
            continue
        om = omega(model, layer)
        basis = (om.u(head) if side == "dest" else om.v(head)).double().cpu()
        for channel in np.nonzero(own.often >= _OFTEN)[0].tolist():
            row = torch.zeros(1, basis.shape[1], dtype=torch.float64)
            row[0, channel] = 1.0
            prompt = torch.zeros(1, dtype=torch.long)
            found.append(Heard(layer, head, side, prompt, row, torch.ones_like(row), row > 0, basis, {}))
    return found


def _side(
    side: SideName, heard: Sequence[Heard], used: Sequence[Heard], ambient: Ambient, *, draws: int, seed: int
) -> SharedSide:
    own = [one for one in heard if one.side == side and len(one) >= _LEAST]
    heads = tuple(one.place for one in own)
    vectors = directions(own)
    labels = clusters(vectors, 1 - LIMIT)
    groups = tuple(group for group in members(labels, heads) if len(group) > 1)
    signals = _conditions(own, ambient, draws=draws, seed=seed, absolute=False)
    channels = _conditions(used, ambient, draws=draws, seed=seed, absolute=True)
    table = (vectors @ vectors.T).numpy() if own else np.zeros((0, 0))
    return SharedSide(side, heads, table, groups, signals, len(used), channels)


def _conditions(
    own: Sequence[Heard], ambient: Ambient, *, draws: int, seed: int, absolute: bool
) -> tuple[Likeness, ...]:
    """Near-equal pairs, with nothing taken out, then more and more; nothing of heads in one layer."""
    if len({one.layer for one in own}) < 2:
        return ()
    return tuple(
        likeness(own, ambient.taken(top), top=top, limit=LIMIT, draws=draws, seed=seed, absolute=absolute)
        for top in TAKEN
    )
