"""What is wrong is said in a sentence: circuits that do not hold together, and words, names, numbers and files."""

import copy
import json
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import keyhole
from commands import keyhole as typed
from keyhole import KeyholeError
from keyhole.circuits.exports import to_graphml
from keyhole.circuits.files import from_json, load_circuit, to_json
from keyhole.errors import UnwritableError
from keyhole.faithfulness.verification import verify
from keyhole.features.contrast import places, read_contrast
from keyhole.features.contrast.places import resolve
from keyhole.features.sae import read_dictionary
from keyhole.files import require_file, require_folder, writable_folder, write_at_once
from keyhole.models.gguf import require_whole
from keyhole.naming.subjects.kinds import signal_subjects
from keyhole.store import open_store
from keyhole.strict import parse_json, quoted, shortened
from keyhole.tasks import examples
from stores import stored

PROMPT = "When Mary and John went to the store, John gave a drink to"
Change = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def heads(organism: keyhole.Model) -> dict[str, Any]:
    circuit = organism.run(PROMPT).trace("Mary", against="John", through="heads")
    document: dict[str, Any] = json.loads(to_json(circuit))
    return document


@pytest.fixture(scope="module")
def mlps(organism: keyhole.Model) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(to_json(organism.run(PROMPT).trace("Mary", against="John")))
    return document


def read(document: dict[str, Any]) -> keyhole.Circuit:
    return from_json(json.dumps(document))


def node(document: dict[str, Any], kind: str) -> int:
    return next(i for i, one in enumerate(document["nodes"]) if one["kind"] == kind)


def edge(document: dict[str, Any], side: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in document["edges"] if one["side"] == side)
    return found


def put(*path: str | int, value: Any) -> Change:
    """Another value at a place."""

    def change(document: dict[str, Any]) -> None:
        at: Any = document
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = value

    return change


def at_node(of: str, **values: Any) -> Change:
    return lambda document: document["nodes"][node(document, of)].update(values)


def at_edge(of: str, **values: Any) -> Change:
    return lambda document: edge(document, of).update(values)


INCONSISTENT: list[tuple[str, Change]] = [
    ("its model has no name", lambda document: document["model"].pop("name")),
    ("model.fingerprint is 3, which is no text", put("model", "fingerprint", value=3)),
    ("control characters", put("model", "name", value="org\x1b[2Janism")),
    ("its model has no name", put("model", "name", value="n" * 5000)),
    ("versions.torch is 2, which is no text", put("versions", "torch", value=2)),
    ("a token id", put("token_ids", 0, value=2**31)),
    ("a token id", put("token_ids", 0, value=-1)),
    ("that no model has", at_node("mlp", layer=2**63)),
    ("which comes later", lambda document: at_node("head", dest=1, src=5)(document)),
    ("no weight from 0 to 1", at_node("head", attention=None)),
    ("no weight from 0 to 1", at_node("head", attention=1.5)),
    ("heads alone have", at_node("mlp", attention=0.5)),
    ("another token than its own", at_node("mlp", dest=3, src=2)),
    ("its parameters say token 3", put("parameters", "end", value=3)),
    ("the id of an answer", put("parameters", "target_ids", value=[-5])),
    ("do not match", put("parameters", "target_text", value=["a", "b"])),
    ("is not from 0 to 1", put("parameters", "target_probability", value=[7.0])),
    ("parameter tau is 7", put("parameters", "tau", value=7)),
    ("probe_layer exactly", put("parameters", "probe_layer", value=1)),
    ("an edge occurs twice", lambda document: document["edges"].append(document["edges"][0])),
    ("begins at the answer", lambda d: edge(d, "target").update({"from": node(d, "target")})),
    ("ends at the answer", at_edge("target", side="dest")),
    ("names a channel twice", lambda d: edge(d, "dest").update(channels=[1, 1])),
    ("exactly if it is a signal", at_edge("dest", channels=[])),
    ("other channels than were removed", at_edge("dest", channels=[63])),
    ("does not write below", lambda d: edge(d, "dest").update({"from": d["firings"][0]["node"]})),
    ("a firing occurs twice", lambda document: document["firings"].append(document["firings"][0])),
    (
        "which is no head",
        lambda d: d["firings"].append({**d["firings"][0], "node": node(d, "mlp"), "dest": [], "src": []}),
    ),
    ("has tau 2", put("firings", 0, "tau", value=2)),
    ("sees 999 keys", put("firings", 0, "visible", value=999)),
    ("was not searched", lambda document: document["firings"].pop(0)),
    ("removed twice", lambda d: d["firings"][0]["dest"].append(d["firings"][0]["dest"][0])),
    ("does not write below", lambda d: d["firings"][0]["dest"][0].update(kind="mlp", head=None, layer=90)),
    ("should have a head exactly if", lambda d: d["firings"][0]["dest"][0].update(kind="head", head=None, layer=0)),
    ("a number beyond", put("edges", 0, "weight", value=1e300)),
]


