"""Which pairs of a batch are kept, from the values of all subjects of a layer at every token? One product per head.

    ask[b, d, i] = query_i . q_bd + offset        offer[b, s, i] = key_i . k_bs + offset

Queries and keys are those of the scores. The value of a pair is ask x offer where both are positive, else 0.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt64
from torch import Tensor

from keyhole.brief import brief
from keyhole.errors import KeyholeError
from keyhole.models.attention import visible_mask
from keyhole.models.model import Model
from keyhole.models.numbers import working_dtype
from keyhole.models.stacks import Seen
from keyhole.naming.corpus.state import (
    OTHERS,
    Batch,
    Columns,
    Kept,
    State,
    mixed,
    nth,
    rounded,
    salt,
    tickets,
    top_keys,
    uniform,
    which,
)
from keyhole.naming.subjects.subject import Subject, require_head
from keyhole.qk.firings import DYNAMIC_SCALE


@dataclass(frozen=True)
class Readers:
    """The subjects of one layer, those of a head together."""

    __repr__ = brief

    numbers: Int[np.ndarray, "readers"]  # index of each among all subjects
    heads: tuple[int, ...]  # the distinct ones
    of_head: Int[Tensor, "readers"]  # index of each one's head among these
    query: Float[Tensor, "d_head readers"]
    key: Float[Tensor, "d_head readers"]
    query_offset: Float[Tensor, "readers"]
    key_offset: Float[Tensor, "readers"]

    def read(self, stack: Seen) -> tuple[Float[Tensor, "batch pos readers"], Float[Tensor, "batch pos readers"]]:
        """The values ask and offer of every subject at every token."""
        group = stack.q.shape[1] // stack.k.shape[1]
        asks, offers = [], []
        for number, head in enumerate(self.heads):
            columns = self.of_head == number
            asks.append(stack.q[:, head].to(self.query.dtype) @ self.query[:, columns])
            offers.append(stack.k[:, head // group].to(self.key.dtype) @ self.key[:, columns])
        return torch.cat(asks, -1) + self.query_offset, torch.cat(offers, -1) + self.key_offset

    def weights(self, stack: Seen) -> Float[Tensor, "batch heads pos pos"]:
        """Attention weights of the heads that have subjects."""
        return head_weights(stack, self.heads)


def head_weights(stack: Seen, heads: Sequence[int]) -> Float[Tensor, "batch heads pos pos"]:
    """Attention weights of some heads."""
    group, dtype = stack.q.shape[1] // stack.k.shape[1], working_dtype(stack.q.dtype)
    q, k = stack.q[:, list(heads)].to(dtype), stack.k[:, [head // group for head in heads]].to(dtype)
    return stack.rule.heads(list(heads)).weights(q @ k.mT * stack.rule.scaling, visible(stack))


def visible(stack: Seen) -> Bool[Tensor, "pos pos"]:
    """Which keys each position of a layer sees."""
    n = len(stack.first)
    return visible_mask(stack.first, torch.arange(n, device=stack.first.device), n)


def readers_of(model: Model, subjects: Sequence[Subject]) -> dict[int, Readers]:
    """All subjects by layer; a subject that does not fit this model is refused."""
    _require(model, subjects)
    layers: dict[int, list[int]] = {}
    for number, subject in enumerate(subjects):
        layers.setdefault(subject.head[0], []).append(number)
    return {layer: _of_layer(model, subjects, numbers) for layer, numbers in sorted(layers.items())}


def _of_layer(model: Model, subjects: Sequence[Subject], numbers: list[int]) -> Readers:
    numbers = sorted(numbers, key=lambda number: (subjects[number].head[1], number))
    subjects = [subjects[number] for number in numbers]
    heads = tuple(sorted({subject.head[1] for subject in subjects}))
    device, dtype = model.device, working_dtype(model.hf.dtype)
    return Readers(
        np.array(numbers),
        heads,
        torch.tensor([heads.index(subject.head[1]) for subject in subjects], device=device),
        torch.stack([subject.query for subject in subjects], 1).to(device, dtype),
        torch.stack([subject.key for subject in subjects], 1).to(device, dtype),
        torch.tensor([subject.query_offset for subject in subjects], device=device, dtype=dtype),
        torch.tensor([subject.key_offset for subject in subjects], device=device, dtype=dtype),
    )


def _require(model: Model, subjects: Sequence[Subject]) -> None:
    if not subjects:
        raise KeyholeError("there are no subjects to find examples of: give at least one.")
    for id, times in Counter(subject.id for subject in subjects).items():
        if times > 1:
            raise KeyholeError(f"{times} subjects have the id {id!r}: give them different ids.")
    for subject in subjects:
        require_head(model, subject.head)
        if subject.query.shape != subject.key.shape or len(subject.query) != model.dims.d_head:
            raise KeyholeError(
                f"{subject.id!r} has directions of {len(subject.query)} and {len(subject.key)} numbers, where heads of "
                f"{model.name} compare {model.dims.d_head}: it is of another model."
            )
        if not bool(torch.isfinite(torch.stack([subject.query, subject.key])).all()):
            raise KeyholeError(f"{subject.id!r} has directions that are NaN or infinite.")


# Which pairs of one layer and one batch are kept? Bounds come first, so that few pairs are formed.
#
# top       a subject's best pair in a text is at most max(ask) max(offer): pairs are formed only where this bound beats
#           the last one kept; each dest has its best src, and each text its two best dests
# positive  counted by a product of two tables of signs; one pair of a text is drawn, if its ticket is early enough
# random    the same, among all visible pairs
# attended  the same, among pairs where the head fires (not into the first token, where heads rest)

PER_TEXT = 2  # top pairs
_ROWS = 2048  # tables of pairs that are formed together
_RANDOM, _POSITIVE, _ATTENDED, _OTHERS = (salt(purpose) for purpose in ("random", "positive", "attended", "others"))


@dataclass(frozen=True)
class Look:
    """One layer of one batch: the values of its subjects, and the attention of their heads."""

    readers: Readers
    batch: Batch
    salts: UInt64[np.ndarray, "readers"]
    ask: Float[Tensor, "batch pos readers"]  # not positive behind the end of a text
    offer: Float[Tensor, "batch pos readers"]
    weights: Float[Tensor, "batch heads pos pos"]
    sight: Bool[Tensor, "pos pos"]

    def values(self, rows: "Rows", dest: Tensor, src: Tensor) -> Float[Tensor, "rows"]:
        """The values of pairs: 0 where ask or offer is not positive."""
        return self.ask[rows.text, dest, rows.reader].relu() * self.offer[rows.text, src, rows.reader].relu()

    def attention(self, rows: "Rows", dest: Tensor, src: Tensor) -> Float[Tensor, "rows"]:
        """The attention weights of the subjects' heads at pairs."""
        return self.weights[rows.text, self.readers.of_head[rows.reader], dest, src]

    def columns(self, rows: "Rows", dest: Tensor, src: Tensor) -> Columns:
        """Pairs as the columns of a table."""
        value, attention = self.values(rows, dest, src), self.attention(rows, dest, src)
        columns = {"dest": dest, "src": src, "value": value.float(), "attention": attention.float()}
        return {"chunk": rows.chunk, **{name: column.cpu().numpy() for name, column in columns.items()}}


