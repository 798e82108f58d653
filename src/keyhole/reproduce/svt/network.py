"""Which network of heads does singular vector tracing find on IOI prompts? Traced from name movers down."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from matplotlib.figure import Figure

from keyhole.circuits.circuit import Circuit
from keyhole.errors import KeyholeError
from keyhole.figures import save
from keyhole.figures.network import Edge, name_of, network_figure
from keyhole.figures.style import BLUE, RED
from keyhole.lab.heads.sparse import Head
from keyhole.models.run import Run
from keyhole.reproduce.job import Attempt, Job, Numbers
from keyhole.reproduce.outcome import Outcome
from keyhole.reproduce.svt.ioi import LEAST, Subject, is_gpt2, judged, stood_in, subject
from keyhole.reproduce.svt.lattice import LATTICE, Pair, lattice
from keyhole.tracing.svt import ChannelChoice, trace_svt

NETWORK, _SKELETON = 65 / 256, 170 / 256  # in how many prompts an edge must be
_KNOWN = {  # of Wang et al. (2023), those that can lie below the three name movers
    *((9, 6), (9, 9), (10, 0), (7, 3), (7, 9), (8, 6), (8, 10), (5, 5), (5, 8), (5, 9), (6, 9)),
    *((0, 1), (0, 10), (3, 0), (2, 2), (4, 11)),
}


@dataclass(frozen=True)
class Network:
    """In what share of the prompts each edge was traced."""

    edges: dict[Edge, float]
    starts: tuple[Head, ...]
    traced: int  # prompts in which a start fires

    def frequent(self, least: float) -> dict[Edge, float]:
        """Edges in at least this share of the prompts."""
        return {edge: share for edge, share in self.edges.items() if share >= least}

    def pairs(self, least: float) -> set[Pair]:
        """The same without sides."""
        return {(a, b) for a, b, _ in self.frequent(least)}

    def heads(self, least: float) -> set[Head]:
        """Their heads, and those where tracing starts."""
        return {*self.starts, *(head for edge in self.frequent(least) for head in edge[:2])}


def traced(job: Job, channels: ChannelChoice = "singular") -> Network:
    """The network of a job's model, traced once for all figures."""
    return _traced(subject(job), channels)


@lru_cache(maxsize=4)
def _traced(seen: Subject, channels: ChannelChoice) -> Network:
    movers = seen.role("name mover")
    counts: Counter[Edge] = Counter()
    done = 0
    for example, run in seen.runs():
        end, io = example.position(run, "END"), example.position(run, "IO")
        starts = [(*head, end, io) for head in movers if _fires(run, head, end, io, seen.threshold)]
        if starts:
            done += 1
            counts.update(_edges(trace_svt(run, start=starts, threshold=seen.threshold, channels=channels)))
    if not done:
        raise KeyholeError(
            f"no name mover of {seen.model.name} fires in these {len(seen.examples)} prompts (a weight of "
            f"{seen.threshold:g} from END to IO): choose another model."
        )
    return Network({edge: n / done for edge, n in counts.items()}, movers, done)


def _fires(run: Run, head: Head, dest: int, src: int, threshold: float) -> bool:
    """The paper's rule: enough weight, from a score that is not negative, and not on the first token."""
    layer, index = head
    record = run.layer(layer)
    weight, score = (float(table([index], [dest])[0, 0, src]) for table in (record.weights, record.scores))
    return weight >= threshold and score >= 0 and src != 0


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


