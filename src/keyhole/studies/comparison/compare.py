"""How do two circuits, families or stores differ? What they share, what their heads are told, and what acts where."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keyhole.brief import brief
from keyhole.circuits.records import Parameters
from keyhole.errors import KeyholeError
from keyhole.intervene.removal import CutMode
from keyhole.models.organism import source_named
from keyhole.progress import Stage, quiet
from keyhole.report import Report, Reported
from keyhole.store.model import model_of
from keyhole.studies.comparison.exclusive import Exclusive, remove_exclusive
from keyhole.studies.comparison.operands import MOST, Comparable, Operand, TermComparison, compare_terms, operand
from keyhole.studies.comparison.score import THRESHOLD, THRESHOLDS, Against, score
from keyhole.studies.comparison.signals import Member, SignalComparison, compare_signals
from keyhole.studies.comparison.unified import Published, Unified
from keyhole.studies.families.distances import Granularity

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
    notes: tuple[str, ...] = ()  # what could not be told, and why

    __repr__ = brief

    def report(self, top: int = 15) -> Report:
        """What both sides are, share and do; `top`: terms that differ most, at each granularity."""
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
    members: int = 40,
    threshold: float = THRESHOLD,
    mode: CutMode = "local",
    draws: int = 3,
    seed: int = 0,
    stage: Stage = quiet,
) -> Comparison:
    """Compare stores, families, selections, circuits or published circuits (see `keyhole.studies.comparison.operands`).

    Signals and removals need the model, and `members` prompts of each side; the model is that of the store if none is
    given. `members=0` does without. Terms are held against each other from this share of circuits on (`threshold`).
    """
    if members < 0:
        raise KeyholeError(f"members is how many prompts of each side are run: {members} cannot be.")
    known: dict[Path, Families] = {}
    mine, its = operand(a, known), operand(b, known)
    if mine.reference is not None or its.reference is not None:
        return _against_published(mine, its, threshold, seed)
    terms = tuple(compare_terms(mine.sets(one), its.sets(one), threshold=threshold) for one in GRANULARITIES)
    notes = _remarks(mine, its)
    told: dict[str, Any] = {"a": mine.label, "b": its.label, "circuits": terms[0].circuits, "terms": terms}
    if not _same_model(mine, its):
        notes.append("the models differ: what 3.1 does in one says nothing of 3.1 in the other, nor do shared names")
        return Comparison(**told, notes=tuple(notes))
    pair = (mine.representative(), its.representative())
    told["representatives"] = (pair[0].prompt, pair[1].prompt)
    methods = [one.circuit.parameters.method for one in pair]
    if len({one.circuit.parameters.basis for one in pair}) > 1:
        told["terms"] = tuple(one for one in terms if one.granularity != "channels")
        bases = f"traced with {methods[0]} and with {methods[1]}, which number channels in other bases"
        return Comparison(**told, notes=(*notes, f"{bases}: signals and removals are not compared"))
    if members == 0:
        return Comparison(**told, notes=(*notes, _SETS_ONLY))
    try:
        run_by = _model(mine, its, model)
    except KeyholeError as error:
        if model is not None:
            raise
        return Comparison(**told, notes=(*notes, f"signals and removals are not compared: {error}"))
    families = _families(mine, its, (pair[0].prompt, pair[1].prompt), members, seed)
    with stage("Comparing signals") as progress:
        told["signals"] = compare_signals(pair, families, run_by, progress=progress)
    notes += _signal_remarks(told["signals"])
    if reason := _cannot_remove(pair, families):
        return Comparison(**told, notes=(*notes, f"edges of one side alone are not removed: {reason}"))
    with stage("Removing edges") as progress:
        removed = remove_exclusive(pair, families, run_by, mode=mode, draws=draws, seed=seed, progress=progress)
    return Comparison(**told, exclusive=removed, notes=tuple(notes))


def _families(
    mine: Operand, its: Operand, representatives: tuple[int | None, int | None], n: int, seed: int
) -> tuple[list[Member], list[Member]]:
    """Other prompts of both sides: neither representative is among those of its own store."""
    one = mine.store is not None and its.store is not None and _one_store(mine, its)
    left = [representatives, representatives] if one else [representatives[:1], representatives[1:]]
    return mine.members(n, seed=seed, but=left[0]), its.members(n, seed=seed + 1, but=left[1])


def _against_published(mine: Operand, its: Operand, threshold: float, seed: int) -> Comparison:
    """Circuits against a published one; whichever side it was given on, it is the reference."""
    if mine.reference is not None and its.reference is not None:
        raise KeyholeError("two published circuits have nothing of ours in them: give a store or a circuit for one.")
    ours, reference = (mine, its.reference) if its.reference is not None else (its, mine.reference)
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
        a=mine.label,
        b=its.label,
        circuits=(unified.circuits, 1) if ours is mine else (1, unified.circuits),
        reference=reference,
        published=score(unified, reference, thresholds=thresholds, seed=seed),
        notes=tuple(notes),
    )


def _is_its_model(ours: Operand, reference: Published) -> bool:
    """Are these circuits of the model that the published one is of? Refuses what certainly is another model.

    Head 9.6 of one model has nothing to do with head 9.6 of another. A folder or file may hold the model under any
    name.
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


