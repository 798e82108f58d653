"""Why does a head attend here, and is that true? One firing, its signals, and the largest of them taken away.

python examples/why_here.py [MODEL]
"""

import sys

import torch

import keyhole
from keyhole.intervene import Cut, Metric, intervene, random_cut

run = keyhole.load(*sys.argv[1:2]).run("When Mary and John went to the store, John gave a drink to")
best = max(run.firings(dest=-1), key=lambda one: one.attention * (one.src > 0))  # the first token is a sink
firing = run.explain(head=(best.layer, best.head), dest=best.dest, src=best.src)
print(firing)

signal = max(firing.side("src").signals, key=lambda one: one.alone)
cut = Cut(firing.layer, firing.head, firing.dest, firing.src, (signal,))
random = [random_cut(run, cut, torch.Generator().manual_seed(seed)) for seed in range(5)]
removed, *controls = intervene(run, [cut, *random], Metric(end=len(run) - 1))
print(f"without it {removed.before:.3f} -> {removed.after:.3f}, predicted {removed.predicted:.3f}")
print(f"random channels of the same writer: {min(one.after for one in controls):.3f} at the lowest")
