"""Does half precision give the same circuits, and does everything add up? The table of docs/models.md, measured.

    python benchmarks/half.py [.cache/smollm2.gguf] [--prompts 40] [--verified 3]

Prompts of three tasks (indirect objects, facts, induction), each traced in float32, bfloat16 and float16 for the
answer that is likeliest in float32. Of each precision: how many are traced, how exact the facts are in float32, what
was rounded away, the influence in common with float32's circuits (weighted Jaccard of heads and MLPs, as in
`keyhole stability`), and how many removals are as predicted. A float16 pass over many copies is slow on a CPU, so that
removals are made in a few prompts of each task.
"""

import argparse
import time
from statistics import fmean, median

import torch

import keyhole
from keyhole.circuits.circuit import Circuit
from keyhole.errors import KeyholeError
from keyhole.models.run import Run
from keyhole.studies.stability.stability import in_common
from keyhole.tasks.catalogue import examples
from keyhole.tasks.example import Example
from keyhole.tasks.knowledge import N_FACTS
from keyhole.tracing.exactness import check_run
from keyhole.tracing.rounding import Rounding

TASKS = ("ioi", "facts", "induction")
PRECISIONS = ("bfloat16", "float16")


def prompts_of(model: keyhole.Model, n: int) -> list[Example]:
    """As many of each task as come to n, of facts all that there are."""
    facts = min(n // 3, N_FACTS)
    shares = {"ioi": (n - facts + 1) // 2, "facts": facts, "induction": (n - facts) // 2}
    return [one for task in TASKS for one in examples(task, model, shares[task])]


def traced(run: Run, target: int) -> Circuit | str:
    try:
        return run.trace(target)
    except KeyholeError as error:
        return str(error)


def likeliest(run: Run) -> int:
    return int(run.logits[-1].argmax())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("path", nargs="?", default=".cache/smollm2.gguf")
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--verified", type=int, default=3)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    model = keyhole.load(chosen.path)
    prompts = prompts_of(model, chosen.prompts)
    runs = [model.run(prompt.text) for prompt in prompts]
    answers, began = [likeliest(run) for run in runs], time.monotonic()
    full = [run.trace(target) for run, target in zip(runs, answers, strict=True)]
    seconds = time.monotonic() - began
    print(f"float32: {len(full)} prompts traced")
    for precision in PRECISIONS:
        measure(chosen, precision, prompts, answers, full, seconds)


def measure(
    chosen: argparse.Namespace,
    precision: str,
    prompts: list[Example],
    answers: list[int],
    full: list[Circuit],
    seconds: float,
) -> None:
    half = keyhole.load(chosen.path, dtype=precision)
    began = time.monotonic()
    facts = keyhole.check(half)
    print(
        f"{precision}: facts in float32: scores {facts.scores:.0e}, streams {facts.residuals:.0e}, logits "
        f"{facts.logits:.0e}, MLPs {facts.mlps:.0e}, plain pass {facts.plain_pass:.0e} "
        f"({time.monotonic() - began:.1f} s)"
    )
    runs, began = [half.run(prompt.text) for prompt in prompts], time.monotonic()
    found = [traced(run, target) for run, target in zip(runs, answers, strict=True)]
    ratio = (time.monotonic() - began) / seconds
    for prompt, circuit in zip(prompts, found, strict=True):
        if isinstance(circuit, str):
            print(f"  not traced: {prompt.text!r}: {circuit}")
    kept = [i for i, circuit in enumerate(found) if isinstance(circuit, Circuit)]
    print(f"  traced {len(kept)} of {len(found)}, in {ratio:.1f} times the time of float32")
    sizes = [sized for i in kept if (sized := check_run(runs[i]).rounding) is not None]
    rounding(sizes)
    same = sum(likeliest(runs[i]) == answers[i] for i in kept)
    print(f"  the likeliest answer is float32's in {same} of {len(kept)}")
    for task in (*TASKS, None):
        pairs = [
            ((prompts[i], full[i]), (prompts[i], circuit))
            for i in kept
            if isinstance(circuit := found[i], Circuit) and task in (None, prompts[i].task)
        ]
        shares = in_common(pairs)["influence"]
        print(f"  influence in common, {task or 'all'}: mean {fmean(shares):.3f}, least {min(shares):.3f}")
    removals(chosen.verified, prompts, found)


def rounding(sizes: list[Rounding]) -> None:
    print(
        f"  rounded away, of the last stream's norm: at a token {median(s.typical for s in sizes):.2%} (median), "
        f"{max(s.largest for s in sizes):.2%} (most); of what rounding explains "
        f"{max(s.share for s in sizes):.0%} is used"
    )


def removals(some: int, prompts: list[Example], found: list[Circuit | str]) -> None:
    """Everything that can be removed from the first circuits of each task, in the model's own pass."""
    began, agreeing, exact, total, farthest = time.monotonic(), 0, 0, 0, 0.0
    for task in TASKS:
        circuits = [c for c, p in zip(found, prompts, strict=True) if p.task == task and isinstance(c, Circuit)]
        for circuit in circuits[:some]:
            rows = [row for row in circuit.verify(draws=0).rows if row.agrees is not None]
            off = [abs(row.after - row.predicted) for row in rows]
            total, agreeing = total + len(rows), agreeing + sum(row.agrees is True for row in rows)
            exact, farthest = exact + sum(x <= 1e-4 for x in off), max(farthest, *off)
    print(
        f"  {agreeing} of {total} removals are as predicted, within what rounding allows; {exact} within 1e-4; the "
        f"largest difference is {farthest:.1e} ({time.monotonic() - began:.0f} s)"
    )


if __name__ == "__main__":
    main()
