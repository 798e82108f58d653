"""What did one layer's heads have at the sites of a contrast? Queries, keys, and what else stood in the query's row.

Keys are kept per KV head; query head h reads KV head h // group. The rest of a row (every visible token that is not a
key of the slot, and attention sinks) enters a softmax only through its logsumexp.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from keyhole.brief import brief
from keyhole.contrast.onepass.frames import Frame, Turns
from keyhole.contrast.onepass.sums import by_kv_head
from keyhole.models.recording.attention import AttentionRule


@dataclass(frozen=True)
class LayerSamples:
    """One layer at every slot. q and k are as the scores use them; `queries` and `keys` give them in the frame."""

    __repr__ = brief

    q: Float[Tensor, "slots heads d_head"]
    k: Float[Tensor, "slots keys kv_heads d_head"]
    rest: Float[Tensor, "slots heads"]  # logsumexp of the row's other logits
    top: Float[Tensor, "slots heads"]  # the largest of them
    visible: Bool[Tensor, "slots keys"]  # does the query see this key? (same prompt, inside the window, no padding)
    rule: AttentionRule  # scaling and softcap; sinks are in `rest`
    bias: Float[Tensor, "slots keys heads"] | None = None  # ALiBi
    q_turns: Turns | None = None  # None: the frame is the scores' own
    k_turns: Turns | None = None

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.q.shape[1] // self.k.shape[2]

    @property
    def queries(self) -> Float[Tensor, "slots heads d_head"]:
        """Queries in the frame."""
        return self.q if self.q_turns is None else self.q_turns.into(self.q)

    @property
    def keys(self) -> Float[Tensor, "slots keys kv_heads d_head"]:
        """Keys in the frame."""
        return self.k if self.k_turns is None else self.k_turns.into(self.k)

    def of(self, chosen: Tensor) -> "LayerSamples":
        """Some of the slots."""
        return replace(
            self,
            q=self.q[chosen],
            k=self.k[chosen],
            rest=self.rest[chosen],
            top=self.top[chosen],
            visible=self.visible[chosen],
            bias=None if self.bias is None else self.bias[chosen],
            q_turns=None if self.q_turns is None else self.q_turns.of(chosen),
            k_turns=None if self.k_turns is None else self.k_turns.of(chosen),
        )

    def scores(self, q: Float[Tensor, "slots heads d_head"] | None = None) -> Float[Tensor, "slots keys heads"]:
        """Scaled, uncapped scores; of other queries (parts of them, in the scores' own coordinates) if given."""
        grouped = by_kv_head(self.q if q is None else q, self.k.shape[2])
        return torch.einsum("nagd,nkad->nkag", grouped, self.k).flatten(2) * self.rule.scaling

    def logits(self, scores: Float[Tensor, "slots keys heads"] | None = None) -> Float[Tensor, "slots keys heads"]:
        """What enters the softmax: capped, biased, minus infinity where the query does not see."""
        logits = self.rule.cap(self.scores() if scores is None else scores)
        if self.bias is not None:
            logits = logits + self.bias
        return logits.masked_fill(~self.visible[..., None], float("-inf"))

    def weights(self, logits: Float[Tensor, "slots keys heads"] | None = None) -> Float[Tensor, "slots keys heads"]:
        """Attention of the slots' keys."""
        logits = self.logits() if logits is None else logits
        return torch.cat([logits, self.rest[:, None]], dim=1).softmax(1)[:, :-1]


def frame_turns(frame: Frame, query: Turns, keys: Turns) -> tuple[Turns | None, Turns | None]:
    """Which rotations lead into a frame, given those of the query's and the keys' own positions."""
    if frame == "post_rope":
        return None, None
    if frame == "pre_rope":
        return query, keys
    sites = keys.cos.shape[:-1]
    same = Turns(query.cos[:, None].expand(*sites, -1), query.sin[:, None].expand(*sites, -1), query.pairing)
    return query, same


def joined(parts: Sequence[LayerSamples]) -> LayerSamples:
    """Samples one after the other."""

    def turns(all_: list[Turns | None]) -> Turns | None:
        given = [t for t in all_ if t is not None]
        if not given:
            return None
        return Turns(torch.cat([t.cos for t in given]), torch.cat([t.sin for t in given]), given[0].pairing)

    return LayerSamples(
        q=torch.cat([part.q for part in parts]),
        k=torch.cat([part.k for part in parts]),
        rest=torch.cat([part.rest for part in parts]),
        top=torch.cat([part.top for part in parts]),
        visible=torch.cat([part.visible for part in parts]),
        rule=parts[0].rule,
        bias=None if parts[0].bias is None else torch.cat([part.bias for part in parts if part.bias is not None]),
        q_turns=turns([part.q_turns for part in parts]),
        k_turns=turns([part.k_turns for part in parts]),
    )
