"""What does an edit do to a head's scores? A change of its query, or further terms of the dot product.

A factor f on channels S turns the rotated query q into  q + (f - 1) q G_d[:, S] G_s[S]:  that is all where every key is
touched, since each term of the score has one factor on either side. So queries alone change, siblings of a shared key
do not notice, and any attention kernel will do. Where only some keys are touched, or a key changes for one head, the
terms stand beside q and k as further coordinates, which are zero for all other heads:

    score = scaling ([q, a] . [k, c])    a, c = (f - 1) q G_d[:, S], G_s[S] k    at the tokens that are meant, else 0
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from keyhole.brief import Head
from keyhole.circuits.records import SideName
from keyhole.edits.records import At, BiasEdit, ChannelEdit, Edit, FeatureEdit, SignalEdit, Source
from keyhole.models.facts import Rotary
from keyhole.qk.omega import omega

if TYPE_CHECKING:
    from keyhole.models.model import Model

Queries = Float[Tensor, "batch query d_head"]  # of one head, rotated; at the tokens of this pass
Keys = Float[Tensor, "batch key d_head"]  # those in a cache come first
Coordinates = tuple[Float[Tensor, "batch query rank"], Float[Tensor, "batch key rank"]]


@runtime_checkable
class Reading(Protocol):
    """What a pass has at the tokens that it adds to the prompt, one layer at a time."""

    def part(self, source: Source, head: Head, side: SideName) -> Queries:
        """What a writer has in a head's rotated query (dest) or key (src) at these tokens."""

    def rotary(self, layer: int) -> Rotary | None:
        """How a layer turned these tokens."""

    def all_keys(self, edit: Edit, new: Tensor) -> Tensor:
        """What was computed for each key when its token was added, those in a cache too."""


@dataclass(frozen=True)
class Tokens:
    """Which tokens do the rows of queries and of keys belong to?"""

    queries: Int[Tensor, "query"]
    keys: Int[Tensor, "key"]


def folds(edit: Edit) -> bool:
    """Does an edit change its head's query alone?"""
    if isinstance(edit, FeatureEdit):
        return edit.src.everywhere and (edit.side == "dest" or edit.frame == "post_rope")
    if isinstance(edit, SignalEdit):
        return edit.src.everywhere and edit.side == "dest"
    return edit.src.everywhere and isinstance(edit, ChannelEdit)


@dataclass(frozen=True)
class ScoreTerms:
    """One edit of scores with the tensors that it needs."""

    edit: ChannelEdit | SignalEdit | FeatureEdit | BiasEdit
    left: Float[Tensor, "d_head rank"]  # what a query is read with; of a bias nothing
    right: Float[Tensor, "rank d_head"]  # what a key is read with

    def query(self, q: Queries, reading: Reading, tokens: Tokens) -> Queries:
        """What the query gains, at the tokens that are meant."""
        edit, x = self.edit, q.to(self.left.dtype)
        if isinstance(edit, SignalEdit):
            gained = (edit.factor - 1) * (reading.part(edit.writer, edit.head, "dest") @ self.left @ self.right)
        elif isinstance(edit, FeatureEdit) and edit.frame == "pre_rope":
            gained = (edit.factor - 1) * self._turned(x, reading.rotary(edit.head[0]))
        else:
            gained = self._coefficients(x) @ self.right
        return gained * mask_of(edit.dest, tokens.queries)[:, None]

    def coordinates(self, q: Queries, k: Keys, reading: Reading, tokens: Tokens) -> Coordinates:
        """What stands beside the query and the keys."""
        edit, x = self.edit, q.to(self.left.dtype)
        y = k.to(self.left.dtype)
        if isinstance(edit, BiasEdit):
            a, c = x.new_full((*x.shape[:-1], 1), edit.amount), y.new_ones((*y.shape[:-1], 1))
        elif isinstance(edit, SignalEdit) and edit.side == "src":
            part = reading.part(edit.writer, edit.head, "src")
            a, c = (edit.factor - 1) * (x @ self.left), reading.all_keys(edit, part @ self.right.T)
        elif isinstance(edit, SignalEdit):
            a = (edit.factor - 1) * (reading.part(edit.writer, edit.head, "dest") @ self.left)
            c = y @ self.right.T
        elif isinstance(edit, FeatureEdit) and edit.frame == "pre_rope":
            turn = reading.rotary(edit.head[0])
            if edit.side == "dest":
                a, c = (edit.factor - 1) * self._turned(x, turn), y
            else:
                new = y[:, y.shape[1] - x.shape[1] :]
                a, c = (edit.factor - 1) * x, reading.all_keys(edit, self._turned(new, turn))
        else:
            a, c = self._coefficients(x), y @ self.right.T
        return a * mask_of(edit.dest, tokens.queries)[:, None], c * mask_of(edit.src, tokens.keys)[:, None]

    def _coefficients(self, x: Queries) -> Float[Tensor, "batch query rank"]:
        """What the query has more in each direction than without the edit."""
        edit, there = self.edit, x @ self.left
        if isinstance(edit, ChannelEdit) and edit.value is not None:
            return edit.value - there
        assert not isinstance(edit, BiasEdit)
        return (edit.factor - 1) * there

    def _turned(self, x: Queries, rotary: Rotary | None) -> Queries:
        """The part of x that lies in the subspace before RoPE, turned as x is."""
        if rotary is None:
            return x @ self.left @ self.right
        n = 2 * rotary.cos.shape[1]
        norm = (rotary.cos[:, :1].square() + rotary.sin[:, :1].square()).to(x.dtype)  # YaRN scales cos and sin
        back = rotary.transpose(x)
        back = torch.cat([back[..., :n] / norm, back[..., n:]], dim=-1)
        return rotary.rotate(back @ self.left @ self.right)


