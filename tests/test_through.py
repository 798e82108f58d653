"""Circuits through MLPs: influence is conserved, directions are attributions, paths walked one by one agree."""

import math
import re
from collections import defaultdict
from dataclasses import replace

import pytest
import torch

import keyhole
from conftest import prompts_of, tiny_model
from keyhole import Circuit, KeyholeError, Model, Run
from keyhole.circuits.circuit import Edge
from keyhole.circuits.files import from_json, to_json
from keyhole.circuits.records import Writer
from keyhole.tasks import ioi
from keyhole.tracing.linear import Probe
from keyhole.tracing.mlp_causes import explain_mlp
from keyhole.tracing.mlp_directions import Through
from keyhole.tracing.mlp_influence import Flows, read_mlps
from keyhole.tracing.settings import Settings, find_seeds
from keyhole.tracing.trace import trace
from keyhole.tracing.upstream import Writes
from keyhole.tracing.writers import attention_writes
from readings import direction_of, value_direction, written

IOI = "When Mary and John went to the store, John gave a drink to"
VARIANTS = [
    "gpt2",
    "llama-bias",
    "qwen2",
    "gemma2",
    "olmo2",
    "cohere",
    "gpt_oss",
    "mixtral",
    "llama4_text",
    "lfm2",
    "gptj",
]


def through(run: Run, **settings: object) -> Circuit:
    """A circuit with many firings and MLPs."""
    direction = (
        sum(attention_writes(run, layer)[-1] for layer in run.model.attention_layers[-2:]) + run.layers[-1].mlp[-1]
    )
    return trace(run, metric=Probe(direction, len(run.layers)), through=Through(**{"eps": 0.001, **settings}))


@pytest.fixture(scope="module")
def circuit(organism: Model) -> Circuit:
    return organism.run(IOI).trace("Mary", against="John", through="mlps")


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("constants", ["baseline", "causes"])
def test_influence_is_conserved(variant: str, constants: str) -> None:
    """All of the answer ends somewhere, and every explained node hands on what it gets."""
    model = tiny_model(variant)
    circuit = through(model.run(prompts_of(model, 10)[0]), constants=constants)
    leaves = [share for share, leaf in zip(circuit.influence, circuit.leaves, strict=True) if leaf is not None]
    assert sum(leaves) == pytest.approx(1, abs=1e-5)
    handed, got = defaultdict(float), defaultdict(float)
    for edge in circuit.edges:
        assert edge.influence is not None
        handed[edge.receiver] += edge.influence
        got[edge.sender] += edge.influence
    for node, (share, leaf) in enumerate(zip(circuit.influence, circuit.leaves, strict=True)):
        assert leaf is not None or handed[node] == pytest.approx(share, abs=1e-6)
        assert circuit.nodes[node].kind == "target" or got[node] == pytest.approx(share, abs=1e-6)
    for node, leaf in enumerate(circuit.leaves):
        assert (leaf is None) == bool(circuit.edges_into(node))
    sides = {"mlp"} if variant == "lfm2" else {"mlp", "value"}  # its seeds are no heads
    assert sides <= {edge.side for edge in circuit.edges} and circuit.mlps
    assert from_json(to_json(circuit)) == circuit


@pytest.mark.parametrize("variant", ["gpt2", "llama-bias", "qwen3", "gemma2", "stablelm", "granite"])
def test_directions_are_attributions(variant: str) -> None:
    """Along its direction a dest-side writer has its `ig`; a value's parts make up what the head writes along it."""
    model = tiny_model(variant)
    run = model.run(prompts_of(model, 12)[0])
    writes, checked = Writes([run]), 0
    for site in [s for s in run.firings() if s.layer == 2 and s.src > 0][:3]:
        firing = run.explain((2, site.head), site.dest, site.src, tau=0.05)
        for signal in [s for side in firing.sides for s in side.signals if s.writer.kind not in ("offset",)]:
            read = float(direction_of(firing, signal, writes) @ written(writes, signal.writer))
            if signal.side == "dest":
                assert read == pytest.approx(signal.ig, rel=1e-3, abs=1e-6)
                checked += 1
        d = torch.randn(model.dims.d_model, generator=torch.Generator().manual_seed(0))
        moved = written(writes, Writer("head", 2, site.head, site.dest, site.src))
        x = run.layers[2].resid[site.src]
        assert float(value_direction(firing, writes, d) @ x) == pytest.approx(float(d @ moved), rel=1e-3, abs=1e-5)
    assert checked > 3


