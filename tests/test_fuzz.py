"""Nothing but KeyholeError: files and arguments that are almost right are used, or refused in a sentence or two.

A few examples in every run of the tests; `make fuzz` draws thousands (`KEYHOLE_FUZZ`, see conftest.py).
"""

import contextlib
import io
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

import keyhole
from fuzzing import STRANGE, damaged, mutated
from ggufs import write_gguf
from keyhole import KeyholeError
from keyhole.agents.files import Folder
from keyhole.agents.offered import Offered
from keyhole.agents.tools import TOOLS
from keyhole.circuits.circuit import Circuit
from keyhole.circuits.exports import read_mib, to_dataframe, to_graphml, to_mib
from keyhole.circuits.files import from_json, save, to_json
from keyhole.circuits.neuronpedia import to_neuronpedia
from keyhole.claims import TaskPrompts, claim_of, document_of
from keyhole.claims.kept import result_of
from keyhole.cli.app import main
from keyhole.edits import At, BiasEdit, CauseEdit, ChannelEdit, FeatureEdit, SignalEdit, Source, WriteEdit
from keyhole.edits.files import edits_of_json, typed_edit
from keyhole.edits.files import to_json as edits_to_json
from keyhole.faithfulness.story import tell
from keyhole.faithfulness.verification import verify
from keyhole.features.contrast import read_contrast
from keyhole.features.sae import read_dictionary
from keyhole.files import json_text
from keyhole.models.gguf import require_whole
from keyhole.naming.explain.sentences import Name
from keyhole.naming.judge import judge
from keyhole.naming.record import Named, Naming
from keyhole.naming.record import from_json as naming_from_json
from keyhole.naming.record import to_json as naming_to_json
from keyhole.naming.subjects.kinds import signal_subjects
from keyhole.naming.subjects.subject import Shown
from keyhole.requests.jobs import Reporter
from keyhole.settings.agents import AgentSettings
from keyhole.store import open_store
from keyhole.store.manifest import manifest_from, manifest_text
from keyhole.studies.comparison.compare import compare
from keyhole.studies.comparison.unified import published_in
from keyhole.tasks.files import read_prompts
from stores import stored

PROMPT = "When Mary and John went to the store, John gave a drink to"
OTHER = "When Anna and John went to the store, Anna gave a drink to"
LONGEST = 2100  # characters of a message: what is quoted is shortened
randoms = st.randoms(use_true_random=False)


def some(share: float) -> settings:
    """A share of the examples that the profile draws: these are slow."""
    return settings(max_examples=max(1, round(share * settings.default.max_examples)))


