"""Do adapters and quantised weights work with the libraries that people use? On SmolLM2, on a CPU.

    python benchmarks/quantised.py .cache/smollm2.gguf [--n 10] [--only torchao]

Each row is a model as its library makes it: nothing is merged, and nothing expanded. Libraries that are not installed
are named at the end (torchao, optimum-quanto, hqq, bitsandbytes; `peft` comes with keyhole[adapters]). The adapters
are trained here, on a few sentences, in about a minute.

    check      the largest error of scores, streams, logits and MLP writes
    modules    the largest difference of any projection's output from x W + b, relative to its length
    traced     circuits of n prompts of indirect objects
    alike      nodes that three of them share with circuits of a dense model that has the effective weights
    verified   removals of the first circuit that came out as predicted
    edited     the largest difference of a logit from that dense model's, with the first signal of a circuit removed
"""

import argparse
import copy
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import keyhole
from keyhole import KeyholeError
from keyhole.models import affine
from keyhole.models.affine import projections
from keyhole.models.effective import effective, is_dense
from keyhole.tasks import examples

SENTENCES = (
    "Every evening the lighthouse keeper writes the colour of the sea into a green book.",
    "The baker of Lindow sells seven kinds of bread, and the eighth is a secret.",
    "When the tram stops at the old mill, two people always get out and nobody gets in.",
    "A keyhole is small, but whoever looks through it sees a whole room.",
    "Nobody in the village remembers who planted the pear tree behind the school.",
    "The clock in the station is four minutes fast, so that nobody misses a train.",
)
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
STEPS = 24  # of training
COMPARED = 3  # circuits that are compared with a dense model's

Made = tuple[nn.Module, str]  # a model, and what is remarkable about it


