"""What do the representatives of a task say, side by side? The medoid of each value of a label, in names."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from keyhole.circuits.circuit import Circuit, Edge
from keyhole.circuits.text import channels_label, node_label
from keyhole.errors import KeyholeError
from keyhole.naming.attached import edge_names, named_edges, subject_again
from keyhole.naming.cues import Cue, break_cue
from keyhole.naming.record import Named, Naming
from keyhole.store.manifest import traced_prompts
from keyhole.store.store import Store
from keyhole.studies.families.agreement import Representative, labels_of, representatives
from keyhole.studies.families.distances import jaccard
from keyhole.studies.families.families import RIGHT
from keyhole.studies.families.sets import store_sets

if TYPE_CHECKING:
    from keyhole.models.model import Model

_SHOWN = 12  # edges of a side in its text
_PROMPTS = 40  # in which cues are broken


@dataclass(frozen=True)
class NamedEdge:
    """An edge of a representative that has a name which passed."""

    share: float  # of the answer; of circuits that account for none, the drop of the attention weight
    text: str  # head, side, channels and writer
    name: str
    signal: Named
    ends: bool  # is the head's dest the last token?


@dataclass(frozen=True)
class Side:
    """One value of a label: the circuit that stands for it, in names."""

    group: str  # order=ABBA
    circuits: int
    prompt: int
    tokens: tuple[str, ...]
    edges: tuple[NamedEdge, ...]  # strongest first

    @property
    def plain(self) -> dict[str, Any]:
        """For JSON; signals by their ids alone, since a naming has them."""
        edges = [{**vars(edge), "signal": edge.signal.id} for edge in self.edges]
        return {**vars(self), "tokens": list(self.tokens), "edges": edges}

    def __str__(self) -> str:
        text = " ".join(token.strip() for token in self.tokens)
        lines = [f"{self.group}: prompt {self.prompt} stands for {self.circuits} ({text})"]
        lines += [f"  {edge.share:5.1%}  {edge.text}: {edge.name}" for edge in self.edges[:_SHOWN]]
        return "\n".join(lines if self.edges else [*lines, "  none of its signals has a name that is right"])


def require_label(store: Store, by: str) -> None:
    """Refuse a label that the prompts do not have."""
    if by not in store.manifest.labels:
        labels = ", ".join(store.manifest.labels) or "none"
        raise KeyholeError(f"the prompts of {store.path} have no label {by!r}: they have {labels}.")


def side_by_side(store: Store, naming: Naming, model: "Model", *, by: str = "order") -> tuple[Side, ...]:
    """The representative of every value of a label, such as ABBA and BABA, with the names of its signals.

    Only prompts that are answered rightly are represented; circuits are compared as sets of channels, roles apart.

    Args:
        store: The store.
        naming: Names of signals of the store's model.
        model: That model.
        by: The label.
    """
    require_label(store, by)
    prompts = traced_prompts(store, RIGHT)
    labels = labels_of(store, prompts)
    if by not in labels:
        raise KeyholeError(f"all prompts have the same {by}, or each its own: there are no sides to compare.")
    sets = store_sets(store, "channels", role=True, prompts=prompts.tolist())
    medoids = representatives(jaccard(sets.matrix), sets.prompts, {by: labels[by]})
    return tuple(_side(store, naming, model, medoid) for medoid in medoids if medoid.group != "all")


def _side(store: Store, naming: Naming, model: "Model", medoid: Representative) -> Side:
    circuit = store.circuit(medoid.prompt)
    names, signals = edge_names(circuit, naming, model), named_edges(circuit, naming, model)
    last = len(circuit.tokens) - 1
    edges = [
        NamedEdge(
            _share(edge), _text(circuit, edge), names[edge], signals[edge], circuit.nodes[edge.receiver].dest == last
        )
        for edge in names
    ]
    edges.sort(key=lambda edge: -edge.share)
    return Side(medoid.group, medoid.circuits, medoid.prompt, circuit.tokens, tuple(edges))


def cues_of(store: Store, sides: tuple[Side, ...], model: "Model", *, most: int = 6, seed: int = 0) -> tuple[Cue, ...]:
    """The strongest named signals of both sides, in prompts of the store that break their cues.

    Args:
        store: The store. Only its prompts of the task ioi have cues that can be broken.
        sides: Representatives with names, as `side_by_side` gives them.
        model: The store's model.
        most: How many signals of each side.
        seed: Seed of the names and places that are put into prompts.
    """
    strongest = [[edge.signal for edge in side.edges if edge.ends][:most] for side in sides]
    signals = {named.id: named for of_side in strongest for named in of_side}
    outcomes = (outcome.example for outcome in store.outcomes(RIGHT))
    examples = [example for example in outcomes if example is not None and example.task == "ioi"]
    step = max(1, len(examples) // _PROMPTS)
    if not signals or not examples:
        return ()
    names = {key: named.name.text for key, named in signals.items() if named.name.text is not None}
    subjects = [subject_again(model, named) for named in signals.values()]
    return break_cue(model, subjects, examples[::step][:_PROMPTS], names=names, seed=seed)


def _share(edge: Edge) -> float:
    return edge.weight if edge.influence is None else edge.influence


def _text(circuit: Circuit, edge: Edge) -> str:
    reader, writer = (node_label(circuit.nodes[i], circuit.tokens) for i in (edge.receiver, edge.sender))
    return f"{reader} {edge.side} ch {channels_label(edge.channels, 3)} <- {writer}"
