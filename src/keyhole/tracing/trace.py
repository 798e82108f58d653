"""Which circuit is behind an answer? Firings are explained layer by layer from the seeds down.

A firing depends only on the clean run, so the recursion over signals can be done level by level: all firings of a layer
together, from the top down. The graph is the recursive one.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from keyhole.circuits.circuit import Circuit
from keyhole.errors import KeyholeError
from keyhole.models.precision import exact_matmul
from keyhole.tracing.assemble import Growing, Seeds, Settings, Sinks, build_circuit
from keyhole.tracing.candidates import Keys
from keyhole.tracing.firing import Tau, explain_head
from keyhole.tracing.seeds import Probe, Seed, linear_seeds, prob_seeds, probe_seeds
from keyhole.tracing.targets import Target, choose_targets, token_ids
from keyhole.tracing.upstream import Writes, chunks_of_heads, reads_of
from keyhole.tracing.writers import Writer

if TYPE_CHECKING:
    from keyhole.models.run import Run


def trace(run: "Run", target: Target = None, *, against: Target = None, **options: Any) -> Circuit:
    """Trace the circuit behind one answer. See `trace_many` for the options."""
    return trace_many([run], [target], against=[against], **options)[0]


def trace_many(
    runs: Sequence["Run"],
    targets: Sequence[Target],
    *,
    against: Sequence[Target] | None = None,
    seeds: Seeds = "prob",
    seed_tau: float = 0.8,
    top_p: float | None = None,
    top_k: int | None = None,
    tau: Tau = "dynamic",
    keys: Keys = "all",
    sinks: Sinks = "keep",
    end: int | str = -1,
    progress: Callable[[int, int], None] | None = None,
) -> list[Circuit]:
    """Trace the circuits of several runs of one model together, each with its own target.

    A target is a token (text or id), several, or None with `top_k` or `top_p`. `seeds`: "prob", "linear" (with
    `against`, one per run), or a Probe. `tau`: see `explain`. `keys`: what a src-side removal touches. `sinks`: firings
    on the first token are kept, marked, or collapsed (kept as leaves, not traced further). `progress` is told the
    layers done.
    """
    others = [None] * len(runs) if against is None else list(against)
    if not runs or not len(runs) == len(targets) == len(others):
        raise KeyholeError("give at least one run, and one target (and one `against`, if any) for each run.")
    growing = []
    with exact_matmul():
        for run, target, other in zip(runs, targets, others, strict=True):
            run.require_fresh()
            at = run.position(end, "end")
            probes = isinstance(seeds, Probe)
            settings = Settings(
                target_ids=() if probes else tuple(choose_targets(run, target, top_p=top_p, top_k=top_k, end=at)),
                against_ids=tuple(token_ids(run, other)),
                end=at,
                seeds=seeds,
                seed_tau=seed_tau,
                top_p=top_p,
                top_k=top_k,
                tau=tau,
                keys=keys,
                sinks=sinks,
            )
            growing.append(_start(run, settings))
        depth = len(runs[0].layers)
        for done, layer in enumerate(reversed(range(depth))):
            for circuit in growing:
                _grow(circuit, layer)
            if progress is not None:
                progress(done + 1, depth)
        return [build_circuit(circuit) for circuit in growing]


def find_seeds(writes: Writes, settings: Settings) -> list[Seed]:
    """The writers at the end that the answer rests on."""
    if isinstance(settings.seeds, Probe):
        return probe_seeds(writes, settings.end, settings.seeds)
    if settings.seeds == "linear":
        return linear_seeds(writes, settings.end, list(settings.target_ids), list(settings.against_ids))
    if settings.seeds != "prob":
        raise KeyholeError(f"there are no seeds {settings.seeds!r}: choose 'prob', 'linear' or a Probe.")
    if settings.against_ids:
        raise KeyholeError('`against` belongs to seeds="linear": "prob" traces the target\'s own probability.')
    return prob_seeds(writes, settings.end, list(settings.target_ids), settings.seed_tau)


def _start(run: "Run", settings: Settings) -> Growing:
    writes = Writes(run)
    circuit = Growing(writes, settings, find_seeds(writes, settings))
    _enqueue(circuit, [seed.writer for seed in circuit.seeds])
    return circuit


def _enqueue(circuit: Growing, writers: Sequence[Writer]) -> None:
    """Heads wait to be explained at their own layer; layer 0 and the first token end the recursion."""
    for writer in writers:
        if writer.kind != "head" or writer.layer == 0 or writer.dest == 0:
            continue
        if circuit.settings.sinks == "collapse" and writer.src == 0:
            continue
        assert writer.head is not None
        place = (writer.layer, writer.head, writer.dest, writer.src)
        if place not in circuit.firings:
            circuit.waiting.add(place)


def _grow(circuit: Growing, layer: int) -> None:
    """Explain all waiting firings of one layer and queue the heads behind them."""
    places = sorted(place for place in circuit.waiting if place[0] == layer)
    if not places:
        return
    circuit.waiting.difference_update(places)
    heads = sorted({head for _, head, _, _ in places})
    settings = circuit.settings
    for chunk in chunks_of_heads(circuit.writes, layer, heads):
        for reads in reads_of(circuit.writes, layer, chunk):
            at = [(d, s) for _, head, d, s in places if head == reads.head]
            for firing in explain_head(circuit.writes, layer, reads, at, tau=settings.tau, keys=settings.keys):
                circuit.firings[(layer, reads.head, firing.dest, firing.src)] = firing
                _enqueue(circuit, [signal.writer for side in firing.sides for signal in side.signals])
