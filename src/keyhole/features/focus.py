"""Which edits make a model look where it is told to? Marked text becomes easier to find for heads that look things up.

Retrieval heads are found once per model, by a contrast: lists of things of several kinds, one kind of which is asked
for. In each head the feature of the contrast is a subspace of its keys, by which asked items are told from others. An
edit multiplies the coordinates of the marked tokens' keys in it, which amplifies what the head does: a key that a query
looks for is looked at more then, and one whose product with the query is negative is looked at less.
"""

import operator
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

from keyhole import cache
from keyhole.brief import Head, head_name
from keyhole.edits.files import edits_of_json, to_json
from keyhole.edits.records import At, FeatureEdit, Frame, require_number
from keyhole.errors import KeyholeError
from keyhole.features.contrast.collect import collect
from keyhole.features.contrast.finding import Features, find_features
from keyhole.features.contrast.lists import lists_contrast, lists_test
from keyhole.features.contrast.ranking import head_attention, rank_heads
from keyhole.models.chat import chat_text, is_messages
from keyhole.models.tokens import encode, token_spans, tokens_in
from keyhole.progress import Progress
from keyhole.strict import is_index, quoted, read_text

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.models.tokens import Prompt

STRENGTH = 3.0  # side effects of some 0.007 nats on prose in SmolLM2: see docs/edits.md
_FRAME: Frame = "pre_rope"  # what a key says, wherever its token stands
_TESTED = 60  # lists that choose the heads; others make their features
_FEWEST, _SHARE = 4, 0.05  # how many heads are taken: one in twenty, and some in small models
_LEVEL = 0.05  # of the corrected p-value of a head's explained gap
_FILE = "features.json"

Span = str | int | Sequence[int]  # a text of the prompt, or token positions


def focus(
    model: "Model",
    prompt: "Prompt",
    span: Span,
    *,
    strength: float = STRENGTH,
    heads: Sequence[Head] | None = None,
    bos: bool | None = None,
    progress: Progress | None = None,
) -> tuple[FeatureEdit, ...]:
    """Edits that make a model look more at a part of its prompt: `model.generate(prompt, edits=...)`.

    Args:
        model: The model.
        prompt: Text, token ids, or messages of a chat.
        span: What to look at: a text that stands once in the prompt, or token positions.
        strength: What the span's keys are multiplied with, in the features by which retrieval heads find keys; 1
            changes nothing.
        heads: In which heads, as (layer, head). Default: the model's retrieval heads; see `retrieval_features`.
        bos: As in `model.run`.
        progress: Called with the number of layers done and their total, when features are found for the first time.

    >>> import keyhole
    >>> model = keyhole.load()
    >>> prompt = "Here is a list: apple, horse, coffee, truck. Find the animals:"
    >>> edits = keyhole.focus(model, prompt, "horse", strength=2)
    >>> edits[0].side, edits[0].factor, str(edits[0].src)
    ('src', 2, 'at 8')
    """
    require_number("strength", strength)
    where = At(span_tokens(model, prompt, span, bos=bos))
    features = retrieval_features(model, heads, progress=progress)
    return tuple(replace(feature, factor=strength, src=where) for feature in features)


def span_tokens(model: "Model", prompt: "Prompt", span: Span, *, bos: bool | None = None) -> tuple[int, ...]:
    """Which tokens of a prompt are meant? Those that cover some of a text, or those at positions.

    >>> import keyhole
    >>> span_tokens(keyhole.load(), "When Mary and John went to the store", "Mary and John")
    (2, 3, 4)
    """
    ids = encode(model, prompt, bos).ids
    if isinstance(span, str):
        if is_messages(prompt):
            prompt = chat_text(model, prompt)  # type: ignore[arg-type]
        if not isinstance(prompt, str):
            raise KeyholeError(f"the prompt is token ids, in which {quoted(span)} cannot be found: give positions.")
        return _tokens_of_text(model, prompt, span, ids)
    if not isinstance(span, SupportsIndex | Iterable):
        raise KeyholeError(f"the span is a text of the prompt or token positions, not {quoted(span)}.")
    given = (span,) if isinstance(span, SupportsIndex) else tuple(span)
    if not given:
        raise KeyholeError("the span has no token: give a text of the prompt, or one token position or more.")
    return tuple(sorted({_position(position, len(ids)) for position in given}))


def _position(where: Any, n: int) -> int:
    """One of n positions; negative ones count from the end."""
    if not isinstance(where, SupportsIndex) or not -n <= operator.index(where) < n:
        raise KeyholeError(f"the span names token {quoted(where)}, but the prompt has {n} tokens, numbered from 0.")
    return operator.index(where) % n


