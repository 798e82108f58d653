"""How fast is tracing where kernels are launched, not computed? Random models of real shapes on an accelerator.

    python benchmarks/accelerator.py [--device cuda] [--big]

GPT-2-small's shape at 17 tokens, with weights of queries and keys scaled until a circuit has some 290 firings: circuits
a second, one at a time and together. With --big, Llama-3.1-8B's shape in bfloat16: time per firing at 17 tokens, and
traces at 128 and 1,000 tokens from few seeds. Random weights: how long it takes does not depend on what they mean.
"""

import argparse
import time
from collections.abc import Callable

import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

import keyhole
from keyhole.models.model import make_model

SPREAD = {"initializer_range": 0.1, "tie_word_embeddings": False}  # heads write as much as embeddings: deep circuits


def seconds(work: Callable[[], object], device: str) -> tuple[float, object]:
    wait(device)
    start = time.perf_counter()
    result = work()
    wait(device)
    return time.perf_counter() - start, result


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def memory(device: str) -> str:
    return f"{torch.cuda.max_memory_allocated() / 1e9:.1f} GB" if device == "cuda" else "not measured"


def random_model(config: object, dtype: torch.dtype, device: str) -> keyhole.Model:
    torch.manual_seed(0)
    with torch.device(device):
        hf = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    with torch.no_grad():
        for name, weight in hf.named_parameters():
            if name.endswith(("mlp.c_proj.weight", "mlp.down_proj.weight")):  # or every answer would end at its MLPs
                weight *= 0.3 if "c_proj" in name else 0.02
    return make_model(hf, None, "random")


def sharpened(model: keyhole.Model, wanted: int, trace: Callable[[], int], weights: list[torch.Tensor]) -> int:
    """Scale the weights of queries and keys until a circuit has about so many firings."""
    low, high, factor, found = 0.25, 8.0, 1.0, 0
    with torch.no_grad():
        originals = [weight.clone() for weight in weights]
        for _ in range(7):
            for weight, original in zip(weights, originals, strict=True):
                weight.copy_(original * factor)
            found = trace()
            print(f"  weights x {factor:.2f}: {found} firings", flush=True)
            if abs(found - wanted) < 0.12 * wanted:
                break
            low, high = (factor, high) if found < wanted else (low, factor)
            factor = (low * high) ** 0.5
    return found


def small(device: str, n: int, batch: int) -> None:
    model = random_model(GPT2Config(**SPREAD), torch.float32, device)
    prompts = torch.randint(model.dims.vocab, (n, 17), generator=torch.Generator().manual_seed(1)).tolist()

    def firings(count: int = 4) -> int:
        runs = model.run_many(prompts[:count])
        found = keyhole.trace_many(runs, [None] * count, through="heads", errors="raise")
        return round(sum(len(circuit.firings) for circuit in found) / count)

    attention = [block.attn.c_attn.weight[:, : 2 * model.dims.d_model] for block in model.hf.transformer.h]
    per_circuit = sharpened(model, 290, firings, attention)

    def together() -> int:
        found = 0
        for start in range(0, n, batch):
            runs = model.run_many(prompts[start : start + batch])
            found += len(keyhole.trace_many(runs, [None] * len(runs), through="heads", errors="raise"))
        return found

    def looked_at() -> int:
        runs = model.run_many(prompts[:batch])
        return len(list(keyhole.trace_many(runs, [None] * len(runs), through="heads", errors="raise")))

    def alone(count: int = 8) -> int:
        return len([model.run(prompt).trace(through="heads") for prompt in prompts[:count]])

    alone(2)
    one, made = seconds(alone, device)
    many, count = seconds(together, device)
    objects, read = seconds(looked_at, device)
    rate, single = count / many, made / one
    print(
        f"GPT-2-small's shape, 17 tokens, {per_circuit} firings a circuit: {single:.1f} circuits a second alone, "
        f"{rate:.1f} together ({batch} at a time, {rate / single:.1f} times; {read / objects:.1f} with every circuit "
        f"looked at), memory {memory(device)}",
        flush=True,
    )


def big(device: str) -> None:
    config = LlamaConfig(
        hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
        vocab_size=128256, max_position_embeddings=8192, rope_theta=500000.0, **SPREAD,
    )  # fmt: skip
    model = random_model(config, torch.bfloat16, device)
    ids = torch.randint(model.dims.vocab, (1000,), generator=torch.Generator().manual_seed(1)).tolist()
    blocks = model.hf.model.layers
    attention = [weight for b in blocks for weight in (b.self_attn.q_proj.weight, b.self_attn.k_proj.weight)]

    with torch.no_grad():
        for weight in attention:
            weight *= 0.3  # some 7,000 firings at 17 tokens
    model.run(ids[:4]).trace(through="heads", tau=0.3)
    for n, tau in ((17, 0.15), (128, 0.5), (1000, 0.2)):
        torch.cuda.reset_peak_memory_stats()
        passing, run = seconds(lambda n=n: model.run(ids[:n]), device)
        took, circuit = seconds(lambda run=run, tau=tau: run.trace(through="heads", tau=tau), device)
        each = 1e3 * took / max(1, len(circuit.firings))
        print(
            f"Llama-3.1-8B's shape in bfloat16, {n} tokens, tau {tau}: forward pass {passing:.3f} s, trace "
            f"{took:.2f} s, {len(circuit.firings)} firings, {each:.2f} ms each, memory {memory(device)}",
            flush=True,
        )


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--device", default="cuda")
    options.add_argument("--n", type=int, default=256)
    options.add_argument("--batch", type=int, default=64)
    options.add_argument("--big", action="store_true")
    asked = options.parse_args()
    small(asked.device, asked.n, asked.batch)
    if asked.big:
        big(asked.device)
