"""How much of a circuit stays when something small changes, compared with what other prompts have in common?

Each prompt's circuit is compared with the circuit of the same prompt after one change (`variations.py`): Jaccard of
heads, of edges, of edges with their channels, and of influence, without tokens or with their roles. Floors are pairs of
circuits that nobody expects to be the same: two prompts that share a label, two unrelated prompts, and, if another
store is given, two tasks.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from jaxtyping import Float

from keyhole._moved import attributes_of
from keyhole.brief import brief, model_label
from keyhole.circuits.circuit import Circuit
from keyhole.errors import KeyholeError
from keyhole.models.numbers import require_same_weights
from keyhole.progress import Progress, silent
from keyhole.report import Report, Reported, Table
from keyhole.settings.fields import chosen
from keyhole.settings.tracing import TraceSettings
from keyhole.stats import Interval, as_text, interval
from keyhole.store.manifest import some_prompts, traced_prompts
from keyhole.store.model import model_of
from keyhole.studies.families.sets import circuit_sets
from keyhole.studies.settings import StabilityOptions, StabilitySettings
from keyhole.studies.stability.variations import Refused, Variation, retrace, rounded, settings_of, usual
from keyhole.tasks.example import Example

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.store.store import Store

MEASURES = ("heads", "edges", "channels", "influence")
Traced = tuple[Example, Circuit]


@dataclass(frozen=True)
class Stays:
    """One change, and how much of each prompt's circuit stayed."""

    __repr__ = brief

    name: str
    floor: bool  # is it a comparison of circuits that nobody expects to be the same?
    jaccard: Mapping[str, tuple[float, ...]]  # of each prompt, by measure
    refused: Mapping[str, int]  # how many prompts could not be compared, by reason

    @property
    def n(self) -> int:
        """How many pairs were compared."""
        return len(self.jaccard["heads"])

    def spread(self, measure: str) -> Interval | None:
        """The mean with its 95 % interval, within 0 and 1; None where it was not measured."""
        values = self.jaccard.get(measure, ())
        if not values:
            return None
        mean, low, high = interval(values)
        return Interval(mean, max(low, 0.0), min(high, 1.0))  # in this order NaN, of a single pair, stays NaN

    if not TYPE_CHECKING:  # a type checker would take it for a promise that every attribute exists
        __getattr__ = attributes_of("Stays")


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
            {"change": row.name, "floor": row.floor, "n": row.n, **{m: row.spread(m) for m in MEASURES}}
            | {"refused": dict(row.refused)}
            for row in self.rows
        ]
        about = {"model": self.model, "task": self.task, "prompts": self.prompts, "roles": self.roles}
        return {**about, "rows": rows, "left_out": dict(self.left_out)}

    @property
    def cells(self) -> Table:
        """Columns and rows of a table."""
        rows = []
        for row in self.rows:
            spreads = [row.spread(measure) for measure in MEASURES]
            cells = [None if spread is None else as_text(spread, 2) for spread in spreads]
            rows.append((row.name, row.n, *cells))
        return Table(("change", ">n", *(f">{measure}" for measure in MEASURES)), rows)

    @property
    def summary(self) -> str:
        """What was compared, and what could not be."""
        where = "with the roles of tokens" if self.roles else "without tokens"
        text = (
            f"{self.model}, {self.task}: Jaccard of {self.prompts} circuits with those of a changed question, {where}. "
            "Influence: shares of the answer that pass the same heads and MLPs. 95 % intervals over prompts."
        )
        refused = [f"{row.name}: {n} not compared ({why})" for row in self.rows for why, n in row.refused.items()]
        left = [f"{name}: left out, for {why}" for name, why in self.left_out.items()]
        return "\n".join([text, *refused, *left])

    def report(self) -> Report:
        """How much stays, compared with the floors."""
        from keyhole.studies.stability.figure import stability_report

        return stability_report(self)


