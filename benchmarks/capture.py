"""Does a captured run cost at most 1.3 plain eager forward passes, and a long one stay under 2.5 GB?

    python benchmarks/capture.py [.cache/smollm2.gguf]

The first part uses a GPT-2-small-shaped random model and, if a model file is given, that model too; plain and
captured passes alternate, and medians are compared. The second part needs the model file (SmolLM2).
"""

import statistics
import sys
import time

import psutil
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import keyhole
from keyhole.tracing.exactness import random_ids

LENGTHS = (17, 128, 1024)


def ratio(model: keyhole.Model, n: int, repeats: int) -> float:
    """Median time of a captured run over the median of a plain eager pass, taken in turns."""
    ids = random_ids(model, n)
    model.hf.set_attn_implementation("eager")
    plain, captured = [], []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        with torch.no_grad():
            model.hf(input_ids=torch.tensor([ids]), use_cache=False)
        plain.append(time.perf_counter() - start)
        start = time.perf_counter()
        model.run(ids)
        captured.append(time.perf_counter() - start)
    both = statistics.median(captured[1:]) / statistics.median(plain[1:])
    print(f"{model.name:28.28} {n:5} tokens   plain {statistics.median(plain[1:]):7.3f} s   ratio {both:.2f}")
    return both


def main() -> None:
    print(f"threads {torch.get_num_threads()}")
    gpt2 = keyhole.load((GPT2LMHeadModel(GPT2Config()).eval(), None))
    ratios = [ratio(gpt2, n, 5 if n > 500 else 15) for n in LENGTHS]
    good = max(ratios) <= 1.3
    if len(sys.argv) > 1:
        del gpt2
        model = keyhole.load(sys.argv[1])
        ratios += [ratio(model, n, 3 if n > 500 else 15) for n in LENGTHS]
        run = model.run(random_ids(model, 1024))
        resident = psutil.Process().memory_info().rss / 1e9
        print(f"resident with a {len(run)}-token run held: {resident:.2f} GB (bar: 2.5)")
        good = max(ratios) <= 1.3 and resident < 2.5
    print(f"largest ratio {max(ratios):.2f} (bar: 1.3)")
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
