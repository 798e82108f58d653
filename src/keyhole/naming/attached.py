"""Which name has an edge, a head or a term, and how does an example of it read?

An edge of a circuit is looked up by its direction: the same channels of the same head, and coordinates that point the
same way (in one channel: the same sign), whoever wrote it. So names of a store serve any circuit of the same model.
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


# Which name has an edge, a head, a term? That of the same direction in the same head.


def name_of(naming: Naming, term: str | Subject) -> Named | None:
    """The name of a term; None: it has none.

    Args:
        naming: The names.
        term: An id such as "9.6 dest 3 <- 7.9", also that of another term with the same direction; or a subject, which
            is looked up by its direction.
    """
    if isinstance(term, str):
        return next((named for named in naming.signals if term == named.id or term in ids_beside(named)), None)
    near = [(alike(named.about, term.about), named) for named in naming.signals if named.head == term.head]
    best, nearest = max(near, key=lambda pair: pair[0], default=(0.0, None))
    return nearest if best >= ALIKE else None


def ids_beside(named: Named) -> tuple[str, ...]:
    """The other terms that have this direction."""
    return named.about.get("also", ())


def named_edges(circuit: Circuit, naming: Naming, model: "Model | None" = None) -> dict[Edge, Named]:
    """The edges of a circuit that have a name, whether or not it passed.

    Args:
        circuit: The circuit.
        naming: Names of the same model's signals.
        model: The model that made the circuit, if it was read from a file.
    """
    require_same_model(naming, circuit.model)
    names = ((subject, name_of(naming, subject)) for subject in signal_subjects(circuit, model))
    return {circuit.edges[subject.about["edge"]]: named for subject, named in names if named is not None}


def edge_names(
    circuit: Circuit, naming: Naming, model: "Model | None" = None, *, every: bool = False
) -> dict[Edge, str]:
    """The names that are right, as texts for the tree, the story and the page.

    A text says what its name lacks. "above chance": names of random directions are as often right. "not so here": the
    sentence describes the places where the signal is strongest, and is not true of the two tokens of this edge.

    Args:
        circuit: The circuit.
        naming: Names of the same model's signals.
        model: The model that made the circuit, if it was read from a file.
        every: Give the names that are not right, too.
    """
    texts = {}
    for edge, named in named_edges(circuit, naming, model).items():
        outcome = named.outcome()
        if named.name.text is not None and (outcome in RIGHT or every):
            notes: list[str] = [outcome] if outcome != "passes" else []
            notes += ["not so here"] if _false(circuit, edge, named) else []
            texts[edge] = named.name.text + (f" ({', '.join(notes)})" if notes else "")
    return texts


def _false(circuit: Circuit, edge: Edge, named: Named) -> bool:
    """Is it known that the sentence is not true of this firing? A rule cannot judge a language model's own words."""
    into = circuit.nodes[edge.receiver]
    here = Question("detection", (Marked(circuit.tokens, into.dest, into.src),))
    return rule_judge(named.name.text or "", here).yes is False


