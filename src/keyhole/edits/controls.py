"""Is it these channels, and at what price? Other channels, other heads, and text that the edit is not meant for."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from keyhole.edits.applying import edited
from keyhole.edits.records import BiasEdit, ChannelEdit, Edit, SignalEdit, Source, WriteEdit
from keyhole.errors import KeyholeError
from keyhole.progress import Progress
from keyhole.qk.omega import omega

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.models.tokens import Prompt


def with_factor(edits: Sequence[Edit], factor: float) -> tuple[Edit, ...]:
    """The same edits at another strength; constants on scores have none and stay.

    Args:
        edits: The edits.
        factor: The new strength: 0 removes, 1 changes nothing, 2 doubles.

    >>> from keyhole.edits import ChannelEdit
    >>> print(*with_factor([ChannelEdit(head=(3, 6), channels=(0,))], 2))
    channels 0 of head 3.6 x 2
    """
    return tuple(edit if isinstance(edit, BiasEdit) else _scaled(edit, factor) for edit in edits)


def _scaled(edit: Any, factor: float) -> Edit:
    scaled: Edit = replace(edit, factor=factor)
    return scaled


def random_channels(model: "Model", edits: Sequence[Edit], seed: int = 0) -> tuple[Edit, ...]:
    """A control: as many other channels of the same heads, at the same tokens and by the same factor.

    Signals keep their writers. Edits without channels stay as they are; if none has any, this is refused.

    Args:
        model: The model that the edits are for.
        edits: The edits.
        seed: Seed of the draw.

    >>> import keyhole
    >>> from keyhole.edits import ChannelEdit
    >>> [edit] = random_channels(keyhole.load(), [ChannelEdit(head=(3, 6), channels=(0, 1))])
    >>> len(edit.channels), bool({0, 1} & set(edit.channels))
    (2, False)
    """
    if not any(isinstance(edit, ChannelEdit | SignalEdit) for edit in edits):
        raise KeyholeError("these edits name no channels, so that random channels are no control: use random heads.")
    generator = torch.Generator().manual_seed(seed)
    taken = {
        head: {k for e in edits if e.head_edited == head for k in getattr(e, "channels", ())} for head in _heads(edits)
    }
    drawn: dict[tuple[tuple[int, int], int], int] = {}

    def other(head: tuple[int, int], channel: int) -> int:
        """Another channel for this one, the same wherever it is named."""
        if (head, channel) not in drawn:
            used = {to for (of, _), to in drawn.items() if of == head}
            rank = int(omega(model, head[0]).rank[head[1]])
            free = [k for k in range(rank) if k not in taken[head] | used] or [k for k in range(rank) if k not in used]
            drawn[head, channel] = free[int(torch.randint(len(free), (), generator=generator))]
        return drawn[head, channel]

    return tuple(
        replace(edit, channels=tuple(other(edit.head, k) for k in edit.channels))
        if isinstance(edit, ChannelEdit | SignalEdit)
        else edit
        for edit in edits
    )


def _channels(edit: Edit) -> tuple[int, ...]:
    return edit.channels if isinstance(edit, ChannelEdit | SignalEdit) else ()


def _heads(edits: Sequence[Edit]) -> set[tuple[int, int]]:
    return {edit.head_edited for edit in edits if edit.head_edited is not None}


def random_heads(model: "Model", edits: Sequence[Edit], seed: int = 0) -> tuple[Edit, ...]:
    """A control: the same edits in other heads of the same layers, each head's edits together in one other head.

    Args:
        model: The model that the edits are for.
        edits: The edits.
        seed: Seed of the draw.

    >>> import keyhole
    >>> from keyhole.edits import ChannelEdit
    >>> [edit] = random_heads(keyhole.load(), [ChannelEdit(head=(3, 6), channels=(0,))])
    >>> edit.head[0], edit.head != (3, 6)
    (3, True)
    """
    generator = torch.Generator().manual_seed(seed)
    written = {
        (edit.writer.layer, edit.writer.head)
        for edit in edits
        if isinstance(edit, WriteEdit) and edit.writer.head is not None
    }
    heads = sorted(_heads(edits) | written)  # type: ignore[type-var]
    if not heads:
        raise KeyholeError("these edits are in no head, so that other heads are no control.")
    moved: dict[tuple[int, int], tuple[int, int]] = {}
    for layer, head in heads:  # type: ignore[misc]
        used = {to for of, to in moved.items() if of[0] == layer}
        free = [(layer, h) for h in range(model.dims.heads) if (layer, h) not in used | set(heads)]
        free = free or [(layer, h) for h in range(model.dims.heads) if (layer, h) not in used]
        moved[layer, head] = free[int(torch.randint(len(free), (), generator=generator))]  # type: ignore[index]
    return tuple(_in_head(edit, moved) for edit in edits)


def control(model: "Model", edits: Sequence[Edit], seed: int = 0) -> tuple[str, tuple[Edit, ...]] | None:
    """The control that these edits can have, with its name: random channels, else random heads; None: neither."""
    if any(_channels(edit) for edit in edits):
        return "random channels", random_channels(model, edits, seed)
    if _heads(edits) or any(isinstance(edit, WriteEdit) and edit.writer.head is not None for edit in edits):
        return "random heads", random_heads(model, edits, seed)
    return None


def _in_head(edit: Edit, moved: dict[tuple[int, int], tuple[int, int]]) -> Edit:
    if edit.head_edited is not None:
        return replace(edit, head=moved[edit.head_edited])  # type: ignore[call-arg]
    if isinstance(edit, WriteEdit) and edit.writer.head is not None:
        layer, head = moved[edit.writer.layer, edit.writer.head]
        return replace(edit, writer=Source("head", layer, head, edit.writer.src))
    return edit


@dataclass(frozen=True)
class SideEffects:
    """What edits do to text that they are not meant for."""

    tokens: int  # how many were predicted
    kl: float  # mean over tokens, of the edited model's next token from the model's own, in nats
    perplexity_before: float
    perplexity_after: float

    def __str__(self) -> str:
        return (
            f"on {self.tokens:,} other tokens: KL divergence {self.kl:.4f} nats, perplexity "
            f"{self.perplexity_before:.2f} -> {self.perplexity_after:.2f}"
        )


def side_effects(
    model: "Model", edits: Sequence[Edit], texts: Sequence["Prompt"], *, progress: Progress | None = None
) -> SideEffects:
    """What do edits do to unrelated text? Compared token by token with the model without them.

    Args:
        model: The model.
        edits: The edits; those at named tokens are made there in every text.
        texts: Prompts of two tokens or more.
        progress: Called with the number of texts done and their total.

    >>> import keyhole
    >>> from keyhole.edits import ChannelEdit
    >>> model = keyhole.load()
    >>> edit = ChannelEdit(head=(3, 6), channels=(0,))
    >>> effects = side_effects(model, [edit], ["When Mary and John went to the store"])
    >>> effects.tokens, effects.kl > 0
    (8, True)
    """
    kl, losses, n = 0.0, [0.0, 0.0], 0
    for done, text in enumerate(texts):
        if progress is not None:
            progress(done, len(texts))
        run = model.run(text)
        with edited(model, edits):
            other = model.run(list(run.token_ids), bos=False)
        before, after = (x.logits[:-1].double().log_softmax(-1) for x in (run, other))
        following = torch.tensor(run.token_ids[1:], device=before.device)
        kl += float((before.exp() * (before - after)).sum())
        for i, rows in enumerate((before, after)):
            losses[i] -= float(rows.gather(1, following[:, None]).sum())
        n += len(following)
    if progress is not None:
        progress(len(texts), len(texts))
    if not n:
        raise KeyholeError("there is no token to predict: give texts of two tokens or more.")
    first, second = (float(torch.tensor(loss / n).exp()) for loss in losses)
    return SideEffects(n, kl / n, first, second)
