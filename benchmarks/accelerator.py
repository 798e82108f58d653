"""How fast is tracing where kernels are launched, not computed? Random models of real shapes on an accelerator.

    python benchmarks/accelerator.py [--device cuda] [--big]

GPT-2-small's shape with sharpened random attention, as in `trace.py`, at 17 tokens: circuits a second, one by one and
together. With --big, Llama-3.1-8B's shape in bfloat16: time per firing at 17 tokens, and traces at 128 and 1,000 tokens
from few seeds. Random weights: how long it takes does not depend on what they mean.
"""

import argparse
import time
from collections.abc import Callable
from trace import prepare, sharpened_gpt2  # of this folder

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

import keyhole

LLAMA = LlamaConfig(
    hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
    vocab_size=128256, max_position_embeddings=8192, rope_theta=500000.0,
    initializer_range=0.1, tie_word_embeddings=False,
)  # fmt: skip


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


def small(device: str, n: int, batch: int) -> None:
    model = sharpened_gpt2(device)
    prepare(model)
    prompts = torch.randint(model.dims.vocab, (n, 17), generator=torch.Generator().manual_seed(1)).tolist()

    def together(looked_at: bool = False, count: int = n) -> int:
        firings = 0
        for start in range(0, count, batch):
            runs = model.run_many(prompts[start : start + batch])
            found = keyhole.trace_many(runs, [None] * len(runs), through="heads", errors="raise")
            firings += sum(len(circuit.firings) for circuit in found) if looked_at else 0
        return firings

    def alone(count: int = 8) -> list[keyhole.Circuit]:
        return [model.run(prompt).trace(through="heads") for prompt in prompts[:count]]

    alone(2)
    one, made = seconds(alone, device)
    many, _ = seconds(together, device)
    objects, firings = seconds(lambda: together(looked_at=True, count=batch), device)
    rate, single = n / many, len(made) / one
    print(
        f"GPT-2-small's shape, 17 tokens, {firings / batch:.0f} firings a circuit: {single:.1f} circuits a second "
        f"alone, {rate:.1f} together ({batch} at a time, {rate / single:.1f} times; {batch / objects:.1f} with every "
        f"circuit looked at), memory {memory(device)}",
        flush=True,
    )


def big(device: str) -> None:
    torch.manual_seed(0)
    with torch.device(device):
        hf = AutoModelForCausalLM.from_config(LLAMA, dtype=torch.bfloat16).eval()
    with torch.no_grad():
        for layer in hf.model.layers:
            layer.mlp.down_proj.weight *= 0.02  # or every answer would end at its MLPs
            layer.self_attn.q_proj.weight *= 0.3  # some 7,000 firings at 17 tokens
            layer.self_attn.k_proj.weight *= 0.3
    model = keyhole.load((hf, None), device=device)
    prepare(model)
    ids = torch.randint(model.dims.vocab, (1000,), generator=torch.Generator().manual_seed(1)).tolist()
    model.run(ids[:4]).trace(through="heads", tau=0.3)
    for n, tau, share in ((17, 0.15, 0.8), (128, 0.5, 0.8), (1000, 0.05, 0.05)):
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        passing, run = seconds(lambda n=n: model.run(ids[:n]), device)
        metric = keyhole.Probability(share)
        took, circuit = seconds(
            lambda run=run, tau=tau, metric=metric: run.trace(through="heads", tau=tau, metric=metric), device
        )
        each = 1e3 * took / max(1, len(circuit.firings))
        print(
            f"Llama-3.1-8B's shape in bfloat16, {n} tokens, tau {tau}, seeds of {share:.0%} of the answer: forward "
            f"pass {passing:.3f} s, trace {took:.2f} s, {len(circuit.firings)} firings, {each:.2f} ms each, memory "
            f"{memory(device)}",
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