@contextlib.contextmanager
def refused_or_done() -> Iterator[None]:
    """What is inside may refuse, in a sentence; anything else that it raises fails the test."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except KeyholeError as error:
        assert 0 < len(str(error)) < LONGEST, str(error)[:300]


@pytest.fixture(scope="module")
def circuits(organism: keyhole.Model) -> list[Circuit]:
    run = organism.run(PROMPT)
    return [
        run.trace("Mary", against="John", through="heads"),
        run.trace("Mary", against="John"),
        run.trace("Mary", method="svt"),
        run.trace("Mary", against="John").effects(counterfactual=OTHER),
        run.sufficient("Mary", against="John", counterfactual=OTHER),
    ]


def views(circuit: Circuit) -> list[Callable[[], object]]:
    """How a circuit is shown, and written for other tools."""
    return [
        lambda: str(circuit),
        lambda: repr(circuit),
        lambda: circuit.to_html(),
        lambda: str(tell(circuit)),
        lambda: to_graphml(circuit),
        lambda: to_neuronpedia(circuit),
        lambda: to_dataframe(circuit),
    ]


def uses(circuit: Circuit, other: Circuit, model: keyhole.Model, folder: Path) -> list[Callable[[], object]]:
    """What a circuit is used for together with its model, and what takes longer."""
    return [
        lambda: save(circuit, folder / "c.svg"),
        lambda: to_mib(circuit, model),
        lambda: verify(circuit, model, draws=1),
        lambda: verify(circuit, model, draws=0, mode="chain"),
        lambda: verify(circuit, model, draws=0, mode="global", edges=False),
        lambda: str(tell(circuit, model)),
        lambda: compare(circuit, other, model=model, members=1, draws=1),
        lambda: signal_subjects(circuit, model),
    ]


@given(random=randoms, which=st.integers(0, 4))
def test_circuits_are_shown_or_refused(random: Random, which: int, circuits: list[Circuit]) -> None:
    with refused_or_done():
        circuit = from_json(json.dumps(mutated(json.loads(to_json(circuits[which])), random)))
        assert from_json(to_json(circuit)) == circuit
        for view in views(circuit):
            with refused_or_done():
                view()


@some(0.06)
@given(random=randoms, which=st.integers(0, 4))
def test_circuits_are_used_or_refused(
    random: Random, which: int, circuits: list[Circuit], organism: keyhole.Model, tmp_path_factory: Any
) -> None:
    with refused_or_done():
        circuit = from_json(json.dumps(mutated(json.loads(to_json(circuits[which])), random, most=1)))
        for use in uses(circuit, circuits[0], organism, tmp_path_factory.getbasetemp()):
            with refused_or_done():
                use()


def edits() -> dict[str, Any]:
    """A document with an edit of every kind."""
    every = [
        ChannelEdit(head=(3, 6), channels=(0, 1), src=At((2,))),
        SignalEdit(head=(3, 6), side="src", channels=(0,), writer=Source("head", 1, 6, At((2,))), factor=2),
        FeatureEdit(head=(3, 6), side="dest", basis=((1.0, *(0.0,) * 15),), frame="pre_rope"),
        BiasEdit(head=(3, 6), amount=1.0, dest=At(start=3)),
        WriteEdit(writer=Source("mlp", 2)),
        CauseEdit(layer=2, writers=(Source("embedding", 0),), dest=At((14,))),
    ]
    document: dict[str, Any] = json.loads(edits_to_json(every))
    return document


@some(0.3)
@given(random=randoms)
def test_edits_are_made_or_refused(random: Random, organism: keyhole.Model) -> None:
    with refused_or_done():
        read = edits_of_json(json.dumps(mutated(edits(), random)))
        assert edits_of_json(edits_to_json(read)) == read
        organism.run(PROMPT).with_edits(read)


@given(text=st.from_regex(r"(mlp)?[0-9]{0,2}\.?[0-9]?(:[0-9,]{0,4})?\*?[-+0-9.e]{0,5}", fullmatch=True))
def test_typed_edits_are_read_or_refused(text: str) -> None:
    with refused_or_done():
        assert str(typed_edit(text))


def claims() -> list[dict[str, Any]]:
    """A claim of every kind, but for a circuit's."""
    prompts = [{"prompt": PROMPT, "target": "Mary", "against": "John", "roles": {"IO": "Mary", "S2": [39, 43]}}]
    common = {"schema": 1, "claim": "It is so", "head": "1.6", "src": "IO", "dest": "END", "prompts": prompts}
    negatives, rewrites = {"exchange": "IO", "by": "S2"}, [{"name": "others", "prompts": prompts}]
    sender = {"kind": "head", "layer": 0, "head": 1, "src": "IO"}
    settings = {"draws": 19, "texts": 4, "others": 2, "least": 0.2}
    return [
        {**common, "kind": "moves", "settings": settings, "unrelated": [OTHER], "rewrites": rewrites},
        {**common, "kind": "matches", "channels": [5, 12], "negatives": negatives, "settings": settings},
        {**common, "kind": "needs", "channels": [5], "sender": sender, "side": "src", "loses": 0.2, "flips": True},
        {**common, "kind": "moves", "prompts": {"task": "ioi", "n": 3, "seed": 1, "choices": {"order": "ABBA"}}},
    ]


