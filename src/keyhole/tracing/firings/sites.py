"""Which firings are explained together? Those of one layer, of all its heads and of all runs side by side."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from keyhole.models.numbers.precision import working_dtype
from keyhole.models.recording.attention import visible_mask

if TYPE_CHECKING:
    from keyhole.models.run import AttentionRun


@dataclass(frozen=True)
class Sites:
    """Firings of one layer: a head of a run at its dest, looking at src."""

    run: Int[Tensor, "firing"]
    head: Int[Tensor, "firing"]
    dest: Int[Tensor, "firing"]
    src: Int[Tensor, "firing"]

    @classmethod
    def of(cls, places: Sequence[tuple[int, int, int, int]], device: torch.device) -> "Sites":
        """From (run, head, dest, src) each."""
        return cls(*torch.tensor(places, dtype=torch.long, device=device).view(-1, 4).T.contiguous())

    def __len__(self) -> int:
        return len(self.run)

    def __getitem__(self, firings: Tensor | slice) -> "Sites":
        return Sites(*(getattr(self, field.name)[firings] for field in fields(self)))

    def scores(self, record: "AttentionRun") -> Float[Tensor, "firing key"]:
        """Scaled, uncapped scores of each firing's dest against every key, visible or not."""
        dtype = working_dtype(record.q.dtype)
        q, k = record.q[self.run, self.head, self.dest].to(dtype), record.k[self.run, record.kv(self.head)].to(dtype)
        return (k @ q[:, :, None])[..., 0] * record.rule.scaling

    def visible(self, record: "AttentionRun") -> Bool[Tensor, "firing key"]:
        """Which keys does each dest see?"""
        return visible_mask(record.first[self.dest], self.dest, len(record.first))
