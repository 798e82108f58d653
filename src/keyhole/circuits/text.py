"""How does a circuit read? Labels, and a tree of causes for the terminal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from keyhole.brief import model_label
from keyhole.circuits.circuit import Circuit, Edge, Node
from keyhole.circuits.records import Parameters, Sufficient, Writer
from keyhole.circuits.shown import SHOWN
from keyhole.models.tokens import token_label


def node_label(node: Node | Writer, tokens: Sequence[str]) -> str:
    """What a node is, in words: head 3.1 (14:to <- 2:Mary), mlp 2 (14:to)."""
    where = token_label(tokens, node.dest)
    if node.kind == "head":
        return f"head {node.layer}.{node.head} ({where} <- {token_label(tokens, node.src)})"
    if node.kind == "target":
        return f"answer at {where}"
    if node.kind == "offset":
        return f"offset of {node.layer}.{node.head} ({where})"
    if node.kind == "mlp_offset":
        return f"constant of mlp {node.layer} ({where})"
    if node.kind == "value_offset":
        return f"constant moved by {node.layer}.{node.head} ({where})"
    return f"embedding ({where})" if node.kind == "embedding" else f"{node.kind} {node.layer} ({where})"


def words_label(texts: Sequence[str], most: int = 3) -> str:
    """Some tokens in quotes, such as 'Mary', ' Anna' and 4 more; with their spaces, which make them other tokens.

    >>> words_label([" Mary"]), words_label("abcde")
    ("' Mary'", "'a', 'b', 'c' and 2 more")
    """
    shown = ", ".join(map(repr, texts[:most]))
    return f"{shown} and {len(texts) - most} more" if len(texts) > most else shown


def count(n: int, noun: str) -> str:
    """So many of them.

    >>> count(1, "firing"), count(3, "firing")
    ('1 firing', '3 firings')
    """
    return f"{n} {noun}{'s' * (n != 1)}"


def channels_label(channels: Sequence[int], most: int = 6) -> str:
    """Channels in the order of their removal."""
    shown = ",".join(str(k) for k in channels[:most])
    return f"{shown},+{len(channels) - most}" if len(channels) > most else shown


def circuit_text(circuit: Circuit, depth: int = 3, width: int = 6, *, names: Mapping[Edge, str] | None = None) -> str:
    """A circuit as a tree, from the answer down.

    A branch that was already printed is not repeated.

    Args:
        circuit: The circuit.
        depth: How many levels are printed.
        width: How many edges into each node are printed, the strongest first.
        names: Names of edges, printed behind them (see `keyhole.naming.attached`).

    >>> import keyhole
    >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
    >>> circuit = run.trace("Mary", against="John", through="heads")
    >>> print(circuit_text(circuit, depth=1, width=1).splitlines()[0])
    organism: 35 nodes (12 firings of 10 heads, 12 MLPs), 67 edges, 9 firings explained
    """
    kinds = [node.kind for node in circuit.nodes]
    heads = len({(n.layer, n.head) for n in circuit.heads})
    attached = len(circuit.edges) - sufficing(circuit)
    lines = [
        f"{model_label(str(circuit.model['name']))}: {count(len(kinds), 'node')} "
        f"({count(kinds.count('head'), 'firing')} of "
        f"{count(heads, 'head')}, {count(kinds.count('mlp'), 'MLP')}), {count(sufficing(circuit), 'edge')}"
        + (f" that suffice, {count(attached, 'signal')} attached" if isinstance(circuit.parameters, Sufficient) else "")
        + f", {count(len(circuit.firings), 'firing')} explained",
    ]
    root = kinds.index("target")
    lines.append(f"{answer_place(circuit)}{answer_label(circuit)}")
    _Tree(circuit, width, names or {}, lines, shown={root}).branch(root, depth)
    if circuit.influence:
        lines.append(f"where influence ends: {ends_label(circuit)}")
    errors = "  ".join(f"{name} {value:.0e}" for name, value in circuit.errors.items())
    lines.append(f"errors: {errors}")
    if not circuit.heads:
        lines.append(_headless(circuit))
    if circuit.measured is not None:
        lines.append(faithfulness_label(circuit))
    return "\n".join(lines)


def weight_label(circuit: Circuit) -> str:
    """What the number at an edge is: a share, a drop, or by svt a contribution; and at the answer."""
    if circuit.influence:
        return "the share of the answer that it hands on"
    given = circuit.parameters.seeds == "given"
    at_answer = f"at the answer {'the weight of a firing to begin with' if given else 'its push'}"
    if isinstance(circuit.parameters, Sufficient):
        return "its share of the answer's gap to the baseline"
    if circuit.parameters.method == "svt":
        return f"the contribution (equation 8) to the firing above it, {at_answer}"
    return f"the drop of attention without it, {at_answer}"


def question_label(circuit: Circuit) -> str:
    """What was traced: words, firings that a trace began with, or a direction: 'Mary'; 3.1 (14:to <- 11:gave)."""
    parameters = circuit.parameters
    if parameters.target_text:
        return _answer_text(parameters)
    starts = [node_label(Writer("head", *place), circuit.tokens) for place in getattr(parameters, "start", None) or ()]
    if len(starts) > 1:
        return f"{starts[0]} and {len(starts) - 1} more"
    return starts[0] if starts else "this direction"


def ends_of(circuit: Circuit) -> dict[str, float]:
    """Where a circuit's influence ends: words by their tokens, everything else by its reason; how much of it there."""
    ends: dict[str, float] = {}
    for node, share, leaf in zip(circuit.nodes, circuit.influence, circuit.leaves, strict=True):
        if leaf is not None:
            who = _ended(node.kind, leaf)
            if node.kind == "embedding" or leaf == "in layer 0":  # which has read nothing but words
                who = token_label(circuit.tokens, node.src) + (" by heads in layer 0" if node.kind == "head" else "")
            ends[who] = ends.get(who, 0.0) + share
    return ends