def in_common(pairs: Sequence[tuple[Traced, Traced]], *, roles: bool = False) -> dict[str, tuple[float, ...]]:
    """Jaccard of every pair by every measure; by influence only if all circuits have influence."""
    examples, circuits = (list(column) for column in zip(*chain.from_iterable(pairs), strict=True))
    weighs = all(circuit.influence for circuit in circuits)
    shares = {}
    for measure in MEASURES if weighs else MEASURES[:-1]:
        granularity: Any = "heads" if measure == "influence" else measure
        sets = circuit_sets(circuits, granularity, role=roles, weighted=measure == "influence", examples=examples)
        shares[measure] = tuple(jaccard_of_pairs(sets.matrix[::2], sets.matrix[1::2]).tolist())
    return shares


def jaccard_of_pairs(first: Any, second: Any) -> Float[np.ndarray, "pairs"]:
    """The weighted Jaccard similarity of two sparse matrices, row by row; 1 for two empty rows.

    >>> from scipy.sparse import csr_array
    >>> jaccard_of_pairs(csr_array([[1.0, 1, 0]]), csr_array([[0, 1.0, 1]]))
    array([0.33333333])
    """
    both, every = (np.asarray(part.sum(1)).ravel() for part in (first.minimum(second), first.maximum(second)))
    return np.where(every > 0, both / np.where(every > 0, every, 1), 1.0)


Pairs = list[tuple[Traced, Traced]]
Fits = Callable[[dict[str, Any], dict[str, Any]], bool]
_MOST = 6  # labels


def floors(
    store: "Store", originals: Mapping[int, Traced], other: "Store | None", rng: random.Random
) -> tuple[dict[str, Pairs], dict[str, str]]:
    """Pairs of different prompts, by what they have in common; and the kinds of pairs that do not exist, with a reason.

    Partners are drawn from the whole store, since of a few dozen prompts hardly two have one wording. `other`: a store
    of another task.
    """
    labels = [f"label_{name}" for name in store.manifest.labels]
    table = store.table("prompts", columns=["prompt", "template", "answer", "text", *labels])
    traced = set(traced_prompts(store).tolist())
    rows = {row["prompt"]: row for row in table.to_pylist() if row["prompt"] in traced}
    pairs, missing = dict[str, Pairs](), dict[str, str]()
    for name, fits in _kinds(list(rows.values()), labels).items():
        some = {i: [j for j, row in rows.items() if fits(row, rows[i])] for i in originals}
        partners = {i: rng.choice(fitting) for i, fitting in some.items() if fitting}
        if partners:
            circuits = traced_of(store, partners.values())
            pairs[name] = [(originals[i], circuits[partner]) for i, partner in partners.items()]
        else:
            missing[name] = "no two prompts of this store are so"
    if other is not None:
        others = list(traced_of(other, some_prompts(other, len(originals))).values())
        if others:
            pairs["another task"] = [(original, rng.choice(others)) for original in originals.values()]
        else:
            missing["another task"] = f"{other.path} has no circuits"
    return pairs, missing


def _kinds(rows: list[dict[str, Any]], labels: list[str]) -> dict[str, Fits]:
    """When do two prompts make a pair? If they share a label that divides the prompts; or not even the answer."""

    def alike(column: str) -> Fits:
        return lambda row, original: row[column] == original[column] is not None and row["text"] != original["text"]

    def divides(column: str) -> bool:
        values = {row[column] for row in rows}
        return 1 < len(values) <= len(rows) // 2

    shared = [column for column in ("template", *labels) if divides(column)][:_MOST]
    several = "template" in shared
    return {f"another prompt, same {column.removeprefix('label_')}": alike(column) for column in shared} | {
        "another prompt, unrelated": lambda row, original: (
            row["answer"] != original["answer"] and not (several and row["template"] == original["template"])
        )
    }


def traced_of(store: "Store", numbers: Iterable[int]) -> dict[int, Traced]:
    """Prompts of a store with their circuits, by their numbers."""
    outcomes = store.outcomes({"prompt": sorted(set(numbers))})
    return {outcome.index: (outcome.example, outcome.circuit) for outcome in outcomes if outcome.circuit is not None}


_FEWEST = 2