@dataclass(frozen=True)
class Rows:
    """Some pairs of a text and a subject, in one layer."""

    text: Int[Tensor, "rows"]  # in the batch
    reader: Int[Tensor, "rows"]  # in the layer
    chunk: Int[np.ndarray, "rows"]
    subject: Int[np.ndarray, "rows"]
    salts: UInt64[np.ndarray, "rows"]


def look_at(state: State, readers: Readers, stack: Seen, batch: Batch) -> None:
    """Add the pairs of one layer of one batch to the state."""
    look = _look(state, readers, stack, batch)
    # the visible pairs with two positive values are counted without forming them
    ask, offer = (look.ask > 0).float(), (look.offer > 0).float()
    positive = (ask * (look.sight.float() @ offer)).sum(1).cpu().numpy().astype(np.int64)
    inside = torch.arange(look.sight.shape[0], device=look.sight.device) < batch.lengths.to(look.sight.device)[:, None]
    pairs = (inside * look.sight.sum(-1)).sum(-1).cpu().numpy()
    state.positives[readers.numbers] += positive.sum(0)
    state.pairs[readers.numbers] += pairs.sum()
    _keep_top(look, state.top)
    _draw(look, state.positive, positive, purpose=_POSITIVE, pairs=_positive_pairs)
    _draw(look, state.random, np.broadcast_to(pairs[:, None], positive.shape), purpose=_RANDOM, pairs=_visible_pairs)
    if state.attended.most:
        fires = _fires(look, inside)
        counts = fires.sum((-1, -2)).cpu().numpy()[:, readers.of_head.cpu().numpy()]
        _draw(look, state.attended, counts, purpose=_ATTENDED, pairs=partial(_firing_pairs, fires))


def _look(state: State, readers: Readers, stack: Seen, batch: Batch) -> Look:
    ask, offer = readers.read(stack)
    behind = torch.arange(ask.shape[1], device=ask.device) >= batch.lengths.to(ask.device)[:, None]
    ask = ask.masked_fill(behind[:, :, None], -1.0)
    return Look(readers, batch, state.salts[readers.numbers], ask, offer, readers.weights(stack), visible(stack))


def _fires(look: Look, inside: Tensor) -> Bool[Tensor, "batch heads pos pos"]:
    tau = (DYNAMIC_SCALE / look.sight.sum(-1)).clamp_max(1.0)[:, None]
    fires = (look.weights >= tau) & look.sight & inside[:, None, :, None]
    fires[..., 0] = False
    return fires


def _rows(look: Look, text: np.ndarray, reader: np.ndarray) -> Rows:
    at, who = (torch.from_numpy(x).to(look.ask.device) for x in (text, reader))
    return Rows(at, who, look.batch.numbers[text], look.readers.numbers[reader], look.salts[reader])


