"""Does the answer change when the signals into the heads that carry it are taken away, more than for random channels?

    python benchmarks/edits.py .cache/smollm2.gguf [--n 100]

Indirect objects, prompts that the model answers. In each circuit (heads alone, against the other name) those heads are
taken that push the answer most from the last token. All signals into their firings are removed, at the firing's own
tokens. Compared with as many random channels of the same heads, with the same signals in random heads of the same
layers, and with the whole heads removed. The answer changes where another token is likeliest.
"""

import argparse

import numpy as np
import torch

import keyhole
from keyhole.edits import Edit, Source, WriteEdit, random_channels, random_heads
from keyhole.edits.records import At
from keyhole.stats import wilson
from keyhole.tasks import examples

MOVERS = 3
DRAWS = 3


def edits_of(circuit: keyhole.Circuit) -> tuple[list[Edit], list[Edit]]:
    """The signals into the heads that push most, and these heads as a whole."""
    end, answer = circuit.parameters.end, len(circuit.nodes) - 1
    seeds = [e for e in circuit.edges if e.side == "target" and circuit.nodes[e.sender].kind == "head"]
    seeds = [e for e in seeds if circuit.nodes[e.sender].dest == end and e.receiver == answer]
    seeds.sort(key=lambda edge: -edge.weight)
    movers = [edge.sender for edge in seeds[:MOVERS]]
    signals: dict[str, Edit] = {}
    for edge in circuit.edges:
        if edge.receiver in movers and edge.side in ("dest", "src"):
            edit = edge.edit()
            signals[str(edit)] = edit
    heads = {(circuit.nodes[m].layer, circuit.nodes[m].head) for m in movers}
    return list(signals.values()), [WriteEdit(writer=Source("head", *head), dest=At((end,))) for head in sorted(heads)]


def main() -> None:
    """Print a table: how often does the answer change, and by how much the lead?"""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?")
    parser.add_argument("--n", type=int, default=100)
    args = parser.parse_args()
    model = keyhole.load(args.model) if args.model else keyhole.load()
    names = ("traced signals", "random channels of the same heads", "the same in random heads", "the whole heads")
    changed: dict[str, list[float]] = {name: [] for name in names}
    leads: dict[str, list[float]] = {name: [] for name in names}
    used = 0
    for example in examples("ioi", model, n=4 * args.n):
        if used == args.n:
            break
        run = model.run(example.text)
        circuit = run.trace(example.answer, against=example.against[0], through="heads")
        (answer,), (other,) = circuit.parameters.target_ids, circuit.parameters.against_ids
        if int(run.logits[-1].argmax()) != answer:
            continue
        signals, heads = edits_of(circuit)
        if not signals:
            continue
        used += 1
        lead = float(run.logits[-1][answer] - run.logits[-1][other])
        sets = {"traced signals": [signals], "the whole heads": [heads]}
        sets["random channels of the same heads"] = [list(random_channels(model, signals, d)) for d in range(DRAWS)]
        sets["the same in random heads"] = [list(random_heads(model, signals, d)) for d in range(DRAWS)]
        for name, drawn in sets.items():
            logits = [run.with_edits(edits).logits[-1] for edits in drawn]
            changed[name].append(float(np.mean([int(row.argmax()) != answer for row in logits])))
            leads[name].append(float(np.mean([lead - float(row[answer] - row[other]) for row in logits])))
    print(f"{model.name}: {used} prompts that the model answers; signals into {MOVERS} heads a prompt")
    print(f"{'removed':36} {'answer changed':>22} {'lead lost (logits)':>26}")
    generator = np.random.default_rng(0)
    for name in names:
        share, lost = np.array(changed[name]), np.array(leads[name])
        _, low, high = wilson(round(share.sum()), used)
        means = [generator.choice(lost, used).mean() for _ in range(2000)]
        interval = np.quantile(means, [0.025, 0.975])
        print(
            f"{name:36} {share.mean():8.2f} [{low:.2f}, {high:.2f}] {lost.mean():10.2f} "
            f"[{interval[0]:.2f}, {interval[1]:.2f}]"
        )


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
