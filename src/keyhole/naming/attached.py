"""Where do names go? To edges and heads, into examples, and into files.

Which name has an edge, a head, a term? That of the same direction in the same head, whoever wrote it.

An edge of a circuit is looked up by its direction: the same channels of the same head, and coordinates that point the
same way (in one channel: the same sign). So names of a store serve any circuit of the same model.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from keyhole.brief import Head, head_name
from keyhole.circuits.circuit import Circuit, Edge
from keyhole.errors import KeyholeError
from keyhole.models.numbers import require_same_weights
from keyhole.naming.judge.judge import RIGHT, rule_judge
from keyhole.naming.judge.questions import Marked, Question
from keyhole.naming.record import Named, Naming
from keyhole.naming.subjects.kinds import signal_subjects
from keyhole.naming.subjects.subject import ALIKE, Shown, Subject, alike, basis_of, paired

if TYPE_CHECKING:
    from keyhole.models.model import Model


def name_of(naming: Naming, what: str | Subject) -> Named | None:
    """The name of a term, by its id or that of one which shares its direction; or of a subject, by its direction."""
    if isinstance(what, str):
        return next((one for one in naming.signals if what == one.id or what in ids_beside(one)), None)
    near = [(alike(one.about, what.about), one) for one in naming.signals if one.head == what.head]
    best, found = max(near, key=lambda pair: pair[0], default=(0.0, None))
    return found if best >= ALIKE else None


def ids_beside(one: Named) -> tuple[str, ...]:
    """The other terms that have this direction."""
    return one.about.get("also", ())


def named_edges(circuit: Circuit, naming: Naming, model: "Model | None" = None) -> dict[Edge, Named]:
    """The edges of a circuit that have a name, passed or not; one from a file needs the `model` that made it."""
    require_same_model(naming, circuit.model)
    found = ((one, name_of(naming, one)) for one in signal_subjects(circuit, model))
    return {circuit.edges[one.about["edge"]]: named for one, named in found if named is not None}


def edge_names(
    circuit: Circuit, naming: Naming, model: "Model | None" = None, *, every: bool = False
) -> dict[Edge, str]:
    """The names that are right, as texts for the tree, the story and the page; `every`: the others, too.

    What a name lacks is said: above chance, where random directions' names are as right; not so here, where its
    sentence, which is of the places where the signal is strongest, is not true of the two tokens that an edge is about.
    """
    found = {}
    for edge, one in named_edges(circuit, naming, model).items():
        outcome = one.outcome()
        if one.name.text is not None and (outcome in RIGHT or every):
            notes: list[str] = [outcome] if outcome != "passes" else []
            notes += ["not so here"] if _false(circuit, edge, one) else []
            found[edge] = one.name.text + (f" ({', '.join(notes)})" if notes else "")
    return found


def _false(circuit: Circuit, edge: Edge, one: Named) -> bool:
    """Is it known that the sentence is not true of this firing? Of a model's own words nothing is."""
    into = circuit.nodes[edge.receiver]
    here = Question("detection", (Marked(circuit.tokens, into.dest, into.src),))
    return rule_judge(one.name.text or "", here).yes is False


def require_same_model(naming: Naming, model: Mapping[str, str]) -> None:
    """Refuse names of other weights: their channels are other directions."""
    known = f"of {naming.model}" if naming.fingerprint else "of a model that they do not tell"
    require_same_weights(
        naming.fingerprint,
        model.get("fingerprint"),
        f"these names are {known}, and not of the weights of {model.get('name')}: name its signals first (keyhole "
        "name).",
    )


@dataclass(frozen=True)
class HeadNames:
    """What a head is known to look for: its named signals, those of most prompts first."""

    head: Head
    signals: int  # that were looked at
    right: int  # whose names are above chance
    passed: int  # and beyond random directions' names
    names: tuple[Named, ...]  # that are right, no text twice; those that pass first

    def __str__(self) -> str:
        told = "; ".join(str(one.name) for one in self.names[:3])
        more = f"; and {len(self.names) - 3} more" if len(self.names) > 3 else ""
        counts = f"of {self.signals} {self.right} above chance, {self.passed} pass"
        return f"{head_name(self.head)} ({counts}): {told or 'none'}{more}"


