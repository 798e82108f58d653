"""What is a store of? Its manifest, what became of each prompt, and the choices for all of them.

The manifest has everything that decides a store's content, in one JSON document: model, settings and prompts.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import numpy as np
from jaxtyping import Int

from keyhole.circuits.circuit import Circuit
from keyhole.errors import KeyholeError, require_choice
from keyhole.settings.stores import PART
from keyhole.strict import Index, is_index, parse_json, quoted, read, require
from keyhole.tasks.example import Example

if TYPE_CHECKING:
    import numpy.typing as npt

    from keyhole.store.store import Store, Where

SCHEMA = 1
MANIFEST = "manifest.json"
_FIELDS = tuple(field.name for field in fields(Example))


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What decides a store's content, and the versions it was begun with. See `manifest_of`."""

    model: Mapping[str, str]  # name, family, fingerprint
    settings: Mapping[str, Any]  # every one, as plain values
    task: Mapping[str, Any]  # where the prompts are from: a name or a file, seed, choices
    n: Index  # prompts
    part: Index  # prompts per part
    prompts: tuple[str, ...]  # a digest of each part's
    labels: tuple[str, ...]  # every label that some prompt has: a column each
    signals: Index | None  # length of the edges' vectors, if these are kept
    versions: Mapping[str, str]
    schema: int = SCHEMA

    @property
    def parts(self) -> int:
        """How many parts there are."""
        return len(self.prompts)

    @property
    def method(self) -> str:
        """By which method its circuits were traced; stores of accpp do not say so."""
        return str(self.settings.get("method", "accpp"))

    @property
    def measured(self) -> bool:
        """Do its circuits have effects, shares and faithfulness? Then its tables have columns for them."""
        return bool(self.settings.get("effects")) or self.method == "sufficient"

    def span(self, number: int) -> range:
        """The prompts of one part.

        Args:
            number: The index of the part.

        >>> from keyhole.tasks import ioi
        >>> manifest_of(ioi(3), model={}, settings={}, task={}, versions={}, part=2).span(1)
        range(2, 3)
        """
        return range(number * self.part, min(self.n, (number + 1) * self.part))

    def key(self, number: int) -> str:
        """A name for everything that decides a part: the model's weights, settings, its prompts, and the schema.

        Args:
            number: The index of the part.

        >>> from keyhole.tasks import ioi
        >>> manifest = manifest_of(ioi(3), model={}, settings={}, task={}, versions={}, part=2)
        >>> manifest.key(0) != manifest.key(1)
        True
        """
        about = {"fingerprint": self.model.get("fingerprint"), "settings": self.settings, "labels": self.labels}
        more = {"prompts": self.prompts[number], "signals": self.signals, "schema": self.schema}
        return _digest(about | more)

    def name(self, number: int) -> str:
        """What a part's files are called, so that names sort as the rows do.

        Args:
            number: The index of the part.

        >>> from keyhole.tasks import ioi
        >>> manifest_of(ioi(3), model={}, settings={}, task={}, versions={}, part=2).name(1)[:6]
        '00001-'
        """
        return f"{number:0{max(5, len(str(self.parts - 1)))}d}-{self.key(number)}"


def manifest_of(
    examples: Sequence[Example],
    *,
    model: Mapping[str, str],
    settings: Mapping[str, Any],
    task: Mapping[str, Any],
    versions: Mapping[str, str],
    part: int = PART,
    signals: int | None = None,
) -> Manifest:
    """The manifest of a store of these prompts.

    Args:
        examples: The prompts.
        model: The model's name and fingerprint.
        settings: How they are traced, as plain values that JSON has.
        task: Which task they are of, and its choices, likewise.
        versions: The versions of the packages.
        part: How many prompts are written together.
        signals: The length of the edges' vectors. Default: vectors are not kept.

    >>> from keyhole.tasks import ioi
    >>> manifest_of(ioi(3), model={"name": "organism"}, settings={}, task={}, versions={}, part=2).n
    3
    """
    if not examples or part < 1:
        raise KeyholeError(f"{len(examples)} prompts in parts of {part} are no run: both should be at least 1.")
    blocks = [examples[start : start + part] for start in range(0, len(examples), part)]
    return Manifest(
        model=dict(model),
        settings=_plain("settings", settings),
        task=_plain("task", task),
        n=len(examples),
        part=part,
        prompts=tuple(prompts_digest(block) for block in blocks),
        labels=tuple(sorted({name for example in examples for name in example.labels})),
        signals=signals,
        versions=dict(versions),
    )


def prompts_digest(examples: Sequence[Example]) -> str:
    """A name for these prompts, in this order, with all that is known of them."""
    return _digest([{name: getattr(example, name) for name in _FIELDS} for example in examples])