def require_same_model(naming: Naming, model: Mapping[str, str]) -> None:
    """Refuse names of other weights: their channels are other directions."""
    source = f"of {naming.model}" if naming.fingerprint else "of a model that they do not record"
    require_same_weights(
        naming.fingerprint,
        model.get("fingerprint"),
        f"these names are {source}, and not of the weights of {model.get('name')}: name its signals first (keyhole "
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
        first = "; ".join(str(named.name) for named in self.names[:3])
        more = f"; and {len(self.names) - 3} more" if len(self.names) > 3 else ""
        counts = f"of {self.signals} {self.right} above chance, {self.passed} pass"
        return f"{head_name(self.head)} ({counts}): {first or 'none'}{more}"


def head_names(naming: Naming) -> tuple[HeadNames, ...]:
    """The names of every head, as its signals have them.

    Args:
        naming: Names of a model's signals.
    """
    heads: dict[Head, list[Named]] = {}
    for named in naming.signals:
        heads.setdefault(named.head, []).append(named)
    return tuple(_of_head(head, signals) for head, signals in sorted(heads.items()))


def _of_head(head: Head, signals: list[Named]) -> HeadNames:
    """Those that pass first, then those of most prompts, then as they were given."""
    right = [named for named in signals if named.outcome() in RIGHT]
    passed = sum(named.outcome() == "passes" for named in right)
    ranked = sorted(right, key=lambda named: (named.outcome() != "passes", -named.about.get("prompts", 0)))
    names = {named.name.text: named for named in ranked[::-1]}  # backwards, so that of equal texts the first stays
    return HeadNames(head, len(signals), len(right), passed, tuple(names.values())[::-1])


# How does an example read? Its text with dest and src marked, and its far ends cut.

Mark = Literal["", "dest", "src", "both"]
AROUND = 60  # characters of text on each side of the two tokens
_SIGNS: dict[Mark, tuple[str, str]] = {
    "": ("", ""),
    "dest": ("[[", "]]"),
    "src": ("((", "))"),
    "both": ("[[((", "))]]"),
}


def parts(example: Shown, around: int = AROUND) -> list[tuple[str, Mark]]:
    """The text of an example in pieces, each with its mark; spaces before a token are not marked.

    Args:
        example: A pair of tokens in a text.
        around: How many characters are kept before and after the two tokens; the text between them is never cut.

    >>> parts(Shown(0, ("Mary", " went", " to"), 2, 0, 1.0, 1.0, "top"))
    [('Mary', 'src'), (' went ', ''), ('to', 'dest')]
    """
    # Where no token begins with a space, tokens are whole words, as those of the organism.
    glue = "" if any(token.startswith((" ", "\n")) for token in example.tokens) else " "
    pieces: list[tuple[str, Mark]] = []
    for at, token in enumerate(example.tokens):
        text = (glue if at else "") + token.replace("\n", " ")
        bare = text.lstrip()
        mark = _mark(example, at)
        space = text[: len(text) - len(bare)] if mark else ""
        for piece, kind in ((space, ""), (bare if mark else text, mark)):
            if piece and pieces and pieces[-1][1] == kind == "":
                pieces[-1] = (pieces[-1][0] + piece, "")
            elif piece:
                pieces.append((piece, kind))  # type: ignore[arg-type]
    return _cut(pieces, around)


def marked_text(example: Shown, around: int = AROUND) -> str:
    """An example as plain text: [[dest]] attends to ((src)).

    Args:
        example: A pair of tokens in a text.
        around: How many characters are kept before and after the two tokens.

    >>> marked_text(Shown(0, ("Mary", " went", " to"), 2, 0, 1.0, 1.0, "top"))
    '((Mary)) went [[to]]'
    """
    return "".join(f"{_SIGNS[mark][0]}{text}{_SIGNS[mark][1]}" for text, mark in parts(example, around)).strip()


def _mark(example: Shown, at: int) -> Mark:
    if example.dest == example.src == at:
        return "both"
    return "dest" if at == example.dest else "src" if at == example.src else ""


def _cut(pieces: list[tuple[str, Mark]], around: int) -> list[tuple[str, Mark]]:
    """Without the far ends; what stands between the two tokens stays whole."""
    first, last = pieces[0], pieces[-1]
    if not first[1] and len(first[0]) > around:
        pieces = [(f"…{first[0][-around:]}", ""), *pieces[1:]]
    if not last[1] and len(last[0]) > around:
        pieces = [*pieces[:-1], (f"{last[0][:around]}…", "")]
    return pieces


# Which direction does a name stand for? It is computed again from the channels and coordinates stored with the name.


def subject_again(model: "Model", named: Named) -> Subject:
    """The subject of a named signal or channel."""
    about = named.about
    if "coordinates" not in about:
        raise KeyholeError(f"{named.id} is neither a signal nor a channel: its direction is not stored with its name.")
    coordinates, side = torch.tensor(about["coordinates"]), about.get("side", "src")
    directions = paired(model, named.head, side, about["channels"], coordinates=coordinates, basis=basis_of(about))
    return Subject(named.id, named.kind, named.head, *directions, about=about)
