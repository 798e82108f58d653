"""How do firings become a circuit? The growing collection, and the finished graph."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
import transformers

from keyhole.circuits.circuit import Circuit
from keyhole.circuits.columns import Edges, Firings, Mlps, Nodes
from keyhole.circuits.graph import EdgeSide, Traced, TracedMlp
from keyhole.circuits.records import Kind, Parameters, Place, Sizes, Writer
from keyhole.models.numbers import require_exact
from keyhole.models.tokens import token_texts
from keyhole.strict import printable
from keyhole.tracing.exactness import Check
from keyhole.tracing.firing import Firing
from keyhole.tracing.linear import Probe
from keyhole.tracing.mlp_directions import Flow, offset_of
from keyhole.tracing.seeds import Seed
from keyhole.tracing.settings import Settings
from keyhole.tracing.upstream import Writes
from keyhole.version import __version__

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.models.run import Run

_Cells = tuple[Any, ...]  # of an edge: its columns in their order


@dataclass
class Growing:
    """One run's circuit while it grows."""

    writes: Writes
    row: int  # which of its runs
    settings: Settings
    seeds: list[Seed]
    firings: dict[Place, Firing] = field(default_factory=dict)
    flow: Flow | None = None  # influence, if the circuit goes through MLPs

    @property
    def run(self) -> "Run":
        """The run."""
        return self.writes.runs[self.row]


def checked(check: Check, run: "Run") -> Check:
    """Refuse a run that cannot be reconstructed."""
    for name, error in (("scores", check.scores), ("residual streams", check.residuals), ("logits", check.logits)):
        require_exact(error, run.logits.dtype, f"the {name} of this run")
    return check


def errors_of(check: Check, run: "Run", ends: Sequence[int]) -> dict[str, float]:
    """How exact a run's decompositions are; in half precision also what was rounded away where it is answered.

    That is relative to the norm of the last residual stream there.
    """
    errors = {"scores": check.scores, "residuals": check.residuals, "logits": check.logits}
    return errors | {"rounding": float(run._rounding[0][list(ends)].max())} if run.is_rounded else errors


def model_facts(model: "Model") -> dict[str, str]:
    """Which model a circuit is of; a folder may be called anything, and files that name it are read strictly."""
    return {"name": printable(model.name), "family": model.hf.config.model_type, "fingerprint": model.fingerprint()}


