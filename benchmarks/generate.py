"""What do edits cost while a model writes? Seconds of an answer with edits, as multiples of the same answer without.

    python benchmarks/generate.py .cache/smollm2.gguf [--tokens 200]

Edits that are linear in the query go through the model's own kernel (sdpa here) and are compared with plain sdpa
generation; those that need attention weights go through eager attention and are compared with plain eager generation.
Rounds alternate, and the least time of each counts. End tokens are left aside, so that all answers are equally long.
"""

import argparse
import time
from collections.abc import Callable, Sequence

import torch

import keyhole
from keyhole.edits import At, ChannelEdit, Edit, SignalEdit, Source, WriteEdit, edited

PROMPT = "The old house at the end of the street had been empty for years, and"


def writing(model: keyhole.Model, ids: Sequence[int], edits: Sequence[Edit], n: int) -> Callable[[], float]:
    """A function that writes n tokens and says how long it took."""
    prompt = torch.tensor([list(ids)])

    def write() -> float:
        with edited(model, edits), torch.no_grad():
            start = time.perf_counter()
            model.hf.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=n,
                min_new_tokens=n,
                do_sample=False,
                pad_token_id=0,
            )
            return time.perf_counter() - start

    return write


def main() -> None:
    """Print ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    model = keyhole.load(args.model) if args.model else keyhole.load()
    ids = model.run(PROMPT if args.model else "When Mary and John went to the store,").token_ids
    heads = [(layer, 0) for layer in model.attention_layers]
    last = model.attention_layers[-1]
    channels = [ChannelEdit(head=head, channels=(0, 1, 2), factor=1.5) for head in heads]
    linear: dict[str, Sequence[Edit]] = {
        "channels of 1 head": channels[-1:],
        "channels of a head in every layer": channels,
        "a whole head": [WriteEdit(writer=Source("head", last, 0))],
        "a signal of an MLP into the query": [
            SignalEdit(head=(last, 0), side="dest", channels=(0, 1), writer=Source("mlp", 0))
        ],
        "channels of a head at 3 keys": [ChannelEdit(head=(last, 0), channels=(0, 1, 2), src=At((1, 2, 3)))],
    }
    others: dict[str, Sequence[Edit]] = {
        "a head from 3 tokens": [WriteEdit(writer=Source("head", last, 0, At((1, 2, 3))))],
        "a head's signal from 3 tokens": [
            SignalEdit(head=(last, 0), side="src", channels=(0,), writer=Source("head", 0, 0, At((1, 2, 3))))
        ],
    }
    for kind, cases in (("sdpa", linear), ("eager", others)):
        model.hf.set_attn_implementation(kind)
        functions = {"plain": writing(model, ids, [], args.tokens)}
        functions |= {name: writing(model, ids, edits, args.tokens) for name, edits in cases.items()}
        seconds: dict[str, list[float]] = {name: [] for name in functions}
        for _ in range(args.rounds):
            for name, write in functions.items():
                seconds[name].append(write())
        plain = min(seconds["plain"])
        print(f"{model.name}, {args.tokens} tokens, {kind}: plain {plain:.2f} s")
        for name in cases:
            print(f"  {name:36} x {min(seconds[name]) / plain:.3f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
