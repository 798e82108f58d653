"""How many circuits can be cut into families? A store of synthetic ones: opened, filtered, cut; time and memory.

    python benchmarks/families_scale.py 100000     # 10 million edges; a few minutes
    python benchmarks/families_scale.py --pairs    # Jaccard and linkage of 10,000 circuits alone

Circuits are of four planted families, so that what comes out can be checked. Reading is done in a process of its own,
whose largest memory is told.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from keyhole.store import Manifest, Part, Store, make_store, manifest_of, open_store
from keyhole.store.parts import parquet_of
from keyhole.store.schema import arrow_schema, tables
from keyhole.studies.families import adjusted_rand, families, jaccard, store_sets
from keyhole.studies.families.cuts import cuts_of, least_size, tree_of
from keyhole.tasks import Example

FAMILIES, TERMS, CORE, OWN, PART, TOKENS = 4, 700, 60, 40, 2000, 16


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("circuits", nargs="?", type=int, default=100_000)
    parser.add_argument("--pairs", action="store_true")
    parser.add_argument("--read", type=Path)
    asked = parser.parse_args()
    if asked.read is not None:
        read(asked.read)
    elif asked.pairs:
        pairs(10_000)
    else:
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder) / "store", asked.circuits)
            subprocess.run([sys.executable, __file__, "--read", str(Path(folder) / "store")], check=True)


def read(path: Path) -> None:
    """Open, filter, make sets of all, and find families by a sample."""
    begin = time.perf_counter()
    store = open_store(path)
    told("opened", begin)
    rows = store.table("edges", columns=["prompt"], where={"label_kind": "1"}).num_rows
    told(f"filtered: {rows:,} edges of one label", begin)
    sets = store_sets(store, "channels")
    told(
        f"sets of {sets.matrix.shape[0]:,} circuits, {sets.matrix.shape[1]:,} terms, {sets.matrix.nnz:,} in all", begin
    )
    del sets
    found = families(store, where=None)
    told("families", begin)
    truth = np.array(store.table("prompts", columns=["label_kind"])["label_kind"].to_pylist())
    codes = np.unique(truth, return_inverse=True)[1]
    inside = found.labels > 0
    print(str(found).splitlines()[3])
    print(found.rest)
    right = adjusted_rand(codes[inside], found.labels[inside])
    print(f"ARI with what was planted {right:.3f}, outside {(~inside).sum():,}")


def pairs(n: int) -> None:
    """What grows with the square: distances, tree and cuts."""
    rng = np.random.default_rng(0)
    from scipy.sparse import csr_array

    matrix = csr_array((rng.random((n, TERMS)) < likely()[np.arange(n) % FAMILIES]).astype(np.float64))
    weighted = matrix.copy()
    weighted.data = rng.random(len(weighted.data))
    begin = time.perf_counter()
    apart = jaccard(matrix)
    told(f"Jaccard of {n:,} circuits", begin)
    begin = time.perf_counter()
    tree = tree_of(apart)
    told("average linkage", begin)
    begin = time.perf_counter()
    found = cuts_of(apart, tree, least=least_size(n), most=40)
    told(f"cuts ({max(found.values(), key=lambda cut: cut.silhouette).families} families)", begin)
    begin = time.perf_counter()
    jaccard(weighted)
    told("weighted Jaccard", begin)


def told(what: str, begin: float) -> None:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{time.perf_counter() - begin:7.1f} s  {peak:5.2f} GB at most  {what}", flush=True)


def likely() -> np.ndarray:
    """How likely each family has each term."""
    rng = np.random.default_rng(1)
    found = np.full((FAMILIES, TERMS), 0.03)
    found[:, :CORE] = 0.8
    for family in range(FAMILIES):
        found[family, rng.choice(np.arange(CORE, TERMS), OWN, replace=False)] = 0.8
    return found


def write(path: Path, n: int) -> None:
    """A store of n circuits of about 100 edges, part by part, by the store's own files."""
    begin = time.perf_counter()
    examples = [_example(i) for i in range(n)]
    about: dict[str, Any] = {"model": {"name": "synthetic", "fingerprint": "0"}, "settings": {}, "versions": {}}
    store = make_store(path, manifest_of(examples, task={"name": "synthetic"}, part=PART, **about))
    edges = 0
    with store.writing():
        for number in range(store.manifest.parts):
            edges += _write_part(store, number)
    told(f"wrote {n:,} circuits, {edges:,} edges", begin)


