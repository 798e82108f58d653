"""Do families follow a label of the prompts, such as the order of names, and which circuit represents each group?

Two measures, each compared with shuffled labels. Families may follow nothing that has a name: how well does the cut
agree with the label (ARI, NMI)? And a label may separate circuits without any families: how far are circuits of
different values apart (the share of squared distances between values, pseudo-F, and the share of circuits whose
nearest circuit has the same value)?
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from keyhole.stats import p_of_draws
from keyhole.studies.families.clusters import Clustering
from keyhole.studies.families.cuts import OUTSIDE, Cut

if TYPE_CHECKING:
    from keyhole.store.store import Store

MOST = 600  # circuits whose distances are compared with shuffled labels: a sample, where there are more


@dataclass(frozen=True)
class Beside:
    """A number, and its distribution under shuffled labels."""

    value: float
    mean: float
    high: float  # 95 % are below
    p: float


@dataclass(frozen=True)
class Agreement:
    """How well one label of the prompts agrees with the circuits."""

    label: str
    values: int
    circuits: int  # that have the label
    ari: Beside | None  # of the cut; None: there is none
    nmi: Beside | None
    tree: Beside | None  # ARI of the cut into as many families as there are values; None: there is no such cut
    explained: Beside  # share of the squared distances that lies between values
    pseudo_f: float
    within: float  # mean distance of circuits of the same value
    between: float
    nearest: Beside  # share of circuits whose nearest other circuit has the same value


def labels_of(store: "Store", prompts: Int[np.ndarray, "circuits"]) -> dict[str, tuple[str | None, ...]]:
    """The labels of some prompts, as far as they could explain families.

    Args:
        store: From `keyhole.bulk` or `keyhole.open_store`.
        prompts: Numbers of prompts.

    Returns:
        By label, and for the wording ("template"), the value of each prompt. Left out are labels with one value alone,
        and those with another value for each prompt.

    >>> import keyhole, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = keyhole.bulk("ioi", keyhole.load(), n=4, out=f"{folder}/ioi.store")
    ...     labels = labels_of(store, np.arange(4))
    >>> sorted(set(labels["order"]))
    ['ABBA', 'BABA']
    """
    names = [f"label_{name}" for name in store.manifest.labels] + ["template"]
    table = store.table("prompts", columns=["prompt", *names], where={"prompt": prompts.tolist()})
    place = {number: i for i, number in enumerate(table["prompt"].to_pylist())}
    rows = [place[number] for number in prompts.tolist()]
    columns = {name.removeprefix("label_"): table[name].to_pylist() for name in names}
    by_label = {name: tuple(values[row] for row in rows) for name, values in columns.items()}
    return {name: values for name, values in by_label.items() if 1 < len({*values} - {None}) < len(values)}


def agreements(
    labels: Mapping[str, Sequence[str | None]],
    clustering: Clustering,
    distances: Float[np.ndarray, "circuits circuits"],
    *,
    permutations: int = 199,
    seed: int = 0,
) -> tuple[Agreement, ...]:
    """How well does each label agree with the best cut, and how far apart are circuits of different values?

    Args:
        labels: By name, a value for each circuit, or None: `labels_of(store, prompts)`.
        clustering: The cuts: `clusters(matrix, distances)`. Circuits outside of families do not count.
        distances: Of all pairs: `jaccard(matrix)`.
        permutations: How many times labels are shuffled.
        seed: Seed of the shuffles.

    Returns:
        An `Agreement` for each label.

    >>> from scipy.sparse import csr_array
    >>> from keyhole.studies.families import clusters, jaccard
    >>> matrix = csr_array(np.kron(np.eye(2), np.ones((6, 3))))  # two families of six circuits, which share nothing
    >>> far = jaccard(matrix)
    >>> result, = agreements({"kind": "aaaaaabbbbbb"}, clusters(matrix, far, draws=9, resamples=9), far)
    >>> result.ari.value, result.within, result.between
    (1.0, 0.0, 1.0)
    """
    results = []
    for name, values in labels.items():
        rng = np.random.default_rng(seed)
        known = np.array([i for i, value in enumerate(values) if value is not None], np.int64)
        codes = np.unique(np.array([value for value in values if value is not None]), return_inverse=True)[1]
        results.append(_agreement(name, (known, codes), clustering, distances, (permutations, rng)))
    return tuple(results)


def _agreement(
    name: str,
    label: tuple[Int[np.ndarray, "known"], Int[np.ndarray, "known"]],
    clustering: Clustering,
    distances: Float[np.ndarray, "circuits circuits"],
    how: tuple[int, np.random.Generator],
) -> Agreement:
    (known, codes), (permutations, rng) = label, how
    as_many = [cut for cut in clustering.cuts if cut.families == len(np.unique(codes))]
    ari = _of_cut(adjusted_rand, clustering.cut, label, how)
    nmi = _of_cut(mutual_information, clustering.cut, label, how)
    tree = _of_cut(adjusted_rand, as_many[0] if as_many else None, label, how)
    some = np.sort(rng.permutation(len(known))[:MOST])
    codes, apart = codes[some], distances[np.ix_(known[some], known[some])].astype(np.float64)
    groups, squares, same = len(np.unique(codes)), apart**2, codes[:, None] == codes[None, :]
    explained = _beside(lambda drawn: share_between(squares, drawn), codes, permutations, rng)
    np.fill_diagonal(same, False)
    off = ~np.eye(len(codes), dtype=bool)
    next_one = np.where(off, apart, np.inf).argmin(1)
    nearest = _beside(lambda drawn: float((drawn == drawn[next_one]).mean()), codes, permutations, rng)
    return Agreement(
        label=name,
        values=len(np.unique(label[1])),
        circuits=len(known),
        ari=ari,
        nmi=nmi,
        tree=tree,
        explained=explained,
        pseudo_f=_pseudo_f(explained.value, groups, len(codes)),
        within=float(apart[same].mean()) if same.any() else float("nan"),
        between=float(apart[off & ~same].mean()),
        nearest=nearest,
    )


def _of_cut(
    measure: Callable[[np.ndarray, np.ndarray], float],
    cut: Cut | None,
    label: tuple[Int[np.ndarray, "known"], Int[np.ndarray, "known"]],
    how: tuple[int, np.random.Generator],
) -> Beside | None:
    """How well a label agrees with a cut, over the circuits that are in a family; None: there is no cut."""
    if cut is None:
        return None
    families = cut.labels[label[0]]
    inside = families != OUTSIDE
    return _beside(lambda codes: measure(codes, families[inside]), label[1][inside], *how)


def adjusted_rand(first: Int[np.ndarray, "circuits"], second: Int[np.ndarray, "circuits"]) -> float:
    """How often do two partitions agree on a pair? 0 by chance, 1 if they are the same (Hubert and Arabie 1985).

    Args:
        first: The group of each circuit, as any number.
        second: The same for the other partition.

    >>> adjusted_rand(np.array([0, 0, 1, 1]), np.array([5, 5, 3, 3]))
    1.0
    """
    table = _table(first, second)
    pairs, rows, columns = (float((x * (x - 1) / 2).sum()) for x in (table, table.sum(1), table.sum(0)))
    chance = rows * columns / max(len(first) * (len(first) - 1) / 2, 1)
    most = (rows + columns) / 2
    return 1.0 if most == chance else (pairs - chance) / (most - chance)


def mutual_information(first: Int[np.ndarray, "circuits"], second: Int[np.ndarray, "circuits"]) -> float:
    """The mutual information of two partitions over the mean of their entropies (NMI).

    Many small groups have much in common by chance: compare with shuffled labels.

    Args:
        first: The group of each circuit, as any number.
        second: The same for the other partition.

    >>> mutual_information(np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1]))
    0.0
    """
    joint = _table(first, second) / max(len(first), 1)
    rows, columns = joint.sum(1), joint.sum(0)
    entropy = (_entropy(rows) + _entropy(columns)) / 2
    return 1.0 if entropy == 0 else max(0.0, (_entropy(rows) + _entropy(columns) - _entropy(joint.ravel())) / entropy)


def share_between(squares: Float[np.ndarray, "circuits circuits"], codes: Int[np.ndarray, "circuits"]) -> float:
    """The share of squared distances that lies between groups: 1 - within / all (Anderson 2001)."""
    members = (codes[:, None] == np.unique(codes)[None, :]).astype(np.float64)
    sizes = members.sum(0)
    within = float((((squares @ members) * members).sum(0) / sizes).sum())
    whole = float(squares.sum()) / len(codes)
    return 1 - within / whole if whole > 0 else 0.0


def _pseudo_f(explained: float, groups: int, circuits: int) -> float:
    left = (1 - explained) / max(circuits - groups, 1)
    return float("inf") if left <= 0 else explained / max(groups - 1, 1) / left


def _beside(
    measure: Callable[[np.ndarray], float], codes: Int[np.ndarray, "circuits"], draws: int, rng: np.random.Generator
) -> Beside:
    value = measure(codes)
    null = np.array([measure(rng.permutation(codes)) for _ in range(draws)])
    p = p_of_draws(null, value - 1e-12)  # sums in another order differ by rounding
    return Beside(value, float(null.mean()), float(np.quantile(null, 0.95)), p)


def _table(first: Int[np.ndarray, "circuits"], second: Int[np.ndarray, "circuits"]) -> Float[np.ndarray, "ones others"]:
    rows, columns = (np.unique(values, return_inverse=True)[1] for values in (first, second))
    shape = (int(rows.max(initial=-1)) + 1, int(columns.max(initial=-1)) + 1)
    return np.bincount(rows * shape[1] + columns, minlength=shape[0] * shape[1]).reshape(shape).astype(np.float64)


def _entropy(shares: Float[np.ndarray, "groups"]) -> float:
    positive = shares[shares > 0]
    return float(-(positive * np.log(positive)).sum())


# Which circuit represents a group? The medoid: the circuit with the least summed distance to all others of the group.

MOST_VALUES = 40  # a label with more values has no representatives: names have hundreds


@dataclass(frozen=True)
class Representative:
    """One circuit of a group."""

    group: str  # "all", or a label with its value: order=ABBA
    prompt: int
    circuits: int
    mean_distance: float  # from the others of the group


def medoid(distances: Float[np.ndarray, "circuits circuits"], members: Int[np.ndarray, "members"]) -> tuple[int, float]:
    """Which member of a group has the least summed distance to the others? The first, of several.

    Args:
        distances: Of all pairs of circuits.
        members: The numbers of the group's circuits.

    Returns:
        Its number, and its mean distance from the others.

    >>> medoid(np.array([[0.0, 1, 1], [1, 0, 0.5], [1, 0.5, 0]]), np.array([0, 1, 2]))
    (1, 0.75)
    """
    total = distances[np.ix_(members, members)].sum(1, dtype=np.float64)
    best = int(total.argmin())
    return int(members[best]), float(total[best] / max(len(members) - 1, 1))


def representatives(
    distances: Float[np.ndarray, "circuits circuits"],
    prompts: Int[np.ndarray, "circuits"],
    labels: Mapping[str, Sequence[str | None]],
) -> tuple[Representative, ...]:
    """The medoids of all circuits, and of each value of every label that has few values.

    Args:
        distances: Of all pairs of circuits.
        prompts: The numbers of their prompts.
        labels: By name, a value for each circuit, or None.

    Returns:
        A `Representative` for each group, beginning with "all".

    >>> far = np.array([[0.0, 1, 1], [1, 0, 0.5], [1, 0.5, 0]])
    >>> [(each.group, each.prompt) for each in representatives(far, np.array([4, 7, 9]), {"order": ["a", "b", "b"]})]
    [('all', 7), ('order=a', 4), ('order=b', 7)]
    """
    groups: dict[str, np.ndarray] = {"all": np.arange(len(prompts))}
    for name, values in labels.items():
        known = sorted({value for value in values if value is not None})
        if len(known) <= MOST_VALUES:
            groups |= {f"{name}={value}": np.flatnonzero([each == value for each in values]) for value in known}
    results = []
    for group, members in groups.items():
        at, mean = medoid(distances, members)
        results.append(Representative(group, int(prompts[at]), len(members), mean))
    return tuple(results)
