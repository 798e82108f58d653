"""Which network of heads does singular vector tracing find on IOI prompts? Traced from name movers down.

What is judged are edges between heads, whatever their tokens. What is drawn is the paper's graph: edges lead to the
token of the reader, by its role, and those at tokens without a role are left out.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial

from matplotlib.figure import Figure

from keyhole.brief import Head, head_name
from keyhole.circuits.circuit import Circuit
from keyhole.circuits.records import SideName
from keyhole.errors import KeyholeError
from keyhole.figures.network import Carried, TokenEdge, network_figure
from keyhole.intervene.cuts import distinct_edges
from keyhole.models.run import Run
from keyhole.progress import Progress, silent
from keyhole.tasks.example import START, Example, place_names
from keyhole.tracing.settings import ChannelChoice, SvtSettings
from keyhole.tracing.svt import trace_svt
from keyhole_papers.experiment import Attempt, Experiment, Job
from keyhole_papers.finding import NO_CLAIMS, Finding, Findings, Provenance, Value, of_part, rows_of
from keyhole_papers.svt import LEAST, Subject, is_gpt2, listed, subject
from keyhole_papers.svt.answers import firing_movers
from keyhole_papers.svt.known import Agreement, Joint, Lattice, agreement, known_heads, known_here, lattice

NETWORK, _SKELETON = 65 / 256, 170 / 256  # in how many prompts an edge must be
Edge = tuple[Head, Head, str]  # writer, reader, and the side it is read at


@dataclass(frozen=True)
class Network:
    """In what share of the prompts each edge was traced; and the same by tokens, for the picture."""

    edges: dict[Edge, float]
    starts: tuple[Head, ...]
    traced: int  # prompts in which a start fires
    written: dict[TokenEdge, Carried] = field(default_factory=dict)
    fired: dict[Head, float] = field(default_factory=dict)  # in what share of the prompts each head was traced

    def frequent(self, least: float) -> dict[Edge, float]:
        """Edges in at least this share of the prompts."""
        return {edge: share for edge, share in self.edges.items() if share >= least}

    def drawn(self, least: float) -> dict[TokenEdge, Carried]:
        """Edges to tokens in at least this share of the prompts."""
        return {edge: carried for edge, carried in self.written.items() if carried.share >= least}

    def pairs(self, least: float) -> set[Joint]:
        """The same without sides."""
        return {(a, b) for a, b, _ in self.frequent(least)}

    def heads(self, least: float) -> set[Head]:
        """Their heads, and those where tracing starts."""
        return {*self.starts, *(head for edge in self.frequent(least) for head in edge[:2])}


@lru_cache(maxsize=4)
def traced(job: Job, channels: ChannelChoice = "singular") -> Network:
    """The network of a job's model, traced once for all figures."""
    return network_of(subject(job), channels, job.progress)


def network_of(of_job: Subject, channels: ChannelChoice = "singular", progress: Progress = silent) -> Network:
    """The network of these prompts, traced from the name movers that fire."""
    movers = of_job.role("name mover")
    counts, times, fired = Counter[Edge](), Counter[TokenEdge](), Counter[Head]()
    totals: dict[TokenEdge, float] = {}
    done = 0
    for example, run in of_job.runs(progress=progress):
        starts = firing_movers(of_job, example, run)
        if starts:
            done += 1
            settings = SvtSettings(of_job.threshold, channels=channels, start=starts)
            circuit = trace_svt(run, settings=settings)
            signals, written = list(_signals(circuit)), _written(circuit, token_roles(example, run))
            counts.update({(writer, reader, side) for writer, reader, side, *_ in signals})  # whatever their tokens
            times.update(written.keys())
            fired.update({head for writer, reader, *_ in signals for head in (writer, reader)})
            totals |= {edge: totals.get(edge, 0.0) + value for edge, value in written.items()}
    if not done:
        raise KeyholeError(
            f"no name mover of {of_job.model.name} fires in these {len(of_job.examples)} prompts (a weight of "
            f"{of_job.threshold:g} from END to IO): choose another model."
        )
    by_token = {edge: Carried(n / done, totals[edge]) for edge, n in times.items()}
    heads = {head: n / done for head, n in fired.items()}
    return Network({edge: n / done for edge, n in counts.items()}, movers, done, by_token, heads)


