"""A circuit: the graph of firings and writers joined by signals, for one prompt and target. Integers are identity."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Unpack

from keyhole.circuits.records import Measured, NodeKind, Parameters, Removal, SideName, Signal, Writer
from keyhole.errors import KeyholeError
from keyhole.settings.fields import chosen
from keyhole.settings.measuring import StoryOptions, StorySettings
from keyhole.strict import Index

if TYPE_CHECKING:
    from pathlib import Path

    import networkx as nx
    from matplotlib.figure import Figure
    from torch import Tensor

    from keyhole.brief import Table
    from keyhole.faithfulness.backup_record import Backups
    from keyhole.faithfulness.backups import PairSettings
    from keyhole.faithfulness.baseline import Likes
    from keyhole.faithfulness.effects import What
    from keyhole.faithfulness.removals import Verification
    from keyhole.faithfulness.routes import Story
    from keyhole.intervene.removal import Mode
    from keyhole.models.model import Model
    from keyhole.models.run import Run
    from keyhole.models.tokens import Prompt
    from keyhole.progress import Progress
    from keyhole.web.notebook import Page, Widget

SCHEMA = 3  # of circuits that were measured, or suffice; others are written as 1 (of heads) or 2 (through MLPs)
EdgeSide = Literal[SideName, "target", "mlp", "value"]


@dataclass(frozen=True)
class Node:
    """A writer at a token, a head moving from src to dest, or the target.

    All but heads have dest = src, and all but heads and their offsets head None; the target has layer None.
    """

    kind: NodeKind  # of writer, or the target
    layer: int | None  # from 0
    head: int | None  # None for all but heads and their offsets
    dest: int  # token that is written to
    src: int  # token that a head reads

    @classmethod
    def of(cls, writer: Writer) -> "Node":
        """A writer as a node."""
        return cls(writer.kind, writer.layer, writer.head, writer.dest, writer.src)

    @property
    def writer(self) -> Writer:
        """Who writes here; the target is no writer."""
        assert self.kind != "target" and self.layer is not None, "the target writes nothing"
        return Writer(self.kind, self.layer, self.head, self.dest, self.src)

    @property
    def key(self) -> tuple[int, int, str, int, int]:
        """For sorting: writers in their order, the target after them."""
        return (1 << 30, -1, self.kind, self.dest, self.src) if self.kind == "target" else self.writer.key


@dataclass(frozen=True)
class Edge:
    """A signal: what the writer `source` puts into some channels of the firing `target`, on one side.

    Or a cause: what it does to what the MLP or the value `target` writes, as shares of that.
    """

    source: int  # index of a node
    target: int  # index of the node that reads it
    side: EdgeSide  # of a firing; or target (a seed), mlp, value
    # drop of the attention in the order of removal (by svt the contribution, as ig and alone are, too); of a seed its
    # push, of a given start its attention weight, of a cause what goes with it
    weight: float
    ig: float  # integrated gradients; of a cause its part
    alone: float  # drop when only this goes
    channels: tuple[int, ...]  # in the order of their removal; empty on edges that are no signals
    influence: float | None = None  # share of the answer that is handed on here; None: not accounted for


@dataclass(frozen=True)
class Traced:
    """One firing that was searched: its threshold and everything removed on each side, in order (see `Side`)."""

    node: int
    tau: float
    visible: int
    dest: tuple[Removal, ...]
    src: tuple[Removal, ...]


@dataclass(frozen=True)
class TracedMlp:
    """One MLP that was explained: what is left without its causes, and which neurons wrote."""

    node: Index
    offset: float  # all as shares of what it writes
    left: float
    left_renormed: float
    kept: float
    cancellation: float
    causes: tuple[Index, ...]  # nodes, largest first
    neurons: tuple[tuple[Index, float], ...]


@dataclass(frozen=True)
class Circuit:
    """The circuit behind one answer."""

    model: Mapping[str, str]  # name, family, fingerprint
    versions: Mapping[str, str]  # of Keyhole, torch and transformers
    parameters: Parameters  # every choice that was made
    errors: Mapping[str, float]  # how exact the run's decompositions are
    token_ids: tuple[int, ...]  # the prompt
    tokens: tuple[str, ...]  # their texts
    nodes: tuple[Node, ...]  # writers, and the target
    attention: tuple[float | None, ...]  # of each node; None for all but heads
    edges: tuple[Edge, ...]  # signals and causes
    firings: tuple[Traced, ...]  # those that were searched, with everything removed
    influence: tuple[float, ...] = ()  # of each node, if the circuit goes through MLPs
    leaves: tuple[str | None, ...] = ()  # why a node was not explained; None: it was
    mlps: tuple[TracedMlp, ...] = ()  # those that were explained
    measured: Measured | None = None  # effects, shares and faithfulness, if they were asked for
    run: "Run | None" = field(default=None, repr=False, compare=False)  # that it was traced in; None: read from a file
    probe: "Tensor | None" = field(default=None, repr=False, compare=False)  # of seeds; files have none

    @property
    def heads(self) -> tuple[Node, ...]:
        """The head nodes."""
        return tuple(node for node in self.nodes if node.kind == "head")

    def is_sink(self, node: int) -> bool:
        """Does this head attend to the first token, as heads with nothing to do often are?"""
        return self.nodes[node].kind == "head" and self.nodes[node].src == 0 < self.nodes[node].dest

    def signal(self, edge: Edge) -> Signal:
        """An edge into a firing as a signal: who writes, into which channels of which basis."""
        if edge.side != "dest" and edge.side != "src":
            raise KeyholeError("an edge into the answer, an MLP or a value is not a signal of a firing.")
        writer = self.nodes[edge.source].writer
        return Signal(writer, edge.side, edge.channels, edge.weight, edge.ig, edge.alone, self.parameters.basis)

    def edges_into(self, node: int) -> tuple[Edge, ...]:
        """The signals that cause a node."""
        return tuple(edge for edge in self.edges if edge.target == node)

    @classmethod
    def load(cls, path: "str | Path") -> "Circuit":
        """Read a circuit that was saved as .json."""
        from keyhole.circuits.files import load_circuit

        return load_circuit(path)

    def save(self, path: "str | Path") -> None:
        """Write it: .json (lossless), .html (one page), .png, .svg, .pdf, .graphml, .mib or .neuronpedia.json."""
        from keyhole.circuits.files import save

        save(self, path)

    def to_json(self) -> str:
        """The circuit as a JSON document, without loss."""
        from keyhole.circuits.files import to_json

        return to_json(self)

    def to_dataframe(self) -> "Table":
        """The signals as a table, a row each, strongest first: a pandas DataFrame, or records without pandas."""
        from keyhole.circuits.exports import to_dataframe

        return to_dataframe(self)

    def show(self) -> "Page":
        """The circuit as a page to click through, offline: opened in the browser, or shown in a notebook."""
        from keyhole.web.notebook import show

        return show(self)

    def to_html(self, names: "Mapping[Edge, str] | None" = None) -> str:
        """The circuit as one self-contained page; `names` of its edges stand beside them."""
        from keyhole.web.page import to_html

        return to_html(self, names)

    def widget(self, model: "Model | None" = None) -> "Widget":
        """The circuit in a notebook, with the kernel behind it. See `keyhole.web.notebook`.

        One that was read from a file can be asked if the `model` that made it is given.
        """
        from keyhole.web.notebook import circuit_widget

        return circuit_widget(self, model)

    def _repr_html_(self) -> str:
        from keyhole.web.reprs import circuit_html

        return circuit_html(self)

    def plot(self, names: "Mapping[Edge, str] | None" = None, *, width: float | None = None) -> "Figure":
        """The circuit as a picture for print, tokens from left to right. See `keyhole.figures.circuit`.

        `width` in inches, 6.75 if not given: letters keep their size, so give the width that it is printed at (3.25 for
        a column of two).
        """
        from keyhole.figures.circuit import circuit_figure

        return circuit_figure(self, names=names, width=width)

    def to_networkx(self) -> "nx.MultiDiGraph[int]":
        """The circuit as a networkx graph."""
        from keyhole.circuits.exports import to_networkx

        return to_networkx(self)

    def verify(
        self,
        model: "Model | None" = None,
        *,
        mode: "Mode" = "exact",
        draws: int = 3,
        edges: "bool | Sequence[int]" = True,
        seed: int = 0,
        progress: "Progress | None" = None,
    ) -> "Verification":
        """Remove each part: is it as predicted (`arithmetic`), and does the answer need it (`causes`)?

        Ctrl-C returns what is finished. A circuit that was read from a file needs the `model` that made it.
        """
        from keyhole.faithfulness.verification import verify

        return verify(self, model, mode=mode, draws=draws, edges=edges, seed=seed, progress=progress)

    def effects(
        self,
        model: "Model | None" = None,
        *,
        like: "Likes | None" = None,
        counterfactual: "Prompt | None" = None,
        text: "str | Path | None" = None,
        what: "Sequence[What]" = ("words", "nodes", "edges", "shares", "faithfulness"),
        progress: "Progress | None" = None,
    ) -> "Circuit":
        """What does the answer lose without each token, node and edge? The same circuit, with what was measured.

        Args:
            model: The model that made the circuit, if it was read from a file.
            like: Prompts of the same template with other names or values (texts, token ids or `Example`s), at least
                eight: their mean is the baseline. Of `Example`s the answers are known: the circuit is tried on them.
            counterfactual: One prompt of equal length, whose writes are the baseline.
            text: A file to take the resting state of, a paragraph a line. Without any of these three, the baseline is
                the mean over copies of the prompt with other words (`like="words"`); `like="resting"` is the resting
                state.
            what: Some of it alone: "words", "nodes", "edges" (a pass each), "shares", "faithfulness" (a handful).
            progress: Called with the number of passes done and their total.

        Returns:
            The circuit with `circuit.measured`: effects, shares and faithfulness. It is saved with them.
        """
        from keyhole.faithfulness.effects import effects

        return effects(self, model, like=like, counterfactual=counterfactual, text=text, what=what, progress=progress)

    def backups(
        self,
        model: "Model | None" = None,
        *,
        like: "Likes | None" = None,
        counterfactual: "Prompt | None" = None,
        text: "str | Path | None" = None,
        settings: "PairSettings | None" = None,
        progress: "Progress | None" = None,
    ) -> "Backups":
        """Which heads take over when one of the circuit's heads is removed? See `keyhole.faithfulness.backups`.

        The baseline is given as to `effects`; `settings` say how many heads, or which, and how many random pairs. A
        circuit that was read from a file needs the `model` that made it. Ctrl-C returns what is finished.
        """
        from keyhole.faithfulness.backups import backups

        baseline: Any = {"like": like, "counterfactual": counterfactual, "text": text}
        return backups(self, model, settings=settings, progress=progress, **baseline)

    def story(
        self,
        model: "Model | None" = None,
        *,
        roles: Mapping[str, int] | None = None,
        like: "Likes | None" = None,
        counterfactual: "Prompt | None" = None,
        settings: StorySettings | None = None,
        progress: "Progress | None" = None,
        **options: Unpack[StoryOptions],
    ) -> "Story":
        """Which words decide the answer, and by which paths do they reach it? See `keyhole.faithfulness.story`.

        Args:
            model: The model that made the circuit, if it was read from a file; without it nothing is measured.
            roles: Positions of a task's actors (`example.positions(run)`), so that steps are called by its words.
            like: Prompts of the same template, for the effects of words, steps and paths; as `effects` takes them.
            counterfactual: One prompt of equal length instead.
            settings: Which paths it has: a `StorySettings`, whose fields are the choices below.
            progress: Called with how much is done, of a thousand.
            **options: Choices by name; beside a record they change it:
                - `top`: How many paths, the largest by influence; 5.
                - `least`: The smallest influence of a path; 0.01.
        """
        from keyhole.faithfulness.story import tell

        how = chosen(settings, StorySettings, options)
        return tell(self, model, roles=roles, like=like, counterfactual=counterfactual, settings=how, progress=progress)

    def __str__(self) -> str:
        from keyhole.circuits.text import circuit_text

        return circuit_text(self)

    def __repr__(self) -> str:
        from keyhole.circuits.text import answer_label, count

        counts = f"{count(len(self.nodes), 'node')}, {count(len(self.edges), 'edge')}"
        explained = f"{count(len(self.firings), 'firing')} explained"
        return f"<Circuit of {self.model.get('name')}{answer_label(self)}; {counts}, {explained}>"
