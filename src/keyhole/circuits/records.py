"""What stands in a circuit besides nodes and edges? Writers and signals, what was chosen, what was measured.

Who wrote, and into what? The identities that the residual stream is split by, and that circuits speak of.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from statistics import fmean, median, pstdev
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from keyhole.brief import head_name
from keyhole.strict import Index, quoted, read, require

if TYPE_CHECKING:
    from keyhole.circuits.circuit import Node
    from keyhole.models.model import Model
    from keyhole.qk.omega import Basis

Kind = Literal["embedding", "head", "mlp", "bias", "mixer", "offset", "mlp_offset", "value_offset"]
NodeKind = Literal[Kind, "target"]
OFFSETS: tuple[Kind, ...] = ("offset", "mlp_offset", "value_offset")  # a reader's own constants: nobody writes them
SideName = Literal["dest", "src"]


@dataclass(frozen=True)
class Writer:
    """Whatever adds a vector to the residual stream at token `dest`; heads are split by the token they read."""

    kind: Kind
    layer: int
    head: int | None
    dest: int
    src: int  # equal to dest for all but heads

    @property
    def key(self) -> tuple[int, int, str, int, int]:
        """For sorting: by layer, then head, then kind and tokens."""
        return (self.layer, -1 if self.head is None else self.head, self.kind, self.dest, self.src)


@dataclass(frozen=True, slots=True)
class Component:
    """Whoever writes, or the target, without its tokens; with the roles of these, where they are counted."""

    kind: NodeKind
    layer: int | None
    head: int | None
    dest: str | None = None
    src: str | None = None

    @classmethod
    def of(cls, node: "Writer | Node") -> "Component":
        """Which component is a writer, or a node of a circuit?

        Args:
            node: The writer or node.

        >>> Component.of(Writer("head", 1, 6, 14, 2))
        Component(kind='head', layer=1, head=6, dest=None, src=None)
        """
        return cls(node.kind, node.layer, node.head)

    def at(self, dest: int, src: int) -> Writer:
        """The writer that it is at these tokens.

        Args:
            dest: Position of the token at which it writes.
            src: Position of the token that a head moves from.

        >>> Component("head", 1, 6).at(14, 2)
        Writer(kind='head', layer=1, head=6, dest=14, src=2)
        """
        assert self.kind != "target" and self.layer is not None, "the target writes nothing"
        return Writer(self.kind, self.layer, self.head, dest, src)

    @property
    def key(self) -> tuple[float, int, str, str, str]:
        """For sorting: by layer, the target last, then head, then kind and roles."""
        layer, head = (math.inf if self.layer is None else self.layer), (-1 if self.head is None else self.head)
        return layer, head, self.kind, self.dest or "", self.src or ""

    def __str__(self) -> str:
        """Its name.

        >>> str(Component("head", 9, 6)), str(Component("mlp", 3, None)), str(Component("target", None, None))
        ('9.6', 'MLP 3', 'answer')
        """
        if self.kind in ("target", "embedding"):
            return "answer" if self.kind == "target" else self.kind
        if self.kind == "head" and self.layer is not None and self.head is not None:
            return head_name((self.layer, self.head))
        return f"{'MLP' if self.kind == 'mlp' else self.kind} {self.layer}"


@dataclass(frozen=True)
class Signal:
    """What one writer puts into some channels of a firing, on one side; with what the search found it to do.

    Channels have numbers in a basis. Those of the homogeneous one are SVT's, which traces whole heads: the writer is
    then the head with all its sources, and `writer.src` only names the one that it attends to most.
    """

    writer: Writer
    side: SideName
    channels: tuple[int, ...]  # in the order of their removal
    weight: float = math.nan  # drop of the attention weight in the order of removal
    ig: float = math.nan
    alone: float = math.nan  # drop when only this signal is removed
    basis: "Basis" = "linear"  # that the channels are numbered in

    @property
    def whole(self) -> bool:
        """Is the writer a whole head, all its sources together?"""
        return self.basis == "homogeneous"


@dataclass(frozen=True, slots=True)  # a circuit may have millions
class Removal:
    """One candidate taken away in the search: a writer's share of one channel."""

    writer: Writer
    channel: int
    ig: float
    after: float  # the attention weight once this and all before it are gone


@dataclass(frozen=True)
class Sizes:
    """How large is the model that a circuit is of?"""

    layers: Index
    heads: Index  # of each layer
    kv_heads: Index
    d_head: Index
    d_model: Index
    vocab: Index
    parallel: bool | None  # do MLPs read what their layer's heads read? None: it is not known what they read

    @classmethod
    def of(cls, model: "Model") -> "Sizes":
        """Those of a model."""
        from keyhole.models.facts import mlp_facts  # torch, which records do without

        facts, dims = mlp_facts(model.hf.config), model.dims
        numbers = (dims.layers, dims.heads, dims.kv_heads, dims.d_head, dims.d_model, dims.vocab)
        return cls(*numbers, None if facts is None else facts.parallel)

    def __str__(self) -> str:
        return f"{self.layers} layers of {self.heads} heads, {self.d_model} dimensions and {self.vocab} tokens"


# What did tracing choose? A frozen record per method, kept with the circuit and read back strictly.

Place = tuple[int, int, int, int]  # layer, head, dest, src
Predicted = tuple[tuple[int, tuple[int, ...]], ...]  # where something is predicted, and which tokens


