"""How do two circuits, families or stores differ? In their terms, in what heads receive, and in what their edges do."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from keyhole.brief import brief
from keyhole.circuits.records import Parameters
from keyhole.errors import KeyholeError
from keyhole.models.organism import source_named
from keyhole.progress import Stage, quiet
from keyhole.report import Report, Reported
from keyhole.settings.fields import chosen
from keyhole.store.model import model_of
from keyhole.studies.comparison.exclusive import Exclusive, remove_exclusive
from keyhole.studies.comparison.operands import MOST, Comparable, Operand, TermComparison, compare_terms, operand
from keyhole.studies.comparison.score import THRESHOLDS, Against, score
from keyhole.studies.comparison.signals import Member, SignalComparison, compare_signals
from keyhole.studies.comparison.unified import Published, Unified
from keyhole.studies.settings import CompareOptions, CompareSettings, Granularity

if TYPE_CHECKING:
    from keyhole.models.load import Source
    from keyhole.models.model import Model
    from keyhole.studies.families.record import Families

_SETS_ONLY = (
    "only what circuits consist of is compared: signals and removals need prompts of each side that are run again "
    "(members, at the command line --prompts), and 0 were asked for"
)
GRANULARITIES: tuple[Granularity, ...] = ("heads", "edges", "channels")


@dataclass(frozen=True, repr=False)
class Comparison(Reported):
    """Two sides, compared as far as they can be; `notes` say what could not be, and why."""

    a: str  # the one side
    b: str  # the other
    circuits: tuple[int, int]  # how many each side has
    representatives: tuple[int | None, int | None] = (None, None)  # prompts
    terms: tuple[TermComparison, ...] = ()  # at three granularities
    signals: SignalComparison | None = None  # of heads that both have
    exclusive: Exclusive | None = None  # edges that one side has alone, removed in both
    reference: Published | None = None
    published: tuple[Against, ...] = ()
    notes: tuple[str, ...] = ()  # what could not be compared, and why

    __repr__ = brief

    def report(self, top: int = 15) -> Report:
        """What both sides are, share and do; `top`: how many terms are shown at each granularity."""
        from keyhole.studies.comparison.report import report

        return report(self, top)

    def record(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        from keyhole.studies.comparison.report import comparison_record

        return comparison_record(self)


def compare(
    a: Comparable,
    b: Comparable,
    *,
    model: "Model | Source | None" = None,
    settings: CompareSettings | None = None,
    stage: Stage = quiet,
    **options: Unpack[CompareOptions],
) -> Comparison:
    """What do two circuits, families or stores share, and do their heads do the same?

    Args:
        a: A store or a part of it, a circuit, or a published circuit; a text such as "ioi.store[order=ABBA]",
            "ioi.store:1" (a family), "ioi.store#129" (a prompt), "mary.json" or "published:gpt2-ioi".
        b: What it is compared with, given in the same way.
        model: The model, for signals and removals. Default: the one that the store or circuit names.
        settings: How both are compared: a `keyhole.studies.settings.CompareSettings`, whose fields are the choices
            below.
        stage: Opens a part of the work by its name, and gives what its progress is reported to.
        **options: Choices by name; with a record they change it:
            - `members`: How many prompts of each side are run for signals and removals. 0: only sets are compared.
            - `threshold`: The share of circuits that must have a term for it to count.
            - `mode`: What is computed anew after an edge is removed.
            - `draws`: How many random controls each prompt has.
            - `seed`: Seed of prompts and controls.

    Returns:
        What could be compared, and notes on what could not; `print` shows the report.

    >>> import keyhole
    >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
    >>> result = keyhole.compare(run.trace("Mary", through="heads"), run.trace("Mary", method="svt"), members=0)
    >>> result.terms[0].granularity, 0 < result.terms[0].likeness < 1
    ('heads', True)
    """
    settings = chosen(settings, CompareSettings, options)
    threshold, seed = settings.threshold, settings.seed
    known: dict[Path, Families] = {}
    first, second = operand(a, known), operand(b, known)
    if first.reference is not None or second.reference is not None:
        return _against_published(first, second, threshold, seed)
    terms = tuple(
        compare_terms(first.sets(granularity), second.sets(granularity), threshold=threshold)
        for granularity in GRANULARITIES
    )
    notes = _remarks(first, second)
    fields: dict[str, Any] = {"a": first.label, "b": second.label, "circuits": terms[0].circuits, "terms": terms}
    if not _same_model(first, second):
        notes.append("the models differ: head 3.1 of one has nothing to do with head 3.1 of the other")
        return Comparison(**fields, notes=tuple(notes))
    pair = (first.representative(), second.representative())
    fields["representatives"] = (pair[0].prompt, pair[1].prompt)
    methods = [member.circuit.parameters.method for member in pair]
    if len({member.circuit.parameters.basis for member in pair}) > 1:
        fields["terms"] = tuple(comparison for comparison in terms if comparison.granularity != "channels")
        bases = f"traced with {methods[0]} and with {methods[1]}, which number channels in other bases"
        return Comparison(**fields, notes=(*notes, f"{bases}: signals and removals are not compared"))
    if settings.members == 0:
        return Comparison(**fields, notes=(*notes, _SETS_ONLY))
    try:
        run_by = _model(first, second, model)
    except KeyholeError as error:
        if model is not None:
            raise
        return Comparison(**fields, notes=(*notes, f"signals and removals are not compared: {error}"))
    families = _families(first, second, (pair[0].prompt, pair[1].prompt), settings.members, seed)
    with stage("Comparing signals") as progress:
        fields["signals"] = compare_signals(pair, families, run_by, progress=progress)
    notes += _signal_remarks(fields["signals"])
    if reason := _cannot_remove(pair, families):
        return Comparison(**fields, notes=(*notes, f"edges of one side alone are not removed: {reason}"))
    with stage("Removing edges") as progress:
        removed = remove_exclusive(
            pair, families, run_by, mode=settings.mode, draws=settings.draws, seed=seed, progress=progress
        )
    return Comparison(**fields, exclusive=removed, notes=tuple(notes))


def _families(
    first: Operand, second: Operand, representatives: tuple[int | None, int | None], n: int, seed: int
) -> tuple[list[Member], list[Member]]:
    """Other prompts of both sides, without the representatives."""
    same_store = first.store is not None and second.store is not None and _one_store(first, second)
    left_out = [representatives, representatives] if same_store else [representatives[:1], representatives[1:]]
    return first.members(n, seed=seed, but=left_out[0]), second.members(n, seed=seed + 1, but=left_out[1])


def _against_published(first: Operand, second: Operand, threshold: float, seed: int) -> Comparison:
    """Circuits against a published one, which is the reference on either side."""
    if first.reference is not None and second.reference is not None:
        raise KeyholeError("both sides are published circuits: give a store or a circuit for one of them.")
    ours, reference = (first, second.reference) if second.reference is not None else (second, first.reference)
    assert reference is not None
    unified: Unified = ours.unified()
    sizes = None if ours.circuit is None else ours.circuit.circuit.sizes
    _require_fit(unified, reference, None if sizes is None else (sizes.layers, sizes.heads))
    thresholds = sorted({*THRESHOLDS, threshold}) if unified.circuits > 1 else [0.0]
    notes = [reference.note] if reference.note else []
    if not _is_its_model(ours, reference):
        name = str(ours.model.get("name")).rsplit("/", 1)[-1]
        notes.append(
            f"the published circuit is one of {reference.model}: unless {name} is that model, these scores mean nothing"
        )
    if reference.task and ours.store is not None and ours.store.manifest.task.get("name") not in (reference.task, None):
        task = ours.store.manifest.task["name"]
        notes.append(f"the published circuit is for the task {reference.task}, and these prompts are of {task}")
    return Comparison(
        a=first.label,
        b=second.label,
        circuits=(unified.circuits, 1) if ours is first else (1, unified.circuits),
        reference=reference,
        published=score(unified, reference, thresholds=thresholds, seed=seed),
        notes=tuple(notes),
    )


def _is_its_model(ours: Operand, reference: Published) -> bool:
    """Are these circuits of the published circuit's model? Circuits that certainly are of another model are refused.

    A folder or file may hold the model under any name; then the architecture decides.
    """
    name, family = str(ours.model.get("name")), ours.model.get("family")
    short = name.rsplit("/", 1)[-1]
    if not reference.model or short in (reference.model, f"{reference.model}-small"):
        return True
    path = Path(name).expanduser()
    local = name.startswith((".", "/", "~")) or path.suffix == ".gguf" or path.exists()
    if not local or family != reference.family:
        raise KeyholeError(
            f"{reference.name} is a circuit of {reference.model}, and these circuits are of {short}: heads of two "
            f"models cannot be compared by their numbers. Give circuits of {reference.model}."
        )
    return False


def _require_fit(unified: Unified, reference: Published, shape: tuple[int, int] | None) -> None:
    """Refuse a circuit of another model, where the reference does not name its own: by sizes, or by who is named."""
    layers, heads = reference.shape
    if shape is not None and shape != reference.shape and not reference.model:
        raise KeyholeError(
            f"{reference.name} is of a model of {layers} layers and {heads} heads, and this circuit is of another "
            f"model, of {shape[0]} layers and {shape[1]} heads."
        )
    beyond = [end for end in unified.named if (end.layer or 0) >= layers or (end.head or 0) >= heads]
    if beyond and not reference.model:
        last = max(beyond, key=lambda component: (component.kind, component.key))
        raise KeyholeError(
            f"{reference.name} is of a model of {layers} layers and {heads} heads, and here is layer {last.layer}"
            + ("" if last.head is None else f" and head {last.head}")
            + ": they are of another model."
        )


def _remarks(first: Operand, second: Operand) -> list[str]:
    """What a reader should know before the numbers."""
    notes = [
        f"the representative of {side.label} is that of {MOST:,} of its circuits"
        for side in (first, second)
        if side.sampled
    ]
    if first.store is not None and second.store is not None:
        tasks = [str(store.manifest.task.get("name")) for store in (first.store, second.store)]
        if tasks[0] != tasks[1]:
            notes.append(f"the prompts are of other tasks: {tasks[0]} and {tasks[1]}")
        both = set(first.prompts) & set(second.prompts) if _one_store(first, second) else set()
        if both:
            notes.append(f"{len(both)} prompts are on both sides, which makes them more alike")
    sides = [_answer(side) for side in (first, second)]
    if sides[0].against_ids and not sides[1].against_ids:
        notes.append(_unlike(*sides))
    elif sides[1].against_ids and not sides[0].against_ids:
        notes.append(_unlike(*reversed(sides)))
    return notes


def _answer(side: Operand) -> Parameters:
    """The parameters of its circuit, or of a store's first."""
    if side.circuit is not None:
        return side.circuit.circuit.parameters
    assert side.store is not None
    return side.store.circuit(side.prompts[0]).parameters


