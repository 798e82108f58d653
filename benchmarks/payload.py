"""Are known features recovered? The payload toy: ranks, swaps, interaction, and bits found without labels.

    python benchmarks/payload.py [--d-head 8] [--paper]

Every cell of the grid with r1, r2 in 2..6 and r1 + r2 <= d_head is trained at once, both variants, and analysed with
the code that real models are analysed with. `--paper` adds the paper's own settings for (3, 5) in 16 dimensions.
"""

import argparse

import torch

from keyhole.errors import KeyholeError
from keyhole.features.discovery.discovery import discover
from keyhole.features.discovery.ica import correlations
from keyhole.features.discovery.keys import samples_of
from keyhole.lab.payload import Payload, PayloadSettings, activations, sample, train
from keyhole.lab.payload_features import diagonal_share, interaction, latent_feature, swaps


def bits(cell: Payload, n: int = 20_000) -> str:
    """The worst |corr| of a latent coordinate with the discovered query source that follows it best."""
    batch = sample(cell, n, seed=5)
    seen = activations(cell, batch)
    rank = min(cell.settings.r1 + cell.settings.r2, cell.settings.d_head)
    try:
        found = discover(samples_of(seen.q, seen.k, seen.attention))
    except KeyholeError as error:
        return str(error)
    row = torch.arange(n)
    truth = torch.cat([batch.z1[row, batch.star], batch.z2[row, batch.star]], dim=1)
    query = correlations(truth, found.query_sources(seen.q.double())).abs().amax(1).min()
    key = correlations(truth, found.key_sources(seen.k[row, batch.star].double())).abs().amax(1).min()
    return f"{found.rank} of {rank}, {float(query):.3f}, {float(key):.3f}"


def line(cell: Payload) -> str:
    s = cell.settings
    z1, z2 = latent_feature(cell, "z1"), latent_feature(cell, "z2")
    moved = swaps(cell, z1, z2, samples=10_240)
    return (
        f"| {s.latents} | {s.r1}, {s.r2} | {z1.rank}, {z2.rank} | {cell.accuracy:.3f} | {cell.ceiling:.3f} | "
        f"{moved.both.shift:.3f} | {moved.full.shift:.3f} | {moved.both.random:.3f} | "
        f"{diagonal_share(interaction(cell)):.3f} | {bits(cell)} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--d-head", type=int, default=8)
    parser.add_argument("--paper", action="store_true")
    arguments = parser.parse_args()
    d = arguments.d_head
    pairs = [(a, b) for a in range(2, 7) for b in range(2, 7) if a + b <= d]
    cells = [PayloadSettings.fast(a, b, d, latents=kind) for kind in ("discrete", "gaussian") for a, b in pairs]
    trained = train(cells)
    if arguments.paper:
        trained += train([PayloadSettings.paper(3, 5, 16)])
    print("| variant | r1, r2 | found | accuracy | ceiling | both | full | random | G diagonal | rank, bits q, k |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for cell in trained:
        print(line(cell), flush=True)
    exact = sum(
        (latent_feature(c, "z1").rank, latent_feature(c, "z2").rank) == (c.settings.r1, c.settings.r2) for c in trained
    )
    print(f"{exact} of {len(trained)} cells have exact ranks")


if __name__ == "__main__":
    main()