@pytest.mark.parametrize(("reason", "change"), INCONSISTENT)
def test_a_circuit_whose_parts_contradict_each_other_is_refused(
    reason: str, change: Change, heads: dict[str, Any]
) -> None:
    document = copy.deepcopy(heads)
    change(document)
    with pytest.raises(KeyholeError, match=reason):
        read(document)


@pytest.mark.parametrize(
    ("reason", "change"),
    [
        ("negative influence", lambda d: edge(d, "mlp").update(influence=-0.5)),
        ("and its edges carry", lambda d: d["nodes"][node(d, "embedding")].update(influence=0.9)),
        ("should hand on", lambda d: d["nodes"][node(d, "embedding")].update(leaf=None)),
        ("explained twice", lambda d: d["mlps"].append(d["mlps"][0])),
        ("a cause twice", lambda d: d["mlps"][0]["causes"].append(d["mlps"][0]["causes"][0])),
        ("neurons that no model has", lambda d: d["mlps"][0].update(neurons=[[2**40, 0.5]])),
        ("a constant of another reader", lambda d: d["nodes"][node(d, "mlp_offset")].update(layer=1)),
    ],
)
def test_influence_that_is_not_conserved_is_refused(reason: str, change: Change, mlps: dict[str, Any]) -> None:
    document = copy.deepcopy(mlps)
    change(document)
    with pytest.raises(KeyholeError, match=reason):
        read(document)


def seed(**writer: Any) -> Change:
    """One more writer that pushes towards the answer."""

    def change(document: dict[str, Any]) -> None:
        end, numbers = document["parameters"]["end"], {"weight": 0.1, "ig": 0.1, "alone": 0.1}
        joined = {"from": len(document["nodes"]), "to": node(document, "target"), "side": "target"}
        document["nodes"].append({"head": None, "attention": None, "dest": end, "src": end, **writer})
        document["edges"].append({**joined, **numbers, "channels": []})

    return change


def channel_99(document: dict[str, Any]) -> None:
    """A removal's channel, and the signal that it is part of."""
    firing = document["firings"][0]
    signal = next(one for one in document["edges"] if one["to"] == firing["node"] and one["side"] == "dest")
    writer = document["nodes"][signal["from"]]
    removal = next(
        one for one in firing["dest"] if all(one[name] == writer[name] for name in ("kind", "layer", "head", "src"))
    )
    signal["channels"][0] = removal["channel"] = 99


@pytest.mark.parametrize(
    ("reason", "change"),
    [
        ("channel 99, and heads of organism have channels 0 to 15", channel_99),
        ("mlp 90, and organism has 4 layers", seed(kind="mlp", layer=90)),
        ("head 1.99, and organism has 4 layers of 8 heads", seed(kind="head", layer=1, head=99, attention=0.5)),
        ("mixer 1, and that layer of organism has none", seed(kind="mixer", layer=1)),
        ("organism has tokens 0 to", lambda d: d["parameters"].update(target_ids=[10**6])),
        ("outside the vocabulary", lambda d: d["token_ids"].__setitem__(0, 10**6)),
    ],
)
def test_what_the_model_has_not_is_refused_when_it_is_used(
    reason: str, change: Change, heads: dict[str, Any], organism: keyhole.Model
) -> None:
    document = copy.deepcopy(heads)
    change(document)
    if "mixer" not in reason:  # files that state the model's sizes are refused when they are read
        with pytest.raises(KeyholeError, match="its model ha"):
            read(document)
    document = {**document, "schema": 1}
    del document["sizes"]
    circuit = read(document)
    for use in (verify, signal_subjects):
        with pytest.raises(KeyholeError, match=reason):
            use(circuit, organism)


def test_a_model_may_be_called_anything(organism: keyhole.Model) -> None:
    """Its circuits can be read again."""
    circuit = replace(organism, name="models/a\nb\x1b").run(PROMPT).trace("Mary")
    assert from_json(to_json(circuit)) == circuit and circuit.model["name"] == "models/a\ufffdb\ufffd"


