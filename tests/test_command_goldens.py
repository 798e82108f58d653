"""What every command answers on the organism, frozen: moves, new records and other words change nothing unnoticed.

The goldens and how they are written anew: goldens/commands/README.md.
"""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from typer.main import get_command
from typer.testing import CliRunner

import keyhole
from commands import keyhole as typed
from frozen import COMMANDS, differing, normalised, require_record, require_text
from keyhole import cache
from keyhole.cli.app import app

pytestmark = pytest.mark.xdist_group("command goldens")  # they share circuits and stores that are made once
MARY = '"When Mary and John went to the store, John gave a drink to"'
ANSWER = "--target Mary --against John"
SMALL = "--permutations 19 --draws 2 --answers 2 --head 1.6 --rank 2"

MAKERS = {  # in this order, and before all others, which read the files
    "tasks-out": "tasks ioi --n 12 --seed 3 --with wordings=[0] --with order=ABBA --out like.jsonl",
    "bulk": "bulk ioi --n 40 --seed 7 --with wordings=[0] --part 20 --batch 8 --out ioi.store",
    "bulk-years": "bulk greater_than --n 8 --part 4 --batch 4 --out years.store",
    "bulk-effects": "bulk ioi --n 2 --with wordings=[0] --effects --signals --batch 2 --out effects.store",
    "bulk-svt": "bulk ioi --n 2 --method svt --threshold 0.3 --out svt.store",
    "bulk-sufficient": "bulk ioi --n 1 --with wordings=[0] --sufficient --out sufficient.store",
    "trace": f"trace {MARY} {ANSWER} --out mary.json",
    "trace-heads": f"trace {MARY} {ANSWER} --through heads --out heads.json --out heads.mib",
    "trace-svt": f"trace {MARY} --method svt --threshold 0.3 --out svt.json",
    "trace-sufficient": f"trace {MARY} {ANSWER} --sufficient --effects --like like.jsonl --out sufficient.json",
    "trace-short": 'trace "Mary and John gave" --tau 0.2 --out short.json --out short.mib --out short.neuronpedia.json',
    "discover-head": "discover --head 3.1 --prompts 60 --rank 3 --features features.json",
    "name": "name heads.json --tokens 3000 --random 4 --most 2 --out names.json",
}
CLAIM = {
    "schema": 1,
    "claim": "Head 1.5 moves the name to the end",
    "kind": "moves",
    "head": "1.5",
    "src": "NAME",
    "prompts": {"task": "pronouns", "n": 12},
    "settings": {"draws": 19, "texts": 4, "others": 4},
}
RECORDS = MAKERS | {
    "check": "check",
    "words": "words",
    "words-pattern": "words mar*",
    "heads": 'heads "Mary gave"',
    "channels": f"channels {MARY} --head 3.6 --top 3 --draws 4",
    "channels-homogeneous": f"channels {MARY} --head 3.6 --draws 4 --basis homogeneous",
    "explain": f"explain {MARY} --head 3.6 --src gave",
    "explain-why-not": 'explain "Mary gave" --head 1.6 --src Mary --why-not',
    "explain-mlp": f"explain {MARY} --mlp 3 --for Mary --against John",
    "generate": f"generate {MARY}",
    "generate-drawn": 'generate "When Mary and John" --temperature 1 --seed 3 --stop gave',
    "trace-probability": f"trace {MARY} --top-k 3 --metric prob --through heads",
    "trace-effects": f"trace {MARY} {ANSWER} --effects --like like.jsonl",
    "trace-story": f"trace {MARY} {ANSWER} --story",
    "verify": "verify mary.json --sides-only --draws 1",
    "verify-chain": "verify mary.json --mode chain --draws 1",
    "verify-global": "verify heads.json --mode global --sides-only --draws 1 --backups",
    "backups": "backups heads.json --first 1 --draws 20",
    "claim": "claim pronoun.json",
    "contrast": f"contrast boxes --feature lexical --prompts 24 --tests 12 --boxes 4 {SMALL}",
    "discover": "discover --prompts 20",
    "where": "where 3.1:0 --tokens 3000 --top 3",
    "where-feature": "where features.json#0 --tokens 3000 --top 3 --lens",
    "name-by": "name ioi.store --by order --most 1 --random 4 --tokens 3000",
    "name-beside": "name 3.1:4 --beside 3.1:9 --tokens 3000",
    "features": "features mary.json --sae sae.safetensors --edges 2 --top 3",
    "tasks": "tasks",
    "tasks-run": "tasks ioi --n 3 --run",
    "bulk-estimate": "bulk ioi --n 2 --estimate",
    "families": "families ioi.store",
    "families-heads": "families ioi.store --granularity heads --role --weighted --k 2",
    "compare": "compare ioi.store[order=ABBA] ioi.store[order=BABA] --prompts 2 --draws 1 --threshold 0.5",
    "compare-circuits": "compare heads.json mary.json",
    "compare-mib": "compare mary.json heads.mib",
    "sinks": "sinks ioi.store --prompts 6 --draws 19 --controls 1",
    "shared": "shared ioi.store --prompts 8 --draws 19",
    "shared-tasks": "shared ioi.store years.store --prompts 8 --draws 19",
    "curves": "curves ioi.store --prompts 4 --methods accpp,share,random",
    "curves-split": "curves ioi.store --prompts 4 --methods share --baseline counterfactual --split order --draws 1",
    "stability": "stability ioi.store --prompts 2 --other years.store",
    "lab-svf": "lab svf --steps 100 --seeds 1",
    "lab-payload": "lab payload --seeds 1 --steps 100",
    "lab-theorems": "lab theorems --seeds 1",
    "lab-sparse": "lab sparse --prompts 10",
    "lab-basis": "lab basis --n 1 --draws 1",
    "lab-emergence": "lab emergence --quick --prompts 8 --out emergence",
}
TEXTS = {
    "generate": 'generate "When Mary and John"',
    "check": "check",
    "heads": f"heads {MARY} --dest -1",
    "explain": f"explain {MARY} --head 3.6 --src gave",
    "explain-mlp": f"explain {MARY} --mlp 3 --for Mary --against John",
    "trace": f"trace {MARY} {ANSWER}",
    "trace-story": f"trace {MARY} {ANSWER} --story",
    "trace-named": f"trace {MARY} {ANSWER} --through heads --names names.json --all-names",
    "verify": "verify mary.json --draws 1",
    "backups": "backups heads.json --first 1 --draws 20",
    "families": "families ioi.store --k 2",
    "compare": "compare ioi.store[order=ABBA] ioi.store[order=BABA] --prompts 2 --draws 1 --threshold 0.5",
    "reproduce-list": "reproduce --list",
}
FILES = ("features.json", "heads.mib", "short.mib", "short.neuronpedia.json")
STORES = ("ioi", "effects", "svt", "sufficient")