def _remarks(mine: Operand, its: Operand) -> list[str]:
    """What a reader should know before all numbers."""
    notes = [
        f"the representative of {one.label} is that of {MOST:,} of its circuits" for one in (mine, its) if one.sampled
    ]
    if mine.store is not None and its.store is not None:
        tasks = [str(one.manifest.task.get("name")) for one in (mine.store, its.store)]
        if tasks[0] != tasks[1]:
            notes.append(f"the prompts are of other tasks: {tasks[0]} and {tasks[1]}")
        both = set(mine.prompts) & set(its.prompts) if _one_store(mine, its) else set()
        if both:
            notes.append(f"{len(both)} prompts are on both sides, which makes them more alike")
    sides = [_answer(one) for one in (mine, its)]
    if sides[0].against_ids and not sides[1].against_ids:
        notes.append(_unlike(*sides))
    elif sides[1].against_ids and not sides[0].against_ids:
        notes.append(_unlike(*reversed(sides)))
    return notes


def _answer(one: Operand) -> Parameters:
    """What its circuits, or the first of a store's, were traced for."""
    if one.circuit is not None:
        return one.circuit.circuit.parameters
    assert one.store is not None
    return one.store.circuit(one.prompts[0]).parameters


def _unlike(contrast: Parameters, plain: Parameters) -> str:
    """A contrast beside an answer by itself: influence is a share of another quantity on each side."""
    pair = " against ".join(_texts(one) for one in (contrast.target_text, contrast.against_text))
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
        notes.append("no head fires in enough pairs of prompts of both sides: cosines have no floor beside them")
    return notes


def _cannot_remove(pair: tuple[Member, Member], families: tuple[Sequence[Member], Sequence[Member]]) -> str | None:
    """Why edges cannot be removed in both families, if so."""
    if not families[0] or not families[1]:
        return "one side is a single circuit, and has no other prompts"
    if any(one.names is None for one in (*pair, *families[0], *families[1])):
        return "edges are placed in other prompts by roles, and some prompts have none"
    if not all(one.circuit.parameters.target_ids for one in (*families[0], *families[1])):
        return "some circuits have no answer to measure by"
    return None


def _same_model(mine: Operand, its: Operand) -> bool:
    return mine.model.get("fingerprint") == its.model.get("fingerprint")


def _one_store(mine: Operand, its: Operand) -> bool:
    assert mine.store is not None and its.store is not None
    return mine.store.path.resolve() == its.store.path.resolve()


def _model(mine: Operand, its: Operand, given: "Model | Source | None") -> "Model":
    """The model behind both sides: given, or that of a store, or loaded by the name in a circuit."""
    from keyhole.models.load import load
    from keyhole.models.model import Model

    for one in (mine, its):
        if one.store is not None:
            return model_of(one.store, given)
    if isinstance(given, Model):
        return given
    name = str(mine.model.get("name"))
    return load(source_named(name) if given is None else given)