def test_graphml_of_any_name_can_be_read(mlps: dict[str, Any]) -> None:
    import networkx as nx

    document = copy.deepcopy(mlps)
    document["model"]["name"] = "a\ufffeb\u00a0c"
    document["nodes"][node(document, "embedding")]["leaf"] = "\x07"
    assert nx.parse_graphml(to_graphml(read(document))).graph["model"] == "a\ufffdb\u00a0c"


# -- words, numbers and names ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["\n", "\t", "\u00a0", "", " "])
def test_white_space_is_no_answer(word: str, organism: keyhole.Model) -> None:
    with pytest.raises(KeyholeError, match="is nothing for organism, and not one token"):
        organism.run(PROMPT).trace(word)


@pytest.mark.parametrize("digits", [400, 4000, 5000])
def test_a_threshold_of_thousands_of_digits_is_refused(digits: int, organism: keyhole.Model) -> None:
    with pytest.raises(KeyholeError, match="tau is"):
        organism.run(PROMPT).trace("Mary", tau=10**digits)


def test_numbers_that_become_infinite_are_not_json() -> None:
    for text in ("1e400", "[-1e999]", '{"a": 1.5e310}'):
        with pytest.raises(KeyholeError, match="larger than any number"):
            parse_json(text)
    assert parse_json("[1e300, 1e-400]") == [1e300, 0.0]


@pytest.mark.parametrize("name", ["n" * 300 + ".json", "a\x00b.json"])
def test_names_that_no_file_has(name: str, tmp_path: Path) -> None:
    for write in (require_file, require_folder, writable_folder, lambda path: write_at_once(path, "x")):
        with pytest.raises(UnwritableError, match="cannot write"):
            write(tmp_path / name)
    for read_it in (load_circuit, keyhole.load, open_store, examples):
        with pytest.raises(KeyholeError):
            read_it(str(tmp_path / name))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name", ["n" * 300, "n" * 300 + ".gguf", "~nobody-has-this-name/x", "~nobody-has-this-name/x.gguf"]
)
def test_models_that_cannot_be_there(name: str) -> None:
    with pytest.raises(KeyholeError, match=r"cannot load|there is no file|is neither") as refused:
        keyhole.load(name)
    assert len(str(refused.value)) < 600


@pytest.mark.parametrize(
    "arguments",
    [
        ("explain", PROMPT, "--head", "9" * 5000 + ".1"),
        ("explain", PROMPT, "--head", "3.6", "--src", "9" * 5000),
        ("trace", PROMPT, "--target", "\n"),
        ("trace", PROMPT, "--target", "x" * 20_000),
        ("trace", PROMPT, "--target", "Mary", "--out", "n" * 300 + ".json"),
        ("heads", PROMPT, "--model", "n" * 300),
        ("compare", "n" * 300 + ".json", "b"),
        ("families", "n" * 300),
        ("bulk", "n" * 300, "--estimate"),
        ("contrast", "n" * 300),
        ("discover", "n" * 300),
        ("name", "n" * 300),
        ("bulk", "ioi", "--n", "99999999999", "--estimate"),
        ("tasks", "ioi", "--n", "99999999999"),
    ],
)
def test_the_command_line_says_so_in_a_sentence(arguments: tuple[str, ...], tmp_path: Path) -> None:
    told = typed(*arguments, folder=tmp_path)
    assert told.returncode == 2 and told.stderr.startswith("error: "), told.stderr
    assert "Traceback" not in told.stderr and len(told.stderr) < 700
    assert not list(tmp_path.iterdir())


def test_an_unknown_item_leaves_no_folder(tmp_path: Path) -> None:
    told = typed("reproduce", "nope", folder=tmp_path)
    assert told.returncode == 2 and "no published item 'nope'" in told.stderr and not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_output_to_a_full_device_is_an_error() -> None:
    """In a process of its own: Python tries once more to write when it ends."""
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "keyhole", "tasks"]
        told = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert told.returncode == 2, told.stderr
    assert (
        told.stderr.startswith("error: cannot read or write the answer: No space left")
        and "Traceback" not in told.stderr
    )


# -- files -------------------------------------------------------------------------------------------------------------


