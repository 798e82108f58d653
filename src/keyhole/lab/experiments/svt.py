"""Which network of heads does singular vector tracing find on IOI prompts? Traced from name movers down."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
from matplotlib.figure import Figure
from torch import Tensor

from keyhole.circuits.circuit import Circuit
from keyhole.errors import KeyholeError
from keyhole.figures import save
from keyhole.figures.style import BLUE, GREY, INK, RED, blank, heading, legend, tidy
from keyhole.lab.ioi_studies import Subject, is_gpt2, judged, stood_in, subject
from keyhole.lab.job import Experiment, Job, Numbers
from keyhole.lab.outcome import Outcome
from keyhole.lab.sparse import Head
from keyhole.models.run import Run
from keyhole.tasks.example import Example
from keyhole.tracing.svt import ChannelChoice, Start, contributions, significant, trace_svt

_NETWORK, _SKELETON = 65 / 256, 170 / 256  # in how many prompts an edge must be
_KNOWN = {  # of Wang et al. (2023), those that can lie below the three name movers
    *((9, 6), (9, 9), (10, 0), (7, 3), (7, 9), (8, 6), (8, 10), (5, 5), (5, 8), (5, 9), (6, 9)),
    *((0, 1), (0, 10), (3, 0), (2, 2), (4, 11)),
}
Edge = tuple[Head, Head, str]  # writer, reader, and the side it is read at


@dataclass(frozen=True)
class Network:
    """In what share of the prompts each edge was traced."""

    edges: dict[Edge, float]
    starts: tuple[Head, ...]
    traced: int  # prompts in which a start fires

    def frequent(self, least: float) -> dict[Edge, float]:
        """Edges in at least this share of the prompts."""
        return {edge: share for edge, share in self.edges.items() if share >= least}

    def heads(self, least: float) -> set[Head]:
        """Their heads, and those where tracing starts."""
        return {*self.starts, *(head for edge in self.frequent(least) for head in edge[:2])}


def traced(job: Job, channels: ChannelChoice = "singular") -> Network:
    """The network of a job's model, traced once for all figures."""
    return _traced(subject(job), channels)


@lru_cache(maxsize=4)
def _traced(seen: Subject, channels: ChannelChoice) -> Network:
    counts: Counter[Edge] = Counter()
    done = 0
    for number, example in enumerate(seen.examples):
        run = seen.model.run(example.text)
        try:
            circuit = trace_svt(run, start=_starts(seen, example, run), threshold=seen.threshold, channels=channels)
        except KeyholeError:  # no name mover fires in this prompt
            continue
        finally:
            seen.progress(number + 1, len(seen.examples))
        done += 1
        counts.update(_edges(circuit))
    if not done:
        raise KeyholeError(f"no name mover of {seen.model.name} fires in these prompts: choose another model.")
    return Network({edge: n / done for edge, n in counts.items()}, seen.role("name mover"), done)


def _starts(seen: Subject, example: Example, run: Run) -> list[Start]:
    end, io = example.position(run, "END"), example.position(run, "IO")
    return [(*head, end, io) for head in seen.role("name mover")]


def _edges(circuit: Circuit) -> set[Edge]:
    """Pairs of heads, whatever their tokens."""
    found: set[Edge] = set()
    for edge in circuit.edges:
        writer, reader = circuit.nodes[edge.source], circuit.nodes[edge.target]
        if edge.side != "target" and writer.head is not None and reader.head is not None:
            assert writer.layer is not None and reader.layer is not None
            found.add(((writer.layer, writer.head), (reader.layer, reader.head), edge.side))
    return found


# -- networks ------------------------------------------------------------------------------------------------------


