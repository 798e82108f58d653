"""What do larger models, longer prompts and more circuits need? The cost model of `keyhole bulk --estimate`, on paper.

    python benchmarks/scale.py

First the model against what was measured on one H200 (benchmarks/accelerator.py), then what it says of other sizes.
docs/scale.md shows both tables as they are printed here.
"""

from keyhole.store.cost import Load, Memory, Rates, Shape, memory, seconds

GPT2 = Shape(12, 12, 12, 64, 768, 3072, 50257, matrices=2)
LLAMA_8B = Shape(32, 32, 8, 128, 4096, 14336, 128256)
LLAMA_70B = Shape(80, 64, 8, 128, 8192, 28672, 128256)
H200 = Rates(operations=2.5e13, step=4e-4)  # fitted to the three measurements below, one prompt at a time
MEASURED = (  # tokens, firings, seconds of the trace and its forward pass, GB
    (17, 7081, 3.58 + 0.06, 31.8),
    (128, 11579, 6.62 + 0.08, 38.6),
    (1000, 232, 1.15 + 0.27, 64.7),
)
LOADS = {  # firings and explained MLPs of a circuit: assumed, from SmolLM2's 15 and 35 (30 layers, 9 heads)
    "8B": (LLAMA_8B, 60, 150),
    "70B": (LLAMA_70B, 150, 400),
}
BYTES_PER_EDGE, EDGES_PER_STEP = 66, 11  # of SmolLM2's stores


def gigabytes(needed: Memory, batch: int) -> float:
    return needed.at(batch) / 1e9


def confirm() -> None:
    print("| tokens | firings | seconds | by the model | GB | by the model |")
    print("|---|---|---|---|---|---|")
    for tokens, firings, took, held in MEASURED:
        load = Load(tokens, firings)
        said, needed = seconds(LLAMA_8B, load, H200), memory(LLAMA_8B, load, bytes_per_weight=2, accelerator=True)
        print(f"| {tokens:,} | {firings:,} | {took:.1f} | {said:.1f} | {held:.0f} | {gigabytes(needed, 1):.0f} |")


def foresee() -> None:
    print("| model | tokens | GB | GB more per prompt | seconds a circuit | GPU hours for a million | TB on disk |")
    print("|---|---|---|---|---|---|---|")
    for name, (shape, firings, mlps) in LOADS.items():
        for tokens in (17, 128, 1000):
            load = Load(tokens, firings, mlps)
            each, needed = seconds(shape, load, H200), memory(shape, load, bytes_per_weight=2, accelerator=True)
            disk = (firings + mlps) * EDGES_PER_STEP * BYTES_PER_EDGE * 1e6 / 1e12
            more = (needed.at(2) - needed.at(1)) / 1e9
            hours = each * 1e6 / 3600
            print(
                f"| {name} | {tokens:,} | {gigabytes(needed, 1):.0f} | {more:.2f} | {each:.2f} | {hours:,.0f} "
                f"| {disk:.2f} |"
            )


if __name__ == "__main__":
    confirm()
    print()
    foresee()
