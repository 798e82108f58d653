"""Which circuit is behind an answer? Firings are explained layer by layer from the seeds down.

A firing depends only on the clean run, so the recursion over signals can be done level by level: all firings of a layer
together, from the top down. The graph is the recursive one.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack, overload

from keyhole.circuits.circuit import Circuit
from keyhole.circuits.writer import Writer
from keyhole.errors import KeyholeError, require_choice
from keyhole.models.precision import exact_matmul
from keyhole.models.prompts import prompt_text
from keyhole.progress import Progress
from keyhole.tracing.assemble import Growing, Seeds, Settings, Sinks, build_circuit
from keyhole.tracing.candidates import Keys
from keyhole.tracing.firing import Firing, Tau, explain_head
from keyhole.tracing.mlps.through import Flow, Through, explain_mlps
from keyhole.tracing.seeds import Probe, Seed, linear_seeds, prob_seeds, probe_seeds
from keyhole.tracing.targets import Likeliest, Target, Tokens, choose_targets, token_ids
from keyhole.tracing.upstream import Writes, chunks_of_heads, reads_of

if TYPE_CHECKING:
    from keyhole.models.run import Run

Errors = Literal["raise", "keep"]
ThroughOption = Literal["heads", "mlps"] | Through


@dataclass(frozen=True)
class Untraced:
    """A prompt of `trace_many` that has no circuit, and why."""

    index: int  # among the runs
    prompt: str
    error: KeyholeError

    def __str__(self) -> str:
        return f"prompt {self.index} ({self.prompt!r}): {self.error}"


class ManyOptions(TypedDict, total=False):
    """How to trace, for callers that pass it on: `trace_many` says what each option does."""

    seeds: Seeds | None
    tau: Tau
    keys: Keys
    sinks: Sinks
    through: ThroughOption
    progress: Progress | None


class Options(ManyOptions, total=False):
    """The same for one run, and where its answer is predicted."""

    end: int | str


def trace(
    run: "Run",
    target: Target = None,
    *,
    against: Tokens | None = None,
    seeds: Seeds | None = None,
    tau: Tau = "dynamic",
    keys: Keys = "all",
    sinks: Sinks = "keep",
    through: ThroughOption = "mlps",
    end: int | str = -1,
    progress: Progress | None = None,
) -> Circuit:
    """Trace the circuit behind one answer, predicted at `end`. See `trace_many` for the other options."""
    shared = Settings(seeds=seeds or "prob", tau=tau, keys=keys, sinks=sinks, through=_through(through))
    asked = [_Asked(run, target, against, seeds, end)]
    (circuit,) = _trace(asked, shared, _Attempts([run], "raise"), progress)
    assert isinstance(circuit, Circuit)
    return circuit


@overload
def trace_many(
    runs: Sequence["Run"],
    targets: Sequence[Target],
    *,
    against: Sequence[Tokens | None] | None = None,
    errors: Literal["raise"],
    **options: Unpack[ManyOptions],
) -> list[Circuit]: ...


@overload
def trace_many(
    runs: Sequence["Run"],
    targets: Sequence[Target],
    *,
    against: Sequence[Tokens | None] | None = None,
    errors: Literal["keep"] = "keep",
    **options: Unpack[ManyOptions],
) -> list[Circuit | Untraced]: ...


def trace_many(
    runs: Sequence["Run"],
    targets: Sequence[Target],
    *,
    against: Sequence[Tokens | None] | None = None,
    seeds: Seeds | None = None,
    tau: Tau = "dynamic",
    keys: Keys = "all",
    sinks: Sinks = "keep",
    through: ThroughOption = "mlps",
    errors: Errors = "keep",
    progress: Progress | None = None,
) -> list[Circuit] | list[Circuit | Untraced]:
    """Trace the circuits of several runs of one model together, each with its own target.

    A target is a token (text or id), several, `Likeliest(k)`, `Likeliest(p=share)`, or None: the likeliest. `against`:
    the other answer, one per run. `seeds`: "prob" or, with another share, a Probability; "linear" (the default with
    `against`); or a Probe. `tau`: see `explain`. `keys`: what a src-side removal touches. `sinks`: firings on the first
    token are kept, marked, or collapsed (kept as leaves, not traced further). `through`: circuits go on through MLPs
    to the words ("mlps", or a Through), or end at them, as in the paper ("heads"). `errors`: a prompt that cannot be
    traced is kept as `Untraced` in the place of its circuit, or raises. `progress` is told the layers done.
    """
    others = [None] * len(runs) if against is None else list(against)
    if not runs or not len(runs) == len(targets) == len(others):
        raise KeyholeError("give at least one run, and one target (and one `against`, if any) for each run.")
    if any(run.model is not runs[0].model for run in runs):
        raise KeyholeError("these are runs of several models: trace those of each model together, one model at a time.")
    shared = Settings(seeds=seeds or "prob", tau=tau, keys=keys, sinks=sinks, through=_through(through))
    asked = [_Asked(run, target, other, seeds, -1) for run, target, other in zip(runs, targets, others, strict=True)]
    return _trace(asked, shared, _Attempts(runs, errors), progress)


@dataclass(frozen=True)
class _Asked:
    """What one run is traced for."""

    run: "Run"
    target: Target
    against: Tokens | None
    seeds: Seeds | None
    end: int | str


def _trace(
    asked: Sequence[_Asked], shared: Settings, attempts: "_Attempts", progress: Progress | None
) -> list[Circuit | Untraced]:
    """All runs together, a layer at a time from the top; MLPs come first: they read the layer's heads."""
    growing, found = dict[int, Growing](), dict[int, Circuit]()
    with exact_matmul(), asked[0].run.model.steady():
        for i, one in enumerate(asked):
            with attempts.at(i):
                own = replace(shared, end=one.run.position(one.end, "end"))
                growing[i] = _start(one.run, _answered(one.run, own, one.target, one.against, seeds=one.seeds))
        depth = len(asked[0].run.layers)
        for done, layer in enumerate(reversed(range(depth))):
            alive = {i: circuit for i, circuit in growing.items() if i not in attempts.failed}
            explain_mlps([circuit.flow for circuit in alive.values() if circuit.flow is not None], layer)
            for i, circuit in alive.items():
                with attempts.at(i):
                    _grow(circuit, layer)
            if progress is not None:
                progress(done + 1, depth)
        for i, circuit in growing.items():
            if i in attempts.failed:
                continue
            with attempts.at(i):
                found[i] = build_circuit(circuit, circuit.settings.parameters())
    return [attempts.failed.get(i) or found[i] for i in range(len(asked))]