def network(job: Job, least: float) -> Outcome:
    """Do frequent edges join the heads that are known to do the task?"""
    seen, found = subject(job), traced(job)
    precision, recall, chance = _agreement(job, seen, found.heads(least), found)
    edges, heads = found.frequent(least), found.heads(least)
    numbers: Numbers = {"prompts": found.traced, "heads": len(heads), "edges": len(edges)}
    numbers |= {"precision": precision, "recall": recall, "precision of random heads": chance}
    strong = sorted(edges, key=lambda edge: -edges[edge])[:6]
    text = (
        f"{found.traced} of {len(seen.examples)} prompts traced from {', '.join(map(_name, found.starts))}: "
        f"{len(edges)} edges in {least:.0%} of them or more join {len(heads)} heads. Of upstream heads with a known "
        f"role: precision "
        f"{precision:.2f} (random heads {chance:.2f}), recall {recall:.2f}. Most frequent: {_listed(strong, edges)}."
    )
    title = f"Edges traced in {least:.0%} of {found.traced} prompts or more"
    path = save(network_figure(edges, _known(job, seen), seen.model.dims.heads, title), job.folder / "network.png")
    return Outcome(
        judged(job, [precision >= 0.4 and precision > chance, recall >= 0.5]), text, numbers, (path,), _note(job)
    )


def without(job: Job) -> Outcome:
    """Does tracing with whole residuals miss what tracing with singular vectors finds?"""
    seen, found, whole = subject(job), traced(job), traced(job, "all")
    numbers: Numbers = {}
    lines = []
    results = {}
    for name, one in (("singular vectors", found), ("whole residuals", whole)):
        precision, recall, _ = _agreement(job, seen, one.heads(_SKELETON), one)
        edges = one.frequent(_SKELETON)
        at_source = sum(edge[2] == "src" for edge in edges)
        results[name] = (recall, at_source)
        numbers |= {f"{name}: edges": len(edges), f"{name}: at sources": at_source}
        numbers |= {f"{name}: precision": precision, f"{name}: recall": recall}
        lines.append(
            f"With {name}: {len(edges)} edges in two thirds of the prompts, {at_source} of them at source tokens; "
            f"precision {precision:.2f}, recall {recall:.2f}."
        )
    (recall, sources), (other, few) = results.values()
    title = "Edges traced with whole residuals, in two thirds of the prompts"
    figure = network_figure(whole.frequent(_SKELETON), _known(job, seen), seen.model.dims.heads, title)
    path = save(figure, job.folder / "network.png")
    return Outcome(judged(job, [other < recall, few < sources / 2]), "\n".join(lines), numbers, (path,), _note(job))


def _known(job: Job, seen: Subject) -> set[Head]:
    return set(_KNOWN) if is_gpt2(job.model) else {head for heads in seen.roles.values() for head in heads}


def _agreement(job: Job, seen: Subject, heads: set[Head], found: Network) -> tuple[float, float, float]:
    """Precision and recall of known heads below the starts (which are given), and the precision of random heads."""
    top = max(layer for layer, _ in found.starts)
    known = {head for head in _known(job, seen) if head[0] < top} - set(found.starts)
    upstream = heads - set(found.starts)
    exist = sum(layer < top for layer in seen.model.attention_layers) * seen.model.dims.heads
    right = len(upstream & known)
    return right / max(len(upstream), 1), right / max(len(known), 1), len(known) / max(exist, 1)


def _note(job: Job) -> str:
    if is_gpt2(job.model):
        return "Starts are not counted: without them the published precision is .44 and the recall .62."
    return (
        "Known heads are here those that look where the roles of the task do (a fifth of their attention or more), and "
        f"a firing is a weight of a quarter, since name movers give less than half; heads where tracing starts are not "
        f"counted. {stood_in(job)}"
    )


def _name(head: Head) -> str:
    return f"{head[0]}.{head[1]}"


def _listed(edges: Sequence[Edge], share: dict[Edge, float]) -> str:
    return ", ".join(f"{_name(a)} to {_name(b)} ({side}, {share[a, b, side]:.0%})" for a, b, side in edges) or "none"


