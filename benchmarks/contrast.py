"""What does a whole contrast study of every head cost, in plain forward passes over the same prompts?

    python benchmarks/contrast.py [.cache/smollm2.gguf] [--prompts 1000] [--boxes 9]

Plain: the model's own forward pass with its own attention, batched as Keyhole batches. Keyhole: one pass that reads q
and k at the sites, then every head's contrast, 200 permuted ones for its rank, split halves, 1,000 permutations for
the ranking, and swaps of the feature, ten random subspaces and the whole keys in every head. The authors' protocol runs
the model again for every head and condition; its cost is told in forward passes, not measured.
"""

import argparse
import time

import torch

import keyhole
from keyhole.features.contrast.boxes import boxes_test
from keyhole.features.contrast.collect import collect
from keyhole.features.contrast.finding import find_features
from keyhole.features.contrast.moves import pair_keys
from keyhole.features.contrast.ranking import rank_heads
from keyhole.features.contrast.swaps import key_bases, swap_effects
from keyhole.models.capture import plain_logits
from keyhole.models.tokens import encode

CONDITIONS = 6  # the authors': nothing, two features, both, two random controls


def plain(model: keyhole.Model, prompts: list[str], max_tokens: int = 4096) -> float:
    encoded = [encode(model, prompt, None).ids for prompt in prompts]
    start = time.perf_counter()
    with torch.no_grad():
        for batch in model._batches([len(ids) for ids in encoded], max_tokens):
            longest = max(len(encoded[i]) for i in batch)
            rows = [[*encoded[i], *[0] * (longest - len(encoded[i]))] for i in batch]
            plain_logits(model.hf, model.family, torch.tensor(rows, device=model.hf.device))
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?")
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument("--boxes", type=int, default=9)
    arguments = parser.parse_args()
    model = keyhole.load(arguments.model)
    contrast = boxes_test(model, arguments.prompts, n_boxes=arguments.boxes)
    prompts = [str(prompt) for prompt in contrast.prompts]
    plain(model, prompts[:64])
    before = plain(model, prompts[: arguments.prompts // 2])

    start = time.perf_counter()
    collected = collect(model, contrast)
    times = {"one pass": time.perf_counter() - start}
    start = time.perf_counter()
    features = find_features(collected, half=0)
    times["contrasts and nulls"] = time.perf_counter() - start
    start = time.perf_counter()
    ranking = rank_heads(features, collected, half=1)
    times["ranking"] = time.perf_counter() - start
    start = time.perf_counter()
    bases = {score.head: key_bases([features.of(score.head)]) for score in ranking}
    swaps = swap_effects(collected, bases, pairing=pair_keys(collected, half=1))
    times["swaps"] = time.perf_counter() - start

    whole = before + plain(model, prompts[arguments.prompts // 2 :])  # on both sides of it: machines drift
    total = sum(times.values())
    heads = len(ranking)
    print(f"{model.name}, {len(prompts)} prompts, {heads} heads, {model.hf.device}, {torch.get_num_threads()} threads")
    print(f"plain forward passes  {whole:8.1f} s")
    for name, seconds in times.items():
        print(f"{name:20}  {seconds:8.1f} s  {seconds / whole:5.2f}")
    print(f"everything            {total:8.1f} s  {total / whole:5.2f} plain forward passes")
    print(f"authors' protocol: {2 * heads * CONDITIONS} passes for as many heads and {CONDITIONS} conditions")
    assert len(swaps) == heads


if __name__ == "__main__":
    main()
