"""What do single circuits and heads look like? Where circuits end, what edges carry, and what sinks share."""

from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass

from matplotlib.figure import Figure

from keyhole.circuits.circuit import Circuit, Node
from keyhole.errors import KeyholeError, MissingModelError
from keyhole.figures.circuit import circuit_figure
from keyhole.stats import Interval
from keyhole.studies.settings import SinkSettings
from keyhole.studies.sinks.explore import study
from keyhole.studies.sinks.firings import StoredQuestion
from keyhole.studies.sinks.record import HALF, NEAR, NoSinksError, Sinks, SinkSide, middle
from keyhole.studies.sinks.report import sinks_figure
from keyhole_papers.experiment import Attempt, Experiment, Job
from keyhole_papers.finding import Finding, Findings, Provenance, of_part
from keyhole_papers.svt import LEAST, Subject, metric_of, of_gpt2, subject, trace_answer

_EXACT = 1e-4  # of a decomposition, relative
_TRACED = 16


@dataclass(frozen=True)
class Traced:
    """The circuits of some answers."""

    of: Provenance
    circuits: int
    rich: int  # circuits with signals
    signals: int
    carried: int  # signals with channels
    leaves: Counter[str]  # where tracing ended, by kind
    open_ends: int  # leaves that are heads above the first layer
    error: float  # of a decomposition, the largest
    largest: Circuit | None  # shows most; none where none has signals


def measure_circuit(job: Job) -> Traced:
    """Circuits behind the likeliest answers."""
    of_job = subject(job)
    traced = [trace_answer(run, int(run.logits[-1].argmax())) for _, run in of_job.runs(_TRACED, job.progress)]
    circuits = [circuit for circuit in traced if circuit is not None]
    rich = [circuit for circuit in circuits if any(edge.side != "target" for edge in circuit.edges)]
    signals = [edge for circuit in circuits for edge in circuit.edges if edge.side != "target"]
    leaves: list[Node] = []
    for circuit in circuits:
        read = {edge.receiver for edge in circuit.edges}
        leaves += [node for i, node in enumerate(circuit.nodes) if i not in read]
    lowest = of_job.model.attention_layers[0]
    return Traced(
        of=of_gpt2(job.model, of_job.prompts.first(_TRACED).about),
        circuits=len(circuits),
        rich=len(rich),
        signals=len(signals),
        carried=sum(bool(edge.channels) for edge in signals),
        leaves=Counter(node.kind for node in leaves),
        open_ends=sum(node.kind == "head" and node.layer != lowest and node.dest > 0 for node in leaves),
        error=max((max(circuit.errors.values()) for circuit in circuits), default=0.0),
        largest=max(rich, key=lambda circuit: len(circuit.edges), default=None),
    )


def found_circuit(record: Traced) -> Findings:
    """Does the recursion end by itself, and does every edge carry channels?"""
    carried, ended, exact = record.carried == record.signals, record.open_ends == 0, record.error < _EXACT
    rich = record.rich >= LEAST
    rows = [Finding("circuits with signals", f"none of {record.circuits}")]
    if record.largest is not None:
        nodes, edges = len(record.largest.nodes), len(record.largest.edges)
        rows = [
            Finding("circuits", record.circuits),
            Finding("with signals", record.rich, f"{LEAST} or more", rich),
            Finding("the largest", f"{nodes} nodes and {edges} edges"),
            Finding("signals", record.signals),
            Finding("signals with channels", record.carried, "all", carried),
            Finding("largest error", record.error, f"decompositions exact to {_EXACT:g}", exact),
            Finding("ends at heads above the first layer", record.open_ends, "none", ended),
            *of_part("leaves", *(Finding(kind, count) for kind, count in record.leaves.most_common())),
        ]
    remark = (
        "Circuits end at embeddings, biases and MLPs (whose outputs are not taken apart), at heads of the first layer "
        "and at the first token; they should at no head whose weight is below the threshold of tracing. These are "
        "properties of the method, which hold whatever a model has learned: that they do tells nothing of it."
    )
    judged = "untold" if rich and carried and ended and exact else record.of.verdict([])
    return Findings(rows, record.of, remark=remark, judged=judged)


