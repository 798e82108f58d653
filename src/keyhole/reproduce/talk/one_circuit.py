"""What does one circuit look like? Where it ends, what its edges carry, and a picture."""

from collections import Counter

from matplotlib.figure import Figure

from keyhole.circuits.circuit import Circuit, Node
from keyhole.figures import save
from keyhole.figures.style import BLUE, FAINT, GREY, INK, RED, blank, heading, plain, tidy
from keyhole.reproduce.job import Attempt, Job, Numbers
from keyhole.reproduce.outcome import Outcome
from keyhole.reproduce.svt.ioi import LEAST, judged, stood_in, subject, trace_answer

_EXACT = 1e-4  # of a decomposition, relative
_PROMPTS = 16


def one_circuit(job: Job) -> Outcome:
    """Does the recursion end by itself, and does every edge carry channels?"""
    seen = subject(job)
    found = [trace_answer(run, int(run.logits[-1].argmax())) for _, run in seen.runs(_PROMPTS)]
    circuits = [one for one in found if one is not None]
    rich = [one for one in circuits if any(edge.side != "target" for edge in one.edges)]
    note = (
        "Asked of all circuits, "
        f"{LEAST} or more of them with signals: channels on every signal; ends only at embeddings, biases and MLPs "
        "(whose outputs are not taken apart), at heads of the first layer and at the first token, none at a head whose "
        f"weight is below the threshold of tracing; and decompositions exact to {_EXACT:g}. These are properties of "
        f"the method, which hold whatever a model has learned: that they do tells nothing of it. {stood_in(job)}"
    )
    if not rich:
        return Outcome(judged(job, []), f"None of {len(circuits)} circuits has signals.", {}, (), note)
    signals = [edge for one in circuits for edge in one.edges if edge.side != "target"]
    carried = sum(bool(edge.channels) for edge in signals)
    leaves = [leaf for one in circuits for leaf in _leaves(one)]
    kinds = Counter(node.kind for node in leaves)
    lowest = seen.model.attention_layers[0]
    open_ends = sum(node.kind == "head" and node.layer != lowest and node.dest > 0 for node in leaves)
    error = max(max(one.errors.values()) for one in circuits)
    largest = max(rich, key=lambda one: len(one.edges))  # shows most
    numbers: Numbers = {"circuits": len(circuits), "with signals": len(rich), "signals": len(signals)}
    numbers |= {
        "signals with channels": carried,
        "largest error": error,
        "ends at heads above the first layer": open_ends,
    }
    numbers |= {f"leaves: {kind}": n for kind, n in kinds.items()}
    text = (
        f"{len(rich)} of {len(circuits)} circuits have signals, the largest {len(largest.nodes)} nodes and "
        f"{len(largest.edges)} edges; {carried} of {len(signals)} signals carry channels; {len(leaves)} leaves "
        f"({', '.join(f'{n} {kind}' for kind, n in kinds.most_common())}), {open_ends} of them heads above "
        f"the first layer; largest relative error of a decomposition {error:.1e}."
    )
    path = save(_circuit_figure(largest), job.folder / "circuit.png")
    holds = [carried == len(signals), open_ends == 0, error < _EXACT]
    kept = len(rich) >= LEAST and all(holds)
    return Outcome("untold" if kept else judged(job, []), text, numbers, (path,), note)


def _leaves(circuit: Circuit) -> list[Node]:
    """Where tracing ended."""
    targets = {edge.target for edge in circuit.edges}
    return [node for i, node in enumerate(circuit.nodes) if i not in targets]


def _circuit_figure(circuit: Circuit) -> Figure:
    """Nodes at their token (from left to right) and layer (from below); blue and red lines are signals."""
    depth = max((node.layer for node in circuit.nodes if node.layer is not None), default=0)
    figure = blank(max(7.0, 0.6 * len(circuit.tokens) + 1), 1.1 * depth + 3.2)
    heading(figure, "A circuit of one prompt: signals at the destination (red) and at the source (blue)")
    axis = figure.subplots()
    tidy(axis, y="layer")
    places, shared = [], Counter[tuple[int, int]]()
    for node in circuit.nodes:
        level = depth + 1 if node.layer is None else -1 if node.kind == "embedding" else node.layer
        at = shared[level, node.dest]
        shared[level, node.dest] += 1
        places.append((node.dest, level + 0.22 * at))
    for edge in circuit.edges:
        (x0, y0), (x1, y1) = places[edge.source], places[edge.target]
        shade = {"dest": RED, "src": BLUE, "target": GREY}[edge.side]
        axis.plot([x0, x1], [y0, y1], color=shade, linewidth=1.2, alpha=0.6, zorder=1)
    for node, place in zip(circuit.nodes, places, strict=True):
        label = f"{node.layer}.{node.head}" if node.kind == "head" else "answer" if node.layer is None else node.kind
        dark = node.kind in ("head", "target")
        box = {"boxstyle": "round,pad=0.2", "facecolor": INK if dark else FAINT, "edgecolor": "none"}
        colour = "white" if dark else INK
        axis.text(*place, label, fontsize=7, color=colour, ha="center", va="center", zorder=2, bbox=box)
    axis.set_xlim(-0.6, len(circuit.tokens) - 0.4)
    axis.set_ylim(-1.5, depth + 1.6)
    axis.set_yticks(range(depth + 1))
    axis.set_xticks(range(len(circuit.tokens)), [plain(token) for token in circuit.tokens], rotation=60, ha="right")
    return figure


RUNS: dict[str, Attempt] = {"talk-12": one_circuit}
