"""Does a circuit for each family keep more of held-out answers than one for all, and than random splits?

    python benchmarks/families_split.py [.cache/smollm2.gguf] [--prompts 100] [--draws 4] [--out splits.jsonl]

Indirect objects (a store of 400, or --n), split in families, by the wording and by the order of names; without a model
(the organism) also a mix of three tasks, split by task, in families, and by the number of the prompt, which says
nothing.
"""

import argparse
import itertools
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import keyhole
from keyhole.store.store import Store
from keyhole.studies.curves.settings import CurveSettings
from keyhole.studies.curves.splits import splits
from keyhole.tasks import examples

SEEDS = 5  # halves of shown and held-out prompts
MIXED = ("ioi", "greater_than", "induction")


def mixed(model: keyhole.Model, n: int, out: Path) -> Store:
    """A store of prompts of three tasks, as many of each."""
    drawn = [
        replace(example, labels={"task": task, "number": ("even", "odd")[i % 2]})
        for task in MIXED
        for i, example in enumerate(examples(task, model, n // len(MIXED), 0))
    ]
    return keyhole.bulk(drawn, model, out=out)


def measure(store: Store, model: keyhole.Model, by: list[str], settings: CurveSettings, out: Path | None) -> None:
    """Every split by itself, so that none takes prompts from another; printed and added to a file."""
    for split, seed in itertools.product(by, range(SEEDS)):
        start = time.perf_counter()
        try:
            result = splits(store, [split], model, replace(settings, seed=seed))
        except keyhole.KeyholeError as error:
            print(f"\n{split}: {error}", flush=True)
            continue
        print(f"\n{split}, seed {seed} ({time.perf_counter() - start:.0f} s)\n{result}", flush=True)
        if out is not None:
            with out.open("a") as file:
                file.write(json.dumps(result.record()) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--n", type=int, default=400)
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--draws", type=int, default=4)
    parser.add_argument("--by", default="families,wording,order")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    model = keyhole.load(asked.model)
    settings = CurveSettings(
        methods=("share",), prompts=asked.prompts, baseline="counterfactual", ranking="absolute", draws=asked.draws
    )
    with tempfile.TemporaryDirectory() as folder:
        store = keyhole.bulk("ioi", model, n=asked.n, out=Path(folder) / "ioi.store")
        measure(store, model, asked.by.split(","), settings, asked.out)
        if asked.model is None:
            store = mixed(model, asked.n, Path(folder) / "mixed.store")
            measure(store, model, ["task", "families", "number"], settings, asked.out)