def _through(asked: ThroughOption) -> Through | None:
    if isinstance(asked, Through):
        return asked
    require_choice("through", asked, Literal["heads", "mlps"])
    return Through() if asked == "mlps" else None


@dataclass
class _Attempts:
    """Which prompts could not be traced: each in its place, or the first of them as an error that names it."""

    runs: Sequence["Run"]
    errors: Errors
    failed: dict[int, Untraced] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_choice("errors", self.errors, Errors)

    @contextmanager
    def at(self, index: int) -> Iterator[None]:
        """Work on one prompt; what refuses it refuses no other. The first refusal of a prompt is the one told."""
        try:
            yield
        except KeyholeError as error:
            run = self.runs[index]
            told = Untraced(index, prompt_text(run.model.tokenizer, run.token_ids), error)
            if self.errors == "keep":
                self.failed.setdefault(index, told)
            elif len(self.runs) > 1:
                raise type(error)(str(told)) from error
            else:
                raise


def _answered(run: "Run", settings: Settings, target: Target, other: Tokens | None, *, seeds: Seeds | None) -> Settings:
    """The settings of one run: which tokens its answer is, and which others it is held against."""
    run.require_fresh()
    asked, against = Likeliest(1) if target is None else target, tuple(token_ids(run, other))
    chosen = seeds or ("linear" if against else "prob")
    ids: Sequence[int] = ()
    if not isinstance(chosen, Probe):
        ids = choose_targets(run, asked, settings.end)
    likeliest = asked if isinstance(asked, Likeliest) else None
    return replace(settings, target_ids=tuple(ids), against_ids=against, likeliest=likeliest, seeds=chosen)


def find_seeds(writes: Writes, settings: Settings) -> list[Seed]:
    """The writers at the end that the answer rests on."""
    if isinstance(settings.seeds, Probe):
        return probe_seeds(writes, settings.end, settings.seeds)
    if settings.seeds == "linear":
        return linear_seeds(writes, settings.end, list(settings.target_ids), list(settings.against_ids))
    return prob_seeds(writes, settings.end, list(settings.target_ids), settings.seed_tau)


def _start(run: "Run", settings: Settings) -> Growing:
    writes = Writes(run)
    circuit = Growing(writes, settings, find_seeds(writes, settings))
    if settings.through is None:
        _enqueue(circuit, [seed.writer for seed in circuit.seeds])
    else:
        circuit.flow = Flow(writes, settings.through)
        circuit.flow.seed(circuit.seeds)
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
    """Explain the heads that wait in one layer, and queue what is behind them."""
    flow = circuit.flow
    if flow is not None:
        _enqueue(circuit, flow.reached("head", layer))
    firings = list(_explained(circuit, layer))
    if flow is not None:
        flow.explain_firings(firings)
    else:
        _enqueue(circuit, [s.writer for firing in firings for side in firing.sides for s in side.signals])


def _explained(circuit: Growing, layer: int) -> Iterator[Firing]:
    """All waiting firings of a layer, head by head."""
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
                yield firing