def ends_label(circuit: Circuit, most: int = 6) -> str:
    """The same in a line, the largest first."""
    ranked = sorted(ends_of(circuit).items(), key=lambda end: -end[1])
    shown = ", ".join(f"{name} {share:.0%}" for name, share in ranked[:most])
    return shown + (f", others {sum(share for _, share in ranked[most:]):.0%}" if len(ranked) > most else "")


def _ended(kind: str, leaf: str) -> str:
    """What ended there: heads that are pruned, MLPs at the first token, constants."""
    named = {
        "head": f"heads {leaf}",
        "mlp": f"MLPs {leaf}",
        "mlp_offset": "constants of MLPs",
        "value_offset": "constants moved by heads",
        "bias": "biases",
    }
    return named.get(kind, f"{kind}s")


def _headless(circuit: Circuit) -> str:
    """That there is no head, and which seeds find some; more seeds of the same kind often find none either."""
    note = "note: no attention head is in this circuit: what is written at the last token itself carries the answer."
    parameters = circuit.parameters
    if parameters.seeds not in ("prob", "linear") or parameters.against_ids:
        return note
    linear = ' or read the answer by its logit (--metric linear, metric="linear")' if parameters.seeds == "prob" else ""
    return f"{note}\n      To see heads, name the other answer (--against, against=){linear}."


def answer_label(circuit: Circuit) -> str:
    """Which answer was traced, how likely it is, and against what: ": 'Mary' (probability 0.93) against 'John' (0.04)".

    Files written before circuits kept probabilities have none to tell.
    """
    parameters = circuit.parameters
    if parameters.seeds == "probe":
        return f": a direction that layer {parameters.probe_layer} reads"
    if not parameters.target_text:
        return f": begun with {question_label(circuit)}" if parameters.seeds == "given" else ""
    answer = _answer_text(parameters) + (
        f" (probability {parameters.likely:.3g})" if parameters.target_probability else ""
    )
    mean = parameters.seeds == "linear" and not parameters.against_ids
    other = "the mean of all tokens" if mean else _likely(parameters.against_text, parameters.against_probability)
    return f": {answer} against {other}" if other else f": {answer}"


def answer_place(circuit: Circuit) -> str:
    """Where the answer is predicted: answer at 14:to; of a continuation, at 14:to and 15:New."""
    places = [token_label(circuit.tokens, end) for end, _ in circuit.parameters.predicted]
    return f"answer at {' and '.join(places)}"


def _answer_text(parameters: Parameters) -> str:
    """Any of some answers, with commas; the tokens of a continuation, which follow one another, with a plus."""
    texts = parameters.target_text
    return " + ".join(map(repr, texts)) if parameters.continuation else words_label(texts)


def _likely(texts: Sequence[str], likely: Sequence[float]) -> str:
    """Words with what the model gives them together."""
    if not texts:
        return ""
    return words_label(texts) + (f" ({sum(likely):.3g})" if likely else "")


