"""Draws the README's picture: where one head of the organism attends, and which channels make it.

python tools/picture.py docs/channels.png
"""

import sys

import matplotlib.pyplot as plt

import keyhole
from keyhole.qk.channels import score_row
from keyhole.qk.controls import refactored, rotations
from keyhole.qk.omega import omega

PROMPT = "When Mary and John went to the store, John gave a drink to"
HEAD, DEST = (2, 7), -1
BLUE, RED, GREY = "#3465a4", "#cc4b37", "#9a9a96"


def main(path: str) -> None:
    """Three panels: attention, its split over singular channels, the same score split in a random basis."""
    run = keyhole.load().run(PROMPT)
    layer, head = HEAD
    dest = run.position(DEST)
    weights = run.pattern(layer)[head, dest].tolist()
    src = max(range(len(run)), key=lambda t: weights[t])
    split = run.channels(HEAD, dest, src)
    sigma = omega(run.model, layer).sigma[head]
    row = score_row(run, layer, head, dest)
    key = row.relative_key(src - row.first)
    rotated = refactored(row.a[None], key[None], sigma, rotations(len(sigma), 1, seed=1))[0, 0]

    plt.rcParams.update({"font.family": "DejaVu Sans", "font.size": 10, "axes.spines.top": False})
    plt.rcParams.update({"axes.spines.right": False, "axes.titlesize": 10.5, "axes.titlelocation": "left"})
    figure, (a, b, c) = plt.subplots(1, 3, figsize=(12.5, 3.4), width_ratios=(1.25, 1, 1), layout="constrained")
    colours = [BLUE if t == src else GREY for t in range(len(run))]
    a.bar(range(len(run)), weights, color=colours)
    a.set_xticks(range(len(run)), run.tokens, rotation=60, ha="right")
    a.set_title(f"Where head {layer}.{head} attends from the last “{run.tokens[dest]}”")
    a.set_ylabel("attention weight")
    titles = (
        f"Why “{run.tokens[src]}”: the score in singular channels",
        "The same score in a random basis",
    )
    for axis, values, title in zip((b, c), (split.relative_terms, rotated), titles, strict=True):
        axis.bar(range(len(values)), values.tolist(), color=[BLUE if v > 0 else RED for v in values.tolist()])
        axis.axhline(0, color="#444", linewidth=0.8)
        axis.set_title(title)
        axis.set_xlabel("channel" if axis is b else "direction")
        axis.set_ylim(min(0, float(split.relative_terms.min())) - 0.4, float(split.relative_terms.max()) * 1.08)
        axis.set_xticks(range(0, len(values), 3))
    b.set_ylabel("term of the relative attention")
    for axis, values in ((b, split.relative_terms), (c, rotated)):
        sparsity = keyhole.qk.channels.sparsity(values)
        axis.text(0.97, 0.93, f"S(v) = {sparsity:.2f}", transform=axis.transAxes, ha="right", color="#333")
    figure.savefig(path, dpi=160)


if __name__ == "__main__":
    main(sys.argv[1])