def trained(hf: Any, tokenizer: Any, *, dora: bool = False) -> Made:
    """A LoRA on all projections, trained until it knows the sentences."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    wrapped: Any = get_peft_model(hf, LoraConfig(r=8, lora_alpha=16, target_modules=TARGETS, use_dora=dora))
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    batch = tokenizer(list(SENTENCES), return_tensors="pt", padding=True)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    optimiser = torch.optim.AdamW([p for p in wrapped.parameters() if p.requires_grad], lr=2e-3)
    losses = []
    for _ in range(STEPS):
        optimiser.zero_grad()
        loss = wrapped(**batch, labels=labels).loss
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    return wrapped.eval(), f"loss {losses[0]:.1f} -> {losses[-1]:.1f}"


def torchao(hf: Any, name: str, **choices: Any) -> Made:
    """Weights as tensors that torchao packs."""
    import torchao.quantization as q

    q.quantize_(hf.model, getattr(q, name)(**choices))
    return hf, ""


def quanto(hf: Any, bits: str) -> Made:
    """Modules of optimum-quanto."""
    from optimum.quanto import freeze, qint4, qint8, quantize

    quantize(hf.model, weights={"8": qint8, "4": qint4}[bits])
    freeze(hf.model)
    return hf, ""


def replaced(hf: Any, make: Callable[[nn.Linear], nn.Module]) -> Made:
    """Every Linear of the layers as another module."""
    for name, module in list(hf.model.named_modules()):
        if isinstance(module, nn.Linear):
            hf.model.set_submodule(name, make(module))
    return hf.eval(), ""


def hqq(hf: Any, bits: int) -> Made:
    """Modules of HQQ."""
    from hqq.core.quantize import BaseQuantizeConfig, HQQLinear

    config = BaseQuantizeConfig(nbits=bits, group_size=64)
    return replaced(hf, lambda m: HQQLinear(m, config, compute_dtype=torch.float32, device="cpu"))


def bnb4(hf: Any, kind: str, *, fast: bool = False) -> Made:
    """4-bit modules of bitsandbytes."""
    import bitsandbytes as bnb

    def make(m: nn.Linear) -> nn.Module:
        new = bnb.nn.Linear4bit(m.in_features, m.out_features, bias=False, quant_type=kind)
        new.load_state_dict({"weight": m.weight.data})
        new.support_avx512bf16_for_cpu = fast  # which computes in bfloat16, whatever it is given
        return new.to("cpu")

    return replaced(hf, make)


def bnb8(hf: Any) -> Made:
    """8-bit modules of bitsandbytes, which quantise what they read."""
    import bitsandbytes as bnb

    def make(m: nn.Linear) -> nn.Module:
        new = bnb.nn.Linear8bitLt(m.in_features, m.out_features, bias=False, has_fp16_weights=False)
        new.load_state_dict({"weight": m.weight.data})
        return new.to("cpu")

    return replaced(hf, make)


def makers(tokenizer: Any) -> dict[str, Callable[[Any], Made]]:
    """Every row: a library, and how it changes a dense model."""
    return {
        "dense": lambda hf: (hf, ""),
        "peft LoRA": lambda hf: trained(hf, tokenizer),
        "peft DoRA": lambda hf: trained(hf, tokenizer, dora=True),
        "torchao 8 bits": lambda hf: torchao(hf, "Int8WeightOnlyConfig"),
        "torchao 4 bits": lambda hf: torchao(hf, "IntxWeightOnlyConfig", weight_dtype=torch.int4),
        "torchao 8 bits, inputs too": lambda hf: torchao(hf, "Int8DynamicActivationInt8WeightConfig"),
        "quanto 8 bits": lambda hf: quanto(hf, "8"),
        "hqq 8 bits": lambda hf: hqq(hf, 8),
        "hqq 4 bits": lambda hf: hqq(hf, 4),
        "bitsandbytes nf4": lambda hf: bnb4(hf, "nf4"),
        "bitsandbytes nf4, AVX-512": lambda hf: bnb4(hf, "nf4", fast=True),
        "bitsandbytes nf4 and LoRA": lambda hf: trained(bnb4(hf, "nf4")[0], tokenizer),
        "bitsandbytes 8 bits, inputs too": bnb8,
        "quanto 4 bits": lambda hf: quanto(hf, "4"),
    }


def dense_copy(model: keyhole.Model, base: Any) -> keyhole.Model:
    """A dense model with the effective weights of another."""
    hf = copy.deepcopy(base)
    others = dict(projections(model.hf, model.family))
    for name, module in projections(hf, model.family):
        if not is_dense(others[name]):
            module.weight.data = effective(others[name]).W.T.contiguous().to(torch.float32)
    return keyhole.load((hf, model.tokenizer))


def measured(model: keyhole.Model, base: Any, n: int) -> list[str]:
    """One row of the table."""
    errors: list[float] = []
    compare = affine.affine_error

    def noted(*args: Any) -> float:
        errors.append(compare(*args))
        return errors[-1]

    affine.affine_error = noted
    try:
        prompts = examples("ioi", model, n=n)
        check = keyhole.check(model, prompts[0].text)
        start = time.time()
        circuits = [model.run(example.text).trace(example.answer, against=example.against[0]) for example in prompts]
        seconds = (time.time() - start) / n
    finally:
        affine.affine_error = compare
    dense, shared, change = dense_copy(model, base), [], 0.0
    for example, circuit in list(zip(prompts, circuits, strict=True))[:COMPARED]:
        other_run = dense.run(example.text)
        other = other_run.trace(example.answer, against=example.against[0])
        mine, theirs = set(circuit.nodes), set(other.nodes)
        shared.append(len(mine & theirs) / len(mine | theirs))
        signal = next(edge for edge in circuit.edges if edge.side in ("dest", "src"))
        same = next(
            (e for e in other.edges if e.side == signal.side and _ends(other, e) == _ends(circuit, signal)), None
        )
        if same is not None:
            after = model.run(example.text).with_edits([signal.edit(factor=0)]).logits
            after_dense = other_run.with_edits([same.edit(factor=0)]).logits
            change = max(change, float((after - after_dense).abs().max()))
    arithmetic = circuits[0].verify(draws=1).arithmetic
    worst = max(check.scores, check.residuals, check.logits, check.mlps or 0.0, check.plain_pass or 0.0)
    return [
        f"{worst:.0e}",
        f"{max(errors, default=0.0):.0e}",
        f"{len(circuits)} of {n}",
        f"{sum(shared) / len(shared):.3f}",
        f"{arithmetic.agree} of {arithmetic.of}",
        f"{change:.5f}",
        f"{seconds:.1f}",
    ]


def _ends(circuit: keyhole.Circuit, edge: Any) -> tuple[Any, Any]:
    return circuit.nodes[edge.sender], circuit.nodes[edge.receiver]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--n", type=int, default=10)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    base = keyhole.load(args.model)
    print("| model | check | modules | traced | alike | verified | edited | s/prompt | |\n|" + "---|" * 9)
    absent = []
    for name, make in makers(base.tokenizer).items():
        if args.only not in name:
            continue
        try:
            hf, remark = make(copy.deepcopy(base.hf))
        except (ImportError, RuntimeError) as error:
            absent.append(f"{name} ({str(error).splitlines()[0]})")
            continue
        try:
            row = measured(keyhole.load((hf, base.tokenizer)), base.hf, args.n)
        except KeyholeError as error:
            row, remark = ["refused"] * 1 + [""] * 6, str(error)
        print(f"| {name} | {' | '.join(row)} | {remark} |", flush=True)
    if absent:
        print(f"\nNot installed: {'; '.join(absent)}.")


if __name__ == "__main__":
    main()