def test_merging_is_exact(circuit: Circuit) -> None:
    """An MLP that several read has the parts that each of its readers alone gives it, weighted by influence."""
    run, writes = circuit.run, Writes([circuit.run])
    assert run is not None
    merged = {node: one.direction for node, one in read_mlps(circuit, run).items()}

    def along(edge: Edge) -> torch.Tensor:
        into, writer = circuit.nodes[edge.receiver], circuit.nodes[edge.sender].writer
        if edge.side == "target":
            return run.toward("Mary", "John")
        if edge.side == "mlp":
            return explain_mlp(run, into.layer, into.dest, merged[edge.receiver]).g
        firing = run.explain((into.layer, into.head), into.dest, into.src)
        signal = next(s for s in firing.side(edge.side).signals if s.writer == writer)
        return direction_of(firing, signal, writes).double()

    checked = 0
    for one in circuit.mlps:
        readers = [e for e in circuit.edges if e.sender == one.node and e.influence]
        if len(readers) < 2 or any(e.side == "value" for e in readers):
            continue
        node = circuit.nodes[one.node]
        alone = [(e.influence, explain_mlp(run, node.layer, node.dest, along(e))) for e in readers]
        for edge in circuit.edges_into(one.node):
            source, merged_part = circuit.nodes[edge.sender], 0.0
            for share, write in alone:
                offset = source.kind == "mlp_offset"
                part = write.offset
                if not offset:
                    part = float(write.g @ written(writes, source.writer).double()) / write.value
                merged_part += share / circuit.influence[one.node] * part
            assert merged_part == pytest.approx(edge.ig, rel=1e-3, abs=1e-4)
        checked += 1
    assert checked


def test_along_the_merged_direction_a_write_is_its_influence(organism: Model) -> None:
    """Several consumers, one direction: what an MLP writes along it is all the influence that reaches it."""
    run = organism.run(IOI)
    writes = Writes([run])
    flows = Flows(writes, Through())
    flows.seed(0, find_seeds(writes, Settings((7,), (), len(run) - 1, None, Probe(run.final_resid[-1], 4))))
    reader = Writer("mlp", 3, None, 14, 14)
    for share, seed in ((0.3, 1), (0.2, 2)):
        d = torch.randn(128, generator=torch.Generator().manual_seed(seed)).double()
        value = float(d @ written(writes, reader).double())
        flows.flows[0].reach(reader, share, (Writer("head", 3, seed, 14, 2), "dest"))
        flows.directions.add([(0, reader, share, abs(value))], (d if value > 0 else -d)[None])
    along = float(flows.directions.of([(0, reader)])[0] @ written(writes, reader).double())
    assert along == pytest.approx(flows.flows[0].influence[reader], rel=1e-5)


def test_paths_walked_one_by_one_reach_the_same_words(organism: Model) -> None:
    """Every path from the answer down, an edge at a time: products of shares add up to the influence of each leaf."""
    circuit = organism.run(IOI).trace("Mary", against="John", through="mlps")
    root = next(i for i, node in enumerate(circuit.nodes) if node.kind == "target")
    into = {i: circuit.edges_into(i) for i in range(len(circuit.nodes))}
    reached: dict[int, float] = defaultdict(float)

    def walk(node: int, share: float) -> None:
        if circuit.leaves[node] is not None:
            reached[node] += share
            return
        for edge in into[node]:
            if edge.influence:
                walk(edge.sender, share * edge.influence / circuit.influence[node])

    walk(root, 1.0)
    for node, share in reached.items():
        assert share == pytest.approx(circuit.influence[node], abs=1e-6)
    assert sum(reached.values()) == pytest.approx(1, abs=1e-5)


def test_the_organisms_circuits_reach_the_words(organism: Model) -> None:
    """MLPs end next to nothing, and heads that look from END at IO carry much of the answer."""
    ends, looks = [], []
    for example in ioi(6, 3, held_out=True):
        run = organism.run(example.text)
        circuit = run.trace(example.answer, against=example.wrong, through="mlps")
        end, io = (example.position(run, role) for role in ("END", "IO"))
        nodes = list(zip(circuit.nodes, circuit.influence, circuit.leaves, strict=True))
        ends.append(sum(share for node, share, leaf in nodes if node.kind == "mlp" and leaf is not None))
        looks.append(
            sum(share for node, share, _ in nodes if node.kind == "head" and (node.dest, node.src) == (end, io))
        )
    assert sum(ends) / len(ends) < 0.02 and sum(looks) / len(looks) > 0.4