@dataclass
class _Tree:
    """A tree while it is written: its lines, and the nodes whose branches were shown."""

    circuit: Circuit
    width: int
    names: Mapping[Edge, str]
    lines: list[str]
    shown: set[int]

    def branch(self, node: int, depth: int, indent: str = "") -> None:
        """Everything that causes a node, so deep: what suffices first, then why a head looks there."""
        into = [i for i, edge in enumerate(self.circuit.edges) if edge.receiver == node]
        causes, signals = (
            [i for i in into if i < sufficing(self.circuit)],
            [i for i in into if i >= sufficing(self.circuit)],
        )
        causes.sort(key=self.rank, reverse=True)
        shown = min(self.width, sum(self.matters(i) for i in causes))
        for position, i in enumerate(causes[:shown]):
            last = position == shown - 1 and len(causes) <= shown and not signals
            self.edge(i, depth, indent, last=last)
        if len(causes) > shown:
            self.lines.append(f"{indent}{'├─' if signals else '└─'} and {len(causes) - shown} weaker")
        if signals:
            self.lines.append(f"{indent}└─ why it looks there (attention lost without it):")
            ranked = sorted(signals, key=lambda i: -self.circuit.edges[i].weight)
            for i in ranked:
                self.lines.append(f"{indent}   {'└─' if i == ranked[-1] else '├─'} {self.label(i)}")

    def edge(self, i: int, depth: int, indent: str, *, last: bool) -> None:
        """An edge, and what causes its writer."""
        source = self.circuit.edges[i].sender
        further = len(self.circuit.edges_into(source))
        again = source in self.shown and bool(further)
        self.lines.append(f"{indent}{'└─' if last else '├─'} {self.label(i, again=again)}")
        deeper = indent + ("   " if last else "│  ")
        if not again and depth > 1:
            self.shown.add(source)
            self.branch(source, depth - 1, deeper)
        elif not again and further:
            self.lines.append(f"{deeper}└─ ... {count(further, 'signal')}")

    def label(self, i: int, *, again: bool = False) -> str:
        """An edge in a line: its number, its writer, what was measured, its name."""
        circuit, edge = self.circuit, self.circuit.edges[i]
        part = isinstance(circuit.parameters, Sufficient) and i < sufficing(circuit)
        return (
            f"{_edge_label(edge, part=part)} {node_label(circuit.nodes[edge.sender], circuit.tokens)}"
            + _attention_label(circuit, edge.sender)
            + (" (above)" if again else _in_all(circuit, edge))
            + _measured_label(circuit, i)
            + (f": {self.names[edge]}" if edge in self.names else "")
        )

    def rank(self, i: int) -> tuple[float, float]:
        """What comes first: the largest effect of either sign where effects were measured, then what is largest."""
        edge, effect = self.circuit.edges[i], effect_of(self.circuit, i)
        return abs(effect or 0.0), score_of(edge)

    def matters(self, i: int) -> bool:
        """Is an edge shown? By its influence, or by its effect."""
        influence, effect, measured = self.circuit.edges[i].influence, effect_of(self.circuit, i), self.circuit.measured
        large = effect is not None and measured is not None and abs(effect) >= SHOWN * abs(measured.gap)
        return influence is None or influence >= SHOWN / 4 or large


def sufficing(circuit: Circuit) -> int:
    """How many of its first edges a circuit is made of; those after them say why heads look where they look."""
    parameters = circuit.parameters
    return parameters.found if isinstance(parameters, Sufficient) else len(circuit.edges)


def score_of(edge: Edge) -> float:
    """How strong an edge is: its influence, or its weight where there is none."""
    return edge.weight if edge.influence is None else edge.influence


def effect_of(circuit: Circuit, edge: int) -> float | None:
    """What the answer loses without an edge, by its index; None: not measured."""
    return None if circuit.measured is None else circuit.measured.of_edge(edge)[0]


def faithfulness_label(circuit: Circuit) -> str:
    """One line: how much of the answer a circuit carries, and against which baseline; or why that is not known."""
    measured = circuit.measured
    if measured is None:
        return ""
    result = "not measured" if measured.faithfulness is None else str(measured.faithfulness)
    return (
        f"faithfulness (baseline: {measured.baseline}, where the {measured.metric} is {measured.nothing:+.2f} instead "
        f"of {measured.everything:+.2f}): {result}" + (f"; note: {measured.note}" if measured.note else "")
    )


def _in_all(circuit: Circuit, edge: Edge) -> str:
    """What reaches a node on all ways, where that is more than on this one: its branches show all of it."""
    if edge.influence is None or not circuit.edges_into(edge.sender):
        return ""
    total = circuit.influence[edge.sender]
    return f", {total:.1%} in all" if total > 1.02 * edge.influence else ""


def _edge_label(edge: Edge, *, part: bool) -> str:
    side = {"src": "src ", "target": "", "mlp": ""}.get(edge.side, edge.side)
    channels = f" ch {channels_label(edge.channels, 3)}" if edge.channels and not part else ""
    drop = f"{edge.weight:+6.1%}" if part else f"{edge.weight:+.2f}"
    share = drop if edge.influence is None else f"{edge.influence:6.1%}"
    return f"{share} {side}{channels}".rstrip()


def _measured_label(circuit: Circuit, edge: int) -> str:
    """An edge's effect and share, if they were measured; a share is a part of the gap to the baseline.

    A circuit that suffices has shares for its numbers already.
    """
    if circuit.measured is None:
        return ""
    effect, share = circuit.measured.of_edge(edge)
    parts = [] if effect is None else [f"effect {effect:+.2f}"]
    if share is not None and circuit.measured.gap and not isinstance(circuit.parameters, Sufficient):
        parts.append(f"share {share / circuit.measured.gap:+.1%}")
    return f" [{', '.join(parts)}]" if parts else ""


def _attention_label(circuit: Circuit, node: int) -> str:
    value, leaf = circuit.attention[node], circuit.leaves[node] if circuit.leaves else None
    marked = " sink" if getattr(circuit.parameters, "sinks", None) == "mark" and circuit.is_sink(node) else ""
    ended = f" [{leaf}]" if leaf and circuit.nodes[node].kind in ("mlp", "head") else ""
    return ended if value is None else f" {value:.2f}{marked}{ended}"
