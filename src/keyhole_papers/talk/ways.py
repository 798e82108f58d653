"""How is IO found in one order of names? By its place in the pair, or whoever it is: the same prompts, turned, tell.

In an intact prompt and in the same one with the two names in the other order, a signal that follows a place fires at IO
in the one and at S in the other; one that follows the person, at IO in both. Random directions of the same heads stand
beside the signals: they are no signals, and some of them follow something, too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from keyhole.circuits.circuit import Circuit, Node
from keyhole.family.families import RIGHT
from keyhole.models.model import Model
from keyhole.naming.attached.edges import edge_names
from keyhole.naming.attached.same import distinct
from keyhole.naming.beside.broken import EXTRA, Break
from keyhole.naming.beside.cues import Cue, break_cue
from keyhole.naming.beside.representatives import Side
from keyhole.naming.named import Naming
from keyhole.naming.naming import randoms
from keyhole.naming.subject import Subject
from keyhole.naming.subjects.signals import signal_subjects
from keyhole.naming.what import strength
from keyhole.stats import fisher
from keyhole.store.store import Store
from keyhole.tasks.example import Example

_CLEAR = 0.5  # of the prompts: so many more fire where it should than where it should not
_SIGNALS, _RANDOM, _PROMPTS = 12, 60, 40
_QUICK = (4, 4, 6)


@dataclass(frozen=True)
class Follows:
    """One direction: in what share of prompts it fires at a role, by how the prompt was broken."""

    signal: str
    fires: Mapping[tuple[Break, str], float]

    def at(self, how: Break, role: str) -> float:
        """0 where the prompts have no such token."""
        return self.fires.get((how, role), 0.0)

    @property
    def place(self) -> bool:
        """Does it stay at IO's place when the names change places?"""
        stays = min(self.at("intact", "IO"), self.at("order", "S1"))
        return stays - max(self.at("intact", "S1"), self.at("order", "IO")) >= _CLEAR

    @property
    def person(self) -> bool:
        """Does it stay with IO?"""
        stays = min(self.at("intact", "IO"), self.at("order", "IO"))
        return stays - max(self.at("intact", "S1"), self.at("order", "S1")) >= _CLEAR

    @property
    def anywhere(self) -> bool:
        """Does it fire as well when a sentence stands before it all, so that all positions are others?"""
        return self.at("position", "IO") >= _CLEAR

    @property
    def extra(self) -> bool:
        """Does a third name between both take its place?"""
        return self.at("extra name", EXTRA) - self.at("extra name", "IO") >= _CLEAR


@dataclass(frozen=True, kw_only=True)
class Way:
    """What the representative of one order shows."""

    order: str
    prompt: int
    signals: tuple[Follows, ...]  # into heads that look from the end at IO
    random: tuple[Follows, ...]
    names: Mapping[str, str]  # of those signals that have a name above chance
    movers: tuple[str, ...]  # heads that look from the end at IO and write into the answer
    inhibition: tuple[str, ...]  # heads that look from the end at S2, and tell one of these where to look
    directions: tuple[Subject, ...]

    def beyond(self, what: str) -> bool:
        """Do more of the signals follow it than of random directions, by Fisher's test?"""
        own, other = ([getattr(one, what) for one in group] for group in (self.signals, self.random))
        return any(own) and bool(other) and fisher(sum(own), len(own), sum(other), len(other)) <= 0.05


def way_of(store: Store, side: Side, naming: Naming, model: Model, *, quick: bool = False) -> Way:
    """One representative: its signals into name movers, and prompts of its order that are broken."""
    most, random, prompts = _QUICK if quick else (_SIGNALS, _RANDOM, _PROMPTS)
    circuit, example = store.circuit(side.prompt), store[side.prompt].example
    assert example is not None
    order = side.group.partition("=")[2]
    places = example.places(circuit.tokens)
    every = sorted(signal_subjects(circuit, model), key=lambda one: -strength(circuit, one))
    own = distinct([one for one in every if _looks(_into(circuit, one), places, "IO")])[:most]
    examples = _of_order(store, order, prompts)
    texts = edge_names(circuit, naming, model)
    edges = {one.id: circuit.edges[int(one.about["edge"])] for one in own}
    names = {key: texts[edge] for key, edge in edges.items() if edge in texts}
    movers, inhibition = _heads(circuit, places)
    nulls = randoms(model, own, random, naming.seed) if own else []
    cues = break_cue(model, [*own, *nulls], examples, seed=naming.seed) if own else ()
    followed = [_follows(one, cues) for one in (*own, *nulls)]
    return Way(
        order=order,
        prompt=side.prompt,
        signals=tuple(followed[: len(own)]),
        random=tuple(followed[len(own) :]),
        names=names,
        movers=movers,
        inhibition=inhibition,
        directions=tuple(own),
    )


def _follows(subject: Subject, cues: Sequence[Cue]) -> Follows:
    own = [one for one in cues if one.signal == subject.id]
    return Follows(subject.id, {(one.how, one.src): one.fires / one.prompts for one in own})


def _of_order(store: Store, order: str, most: int) -> list[Example]:
    found = [one.example for one in store.outcomes(RIGHT) if one.example is not None]
    found = [one for one in found if one.labels.get("order") == order]
    return found[:: max(1, len(found) // most)][:most]


def _into(circuit: Circuit, subject: Subject) -> Node:
    return circuit.nodes[circuit.edges[int(subject.about["edge"])].target]


def _looks(node: Node, places: Mapping[str, int], role: str) -> bool:
    return node.kind == "head" and (node.dest, node.src) == (places.get("END"), places.get(role, -1))


def _heads(circuit: Circuit, places: Mapping[str, int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(Name movers, S-inhibition heads), as this circuit has them."""
    nodes = circuit.nodes
    movers = {
        e.source for e in circuit.edges if nodes[e.target].kind == "target" and _looks(nodes[e.source], places, "IO")
    }
    told = {
        e.source
        for e in circuit.edges
        if e.side == "dest" and _looks(nodes[e.target], places, "IO") and _looks(nodes[e.source], places, "S2")
    }
    named = [tuple(sorted({f"{nodes[i].layer}.{nodes[i].head}" for i in some})) for some in (movers, told)]
    return named[0], named[1]
