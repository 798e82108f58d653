"""MLPs' causes taken away: what is left, and what becomes of the readers, is what was predicted, on every kind."""

from dataclasses import replace

import pytest
import torch

from conftest import prompts_of, tiny_model
from keyhole import Circuit, KeyholeError, Model
from keyhole.circuits.files import from_json, to_json
from keyhole.faithfulness.verification import verify
from keyhole.intervene import answers_without
from keyhole.intervene.cuts import metric_of
from keyhole.intervene.removal import Cut, predicted, vector_delta
from keyhole.tracing.linear import Probe
from keyhole.tracing.mlp_directions import Through
from keyhole.tracing.mlp_influence import read_mlps
from keyhole.tracing.trace import trace
from keyhole.tracing.upstream import Writes
from readings import direction_of, written
from test_mlps import IOI

KINDS = ["gpt2", "llama-bias", "gemma2", "olmo2", "cohere", "gpt_oss", "mixtral", "llama4_text", "granite", "opt"]


def circuit_of(model: Model, **settings: object) -> Circuit:
    """Of the answer that the layers, not the embedding, push up most, against the one they push down most."""
    run = model.run(prompts_of(model, 10)[0])
    pushed = (run.final_resid - run.layers[0].resid)[-1].to(model.head_out().W_U) @ model.head_out().W_U
    ends = int(pushed.argmax()), int(pushed.argmin())
    return trace(run, ends[0], against=ends[1], tau=0.1, through=Through(**{"eps": 0.003, **settings}))


@pytest.fixture(scope="module")
def circuit(organism: Model) -> Circuit:
    return organism.run(IOI).trace("Mary", against="John", through="mlps")


@pytest.mark.parametrize("variant", KINDS)
def test_directions_follow_from_the_edges(variant: str) -> None:
    """Along its rebuilt direction each MLP writes the influence that its readers hand it."""
    model = tiny_model(variant)
    circuit = circuit_of(model)
    assert circuit.run is not None and circuit.mlps
    kept = from_json(to_json(circuit))
    read = read_mlps(replace(kept, directions={}), circuit.run)
    for node, mlp in read_mlps(kept, circuit.run).items():
        assert float((mlp.direction - read[node].direction).norm()) <= 1e-4 * float(read[node].direction.norm())
    assert set(read) == {one.node for one in circuit.mlps}
    writes, src_read = Writes([circuit.run]), set()
    for edge in circuit.edges:  # src-side signals that do their work elsewhere hand influence, but no direction
        if edge.side == "src" and edge.sender in read:
            node = circuit.nodes[edge.receiver]
            firing = circuit.run.explain((node.layer, node.head), node.dest, node.src, tau=0.1)
            signal = next(s for s in firing.side("src").signals if s.writer == circuit.nodes[edge.sender].writer)
            done = float(direction_of(firing, signal, writes) @ written(writes, signal.writer))
            src_read |= {edge.sender} if done < 0.1 * signal.ig else set()
    for node, one in read.items():
        s = float(one.direction @ one.place.wrote[0])
        expected = pytest.approx(circuit.influence[node], rel=1e-4)
        assert s == expected if node not in src_read else 0 < s < circuit.influence[node]
    assert set(read) - src_read


@pytest.mark.parametrize("variant", [kind for kind in KINDS if kind != "granite"])  # whose answers are embeddings
@pytest.mark.parametrize("constants", ["baseline", "causes"])
def test_exact_and_chain_removal_are_as_predicted(variant: str, constants: str) -> None:
    circuit = circuit_of(tiny_model(variant), constants=constants)
    exact, chain = (verify(circuit, mode=mode, draws=1, edges=False) for mode in ("exact", "chain"))
    assert len(exact.mlps) == len(circuit.mlps) and exact.agrees and chain.agrees
    judged = [row for row in chain.rows if row.agrees is not None]
    assert judged and all(abs(row.after - row.predicted) <= 1e-4 * max(1, abs(row.predicted)) for row in judged)
    assert any(abs(row.drop) > 1e-3 for row in judged)


def test_removal_of_causes_matters_to_readers(circuit: Circuit) -> None:
    """More than other writers as large do, in firings, in MLPs and in the answer."""
    chain = circuit.verify(mode="chain")
    for sides in (("dest", "src"), ("mlp",), ("target",)):
        rows = chain.chains(*sides)
        assert rows and chain.ratio(rows) > 3
    free = circuit.verify(mode="global", edges=False)
    assert all(row.agrees is None for row in free.rows) and free.ratio(free.chains()) > 3
    told = str(chain)
    assert "MLPs' causes, seen by a firing alone" in told and "MLPs' causes, seen by the answer alone" in told


