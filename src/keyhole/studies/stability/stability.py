"""How much of a circuit stays, compared with what other prompts have in common?

What do two circuits have in common? Jaccard of heads, edges, channels, and of influence; and how that reads.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from keyhole.brief import brief, model_label
from keyhole.circuits.circuit import Circuit
from keyhole.errors import KeyholeError
from keyhole.models.numbers import require_same_weights
from keyhole.progress import Progress, silent
from keyhole.report import Report, Reported, Table
from keyhole.settings.tracing import TraceSettings
from keyhole.stats import Interval, as_text, interval
from keyhole.store.manifest import some_prompts, traced_prompts
from keyhole.store.model import model_of
from keyhole.studies.families.sets import circuit_sets
from keyhole.studies.stability.variations import Refused, Variation, retrace, rounded, settings_of, usual
from keyhole.tasks.example import Example

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.store.store import Store

MEASURES = ("heads", "edges", "channels", "influence")
Asked = tuple[Example, Circuit]


@dataclass(frozen=True)
class Stays:
    """One change, and how much of each prompt's circuit stayed."""

    __repr__ = brief

    name: str
    floor: bool  # a comparison of circuits that nobody says are the same
    jaccard: Mapping[str, tuple[float, ...]]  # of each prompt, by measure
    refused: Mapping[str, int]  # how many prompts could not be compared, by reason

    @property
    def n(self) -> int:
        """How many pairs were compared."""
        return len(self.jaccard["heads"])

    def told(self, measure: str) -> Interval | None:
        """The mean, and its 95 % interval within what is possible; None where it was not measured."""
        values = self.jaccard.get(measure, ())
        if not values:
            return None
        mean, low, high = interval(values)
        return Interval(mean, max(low, 0.0), min(high, 1.0))  # in this order NaN, of a single pair, stays NaN


@dataclass(frozen=True)
class Stability(Reported):
    """How much of a model's circuits of a task stays."""

    __repr__ = brief

    model: str
    task: str
    prompts: int
    roles: bool
    rows: tuple[Stays, ...]
    left_out: Mapping[str, str]  # changes that do not fit, and why

    def __getitem__(self, name: str) -> Stays:
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyholeError(f"there is no change {name!r}: there are {', '.join(row.name for row in self.rows)}.")

    def record(self) -> dict[str, Any]:
        """As plain data."""
        rows = [
            {"change": row.name, "floor": row.floor, "n": row.n, **{m: row.told(m) for m in MEASURES}}
            | {"refused": dict(row.refused)}
            for row in self.rows
        ]
        told = {"model": self.model, "task": self.task, "prompts": self.prompts, "roles": self.roles}
        return {**told, "rows": rows, "left_out": dict(self.left_out)}

    @property
    def cells(self) -> Table:
        """Columns and rows of a table."""
        rows = []
        for row in self.rows:
            told = [row.told(measure) for measure in MEASURES]
            cells = [None if one is None else as_text(one, 2) for one in told]
            rows.append((row.name, row.n, *cells))
        return Table(("change", ">n", *(f">{measure}" for measure in MEASURES)), rows)

    @property
    def summary(self) -> str:
        """What was done, in words, and what could not be."""
        where = "with the roles of tokens" if self.roles else "without tokens"
        told = (
            f"{self.model}, {self.task}: Jaccard of {self.prompts} circuits with those of a changed question, {where}. "
            "Influence: shares of the answer that pass the same heads and MLPs. 95 % intervals over prompts."
        )
        refused = [f"{row.name}: {n} not compared ({why})" for row in self.rows for why, n in row.refused.items()]
        left = [f"{name}: left out, for {why}" for name, why in self.left_out.items()]
        return "\n".join([told, *refused, *left])

    def report(self) -> Report:
        """How much stays, compared with the floors."""
        from keyhole.studies.stability.figure import stability_report

        return stability_report(self)


