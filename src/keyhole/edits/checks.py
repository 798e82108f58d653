"""Can these edits be made in this model? Everything that one names must be there, and no two may overlap unclearly."""

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

from keyhole.brief import head_name
from keyhole.edits.records import At, BiasEdit, CauseEdit, ChannelEdit, Edit, FeatureEdit, SignalEdit, Source, WriteEdit
from keyhole.edits.scores import folds
from keyhole.errors import KeyholeError
from keyhole.models.numbers import require_same_weights
from keyhole.qk.omega import omega
from keyhole.strict import quoted

if TYPE_CHECKING:
    from keyhole.models.model import Model


def require_edits(model: "Model", edits: Sequence[Edit], n: int | None = None) -> None:
    """Refuse edits that this model, or a text of n tokens, has no place for; and two that mean the same term."""
    if isinstance(edits, Edit) or not all(isinstance(edit, Edit) for edit in edits):
        wrong = edits if isinstance(edits, Edit) else next(edit for edit in edits if not isinstance(edit, Edit))
        raise KeyholeError(f"edits are a list of edits, such as [edge.edit(factor=0)], not {quoted(wrong)}.")
    for edit in edits:
        if edit.model:
            require_same_weights(
                edit.model, model.fingerprint(), f"{edit} was made for other weights than those of {model.name}."
            )
        _require_head(model, edit.head_edited)
        _require_parts(model, edit)
        _require_tokens(model, edit, n)
    for edit, other in combinations(edits, 2):
        if _same_term(edit, other):
            raise KeyholeError(f"two edits change the same term at a token: {edit}; {other}. Give one factor for both.")


def _require_head(model: "Model", head: tuple[int, int] | None) -> None:
    if head is None:
        return
    layer, index = head
    if layer not in model.attention_layers or index >= model.dims.heads:
        raise KeyholeError(
            f"there is no head {head_name(head)}: {model.name} has {model.dims.heads} heads in each of its "
            f"{len(model.attention_layers)} attention layers."
        )


def _require_parts(model: "Model", edit: Edit) -> None:
    if isinstance(edit, ChannelEdit | SignalEdit):
        rank = int(omega(model, edit.head[0]).rank[edit.head[1]])
        if max(edit.channels) >= rank:
            raise KeyholeError(
                f"there is no channel {max(edit.channels)}: head {head_name(edit.head)} has channels 0 to {rank - 1}."
            )
    if isinstance(edit, FeatureEdit) and len(edit.basis[0]) != model.dims.d_head:
        raise KeyholeError(
            f"the feature has {len(edit.basis[0])} coordinates, but heads of {model.name} have {model.dims.d_head}."
        )
    if isinstance(edit, SignalEdit):
        _require_source(model, edit.writer, edit.head[0])
    if isinstance(edit, CauseEdit):
        _require_mlp(model, edit.layer)
        parallel = getattr(model.mlp(edit.layer), "parallel", True)
        for writer in edit.writers:
            attends = writer.kind in ("head", "bias") and writer.layer == edit.layer and not parallel
            _require_source(model, writer, edit.layer + 1 if attends else edit.layer)
    if isinstance(edit, WriteEdit):
        _require_source(model, edit.writer, model.dims.layers)


def _require_mlp(model: "Model", layer: int) -> None:
    if layer >= model.dims.layers:
        raise KeyholeError(f"there is no layer {layer}: {model.name} has layers 0 to {model.dims.layers - 1}.")


def _require_source(model: "Model", source: Source, below: int) -> None:
    """A writer that is there, and whose writes are read above it."""
    _require_mlp(model, source.layer)
    if source.kind == "head" and source.head is not None:
        _require_head(model, (source.layer, source.head))
    if source.kind == "bias" and source.layer not in model.attention_layers:
        raise KeyholeError(f"layer {source.layer} of {model.name} has no attention, and so no bias.")
    if source.kind == "mixer" and source.layer in model.attention_layers:
        raise KeyholeError(f"layer {source.layer} of {model.name} has attention heads, and no other mixer.")
    if source.kind not in ("embedding", "offset") and source.layer >= below:
        raise KeyholeError(f"{source} writes nothing that layer {below} reads: it stands no lower.")


def places_of(edit: Edit) -> list[At]:
    """All that an edit says of tokens: where it is made, and what its heads move from."""
    writers = edit.writers if isinstance(edit, CauseEdit) else ()
    writers = (edit.writer,) if isinstance(edit, SignalEdit | WriteEdit) else writers
    return [edit.dest, edit.src, *(writer.src for writer in writers)]


def _require_tokens(model: "Model", edit: Edit, n: int | None) -> None:
    last, most = max(place.last for place in places_of(edit)), model.dims.positions
    if n is not None and last >= n:
        raise KeyholeError(f"{edit} names token {last}, but there are {n} tokens.")
    if most is not None and last >= most:
        raise KeyholeError(f"{edit} names token {last}, but {model.name} has {most} positions.")


def _same_term(edit: Edit, other: Edit) -> bool:
    """Do two edits change the same term somewhere, so that each would change what the other has changed already?"""
    if type(edit) is not type(other) or not (edit.dest.overlaps(other.dest) and edit.src.overlaps(other.src)):
        return False
    both_fold = folds(edit) and folds(other)  # queries are changed one after the other
    if isinstance(edit, ChannelEdit) and isinstance(other, ChannelEdit):
        return not both_fold and edit.head == other.head and bool(set(edit.channels) & set(other.channels))
    if isinstance(edit, SignalEdit) and isinstance(other, SignalEdit):
        same: Any = (edit.head, edit.side) == (other.head, other.side) and _meet(edit.writer, other.writer)
        return bool(same and set(edit.channels) & set(other.channels))
    if isinstance(edit, FeatureEdit) and isinstance(other, FeatureEdit):
        return not both_fold and (edit.head, edit.side) == (other.head, other.side)
    if isinstance(edit, CauseEdit) and isinstance(other, CauseEdit):
        return edit.layer == other.layer and any(_meet(a, b) for a in edit.writers for b in other.writers)
    if isinstance(edit, WriteEdit) and isinstance(other, WriteEdit):
        return edit.writer.kind == "head" and _meet(edit.writer, other.writer)
    assert isinstance(edit, BiasEdit)
    return False  # constants add up


def _meet(a: Source, b: Source) -> bool:
    return (a.kind, a.layer, a.head) == (b.kind, b.layer, b.head) and a.src.overlaps(b.src)