def _tokens_of_text(model: "Model", prompt: str, span: str, ids: tuple[int, ...]) -> tuple[int, ...]:
    sought = span.strip()
    if not sought:
        raise KeyholeError("the span is empty: give a text of the prompt, or token positions.")
    start = prompt.find(sought)
    if start < 0:
        raise KeyholeError(f"the span {quoted(span)} is not in the prompt: give a text that stands there once.")
    if prompt.find(sought, start + 1) >= 0:
        raise KeyholeError(
            f"the span {quoted(span)} stands in the prompt more than once: give more of the text, or token positions."
        )
    tokens = tuple(tokens_in(token_spans(model, prompt, ids), start, start + len(sought)))
    if not tokens:
        raise KeyholeError(f"no token of the prompt covers the span {quoted(span)}: give token positions.")
    return tokens


# Which heads look up what is asked for, and by which coordinates of their keys? Once per model.


def retrieval_features(
    model: "Model", heads: Sequence[Head] | None = None, *, progress: Progress | None = None
) -> tuple[FeatureEdit, ...]:
    """A model's retrieval heads, the best first, with the feature of their keys, as edits of factor 1.

    The contrast: the items of a list that are of the kind asked for, against its other items. Features come from some
    lists, and the heads from others: of those whose feature explains a part of the gap (p up to 5 %, corrected over
    heads), one in twenty, those whose attention to asked items exceeds that to others most. Given `heads` are taken as
    they are, with one dimension at least.

    They are kept in the user's cache for these weights; `keyhole cache` lists it.
    """
    chosen = None if heads is None else _require_heads(model, heads)
    fingerprint = model.fingerprint()
    names = "best" if chosen is None else " ".join(map(head_name, chosen))
    key = cache.key_of(what="retrieval features 1", model=fingerprint, heads=names)
    if (entry := cache.find(key)) is not None:
        try:
            return read_features(entry.path / _FILE, model)
        except KeyholeError:
            cache.remove(entry.path)  # a file of another version, or another model's
    features = _find(model, chosen, progress)
    text = to_json(features, model)

    def write(folder: Path) -> None:
        (folder / _FILE).write_text(text, encoding="utf-8")

    cache.keep(key, f"retrieval features of {model.name}", {}, size=len(text), write=write)
    return features


def read_features(path: Path, model: "Model") -> tuple[FeatureEdit, ...]:
    """Features as they are kept; those of other weights are refused, and so is any other kind of edit."""
    features = tuple(edit for edit in edits_of_json(read_text(path)) if isinstance(edit, FeatureEdit))
    if not features or any(edit.model != model.fingerprint() or edit.side != "src" for edit in features):
        raise KeyholeError(f"{path.name} has no retrieval features of {model.name}.")
    return features


def _require_heads(model: "Model", heads: Sequence[Head]) -> tuple[Head, ...]:
    if not heads:
        raise KeyholeError("there are no heads to edit: give one or more, or None for the model's retrieval heads.")
    for head in heads:
        if not isinstance(head, Sequence) or len(head) != 2 or not all(map(is_index, head)):
            raise KeyholeError(f"a head is a layer and a number, such as (3, 6), not {quoted(head)}.")
        if head[0] not in model.attention_layers or head[1] >= model.dims.heads:
            raise KeyholeError(
                f"there is no head {head_name((head[0], head[1]))}: {model.name} has {model.dims.heads} heads in each "
                f"of its {len(model.attention_layers)} attention layers."
            )
    return tuple(dict.fromkeys((layer, head) for layer, head in heads))


def _find(model: "Model", heads: tuple[Head, ...] | None, progress: Progress | None) -> tuple[FeatureEdit, ...]:
    fit = collect(model, lists_contrast(model, max(model.dims.d_head, 100)), frame=_FRAME)
    features = find_features(fit, progress=progress, permutations=100)
    ranks = {}
    if heads is None:
        heads = _retrieval_heads(model, features)
    else:
        ranks = {head: max(1, features.rank(head)) for head in heads}
    found = (features.of(head, ranks.get(head, "null")) for head in heads)
    return tuple(
        replace(feature.edit(factor=1.0, frame=_FRAME), model=model.fingerprint(), name="asked items")
        for feature in found
    )


def _retrieval_heads(model: "Model", features: Features) -> tuple[Head, ...]:
    """The heads that look more at each asked item than at each other one, as far as the feature has a part in it."""
    test = collect(model, lists_test(model, _TESTED), frame=_FRAME)
    sign = test.slots.sign
    fewer = float((sign == 1).sum()) / float((sign == -1).sum())  # asked items are fewer than others
    gain = {row.head: row.positive - fewer * row.negative for row in head_attention(test)}
    scores = rank_heads(features, test, permutations=400)
    usable = [score.head for score in scores if score.rank and score.p_corrected <= _LEVEL and gain[score.head] > 0]
    if not usable:
        raise KeyholeError(
            f"{model.name} has no retrieval head: no head finds the asked items of a list by a feature of their keys. "
            "Name heads by `heads=`."
        )
    most = max(_FEWEST, round(_SHARE * len(scores)))
    return tuple(sorted(usable, key=lambda head: -gain[head])[:most])