def _signals(circuit: Circuit) -> Iterator[tuple[Head, Head, SideName, int, float]]:
    """Writer, reader, side, token and contribution of every signal, once for each firing of its reader.

    A circuit has a node for every source that a writer fires on; its contribution is that of the whole head.
    """
    for edge in distinct_edges(circuit, (edge for edge in circuit.edges if edge.side != "target")):
        writer, reader = circuit.nodes[edge.sender], circuit.nodes[edge.receiver]
        assert writer.layer is not None and writer.head is not None
        assert reader.layer is not None and reader.head is not None
        side = circuit.signal(edge).side
        yield (writer.layer, writer.head), (reader.layer, reader.head), side, writer.dest, edge.weight


def token_roles(example: Example, run: Run) -> tuple[str | None, ...]:
    """The role of every token: that of a word, or of the one right before; None: it has none."""
    places = {role: at for role, at in example.positions(run).items() if "+" not in role}
    roles = {name for role in (*places, START) for name in (role, f"{role}+1")}
    return tuple(name if name in roles else None for name in place_names(places, len(run)))


def _written(circuit: Circuit, roles: tuple[str | None, ...]) -> dict[TokenEdge, float]:
    """Contributions by the role of the written token, over all firings of the reader; those without a role are left."""
    written: dict[TokenEdge, float] = {}
    for writer, reader, side, token, value in _signals(circuit):
        role = roles[token]
        if role is not None:
            edge = TokenEdge(writer, reader, role, side)
            written[edge] = written.get(edge, 0.0) + value
    return written


@dataclass(frozen=True)
class Joined:
    """The network of a model: frequent edges, and how well its heads are the known ones."""

    of: Provenance
    network: Network
    least: float  # share of the prompts that an edge must be in
    prompts: int
    n_heads: int  # of a layer
    known: frozenset[Head]
    agreement: Agreement
    lattice: Lattice

    @property
    def edges(self) -> dict[Edge, float]:
        """The frequent ones."""
        return self.network.frequent(self.least)

    @property
    def at_source(self) -> int:
        """Edges that are read at source tokens."""
        return sum(edge[2] == "src" for edge in self.edges)


def measure(job: Job, least: float = NETWORK, channels: ChannelChoice = "singular") -> Joined:
    """The network traced from name movers down."""
    of_job, network = subject(job), traced(job, channels)
    return Joined(
        of=of_job.of,
        network=network,
        least=least,
        prompts=len(of_job.examples),
        n_heads=of_job.model.dims.heads,
        known=known_heads(of_job),
        agreement=agreement(of_job, network.heads(least), network.starts),
        lattice=lattice(of_job, network.starts, network.pairs(NETWORK)),
    )


_ENOUGH = f"there are {LEAST} traced prompts or more"
_KNOWN = "there are more known heads than by chance (p < .05)"


def findings(record: Joined, woven: bool) -> Findings:
    """Do frequent edges join the heads that are known to do the task, and (if `woven`) cross between its top roles?"""
    network, edges, agreed = record.network, record.edges, record.agreement
    strong = ", ".join(
        f"{head_name(a)} to {head_name(b)} ({side}, {edges[a, b, side]:.0%})"
        for a, b, side in sorted(edges, key=lambda edge: -edges[edge])[:6]
    )
    rows = [
        Finding("prompts", network.traced),
        Finding("edges", len(edges)),
        Finding("heads", len(network.heads(record.least))),
        *agreed.rows,
        Finding("known heads", "join", "precision .4, recall .5, and more of them than by chance", agreed.agrees),
        *(record.lattice.rows if woven else []),
        Finding("most frequent", strong or "none"),
    ]
    remark = (
        f"Edges are those in {record.least:.0%} of the prompts or more, traced from {listed(network.starts)} in "
        f"{network.traced} of {record.prompts}. {known_here(record.of)}"
    )
    first = network.traced >= LEAST and agreed.beyond_chance
    return Findings(rows, record.of, first=first, unless=f"{_KNOWN}, and {_ENOUGH}", remark=remark)


