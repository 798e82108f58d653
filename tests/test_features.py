"""A planted autoencoder has a signal as a row of its decoder: it is found, and nothing is in a random one."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from commands import keyhole as typed
from conftest import tiny_model
from keyhole import Circuit, KeyholeError, Model
from keyhole.circuits.records import Signal
from keyhole.features.sae import dictionary_of, edge_vector, nearest_features, read_dictionary, signal_numbers

PROMPT = "When Mary and John went to the store, John gave a drink to"


@pytest.fixture(scope="module")
def circuit(organism: Model) -> Circuit:
    return organism.run(PROMPT).trace("Mary", against="John")


def directions(n: int, d: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


def test_a_planted_signal_is_found(circuit: Circuit) -> None:
    number = signal_numbers(circuit)[0]
    signal = edge_vector(circuit, number)
    rows = directions(400, len(signal))
    rows[123] = -3.0 * signal
    found = nearest_features(signal, dictionary_of(rows), top=3)
    assert (found.features[0].index, found.features[0].cosine) == (123, pytest.approx(-1.0))
    assert found.features[0].share == pytest.approx(1.0) and found.share == pytest.approx(1.0)
    assert found.random_cosine < 0.5 and found.length == pytest.approx(float(signal.norm()))
    assert "times as near" in str(found) and "    123  cosine -1.000" in str(found)


def test_shares_are_those_of_the_span() -> None:
    """Two of four planted directions, not orthogonal: together they span what a projection says, and all of it."""
    d = 64
    rows = directions(50, d)
    rows /= rows.norm(dim=1, keepdim=True)
    vector = (2.0 * rows[7] - 1.5 * rows[31]).double()
    found = nearest_features(vector, dictionary_of(rows), top=4)
    assert {one.index for one in found.features[:2]} == {7, 31} and found.features[1].share == pytest.approx(1.0)
    first = float(rows[found.features[0].index].double() @ (vector / vector.norm()))
    assert found.features[0].cosine == pytest.approx(first) and found.features[0].share == pytest.approx(first**2)
    assert all(a.share <= b.share + 1e-12 for a, b in zip(found.features, found.features[1:], strict=False))


def test_random_dictionaries_are_as_near_as_their_control() -> None:
    """Over vectors, the nearest of random features is no nearer than the control: its ratio is about 1."""
    ratios, shares = [], []
    for seed in range(12):
        vector = directions(1, 48, seed=100 + seed)[0]
        found = nearest_features(vector, dictionary_of(directions(500, 48, seed=200 + seed)), top=5, seed=seed)
        ratios.append(abs(found.features[0].cosine) / found.random_cosine)
        shares.append(found.share - found.random_share)
    assert sum(ratios) / 12 == pytest.approx(1.0, abs=0.06) and abs(sum(shares) / 12) < 0.05


def test_features_across_a_vector_are_not_near() -> None:
    rows, vector = directions(40, 16), torch.zeros(16)
    rows[:, 0], vector[0] = 0.001, 1.0
    assert nearest_features(vector, dictionary_of(rows)).verdict.startswith("no feature is nearer")


LAYOUTS = {
    "W_dec": False,
    "w_dec": False,
    "decoder.weight": True,
    "layers.3.mlp.W_dec": False,
    "model.decoder.weight": True,
    "decoder": False,
}


@pytest.mark.parametrize(("name", "turned"), LAYOUTS.items())
@pytest.mark.parametrize("features", [200, 16])
def test_layouts_are_told_by_names_and_shapes(name: str, turned: bool, features: int, tmp_path: Path) -> None:
    rows = directions(features, 16)
    held = rows.T.contiguous() if turned else rows
    others = {"W_enc": directions(16, features), "b_enc": torch.zeros(features), "b_dec": torch.zeros(16)}
    save_file({**others, name: held.to(torch.bfloat16)}, tmp_path / "sae.safetensors")
    found = read_dictionary(tmp_path / "sae.safetensors", 16)
    unit = rows / rows.norm(dim=1, keepdim=True)
    assert found.tensor == name and (found.directions - unit).abs().max() < 0.02
    assert torch.allclose(found.directions.norm(dim=1), torch.ones(features), atol=1e-5)


def test_arrays_of_numpy_are_read_without_running_anything(tmp_path: Path) -> None:
    """Gemma Scope's first edition: params.npz."""
    rows, path = directions(40, 16), tmp_path / "params.npz"
    np.savez(path, W_enc=rows.T.numpy(), W_dec=rows.numpy(), threshold=np.zeros(40))
    found = read_dictionary(path, 16)
    assert found.tensor == "W_dec" and torch.allclose(found.directions, dictionary_of(rows).directions)
    with pytest.raises(KeyholeError, match=r"no decoder of 17 dimensions. It has W_dec \[40, 16\]"):
        read_dictionary(path, 17)
    np.savez(path, W_dec=np.array([{}], dtype=object))  # a pickle
    with pytest.raises(KeyholeError, match="cannot read"):
        read_dictionary(path, 16)
    np.save(tmp_path / "array.npy", rows.numpy())
    for content in (b"", b"\x00" * 20, path.read_bytes()[:-30], (tmp_path / "array.npy").read_bytes()):
        path.write_bytes(content)
        with pytest.raises(KeyholeError, match="cannot read"):
            read_dictionary(path, 16)


def test_of_several_decoders_none_is_chosen_in_silence(tmp_path: Path) -> None:
    save_file({f"layers.{i}.W_dec": directions(40, 16, i) for i in range(2)}, tmp_path / "all.safetensors")
    with pytest.raises(KeyholeError, match=r"several decoders \(layers.0.W_dec, layers.1.W_dec\): save the one"):
        read_dictionary(tmp_path / "all.safetensors", 16)