def head_names(naming: Naming) -> tuple[HeadNames, ...]:
    """The names of every head, as its signals have them."""
    heads: dict[Head, list[Named]] = {}
    for one in naming.signals:
        heads.setdefault(one.head, []).append(one)
    return tuple(_of_head(head, own) for head, own in sorted(heads.items()))


def _of_head(head: Head, own: list[Named]) -> HeadNames:
    """Those that pass first, then those of most prompts, then as they were given."""
    right = [one for one in own if one.outcome() in RIGHT]
    passed = sum(one.outcome() == "passes" for one in right)
    ranked = sorted(right, key=lambda one: (one.outcome() != "passes", -one.about.get("prompts", 0)))
    names = {one.name.text: one for one in ranked[::-1]}
    return HeadNames(head, len(own), len(right), passed, tuple(names.values())[::-1])


# How does an example read? Its text with dest and src marked, and its far ends cut.

Mark = Literal["", "dest", "src", "both"]
AROUND = 60  # characters of text on each side of the two tokens
_SIGNS: dict[Mark, tuple[str, str]] = {
    "": ("", ""),
    "dest": ("[[", "]]"),
    "src": ("((", "))"),
    "both": ("[[((", "))]]"),
}


def parts(one: Shown, around: int = AROUND) -> list[tuple[str, Mark]]:
    """The text in pieces, each with how it is marked; spaces before a token are not.

    >>> parts(Shown(0, ("Mary", " went", " to"), 2, 0, 1.0, 1.0, "top"))
    [('Mary', 'src'), (' went ', ''), ('to', 'dest')]
    """
    glue = "" if any(token.startswith((" ", "\n")) for token in one.tokens) else " "  # else tokens are whole words
    found: list[tuple[str, Mark]] = []
    for at, token in enumerate(one.tokens):
        text = (glue if at else "") + token.replace("\n", " ")
        bare = text.lstrip()
        mark = _mark(one, at)
        space = text[: len(text) - len(bare)] if mark else ""
        for piece, kind in ((space, ""), (bare if mark else text, mark)):
            if piece and found and found[-1][1] == kind == "":
                found[-1] = (found[-1][0] + piece, "")
            elif piece:
                found.append((piece, kind))  # type: ignore[arg-type]
    return _cut(found, around)


def marked_text(one: Shown, around: int = AROUND) -> str:
    """As plain text: [[dest]] attends to ((src)).

    >>> marked_text(Shown(0, ("Mary", " went", " to"), 2, 0, 1.0, 1.0, "top"))
    '((Mary)) went [[to]]'
    """
    return "".join(f"{_SIGNS[mark][0]}{text}{_SIGNS[mark][1]}" for text, mark in parts(one, around)).strip()


def _mark(one: Shown, at: int) -> Mark:
    if one.dest == one.src == at:
        return "both"
    return "dest" if at == one.dest else "src" if at == one.src else ""


def _cut(found: list[tuple[str, Mark]], around: int) -> list[tuple[str, Mark]]:
    """Without the far ends; what stands between the two tokens stays whole."""
    first, last = found[0], found[-1]
    if not first[1] and len(first[0]) > around:
        found = [(f"…{first[0][-around:]}", ""), *found[1:]]
    if not last[1] and len(last[0]) > around:
        found = [*found[:-1], (f"{last[0][:around]}…", "")]
    return found


# Which direction did a name stand for? Made again from the channels and coordinates that it was stored with.


def subject_again(model: "Model", named: Named) -> Subject:
    """The subject of a named signal or channel."""
    about = named.about
    if "coordinates" not in about:
        raise KeyholeError(f"{named.id} is no signal and no channel: its direction is not stored with its name.")
    coordinates, side = torch.tensor(about["coordinates"]), about.get("side", "src")
    directions = paired(model, named.head, side, about["channels"], coordinates=coordinates, basis=basis_of(about))
    return Subject(named.id, named.kind, named.head, *directions, about=about)
