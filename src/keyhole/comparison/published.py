"""Which circuits were published for a model and a task? Lists of components by class, and where each list is from.

Only lists that a source which can be read gives component by component are here. Two that papers compare with are not:
gendered pronouns of GPT-2 by ACDC (16 components) and indirect objects of Pythia-160M by EAP-IG (14 heads). Their
sizes are told, their members are drawn in pictures alone: see `MISSING`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from keyhole.circuits.mib import MibEdge, MibFile
from keyhole.circuits.writer import Component
from keyhole.errors import KeyholeError
from keyhole.models.heads import head_named


@dataclass(frozen=True)
class Published:
    """A circuit as others found it."""

    name: str  # of the list
    model: str
    task: str
    method: str
    source: str
    classes: Mapping[str, frozenset[Component]]  # heads and MLPs by what they are called
    kinds: frozenset[str]  # of components that the study could have named: no other kind is scored
    shape: tuple[int, int]  # layers of the model, heads of each
    note: str = ""
    family: str = ""  # of the model, as transformers calls its type; empty: not known
    edges: frozenset[MibEdge] = frozenset()  # where the circuit is known edge by edge; those of words are left out
    possible_edges: int = 0  # of the model, between components that could have been named, and the answer

    @property
    def components(self) -> frozenset[Component]:
        """All components, whatever their class."""
        return frozenset[Component]().union(*self.classes.values())

    @property
    def universe(self) -> tuple[Component, ...]:
        """Every component of the model that could have been named."""
        layers, heads = self.shape
        found: list[Component] = [Component("head", layer, head) for layer in range(layers) for head in range(heads)]
        found += [Component("mlp", layer, None) for layer in range(layers)]
        return tuple(component for component in found if component.kind in self.kinds)


def _heads(*texts: str) -> frozenset[Component]:
    return frozenset(Component("head", *head) for head in map(head_named, texts) if head)


def _mlps(*layers: int) -> frozenset[Component]:
    return frozenset(Component("mlp", layer, None) for layer in layers)


PUBLISHED: Mapping[str, Published] = {
    "gpt2-ioi": Published(
        name="gpt2-ioi",
        model="gpt2",
        family="gpt2",
        task="ioi",
        method="path patching",
        source="Wang et al. 2022, arXiv 2211.00593",
        classes={
            "name mover": _heads("9.9", "10.0", "9.6"),
            "backup name mover": _heads("10.10", "10.6", "10.2", "10.1", "11.2", "9.7", "9.0", "11.9"),
            "negative name mover": _heads("10.7", "11.10"),
            "S-inhibition": _heads("7.3", "7.9", "8.6", "8.10"),
            "induction": _heads("5.5", "5.8", "5.9", "6.9"),
            "duplicate token": _heads("0.1", "0.10", "3.0"),
            "previous token": _heads("2.2", "4.11"),
        },
        kinds=frozenset({"head"}),
        shape=(12, 12),
    ),
    "gpt2-greater-than": Published(
        name="gpt2-greater-than",
        model="gpt2",
        family="gpt2",
        task="greater_than",
        method="path patching",
        source="Hanna et al. 2023, arXiv 2305.00586",
        classes={
            "into MLP 9": _heads("9.1"),
            "into MLP 8": _heads("8.11", "8.8", "7.10", "6.9", "5.5", "5.1"),
            "added later": _heads("6.1"),
            "MLP": _mlps(8, 9, 10, 11),
        },
        kinds=frozenset({"head", "mlp"}),
        shape=(12, 12),
        note="the paper's text names seven heads; 6.1 is the eighth of later comparisons (Conmy et al. 2023)",
    ),
}
MISSING: Mapping[str, str] = {
    "gpt2-pronouns": "no list of the 16 components that ACDC found could be had to compare with",
    "pythia-160m-ioi": "no list of the 14 heads that EAP-IG found could be had to compare with",
}


def published(name: str) -> Published:
    """A published circuit by its name.

    >>> len(published("gpt2-ioi").components), len(published("gpt2-greater-than").components)
    (26, 12)
    """
    if name in MISSING:
        raise KeyholeError(f"published:{name} cannot be compared with: {MISSING[name]}.")
    if name not in PUBLISHED:
        raise KeyholeError(f"there is no published circuit {name!r} here: there are {', '.join(PUBLISHED)}.")
    return PUBLISHED[name]


def published_in(file: MibFile) -> Published:
    """A circuit of EAP-IG or MIB as one to compare with: the edges that are in it, and the components they join."""
    edges = frozenset(edge for edge in file.kept if edge.source.kind != "embedding")
    if not edges:
        raise KeyholeError(
            f"{file.name} has scores, but no circuit: no edge between components is in_graph. Score it by `keyhole "
            "curves --file`, or take its best edges first."
        )
    ends = {component for edge in file.kept for component in (edge.source, edge.target)}
    kinds = {"head": "heads", "mlp": "MLPs"}
    return Published(
        name=file.name,
        model="",
        task="",
        method="",
        source=file.name,
        classes={name: frozenset(end for end in ends if end.kind == kind) for kind, name in kinds.items()},
        kinds=frozenset(kinds),
        shape=(file.layers, file.heads),
        note="the file does not tell its model nor its prompts: that they are the same is for you to know",
        edges=edges,
        possible_edges=file.possible,
    )
