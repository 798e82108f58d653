"""What did edits do to a prompt? Attention (before, predicted, measured), and the probabilities of the next token.

The attention of an edited head can be predicted if its input is unchanged. Its scores are then those of the run without
edits, plus the changes that the edits make to them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.brief import Head, head_name
from keyhole.circuits.records import SideName, Signal, Writer
from keyhole.edits.applying import edited
from keyhole.edits.checks import require_edits
from keyhole.edits.records import At, Edit, Source, WriteEdit
from keyhole.edits.scores import Queries, Tokens, edited_scores, score_terms
from keyhole.errors import KeyholeError
from keyhole.models.attention import weights_of
from keyhole.models.facts import Rotary
from keyhole.models.numbers import exact_matmul
from keyhole.models.tokens import token_label, token_texts
from keyhole.tracing.writers import read_of, read_vectors, written_by

if TYPE_CHECKING:
    from keyhole.models.run import Run

_NAMED = 3  # tokens of an edit that are listed one by one


def with_edits(run: "Run", edits: Sequence[Edit]) -> "Run":
    """The same prompt, run again with edits. See `Run.with_edits`.

    Args:
        run: A run without edits.
        edits: What is edited, as `Run.with_edits` takes it.

    >>> import keyhole
    >>> from keyhole.edits import ChannelEdit, changes
    >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
    >>> other = run.with_edits([ChannelEdit(head=(1, 6), channels=(5,))])
    >>> print(changes(run, other).attention[0])
    head 1.6, 14:to <- 2:Mary: 0.431, predicted 0.198, measured 0.198
    """
    run._require_fresh()
    require_edits(run.model, edits, len(run))
    with edited(run.model, edits):
        return replace(run.model.run(list(run.token_ids), bos=False), bos=run.bos)


@dataclass(frozen=True)
class AttentionChange:
    """One attention weight of an edited head."""

    head: Head
    dest: int
    src: int
    before: float
    after: float
    predicted: float | None  # None: the input of the head was edited as well
    tokens: tuple[str, ...] = field(default=(), repr=False, compare=False)

    def __str__(self) -> str:
        dest, src = (token_label(self.tokens, t) for t in (self.dest, self.src))
        predicted = "no prediction" if self.predicted is None else f"predicted {self.predicted:.3f}"
        return (
            f"head {head_name(self.head)}, {dest} <- {src}: {self.before:.3f}, {predicted}, measured {self.after:.3f}"
        )


@dataclass(frozen=True)
class TokenChange:
    """One next token, with its probability before and after."""

    text: str
    before: float
    after: float


@dataclass(frozen=True)
class Changes:
    """What edits did to one prompt."""

    edits: tuple[Edit, ...]
    attention: tuple[AttentionChange, ...]  # for every edited head, at named tokens or where it attended most
    next: tuple[TokenChange, ...]  # the most likely next tokens, before or after
    kl: float  # KL(before || after) of the next token's distribution, in nats

    def __str__(self) -> str:
        lines = ["with " + "; ".join(map(str, self.edits)), *map(str, self.attention)]
        lines += [f"next {token.text!r}: {token.before:.3f} -> {token.after:.3f}" for token in self.next]
        return "\n".join([*lines, f"KL divergence of the next token: {self.kl:.4f} nats"])


def changes(run: "Run", other: "Run", top: int = 3) -> Changes:
    """What did edits change? Attention weights, predicted and measured, and the likeliest next tokens.

    Args:
        run: The run without edits.
        other: The same prompt with edits, as `run.with_edits` returns it.
        top: How many of the likeliest next tokens of each run are compared.

    >>> import keyhole
    >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
    >>> other = run.with_edits([keyhole.edits.ChannelEdit(head=(1, 6), channels=(5,))])
    >>> print(changes(run, other, top=1).attention[0])
    head 1.6, 14:to <- 2:Mary: 0.431, predicted 0.198, measured 0.198
    """
    if run.edits or not other.edits or run.token_ids != other.token_ids:
        raise KeyholeError("changes takes a run, and what its `with_edits` returned.")
    before, after = (x.logits[-1].double().log_softmax(-1) for x in (run, other))
    likely = dict.fromkeys([*before.topk(top).indices.tolist(), *after.topk(top).indices.tolist()])
    texts = token_texts(run.model.tokenizer, list(likely))
    tokens = [
        TokenChange(text, float(before[i].exp()), float(after[i].exp())) for i, text in zip(likely, texts, strict=True)
    ]
    kl = float((before.exp() * (before - after)).sum())
    heads = dict.fromkeys(edit.head_edited for edit in other.edits if edit.head_edited is not None)
    attention = [row for head in heads for row in _of_head(run, other, head)]
    return Changes(other.edits, tuple(attention), tuple(tokens), kl)


def predicted(run: "Run", edits: Sequence[Edit], head: Head) -> Float[Tensor, "pos pos"] | None:
    """A head's attention under these edits, predicted from the run without them; None if they change its input."""
    layer, index = head
    if any(edit.first_layer < layer or _embeds(edit) for edit in edits):
        return None
    record = run.attention_run(layer)
    terms = [score_terms(run.model, edit) for edit in edits if edit.head_edited == head]  # type: ignore[arg-type]
    at = torch.arange(len(run), device=record.q.device)
    with exact_matmul():
        scaling = record.rule.scaling
        q, k = edited_scores(record.q[None], record.k[None], terms, OfRun(run), tokens=Tokens(at, at), scaling=scaling)
        weights: Tensor = weights_of(q, k, record.first, record.rule, [index])[0, 0]
    return weights