def _example(i: int) -> Example:
    labels = {"kind": str(i % FAMILIES), "coin": str(i // 7 % 2)}
    return Example("synthetic", f"prompt {i}", "a", (), ("a",), {"END": (0, 6)}, f"t{i % 5}", " a", labels)


def _write_part(store: Store, number: int) -> int:
    manifest, span = store.manifest, store.manifest.span(number)
    rng = np.random.default_rng(number)
    prompt = np.arange(span.start, span.stop)
    row, term = np.nonzero(rng.random((len(prompt), TERMS)) < likely()[prompt % FAMILIES])
    channel = np.where(rng.random(len(term)) < 0.9, term % 16, rng.integers(64, size=len(term)))
    made = {
        "prompts": _prompts(manifest, prompt),
        "circuits": {"prompt": prompt, "edges": np.bincount(row, minlength=len(prompt))},
        "nodes": _nodes(prompt, row, term),
        "edges": {
            "prompt": prompt[row],
            "edge": np.arange(len(row)),
            **_place("from_", 1, term // 28),
            **_place("to_", 2, term % 28),
            "side": np.full(len(row), "dest"),
            **{name: rng.random(len(row)) for name in ("weight", "ig", "alone", "influence")},
            "channels": pa.ListArray.from_arrays(
                np.arange(len(row) + 1, dtype=np.int32), pa.array(channel, pa.int16())
            ),
        },
        "removals": {},
    }
    files, rows = {}, {}
    for table in tables(manifest):
        whole = _table(manifest, table, made[table])
        files[table], rows[table] = parquet_of(whole), whole.num_rows
    store.keep(Part(number, manifest.name(number), files, rows))
    return len(row)


def _prompts(manifest: Manifest, prompt: np.ndarray) -> dict[str, Any]:
    examples = [_example(int(i)) for i in prompt]
    return {
        "prompt": prompt,
        "status": ["circuit"] * len(prompt),
        "correct": [True] * len(prompt),
        "text": [one.text for one in examples],
        "template": [one.template for one in examples],
        **{f"label_{name}": [one.labels[name] for one in examples] for name in manifest.labels},
    }


def _nodes(prompt: np.ndarray, row: np.ndarray, term: np.ndarray) -> dict[str, Any]:
    """The heads at either end of each circuit's edges, once each."""
    keys = np.unique(np.concatenate([row * 128 + term // 28, row * 128 + 64 + term % 28]))
    layer, head = 1 + keys % 128 // 64, keys % 64
    found = {name.removeprefix("from_"): values for name, values in _place("from_", 1, head).items()}
    return {
        "prompt": prompt[keys // 128],
        "node": np.arange(len(keys)),
        **found,
        "layer": layer,
        "influence": head / 64,
    }


def _place(end: str, layer: int, head: np.ndarray) -> dict[str, Any]:
    same = np.full(len(head), TOKENS - 1)
    place = {"kind": np.full(len(head), "head"), "layer": np.full(len(head), layer), "head": head}
    return {f"{end}{name}": values for name, values in (place | {"dest": same, "src": same}).items()}


def _table(manifest: Manifest, table: str, columns: dict[str, Any]) -> pa.Table:
    """Columns that are not given are missing in every row."""
    schema = arrow_schema(manifest, table)
    rows = len(next(iter(columns.values()), []))
    made = [
        pa.array(columns[one.name]).cast(one.type) if one.name in columns else pa.nulls(rows, one.type)
        for one in schema
    ]
    return pa.table(made, schema=schema)


if __name__ == "__main__":
    main()