def predicted_at(end: int, ids: Sequence[int], *, continuation: bool) -> Predicted:
    """Where the tokens of an answer are predicted: all of them at `end`, or, of a continuation, the last one there.

    >>> predicted_at(7, (3, 4), continuation=False), predicted_at(7, (3, 4), continuation=True)
    (((7, (3, 4)),), ((6, (3,)), (7, (4,))))
    """
    if not continuation:
        return ((end, tuple(ids)),)
    return tuple((end - len(ids) + 1 + i, (token,)) for i, token in enumerate(ids))


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """What every method takes, and how likely the model finds the answer. Old files do not know the latter."""

    method: ClassVar[str]
    basis: Literal["linear", "homogeneous"]
    target_ids: tuple[int, ...] = ()
    against_ids: tuple[int, ...] = ()
    end: int  # the position that predicts the answer, or the last token of a continuation
    continuation: bool = False  # do the targets follow one another, the prompt having all but the last of them?
    seeds: Literal["prob", "linear", "probe", "given"]
    probe_layer: int | None = None
    seed_tau: float = 0.8  # the share of the answer's log-likelihood that seeds "prob" carry
    top_p: float | None = None  # how the targets were chosen, where they were not named
    top_k: int | None = None
    target_text: tuple[str, ...] = ()
    target_probability: tuple[float, ...] = ()
    against_text: tuple[str, ...] = ()
    against_probability: tuple[float, ...] = ()

    @property
    def predicted(self) -> Predicted:
        """Where the answer is predicted, and which tokens there: one place, or one for each token of a continuation."""
        return predicted_at(self.end, self.target_ids, continuation=self.continuation)

    @property
    def likely(self) -> float:
        """How likely the model finds the answer: any of its targets, or all of a continuation; 0 if that is unknown."""
        return math.prod(self.target_probability) if self.continuation else sum(self.target_probability)

    def record(self) -> dict[str, Any]:
        """As plain data; answers that are no continuation are as they were before there were others."""
        record = {"method": self.method, **asdict(self)}
        if not self.continuation:
            del record["continuation"]
        return record


@dataclass(frozen=True, kw_only=True)
class Accpp(Parameters):
    """Signals found by removal."""

    method: ClassVar[str] = "accpp"
    basis: Literal["linear"] = "linear"
    tau: float | Literal["dynamic", "function"] = "dynamic"
    keys: Literal["all", "source"] = "all"
    sinks: Literal["keep", "mark", "collapse"] = "keep"
    through: Literal["heads", "mlps"] = "heads"  # what follows is of "mlps"
    cover: float | None = None
    eps: float | None = None
    values: bool | None = None
    constants: Literal["baseline", "causes"] | None = None

    def record(self) -> dict[str, Any]:
        """As plain data; of circuits of heads, as it was before others could be traced."""
        further = ("through", "cover", "eps", "values", "constants") if self.through == "heads" else ()
        return {name: value for name, value in super().record().items() if name not in further}


@dataclass(frozen=True, kw_only=True)
class Sufficient(Accpp):
    """The smallest edges that keep enough of the answer, with signals that say why their heads look there."""

    method: ClassVar[str] = "sufficient"
    level: float  # of the answer's gap to the baseline, that is kept at least
    both_signs: bool  # with edges that hold the answer back
    baseline: str  # in whose place everything else stands
    signals: int  # at most so many for each side of a firing
    found: int  # the circuit's first edges, which suffice; those after them are signals that say why heads look there


@dataclass(frozen=True, kw_only=True)
class Svt(Parameters):
    """Singular vector tracing, heads alone."""

    method: ClassVar[str] = "svt"
    basis: Literal["homogeneous"] = "homogeneous"
    rope: Literal["rotated"] | None = None
    start: tuple[Place, ...] | None = None
    channels: Literal["singular", "all"] = "singular"
    share: float = 0.7
    threshold: float = 0.5


METHODS: dict[str, type[Parameters]] = {kind.method: kind for kind in (Accpp, Sufficient, Svt)}


def parameters_from(record: Mapping[str, Any]) -> Parameters:
    """Parameters out of a file; what is missing, unknown or of another kind is refused by its name."""
    chosen = dict(record)
    method = chosen.pop("method", None)
    require(method in list(METHODS), f"its method is {quoted(method)}, and this version knows {', '.join(METHODS)}.")
    # What files leave out is as it was when they were written, whatever the defaults of settings are by now.
    usual = {field.name: field.default for field in fields(METHODS[method]) if field.default is not MISSING}
    return read(METHODS[method], usual | chosen, "parameters")


# What was measured of a circuit? Effects and shares against a baseline, and how much of the answer it carries.
#
#     effect      of a node, an edge or a token: by how much the answer is less with it at its baseline, in its own
#     pass
#     share       of an edge or a node: its part of the answer's gap to the baseline, by integration; shares add up
#     kept, cut   what is left of the gap with the circuit alone, and with everything but the circuit
#     rest        with the circuit and a random half of everything else; `random`: with a random set of its size
#     instead
#
# A head is taken whole at a token here, with all that it reads: nodes of one head that differ in their source alone
# have the same numbers.

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
        if (result := self.faithfulness) is not None:
            yield from (result.kept, result.cut, result.rank, *result.rest, *result.random, *result.others)

    def record(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def _at(values: Values, index: int) -> float | None:
    return values[index] if values else None
