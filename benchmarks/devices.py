"""Is a model that does not fit in one place the same model? Offloaded to the CPU and a disk, with and without a GPU.

    python benchmarks/devices.py .cache/smollm2.gguf [--device cuda] [--n 5]

Layers in turn lie on the device, on the CPU and on a disk, and folded weights have a tenth of the memory that they
would take. Circuits of indirect objects are compared with those of the model on the device alone.
"""

import argparse
import tempfile
import time
from typing import Any

import torch

import keyhole
from keyhole.models.memory import bytes_of
from keyhole.tasks import examples


def spread(model: keyhole.Model, device: str) -> dict[str, Any]:
    """Where each part of the model goes."""
    layers = model.family.layers
    parent = layers.rpartition(".")[0]
    at: Any = 0 if device == "cuda" else device
    places = {f"{parent}.{name}": at for name, _ in model.hf.get_submodule(parent).named_children()}
    places |= {name: at for name, _ in model.hf.named_children() if name != parent.partition(".")[0]}
    del places[layers]
    for number in range(model.dims.layers):
        places[f"{layers}.{number}"] = (at, "cpu", "disk")[number % 3]
    return places


def main() -> None:
    """Print what is the same, and what it costs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--n", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        loaded = keyhole.load(args.model)
        loaded.hf.save_pretrained(folder)
        loaded.tokenizer.save_pretrained(folder)
        here = keyhole.load(folder, device=args.device)
        whole = sum(bytes_of(here.folded(layer), set()) for layer in here.attention_layers)
        away = keyhole.load(folder, device_map=spread(here, args.device), memory=whole // 10)
        print(f"fingerprints agree: {away.fingerprint() == here.fingerprint()}")
        print(f"exact: {keyhole.check(away, examples('ioi', away, n=1)[0].text).exact}")
        for example in examples("ioi", here, n=args.n):
            circuits, seconds = [], []
            for model in (here, away):
                start = time.time()
                run = model.run(example.text)
                circuits.append(run.trace(example.answer, against=example.against[0]))
                seconds.append(time.time() - start)
            one, other = circuits
            same = [a.weight for a in one.edges] == [b.weight for b in other.edges]
            shared = len(set(one.nodes) & set(other.nodes)) / len(set(one.nodes) | set(other.nodes))
            print(
                f"nodes in common {shared:.3f}, edges equal to the bit: {same}; {seconds[0]:.1f} s, {seconds[1]:.1f} s"
            )
        arithmetic = other.verify(draws=1).arithmetic
        print(f"removals as predicted: {arithmetic.agree} of {arithmetic.of}")
        kept = sum(bytes_of(value, set()) for key, (_, value) in away._cache.items() if len(key) == 2)
        print(f"folded weights: {whole / 1e6:.0f} MB, with a limit {kept / 1e6:.0f} MB")
        if torch.cuda.is_available():
            print(f"GPU memory at most: {torch.cuda.max_memory_allocated() / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
