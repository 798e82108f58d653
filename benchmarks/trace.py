"""What does a trace cost, in forward passes of the same model on the same threads?

    python benchmarks/trace.py [.cache/smollm2.gguf] [--device cuda] [--tokens 17]

GPT-2-small shape with sharpened random attention, 17 tokens; then, if a model file is given, SmolLM2's own
indirect-object circuits. The captured pass and the SVDs are not counted; per-pair tables are never made. Beside the
measured cost of circuits of heads stand the operations that the projections alone need, and what going on through MLPs
adds.
"""

import argparse
import statistics
import time
from typing import Literal

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import keyhole
from keyhole.models.tokens import token_id
from keyhole.qk.omega import omega
from keyhole.tasks import ioi
from keyhole.tracing.exactness import random_ids
from keyhole.tracing.trace import trace

SHARPNESS = 2.6
TOKENS = 17
BAR = 10.0


def sharpened_gpt2(device: str, seed: int = 0) -> keyhole.Model:
    """A random GPT-2 small whose heads have clear favourites."""
    torch.manual_seed(seed)
    hf = GPT2LMHeadModel(GPT2Config()).eval()
    with torch.no_grad():
        for block in hf.transformer.h:
            block.attn.c_attn.weight[:, : hf.config.n_embd] *= SHARPNESS
            block.attn.c_attn.weight[:, hf.config.n_embd : 2 * hf.config.n_embd] *= SHARPNESS
            block.attn.c_attn.weight[:, 2 * hf.config.n_embd :] *= 3
            block.attn.c_proj.weight *= 6
    return keyhole.load((hf, None), device=device)


def now() -> float:
    """The time, once all work on an accelerator is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def prepare(model: keyhole.Model) -> None:
    """Fold weights and decompose all heads: done once per model."""
    for layer in model.attention_layers:
        omega(model, layer)
    model.head_out()
    model.fingerprint()


def forward_seconds(model: keyhole.Model, ids: list[int], repeats: int = 9) -> float:
    times = []
    for _ in range(repeats):
        start = now()
        with torch.no_grad():
            model.hf(input_ids=torch.tensor([ids], device=model.hf.device), use_cache=False)
        times.append(now() - start)
    return statistics.median(times)


def trace_seconds(
    run: keyhole.Run, target: int, through: Literal["heads", "mlps"] = "heads", repeats: int = 5
) -> tuple[float, keyhole.Circuit]:
    times = []
    for _ in range(repeats):
        start = now()
        circuit = trace(run, target, through=through)
        times.append(now() - start)
    return statistics.median(times), circuit


def counted_passes(run: keyhole.Run, circuit: keyhole.Circuit) -> float:
    """Multiplications of the shared projections over those of a forward pass."""
    dims, n = run.model.dims, len(run)
    parameters = sum(p.numel() for p in run.model.hf.parameters()) - run.model.hf.get_input_embeddings().weight.numel()
    if run.model.hf.config.tie_word_embeddings:
        parameters += dims.vocab * dims.d_model
    total = dims.layers * dims.heads * n * dims.d_head * dims.d_model  # v W_O, once
    heads = {(circuit.nodes[f.node].layer, circuit.nodes[f.node].head) for f in circuit.firings}
    for layer, _ in heads:
        rows = (layer * dims.heads + 2 * layer + 1) * n
        total += rows * dims.d_model * 2 * dims.d_head
    return total / (parameters * n)


def report(name: str, run: keyhole.Run, target: int) -> float:
    plain = forward_seconds(run.model, list(run.token_ids))
    seconds, circuit = trace_seconds(run, target)
    longer, further = trace_seconds(run, target, "mlps")
    heads = {(circuit.nodes[f.node].layer, circuit.nodes[f.node].head) for f in circuit.firings}
    counted = counted_passes(run, circuit)
    print(
        f"{name:34.34} {len(run):3} tokens {len(circuit.firings):4} firings of {len(heads):3} heads   "
        f"forward {plain:.3f} s   trace {seconds:.3f} s = {seconds / plain:5.2f} passes   counted {counted:.1f}   "
        f"through {len(further.mlps)} MLPs ({len(further.firings)} firings) {(longer - seconds) / plain:+.2f}"
    )
    return seconds / plain


def report_together(model: keyhole.Model, n: int = 16, repeats: int = 3) -> None:
    """Prompts side by side, from the answer against the other name: what a circuit costs, in passes of one prompt."""
    asked = ioi(n, seed=3, held_out=True)
    runs = model.run_many([example.text for example in asked])
    plain = statistics.median(forward_seconds(model, list(run.token_ids), 3) for run in runs)
    times: dict[str, list[float]] = {"heads": [], "mlps": []}
    for _ in range(repeats + 1):
        for through, taken in times.items():
            start = now()
            answers, others = [e.answer for e in asked], [e.wrong for e in asked]
            list(keyhole.trace_many(runs, answers, against=others, through=through))
            taken.append((now() - start) / n / plain)
    heads, mlps = (statistics.median(taken[1:]) for taken in times.values())  # the first warms up
    print(
        f"SmolLM2: {n} prompts together, against the other name: {heads:.2f} passes a circuit, through MLPs "
        f"{mlps:.2f}: {mlps - heads:+.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", type=int, default=TOKENS)
    arguments = parser.parse_args()
    print(f"threads {torch.get_num_threads()}, device {arguments.device}")
    model = sharpened_gpt2(arguments.device)
    prepare(model)
    run = model.run(random_ids(model, arguments.tokens))
    passes = [report("GPT-2 small shape, sharpened", run, int(run.logits[-1].argmax()))]
    if arguments.model:
        del model
        smollm2 = keyhole.load(arguments.model, device=arguments.device)
        prepare(smollm2)
        for example in ioi(60, seed=1, names=("Mary", "John", "Simon", "Andrew", "Anna", "Daniel")):
            run = smollm2.run(example.text)
            answer = token_id(smollm2, example.answer)
            if int(run.logits[-1].argmax()) == answer and len(passes) < 6:
                passes.append(report(f"SmolLM2: ...{example.text[-24:]}", run, answer))
        report_together(smollm2)
    print(f"most expensive {max(passes):.2f} passes (bar: {BAR:.0f})")
    raise SystemExit(0 if max(passes) <= BAR else 1)


if __name__ == "__main__":
    main()