def _picture(record: Joined, which: str = "", lowest: int = 0) -> Figure:
    """The graph of a network: frequent edges, from this layer on."""
    least, network = record.least, record.network
    edges = {edge: carried for edge, carried in network.drawn(least).items() if edge.writer[0] >= lowest}
    title = f"Edges{which} traced in {least:.0%} of {network.traced} prompts or more, to tokens that have a role"
    known = [head for head in record.known if head[0] >= lowest]
    starts = {edge.reader for edge in edges} & set(network.starts)
    return network_figure(edges, title, starts=starts, fired=network.fired, known=known)


def _draw(record: Joined) -> Mapping[str, Figure]:
    return {"network": _picture(record)}


def joined(least: float, *, woven: bool = False) -> Experiment[Joined]:
    """Edges in at least this share of the prompts."""
    return Experiment(partial(measure, least=least), partial(findings, woven=woven), _draw)


@dataclass(frozen=True)
class Compared:
    """The networks that both ways of tracing find."""

    singular: Joined
    whole: Joined


def measure_both(job: Job) -> Compared:
    """Traced with singular vectors, and with whole residuals."""
    return Compared(measure(job, _SKELETON), measure(job, _SKELETON, "all"))


def found_both(record: Compared) -> Findings:
    """Does tracing with whole residuals miss what tracing with singular vectors finds?"""
    right, other = record.singular, record.whole
    rows = list[Finding]()
    fewer = other.agreement.recall < min(right.agreement.recall, 0.5)
    claims = {
        "recall": ("fewer of the known heads, and less than half", fewer),
        "at sources": ("a fifth of those of singular vectors, or less", other.at_source <= right.at_source / 5),
    }
    for name, joined, claimed in (("singular vectors", right, NO_CLAIMS), ("whole residuals", other, claims)):
        values: dict[str, Value] = {"prompts": joined.network.traced, "edges": len(joined.edges)}
        values |= {"at sources": joined.at_source, **{row.name: row.value for row in joined.agreement.rows}}
        rows += of_part(name, *rows_of(values, claimed))
    first = min(right.network.traced, other.network.traced) >= LEAST
    first = first and right.agreement.beyond_chance and right.at_source > 0
    unless = f"with singular vectors {_KNOWN} and edges at source tokens, and {_ENOUGH}"
    return Findings(rows, right.of, first=first, unless=unless, remark=known_here(right.of))


def _draw_both(record: Compared) -> Mapping[str, Figure]:
    return {"network": _picture(record.whole, " of whole residuals")}


def measure_top(job: Job) -> Joined:
    """Of a model with several heads of both roles."""
    subject(job).role("name mover", 2)
    subject(job).role("S-inhibition", 1 if is_gpt2(job.model) else 2)  # the published figure names two more
    return measure(job)


def found_top(record: Joined) -> Findings:
    """Are name movers and S-inhibition heads joined by many paths, each to several of the others?"""
    woven, prompts = record.lattice, record.network.traced
    edges = [edge for edge in record.edges if edge[0][0] >= woven.lowest]
    names = "; ".join(
        f"{role}: {listed(sorted(heads)) or 'none'}"
        for role, heads in (("name movers", woven.movers), ("other heads for S-inhibition", woven.inhibitors))
    )
    rows = [Finding("edges", len(edges)), *woven.rows, Finding("prompts", prompts)]
    remark = f"Edges are those in {NETWORK:.0%} of the prompts or more, in layers {woven.lowest} and above; {names}."
    first = prompts >= LEAST and woven.beyond_chance
    return Findings(rows, record.of, first=first, unless=f"they cross beyond chance, and {_ENOUGH}", remark=remark)


def _draw_top(record: Joined) -> Mapping[str, Figure]:
    lowest = record.lattice.lowest
    return {"top": _picture(record, f" from layer {lowest} on", lowest)}


RUNS: dict[str, Attempt] = {
    "svt-fig5": joined(NETWORK, woven=True),
    "svt-fig14": Experiment(measure_top, found_top, _draw_top),
    "svt-fig15": joined(_SKELETON),
    "svt-fig16": Experiment(measure_both, found_both, _draw_both),
}
