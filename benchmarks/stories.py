"""How much of an answer do the lines of a story hold, beside paths that are told node by node?

    python benchmarks/stories.py [.cache/smollm2.gguf] [--prompts 24]

Held-out prompts of three tasks, the answer against a wrong one: mean influence of the five largest routes over tokens,
of all that comes from words, and of the five largest paths of nodes.
"""

import argparse
import heapq
import statistics
from collections.abc import Sequence
from itertools import islice

import keyhole
from keyhole.faithfulness.routes import Ways
from keyhole.tasks import greater_than, induction, ioi
from keyhole.tasks.example import Example

LINES = 5


def node_paths(ways: Ways, most: int) -> list[float]:
    """The shares of the largest paths of nodes from words."""
    waiting, found = [(-1.0, ways.kinds.index("answer"))], []
    while waiting and len(found) < most:
        share, node = heapq.heappop(waiting)
        if ways.begins(node):
            found.append(-share)
        for edge, part in ways.below[node]:
            heapq.heappush(waiting, (share * part, edge.sender))
    return found


def measure(model: keyhole.Model, examples: Sequence[Example]) -> None:
    rows = []
    for example in examples:
        try:
            circuit = model.run(example.text).trace(list(example.answers), against=example.wrong, through="mlps")
        except keyhole.KeyholeError:
            continue  # the model prefers the wrong answer, or a word is several tokens
        ways = Ways(circuit)
        lines = sum(route.share for route in islice(ways.routes(), LINES))
        words = sum(share for node, share in enumerate(circuit.influence) if ways.begins(node))
        rows.append((lines, words, sum(node_paths(ways, LINES))))
    means = [statistics.mean(column) for column in zip(*rows, strict=True)]
    told = ", ".join(f"{name} {mean:.0%}" for name, mean in zip(("lines", "words", "paths"), means, strict=True))
    print(f"{model.name}, {examples[0].task}, {len(rows)} of {len(examples)} prompts: {told}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--prompts", type=int, default=24)
    asked = parser.parse_args()
    organism = keyhole.load()
    for task in (ioi, greater_than, induction):
        measure(organism, task(asked.prompts, 3, held_out=True))
    if asked.model:
        measure(keyhole.load(asked.model), ioi(9, 3, held_out=True))