def in_common(pairs: Sequence[tuple[Asked, Asked]], *, roles: bool = False) -> dict[str, tuple[float, ...]]:
    """Jaccard of every pair by every measure; by influence, only where circuits have some."""
    examples, circuits = (list(column) for column in zip(*_flat(pairs), strict=True))
    weighs = all(circuit.influence for circuit in circuits)
    found = {}
    for measure in MEASURES if weighs else MEASURES[:-1]:
        granularity: Any = "heads" if measure == "influence" else measure
        sets = circuit_sets(circuits, granularity, role=roles, weighted=measure == "influence", examples=examples)
        found[measure] = tuple(jaccard_of_pairs(sets.matrix[::2], sets.matrix[1::2]).tolist())
    return found


def jaccard_of_pairs(one: Any, other: Any) -> Float[np.ndarray, "pairs"]:
    """Row by row of two sparse matrices: what both have over what any has, with its weight; 1 of two empty ones.

    >>> from scipy.sparse import csr_array
    >>> jaccard_of_pairs(csr_array([[1.0, 1, 0]]), csr_array([[0, 1.0, 1]]))
    array([0.33333333])
    """
    both, every = (np.asarray(part.sum(1)).ravel() for part in (one.minimum(other), one.maximum(other)))
    return np.where(every > 0, both / np.where(every > 0, every, 1), 1.0)


def _flat(pairs: Iterable[tuple[Asked, Asked]]) -> list[Asked]:
    return [asked for pair in pairs for asked in pair]


# What have circuits in common that nobody says are the same? Pairs of other prompts, which a change must be above.

Pairs = list[tuple[Asked, Asked]]
Fits = Callable[[dict[str, Any], dict[str, Any]], bool]
_MOST = 6  # labels


def floors(
    store: "Store", asked: Mapping[int, Asked], other: "Store | None", rng: random.Random
) -> tuple[dict[str, Pairs], dict[str, str]]:
    """Pairs that are not the same question, by what they share; and what there is none of.

    Partners are drawn from the whole store: of a few dozen prompts, hardly two have one wording. `other`: a store of
    another task.
    """
    labels = [f"label_{name}" for name in store.manifest.labels]
    table = store.table("prompts", columns=["prompt", "template", "answer", "text", *labels])
    traced = set(traced_prompts(store).tolist())
    every = {row["prompt"]: row for row in table.to_pylist() if row["prompt"] in traced}
    found, missing = dict[str, Pairs](), dict[str, str]()
    for name, fits in _kinds(list(every.values()), labels).items():
        some = {i: [j for j, row in every.items() if fits(row, every[i])] for i in asked}
        partners = {i: rng.choice(those) for i, those in some.items() if those}
        if partners:
            circuits = asked_of(store, partners.values())
            found[name] = [(asked[i], circuits[partner]) for i, partner in partners.items()]
        else:
            missing[name] = "no two prompts of this store are so"
    if other is not None:
        others = list(asked_of(other, some_prompts(other, len(asked))).values())
        if others:
            found["another task"] = [(one, rng.choice(others)) for one in asked.values()]
        else:
            missing["another task"] = f"{other.path} has no circuits"
    return found, missing


def _kinds(every: list[dict[str, Any]], labels: list[str]) -> dict[str, Fits]:
    """What two prompts can share: a label that not all have and some share; or nothing, not even the answer."""

    def alike(column: str) -> Fits:
        return lambda row, own: row[column] == own[column] is not None and row["text"] != own["text"]

    def tells(column: str) -> bool:
        values = {row[column] for row in every}
        return 1 < len(values) <= len(every) // 2

    shared = [column for column in ("template", *labels) if tells(column)][:_MOST]
    several = "template" in shared
    return {f"another prompt, same {column.removeprefix('label_')}": alike(column) for column in shared} | {
        "another prompt, unrelated": lambda row, own: (
            row["answer"] != own["answer"] and not (several and row["template"] == own["template"])
        )
    }