def gguf_with(dimensions: int) -> bytes:
    header = b"GGUF" + struct.pack("<IQQ", 3, 1, 0)
    name = struct.pack("<Q", 1) + b"w"
    return (
        header + name + struct.pack("<I", dimensions) + struct.pack("<Q", 2**63) * dimensions + struct.pack("<IQ", 0, 0)
    )


@pytest.mark.parametrize("dimensions", [5, 20_000, 150_000])
def test_a_tensor_of_many_dimensions_is_refused_at_once(dimensions: int, tmp_path: Path) -> None:
    path = tmp_path / "many.gguf"
    path.write_bytes(gguf_with(dimensions) + bytes(64))
    began = time.monotonic()
    with pytest.raises(KeyholeError, match="damaged"):
        require_whole(path)
    assert time.monotonic() - began < 5


def test_four_dimensions_are_read(tmp_path: Path) -> None:
    path = tmp_path / "four.gguf"
    path.write_bytes(gguf_with(4))
    with pytest.raises(KeyholeError, match=r"its header describes [0-9,]+ bytes"):
        require_whole(path)


@pytest.mark.parametrize("position", range(0, 240, 6))
def test_a_damaged_npz_is_refused(position: int, tmp_path: Path) -> None:
    path = tmp_path / "sae.npz"
    np.savez_compressed(path, W_dec=np.eye(8, 4, dtype=np.float32))
    content = bytearray(path.read_bytes())
    content[position % len(content)] ^= 0xFF
    path.write_bytes(content)
    try:
        read_dictionary(path, 4)  # a date may be damaged
    except KeyholeError as error:
        assert "sae.npz" in str(error)


@pytest.mark.parametrize("column", ["roles", "role_start", "role_end", "answers", "against", "text", "task"])
def test_a_store_with_null_columns_is_refused(column: str, outcomes: list[Any], tmp_path: Path) -> None:
    store = stored(tmp_path / "store", outcomes)
    path = min((store.path / "prompts").glob("*.parquet"))
    table = pq.ParquetFile(path).read()
    at = table.schema.get_field_index(column)
    empty = type(table.column(at))
    assert empty is not None

    pq.write_table(
        table.set_column(at, table.schema.field(at), pa.nulls(len(table), table.schema.field(at).type)), path
    )
    record = store.path / "parts" / f"{path.stem}.json"
    told = json.loads(record.read_text())
    told["files"]["prompts"]["bytes"] = path.stat().st_size
    record.write_text(json.dumps(told))
    with pytest.raises(KeyholeError, match=r"prompt 0 cannot be read|damaged"):
        _ = open_store(store.path)[0]


def test_a_pattern_that_backtracks_for_ever_is_refused(
    organism: keyhole.Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(places, "SECONDS", 1.0)
    path = tmp_path / "slow.jsonl"
    sample = {
        "prompt": PROMPT,
        "query": "last",
        "positive": [{"regex": "([A-Za-z ]+)+;"}],
        "negative": [{"find": "John"}],
    }
    path.write_text(json.dumps(sample))
    began = time.monotonic()
    with pytest.raises(KeyholeError, match="takes more than 1 seconds"):
        resolve(organism, read_contrast(path))
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    "pattern", [r"M\w+", r"(M\w+)", r"(?<=When )Mary", r"(Mary|John)+", r"\bM(?:a|o)ry\b", r"(\w+) and"]
)
def test_patterns_match_as_ever(pattern: str, organism: keyhole.Model, tmp_path: Path) -> None:
    path = tmp_path / "plain.jsonl"
    sample = {"prompt": PROMPT, "query": "last", "positive": [{"regex": pattern}], "negative": [{"find": "store"}]}
    path.write_text(json.dumps(sample))
    assert resolve(organism, read_contrast(path)).slots.keys[0, 0].tolist() == [0, 2]


def test_messages_quote_little() -> None:
    assert len(quoted("x" * 10_000)) == 80 and len(shortened("x" * 10_000)) == 200 and quoted(10**5000)
    with pytest.raises(KeyholeError) as refused:
        parse_json("[" * 100_000)
    assert len(str(refused.value)) < 300


def test_a_file_is_not_echoed(heads: dict[str, Any]) -> None:
    for change in (
        put("schema", value="x" * 10_000),
        at_node("mlp", kind="x" * 10_000),
        at_edge("dest", side="x" * 10_000),
    ):
        document = copy.deepcopy(heads)
        change(document)
        with pytest.raises(KeyholeError) as refused:
            read(document)
        assert len(str(refused.value)) < 200
