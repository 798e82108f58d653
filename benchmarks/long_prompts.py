"""How do time and memory of a trace grow with the prompt? SmolLM2, tau = 0.2, 125 to 2,000 tokens.

The prompt is an indirect-object question behind more and more other sentences, seeded by what the attention of the last
ten layers writes at its end, so that every length has firings to explain.

    python benchmarks/long_prompts.py .cache/smollm2.gguf [--plot docs/long_prompts.png] [--through mlps]
    python benchmarks/long_prompts.py .cache/smollm2.gguf --lengths 125,500

Each length runs in a process of its own, so that its peak memory is its own. Bars: 1,000 tokens under 4 GB resident;
from 125 tokens on, time per firing grows no faster than T^2, memory beyond weights and result no faster than T.
"""

import argparse
import json
import subprocess
import sys

LENGTHS = (125, 250, 500, 1000, 2000)

CHILD = """
import json, resource, sys, threading, time
import psutil
import keyhole
from keyhole.qk.omega import omega
from keyhole.tasks import filler
from keyhole.tracing.linear import Probe
from keyhole.tracing.trace import trace
from keyhole.tracing.writers import attention_writes

path, n, through = sys.argv[1], int(sys.argv[2]), sys.argv[3]
model = keyhole.load(path)
for layer in model.attention_layers:
    omega(model, layer)
model.head_out(); model.fingerprint()
question = model.tokenizer(" When Mary and John went to the store, John gave a drink to").input_ids
before = model.tokenizer(" ".join(filler(200 + n // 5, seed=1))).input_ids
run = model.run(before[: n - len(question)] + question)
direction = sum(attention_writes(run, layer)[-1] for layer in model.attention_layers[-10:])
process, peak, stop = psutil.Process(), [0], threading.Event()
held = process.memory_info().rss
def watch():
    while not stop.wait(0.01):
        peak[0] = max(peak[0], process.memory_info().rss)
watcher = threading.Thread(target=watch); watcher.start()
start = time.perf_counter()
circuit = trace(run, metric=Probe(direction, len(run.layers)), tau=0.2, through=through)
seconds = time.perf_counter() - start
stop.set(); watcher.join()
print(json.dumps({"n": n, "seconds": seconds, "firings": len(circuit.firings), "mlps": len(circuit.mlps),
                  "nodes": len(circuit.nodes), "edges": len(circuit.edges), "resident": peak[0],
                  "beyond": peak[0] - held}))
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--plot")
    parser.add_argument("--through", default="heads")
    parser.add_argument("--lengths", type=lambda text: [int(n) for n in text.split(",")], default=LENGTHS)
    arguments = parser.parse_args()
    results = []
    print("| tokens | firings | MLPs | seconds | ms per firing or MLP | peak resident GB | beyond weights and run GB |")
    print("|---|---|---|---|---|---|---|")
    for n in arguments.lengths:
        command = [sys.executable, "-c", CHILD, arguments.model, str(n), arguments.through]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        r = json.loads(done.stdout.strip().splitlines()[-1])
        results.append(r)
        each = 1000 * r["seconds"] / max(1, r["firings"] + r["mlps"])
        print(
            f"| {n} | {r['firings']} | {r['mlps']} | {r['seconds']:.2f} | {each:.1f} | {r['resident'] / 1e9:.2f} | "
            f"{r['beyond'] / 1e9:.2f} |",
            flush=True,
        )
    if arguments.plot:
        plot(results, arguments.plot)
    raise SystemExit(0 if {125, 1000} - set(arguments.lengths) or judge(results) else 1)


def judge(results: list[dict]) -> bool:
    first, last = (next(r for r in results if r["n"] == n) for n in (125, 1000))
    growth = last["n"] / first["n"]
    time = (last["seconds"] / max(1, last["firings"])) / (first["seconds"] / max(1, first["firings"]))
    memory = last["beyond"] / max(first["beyond"], 1)
    print(f"from 125 to 1000 tokens (x{growth:.0f}): time per firing x{time:.1f}, memory x{memory:.1f}")
    return last["resident"] < 4e9 and time <= growth**2 and memory <= growth


def plot(results: list[dict], path: str) -> None:
    import matplotlib.pyplot as plt

    n = [r["n"] for r in results]
    figure, (a, b) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    each = [1000 * r["seconds"] / max(1, r["firings"]) for r in results]
    memory = [r["beyond"] / 1e9 for r in results]
    for axis, values, power, label in ((a, each, 2, "ms per firing"), (b, memory, 1, "GB beyond weights and run")):
        axis.loglog(n, values, "o-", color="#3465a4")
        reference = [values[-1] * (x / n[-1]) ** power for x in n]
        axis.loglog(n, reference, "--", color="#9a9a96", label=f"T^{power}" if power > 1 else "T")
        axis.set_xticks(n, [f"{x:,}" for x in n])
        axis.minorticks_off()
        axis.set_xlabel("tokens T")
        axis.set_ylabel(label)
        axis.legend(frameon=False)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