def test_heads_alone_are_as_ever(organism: Model) -> None:
    run = organism.run(IOI)
    heads, plain = run.trace("Mary", against="John", through="heads"), run.trace("Mary", against="John")
    older = to_json(replace(heads, sizes=None))
    assert not heads.influence and '"schema": 1' in older and from_json(older) == heads and plain.influence
    assert all(edge.influence is None for edge in heads.edges)


def test_eps_prunes_and_values_can_be_left_out(organism: Model) -> None:
    run = organism.run(IOI)
    few, many = (run.trace("Mary", against="John", through=Through(eps=eps)) for eps in (0.2, 0.001))
    assert len(few.nodes) < len(many.nodes) and "pruned" in few.leaves
    looks = run.trace("Mary", against="John", through=Through(values=False))
    assert all(edge.side != "value" for edge in looks.edges) and looks.parameters.values is False
    assert math.isclose(sum(s for s, leaf in zip(looks.influence, looks.leaves, strict=True) if leaf), 1, abs_tol=1e-5)


def test_a_circuit_reads_as_what_it_is(circuit: Circuit) -> None:
    told = str(circuit).splitlines()
    assert "where influence ends: 2:Mary 38%" in told[-2] and "├─  80.7% mlp 3 (14:to)" in told
    assert "│  ├─  33.9% head 1.6 (14:to <- 2:Mary) 0.43, 53.1% in all" in told
    below = [line for line in told if line.startswith(("│  │  ├─", "│  │  └─"))]
    assert len(below) > 8 and any("value mlp 0 (2:Mary), 29.6% in all" in line for line in below)
    carried = [float(part.group(1)) for line in told if (part := re.search(r"─ +([0-9.]+)% ", line))]
    assert min(carried) >= 0.5  # what carries less is counted, not shown


@pytest.mark.parametrize(("settings", "reason"), [({"cover": 0.0}, "cover is"), ({"eps": 1.0}, "eps is")])
def test_settings_are_checked(settings: dict[str, object], reason: str) -> None:
    with pytest.raises(KeyholeError, match=reason):
        Through(**settings)  # type: ignore[arg-type]


def test_files_with_damaged_influence_are_refused(circuit: Circuit) -> None:
    text = to_json(circuit)
    for old, new in (('"schema": 4', '"schema": 5'), ('"leaf": null', '"leaf": 4'), ('"mlps": [', '"mlps": [5, ')):
        with pytest.raises(KeyholeError):
            from_json(text.replace(old, new, 1))
    assert replace(circuit, run=None) == from_json(text) and keyhole.Circuit is Circuit


def test_a_file_of_the_other_kind_is_refused(circuit: Circuit) -> None:
    run = circuit.run
    assert run is not None
    heads = to_json(run.trace("Mary", against="John", through="heads"))
    for text, old, new in (
        (to_json(circuit), '"through": "mlps"', '"through": "heads"'),
        (heads, '"side": "dest"', '"side": "mlp"'),
        (to_json(circuit), '"influence": 1.0', '"influence": null'),
    ):
        assert old in text
        with pytest.raises(KeyholeError):
            from_json(text.replace(old, new, 1))


def test_constants_that_a_head_moves_are_a_leaf_of_their_own() -> None:
    """What biases write at the source is no cause of a value; what they do there together is one leaf."""
    model = tiny_model("llama-bias")
    circuit = through(model.run(prompts_of(model, 10)[0]))
    moved = [i for i, node in enumerate(circuit.nodes) if node.kind == "value_offset"]
    assert moved and all(circuit.leaves[i] == "constant" and circuit.influence[i] > 0 for i in moved)
    biases = {i for i, node in enumerate(circuit.nodes) if node.kind == "bias"}
    assert not [e for e in circuit.edges if e.side in ("mlp", "value") and e.sender in biases]
    as_causes = through(model.run(prompts_of(model, 10)[0]), constants="causes")
    assert "value_offset" not in {node.kind for node in as_causes.nodes}