def stability(
    store: "Store",
    model: "Model | None" = None,
    *,
    other: "Store | None" = None,
    variations: Sequence[Variation] | None = None,
    settings: StabilitySettings | None = None,
    progress: Progress | None = None,
    **options: Unpack[StabilityOptions],
) -> Stability:
    """How much of a store's circuits stays under changes of precision, tau, wording and names?

    Args:
        store: Traced with accpp.
        model: The model that made the store. Default: it is loaded from where it was.
        other: A store of another task of the same model, whose circuits are a floor. Default: none.
        variations: The changes. Default: those that fit the model and the task (`variations.usual`).
        settings: Which circuits are compared, and as what: a `keyhole.studies.settings.StabilitySettings`, whose fields
            are the choices below.
        progress: Called with the number of prompts traced and their total; an exception from there stops the work.
        **options: Choices by name; with a record they change it:
            - `prompts`: How many prompts, from all parts of the store.
            - `roles`: Whether terms differ that stand at tokens of other roles.
            - `seed`: Seed of new words and of the pairs that floors are made of.

    Returns:
        A row for each change and each floor, and what was left out, with the reason.

    >>> import keyhole, tempfile
    >>> model = keyhole.load()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = keyhole.bulk("ioi", model, n=4, out=f"{folder}/ioi.store")
    ...     result = stability(store, model, prompts=2, variations=[Variation("nothing: traced again")])
    >>> result["nothing: traced again"].spread("edges").mean
    1.0
    """
    settings = chosen(settings, StabilitySettings, options)
    roles, seed = settings.roles, settings.seed
    if store.manifest.method != "accpp":
        raise KeyholeError(
            f"{store.path} was traced with {store.manifest.method}, and prompts are traced again with accpp: give a "
            "store of accpp."
        )
    numbers = some_prompts(store, settings.prompts)
    if len(numbers) < _FEWEST:
        raise KeyholeError(f"{store.path} has {len(numbers)} circuits: {_FEWEST} are needed to compare any.")
    originals = traced_of(store, numbers)
    model = model_of(store, model)
    if other is not None:
        require_same_weights(
            other.manifest.model["fingerprint"],
            store.manifest.model["fingerprint"],
            f"{other.path} is of another model than {store.path}: circuits of two models share no heads.",
        )
    rng, how = random.Random(seed), settings_of(store)
    changes = (
        usual(model, [example for example, _ in originals.values()], seed=seed)
        if variations is None
        else list(variations)
    )
    tell, total, rows, left_out = progress or silent, len(changes), [], dict[str, str]()
    for done, change in enumerate(changes):
        tell(done * len(originals), total * len(originals))
        kept, refused = varied(model, list(originals.values()), change, how, bos=store.manifest.settings.get("bos"))
        if kept:
            rows.append(Stays(change.name, False, in_common(kept, roles=roles), refused))
        else:
            left_out[change.name] = max(refused, key=lambda why: refused[why])
    tell(total * len(originals), total * len(originals))
    if not any(change.example for change in changes):
        left_out["another wording or name"] = "only Keyhole's own ioi prompts can be said again with other words"
    floor_pairs, missing = floors(store, originals, other, rng)
    rows += [Stays(name, True, in_common(pairs, roles=roles), {}) for name, pairs in floor_pairs.items()]
    name = str(store.manifest.task.get("name"))
    return Stability(model_label(model.name), name, len(originals), roles, tuple(rows), left_out | missing)


def varied(
    model: "Model", originals: Sequence[Traced], change: Variation, settings: TraceSettings, *, bos: bool | None = None
) -> tuple[Pairs, dict[str, int]]:
    """Each circuit with the one after a change; and how many prompts have none, by reason."""
    changed = [
        (original, original[0] if change.example is None else change.example(original[0])) for original in originals
    ]
    fits = [(original, example) for original, example in changed if example is not None]
    refused = Counter({"it does not fit": len(changed) - len(fits)} if len(fits) < len(changed) else {})
    how = settings if change.settings is None else change.settings(settings)
    if change.dtype is not None:
        model = rounded(model, change.dtype, weights_only=change.weights_only)
    kept: Pairs = []
    again = retrace(model, [example for _, example in fits], how, bos=bos)
    for (original, example), circuit in zip(fits, again, strict=True):
        if isinstance(circuit, Refused):
            refused[circuit.reason] += 1
        else:
            kept.append((original, (example, circuit)))
    return kept, dict(refused)