def _embeds(edit: Edit) -> bool:
    return isinstance(edit, WriteEdit) and edit.writer.kind == "embedding"


@dataclass(frozen=True)
class OfRun:
    """A `Reading` from a run's records, at all its tokens: no forward pass is needed."""

    run: "Run"

    def part(self, source: Source, head: Head, side: SideName) -> Queries:
        """The part of a head's rotated query (dest) or key (src) that comes from a writer, at every token."""
        every = range(len(self.run))
        if source.kind == "offset":
            offset = Writer("offset", head[0], head[1], 0, 0)
            return read_of(self.run, head, Signal(offset, side, ()), every)[None]
        return read_vectors(self.run, head, self._written(source), every, side=side)[None]

    def _written(self, source: Source) -> Float[Tensor, "pos d_model"]:
        every = range(len(self.run))
        if source.kind != "head" or source.src.everywhere:
            return written_by(self.run, Writer(source.kind, source.layer, source.head, 0, 0), every, whole=True)
        moved = [
            written_by(self.run, Writer("head", source.layer, source.head, t, t), every)
            for t in _positions(source.src, len(self.run))
        ]
        return torch.stack(moved).sum(0)

    def rotary(self, layer: int) -> Rotary | None:
        """The RoPE rotation of a layer."""
        return self.run.attention_run(layer).rotary

    def all_keys(self, edit: Edit, new: Tensor) -> Tensor:
        """`new` as it is: no key comes from a cache."""
        return new


def _positions(at: At, n: int) -> list[int]:
    return [t for t in at.tokens if t < n] if at.tokens is not None else list(range(at.start, n))


def _of_head(run: "Run", other: "Run", head: Head) -> list[AttentionChange]:
    """Changes of a head's attention from each dest that an edit names (default: the last token).

    The src are those that an edit names, if they are few; otherwise the one that was attended to most.
    """
    edits = [edit for edit in other.edits if edit.head_edited == head]
    before, after = (x.attention_run(head[0]).weights([head[1]], range(len(run)))[0] for x in (run, other))
    foreseen = predicted(run, other.edits, head)
    rows = []
    for dest in sorted({t for edit in edits for t in (edit.dest.tokens or (len(run) - 1,))}):
        named = sorted({t for edit in edits for t in edit.src.tokens or () if t <= dest})
        named = named if len(named) <= _NAMED else []
        for src in named or [int(before[dest].argmax())]:
            rows.append(
                AttentionChange(
                    head,
                    dest,
                    src,
                    float(before[dest, src]),
                    float(after[dest, src]),
                    None if foreseen is None else float(foreseen[dest, src]),
                    run.tokens,
                )
            )
    return rows
