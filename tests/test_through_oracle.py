"""Circuits through MLPs, made again the slow way: gradients along the path; one writer, one edge, one node a time."""

from collections import defaultdict

import pytest
import torch

from conftest import prompts_of, tiny_model
from keyhole import Model, Run
from keyhole.circuits.circuit import Circuit, Node
from keyhole.circuits.records import Writer
from keyhole.tracing.mlp_directions import Through
from keyhole.tracing.mlp_places import mlp_places, weights_of
from keyhole.tracing.trace import trace
from keyhole.tracing.upstream import Writes
from keyhole.tracing.writers import written_by
from readings import direction_of

COVER, EPS, STEPS = 0.8, 0.02, 400
Named = list[tuple[Writer | None, float]]
Edges = dict[tuple[Writer, Writer | None, str], float]


class Slow:
    """Influence from the answer down, by the definitions: every reader of a writer adds share / value * direction."""

    def __init__(self, run: Run, direction: torch.Tensor, tau: float) -> None:
        self.run, self.tau, self.top = run, tau, direction.double()
        self.influence: dict[Writer, float] = defaultdict(float)
        self.along: dict[Writer, torch.Tensor] = {}
        self.edges: Edges = defaultdict(float)

    def hand(self, writer: Writer, share: float, d: torch.Tensor | None, into: Writer | None, side: str) -> None:
        self.influence[writer] += share
        self.edges[writer, into, side] += share
        if d is not None:
            value = float(d.double() @ written_by(self.run, writer, [writer.dest])[0].double())
            self.along[writer] = self.along.get(writer, 0) + share / value * d.double()

    def writers(self, layer: int, t: int, *, attended: bool) -> list[Writer]:
        """All that wrote at a token what a layer reads."""
        found = [Writer("embedding", 0, None, t, t)]
        for index, record in enumerate(self.run.layers[: layer + 1]):
            if index == layer and not attended:
                break
            if record.attention is not None:
                heads = [Writer("head", index, h, t, s) for h in record.attention.heads for s in range(t + 1)]
                found += [*heads, Writer("bias", index, None, t, t)]
            if index < layer:
                found.append(Writer("mlp", index, None, t, t))
        return found

    def causes(
        self, writers: list[Writer], g: torch.Tensor, s: float, offset: float
    ) -> list[tuple[Writer | None, float]]:
        parts: list[tuple[Writer | None, float]] = [(None, offset)]
        for writer in writers:
            if writer.kind != "bias":
                parts.append((writer, float(g @ written_by(self.run, writer, [writer.dest])[0].double())))
        named, covered = [], 0.0
        for writer, part in sorted(parts, key=lambda one: -one[1]):
            if covered >= COVER * s or part <= 0:
                break
            named.append((writer, part))
            covered += part
        return named

    def hand_on(self, writer: Writer, share: float, named: Named, g: torch.Tensor, side: str) -> None:
        total = sum(part for _, part in named)
        for who, part in named:
            kind = "mlp_offset" if side == "mlp" else "value_offset"
            other = who or Writer(kind, writer.layer, writer.head, writer.src, writer.src)
            explained = other.kind in ("mlp", "head")
            self.hand(other, share * part / total, g if explained else None, writer, side)

    def mlp(self, writer: Writer) -> None:
        """Gradients at many points of the straight line from the constants to the input."""
        weights = weights_of(self.run, writer.layer)
        place = mlp_places(Writes([self.run]), [(0, writer.dest)], weights, writer.layer)
        d, x0, x = self.along[writer], place.x0, place.x
        total = torch.zeros_like(x)
        for step in range(STEPS):
            at = (x0 + (step + 0.5) / STEPS * (x - x0)).requires_grad_()
            with torch.enable_grad():
                total += torch.autograd.grad((place.write(at) @ d).sum(), at)[0] / STEPS
        s, offset = float(place.write(x) @ d), float(place.write(x0) @ d)
        writers = self.writers(writer.layer, writer.dest, attended=not weights.parallel)
        named = self.causes(writers, total[0], s, offset)
        self.hand_on(writer, self.influence[writer], named, total[0], "mlp")

    def head(self, writer: Writer) -> None:
        own, firing = self.influence[writer], None
        weight = float(self.run.attention_run(writer.layer).weights([writer.head], [writer.dest])[0, 0, writer.src])
        if weight >= self.tau:
            firing = self.run.explain((writer.layer, writer.head), writer.dest, writer.src, tau=self.tau)
        sides = []
        for side in firing.sides if firing is not None else ():
            useful = [s for s in side.signals if s.ig > 0]
            prompt = [s for s in useful if s.writer.kind not in ("bias", "offset")]
            if prompt or useful:
                sides.append((side.side, prompt or useful))
        if self._value(writer, own / 2 if sides else own, weight):
            own = own / 2
        for side, signals in sides:
            for signal in signals:
                told = signal.writer.kind in ("mlp", "head")
                d = direction_of(firing, signal, Writes([self.run])) if told else None
                if d is not None:
                    read = float(d @ written_by(self.run, signal.writer, [signal.writer.dest])[0])
                    d = d if read >= 0.1 * signal.ig else None
                total = sum(s.ig for s in signals)
                self.hand(signal.writer, own / len(sides) * signal.ig / total, d, writer, side)

    def _value(self, writer: Writer, share: float, weight: float) -> bool:
        """A head's value is linear: its gradient by the stream at the source is the same everywhere."""
        if writer not in self.along:
            return False
        record, w = self.run.attention_run(writer.layer), self.run.model.folded(writer.layer)
        x = self.run.layers[writer.layer].resid[writer.src].double().requires_grad_()
        with torch.enable_grad():
            v = (x / record.norm_scale[writer.src].double()) @ w.W_V[w.kv(writer.head)].double()
            moved = weight * (v @ w.W_O[writer.head].double()) / record.out_scale[writer.dest].double()
            (g,) = torch.autograd.grad(moved @ self.along[writer], x)
        writers = self.writers(writer.layer, writer.src, attended=False)
        constant = sum(float(g @ written_by(self.run, w, [w.dest])[0].double()) for w in writers if w.kind == "bias")
        s = float(g @ x.detach())
        named = self.causes(writers, g, s, constant) if s > 0 else []
        self.hand_on(writer, share, named, g, "value")
        return bool(named)

    def walk(self, seeds: list[tuple[Writer, float]]) -> Edges:
        total = sum(weight for _, weight in seeds)
        for writer, weight in seeds:
            self.hand(writer, weight / total, self.top if writer.kind in ("mlp", "head") else None, None, "target")
        for layer in reversed(range(len(self.run.layers))):
            for kind, explain in (("mlp", self.mlp), ("head", self.head)):
                for writer in [w for w in self.influence if (w.kind, w.layer) == (kind, layer) and w.dest > 0]:
                    enough = self.influence[writer] >= EPS
                    if enough and ((kind == "head" and layer > 0) or (kind == "mlp" and writer in self.along)):
                        explain(writer)
        return self.edges