def _unlike(contrast: Parameters, plain: Parameters) -> str:
    """One side explains a contrast and the other an answer alone: influence is a share of different quantities."""
    pair = " against ".join(_texts(texts) for texts in (contrast.target_text, contrast.against_text))
    quantity = {"prob": "a log-probability", "linear": "a logit"}.get(plain.seeds)
    other = f"{_texts(plain.target_text)} alone, {quantity}" if quantity else "what a direction reads"
    return (
        f"one side explains {pair}, a difference of logits, and the other {other}: shares of the one are not shares "
        "of the other"
    )


def _texts(texts: Sequence[str]) -> str:
    return ", ".join(text.strip() or repr(text) for text in texts)


def _signal_remarks(signals: SignalComparison) -> list[str]:
    notes = []
    if signals.matched == "heads":
        notes.append("some prompts have no roles, so all firings of a head are summed, whatever tokens they join")
    if not signals.rows:
        notes.append("the representatives have no explained head at the same place: there is no signal to compare")
    elif all(row.verdict == "no floor" for row in signals.rows):
        notes.append("no head fires in enough pairs of prompts of both sides: cosines cannot be compared with a floor")
    return notes


def _cannot_remove(pair: tuple[Member, Member], families: tuple[Sequence[Member], Sequence[Member]]) -> str | None:
    """Why edges cannot be removed in both families, if so."""
    if not families[0] or not families[1]:
        return "one side is a single circuit, and has no other prompts"
    if any(member.names is None for member in (*pair, *families[0], *families[1])):
        return "edges are placed in other prompts by roles, and some prompts have none"
    if not all(member.circuit.parameters.target_ids for member in (*families[0], *families[1])):
        return "some circuits have no answer to measure by"
    return None


def _same_model(first: Operand, second: Operand) -> bool:
    return first.model.get("fingerprint") == second.model.get("fingerprint")


def _one_store(first: Operand, second: Operand) -> bool:
    assert first.store is not None and second.store is not None
    return first.store.path.resolve() == second.store.path.resolve()


def _model(first: Operand, second: Operand, given: "Model | Source | None") -> "Model":
    """The model behind both sides: given, or that of a store, or loaded by the name in a circuit."""
    from keyhole.models.load import load
    from keyhole.models.model import Model

    for side in (first, second):
        if side.store is not None:
            return model_of(side.store, given)
    if isinstance(given, Model):
        return given
    name = str(first.model.get("name"))
    return load(source_named(name) if given is None else given)