@some(0.3)
@given(random=randoms, which=st.integers(0, 3))
def test_claims_are_tested_or_refused(random: Random, which: int, organism: keyhole.Model) -> None:
    with refused_or_done():
        claim = claim_of(mutated(claims()[which], random))
        document = document_of(claim)
        assert document_of(claim_of(json.loads(json.dumps(document)))) == document
        if isinstance(claim.prompts, TaskPrompts) and claim.prompts.n > 8:
            return  # thousands of prompts would be tested, too
        result = keyhole.claim(organism, claim, draws=19, texts=4)
        assert str(result) and result_of(json.loads(json_text(result.record()))).record()


def names() -> Naming:
    test = judge.Tested("detection", "top", 10, 0, 10, 1.0, 1.0, 1.0, None, 1e-4, 1e-3, 0.01, 0.01)
    shown = Shown(0, ("the", " cat", " sat"), 2, 1, 0.5, 0.4, "top")
    signal = Named("3.1 dest", "signal", (3, 1), {"side": "dest"}, Name("dest is a name", "hand"), (test,), (shown,))
    return Naming("organism", "hand", 0, (signal,), (), "0123")


@given(random=randoms)
def test_names_are_read_or_refused(random: Random) -> None:
    with refused_or_done():
        naming = naming_from_json(json.dumps(mutated(json.loads(naming_to_json(names())), random)))
        str(naming)
        assert naming_from_json(naming_to_json(naming)) == naming


