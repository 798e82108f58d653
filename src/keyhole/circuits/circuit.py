"""A circuit: the graph of firings and writers joined by signals, for one prompt and target. Integers are identity."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Unpack

from keyhole.circuits.columns import Columns, Directions, Edges, Firings, Mlps, Nodes
from keyhole.circuits.graph import Edge as Edge
from keyhole.circuits.graph import EdgeSide as EdgeSide
from keyhole.circuits.graph import Node as Node
from keyhole.circuits.graph import Origin
from keyhole.circuits.graph import Traced as Traced
from keyhole.circuits.graph import TracedMlp as TracedMlp
from keyhole.circuits.records import Measured, Parameters, Signal, Sizes
from keyhole.errors import KeyholeError
from keyhole.settings.fields import chosen
from keyhole.settings.measuring import StoryOptions, StorySettings

if TYPE_CHECKING:
    from pathlib import Path

    import networkx as nx
    from matplotlib.figure import Figure
    from torch import Tensor

    from keyhole.brief import Table
    from keyhole.claims.making import Prompts
    from keyhole.claims.records import Claim
    from keyhole.edits.making import Scope
    from keyhole.edits.records import Edit
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
    from keyhole.tasks.example import Example
    from keyhole.web.notebook import Page, Widget

SCHEMA = 4  # of circuits that know their model's sizes; those of older files and of stores are written as 1, 2 or 3


@dataclass(frozen=True)
class Circuit:
    """The circuit behind one answer.

    Nodes, edges, firings and MLPs are columns (`keyhole.circuits.columns`), which are sequences of objects, too.
    """

    model: Mapping[str, str]  # name, family, fingerprint
    versions: Mapping[str, str]  # of Keyhole, torch and transformers
    parameters: Parameters  # every choice that was made
    errors: Mapping[str, float]  # how exact the run's decompositions are
    token_ids: tuple[int, ...]  # the prompt
    tokens: tuple[str, ...]  # their texts
    nodes: Nodes  # writers, and the target
    attention: tuple[float | None, ...]  # of each node; None for all but heads
    edges: Edges  # signals and causes
    firings: Firings  # those that were searched, with everything removed
    influence: tuple[float, ...] = ()  # of each node, if the circuit goes through MLPs
    leaves: tuple[str | None, ...] = ()  # why a node was not explained; None: it was
    mlps: Mlps = field(default_factory=lambda: Mlps.of(()))  # those that were explained
    measured: Measured | None = None  # effects, shares and faithfulness, if they were asked for
    run: "Run | None" = field(default=None, repr=False, compare=False)  # that it was traced in; None: read from a file
    probe: "Tensor | None" = field(default=None, repr=False, compare=False)  # of seeds; files have none
    # What older files and stores do not have, and no two circuits of one model and prompt differ in.
    sizes: Sizes | None = field(default=None, compare=False)
    directions: Directions = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        kinds: dict[str, type[Columns[Any]]] = {"nodes": Nodes, "edges": Edges, "firings": Firings, "mlps": Mlps}
        for name, kind in kinds.items():
            if not isinstance(rows := getattr(self, name), kind):  # objects that somebody changed
                object.__setattr__(self, name, kind.of(rows))
        keys, model = getattr(self.parameters, "keys", "source"), str(self.model.get("fingerprint", ""))
        origin = Origin(self.nodes, self.parameters.basis, keys, model, tuple(self.tokens))
        object.__setattr__(self, "edges", self.edges.within(origin))

    @property
    def heads(self) -> tuple[Node, ...]:
        """The head nodes."""
        return tuple(node for node in self.nodes if node.kind == "head")

    @property
    def has_heads(self) -> bool:
        """Is there any head among its nodes?"""
        return bool((self.nodes.kind == "head").any())

    def is_sink(self, node: int) -> bool:
        """Does this head attend to the first token, as heads with nothing to do often are?

        Args:
            node: The index of a node.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> circuit = run.trace("Mary", against="John", through="heads")
        >>> any(circuit.is_sink(node) for node in range(len(circuit.nodes)))
        True
        """
        return self.nodes[node].kind == "head" and self.nodes[node].src == 0 < self.nodes[node].dest

    def signal(self, edge: Edge) -> Signal:
        """An edge into a firing as a signal: its writer, its channels and their basis.

        Args:
            edge: One of `circuit.edges`.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> circuit = run.trace("Mary", against="John", through="heads")
        >>> edge = next(edge for edge in circuit.edges if edge.side == "src")
        >>> circuit.signal(edge).channels == edge.channels
        True
        """
        if edge.side != "dest" and edge.side != "src":
            raise KeyholeError("an edge into the answer, an MLP or a value is not a signal of a firing.")
        writer = self.nodes[edge.sender].writer
        return Signal(writer, edge.side, edge.channels, edge.weight, edge.ig, edge.alone, self.parameters.basis)

    def edit(self, part: "Edge | Node", *, factor: float = 0.0, scope: "Scope" = "here") -> "Edit":
        """A part of the circuit as an edit: an edge (a signal or a cause), or everything that a node writes.

        Args:
            part: One of `circuit.edges` or `circuit.nodes`.
            factor: 0 removes it, 2 doubles it, -1 turns it round.
            scope: "here" at its own tokens, "on" from its dest on, "everywhere" at all tokens.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> circuit = run.trace("Mary", against="John", through="heads")
        >>> edge = next(edge for edge in circuit.edges if edge.side == "src")
        >>> circuit.edit(edge).factor
        0.0
        """
        from keyhole.edits.making import circuit_edit

        return circuit_edit(self, part, factor=factor, scope=scope)

    def claims(
        self, example: "Example", *, model: "Model | None" = None, prompts: "Prompts" = None, most: int = 8
    ) -> "tuple[Claim, ...]":
        """What it says of a task, as claims that can be tested: `keyhole.claim(model, claim)`.

        Args:
            example: The circuit's prompt, whose roles name its tokens in others.
            model: The model that made it, if it was read from a file.
            prompts: Those that claims about heads are tested on, or a task. Default: the example's own task.
            most: How many claims; those of the largest influence come first.

        >>> import keyhole
        >>> from keyhole.tasks import ioi
        >>> example = ioi(1, 2, wordings=[0], order="ABBA")[0]
        >>> run = keyhole.load().run(example.text)
        >>> circuit = run.trace(example.answer, against=example.wrong)
        >>> [claim.kind for claim in circuit.claims(example, most=2)]
        ['suffices', 'moves']
        """
        from keyhole.claims.making import circuit_claims

        return circuit_claims(self, example, model=model, prompts=prompts, most=most)

    def edges_into(self, node: int) -> tuple[Edge, ...]:
        """The signals that cause a node.

        Args:
            node: The index of a node.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> circuit = run.trace("Mary", against="John", through="heads")
        >>> len(circuit.edges_into(circuit.edges[0].receiver)) > 0
        True
        """
        return tuple(edge for edge in self.edges if edge.receiver == node)

    @classmethod
    def load(cls, path: "str | Path") -> "Circuit":
        """Read a circuit that was saved as .json.

        Args:
            path: The file.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> circuit = run.trace("Mary", against="John", through="heads")
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     circuit.save(f"{folder}/mary.json")
        ...     Circuit.load(f"{folder}/mary.json") == circuit
        True
        """
        from keyhole.circuits.files import load_circuit

        return load_circuit(path)

    def save(self, path: "str | Path") -> None:
        """Write it: .json (lossless), .html (one page), .png, .svg, .pdf, .graphml, .mib or .neuronpedia.json.

        Args:
            path: The file; its suffix says which kind.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> circuit = run.trace("Mary", against="John", through="heads")
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     circuit.save(f"{folder}/mary.json")
        ...     Circuit.load(f"{folder}/mary.json") == circuit
        True
        """
        from keyhole.circuits.files import save

        save(self, path)

    def to_json(self) -> str:
        """The circuit as a JSON document, without loss.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> circuit = run.trace("Mary", against="John", through="heads")
        >>> '"tokens"' in circuit.to_json()
        True
        """
        from keyhole.circuits.files import to_json

        return to_json(self)

    def to_dataframe(self) -> "Table":
        """The signals as a table, a row each, strongest first: a pandas DataFrame, or records without pandas.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> circuit = run.trace("Mary", against="John", through="heads")
        >>> len(circuit.to_dataframe()) == len(circuit.edges)
        True
        """
        from keyhole.circuits.exports import to_dataframe

        return to_dataframe(self)

    def show(self) -> "Page":
        """The circuit as a page to click through, offline: opened in the browser, or shown in a notebook."""
        from keyhole.web.notebook import show

        return show(self)

    def to_html(self, names: "Mapping[Edge, str] | None" = None) -> str:
        """The circuit as one self-contained page.

        Args:
            names: Names of edges, shown beside them.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> circuit = run.trace("Mary", against="John", through="heads")
        >>> circuit.to_html().startswith("<!doctype html>")
        True
        """
        from keyhole.web.page import to_html

        return to_html(self, names)

    def widget(self, model: "Model | None" = None) -> "Widget":
        """The circuit in a notebook, with the kernel behind it. See `keyhole.web.notebook`.

        See `keyhole.web.notebook`.

        Args:
            model: The model that made the circuit, if it was read from a file.
        """
        from keyhole.web.notebook import circuit_widget

        return circuit_widget(self, model)

    def _repr_html_(self) -> str:
        from keyhole.web.reprs import circuit_html

        return circuit_html(self)

    def plot(self, names: "Mapping[Edge, str] | None" = None, *, width: float | None = None) -> "Figure":
        """The circuit as a picture for print, tokens from left to right. See `keyhole.figures.circuit`.

        See `keyhole.figures.circuit`.

        Args:
            names: Names of edges, shown beside them.
            width: The width in inches at which it is printed: 6.75, or 3.25 for a column of two. Letters keep their
                size.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> circuit = run.trace("Mary", against="John", through="heads")
        >>> len(circuit.plot(width=3.25).axes)
        1
        """
        from keyhole.figures.circuit import circuit_figure

        return circuit_figure(self, names=names, width=width)

    def to_networkx(self) -> "nx.MultiDiGraph[int]":
        """The circuit as a networkx graph.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> circuit = run.trace("Mary", against="John", through="heads")
        >>> circuit.to_networkx().number_of_nodes() == len(circuit.nodes)
        True
        """
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

        Ctrl-C returns what is finished. See `keyhole.faithfulness.verify`.

        Args:
            model: The model that made the circuit, if it was read from a file.
            mode: Where a signal is removed: "exact", from the firing's scores alone; "local", from the head's query or
                keys; "global", from the residual stream, so that everything downstream changes; "chain", of MLPs alone.
            draws: How many random controls each removal has.
            edges: Whether every signal is removed by itself, too; or the indices of the edges that are.
            seed: Seed of the controls.
            progress: Called with the number of removals done and their total.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> circuit = run.trace("Mary", against="John", through="heads")
        >>> result = circuit.verify(draws=0, edges=False)
        >>> result.arithmetic.agree == result.arithmetic.of
        True
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

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> circuit = run.trace("Mary", against="John")
        >>> circuit.effects(like="resting", what=["nodes"]).measured.baseline
        'the resting state'
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

        See `keyhole.faithfulness.backups`. Ctrl-C returns what is finished.

        Args:
            model: The model that made the circuit, if it was read from a file.
            like: Prompts of the same template, as `effects` takes them.
            counterfactual: One prompt of equal length, whose writes are the baseline.
            text: A file whose resting state is the baseline, a paragraph a line.
            settings: How many heads, or which, and how many random pairs.
            progress: Called with the number of passes done and their total.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> circuit = run.trace("Mary", against="John", through="heads")
        >>> from keyhole.faithfulness import PairSettings
        >>> result = circuit.backups(like="resting", settings=PairSettings(named=((3, 6),), draws=20))
        >>> [removed.head for removed in result.heads]
        [(3, 6)]
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

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> circuit = run.trace("Mary", against="John")
        >>> from keyhole.circuits import from_json
        >>> print(from_json(circuit.to_json()).story(top=1).paths[0].steps[0].kind)
        word
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
