"""Are all heads decomposed at least 30 times faster than with one dense SVD per head? One run, same threads.

python benchmarks/omega.py
"""

import time

import torch

from keyhole.qk.omega import decompose

LAYERS, HEADS, D_MODEL, D_HEAD = 12, 12, 768, 64  # GPT-2 small
DENSE_HEADS = 6  # a dense SVD takes most of a second: time a few and multiply


def main() -> None:
    torch.manual_seed(0)
    W_Q = torch.randn(LAYERS, HEADS, D_MODEL, D_HEAD) / D_MODEL**0.5
    W_K = torch.randn(LAYERS, HEADS, D_MODEL, D_HEAD) / D_MODEL**0.5
    decompose(W_Q[0], W_K[0])  # warm up
    start = time.perf_counter()
    omegas = [decompose(W_Q[layer], W_K[layer]) for layer in range(LAYERS)]
    ours = time.perf_counter() - start
    start = time.perf_counter()
    dense = [torch.linalg.svd(W_Q[0, h] @ W_K[0, h].T) for h in range(DENSE_HEADS)]
    theirs = (time.perf_counter() - start) / DENSE_HEADS * LAYERS * HEADS
    worst = max(float((omegas[0].sigma[h] - dense[h].S[:D_HEAD]).abs().max()) for h in range(DENSE_HEADS))
    print(f"threads                        {torch.get_num_threads()}")
    print(f"all {LAYERS * HEADS} heads, factored         {ours:8.3f} s")
    print(f"all {LAYERS * HEADS} heads, dense            {theirs:8.3f} s  ({DENSE_HEADS} timed)")
    print(f"ratio                          {theirs / ours:8.1f}    (bar: 30)")
    print(f"largest difference of sigma    {worst:.1e}")
    raise SystemExit(0 if theirs / ours >= 30 else 1)


if __name__ == "__main__":
    main()
