"""What do the signals of a circuit, a store or a head mean? Looked for in a corpus, named, and the names tested.

    naming = keyhole.name("ioi.store")             # or a circuit, its file, a head (3, 1), subjects of your own
    print(naming); naming.save("names.html")

Directions that are the same are one subject, whoever writes them: into one channel of a head every writer writes the
same direction, up to its sign. Beside them random directions of the same heads are looked for in the same pass.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from keyhole.circuits.circuit import Circuit
from keyhole.circuits.files import load_circuit
from keyhole.errors import KeyholeError
from keyhole.naming.attached.same import distinct
from keyhole.naming.explain.over_represented import statistics
from keyhole.naming.gathering.gather import TOKENS, gather
from keyhole.naming.name import Explainer
from keyhole.naming.named import Naming
from keyhole.naming.reading.texts import Source
from keyhole.naming.shown import Examples
from keyhole.naming.signals import name_signals
from keyhole.naming.subject import Subject
from keyhole.naming.subjects import channel_subjects, random_subjects, signal_subjects, store_subjects
from keyhole.naming.where import read_what
from keyhole.progress import Progress, silent
from keyhole.store.model import model_of
from keyhole.store.reading import Where
from keyhole.store.store import Store, open_store

if TYPE_CHECKING:
    from keyhole.models.model import Model

What = Circuit | Store | tuple[int, int] | Sequence[Subject] | str | Path
MOST, RANDOM = 100, 200
_AS_MANY_TERMS = 4  # terms are taken up for every subject that is wanted: many share a direction
_PROMPTS = 20  # of which a term's direction is made: in one channel any would do
_SUBJECTS, _READ, _ALL = 150, 900, 1000  # how far subjects, reading and naming are, of the whole


def name(
    what: What,
    model: "Model | None" = None,
    *,
    corpus: Source | None = None,
    most: int = MOST,
    random: int = RANDOM,
    tokens: int = TOKENS,
    explainer: Explainer = statistics,
    seed: int = 0,
    folder: Path | str | None = None,
    progress: Progress = silent,
) -> Naming:
    """Name the signals of a circuit (the strongest), of a store (the most frequent), or the channels of a head.

    At most so many; beside as many `random` directions of their heads. Examples are from so many tokens of a corpus
    (see `texts`); with a `folder` they are kept there, and a call that was stopped goes on.
    """
    if most < 1 or random < 0:
        raise KeyholeError(f"{most} signals and {random} random directions were asked for: give 1 and 0 or more.")
    what = read(what)
    found = _model(what, model)
    subjects = subjects_of(what, found, most=most, progress=_part(progress, 0, _SUBJECTS))
    examples, nulls = examples_of(
        found,
        subjects,
        corpus,
        random=random,
        tokens=tokens,
        seed=seed,
        folder=folder,
        progress=_part(progress, _SUBJECTS, _READ),
    )
    told = {"model": found.name, "seed": seed, "progress": _part(progress, _READ, _ALL)}
    naming = name_signals(examples, explainer, random=nulls, **told)  # type: ignore[arg-type]
    return replace(naming, fingerprint=found.fingerprint())


def read(what: What) -> Circuit | Store | tuple[int, int] | Sequence[Subject] | str:
    """What a text names: a head (3.1), a store's folder, or a circuit file; channels and edges need the model first."""
    if not isinstance(what, str | Path) or is_one(str(what)):
        return what if not isinstance(what, Path) else str(what)
    layer, dot, head = str(what).partition(".")
    if dot and layer.isdecimal() and head.isdecimal():
        return int(layer), int(head)
    path = Path(what)
    if path.is_dir():
        return open_store(path)
    if not path.exists():
        raise KeyholeError(f"there is no {path}: give a circuit (.json), a store of circuits, or a head such as 3.1.")
    return load_circuit(path)


def is_one(text: str) -> bool:
    """Is it one channel (3.1:4) or edge (mary.json#12), as `keyhole where` takes them?"""
    return "#" in text or (":" in text and text[:1].isdecimal())


def subjects_of(
    what: What, model: "Model", *, most: int = MOST, where: Where = None, progress: Progress = silent
) -> list[Subject]:
    """What is to be named, the most frequent or strongest first: one subject for every direction."""
    what = read(what)
    if isinstance(what, Store):
        found = store_subjects(what, model, most=_AS_MANY_TERMS * most, each=_PROMPTS, where=where, progress=progress)
    elif isinstance(what, Circuit):
        found = sorted(signal_subjects(what, model), key=lambda one: -_strength(what, one))
    elif isinstance(what, tuple) and len(what) == 2 and all(isinstance(i, int) for i in what):
        found = channel_subjects(model, what)  # type: ignore[arg-type]
    elif isinstance(what, str):
        found = [read_what(model, what)]  # type: ignore[list-item]
    else:
        found = list(what)  # type: ignore[arg-type]
    if not found:
        raise KeyholeError("there is nothing to name: no edge of this circuit is a signal into a head.")
    return distinct(found)[:most]


def examples_of(
    model: "Model",
    subjects: Sequence[Subject],
    corpus: Source | None = None,
    *,
    random: int = RANDOM,
    tokens: int = TOKENS,
    seed: int = 0,
    folder: Path | str | None = None,
    progress: Progress = silent,
) -> tuple[list[Examples], list[Examples]]:
    """Examples of these subjects, and of so many random directions of their heads, from one pass."""
    others = randoms(model, subjects, random, seed)
    found = gather(model, [*subjects, *others], corpus, tokens=tokens, seed=seed, folder=folder, progress=progress)
    return found[: len(subjects)], found[len(subjects) :]


def randoms(model: "Model", like: Sequence[Subject], n: int, seed: int = 0) -> list[Subject]:
    """Random directions of the heads of these, each as often as any other, and no two the same."""
    rng, found = np.random.default_rng(seed), list[Subject]()
    while len(found) < n:
        order = rng.permutation(len(like))[: n - len(found)]
        drawn = random_subjects(model, [like[i] for i in order], int(rng.integers(1 << 31)))
        found += [
            replace(one, id=f"{one.head[0]}.{one.head[1]} random {len(found) + i}") for i, one in enumerate(drawn)
        ]
    return found


def _strength(circuit: Circuit, subject: Subject) -> float:
    edge = circuit.edges[int(subject.about["edge"])]
    return edge.weight if edge.influence is None else edge.influence


def _model(what: What, model: "Model | None") -> "Model":
    """The model in hand, that of a circuit's run, or the one that a store or a circuit names."""
    from keyhole.models.load import load

    if isinstance(what, Store):
        return model_of(what, model)
    if model is not None:
        return model
    if isinstance(what, Circuit):
        if what.run is not None:
            return what.run.model
        name = what.model.get("name")
        return load(None if name == "organism" else name)
    if isinstance(what, str) and "#" in what:
        return _model(load_circuit(what.rpartition("#")[0]), None)
    return load()


def _part(progress: Progress, start: int, end: int) -> Progress:
    """How far a part is, as a share of the whole."""
    return lambda done, total: progress(start + (end - start) * done // max(total, 1), _ALL)
