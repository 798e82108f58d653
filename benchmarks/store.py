"""How large is a circuit in a store, and how long do writing and reading take beside tracing?

    python benchmarks/store.py [.cache/smollm2.gguf] [--prompts 100]

One part of indirect-object prompts (a fifth as many of a model that is given), through MLPs and of heads alone.
Everything in one run, CPU time: bytes beside the same circuits as JSON, writing and reading beside tracing. Then 3,000
circuits of the organism, its prompts again and again: read from a store, all objects made, one read by its prompt.
"""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from time import process_time, time
from typing import Literal

import keyhole
from keyhole.store import Outcome, make_part, make_store, manifest_of
from keyhole.store.parts import disk_size
from keyhole.tasks import Example, examples


def outcomes(model: keyhole.Model, prompts: Sequence[Example], through: Literal["mlps", "heads"]) -> list[Outcome]:
    found: list[Outcome] = []
    for example in prompts:
        try:
            circuit = model.run(example.text).trace(example.answer, against=example.wrong, through=through)
        except keyhole.KeyholeError:
            continue  # the model prefers the wrong answer
        status = "circuit" if circuit.heads else "headless"
        found.append(Outcome(len(found), example, status, replace(circuit, run=None)))
    return found


def measure(model: keyhole.Model, n: int, through: Literal["mlps", "heads"]) -> list[Outcome]:
    began = process_time()
    found = outcomes(model, examples("ioi", model, n), through)
    traced, circuits = process_time() - began, [one.circuit for one in found if one.circuit is not None]
    told = {"model": circuits[0].model, "versions": circuits[0].versions, "settings": {"through": through}}
    manifest = manifest_of([one.example for one in found], **told, task={"name": "ioi"}, part=n)
    with tempfile.TemporaryDirectory() as folder:
        store = make_store(Path(folder) / "ioi.store", manifest)
        make_part(manifest, 0, found)  # what is imported and compiled once
        with store.writing():
            began, clock = process_time(), time()
            store.write(0, found)
            written, waited = process_time() - began, time() - clock
        began = process_time()
        assert list(store) == found
        read, size = process_time() - began, disk_size(store.path)
    n, json = len(found), sum(len(circuit.to_json()) for circuit in circuits)
    counts = ", ".join(f"{mean(len(getattr(one, name)) for one in circuits):.0f} {name}" for name in ("nodes", "edges"))
    print(f"{model.name} through {through}: {n} circuits of {counts}: {size / n:.0f} bytes each, JSON {json / n:.0f}")
    wrote = f"writing {written / n * 1e3:.2f} ms each ({waited / n * 1e3:.2f} on the clock)"
    beside = f"tracing {traced / n * 1e3:.0f}: {written / traced:.3f} and {read / traced:.3f} of it"
    print(f"  {wrote}, reading {read / n * 1e3:.2f}, {beside}")
    return found


def read_many(found: Sequence[Outcome], n: int) -> None:
    """A store of so many circuits, in parts as a bulk run writes them."""
    many = [replace(found[i % len(found)], index=i) for i in range(n)]
    first = next(one.circuit for one in many if one.circuit is not None)
    about = {"model": first.model, "versions": first.versions, "settings": {"through": "mlps"}}
    manifest = manifest_of([one.example for one in many], **about, task={"name": "ioi"})
    with tempfile.TemporaryDirectory() as folder:
        store = make_store(Path(folder) / "ioi.store", manifest)
        with store.writing():
            for number in range(manifest.parts):
                store.write(number, [many[i] for i in manifest.span(number)])
        began = process_time()
        circuits = [circuit for _, circuit in store.circuits()]
        read, began = process_time() - began, process_time()
        rows = sum(len(part) for one in circuits for part in (tuple(one.nodes), tuple(one.edges), tuple(one.firings)))
        looked, began = process_time() - began, process_time()
        store.circuit(n // 2)
        alone = process_time() - began
    print(f"{len(circuits):,} circuits read in {read:.1f} s (at most 5), their {rows:,} objects made in {looked:.1f} s")
    print(f"one circuit by its prompt in {alone:.3f} s (at most 0.2)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--circuits", type=int, default=3000)
    asked = parser.parse_args()
    for name, n in ((None, asked.prompts), (asked.model, asked.prompts // 5)):
        if name is None or asked.model:
            for through in ("mlps", "heads"):
                found = measure(keyhole.load(*([name] if name else [])), n, through)  # type: ignore[arg-type]
                if name is None and through == "mlps":
                    read_many(found, asked.circuits)
