"""Between which two keys is attention moved? One head's original and target key, for every sample.

The original is the positive key that the head attends most (or the first one, for all heads alike); the target is a
random negative key, the same for every head and condition, so that conditions can be compared sample by sample.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from keyhole.contrast.edits.moves import Move, move_of
from keyhole.contrast.features.finding import choose
from keyhole.contrast.onepass.collect import Collected
from keyhole.contrast.onepass.samples import LayerSamples
from keyhole.errors import KeyholeError
from keyhole.models.recording.attention import AttentionRule

Original = Literal["attended", "first"]


@dataclass(frozen=True)
class Pairing:
    """Which samples are edited, and towards which key."""

    slots: Int[Tensor, "samples"]  # into the collected slots
    positive: Bool[Tensor, "samples keys"]
    target: Int[Tensor, "samples"]
    orig: Int[Tensor, "samples"] | None = None  # None: the positive key that each head attends most

    def first(self, n: int) -> "Pairing":
        """The first samples only."""
        orig = None if self.orig is None else self.orig[:n]
        return Pairing(self.slots[:n], self.positive[:n], self.target[:n], orig)


def can_swap(collected: Collected) -> bool:
    """Is there a sample with a positive and a negative key in its query's own prompt?"""
    slots = collected.slots
    positive, negative = (slots.together & (slots.sign == side) for side in (1, -1))
    return bool((positive.any(1) & negative.any(1)).any())


def pair_keys(collected: Collected, *, half: int | None = None, orig: Original = "attended", seed: int = 0) -> Pairing:
    """A random negative key of the query's own prompt as every sample's target."""
    if orig not in ("attended", "first"):
        raise KeyholeError(f"the original key is 'attended' or 'first', not {orig!r}.")
    slots = collected.slots
    positive, negative = (slots.together & (slots.sign == side) for side in (1, -1))
    chosen = choose(collected, half=half)
    chosen = chosen[(positive.any(1) & negative.any(1))[chosen]]
    if not len(chosen):
        raise KeyholeError(
            "no sample has a positive and a negative key in its query's own prompt, so there is nothing to swap."
        )
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(
        slots.sign.shape, generator=generator
    )  # for all slots, so that a half draws what the whole draws
    target = drawn.masked_fill(~negative, -1.0).argmax(1)
    at = slots.keys[..., 1].masked_fill(~positive, 1 << 30).argmin(1) if orig == "first" else None
    return Pairing(chosen, positive[chosen], target[chosen], None if at is None else at[chosen])


@dataclass(frozen=True)
class TwoKeys:
    """All heads of a layer at the two keys of every sample. Pairs are (original, target)."""

    q: Float[Tensor, "samples heads d_head"]
    k: tuple[Float[Tensor, "samples heads d_head"], Float[Tensor, "samples heads d_head"]]
    seen: tuple[
        Float[Tensor, "samples heads d_head"], Float[Tensor, "samples heads d_head"]
    ]  # q, turned as each key is
    framed: tuple[Float[Tensor, "samples heads d_head"], Float[Tensor, "samples heads d_head"]]  # k in the frame
    scores: tuple[Float[Tensor, "samples heads"], Float[Tensor, "samples heads"]]
    bias: tuple[Float[Tensor, "samples heads"], Float[Tensor, "samples heads"]] | None
    visible: tuple[
        Bool[Tensor, "samples heads"], Bool[Tensor, "samples heads"]
    ]  # a window may hide a key in some layers
    rest: Float[Tensor, "samples heads"]  # logsumexp of all other logits of the row
    rule: AttentionRule

    def of(self, chosen: Tensor) -> "TwoKeys":
        """Some of the samples."""

        def both(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            return pair[0][chosen], pair[1][chosen]

        return TwoKeys(
            q=self.q[chosen],
            k=both(self.k),
            seen=both(self.seen),
            framed=both(self.framed),
            scores=both(self.scores),
            bias=None if self.bias is None else both(self.bias),
            visible=both(self.visible),
            rest=self.rest[chosen],
            rule=self.rule,
        )

    def move(self, head: int, new: tuple[Tensor, Tensor], *, pair_only: bool = False) -> Move:
        """The move of one head when its two scores become these (draws may stand in front)."""
        before = self._logits(head, (self.scores[0][:, head], self.scores[1][:, head]))
        after = self._logits(head, new)
        rest = torch.full_like(self.rest[:, head], float("-inf")) if pair_only else self.rest[:, head]
        shape = after[0].shape
        return move_of((before[0].expand(shape), before[1].expand(shape)), after, rest.expand(shape))

    def _logits(self, head: int, scores: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        orig, target = (self.rule.cap(score) for score in scores)
        if self.bias is not None:
            orig, target = orig + self.bias[0][:, head], target + self.bias[1][:, head]
        hidden = ~self.visible[0][:, head], ~self.visible[1][:, head]
        return orig.masked_fill(hidden[0], float("-inf")), target.masked_fill(hidden[1], float("-inf"))


def two_keys(samples: LayerSamples, pairing: Pairing) -> TwoKeys:
    """Read the two keys off a layer; `samples` are those of the pairing's slots."""
    logits, scores = samples.logits(), samples.scores()  # [samples, keys, heads]
    device = logits.device
    n, _, heads = logits.shape
    if pairing.orig is None:
        best = logits.masked_fill(~pairing.positive.to(device)[..., None], float("-inf")).argmax(1)
    else:
        best = pairing.orig.to(device)[:, None].expand(-1, heads)
    where = best, pairing.target.to(device)[:, None].expand(-1, heads)
    row, head = torch.arange(n, device=device)[:, None], torch.arange(heads, device=device)[None]
    framed, kv = samples.keys, head // samples.group
    visible_positive = samples.visible & pairing.positive.to(device)  # if none is, argmax has picked just any key
    others = logits.clone()
    for key in where:
        others[row, key, head] = float("-inf")

    def seen_from(key: Tensor) -> Tensor:
        if samples.k_turns is None:
            return samples.q
        return samples.k_turns.of((row, key)).into(samples.q[:, :, None])[:, :, 0]

    def both(x: Tensor, column: Tensor) -> tuple[Tensor, Tensor]:
        return x[row, where[0], column], x[row, where[1], column]

    return TwoKeys(
        q=samples.q,
        k=both(samples.k, kv),
        seen=(seen_from(where[0]), seen_from(where[1])),
        framed=both(framed, kv),
        scores=both(scores, head),
        bias=None if samples.bias is None else both(samples.bias, head),
        visible=(visible_positive[row, where[0]], samples.visible[row, where[1]]),
        rest=torch.cat([others, samples.rest[:, None]], dim=1).logsumexp(1),
        rule=samples.rule,
    )
