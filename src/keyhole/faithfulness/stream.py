"""What was written so far, and what does each reader read of it? The state of one pass with masks."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.faithfulness.token_masks import Mask, Rows

if TYPE_CHECKING:
    from keyhole.faithfulness.blocks import Side
    from keyhole.faithfulness.masked import Masked

Writes = Float[Tensor, "writer prompt pos d_model"]


class Stream:
    """The one thing here that changes: writers write into it in their order, and readers read when it is their turn."""

    def __init__(
        self, masked: "Masked", mask: Float[Tensor, "writer reader"] | Sequence[Mask], *, keep: bool = False
    ) -> None:
        words, baseline = masked.words, masked.baseline
        self._heads = list(range(masked.model.dims.heads))
        self._mask: Tensor | None = None
        self._rows: Rows | None = None
        if isinstance(mask, Tensor):
            self._mask = mask.to(words)
        else:
            self._rows = Rows(mask, words, len(self._heads), [block.separable for block in masked.blocks])
            words = words[self._rows.prompt]
            if baseline is not None and baseline.ndim == words.ndim + 1:
                baseline = baseline[:, self._rows.prompt]
        if baseline is not None and baseline.ndim == words.ndim:
            baseline = baseline[:, None]
        self.words, self._baseline = words, baseline
        self.constant = torch.zeros_like(words)  # what every reader reads, whatever the mask
        self._total = torch.zeros_like(words)  # of all changes, for copies with a ground
        self.reads: list[tuple[list[int], Tensor]] | None = [] if keep else None  # which readers read what, if kept
        # Writes less baselines, of all who wrote; lists hand them on as they are written, and need them no more.
        needed = self._rows is None or bool(self._rows.dense) or keep
        self._next = 0
        self._room = words.new_empty(len(masked.wiring.writers) if needed else 0, *words.shape)
        # A gradient by the mask itself goes through all that was written: then they are put together anew each time.
        self._joined = words.new_empty(0, *words.shape) if self._rows is None and torch.is_grad_enabled() else None

    def heads(self, layer: int) -> list[int]:
        """Heads of a layer that anybody reads; all, where they cannot be taken apart."""
        return self._heads if self._rows is None else self._rows.heads[layer]

    def write(self, what: Float[Tensor, "some row pos d_model"] | None, n: int, some: Sequence[int] = (0,)) -> None:
        """The next n writers, of which some write this; the others, which nobody reads, write their baseline."""
        start, self._next = self._next, self._next + n
        if self._baseline is not None:
            instead = self._baseline[start : self._next]
            self.constant = self.constant + instead.sum(0)
            if what is not None:
                what = what - (instead if len(what) == n else instead[list(some)])
        if what is None:
            return
        if self._rows is not None:
            if self._rows.ground is not None:
                self._total = self._total + what.sum(0)
            self._rows.hand_on(start, what)
        if self._joined is not None:
            self._joined = torch.cat([self._joined, what])
        elif len(self._room):
            place = slice(start, self._next) if len(what) == n else [start + one for one in some]
            self._room[place] = what.detach()

    def at_mlp(self, reader: int, layer: int) -> Float[Tensor, "group place d_model"] | None:
        """What an MLP reads, wherever anybody reads what it writes; None: nowhere."""
        places = None if self._rows is None else self._rows.fed[layer]
        if places is None:
            return self.at(range(reader, reader + 1))[0]
        return self.at(range(reader, reader + 1))[0][places][None] if len(places[0]) else None

    def write_mlp(self, what: Float[Tensor, "group place d_model"] | None, layer: int) -> None:
        """What it makes of that."""
        places = None if self._rows is None else self._rows.fed[layer]
        if what is None or places is None:
            self.write(None if what is None else what[None], 1)
            return
        assert self._rows is not None
        start = self._next
        self.write(None, 1)
        if self._baseline is not None:
            what = what - self._baseline[start].expand_as(self.words)[places]
        self._rows.hand_on(start, what)
        if len(self._room):
            self._room[start][places] = what[0].detach()

    def at(self, readers: range, heads: Sequence[int] | None = None) -> Float[Tensor, "reader row pos d_model"]:
        """What some readers read now; `heads` picks some of a layer's."""
        numbers = list(readers) if heads is None else [readers[head] for head in heads]
        if self._rows is None:
            assert self._mask is not None
            mask = self._mask[: self._next, readers.start : readers.stop]
            read = (mask.T @ self.changes.flatten(1)).view(-1, *self.constant.shape) + self.constant
        else:
            base = self.constant
            if self._rows.ground is not None:
                base = base + self._rows.ground[:, None, None] * self._total
            read = self._rows.received(readers.start, len(numbers), base)
            if self._rows.dense:
                read = read.clone()
                read[:, self._rows.dense] += self._rows.scattered(self.changes, readers)
        if self.reads is not None:
            self.reads.append((numbers, read if read.requires_grad else read.requires_grad_()))
        return read

    def lost(self, first: int, side: "Side", heads: Sequence[int]) -> Float[Tensor, "head row pos d_head"] | None:
        """What the queries or keys of a layer go without: `first` is the first of these readers."""
        return None if self._rows is None or not heads else self._rows.lost(first, side.W, heads)

    @property
    def changes(self) -> Writes:
        """What all have written so far, less their baselines; where only some are read, of these."""
        return self._room[: self._next] if self._joined is None else self._joined

    @property
    def written(self) -> Writes:
        """What all have written."""
        return self.changes if self._baseline is None else self.changes + self._baseline