def test_a_left_that_is_off_is_told(circuit: Circuit) -> None:
    first, *others = circuit.mlps
    off = replace(circuit, mlps=(replace(first, left=first.left + 1e-3), *others))
    result = off.verify(draws=0, edges=False)
    assert [row.node for row in result.rows if row.agrees is False] == [first.node] and not result.agrees


def test_a_change_in_channels_is_what_the_scores_say(circuit: Circuit) -> None:
    """An edge's own write, put into its channels and taken away, gives the weight that removing the signal gives."""
    run = circuit.run
    assert run is not None
    checked = 0
    for edge in circuit.edges:
        source, node = circuit.nodes[edge.sender], circuit.nodes[edge.receiver]
        if edge.side != "dest" or source.kind != "mlp":
            continue
        signal = next(s for s in run.explain((node.layer, node.head), node.dest, node.src).side("dest").signals
                      if s.writer == source.writer)  # fmt: skip
        cut = Cut(node.layer, node.head, node.dest, node.src, (signal,), keys="source")
        delta = vector_delta(run, cut, run.layers[source.layer].mlp[source.dest])
        weight = circuit.attention[edge.receiver]
        assert weight is not None
        assert weight - predicted(run, cut, delta) == pytest.approx(signal.alone, abs=1e-5)
        checked += 1
    assert checked > 2


def test_circuits_of_heads_have_no_such_rows(organism: Model) -> None:
    run = organism.run(IOI)
    heads = run.trace("Mary", against="John", through="heads")
    assert not heads.verify(draws=0, edges=False).mlps
    with pytest.raises(KeyholeError, match="ends at MLPs"):
        heads.verify(mode="chain")


def test_a_constant_that_is_a_cause_goes_with_the_others(circuit: Circuit) -> None:
    """Out of what the MLP writes: its readers, and the answer, do without it."""
    run = circuit.run
    assert run is not None
    first = next(one for one in circuit.mlps if circuit.nodes[one.causes[0]].kind == "mlp_offset")
    node = circuit.nodes[first.node]
    constant = run.explain_mlp(node.layer, node.dest, read_mlps(circuit, run)[first.node].direction)
    place = constant.places
    alone = replace(first, causes=first.causes[:1], left=1 - first.offset)
    others = {e.receiver for e in circuit.edges if e.sender == first.node and e.side == "mlp"}
    only = replace(circuit, mlps=tuple(alone if one is first else one for one in circuit.mlps))
    rows = [row for row in only.verify(mode="chain").chains("mlp") if only.edges[row.edge].sender == first.node]
    assert {row.node for row in rows} == others and all(row.agrees and abs(row.drop) > 0.01 for row in rows)
    changed = -place.write(place.x0)[0]
    (row,) = [row for row in only.verify(draws=0, edges=False).mlps if row.node == first.node]
    gone = answers_without(run, [[node.writer]], metric_of(circuit), instead={node.writer: place.wrote[0] + changed})
    assert row.agrees and row.metric_after == pytest.approx(gone[0], abs=1e-3)


def test_circuits_from_a_probe_can_be_verified(gpt2: Model) -> None:
    run = gpt2.run(prompts_of(gpt2, 10)[0])
    direction = run.final_resid[-1] - run.layers[0].resid[-1]
    circuit = trace(run, metric=Probe(direction, len(run.layers)), tau=0.1)
    assert circuit.mlps and circuit.verify(draws=0, edges=False).mlps and circuit.verify(mode="chain").agrees
    kept = from_json(to_json(circuit))
    mlps = kept.verify(gpt2, draws=0, edges=False).mlps
    assert [row.after for row in mlps] == [row.after for row in circuit.verify(draws=0, edges=False).mlps] != []
    assert kept.verify(gpt2, mode="chain").agrees
    older = replace(kept, directions={}).verify(gpt2, draws=0, edges=False)
    assert not older.mlps and "kept no probe's direction" in str(older)


def test_a_direction_that_nothing_is_written_along_is_refused(circuit: Circuit) -> None:
    node = circuit.mlps[0].node
    changed = {**circuit.directions, node: -circuit.directions[node]}
    with pytest.raises(KeyholeError, match=f"node {node} of the circuit .* the file was changed"):
        replace(circuit, directions=changed).verify(draws=0, edges=False)


def test_rounding_of_the_models_own_precision_is_no_difference() -> None:
    model = tiny_model("llama", dtype=torch.bfloat16)
    circuit = circuit_of(model)
    exact = circuit.verify(draws=0, edges=False)
    assert exact.mlps and all(row.agrees for row in exact.mlps)