def network(job: Job, least: float, woven: bool = False) -> Outcome:
    """Do frequent edges join the heads that are known to do the task, and (if `woven`) cross between its top roles?"""
    seen, found = subject(job), traced(job)
    shown = _agreement(job, seen, found.heads(least), found)
    edges, heads = found.frequent(least), found.heads(least)
    numbers: Numbers = {"prompts": found.traced, "heads": len(heads), "edges": len(edges), **shown.numbers}
    strong = sorted(edges, key=lambda edge: -edges[edge])[:6]
    text = (
        f"{found.traced} of {len(seen.examples)} prompts traced from {', '.join(map(name_of, found.starts))}: "
        f"{len(edges)} edges in {least:.0%} of them or more join {len(heads)} heads. Of upstream heads with a known "
        f"role: {shown.text}. Most frequent: {_listed(strong, edges)}."
    )
    asked, holds = "precision .4, recall .5, and more known heads than by chance (p < .05)", [shown.agrees]
    if woven:
        crossed = lattice(job, seen, found.starts, found.pairs(NETWORK))
        numbers |= crossed.numbers
        text, asked, holds = f"{text} {crossed.text}", f"{asked}; {LATTICE}", [shown.agrees, *crossed.holds]
    title = f"Edges traced in {least:.0%} of {found.traced} prompts or more"
    path = save(network_figure(edges, _known(job, seen), seen.model.dims.heads, title), job.folder / "network.png")
    first = found.traced >= LEAST and shown.beyond_chance
    note = f"Asked: {asked}; {LEAST} traced prompts or more. {known_here(job)}"
    return Outcome(judged(job, holds, first=first), text, numbers, (path,), note)


def without(job: Job) -> Outcome:
    """Does tracing with whole residuals miss what tracing with singular vectors finds?"""
    seen, found, whole = subject(job), traced(job), traced(job, "all")
    numbers: Numbers = {}
    lines, results = [], []
    for name, one in (("singular vectors", found), ("whole residuals", whole)):
        shown = _agreement(job, seen, one.heads(_SKELETON), one)
        edges = one.frequent(_SKELETON)
        at_source = sum(edge[2] == "src" for edge in edges)
        results.append((shown, at_source))
        numbers |= {f"{name}: edges": len(edges), f"{name}: at sources": at_source}
        numbers |= {f"{name}: {what}": value for what, value in shown.numbers.items()}
        lines.append(
            f"With {name}: {len(edges)} edges in two thirds of {one.traced} prompts, {at_source} of them at source "
            f"tokens; {shown.text}."
        )
    (right, sources), (other, few) = results
    title = "Edges traced with whole residuals, in two thirds of the prompts"
    figure = network_figure(whole.frequent(_SKELETON), _known(job, seen), seen.model.dims.heads, title)
    path = save(figure, job.folder / "network.png")
    note = (
        "Asked first: singular vectors find more known heads than by chance (p < .05), and edges at source tokens. "
        f"Then: whole residuals find fewer of the known heads and less than half, and a fifth of those edges or less; "
        f"{LEAST} traced prompts or more. {known_here(job)}"
    )
    first = min(found.traced, whole.traced) >= LEAST and right.beyond_chance and sources > 0
    holds = [other.recall < min(right.recall, 0.5), few <= sources / 5]
    return Outcome(judged(job, holds, first=first), "\n".join(lines), numbers, (path,), note)


def top(job: Job) -> Outcome:
    """Are name movers and S-inhibition heads joined by many paths, each to several of the others?"""
    seen = subject(job)
    seen.role("name mover", 2)
    seen.role("S-inhibition", 1 if is_gpt2(job.model) else 2)  # the published figure names two more
    found = traced(job)
    woven = lattice(job, seen, found.starts, found.pairs(NETWORK))
    lowest = min(layer for layer, _ in woven.movers | woven.inhibitors)
    edges = {edge: share for edge, share in found.frequent(NETWORK).items() if edge[0][0] >= lowest}
    numbers: Numbers = {"edges": len(edges), **woven.numbers, "prompts": found.traced}
    text = (
        f"{len(edges)} edges in {NETWORK:.0%} or more of {found.traced} prompts lie in layers {lowest} and above; "
        f"{woven.text}"
    )
    title = f"Layers {lowest} and above of the traced network, with numbers of prompts out of {found.traced}"
    figure = network_figure(edges, woven.movers | woven.inhibitors, seen.model.dims.heads, title)
    _count(figure, edges, found.traced)
    path = save(figure, job.folder / "top.png")
    names = "; ".join(
        f"{role}: {', '.join(name_of(head) for head in sorted(heads)) or 'none'}"
        for role, heads in (("name movers", woven.movers), ("other heads for S-inhibition", woven.inhibitors))
    )
    note = f"Asked: {LATTICE}; {LEAST} traced prompts or more. {names}. {stood_in(job)}"
    first = found.traced >= LEAST and woven.beyond_chance
    return Outcome(judged(job, woven.holds, first=first), text, numbers, (path,), note)