def test_directions_that_say_the_same_span_no_more() -> None:
    """Copies of one direction, and multiples: together they have its cosine, squared, and nothing else."""
    row, vector = directions(1, 16), directions(1, 16, seed=1)[0]
    found = nearest_features(vector, dictionary_of(torch.cat([row, row, -2.0 * row, row + 1e-8])), top=4)
    alone = float((row[0] / row.norm() @ (vector / vector.norm())) ** 2)
    assert [one.share for one in found.features] == pytest.approx([alone] * 4, abs=1e-6)


def test_what_is_no_autoencoder_is_refused(tmp_path: Path) -> None:
    save_file({"W_enc": directions(16, 40), "scale": torch.ones(3)}, tmp_path / "none.safetensors")
    with pytest.raises(KeyholeError, match=r"no decoder of 16 dimensions. It has W_enc \[16, 40\], scale \[3\]"):
        read_dictionary(tmp_path / "none.safetensors", 16)
    save_file({"W_dec": directions(40, 16)}, tmp_path / "sae.safetensors")
    with pytest.raises(KeyholeError, match="no decoder of 17 dimensions"):
        read_dictionary(tmp_path / "sae.safetensors", 17)
    (tmp_path / "bad.safetensors").write_bytes(b"\x00" * 20)
    with pytest.raises(KeyholeError, match="cannot read"):
        read_dictionary(tmp_path / "bad.safetensors", 16)
    with pytest.raises(KeyholeError, match="cannot read"):
        read_dictionary(tmp_path / "missing.safetensors", 16)
    with pytest.raises(KeyholeError, match="run code"):
        read_dictionary(tmp_path / "sae.pt", 16)
    with pytest.raises(KeyholeError, match="not finite"):
        dictionary_of(torch.full((2, 3), torch.nan))


def test_features_without_a_direction_are_never_told() -> None:
    rows = torch.cat([torch.zeros(2, 8), directions(3, 8)])
    found = nearest_features(rows[3].clone(), dictionary_of(rows), top=3)  # spanned by the first already
    assert found.features[0].index == 3 and {one.index for one in found.features} == {2, 3, 4}


def test_what_has_no_direction_is_refused() -> None:
    known = dictionary_of(torch.cat([directions(5, 8), torch.zeros(2, 8)]))
    assert known.dead == 2 and len(nearest_features(directions(1, 8)[0], known, top=100).features) == 5
    with pytest.raises(KeyholeError, match="all 3 are zero"):
        nearest_features(directions(1, 8)[0], dictionary_of(torch.zeros(3, 8)))
    with pytest.raises(KeyholeError, match="another model"):
        nearest_features(torch.ones(9), known)
    with pytest.raises(KeyholeError, match="near to nothing"):
        nearest_features(torch.zeros(8), known)
    with pytest.raises(KeyholeError, match="at least one"):
        nearest_features(torch.ones(8), known, top=0)


def test_edges_have_the_vectors_of_their_firings(circuit: Circuit) -> None:
    """An edge's signal is what `firing.vector` says of the same signal."""
    run = circuit.run
    assert run is not None
    number = signal_numbers(circuit)[0]
    edge = circuit.edges[number]
    into = circuit.nodes[edge.receiver]
    firing = run.explain((into.layer, into.head), into.dest, into.src)
    signal = Signal(circuit.nodes[edge.sender].writer, edge.side, edge.channels)
    for flavour in ("raw", "rotated"):
        assert torch.allclose(edge_vector(circuit, number, flavour=flavour), firing.vector(signal, flavour=flavour))
    other = next(i for i, edge in enumerate(circuit.edges) if edge.side == "target")
    with pytest.raises(KeyholeError, match="no signal"):
        edge_vector(circuit, other)
    with pytest.raises(KeyholeError, match="there is no edge 999"):
        edge_vector(circuit, 999)


def test_by_the_command_line(circuit: Circuit, tmp_path: Path) -> None:
    circuit.save(tmp_path / "mary.json")
    first, second = signal_numbers(circuit)[:2]
    rows = directions(300, 128)
    rows[17] = edge_vector(circuit, first)
    save_file({"W_dec": rows, "W_enc": rows.T.contiguous()}, tmp_path / "sae.safetensors")
    one = typed("features", f"{tmp_path}/mary.json#{first}", "--sae", f"{tmp_path}/sae.safetensors", "--json")
    assert one.returncode == 0, one.stderr
    (told,) = json.loads(one.stdout)["edges"]
    assert told["features"][0]["index"] == 17 and told["features"][0]["cosine"] == pytest.approx(1.0, abs=1e-4)
    every = typed("features", f"{tmp_path}/mary.json", "--sae", f"{tmp_path}/sae.safetensors", "--edges", "2")
    assert every.returncode == 0 and "+1.000" in every.stdout and f"{second}" in every.stdout, every.stderr
    wrong = typed("features", f"{tmp_path}/mary.json#x", "--sae", f"{tmp_path}/sae.safetensors")
    assert wrong.returncode == 2 and "mary.json#12" in wrong.stderr


def test_another_models_circuit_is_refused(circuit: Circuit, tmp_path: Path) -> None:
    circuit.save(tmp_path / "mary.json")
    with pytest.raises(KeyholeError, match="other weights"):
        edge_vector(Circuit.load(tmp_path / "mary.json"), signal_numbers(circuit)[0], tiny_model("gpt2"))
