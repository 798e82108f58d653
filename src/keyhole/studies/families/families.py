"""Do the circuits of a store come in families? From tables to sets, distances, a tree, its cut, and what it means."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, get_args

import numpy as np
from jaxtyping import Float, Int

from keyhole.errors import KeyholeError, require_choice
from keyhole.progress import Progress, silent
from keyhole.store.manifest import traced_prompts
from keyhole.store.store import Where
from keyhole.studies.families.agreement import agreements, labels_of, medoid, representatives
from keyhole.studies.families.clusters import Clustering, clusters
from keyhole.studies.families.cuts import OUTSIDE, silhouettes, summed
from keyhole.studies.families.distances import Granularity, jaccard
from keyhole.studies.families.record import About, Families, Family, Level, assign_rest, averages
from keyhole.studies.families.sets import Sets, store_sets

if TYPE_CHECKING:
    from keyhole.store.store import Store

RIGHT: Mapping[str, object] = MappingProxyType({"correct": True, "status": "circuit"})  # as the papers trace them
_FEWEST = 10
Values = Mapping[str, tuple[str | None, ...]]


def families(
    store: "Store",
    *,
    granularity: Granularity = "channels",
    side: bool = True,
    role: bool = False,
    weighted: bool = False,
    k: int | None = None,
    where: Where = RIGHT,
    most: int = 10_000,
    seed: int = 0,
    progress: Progress = silent,
) -> Families:
    """Families of a store's circuits, by what they have in common, at all three granularities.

    Only prompts that the model answers rightly, with a head in their circuit, are taken, unless `where` says otherwise
    (None: all). The cut is at `granularity`: by silhouette and stability, or into `k` families. Of more than `most`
    circuits a sample is cut, and the others go to the nearest family.
    """
    require_choice("granularity", granularity, Granularity)
    if most < _FEWEST:
        raise KeyholeError(f"a sample of {most} circuits has no families: take {_FEWEST} or more.")
    asked = traced_prompts(store, where)
    if len(asked) < _FEWEST:
        raise KeyholeError(
            f"{store.path} has {len(asked)} circuits that are as {_told(where)} wants them: families need {_FEWEST} or "
            "more. Trace more prompts, or ask for others."
        )
    rng = np.random.default_rng(seed)
    sample = asked if len(asked) <= most else np.sort(rng.choice(asked, most, replace=False))
    values = labels_of(store, sample)
    levels: list[Level] = []
    order = (granularity, *(one for one in get_args(Granularity) if one != granularity))
    for i, one in enumerate(order):
        own = store_sets(store, one, side=side, role=role, weighted=weighted, prompts=sample.tolist())
        progress(3 * i, 3 * len(order))
        far = jaccard(own.matrix)
        progress(3 * i + 1, 3 * len(order))
        within = partial(_within, progress, (3 * i + 1, 3 * i + 3, 3 * len(order)))
        levels.append(_level(own, far, values, k=k if one == granularity else None, seed=seed, progress=within))
        progress(3 * i + 3, 3 * len(order))
        if i == 0:  # of the others, distances are not kept: they are the most of what is in memory
            sets, apart = own, far
    level = levels[0]
    labels = _labels(level.clustering, len(sample))
    kept = _families(sets, apart, labels, values, level.clustering)
    prompts, everyone, rest = sample, labels, None
    if len(asked) > len(sample):
        whole = store_sets(store, granularity, side=side, role=role, weighted=weighted, prompts=asked.tolist())
        everyone, rest = assign_rest(whole, sample, (labels, level.clustering), distances=apart, seed=seed)
        prompts = asked
        kept = tuple(_with_members(one, prompts, everyone) for one in kept)
    return Families(
        about=_about(store, where, (granularity, side, role, weighted, seed), (len(asked), len(sample))),
        prompts=prompts,
        labels=everyone,
        families=kept,
        levels=tuple(levels),
        representatives=representatives(apart, sample, values),
        averages=averages(sets.matrix, _groups(labels), seed=seed),
        rest=rest,
        sample=sample,
        distances=apart,
        values=values,
    )


def _within(progress: Progress, part: tuple[int, int, int], done: int, total: int) -> None:
    """Tell how far a part of the work is, as the whole is told."""
    start, end, whole = part
    progress(start + (end - start) * done // max(total, 1), whole)


def _level(
    sets: Sets,
    apart: Float[np.ndarray, "circuits circuits"],
    values: Values,
    *,
    k: int | None,
    seed: int,
    progress: Progress,
) -> Level:
    clustering = clusters(sets.matrix, apart, k=k, seed=seed, progress=progress)
    n = len(sets)
    return Level(
        granularity=sets.granularity,
        terms=len(sets.terms),
        mean_size=float(np.diff(sets.matrix.indptr).mean()),
        mean_distance=float(apart.sum(dtype=np.float64) / (n * (n - 1))),
        clustering=clustering,
        agreement=agreements(values, clustering, apart, seed=seed),
    )


def _labels(clustering: Clustering, circuits: int) -> Int[np.ndarray, "circuits"]:
    """The cut, if it is believed or was asked for; otherwise all circuits are one family."""
    cut = clustering.cut
    if cut is None or not (clustering.separate or clustering.given):
        return np.ones(circuits, np.int64)
    return cut.labels


def _groups(labels: Int[np.ndarray, "circuits"]) -> list[tuple[str, np.ndarray]]:
    if labels.max() < 2:
        return []
    return [(f"family {one}", np.flatnonzero(labels == one)) for one in range(1, int(labels.max()) + 1)]


def _families(
    sets: Sets,
    apart: Float[np.ndarray, "circuits circuits"],
    labels: Int[np.ndarray, "circuits"],
    values: Values,
    clustering: Clustering,
) -> tuple[Family, ...]:
    several = int(labels.max()) > 1
    each = silhouettes(summed(apart, labels), labels) if several else np.full(len(labels), np.nan)
    steady = clustering.stability[clustering.best] if several and clustering.best is not None else [np.nan]
    sizes = np.diff(sets.matrix.indptr)
    found = []
    for number in range(1, int(labels.max()) + 1):
        members = np.flatnonzero(labels == number)
        at, _ = medoid(apart, members)
        pairs = len(members) * (len(members) - 1)
        found.append(
            Family(
                number=number,
                members=tuple(sets.prompts[members].tolist()),
                representative=int(sets.prompts[at]),
                stability=float(steady[number - 1]),
                silhouette=float(each[members].mean()),
                mean_distance=float(apart[np.ix_(members, members)].sum(dtype=np.float64) / max(pairs, 1)),
                mean_size=float(sizes[members].mean()),
                common={name: _most_common([own[i] for i in members]) for name, own in values.items()},
            )
        )
    return tuple(found)


def _most_common(values: Sequence[str | None]) -> tuple[str, float]:
    value, count = Counter(values).most_common(1)[0]
    return str(value), count / len(values)


def _with_members(family: Family, prompts: Int[np.ndarray, "circuits"], labels: Int[np.ndarray, "circuits"]) -> Family:
    return replace(family, members=tuple(prompts[labels == family.number].tolist()))


def _about(
    store: "Store", where: Where, how: tuple[Granularity, bool, bool, bool, int], counts: tuple[int, int]
) -> About:
    granularity, side, role, weighted, seed = how
    return About(
        store=str(store.path),
        model=str(store.manifest.model.get("name")),
        task=str(store.manifest.task.get("name")),
        granularity=granularity,
        side=side,
        role=role,
        weighted=weighted,
        where=_told(where),
        seed=seed,
        prompts=len(store),
        circuits=len(traced_prompts(store, None)),
        asked=counts[0],
        sampled=counts[1],
    )


def _told(where: Where) -> str:
    if where is None:
        return "all circuits"
    if isinstance(where, Mapping):
        return ", ".join(f"{name}={value}" for name, value in where.items()) or "all circuits"
    return str(where)


assert OUTSIDE == 0  # `_labels` and `record.Families` count on it
