"""What does one circuit look like, and do heads that rest on the first token listen to the same signals?"""

from collections import Counter
from dataclasses import dataclass

import torch
from matplotlib.figure import Figure
from torch import Tensor

from keyhole.circuits.circuit import Circuit, Node
from keyhole.errors import KeyholeError
from keyhole.figures import save
from keyhole.figures.style import BLUE, FAINT, GREY, INK, RED, blank, heading, plain, tidy
from keyhole.lab.ioi_studies import LEAST, Subject, judged, stood_in, subject, trace_answer
from keyhole.lab.job import Experiment, Job, Numbers
from keyhole.lab.outcome import Outcome
from keyhole.lab.sparse import Head
from keyhole.models.run import Run
from keyhole.tracing.firing import Firing, SideName
from keyhole.tracing.signals import signal_vector

_EXACT = 1e-4  # of a decomposition, relative
_PROMPTS = 16
_FIRES = 0.5
_ALIKE = 0.5  # cosine
_MANY = 8  # heads
_SIDES: tuple[SideName, SideName] = ("dest", "src")


# -- one circuit ---------------------------------------------------------------------------------------------------


def one_circuit(job: Job) -> Outcome:
    """Does the recursion end by itself, and does every edge carry channels?"""
    seen = subject(job)
    found = []
    chosen = seen.examples[:_PROMPTS]
    for number, example in enumerate(chosen):
        run = seen.model.run(example.text)
        found.append(trace_answer(run, int(run.logits[-1].argmax())))
        seen.progress(number + 1, len(chosen))
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


# -- sinks ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Directions:
    """Per head, the mean direction of its signals on one side, in firings on the first token or on others."""

    heads: tuple[Head, ...]
    vectors: Tensor  # heads x d_model, of length 1

    @property
    def cosines(self) -> Tensor:
        return self.vectors @ self.vectors.T

    @property
    def between(self) -> list[float]:
        """Of all pairs of heads in different layers."""
        n, table = len(self.heads), self.cosines
        return [float(table[i, j]) for i in range(n) for j in range(i) if self.heads[i][0] != self.heads[j][0]]


def sinks(job: Job) -> Outcome:
    """Are the signals of heads that rest on the first token alike, unlike those of heads that fire elsewhere?"""
    seen = subject(job)
    found = _directions(seen)
    numbers: Numbers = {}
    lines, holds = [], []
    for side in _SIDES:
        rest, fire = found[side, True], found[side, False]
        if not rest.between or not fire.between:
            holds.append(False)
            lines.append(f"{side} side: fewer than two layers have heads that fire on the first token and on others.")
            continue
        first, other = (torch.tensor(one.between, dtype=torch.float64) for one in (rest, fire))
        near = float((first > _ALIKE).double().mean())
        numbers |= {f"{side}: first token": float(first.median()), f"{side}: other tokens": float(other.median())}
        numbers |= {f"{side}: above .5": near, f"{side}: above .5, other": float((other > _ALIKE).double().mean())}
        numbers[f"{side}: heads"] = len(rest.heads)
        alike = first.median() > _ALIKE and first.median() > other.median()
        holds.append(bool(alike) and len(rest.heads) >= _MANY)
        lines.append(
            f"{side} side: median cosine of heads in different layers {float(first.median()):.2f} on the first token "
            f"({len(rest.heads)} heads, {near:.0%} of pairs above .5), {float(other.median()):.2f} on other tokens "
            f"({len(fire.heads)} heads)."
        )
    path = save(_heat(found), job.folder / "cosines.png")
    note = (
        f"Asked on each side: {_MANY} heads or more that rest on the first token, with a median cosine above .5 and "
        f"above that on other tokens. A firing has a weight of {_FIRES:g} or more; its signal is the sum of what its "
        f"writers put into their channels, in residual space; directions are means over firings. {stood_in(job)}"
    )
    first_side = len(seen.examples) >= LEAST and any(holds)
    return Outcome(judged(job, holds, first=first_side), "\n".join(lines), numbers, (path,), note)


def _directions(seen: Subject) -> dict[tuple[SideName, bool], _Directions]:
    sums: dict[tuple[SideName, bool], dict[Head, Tensor]] = {(s, first): {} for s in _SIDES for first in (True, False)}
    chosen = seen.examples[:_PROMPTS]
    for number, example in enumerate(chosen):
        run = seen.model.run(example.text)
        for layer in seen.model.attention_layers[1:]:
            for head in range(seen.model.dims.heads):
                for firing in _firings(run, (layer, head)):
                    for side in _SIDES:
                        vector = _signal(firing, side)
                        if vector is not None:
                            own = sums[side, firing.src == 0]
                            own[layer, head] = own[layer, head] + vector if (layer, head) in own else vector
        seen.progress(number + 1, len(chosen))
    width = seen.model.dims.d_model
    return {
        key: _Directions(
            tuple(sorted(own)),
            torch.stack([own[head] / own[head].norm() for head in sorted(own)]) if own else torch.zeros(0, width),
        )
        for key, own in sums.items()
    }


def _firings(run: Run, head: Head) -> list[Firing]:
    """The strongest firing of a head on the first token, and on another one."""
    weights = run.layer(head[0]).weights([head[1]], list(range(len(run))))[0].clone()
    weights[0] = 0  # the first token sees itself alone
    found = []
    for chosen in (weights[:, :1], weights[:, 1:]):
        at = int(chosen.argmax())
        dest, src = divmod(at, chosen.shape[1])
        if chosen[dest, src] >= _FIRES:
            found.append(run.explain(head, dest, src if chosen.shape[1] == 1 else src + 1))
    return found


def _signal(firing: Firing, side: SideName) -> Tensor | None:
    """The direction of all signals of a side together."""
    total = None
    for one in firing.sides:
        for signal in one.signals if one.side == side else ():
            if signal.writer.kind != "offset":
                vector = signal_vector(firing, signal, side, flavour="raw").double().cpu()
                total = vector if total is None else total + vector
    return None if total is None or total.norm() == 0 else total / total.norm()


def _heat(found: dict[tuple[SideName, bool], _Directions]) -> Figure:
    figure = blank(8.4, 8.0)
    heading(figure, "Cosines of heads' mean signals, for firings on the first token and on others")
    image = None
    for axis, ((side, first), own) in zip(figure.subplots(2, 2).flat, found.items(), strict=True):
        tidy(axis, f"{side} side, {'first token' if first else 'other tokens'}")
        if own.heads:
            image = axis.imshow(own.cosines.tolist(), cmap="RdBu_r", vmin=-1, vmax=1)
        step = max(1, len(own.heads) // 16)
        shown = range(0, len(own.heads), step)
        labels = [f"{own.heads[i][0]}.{own.heads[i][1]}" for i in shown]
        axis.set_xticks(shown, labels, rotation=90)
        axis.set_yticks(shown, labels)
    if image is None:
        raise KeyholeError("no head fires in these prompts: choose another model.")
    figure.colorbar(image, ax=figure.axes, label="cosine", shrink=0.6)
    return figure


RUNS: dict[str, Experiment] = {"talk-12": one_circuit, "talk-25": sinks}