def network_figure(edges: dict[Edge, float], known: set[Head], n_heads: int, title: str) -> Figure:
    """Which head writes to which? Layers from left to right; wider lines are in more prompts."""
    shown = sorted({head for edge in edges for head in edge[:2]})
    layers = sorted({layer for layer, _ in shown}) or [0]
    figure = blank(max(6.0, 1.6 * len(layers) + 2), max(3.6, 0.34 * n_heads + 1.2))
    heading(figure, title)
    axis = figure.subplots()
    tidy(axis, x="layer", y="head")
    for (a, b, side), share in edges.items():
        lift = 0.08 if side == "src" else -0.08
        shade = BLUE if side == "src" else RED
        axis.plot(
            [a[0], b[0]], [a[1] + lift, b[1] + lift], color=shade, linewidth=0.5 + 3 * share, alpha=0.55, zorder=1
        )
    for head in shown:
        shade = INK if head in known else GREY
        axis.text(*head, _name(head), color="white", ha="center", va="center", fontsize=9, zorder=3, bbox=_box(shade))
    axis.set_xlim(layers[0] - 0.5, layers[-1] + 0.5)
    axis.set_ylim(n_heads - 0.5, -0.5)
    axis.set_xticks(layers)
    axis.set_yticks([])
    legend(figure, _handles(), columns=4, beneath=True)
    return figure


def _box(shade: str) -> dict[str, str]:
    return {"boxstyle": "round,pad=0.3", "facecolor": shade, "edgecolor": "none"}


def _handles() -> list[object]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    lines = [Line2D([], [], color=shade, linewidth=2, label=text) for shade, text in _SIDES]
    return [*lines, Patch(color=INK, label="known role"), Patch(color=GREY, label="other head")]


_SIDES = ((RED, "read at the destination"), (BLUE, "read at the source"))


# -- who writes to a name mover ------------------------------------------------------------------------------------


def filtered(job: Job) -> Outcome:
    """Do the slices of a firing single out the heads that matter, where the whole residual shows many?"""
    seen = subject(job)
    movers = seen.role("name mover")[:2]
    numbers: Numbers = {}
    lines, holds, panels = [], [], {}
    for head in movers:
        counts = {}
        for kind in ("all", "singular"):
            values, chosen = _contributed(seen, head, kind)
            panels[f"{_name(head)}, {'all slices' if kind == 'all' else 'slices of the firing'}"] = values
            counts[kind] = chosen
            numbers[f"{_name(head)} {kind}: heads"] = chosen
        top = [divmod(int(i), values.shape[1]) for i in values.flatten().argsort(descending=True)[:3]]
        named = [(seen.model.attention_layers[row], column) for row, column in top]
        holds += [counts["singular"] < counts["all"], named[0] in seen.roles.get("S-inhibition", ())]
        lines.append(
            f"{_name(head)} at END: 70 % of all contributions come from {counts['singular']:.1f} heads in the "
            f"slices of "
            f"the firing, and from {counts['all']:.1f} in all slices; the largest are {', '.join(map(_name, named))}."
        )
    path = save(_heat_figure(panels), job.folder / "contributions.png")
    inhibits = ", ".join(map(_name, seen.roles.get("S-inhibition", ()))) or "none"
    note = f"Means over {len(seen.examples)} prompts. S-inhibition heads: {inhibits}. {_note(job)}"
    return Outcome(judged(job, holds), "\n".join(lines), numbers, (path,), note)


def _contributed(seen: Subject, head: Head, kind: ChannelChoice) -> tuple[Tensor, float]:
    """Mean contribution of every upstream head at END, each prompt's scaled to its largest, and how many matter."""
    total, chosen = [], []
    for example in seen.examples:
        run = seen.model.run(example.text)
        found = contributions(run, head, example.position(run, "END"), example.position(run, "IO"), channels=kind)
        values = found.at_dest.double().cpu()
        total.append(values / values.abs().max().clamp_min(1e-30))
        chosen.append(int(significant(values).sum()))
    return torch.stack(total).mean(0), sum(chosen) / len(chosen)


def _heat_figure(panels: dict[str, Tensor]) -> Figure:
    layers, heads = next(iter(panels.values())).shape
    figure = blank(0.9 + len(panels) * (0.28 * heads + 1.0), 1.8 + 0.3 * layers)
    heading(figure, "What upstream heads contribute at END, mean over prompts")
    for axis, (name, values) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        tidy(axis, name, x="head", y="layer" if name == next(iter(panels)) else "")
        axis.imshow(values.tolist(), cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto", origin="lower")
        axis.set_yticks(range(values.shape[0]))
    return figure


RUNS: dict[str, Experiment] = {
    "svt-fig4": filtered,
    "svt-fig5": partial(network, least=_NETWORK),
    "svt-fig15": partial(network, least=_SKELETON),
    "svt-fig16": without,
}