@pytest.fixture(scope="module")
def store(outcomes: list[Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fuzzed") / "store"
    stored(path, outcomes)
    return path


@given(random=randoms)
def test_manifests_are_read_or_refused(random: Random, store: Path) -> None:
    document = json.loads((store / "manifest.json").read_text())
    with refused_or_done():
        manifest = manifest_from(json.dumps(mutated(document, random)))
        assert manifest_from(manifest_text(manifest)) == manifest


@some(0.1)
@given(random=randoms, table=st.sampled_from(["prompts", "circuits", "nodes", "edges", "removals"]))
def test_parts_are_read_or_refused(random: Random, table: str, store: Path) -> None:
    """Another program may have written a table anew, with the same columns."""
    path = random.choice(sorted((store / table).glob("*.parquet")))
    whole, record = path.read_bytes(), store / "parts" / f"{path.stem}.json"
    told = record.read_text()
    try:
        content = damaged(whole, random) if random.random() < 0.3 else _rewritten(path, random)
        path.write_bytes(content)
        if random.random() < 0.8:  # and the record says so, as if it were right
            files = json.loads(told)
            files["files"][table]["bytes"] = len(content)
            record.write_text(json.dumps(files))
        for index in range(10):
            with refused_or_done():
                opened = open_store(store)
                _ = opened[index]
        with refused_or_done():
            list(open_store(store))
    finally:
        path.write_bytes(whole)
        record.write_text(told)


def _rewritten(path: Path, random: Random) -> bytes:
    """The same table with some values of a column null, moved or strange, where its type can have them."""
    table = pq.ParquetFile(path).read()
    at = random.randrange(table.num_columns)
    column, values = table.schema.field(at), table.column(at).to_pylist()
    for _ in range(random.randint(1, 3)):
        if values:
            row = random.randrange(len(values))
            values[row] = random.choice([None, random.choice(values), [], [None], *STRANGE[:12], float("nan")])
    try:
        changed = pa.array(values, column.type)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        changed = pa.nulls(len(values), column.type)
    out = pa.BufferOutputStream()
    pq.write_table(table.set_column(at, column, changed), out)
    return bytes(out.getvalue())


@given(random=randoms)
def test_gguf_headers_are_read_or_refused(random: Random, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp()
    whole = folder / "whole.gguf"
    if not whole.exists():
        write_gguf(whole)
    header, rest = whole.read_bytes()[:4000], whole.read_bytes()[4000:]
    (folder / "damaged.gguf").write_bytes(damaged(header, random) + rest)
    with refused_or_done():
        require_whole(folder / "damaged.gguf")


@given(random=randoms)
def test_files_of_mib_are_read_or_refused(
    random: Random, circuits: list[Circuit], organism: keyhole.Model, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.mib"
    path.write_text(json.dumps(mutated(json.loads(to_mib(circuits[1], organism)), random)))
    with refused_or_done():
        published = published_in(read_mib(path))
        compare(circuits[1], published)


@given(random=randoms, suffix=st.sampled_from([".npz", ".safetensors"]))
def test_autoencoders_are_read_or_refused(
    random: Random, suffix: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp()
    whole = folder / f"sae{suffix}"
    if not whole.exists():
        tensors = {"W_dec": np.eye(8, 4, dtype=np.float32), "b_dec": np.zeros(4, dtype=np.float32)}
        np.savez_compressed(whole, **tensors) if suffix == ".npz" else save_file(tensors, whole)
    path = folder / f"damaged{suffix}"
    path.write_bytes(damaged(whole.read_bytes(), random))
    with refused_or_done():
        read_dictionary(path, 4)


SAMPLE = {
    "prompt": "the cats saw the dog",
    "query": "last",
    "positive": [{"find": "cats"}],
    "negative": [{"regex": "d."}],
}


@given(random=randoms)
def test_contrasts_are_read_or_refused(random: Random, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.jsonl"
    lines = [{"contrast": "plurals", "bos": None}, SAMPLE, {**SAMPLE, "label": "b", "weight": 0.5}]
    path.write_text("\n".join(json.dumps(line) for line in mutated(lines, random)))
    with refused_or_done():
        read_contrast(path)


@given(random=randoms, suffix=st.sampled_from([".jsonl", ".txt"]))
def test_prompts_are_read_or_refused(random: Random, suffix: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / f"like{suffix}"
    lines = [{"prompt": PROMPT, "target": "Mary", "against": ["John"], "roles": {"S2": [39, 43]}}, {"prompt": OTHER}]
    path.write_text("\n".join(json.dumps(line) for line in mutated(lines, random)))
    with refused_or_done():
        assert read_prompts(path)
    path.write_bytes(damaged(f"{PROMPT}\r\n{OTHER}\n".encode(), random))
    with refused_or_done():
        assert read_prompts(path)


WORDS = [
    "\n",
    "\t",
    "\u00a0",
    "",
    "~nobody/x",
    "n" * 300,
    "9" * 5000,
    "-1",
    "1e400",
    "nan",
    "\x00",
    "3.1",
    "id:7",
    "id:" + "9" * 5000,
    "é",
    "[",
    "(",
]
COMMANDS = {
    "heads": ["--dest", "--src", "--tau", "--model", "--token-ids"],
    "channels": ["--head", "--dest", "--src"],
    "generate": ["--max-new-tokens", "--temperature", "--top-p", "--top-k", "--seed", "--stop", "--chat", "--system"],
    "explain": ["--head", "--src", "--tau", "--keys", "--mlp", "--for"],
    "trace": ["--target", "--against", "--tau", "--out", "--top-p", "--top-k", "--metric", "--start"],
    "verify": ["--model", "--draws", "--mode"],
    "claim": ["--model", "--out", "--store"],
    "backups": ["--model", "--head", "--first", "--like"],
    "compare": ["--threshold", "--out"],
    "families": ["--out", "--model"],
    "bulk": ["--n", "--with", "--tau", "--batch", "--model"],
    "contrast": ["--head", "--rank", "--sweep", "--boxes"],
    "words": ["--model"],
    "tasks": ["--n", "--with", "--seed"],
    "name": ["--corpus", "--out"],
    "features": ["--sae"],
    "reproduce": ["--model", "--seed"],
}


@st.composite
def commands(draw: Any) -> list[str]:
    """A command with a prompt or a strange word, and some of its options with strange values."""
    command = draw(st.sampled_from(sorted(COMMANDS)))
    word = st.sampled_from(WORDS) | st.text(max_size=20)
    if command == "name":  # the head 3.1 could be named, in a minute
        word = word.filter(lambda text: text != "3.1")
    prompts = command in ("heads", "channels", "explain", "trace", "generate")
    given_ = [draw(st.just(PROMPT) | word) if prompts else draw(word)] + ([draw(word)] if command == "compare" else [])
    options = draw(st.lists(st.sampled_from(COMMANDS[command]), max_size=2, unique=True))
    estimate = ["--estimate"] if command == "bulk" else []
    return [command, *given_, *(part for option in options for part in (option, draw(word))), *estimate]


@some(0.3)
@given(arguments=commands())
def test_arguments_are_obeyed_or_refused(arguments: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    """In this process: an exception that is no exit fails the test."""
    folder = tmp_path_factory.getbasetemp() / "arguments"
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        patched.setattr(sys, "argv", ["keyhole", *arguments])
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as stop:
            main()
            raise SystemExit(0)
    assert stop.value.code in (0, 1, 2, None), err.getvalue()
    assert "Traceback" not in err.getvalue() and len(err.getvalue()) < LONGEST + 500
    assert stop.value.code != 2 or err.getvalue().strip()


CALLS: dict[str, dict[str, Any]] = {  # of the server for agents
    "check": {"seed": 1, "tolerance": 0.1, "prompt": PROMPT},
    "heads": {"prompt": PROMPT, "top": 2, "dest": -1, "tau": 0.5},
    "channels": {"prompt": PROMPT, "head": "3.6", "dest": -1, "src": "gave", "draws": 1},
    "explain": {"prompt": PROMPT, "head": "3.6", "tau": 0.2, "keys": "all", "why": "here"},
    "explain_mlp": {"prompt": PROMPT, "layer": 3, "target": "Mary", "against": ["John"], "pos": -1},
    "trace": {"prompt": PROMPT, "target": "Mary", "faithfulness": False, "tau": 0.2, "end": -1, "out": "x.json"},
    "sufficient": {"prompt": PROMPT, "target": "Mary", "level": 0.5, "like": "words"},
    "verify": {"circuit": "circuit.json", "mode": "exact", "draws": 1, "edges": False, "top": 3},
    "compare": {"a": "circuit.json", "b": "circuit.json", "members": 0, "threshold": 0.5},
    "generate": {"prompt": PROMPT, "edits": [{"kind": "channels", "head": [3, 6], "channels": [0]}], "controls": 0},
    "contrast": {"what": "samples.jsonl", "heads": ["1.6"], "rank": 1},
    "claim": {"claim": {"schema": 1, "kind": "moves", "claim": "it moves", "head": "1.6", "prompts": []}, "draws": 19},
}


@some(0.5)
@given(random=randoms)
def test_calls_of_agents_are_answered_or_refused(
    random: Random, circuits: list[Circuit], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A fault of ours is refused, too, but in words of its own."""
    folder = tmp_path_factory.getbasetemp() / "agents"
    folder.mkdir(exist_ok=True)
    save(circuits[0], folder / "circuit.json")
    offered = offered_in(folder)
    name = random.choice(sorted(CALLS))
    try:
        TOOLS[name].call(offered, mutated(CALLS[name], random), Reporter(Event(), lambda *_: None, lambda: None))
    except KeyholeError as error:
        assert 0 < len(str(error)) < LONGEST and "wrong inside Keyhole" not in str(error), str(error)[:300]


@cache
def offered_in(folder: Path) -> Offered:
    return Offered(Folder.of(folder), {"organism": "organism"}, AgentSettings())
