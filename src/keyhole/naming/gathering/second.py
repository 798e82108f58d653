"""What is a signal worth at pairs that were chosen since? A second look at texts that are still at hand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float, Int, UInt64

from keyhole.models.model import Model
from keyhole.models.recording.visit import Seen, visit
from keyhole.models.tokens.prompts import Encoded
from keyhole.naming.gathering.draws import mixed, salt
from keyhole.naming.gathering.readers import Readers, visible
from keyhole.naming.reading.corpus import Ids

BATCH = 64  # texts
_SAME = salt("same pair")


@dataclass(frozen=True)
class Pairs:
    """Pairs of tokens, each for one subject."""

    subject: Int[np.ndarray, "pairs"]
    chunk: Int[np.ndarray, "pairs"]
    dest: Int[np.ndarray, "pairs"]
    src: Int[np.ndarray, "pairs"]

    def some(self, which: np.ndarray) -> "Pairs":
        """These of them."""
        return Pairs(self.subject[which], self.chunk[which], self.dest[which], self.src[which])


@dataclass(frozen=True)
class Worth:
    """What each pair is worth, and the attention of the subject's head there."""

    value: Float[np.ndarray, "pairs"]  # infinite where src is out of sight: such a pair is an example of nothing
    attention: Float[np.ndarray, "pairs"]


def worth(model: Model, readers: Mapping[int, Readers], texts: Mapping[int, Ids], pairs: Pairs) -> Worth:
    """Run the texts of these pairs again and look only at them."""
    found = Worth(np.zeros(len(pairs.chunk), np.float32), np.zeros(len(pairs.chunk), np.float32))
    lengths: dict[int, list[int]] = {}
    for chunk in np.unique(pairs.chunk).tolist():
        lengths.setdefault(len(texts[chunk]), []).append(chunk)  # of one length: RoPE itself may depend on it
    for same in lengths.values():
        for start in range(0, len(same), BATCH):
            batch = same[start : start + BATCH]
            asked = np.isin(pairs.chunk, batch).nonzero()[0]
            visitor = _Visitor(readers, pairs.some(asked), np.array(batch), asked, found)
            visit(model, [Encoded(texts[chunk], (), False) for chunk in batch], visitor.see)
    return found


@dataclass(frozen=True)
class _Visitor:
    readers: Mapping[int, Readers]
    pairs: Pairs
    batch: Int[np.ndarray, "batch"]
    places: Int[np.ndarray, "pairs"]
    found: Worth = field(repr=False)

    def see(self, layer: int, seen: Seen) -> None:
        if layer not in self.readers:
            return
        own = self.readers[layer]
        here = np.isin(self.pairs.subject, own.numbers).nonzero()[0]
        if not len(here):
            return
        some, order = self.pairs.some(here), np.argsort(own.numbers)
        reader = order[np.searchsorted(own.numbers, some.subject, sorter=order)]
        text = np.searchsorted(self.batch, some.chunk)
        columns = (torch.from_numpy(x.astype(np.int64)).to(seen.q.device) for x in (text, some.dest, some.src, reader))
        at, dest, src, who = columns
        ask, offer = own.read(seen)
        value = ask[at, dest, who].relu() * offer[at, src, who].relu()
        value = value.masked_fill(~visible(seen)[dest, src], torch.inf)
        self.found.value[self.places[here]] = value.float().cpu().numpy()
        weights = own.weights(seen)[at, own.of_head[who], dest, src]
        self.found.attention[self.places[here]] = weights.float().cpu().numpy()


def same_tokens(
    wanted: Mapping[int, Sequence[tuple[int, int]]],
    texts: Mapping[int, Ids],
    salts: UInt64[np.ndarray, "subjects"],
    most: int,
) -> Pairs:
    """Where else do these pairs of tokens stand? At most so many places for each subject, drawn at random.

    `wanted`: for each subject token ids at dest and at src.
    """
    places = _all_pairs(texts)
    order = np.argsort(places[:, 0], kind="stable")
    codes, found = places[order, 0], []
    for subject, tokens in wanted.items():
        sought = np.array(sorted({_code(dest, src) for dest, src in tokens}), np.int64)
        starts, ends = np.searchsorted(codes, sought), np.searchsorted(codes, sought, side="right")
        rows = np.concatenate([np.arange(*span) for span in zip(starts, ends, strict=True)] or [np.zeros(0, np.int64)])
        rows = order[rows.astype(np.int64)]
        drawn = mixed(rows.astype(np.uint64) ^ salts[subject] ^ _SAME)
        rows = rows[np.argsort(drawn, kind="stable")[:most]]
        found.append(np.column_stack([np.full(len(rows), subject), places[rows, 1:]]))
    every = np.concatenate(found) if found else np.zeros((0, 4), np.int64)
    return Pairs(*every.T.copy())


def _all_pairs(texts: Mapping[int, Ids]) -> Int[np.ndarray, "pairs 4"]:
    """(code of the two tokens, chunk, dest, src) of every causal pair of different tokens' places."""
    tables = []
    for chunk, ids in sorted(texts.items()):
        dest, src = np.tril_indices(len(ids))
        tokens = np.array(ids, np.int64)
        tables.append(np.column_stack([_code(tokens[dest], tokens[src]), np.full(len(dest), chunk), dest, src]))
    return np.concatenate(tables) if tables else np.zeros((0, 4), np.int64)


def _code(dest: "int | np.ndarray", src: "int | np.ndarray") -> "int | np.ndarray":
    return dest << 32 | src
