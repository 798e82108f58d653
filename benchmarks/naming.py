"""What do examples of a thousand signals cost beside plain forward passes, and how much memory?

    python benchmarks/naming.py [MODEL] [--subjects 1000] [--tokens 1000000] [--threads 2]

CPU time, everything in one run. Plain: the model's own forward pass, with its own attention and without hooks, over the
same chunks of 32 tokens in the same batches; it makes the logits of the last token only, as the gathering pass does.
Gathering: bounds, pairs, draws, the second look, and the examples themselves. Both get the chunks as token ids; making
them is told apart. Subjects are channels of all heads, with both signs.
"""

import argparse
import resource
from time import process_time, time

import torch

import keyhole
from keyhole.naming.corpus.corpus import Ids, chunks
from keyhole.naming.corpus.gather import gather
from keyhole.naming.subjects import channel_subjects
from keyhole.naming.subjects.subject import Subject

BATCH = 64


def read_chunks(model: keyhole.Model, tokens: int) -> list[Ids]:
    found, n = [], 0
    for ids in chunks(model):
        found.append(ids)
        n += len(ids)
        if n >= tokens:
            break
    return found


def subjects_of(model: keyhole.Model, most: int) -> list[Subject]:
    """Channels in turn of all heads, the strongest of each first."""
    heads = [(layer, head) for layer in model.attention_layers for head in range(model.dims.heads)]
    by_head = [channel_subjects(model, head) for head in heads]
    ranks = range(max(map(len, by_head)))
    return [some[rank] for rank in ranks for some in by_head if rank < len(some)][:most]


def plain(model: keyhole.Model, corpus: list[Ids]) -> None:
    for start in range(0, len(corpus), BATCH):
        batch = corpus[start : start + BATCH]
        longest = max(map(len, batch))
        rows = torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids in batch], device=model.hf.device)
        with torch.no_grad():
            model.hf(input_ids=rows, use_cache=False, logits_to_keep=1)


def measure(model: keyhole.Model, subjects: int, tokens: int) -> None:
    began = process_time()
    corpus = read_chunks(model, tokens)
    made, some = process_time() - began, subjects_of(model, subjects)
    plain(model, corpus[:BATCH])  # what is made once
    began, clock = process_time(), time()
    plain(model, corpus)
    alone, alone_clock = process_time() - began, time() - clock
    began, clock = process_time(), time()
    found = gather(model, some, corpus, tokens=tokens)
    took, took_clock = process_time() - began, time() - clock
    shown = sum(len(one.shown) for one in found)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    read = f"{found[0].tokens:,} tokens in {found[0].chunks:,} chunks"
    print(f"{model.name}: {len(some)} subjects, {read}, {shown:,} examples")
    times = f"plain passes {alone:.0f} s, gathering {took:.0f} s: {took / alone:.2f} times"
    print(f"  making the chunks {made:.0f} s, {times}")
    print(f"  on the clock {alone_clock:.0f} and {took_clock:.0f} s; at most {resident:.2f} GB resident")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--subjects", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    measure(keyhole.load(*([asked.model] if asked.model else [])), asked.subjects, asked.tokens)