def _draw(
    look: Look, kept: Kept, counts: Int[np.ndarray, "batch readers"], *, purpose: np.uint64, pairs: "PairsOf"
) -> None:
    """Draw one pair of every text and subject whose ticket is early enough."""
    if not kept.most:
        return
    times = tickets(look.salts ^ purpose, look.batch.numbers, counts)
    text, reader = (times < kept.worst(look.readers.numbers)).nonzero()
    if not len(text):
        return
    rows = _rows(look, text, reader)
    n = which(rows.salts ^ purpose, rows.chunk, counts[text, reader])
    dest, src = pairs(look, rows, torch.from_numpy(n).to(look.ask.device))
    kept.add(rows.subject, times[text, reader], look.columns(rows, dest, src))


PairsOf = Callable[[Look, Rows, Tensor], tuple[Tensor, Tensor]]  # (dest, src) of the n-th pair of each row


def _positive_pairs(look: Look, rows: Rows, n: Tensor) -> tuple[Tensor, Tensor]:
    ask, offer = (x[rows.text, :, rows.reader] > 0 for x in (look.ask, look.offer))
    dest, left = nth((ask * (offer.float() @ look.sight.float().T)).long(), n)
    return dest, nth((offer & look.sight[dest]).long(), left)[0]


def _visible_pairs(look: Look, rows: Rows, n: Tensor) -> tuple[Tensor, Tensor]:
    dest, left = nth(look.sight.sum(-1).expand(len(n), -1), n)
    return dest, nth(look.sight[dest].long(), left)[0]


def _firing_pairs(fires: Tensor, look: Look, rows: Rows, n: Tensor) -> tuple[Tensor, Tensor]:
    head = look.readers.of_head[rows.reader]
    dest, left = nth(fires.sum(-1)[rows.text, head], n)
    return dest, nth(fires[rows.text, head, dest].long(), left)[0]


def _keep_top(look: Look, kept: Kept) -> None:
    if not kept.most:
        return
    bound = look.ask.amax(1).clamp_min(0) * look.offer.amax(1).clamp_min(0)
    best = rounded(bound.float()).cpu().numpy()
    worst = kept.worst(look.readers.numbers)
    text, reader = ((best > 0) & (top_keys(best, look.batch.numbers[:, None], 0) < worst)).nonzero()
    for start in range(0, len(text), _ROWS):
        at = text[start : start + _ROWS], reader[start : start + _ROWS]
        _form(look, kept, _rows(look, *at), worst[at[1]])


def _form(look: Look, kept: Kept, rows: Rows, worst: UInt64[np.ndarray, "rows"]) -> None:
    """Form all pairs of some texts and subjects, and keep the best if they beat the worst that is kept."""
    ask, offer = (x[rows.text, :, rows.reader].relu().float() for x in (look.ask, look.offer))
    values = rounded(ask[:, :, None] * offer[:, None] * look.sight)
    for best, dest, src in best_pairs(values):
        key = top_keys(best.cpu().numpy(), rows.chunk, dest.cpu().numpy())
        good = ((best.cpu().numpy() > 0) & (key < worst)).nonzero()[0]
        if len(good):
            pick = torch.from_numpy(good).to(dest.device)
            some = Rows(rows.text[pick], rows.reader[pick], rows.chunk[good], rows.subject[good], rows.salts[good])
            kept.add(some.subject, key[good], _top_columns(look, some, dest[pick], src[pick]))


def best_pairs(values: Int[Tensor, "rows pos pos"]) -> Iterator[tuple[Int[Tensor, "rows"], ...]]:
    """(value, dest, src) in each table: the best src of its best dest, then of its second best; ties: the first."""
    of_dest, every = values.amax(-1), torch.arange(len(values), device=values.device)
    for _ in range(PER_TEXT):
        dest = of_dest.argmax(-1)
        yield of_dest[every, dest], dest, values[every, dest].argmax(-1)
        of_dest[every, dest] = 0


def _top_columns(look: Look, rows: Rows, dest: Tensor, src: Tensor) -> Columns:
    """Top pairs, each with other srcs of the same dest, drawn at random (-1: dest sees no other)."""
    columns = look.columns(rows, dest, src)
    columns["text"] = look.batch.prefixes[rows.text.cpu().numpy(), columns["dest"]]
    sight, others = look.sight.sum(-1)[dest].cpu().numpy(), []
    for number in range(OTHERS):
        place = mixed(rows.chunk.astype(np.uint64) << np.uint64(12) | columns["dest"].astype(np.uint64))
        drawn = uniform(place ^ rows.salts ^ _OTHERS ^ np.uint64(number))
        other = columns["dest"] - sight + 1 + (drawn * (sight - 1)).astype(np.int64)
        others.append(np.where(sight > 1, other + (other >= columns["src"]), -1))
    columns["others"] = np.stack(others, -1)
    at = torch.from_numpy(columns["others"]).to(dest.device).clamp_min(0)
    for name, measure in (("other_values", look.values), ("other_attention", look.attention)):
        columns[name] = torch.stack([measure(rows, dest, other) for other in at.unbind(-1)], -1).float().cpu().numpy()
    return columns