def score_terms(model: "Model", edit: ChannelEdit | SignalEdit | FeatureEdit | BiasEdit) -> ScoreTerms:
    """An edit with what it needs of the model's weights."""
    w = model.folded(edit.head[0])
    if isinstance(edit, BiasEdit):
        return ScoreTerms(edit, w.W_Q.new_zeros(w.W_Q.shape[-1], 1), w.W_Q.new_zeros(1, w.W_Q.shape[-1]))
    if isinstance(edit, FeatureEdit):
        basis = torch.tensor(edit.basis, dtype=w.W_Q.dtype, device=w.W_Q.device)
        return ScoreTerms(edit, basis.T, basis)
    om, ks = omega(model, edit.head[0]), list(edit.channels)
    return ScoreTerms(edit, om.G_d[edit.head[1]][:, ks], om.G_s[edit.head[1]][ks])


def edited_scores(
    q: Float[Tensor, "batch heads query d_head"],
    k: Float[Tensor, "batch kv_heads key d_head"],
    terms: Sequence[ScoreTerms],
    reading: Reading,
    *,
    tokens: Tokens,
    scaling: float,
) -> tuple[Tensor, Tensor]:
    """Queries and keys whose dot products are the edited scores; they have more coordinates where that takes some.

    Signals are changed before what is read of the whole query, so that both together leave what they should.
    """
    group = q.shape[1] // k.shape[1]
    changes = [term for term in terms if folds(term.edit)]
    if changes:
        q = q.clone()
    for term in sorted(changes, key=lambda term: not isinstance(term.edit, SignalEdit)):
        h = term.edit.head[1]
        q[:, h] += term.query(q[:, h], reading, tokens).to(q.dtype)
    beside: list[list[tuple[int, Coordinates]]] = [[] for _ in range(k.shape[1])]
    for term in terms:
        if not folds(term.edit):
            h = term.edit.head[1]
            a, c = term.coordinates(q[:, h], k[:, h // group], reading, tokens)
            beside[h // group].append((h, (a / scaling if isinstance(term.edit, BiasEdit) else a, c)))
    width = max(sum(a.shape[-1] for _, (a, _) in terms_of_key) for terms_of_key in beside)
    if not width:
        return q, k
    q_more, k_more = q.new_zeros(*q.shape[:-1], width), k.new_zeros(*k.shape[:-1], width)
    for key, terms_of_key in enumerate(beside):
        start = 0
        for h, (a, c) in terms_of_key:
            stop = start + a.shape[-1]
            q_more[:, h, :, start:stop], k_more[:, key, :, start:stop] = a, c
            start = stop
    return torch.cat([q, q_more], dim=-1), torch.cat([k, k_more], dim=-1)


def mask_of(at: At, positions: Int[Tensor, "token"]) -> Bool[Tensor, "token"]:
    """Which of these tokens does an edit mean?"""
    if at.tokens is None:
        return positions >= at.start
    return torch.isin(positions, torch.tensor(at.tokens, dtype=positions.dtype, device=positions.device))
