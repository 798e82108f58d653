"""Which heads take over when one of a circuit's heads is removed, and does that repeat over prompts?

    python benchmarks/backups.py [.cache/smollm2.gguf] [--prompts 8]

Prompts of indirect objects that the model gets right; a removed head writes the mean of 32 prompts like each. Over
prompts, with 95 % intervals: backups by kind, the effect of a head alone, added to those of its backups, of all of them
together, and with as many random heads; how many of the second half of the random pairs lie above the bar that the
first half sets; and pairs that are backups in several prompts.
"""

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Sequence

import torch

import keyhole
from keyhole.brief import head_name
from keyhole.faithfulness.backup_record import Backups
from keyhole.faithfulness.backups import LEAST, backups
from keyhole.stats import with_interval
from keyhole.tasks import examples, ioi
from keyhole.tasks.answers import answer_ids
from keyhole.tasks.catalogue import like
from keyhole.tasks.example import Example

LIKE = 32
KINDS = ("wakes", "counts more", "holds back less")


def measure(model: keyhole.Model, example: Example) -> Backups | None:
    """A prompt's backups; None: the model prefers the wrong answer."""
    run, answer = model.run(example.text), answer_ids(model, example)
    right, wrong = list(answer.answers), list(answer.against)
    if run.logits[-1, right].mean() <= run.logits[-1, wrong].mean():
        return None
    return backups(run.trace(right, against=wrong), like=like(example, model, LIKE))


def above(result: Backups) -> float:
    """The share of the second half of the random pairs above the bar that the first half sets."""
    growth = [pair.growth for pair in result.random]
    half = len(growth) // 2
    bar = max(LEAST * (result.everything - result.nothing), *(abs(value) for value in growth[:half]))
    return sum(value > bar for value in growth[half:]) / (len(growth) - half)


def summary(model: keyhole.Model, asked: Sequence[Example], prompts: int) -> None:
    """The first so many prompts that have backups to look for, one by one, and all of them together."""
    results: list[Backups] = []
    for example in asked:
        if len(results) == prompts:
            break
        start = time.process_time()
        result = measure(model, example)
        if result is None:
            continue
        results.append(result)
        top = ", ".join(
            f"{head_name(p.first)} -> {head_name(p.second)} {p.growth:+.2f} {p.kind}" for p in result.pairs[:3]
        )
        print(f"  {time.process_time() - start:.0f} s  bar {result.bar:.2f}  {result.verdict}  {top}", flush=True)
    print(
        f"{model.name}, {asked[0].task}, {len(results)} prompts, the largest error of softmax "
        f"{max(result.error for result in results):.0e} over {sum(len(r.handovers) for r in results)} firings"
    )
    for kind in KINDS:
        print(f"  {kind}: {with_interval([sum(p.kind == kind for p in r.pairs) for r in results], 1)} pairs a prompt")
    print(f"  tested: {statistics.mean(sum(len(row.pairs) for row in r.heads) for r in results):.0f} pairs a prompt")
    print(f"  above the bar of other random pairs: {with_interval([above(r) for r in results], 3)}")
    backed = [row for r in results for row in r.heads if row.supporting]
    print(f"  with backups that support the answer: {len(backed)} of {sum(len(r.heads) for r in results)} heads")
    columns = {
        "alone": [row.effect for row in backed],
        "effects added": [row.expected for row in backed],
        "joint": [row.joint or 0.0 for row in backed],
        "with random heads": [statistics.mean(row.random) for row in backed],
    }
    for name, values in columns.items():
        print(f"  {name}: {with_interval(values, 2)}")
    often = Counter((head_name(p.first), head_name(p.second), p.kind) for r in results for p in r.pairs)
    for (first, second, kind), times in often.most_common(12):
        growth = [
            p.growth for r in results for p in r.pairs if (head_name(p.first), head_name(p.second)) == (first, second)
        ]
        print(f"  {first} -> {second} {kind}: in {times} prompts, growth {statistics.mean(growth):.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--prompts", type=int, default=8)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    summary(keyhole.load(), ioi(3 * asked.prompts, 3, held_out=True), asked.prompts)
    if asked.model:
        model = keyhole.load(asked.model)
        summary(model, examples("ioi", model, 3 * asked.prompts, 3), max(1, asked.prompts // 2))
