"""Are features of several dimensions found whole, without labels, and independent ones kept apart?

    python benchmarks/dimensions.py [--d-head 8] [--latents sphere discrete] [--steps 1000] [--samples 6000] [--seeds 1]

Payload heads whose latents are points of spheres (two features, of ranks r1 and r2) or independent signs (r1 + r2
features of one dimension), with r1, r2 in 2..6 and r1 + r2 <= d_head. A head is right if its features have these ranks
and lie where the latents do: the smallest cosine of a principal angle, over latents and both sides, is told.
"""

import argparse
from typing import get_args

import torch

from keyhole.features.discovery.discovery import discover
from keyhole.features.discovery.features import Discovery
from keyhole.features.discovery.keys import samples_of
from keyhole.lab.payload import Payload, PayloadSettings, activations, sample, train
from keyhole.lab.payload_task import Latents


def known(cell: Payload) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """How each independent part of the latents goes into queries and keys."""
    whole = cell.settings.latents == "sphere"
    parts = []
    for A, B in ((cell.maps.A1, cell.maps.B1), (cell.maps.A2, cell.maps.B2)):
        size = A.shape[1] if whole else 1
        parts += [(cell.W_Q @ b, cell.W_K @ a) for a, b in zip(A.split(size, 1), B.split(size, 1), strict=True)]
    return parts


def smallest(found: Discovery, parts: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Of every part's cosines with the feature that is nearest to it."""
    return min(max(float(torch.cat(one.cosines(*part)).min()) for one in found.subspaces) for part in parts)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--d-head", type=int, default=8)
    parser.add_argument("--latents", nargs="*", choices=get_args(Latents), default=["sphere", "discrete"])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=6000)
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    d = arguments.d_head
    pairs = [(a, b) for a in range(2, 7) for b in range(2, 7) if a + b <= d]
    print("| latents | r1, r2 | seed | accuracy | dimensions | cosine |\n|---|---|---|---|---|---|")
    for kind in arguments.latents:
        options = {"latents": kind, "max_steps": arguments.steps}
        right, cells = 0, [(a, b, seed) for a, b in pairs for seed in range(arguments.seeds)]
        heads = train([PayloadSettings.fast(a, b, d, seed=seed, **options) for a, b, seed in cells])
        for cell, (a, b, seed) in zip(heads, cells, strict=True):
            seen = activations(cell, sample(cell, arguments.samples, seed=5))
            found = discover(samples_of(seen.q, seen.k, seen.attention), refits=1)
            parts, ranks = known(cell), sorted(one.rank for one in found.subspaces)
            right += ranks == sorted(q.shape[1] for q, _ in parts)
            told = f"{cell.accuracy:.3f} | {' '.join(map(str, ranks))} | {smallest(found, parts):.3f}"
            print(f"| {kind} | {a}, {b} | {seed} | {told} |", flush=True)
        print(f"{kind}: {right} of {len(heads)} heads have the ranks of their latents", flush=True)


if __name__ == "__main__":
    main()
