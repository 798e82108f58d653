"""Do the circuits of a store come in families? Tables become sets, distances and a tree, and the best cut is tested."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Unpack, get_args

import numpy as np
from jaxtyping import Float, Int

from keyhole.errors import KeyholeError
from keyhole.progress import Progress, silent
from keyhole.settings.fields import chosen
from keyhole.store.manifest import traced_prompts
from keyhole.store.store import Where
from keyhole.studies.families.agreement import agreements, labels_of, medoid, representatives
from keyhole.studies.families.clusters import Clustering, clusters
from keyhole.studies.families.cuts import OUTSIDE, silhouettes, summed
from keyhole.studies.families.distances import jaccard
from keyhole.studies.families.record import About, Families, Family, Level, assign_rest, averages
from keyhole.studies.families.sets import Sets, store_sets
from keyhole.studies.settings import FamilyOptions, FamilySettings, Granularity

if TYPE_CHECKING:
    from keyhole.store.store import Store

RIGHT: Mapping[str, object] = MappingProxyType({"correct": True, "status": "circuit"})  # as in the papers
_FEWEST = 10
Values = Mapping[str, tuple[str | None, ...]]


def families(
    store: "Store",
    *,
    where: Where = RIGHT,
    settings: FamilySettings | None = None,
    progress: Progress = silent,
    **options: Unpack[FamilyOptions],
) -> Families:
    """Do the circuits of a store come in families?

    Circuits are sets, and families are the best cut of a tree of their distances. The cut counts if it is stable and
    better than cuts of circuits without families; otherwise all circuits are one family.

    Args:
        store: Of at least ten circuits: from `keyhole.bulk` or `keyhole.open_store`.
        where: Which prompts are taken, by values of the table `prompts`. Default: those that the model answers rightly,
            with a head in their circuit. None: all that have a circuit.
        settings: How families are looked for: a `keyhole.studies.settings.FamilySettings`, whose fields are the choices
            below.
        progress: Called with the work done and its total, in steps; an exception from there stops the work.
        **options: Choices by name; with a record they change it:
            - `granularity`: Circuits are compared by their "heads", "edges", or edges with their "channels". Labels are
              held against all three.
            - `side`: Whether dest, src and value edges differ.
            - `role`: Whether edges differ that join tokens of other roles.
            - `weighted`: Whether terms count by their influence, and not by presence alone.
            - `k`: The number of families. Default: as many as the circuits show.
            - `most`: Of more circuits a sample of this size is cut; the others go to the nearest family.
            - `seed`: Seed of samples, resamples and random circuits.

    Returns:
        The families with their members, stability and representatives; `print` shows the report.

    >>> import keyhole, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = keyhole.bulk("ioi", keyhole.load(), n=10, out=f"{folder}/ioi.store")
    ...     result = keyhole.families(store, granularity="heads", where=None)
    >>> [(family.number, family.size) for family in result.families]
    [(1, 10)]
    """
    settings = chosen(settings, FamilySettings, options)
    matching = traced_prompts(store, where)
    if len(matching) < _FEWEST:
        raise KeyholeError(
            f"{store.path} has {len(matching)} circuits that are as {where_text(where)} wants them: families need "
            f"{_FEWEST} or more. Trace more prompts, or ask for others."
        )
    rng, seed = np.random.default_rng(settings.seed), settings.seed
    sample = matching
    if len(matching) > settings.most:
        sample = np.sort(rng.choice(matching, settings.most, replace=False))
    values = labels_of(store, sample)
    levels: list[Level] = []
    order = sorted(get_args(Granularity), key=lambda kind: kind != settings.granularity)  # the one to be cut first
    for i, kind in enumerate(order):
        level_sets = _sets(store, kind, sample, settings)
        progress(3 * i, 3 * len(order))
        far = jaccard(level_sets.matrix)
        progress(3 * i + 1, 3 * len(order))
        within = partial(_within, progress, (3 * i + 1, 3 * i + 3, 3 * len(order)))
        k = settings.k if kind == settings.granularity else None
        levels.append(_level(level_sets, far, values, k=k, seed=seed, progress=within))
        progress(3 * i + 3, 3 * len(order))
        if i == 0:  # the distances of the others are dropped: they would take most of the memory
            sets, apart = level_sets, far
    level = levels[0]
    labels = _labels(level.clustering, len(sample))
    groups = _families(sets, apart, labels, values, level.clustering)
    prompts, all_labels, rest = sample, labels, None
    if len(matching) > len(sample):
        whole = _sets(store, settings.granularity, matching, settings)
        all_labels, rest = assign_rest(whole, sample, (labels, level.clustering), distances=apart, seed=seed)
        prompts = matching
        groups = tuple(_with_members(family, prompts, all_labels) for family in groups)
    return Families(
        about=_about(store, where, settings, (len(matching), len(sample))),
        prompts=prompts,
        labels=all_labels,
        families=groups,
        levels=tuple(levels),
        representatives=representatives(apart, sample, values),
        averages=averages(sets.matrix, _groups(labels), seed=seed),
        rest=rest,
        sample=sample,
        distances=apart,
        values=values,
    )


def _sets(
    store: "Store", granularity: Granularity, prompts: Int[np.ndarray, "circuits"], settings: FamilySettings
) -> Sets:
    how = {"side": settings.side, "role": settings.role, "weighted": settings.weighted}
    return store_sets(store, granularity, **how, prompts=prompts.tolist())


def _within(progress: Progress, part: tuple[int, int, int], done: int, total: int) -> None:
    """Report the progress of a part as progress of the whole."""
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
    """The cut, if it is significant or the number of families was given; otherwise all circuits are one family."""
    cut = clustering.cut
    if cut is None or not (clustering.separate or clustering.given):
        return np.ones(circuits, np.int64)
    return cut.labels


def _groups(labels: Int[np.ndarray, "circuits"]) -> list[tuple[str, np.ndarray]]:
    if labels.max() < 2:
        return []
    return [(f"family {number}", np.flatnonzero(labels == number)) for number in range(1, int(labels.max()) + 1)]


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
    results = []
    for number in range(1, int(labels.max()) + 1):
        members = np.flatnonzero(labels == number)
        at, _ = medoid(apart, members)
        pairs = len(members) * (len(members) - 1)
        results.append(
            Family(
                number=number,
                members=tuple(sets.prompts[members].tolist()),
                representative=int(sets.prompts[at]),
                stability=float(steady[number - 1]),
                silhouette=float(each[members].mean()),
                mean_distance=float(apart[np.ix_(members, members)].sum(dtype=np.float64) / max(pairs, 1)),
                mean_size=float(sizes[members].mean()),
                common={name: _most_common([column[i] for i in members]) for name, column in values.items()},
            )
        )
    return tuple(results)


def _most_common(values: Sequence[str | None]) -> tuple[str, float]:
    value, count = Counter(values).most_common(1)[0]
    return str(value), count / len(values)


def _with_members(family: Family, prompts: Int[np.ndarray, "circuits"], labels: Int[np.ndarray, "circuits"]) -> Family:
    return replace(family, members=tuple(prompts[labels == family.number].tolist()))


def _about(store: "Store", where: Where, settings: FamilySettings, counts: tuple[int, int]) -> About:
    return About(
        store=str(store.path),
        model=str(store.manifest.model.get("name")),
        task=str(store.manifest.task.get("name")),
        granularity=settings.granularity,
        side=settings.side,
        role=settings.role,
        weighted=settings.weighted,
        where=where_text(where),
        seed=settings.seed,
        prompts=len(store),
        circuits=len(traced_prompts(store, None)),
        matching=counts[0],
        sampled=counts[1],
    )


def where_text(where: Where) -> str:
    """What is asked of circuits, in words."""
    if where is None:
        return "all circuits"
    if isinstance(where, Mapping):
        return ", ".join(f"{name}={value}" for name, value in where.items()) or "all circuits"
    return str(where)


assert OUTSIDE == 0  # `_labels` and `record.Families` number families from 1
