"""What does tracing in bulk save, and does it take what was told before? Ratios within one run, one thread each.

    python benchmarks/bulk.py [.cache/smollm2.gguf] [--organism 3000] [--model 200] [--batch 32]

Indirect-object prompts, forward passes included: all of them in bulk, into a store, against a sample of them one at a
time (run, trace), scaled. Both find the model warm. Memory is that of a fresh process, for two sizes of batches: what a
prompt of a batch costs is the difference.

Then prompts of three tasks whose lengths differ (9 to 72 tokens of the organism), in random order and by length: what
was told before the run against what it took. Seconds are the processor's, so that other work on the machine counts for
neither; bars are a factor of 1.5 for time, memory and disk.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from types import SimpleNamespace
from unittest.mock import patch

import torch

import keyhole
from keyhole import KeyholeError
from keyhole.cache import readable
from keyhole.models.model import Model
from keyhole.store import Tracing, estimate
from keyhole.tasks import Example, answer_ids, examples

BARS = {"organism": 4.0, "model": 1 / 0.65}  # times faster than one at a time
MINUTES = 10.0  # for the organism's prompts
OFF = 1.5  # factor between what was told and what it took
ALONE = 40  # prompts of the sample, at most


def alone_seconds(model: Model, prompts: Sequence[Example]) -> float:
    """Of one prompt: run it, trace it, forget it."""
    sample = prompts[:: max(1, len(prompts) // ALONE)]
    start = time.perf_counter()
    for example in sample:
        ids = answer_ids(model, example)
        with suppress(KeyholeError):  # bulk runs take what cannot be traced as it comes, too
            model.run(example.text).trace(list(ids.answers), against=list(ids.against) or None)
    return (time.perf_counter() - start) / len(sample)


def folder_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*.parquet"))


def report(name: str, model: Model, n: int, batch: int) -> bool:
    """Measure one model, say what came out, and whether the bars are met."""
    prompts = examples("ioi", model, n)
    alone_seconds(model, prompts[:2])  # weights are folded, heads decomposed
    alone = alone_seconds(model, prompts)
    told = estimate(prompts, model, tracing=Tracing(batch=batch))
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        store = keyhole.bulk(prompts, model, out=Path(folder) / "store", tracing=Tracing(batch=batch))
        took = time.perf_counter() - start
        disk, counts = folder_bytes(store.path), store.counts()
    faster, off = alone * n / took, max(told.seconds / took, took / told.seconds)
    print(
        f"{name:9} {n:5} prompts {counts['circuit']:5} circuits  one at a time {alone * n:7.1f} s  bulk {took:7.1f} s "
        f"= {n / took:.1f}/s, {faster:.2f} times faster (bar {BARS[name]:.2f})   told {told.seconds:.1f} s, off by "
        f"{off:.2f} (bar {OFF})   disk {readable(disk)}, told {readable(told.disk)}"
    )
    return faster >= BARS[name] and off <= OFF and (name != "organism" or took <= MINUTES * 60)


def peaks(source: str, n: int, batches: Sequence[int]) -> list[int]:
    """Bytes at most of a fresh process, for each size of batches."""
    asked = [sys.executable, __file__, *([source] if source else []), "--peaks", str(n), *map(str, batches)]
    return [int(line) for line in subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split()]


def report_memory(name: str, source: str, model: Model, batch: int) -> None:
    few, many = peaks(source, 2 * batch, [2, batch])
    told = estimate(examples("ioi", model, 2 * batch), model, tracing=Tracing(batch=2)).memory
    each, each_told = readable(round((many - few) / (batch - 2))), readable(told.prompt)
    print(
        f"{name:9} memory of a process: {readable(few)} for 2 at once (told {readable(told.at(2))}), {readable(many)} "
        f"for {batch} (told {readable(told.at(batch))}); {each} for each prompt (told {each_told})"
    )


def report_mixed(name: str, model: Model, n: int, batch: int) -> bool:
    """What was told of prompts whose lengths differ, against what they took; whether the bars are met."""
    tasks = ("pronouns", "induction" if name == "organism" else "ioi", "boxes")
    prompts = [example for task in tasks for example in examples(task, model, n // 3)]
    met = []
    for order in ("random", "by length"):
        prompts.sort(key=lambda example: len(example.text)) if order == "by length" else Random(1).shuffle(prompts)
        with (
            tempfile.TemporaryDirectory() as folder,
            patch("keyhole.store.batches.time", SimpleNamespace(perf_counter=time.process_time)),
        ):
            told = estimate(prompts, model, tracing=Tracing(batch=batch))
            start = time.process_time()
            store = keyhole.bulk(prompts, model, out=Path(folder) / "store", tracing=Tracing(batch=batch))
            took, held, disk = time.process_time() - start, peak(), folder_bytes(store.path)
        pairs = {"s": (told.seconds, took), "MB": (told.memory.at(batch) / 1e6, held / 1e6)}
        pairs["MB on disk"] = (told.disk / 1e6, disk / 1e6)
        off = [f"{said:.1f} {what}, took {really:.1f}" for what, (said, really) in pairs.items()]
        met.append(all(1 / OFF <= said / really <= OFF for said, really in pairs.values()))
        print(f"{name:9} {len(prompts):5} prompts of three tasks, {order}: told {'; '.join(off)} (bar {OFF})")
    return all(met)


def peak() -> int:
    """Bytes of this process at the most, since that was last forgotten."""
    return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])


def print_peaks(source: str | None, n: int, batches: Sequence[int]) -> None:
    """What `peaks` measures: of tracing, not of loading, and smaller batches first (memory that was had is kept)."""
    model = keyhole.load(source)
    for batch in (1, *batches):
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        with tempfile.TemporaryDirectory() as folder:
            keyhole.bulk(
                "ioi", model, n=2 if batch == 1 else n, out=Path(folder) / "store", tracing=Tracing(batch=batch)
            )
        if batch > 1:
            print(peak())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("source", nargs="?")
    parser.add_argument("--organism", type=int, default=3000)
    parser.add_argument("--model", type=int, default=200)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--peaks", type=int, nargs="+", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.peaks:
        print_peaks(asked.source, asked.peaks[0], asked.peaks[1:])
        return
    met = []
    for name, source, n in (("organism", "", asked.organism), ("model", asked.source, asked.model)):
        if source is None or n == 0:
            continue
        model = keyhole.load(source or None)
        met.append(report(name, model, n, asked.batch))
        report_memory(name, source, model, asked.batch)
        met.append(report_mixed(name, model, n // 2, asked.batch))
        del model
    raise SystemExit(0 if all(met) else 1)


if __name__ == "__main__":
    main()
