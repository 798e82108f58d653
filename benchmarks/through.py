"""What do circuits gain by going through MLPs, does it hold, and how many forward passes of the model does it cost?

    python benchmarks/through.py [.cache/smollm2.gguf] [--prompts 24] [--constants causes]

Indirect-object prompts, the answer against the other name: where influence ends, which heads carry it, what becomes of
an MLP's readers without its causes (beside other writers of the nearest norms), and how much longer than a circuit of
heads alone it takes. Weights are folded and heads decomposed before the clock runs.
"""

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable

import torch

import keyhole
from keyhole.qk.omega import omega
from keyhole.tasks import ioi
from keyhole.tasks.example import Example
from keyhole.tracing.mlp_directions import Through


def seconds(work: Callable[[], object], repeats: int = 3) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def ends(circuit: keyhole.Circuit) -> Counter[str]:
    found: Counter[str] = Counter()
    for node, share, leaf in zip(circuit.nodes, circuit.influence, circuit.leaves, strict=True):
        if leaf is not None:
            found[f"{node.kind}: {leaf}"] += share
    return found


def carried(circuit: keyhole.Circuit, dest: int, src: int) -> float:
    nodes = zip(circuit.nodes, circuit.influence, strict=True)
    return sum(share for node, share in nodes if node.kind == "head" and (node.dest, node.src) == (dest, src))


def chained(found: list[keyhole.intervene.Row]) -> str:
    """Median drop and median size of the controls' drops, over all circuits."""
    if not found:
        return "none"
    drop = statistics.median(row.drop for row in found)
    control = statistics.median(abs(d) for row in found for d in row.control_drops)
    agree = sum(row.agrees is not False for row in found)
    return f"{len(found)}, {agree} as predicted: drop {drop:.3f}, controls {control:.4f}, ratio {drop / control:.1f}"


def extra_passes(run: keyhole.Run, example: Example, settings: Through) -> float:
    """How much longer than a circuit of heads alone, in forward passes."""
    model, asked = run.model, {"target": example.answer, "against": example.wrong}
    ids = torch.tensor([list(run.token_ids)])
    with torch.no_grad():
        forward = seconds(lambda: model.hf(input_ids=ids, use_cache=False), 7)
    longer = seconds(lambda: run.trace(**asked, through=settings))
    return (longer - seconds(lambda: run.trace(**asked, through="heads"))) / forward


def measure(model: keyhole.Model, examples: list[Example], settings: Through) -> None:
    for layer in model.attention_layers:
        omega(model, layer)
    for layer in range(len(model.blocks)):
        model.mlp(layer)
    model.head_out()
    model.fingerprint()
    total: Counter[str] = Counter()
    looks, twice, ratios, before, cancels = [], [], [], [], []
    rows: list[keyhole.intervene.Row] = []
    done = 0
    for example in examples:
        run = model.run(example.text)
        try:
            circuit = run.trace(example.answer, against=example.wrong, through=settings)
        except keyhole.KeyholeError:
            continue  # the model prefers the other name
        done += 1
        total += ends(circuit)
        at = {role: example.position(run, role) for role in ("IO", "S1", "S2", "END")}
        looks.append(carried(circuit, at["END"], at["IO"]))
        twice.append(carried(circuit, at["S2"], at["S1"]))
        heads = run.trace(example.answer, against=example.wrong, through="heads")
        seeds = [edge for edge in heads.edges if edge.side == "target"]
        mlps = [edge.weight for edge in seeds if heads.nodes[edge.sender].kind == "mlp"]
        before.append(sum(mlps) / sum(edge.weight for edge in seeds))
        cancels += [one.cancellation for one in circuit.mlps]
        rows += circuit.verify(mode="chain").rows
        if done <= 5:
            ratios.append(extra_passes(run, example, settings))
    print(f"{model.name}: {done} of {len(examples)} prompts; eps {settings.eps}, cover {settings.cover}")
    for name, share in total.most_common(8):
        print(f"  {share / done:6.1%}  {name}")
    ended = sum(share for name, share in total.items() if name.startswith("mlp:")) / done
    print(f"  MLPs end {ended:.1%} of influence; seeds that are MLPs carry {statistics.mean(before):.0%}")
    print(
        f"  heads END <- IO carry {statistics.mean(looks):.2f}; S2 <- S1 {statistics.mean(twice):.3f}, in "
        f"{sum(share > 0 for share in twice)} of {done} prompts"
    )
    print(f"  parts of an MLP's write are {statistics.median(cancels):.1f} times their sum")
    for name, sides in (("firings", ("dest", "src")), ("MLPs", ("mlp",)), ("the answer", ("target",))):
        own = [row for row in rows if row.what == "chain" and row.side in sides]
        print(f"  causes of MLPs gone, seen in {name} that read them: {chained(own)}")
    told = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"  {statistics.median(ratios):.2f} forward passes more than a circuit of heads alone ({told})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--constants", choices=("baseline", "causes"), default="baseline")
    asked = parser.parse_args()
    settings = Through(constants=asked.constants)
    measure(keyhole.load(), ioi(asked.prompts, 3, held_out=True), settings)
    if asked.model:
        measure(keyhole.load(asked.model), ioi(9, 3, held_out=True), settings)