def handed(circuit: Circuit) -> Edges:
    def who(node: Node) -> Writer | None:
        return None if node.kind == "target" else node.writer

    nodes = circuit.nodes
    return {(nodes[e.sender].writer, who(nodes[e.receiver]), e.side): e.influence for e in circuit.edges if e.influence}


@pytest.mark.parametrize("variant", ["organism", "llama-bias", "cohere", "olmo2"])
def test_the_slow_way_hands_on_the_same_influence(variant: str, organism: Model) -> None:
    if variant == "organism":
        run, tau = organism.run("When Mary and John went to the store, John gave a drink to"), 0.3
        ends = [organism.tokenizer.convert_tokens_to_ids(name) for name in ("Mary", "John")]
    else:
        model = tiny_model(variant)
        run, tau = model.run(prompts_of(model, 7)[0]), 0.2
        pushed = (run.final_resid - run.layers[0].resid)[-1].to(model.head_out().W_U) @ model.head_out().W_U
        ends = [int(pushed.argmax()), int(pushed.argmin())]
    circuit = trace(run, ends[0], against=ends[1], tau=tau, through=Through(cover=COVER, eps=EPS))
    seeds = [(circuit.nodes[e.sender].writer, e.weight) for e in circuit.edges if e.side == "target"]
    slow = {edge: share for edge, share in Slow(run, run.toward(*ends), tau).walk(seeds).items() if share}
    fast = handed(circuit)
    assert set(slow) == set(fast) and len(fast) > 8
    for edge, share in fast.items():
        assert slow[edge] == pytest.approx(share, rel=2e-3, abs=1e-4)