def build_circuit(circuit: Growing, parameters: Parameters, check: Check, facts: Mapping[str, str]) -> Circuit:
    """The finished graph, with everything a circuit file needs."""
    run, settings = circuit.run, circuit.settings
    flow, writers = circuit.flow, {seed.writer for seed in circuit.seeds}
    fired = [(Writer("head", *place), firing) for place, firing in sorted(circuit.firings.items(), reverse=True)]
    fired = [(head, firing) for head, firing in fired if firing.sides]
    for head, firing in fired:
        writers.add(head)
        writers |= {signal.writer for side in firing.sides for signal in side.signals}
    named = sorted(writers if flow is None else writers | flow.influence.keys(), key=attrgetter("key"))
    nodes = [(w.kind, w.layer, w.head, w.dest, w.src) for w in named]
    index = {writer: i for i, writer in enumerate(named)}
    edges: list[_Cells] = [
        (index[s.writer], len(named), "target", s.weight, s.weight, s.alone, (), _handed(flow, s.writer))
        for s in circuit.seeds
    ]
    traced = []
    for head, firing in fired:
        at = index[head]
        for s in (signal for side in firing.sides for signal in side.signals):
            share = _handed(flow, s.writer, head, s.side)
            edges.append((index[s.writer], at, s.side, s.weight, s.ig, s.alone, s.channels, share))
        dest, src = (side.removed for side in firing.sides)
        traced.append(Traced(at, firing.tau, firing.visible, dest, src))
    if flow is not None:
        edges += _caused(flow, index)
    return Circuit(
        model=dict(facts),
        versions={
            "keyhole": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        parameters=replace(parameters, **answer_facts(run, settings)),
        errors=errors_of(check, run, [end for end, _ in settings.predicted]),
        token_ids=run.token_ids,
        tokens=run.tokens,
        nodes=Nodes.of_cells([*nodes, ("target", None, None, settings.end, settings.end)]),
        attention=(*_attention(circuit, named), None),
        edges=Edges.of_cells(edges),
        firings=Firings.of(traced),
        run=run,
        sizes=Sizes.of(run.model),
        probe=settings.metric.direction if isinstance(settings.metric, Probe) else None,
        **({} if flow is None else _accounted(flow, named, index)),
    )


def _handed(flow: Flow | None, writer: Writer, into: Writer | None = None, side: EdgeSide = "target") -> float | None:
    """How much influence goes this way; None in a circuit that does not account for it."""
    return None if flow is None else flow.steps.get((writer, into, side), 0.0)


def _caused(flow: Flow, index: dict[Writer, int]) -> list[_Cells]:
    """The edges into MLPs and values."""
    edges: list[_Cells] = []
    for step, cause in flow.causes.items():
        who, into, side = step
        assert into is not None
        edges.append((index[who], index[into], side, cause.weight, cause.part, cause.alone, (), flow.steps[step]))
    return edges


def _unreached(kind: Kind) -> str:
    """Signals that take no influence end where they are: those that are there always, whatever the prompt says."""
    return "always" if kind in ("bias", "offset") else "no influence"


def _accounted(flow: Flow, named: Sequence[Writer], index: dict[Writer, int]) -> dict[str, Any]:
    """Influence and reasons of all nodes, the target last, and the MLPs that were explained, with their directions."""
    leaves, mlps = flow.leaves(), []
    read = [write.direction.float() for write in flow.mlps.values()]
    along = torch.stack(read).cpu().numpy() if read else ()
    for writer, write in flow.mlps.items():
        causes = tuple(index[c.writer or offset_of(writer)] for c in write.causes)
        shares = {name: getattr(write, name) for name in ("offset", "left", "left_renormed", "kept", "cancellation")}
        mlps.append(TracedMlp(index[writer], **shares, causes=causes, neurons=write.neurons))
    reasons = (leaves.get(w) if w in flow.influence else _unreached(w.kind) for w in named)
    return {
        "influence": (*(flow.influence.get(writer, 0.0) for writer in named), 1.0),
        "leaves": (*reasons, None),
        "mlps": Mlps.of(mlps),
        "directions": {mlp.node: direction for mlp, direction in zip(mlps, along, strict=True)},
    }


def answer_facts(run: "Run", settings: Settings) -> dict[str, Any]:
    """Which tokens the answer and the one it is held against are, and how likely the model finds each."""
    facts = dict[str, Any]()
    for name, places in (("target", settings.predicted), ("against", ((settings.end, settings.against_ids),))):
        facts[f"{name}_text"] = token_texts(run.model.tokenizer, [token for _, ids in places for token in ids])
        likely = [run.logits[end].double().softmax(-1)[list(ids)].tolist() for end, ids in places]
        facts[f"{name}_probability"] = tuple(p for some in likely for p in some)
    return facts


def _attention(circuit: Growing, writers: Sequence[Writer]) -> list[float | None]:
    """The attention weight of every head; None of all other writers."""
    heads = [(w.layer, w.head, w.dest, w.src) for w in writers if w.kind == "head"]
    weights: dict[Any, float] = {place: firing.attention for place, firing in circuit.firings.items()}
    left, index = [place for place in heads if place not in weights], circuit.writes.attention_layers.index
    if left:
        layers, *rest = zip(*left, strict=True)
        at = [list(map(index, layers)), [circuit.row] * len(left), *rest]
        layer, run, head, dest, src = (torch.tensor(x, device=circuit.writes.device) for x in at)
        values = circuit.writes.patterns.weights(layer, run, head, dest=dest, src=src).tolist()
        weights |= dict(zip(left, values, strict=True))
    return [weights[w.layer, w.head, w.dest, w.src] if w.kind == "head" else None for w in writers]
