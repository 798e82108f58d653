"""What was measured of a circuit? Effects and shares against a baseline, and how much of the answer it carries.

    effect      of a node, an edge or a token: by how much the answer is less with it at its baseline, in its own pass
    share       of an edge or a node: its part of the answer's gap to the baseline, by integration; shares add up
    kept, cut   what is left of the gap with the circuit alone, and with everything but the circuit
    rest        with the circuit and a random half of everything else; `random`: with a random set of its size instead

A head is taken whole at a token here, with all that it reads: nodes of one head that differ in their source alone have
the same numbers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from statistics import fmean, median, pstdev
from typing import Any, Literal, get_type_hints

from keyhole.strict import fits, frozen, quoted, require, require_fields

Values = tuple[float | None, ...]  # None: not measured, or a constant that no mask can take away


@dataclass(frozen=True)
class Faithfulness:
    """How much of an answer a circuit carries; 1 is all of the gap, and above 1 is no success."""

    kept: float
    cut: float
    rest: tuple[float, ...]  # one for each draw
    random: tuple[float, ...]
    rank: int  # of the answer among all tokens, with the circuit alone; 1: the likeliest
    edges: int  # of the circuit, token by token
    of: int  # of the model
    others: tuple[float, ...] = ()  # kept, on other prompts whose answers are known

    def __str__(self) -> str:
        parts = [f"with these {self.edges:,} of {self.of:,} edges alone {self.kept:.0%} of the answer's gap is left"]
        parts.append(f"without them {self.cut:.0%}")
        if self.rest:
            parts.append(f"with them and a random half of the rest {fmean(self.rest):.0%} ± {pstdev(self.rest):.0%}")
        if self.random:
            parts.append(f"with random edges in their place {fmean(self.random):.0%}")
        text = ", ".join(parts)
        text += f"; the answer ranks {self.rank} with them alone"
        if self.others:
            text += f"; on {len(self.others)} other prompts they keep {median(self.others):.0%} (median)"
        return text


@dataclass(frozen=True)
class Measured:
    """Effects and shares of one circuit, against one baseline."""

    baseline: str  # which: "the mean of 31 prompts like this one"
    metric: Literal["logit difference", "log-probability"]
    everything: float  # the answer in the prompt
    nothing: float  # with every writer at its baseline
    words: Values = ()  # effect of each token's embedding
    nodes: Values = ()  # effect of each node
    edges: Values = ()  # effect of each edge
    node_shares: Values = ()
    edge_shares: Values = ()
    completeness: float | None = None  # the sum of all shares over the gap
    faithfulness: Faithfulness | None = None
    note: str = ""  # what to be careful about, or why something is missing

    @property
    def gap(self) -> float:
        """What is to be explained."""
        return self.everything - self.nothing

    def of_edge(self, index: int) -> tuple[float | None, float | None]:
        """An edge's effect and share; None: not measured."""
        return _at(self.edges, index), _at(self.edge_shares, index)

    def of_node(self, index: int) -> tuple[float | None, float | None]:
        """A node's effect and share; None: not measured."""
        return _at(self.nodes, index), _at(self.node_shares, index)

    def part(self, nodes: Sequence[int], edges: Sequence[int]) -> "Measured":
        """What was measured of some nodes and edges; faithfulness stays that of the whole circuit."""
        picked = {"nodes": nodes, "node_shares": nodes, "edges": edges, "edge_shares": edges}
        kept: dict[str, Any] = {
            name: tuple(values[i] for i in which) if (values := getattr(self, name)) else ()
            for name, which in picked.items()
        }
        return replace(self, **kept)

    def numbers(self) -> Iterator[float]:
        """Every number that was measured."""
        yield from (self.everything, self.nothing, self.completeness or 0.0)
        for values in (self.words, self.nodes, self.edges, self.node_shares, self.edge_shares):
            yield from (value for value in values if value is not None)
        if (found := self.faithfulness) is not None:
            yield from (found.kept, found.cut, found.rank, *found.rest, *found.random, *found.others)

    def record(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def measured_from(record: Any, *, nodes: int, edges: int, tokens: int) -> Measured:
    """What a file says; numbers that do not fit the circuit are refused."""
    require_fields(record, {field.name for field in fields(Measured)}, "what was measured")
    inner = record["faithfulness"]
    if inner is not None:
        require_fields(inner, {field.name for field in fields(Faithfulness)}, "a circuit's faithfulness")
        inner = Faithfulness(**_typed(inner, Faithfulness))
    values = _typed({**record, "faithfulness": None}, Measured)
    measured = Measured(**{**values, "faithfulness": inner})
    sizes = {"words": tokens, "nodes": nodes, "edges": edges, "node_shares": nodes, "edge_shares": edges}
    for name, size in sizes.items():
        length = len(getattr(measured, name))
        require(length in (0, size), f"it has {length} measured {name}, and {size} would fit.")
    return measured


def _at(values: Values, index: int) -> float | None:
    return values[index] if values else None


def _typed(record: dict[str, Any], kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    values = {name: frozen(value) for name, value in record.items()}
    for name, value in values.items():
        require(fits(value, hints[name]), f"its measured {name} is {quoted(record[name])}, which it cannot be.")
    return values