def _count(figure: Figure, edges: dict[Edge, float], prompts: int) -> None:
    """Write on each line in how many prompts it was found."""
    axis = figure.axes[0]
    for (a, b, side), share in edges.items():
        part = 0.35 if side == "src" else 0.6  # lines of two sides lie beside each other
        x, y = (a[i] + part * (b[i] - a[i]) for i in range(2))
        box = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}
        shade = BLUE if side == "src" else RED
        axis.text(x, y, f"{share * prompts:.0f}", fontsize=7, color=shade, ha="center", va="center", bbox=box)


@dataclass(frozen=True)
class Agreement:
    """How well traced heads are the known ones."""

    precision: float
    recall: float
    chance: float  # precision of random heads
    p: float  # how often random heads are as many known ones

    @property
    def beyond_chance(self) -> bool:
        """Are there known heads among them, more than chance would give?"""
        return self.recall > 0 and self.p < 0.05

    @property
    def agrees(self) -> bool:
        """Widely, as published?"""
        return self.beyond_chance and self.precision >= 0.4 and self.recall >= 0.5

    @property
    def numbers(self) -> Numbers:
        """For an outcome."""
        return {
            "precision": self.precision,
            "recall": self.recall,
            "precision of random heads": self.chance,
            "p of random heads": self.p,
        }

    @property
    def text(self) -> str:
        """In words."""
        return (
            f"precision {self.precision:.2f} (random heads {self.chance:.2f}), recall {self.recall:.2f}, as many "
            f"known ones by chance with p = {self.p:.2g}"
        )


def _known(job: Job, seen: Subject) -> set[Head]:
    return set(_KNOWN) if is_gpt2(job.model) else {head for heads in seen.roles.values() for head in heads}


def _agreement(job: Job, seen: Subject, heads: set[Head], found: Network) -> Agreement:
    """Of known heads below the starts, which are given and do not count."""
    from scipy.stats import hypergeom

    top = max(layer for layer, _ in found.starts)
    known = {head for head in _known(job, seen) if head[0] < top} - set(found.starts)
    upstream = heads - set(found.starts)
    starts = sum(layer < top for layer, _ in found.starts)
    exist = sum(layer < top for layer in seen.model.attention_layers) * seen.model.dims.heads - starts
    right = len(upstream & known)
    p = float(hypergeom.sf(right - 1, exist, len(known), len(upstream)))
    return Agreement(right / max(len(upstream), 1), right / max(len(known), 1), len(known) / max(exist, 1), p)


def known_here(job: Job) -> str:
    """Which heads count as known, and what is not counted."""
    if is_gpt2(job.model):
        return "Starts are not counted: without them the published precision is .44 and the recall .62."
    return (
        "Known heads are here those that clearly look where the roles of the task do (a fifth of their attention or "
        "more, and more than elsewhere), and a firing is a weight of a quarter, since name movers give less than half; "
        f"heads where tracing starts are not counted. {stood_in(job)}"
    )


def _listed(edges: Sequence[Edge], share: dict[Edge, float]) -> str:
    return (
        ", ".join(f"{name_of(a)} to {name_of(b)} ({side}, {share[a, b, side]:.0%})" for a, b, side in edges) or "none"
    )


RUNS: dict[str, Attempt] = {
    "svt-fig5": partial(network, least=NETWORK, woven=True),
    "svt-fig14": top,
    "svt-fig15": partial(network, least=_SKELETON),
    "svt-fig16": without,
}