def answer(folder: Path, line: str, *more: str) -> str:
    """What a command prints, on a terminal of 120 columns."""
    done = typed(*shlex.split(line), *more, folder=folder, columns=120)
    assert done.returncode == 0, f"{line}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands run: a dictionary for `keyhole features`, a claim, and then what the makers write."""
    path = tmp_path_factory.mktemp("commands")
    rows = torch.randn(40, 128, generator=torch.Generator().manual_seed(0))
    save_file({"W_dec": rows}, path / "sae.safetensors")
    (path / "pronoun.json").write_text(json.dumps(CLAIM))
    return path


@pytest.fixture(scope="module")
def printed(folder: Path) -> dict[str, Any]:
    """What the makers answer."""
    return {name: json.loads(answer(folder, line, "--json")) for name, line in MAKERS.items()}


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_is_as_it_was(name: str, printed: dict[str, Any], folder: Path) -> None:
    record = printed[name] if name in printed else json.loads(answer(folder, RECORDS[name], "--json"))
    require_record(name, record)


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_is_as_it_was(name: str, printed: dict[str, Any], folder: Path) -> None:
    require_text(name, answer(folder, TEXTS[name]))


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_as_it_was(name: str, printed: dict[str, Any], folder: Path) -> None:
    require_record(_stem(name), json.loads((folder / name).read_text()))


def _stem(name: str) -> str:
    return f"file-{name.removesuffix('.json')}"


def test_circuits_and_names_are_printed_as_their_files_have_them(printed: dict[str, Any], folder: Path) -> None:
    made = {"trace": "mary", "trace-heads": "heads", "trace-svt": "svt", "trace-sufficient": "sufficient"}
    for maker, file in (made | {"name": "names"}).items():
        assert json.loads((folder / f"{file}.json").read_text()) == printed[maker]


@pytest.mark.parametrize("name", STORES)
def test_a_store_is_as_it_was(name: str, printed: dict[str, Any], folder: Path) -> None:
    """Its manifest, and of every table the columns and the first rows."""
    path = folder / f"{name}.store"
    store, tables = keyhole.open_store(path), {}
    for kind in sorted(part.name for part in path.iterdir() if part.is_dir() and part.name != "parts"):
        table = store.table(kind)
        rows = table.slice(0, 2).to_pylist()
        tables[kind] = {"columns": table.schema.names, "length": len(table), "rows": rows}
    require_record(f"store-{name}", {"manifest": json.loads((path / "manifest.json").read_text()), "tables": tables})


def test_the_cache_is_listed_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYHOLE_CACHE", str(tmp_path))
    cache.keep("abc", "SmolLM2.gguf", {"dtype": "float32"}, size=9, write=lambda path: (path / "weights").touch())
    require_record("cache", json.loads(CliRunner().invoke(app, ["cache", "--json"]).stdout))


def test_every_command_with_json_is_frozen() -> None:
    """And no golden is left over that nothing compares."""
    typed_names = {" ".join(shlex.split(line)[: 2 if line.startswith("lab ") else 1]) for line in RECORDS.values()}
    assert typed_names | {"cache"} == set(_with_json(get_command(app)))
    stems = {*RECORDS, "cache", *(f"store-{name}" for name in STORES), *(_stem(name) for name in FILES)}
    assert {path.name for path in COMMANDS.glob("*.json")} == {f"{stem}.json" for stem in stems}
    assert {path.name for path in COMMANDS.glob("*.txt")} == {f"{name}.txt" for name in TEXTS}


def _with_json(command: Any, name: str = "") -> list[str]:
    within = getattr(command, "commands", {})
    found = [each for part, sub in within.items() for each in _with_json(sub, f"{name} {part}".strip())]
    return found + [name] * any("--json" in option.opts for option in command.params)


def test_a_difference_names_its_place() -> None:
    frozen = {"edges": [{"weight": 0.5, "side": "dest", "n": 3}], "versions": "*", "text": "weight 0.920"}
    now = {"edges": [{"weight": 0.50002, "side": "dest", "n": 3}], "versions": {"torch": "9"}, "text": "weight 0.921"}
    assert not list(differing(frozen, normalised(now)))
    now["edges"][0] |= {"weight": 0.51, "side": "src", "n": 3.0}
    del now["text"]
    assert list(differing(frozen, normalised({**now, "words": []}))) == [
        ".edges[0].n: was 3, is 3.0",
        '.edges[0].side: was "dest", is "src"',
        ".edges[0].weight: was 0.5, is 0.51",
        ".text: is gone",
        ".words: is new: []",
    ]
