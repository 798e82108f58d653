"""What does a batch, seen in passing, have of a contrast's slots? Filled batch by batch, then frozen."""

import torch
from jaxtyping import Bool
from torch import Tensor

from keyhole.contrast.data.resolve import Slots
from keyhole.contrast.onepass.frames import Frame, Turns, turns_at
from keyhole.contrast.onepass.samples import LayerSamples, frame_turns
from keyhole.contrast.onepass.sums import by_kv_head
from keyhole.models.numbers.precision import working_dtype
from keyhole.models.recording.attention import AttentionRule, visible_mask
from keyhole.models.recording.visit import Seen

_BLOCK_BYTES = 256e6  # of keys gathered for rows of attention at once


class Here:
    """Which slots and keys are in the batch at hand?"""

    def __init__(self, slots: Slots, prompts: list[int], *, longest: int, device: torch.device) -> None:
        row_of = torch.full((max(int(slots.query[:, 0].max()), int(slots.keys[..., 0].max()), *prompts) + 1,), -1)
        row_of[torch.tensor(prompts)] = torch.arange(len(prompts))
        q_row, k_row = row_of[slots.query[:, 0]], row_of[slots.keys[..., 0]]
        self.slot = (q_row >= 0).nonzero()[:, 0]
        self.key = ((k_row >= 0) & (slots.sign != 0)).nonzero(as_tuple=True)
        self.q_row, self.q_at = (x[self.slot].to(device) for x in (q_row, slots.query[:, 1]))
        self.k_row, self.k_at = (x[self.key].to(device) for x in (k_row, slots.keys[..., 1]))
        own = torch.zeros(len(self.slot), longest + 1, dtype=torch.bool)  # one column more, for keys of other prompts
        at = torch.where(slots.together, slots.keys[..., 1], longest)[self.slot]
        self.own: Bool[Tensor, "here pos"] = own.scatter_(1, at, True)[:, :longest].to(device)


class Reading:
    """What one layer showed so far."""

    def __init__(self, slots: Slots, seen: Seen, frame: Frame) -> None:
        self.slots, self.frame = slots, frame
        n, m = slots.sign.shape
        heads, kv, d = seen.q.shape[1], seen.k.shape[1], seen.q.shape[-1]
        empty = torch.zeros((), dtype=working_dtype(seen.q.dtype), device=seen.q.device)
        self.q, self.k = empty.new_zeros(n, heads, d), empty.new_zeros(n, m, kv, d)
        self.rest, self.top = empty.new_zeros(n, heads), empty.new_zeros(n, heads)
        self.first = torch.zeros(n, dtype=torch.long, device=seen.q.device)
        self.bias = None if seen.rule.key_bias is None else empty.new_zeros(n, m, heads)
        self.rule = AttentionRule(seen.rule.scaling, seen.rule.softcap)
        self.q_turns = self.k_turns = None
        if seen.rotary is not None and frame != "post_rope":
            freq, pairing = seen.rotary.cos.shape[-1], seen.rotary.pairing
            self.q_turns = Turns(empty.new_zeros(n, freq), empty.new_zeros(n, freq), pairing)
            self.k_turns = Turns(empty.new_zeros(n, m, freq), empty.new_zeros(n, m, freq), pairing)

    def read(self, seen: Seen, here: Here) -> None:
        """Take what this batch has of the slots."""
        self.q[here.slot] = seen.q[here.q_row, :, here.q_at].to(self.q.dtype)
        self.k[here.key] = seen.k[here.k_row, :, here.k_at].to(self.k.dtype)
        self.first[here.slot] = seen.first[here.q_at]
        if self.bias is not None and seen.rule.key_bias is not None:
            self.bias[here.key] = seen.rule.key_bias[:, here.k_at].T.to(self.bias.dtype)
        rows = max(1, int(_BLOCK_BYTES / (seen.k[0].numel() * self.k.element_size())))
        for block in torch.split(torch.arange(len(here.slot)), rows):
            self.rest[here.slot[block]], self.top[here.slot[block]] = _rest_of_rows(seen, here, block, self.q.dtype)
        if self.q_turns is not None and self.k_turns is not None and seen.rotary is not None:
            for turns, where, at in ((self.q_turns, here.slot, here.q_at), (self.k_turns, here.key, here.k_at)):
                new = turns_at(seen.rotary, at)
                turns.cos[where], turns.sin[where] = new.cos.to(turns.cos.dtype), new.sin.to(turns.sin.dtype)

    def samples(self) -> LayerSamples:
        """Everything, once every prompt of the chunk was run."""
        slots, device = self.slots, self.q.device
        visible = slots.together.to(device) & (slots.keys[..., 1].to(device) >= self.first[:, None])
        turns: tuple[Turns | None, Turns | None] = (None, None)
        if self.q_turns is not None and self.k_turns is not None:
            turns = frame_turns(self.frame, self.q_turns, self.k_turns)
        return LayerSamples(self.q, self.k, self.rest, self.top, visible, self.rule, self.bias, *turns)


def _rest_of_rows(seen: Seen, here: Here, block: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Take logsumexp and maximum of each row's logits without the slot's own keys; sinks count to the rest."""
    row, at = here.q_row[block], here.q_at[block]
    q = by_kv_head(seen.q[row, :, at].to(dtype), seen.k.shape[1])
    scores = torch.einsum("nagd,nasd->nags", q, seen.k[row].to(dtype)).flatten(1, 2) * seen.rule.scaling
    visible = visible_mask(seen.first[at], at, scores.shape[-1]) & ~here.own[block]
    logits = seen.rule.logits(scores[:, :, None], visible[:, None, None])[:, :, 0]
    return logits.logsumexp(-1), logits[..., : scores.shape[-1]].amax(-1)