def asked_of(store: "Store", numbers: Iterable[int]) -> dict[int, Asked]:
    """Prompts of a store with their circuits, by their numbers."""
    found = store.outcomes({"prompt": sorted(set(numbers))})
    return {one.index: (one.example, one.circuit) for one in found if one.circuit is not None}


# How much of a circuit stays when the question is asked a little differently? Jaccard of what two circuits have.
#
# Each prompt's circuit is compared with the circuit of the same prompt after one change (`variations.py`), beside
# floors: two prompts that share a label, two unrelated prompts, and, if another store is given, two tasks. What
# counts are heads, edges, edges with their channels, all without tokens (or with the roles of these), and heads by
# their influence.

_FEWEST = 2


def stability(
    store: "Store",
    model: "Model | None" = None,
    *,
    prompts: int = 32,
    roles: bool = False,
    other: "Store | None" = None,
    variations: Sequence[Variation] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Stability:
    """How much of a store's circuits stays under changes of precision, tau, wording and names?

    With `roles`, terms are told apart by the roles of their tokens. `other`: a store of another task of the same model,
    for a floor. `variations` instead of the usual ones. `progress` is told prompts traced.
    """
    if store.manifest.method != "accpp":
        raise KeyholeError(
            f"{store.path} was traced with {store.manifest.method}, and prompts are traced again with accpp: give a "
            "store of accpp."
        )
    numbers = some_prompts(store, prompts)
    if len(numbers) < _FEWEST:
        raise KeyholeError(f"{store.path} has {len(numbers)} circuits: {_FEWEST} are needed to compare any.")
    asked = asked_of(store, numbers)
    model = model_of(store, model)
    if other is not None:
        require_same_weights(
            other.manifest.model["fingerprint"],
            store.manifest.model["fingerprint"],
            f"{other.path} is of another model than {store.path}: circuits of two models share no heads.",
        )
    rng, settings = random.Random(seed), settings_of(store)
    changes = (
        usual(model, [example for example, _ in asked.values()], seed=seed) if variations is None else list(variations)
    )
    told, total, rows, left_out = progress or silent, len(changes), [], dict[str, str]()
    for done, change in enumerate(changes):
        told(done * len(asked), total * len(asked))
        kept, refused = varied(model, list(asked.values()), change, settings, bos=store.manifest.settings.get("bos"))
        if kept:
            rows.append(Stays(change.name, False, in_common(kept, roles=roles), refused))
        else:
            left_out[change.name] = max(refused, key=lambda why: refused[why])
    told(total * len(asked), total * len(asked))
    if not any(change.example for change in changes):
        left_out["another wording or name"] = "only Keyhole's own ioi prompts can be said again with other words"
    beside, missing = floors(store, asked, other, rng)
    rows += [Stays(name, True, in_common(pairs, roles=roles), {}) for name, pairs in beside.items()]
    name = str(store.manifest.task.get("name"))
    return Stability(model_label(model.name), name, len(asked), roles, tuple(rows), left_out | missing)


def varied(
    model: "Model", asked: Sequence[Asked], change: Variation, settings: TraceSettings, *, bos: bool | None = None
) -> tuple[Pairs, dict[str, int]]:
    """Each circuit with that of the changed question; and how many there are not, by reason."""
    changed = [(one, one[0] if change.example is None else change.example(one[0])) for one in asked]
    fits = [(one, example) for one, example in changed if example is not None]
    refused = Counter({"it does not fit": len(changed) - len(fits)} if len(fits) < len(changed) else {})
    how = settings if change.settings is None else change.settings(settings)
    if change.dtype is not None:
        model = rounded(model, change.dtype, weights_only=change.weights_only)
    kept: Pairs = []
    found = retrace(model, [example for _, example in fits], how, bos=bos)
    for (one, example), circuit in zip(fits, found, strict=True):
        if isinstance(circuit, Refused):
            refused[circuit.reason] += 1
        else:
            kept.append((one, (example, circuit)))
    return kept, dict(refused)