def manifest_text(manifest: Manifest) -> str:
    """A manifest as a JSON document; `manifest_from` gives back an equal one."""
    return json.dumps({"keyhole": "store", **asdict(manifest)}, ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def manifest_from(text: str) -> Manifest:
    """A manifest from its JSON document; what is damaged, foreign or of another schema is refused."""
    document = parse_json(text)
    require(isinstance(document, dict) and document.pop("keyhole", None) == "store", "it is no manifest of a store.")
    schema = document.get("schema")
    newer = " A newer Keyhole wrote it: update." if is_index(schema) and schema > SCHEMA else ""
    require(schema == SCHEMA, f"its schema is {quoted(schema)}, and this version reads {SCHEMA}.{newer}")
    manifest = read(Manifest, document)
    require("fingerprint" in manifest.model, "its model has no fingerprint.")
    n, part, parts = manifest.n, manifest.part, len(manifest.prompts)
    require(part > 0 and parts == -(-n // part), f"{n} prompts in parts of {part} are not {parts} parts.")
    return manifest


def differences(theirs: Manifest, ours: Manifest) -> list[str]:
    """In what two stores differ, each with both values; not versions and the model's name, which change no number."""
    reasons: list[str] = []
    for name in ("schema", "n", "part", "labels", "signals"):
        reasons += _differ(name, getattr(theirs, name), getattr(ours, name))
    for name in ("model", "settings", "task"):
        if name == "settings" and theirs.method != ours.method:  # two methods have no other setting in common
            reasons += _differ("settings method", theirs.method, ours.method)
            continue
        old, new = getattr(theirs, name), getattr(ours, name)
        for key in sorted({*old, *new} - ({"name"} if name == "model" else set())):
            reasons += _differ(f"{name} {key}", old.get(key), new.get(key))
    other = [i for i, pair in enumerate(zip(theirs.prompts, ours.prompts, strict=False)) if pair[0] != pair[1]]
    if other and theirs.part == ours.part:
        first = _first_prompts(theirs, other[0])
        reasons.append(f"{len(other)} of {theirs.parts} parts have other prompts, first prompts {first}")
    return reasons


def _differ(name: str, theirs: Any, ours: Any) -> Iterator[str]:
    if theirs != ours:
        yield f"{name} is {quoted(theirs)} there and {quoted(ours)} here"


def _first_prompts(manifest: Manifest, number: int) -> str:
    span = manifest.span(number)
    return f"{span[0]} to {span[-1]}"


def _digest(about: object) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True, allow_nan=False, default=dict).encode()).hexdigest()[:16]


def _plain(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values as JSON reads them back, so that a written and a read manifest are equal."""
    try:
        return dict(json.loads(json.dumps(dict(values), allow_nan=False)))
    except (TypeError, ValueError) as error:
        raise KeyholeError(f"{name} should be plain values, which JSON can hold: {error}.") from error


# What became of one prompt of many? Its circuit, or why there is none, and how well the model knew the answer.

Status = Literal["circuit", "headless", "empty", "failed", "skipped"]
STATUSES: tuple[Status, ...] = get_args(Status)


@dataclass(frozen=True)
class Outcome:
    """One prompt of a run over many.

    The fields of the model's own answer are None if the prompt failed before the model ran.
    """

    index: int  # in the whole run
    example: Example  # the prompt and its answers
    status: Status  # headless: a circuit without heads; empty: nothing to trace; skipped: the model was wrong
    circuit: Circuit | None = None  # None: there is none
    error: str | None = None  # why there is no circuit
    correct: bool | None = None  # whether the likeliest token is a right answer
    predicted: str | None = None  # the likeliest token
    probability: float | None = None  # of the right answers together
    difference: float | None = None  # mean logit, right answers less wrong ones
    # vectors by edge, if the store keeps them (`keyhole.store.store`); not read back with the rest
    signals: "Mapping[int, npt.NDArray[np.float32]] | None" = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        require_choice("status", self.status, Status)
        if (self.circuit is not None) != (self.status in ("circuit", "headless")):
            circuit = "no circuit" if self.circuit is None else "a circuit"
            raise KeyholeError(f'prompt {self.index} cannot have status "{self.status}" and {circuit}.')
        if self.circuit is not None and self.circuit.has_heads != (self.status == "circuit"):
            raise KeyholeError(f'prompt {self.index}: a circuit is "headless" if it has no heads, and only then.')
        if self.status == "failed" and not self.error:
            raise KeyholeError(f"prompt {self.index} failed: say why, in `error`.")


# Which prompts of a store have a circuit, and which few of them represent all?

T = TypeVar("T")


def traced_prompts(store: "Store", where: "Where" = None) -> Int[np.ndarray, "circuits"]:
    """The prompts that have a circuit, of those that `where` (of the table `prompts`) asks for; in order."""
    chosen = store.table("prompts", columns=["prompt"], where=where)["prompt"].to_numpy()
    return np.intersect1d(chosen, store.table("circuits", columns=["prompt"])["prompt"].to_numpy())


def label_columns(store: "Store", where: Mapping[str, object]) -> dict[str, object]:
    """Conditions on a store's prompts, with labels renamed to their columns, which hold only texts."""
    labels = {name: f"label_{name}" for name in store.manifest.labels}
    wanted = {labels.get(name, name): value for name, value in where.items()}
    return {
        name: str(value) if name in labels.values() and isinstance(value, int) else value
        for name, value in wanted.items()
    }


def by_template(store: "Store", prompts: Sequence[int]) -> list[int]:
    """These prompts, those of one template together.

    A task writes some prompts with one order of names, then as many with the other, and so on. Prompts picked at even
    distances could then all have the same order. Picked from this list, they have both.
    """
    table = store.table("prompts", columns=["prompt", "template"], where={"prompt": list(prompts)})
    template = dict(zip(table["prompt"].to_pylist(), table["template"].to_pylist(), strict=True))
    return sorted(prompts, key=lambda prompt: (template[prompt] or "", prompt))


def some_prompts(store: "Store", n: int) -> list[int]:
    """At most n prompts with a circuit, as many of each template as its share."""
    return spread(by_template(store, traced_prompts(store).tolist()), n)


def spread(items: Sequence[T], n: int) -> list[T]:
    """Pick n of these items at even distances.

    >>> spread(range(10), 3), spread("ab", 5), spread("", 5)
    ([0, 3, 6], ['a', 'b'], [])
    """
    n = min(n, len(items))
    return [items[i * len(items) // n] for i in range(n)]