def _draw_circuit(record: Traced) -> Mapping[str, Figure]:
    title = "A circuit of one prompt: signals at the destination (red) and at the source (blue)"
    return {} if record.largest is None else {"circuit": circuit_figure(record.largest, titles=[title], width=9.0)}


_RESTING = 24
_MANY = 8  # heads


@dataclass(frozen=True)
class Rest:
    """Firings on the first token of a model: explained, compared, and without what they share."""

    of: Provenance
    prompts: int
    sinks: Sinks


def measure_sinks(job: Job) -> Rest:
    """The signals of all heads above the first layer, and what their shared directions do."""
    of_job = subject(job)
    questions = [_question(of_job, number) for number in range(min(_RESTING, len(of_job.examples)))]
    draws, controls = (99, 2) if job.quick else (99, 9)  # fewer could not be sure of anything
    of = of_gpt2(job.model, of_job.prompts.first(_RESTING).about)
    try:
        settings = SinkSettings(draws=draws, controls=controls)
        sinks = study(of_job.model, questions, settings, stage=lambda name: nullcontext(job.progress))
    except NoSinksError as error:
        raise (KeyholeError if of.real else MissingModelError)(str(error)) from error
    return Rest(of, len(questions), sinks)


def _question(of_job: Subject, number: int) -> StoredQuestion:
    """A prompt by its tokens, measured by IO against S."""
    example = of_job.examples[number]
    run = of_job.model.run(example.text)
    return StoredQuestion(number, run.token_ids, metric_of(example, run))


def _holds(side: SinkSide) -> bool:
    """Nearly the same signal in many heads: shared, anisotropy apart, and the cause of their firings."""
    return side.verdict == "shared" and len(side.controlled) >= _MANY


def found_sinks(record: Rest) -> Findings:
    """Do many heads of different layers have nearly the same dest and src signals, not by anisotropy?"""
    sinks = record.sinks
    rows = [
        Finding("massive coordinates", len(sinks.massive)),
        Finding("share of tokens that rest", sinks.share, percent=True),
    ]
    for side in sinks.sides:
        rows += of_part(f"{side.side}", *_of_side(side))
    first = record.prompts >= LEAST and any(map(_holds, sinks.sides))
    unless = f"that holds on a side, in {LEAST} prompts or more"
    remark = "Cosines are across layers; anisotropy apart: without the mean and the largest directions of the streams."
    return Findings(rows, record.of, first=first, unless=unless, remark=remark)


def _of_side(side: SinkSide) -> list[Finding]:
    """How alike the signals of one side are, and what becomes of firings without the direction they share."""
    claim = (
        f"a shared signal, of {_MANY} heads or more with one signal each: {NEAR:.0%} of pairs are alike (cosine above "
        ".5), more than with other channels of the same heads and than on other tokens, with and without anisotropy; "
        f"and few directions take away {HALF:.0%} of held-out firings, more than random ones"
    )
    if not side.likeness:
        return [Finding("heads with one signal each", "in fewer than two layers", claim, _holds(side))]
    bare, strict = side.likeness[0], side.likeness[-1]
    whole = next(removal for removal in side.removals if removal.taken is None)
    return [
        Finding("signals", side.verdict, claim, _holds(side)),
        Finding("heads", len(side.controlled)),
        Finding("cosine", Interval(*bare.cosine)),
        Finding("cosine, other channels", bare.shuffled_cosine[0]),
        Finding("cosine, other tokens", side.others[0].cosine),
        Finding("cosine, anisotropy apart", Interval(*strict.cosine)),
        Finding("pairs alike", bare.near[0], percent=True),
        Finding("pairs alike, anisotropy apart", strict.near[0], percent=True),
        Finding("rank", bare.rank),
        Finding("firings without one direction", Interval(*whole.explained)),
        Finding("firings without one direction, random", middle(whole.random_explained)),
    ]


def _draw_sinks(record: Rest) -> Mapping[str, Figure]:
    return {"cosines": sinks_figure(record.sinks)}


RUNS: dict[str, Attempt] = {
    "talk-12": Experiment(measure_circuit, found_circuit, _draw_circuit),
    "talk-25": Experiment(measure_sinks, found_sinks, _draw_sinks),
}
