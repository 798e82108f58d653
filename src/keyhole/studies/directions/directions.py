"""Do heads coordinate through shared directions? All of it, and how that reads.

Are there near-equal signals over all heads and layers, and channels that serve several tasks?

Signals are those of a store's circuits, in residual space, as means per head and side; channels are the vectors u_k and
v_k that a head uses often. Pairs of heads in different layers are near-equal above a cosine of 0.8; the control counts
them with other channels of the same heads. Streams' mean and largest variance are taken out as well, as anisotropy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import torch

from keyhole.brief import model_label
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
from keyhole.studies.directions.heard import Heard, cluster_text, draws_text, hear, joined, of_circuit, taken_text
from keyhole.studies.directions.record import HeadUse, Place, Shared, SharedSide, Use, channel_use, compare_use
from keyhole.tracing.upstream import Writes

if TYPE_CHECKING:
    from keyhole.studies.directions.alike import Likeness

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
    with exact_matmul(), model.steady():
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


# How does it read whether heads share directions? Near-equal pairs beside their control, clusters, and tasks.

_CLUSTERS = 5
TASK_COLUMNS = (
    *("head", "side", ">prompts", ">prompts there", ">overlap", ">as halves", ">halves", ">halves there"),
    *(">chance", ">p", ">q", "channels"),
)
PAIR_COLUMNS = ("side", "head", "other head", ">cosine")


def shared_text(found: "Shared") -> str:
    """A few lines for each side, and the tasks."""
    lines = [opening(found)]
    for side in found.sides:
        lines += ["", *side_lines(side)]
    if len(found.stores) > 1:
        lines += ["", *task_lines(found)]
    return "\n".join(lines)


def opening(found: "Shared") -> str:
    """What was compared."""
    return (
        f"{model_label(found.model)}, {found.prompts} prompts of {found.stores[0]}; near-equal: a cosine above "
        f"{found.limit:g}{draws_text(found.settings['draws'])}"
    )


def side_lines(side: "SharedSide") -> list[str]:
    """One side: signals, clusters, channels."""
    first, *groups = head_lines(side)
    lines = [first, *[f"  signals {_line(one)}" for one in side.signals], *[f"  {line}" for line in groups]]
    ends = side.channels[:: max(1, len(side.channels) - 1)]
    return lines + [f"  {side.used} channels {_line(one)}" for one in ends]


def head_lines(side: "SharedSide") -> list[str]:
    """Do heads share directions, and which are nearly equal?"""
    if not side.signals:
        return [f"{side.side} side: too few heads, or all in one layer: nothing to compare"]
    said = "more" if side.coordinate else "no more"
    groups = [f"near-equal: {cluster_text(group)}" for group in side.clusters[:_CLUSTERS]]
    first = (
        f"{side.side} side: {len(side.heads)} heads, {said} near-equal pairs than by other channels or by anisotropy"
    )
    return [first, *groups]


def likeness_table(side: "SharedSide") -> tuple[tuple[str, ...], list[tuple[str | float | int, ...]]]:
    """Near-equal pairs and mean cosines of signals and of channels, beside other channels."""
    columns = (
        "what",
        "taken out",
        ">pairs",
        ">nearly equal",
        ">other channels",
        ">p",
        ">mean cosine",
        ">other channels",
    )
    rows: list[tuple[str | float | int, ...]] = [
        (
            *(what, taken_text(one.taken), one.pairs, round(one.near[0] * one.pairs)),
            *(one.shuffled_near[0] * one.pairs, one.p, one.cosine[0], one.shuffled_cosine[0]),
        )
        for what, made in (("signals", side.signals), ("channels", side.channels))
        for one in made
    ]
    return columns, rows


def _line(one: "Likeness") -> str:
    count, other = round(one.near[0] * one.pairs), one.shuffled_near[0] * one.pairs
    return (
        f"{taken_text(one.taken)}: {count} of {one.pairs:,} pairs nearly equal (other channels {other:.1f}, p "
        f"{one.p:.2g}), mean cosine {one.cosine[0]:.3f} (other channels {one.shuffled_cosine[0]:.3f})"
    )


def task_lines(found: "Shared") -> list[str]:
    """Which heads use the same channels in both tasks?"""
    if not found.tasks:
        return [f"no head fires in ten prompts of both {found.stores[0]} and {found.stores[1]}"]
    lines = [f"{len(found.tasks)} sides of heads fire in both {found.stores[0]} and {found.stores[1]}"]
    for kind in ("same", "in part", "others"):
        own = [one for one in found.tasks if one.found == kind]
        named = ", ".join(f"{one.layer}.{one.head} {one.side} {one.share:.2f}" for one in own[:8])
        more = f" and {len(own) - 8} more" if len(own) > 8 else ""
        what = {"same": "the same channels", "in part": "in part the same", "others": "others"}[kind]
        lines.append(f"  {what}: {len(own)}{': ' if own else ''}{named}{more}")
    every = [(one.between, *one.within, one.chance) for one in found.tasks]
    between, here, there, chance = np.mean(every, axis=0).tolist()
    lines.append(
        f"  overlap of as many prompts: {between:.2f} between tasks, {here:.2f} and {there:.2f} in halves of one, "
        f"{chance:.2f} by chance"
    )
    return lines


def task_rows(found: "Shared") -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """A row per head and side in two tasks."""
    rows = [
        (
            f"{one.layer}.{one.head}",
            one.side,
            *one.prompts,
            one.overlap,
            one.between,
            *one.within,
            one.chance,
            one.p,
            one.q,
            one.found,
        )
        for one in found.tasks
    ]
    return TASK_COLUMNS, rows


def pair_rows(found: "Shared") -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """A row per near-equal pair of heads in different layers, the nearest first."""
    rows = [
        (side.side, f"{a[0]}.{a[1]}", f"{b[0]}.{b[1]}", float(side.cosines[i, j]))
        for side in found.sides
        for i, a in enumerate(side.heads)
        for j, b in enumerate(side.heads[:i])
        if a[0] != b[0] and side.cosines[i, j] > found.limit
    ]
    return PAIR_COLUMNS, sorted(rows, key=lambda row: -row[3])


def shared_data(found: "Shared") -> dict[str, Any]:
    """As plain data, with what follows from it."""
    told = asdict(found)
    for plain, side in zip(told["sides"], found.sides, strict=True):
        plain |= {"cosines": np.round(side.cosines, 4).tolist(), "coordinate": side.coordinate}
    for plain, one in zip(told["tasks"], found.tasks, strict=True):
        plain |= {"share": one.share, "found": one.found}
    return told
