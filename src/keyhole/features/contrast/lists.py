"""Contrasts of lists by category, ranks against the number of entities, and what makes up a built-in study.

By which feature does a head find the items of a category? A contrast per category: its items against all others.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

from keyhole.brief import Head
from keyhole.errors import KeyholeError, require_choice
from keyhole.features.contrast.boxes import boxes_test, lexical_contrast, order_contrast, reflexive_contrast
from keyhole.features.contrast.collect import collect
from keyhole.features.contrast.finding import find_features
from keyhole.features.contrast.sites import Contrast
from keyhole.progress import Progress
from keyhole.tasks.example import Example
from keyhole.tasks.things import lists

if TYPE_CHECKING:
    from keyhole.models.model import Model

Categories = Sequence[str] | Mapping[str, Sequence[str]]  # built-in ones by name, or any with their items
FIVE = ("animals", "fruits", "liquids", "vehicles", "countries")


def lists_contrast(
    model: "Model",
    n: int,
    *,
    seed: int = 0,
    wording: str = "plain",
    per_category: int = 2,
    categories: Categories = FIVE,
    chat: bool = False,
) -> Contrast:
    """Are items found by their category? Lists with `per_category` items of each, shuffled; categories asked in turn.

    Query: the last token. Positive: the items of the asked category; negative: all others; an item of several tokens
    is its last one. Label: the asked category. The published setting is five per category, `wording="instruct"` and
    `chat=True`; the organism knows lists of up to twelve items.

    Args:
        model: The model, whose tokenizer splits the items.
        n: How many lists there are.
        seed: Seed of the items and their order.
        wording: "plain", as the organism knows it, or "instruct".
        per_category: Items of each category in a list.
        categories: Built-in ones by name, or any with their items.
        chat: Whether a list is a message to a model with a chat template.

    >>> import keyhole
    >>> lists_contrast(keyhole.load(), 10).labels
    ('animals', 'fruits', 'liquids', 'vehicles', 'countries')
    """
    examples = _in_turn(n, seed, wording=wording, per_category=per_category, categories=categories, held_out=False)
    return _asked_against_others("lists by category", model, examples, chat=chat)


def lists_test(
    model: "Model",
    n: int,
    *,
    seed: int = 1,
    wording: str = "plain",
    per_category: int = 2,
    categories: Categories = FIVE,
    chat: bool = False,
) -> Contrast:
    """Do category features hold for new lists? Their requested items never stood together in the contrast's lists.

    Args:
        model: As in `lists_contrast`.
        n: How many lists there are.
        seed: A seed other than that of the contrast.
        wording: As in `lists_contrast`.
        per_category: As in `lists_contrast`.
        categories: As in `lists_contrast`.
        chat: As in `lists_contrast`.

    >>> import keyhole
    >>> len(lists_test(keyhole.load(), 5).samples)
    5
    """
    examples = _in_turn(n, seed, wording=wording, per_category=per_category, categories=categories, held_out=True)
    return _asked_against_others("lists of unseen sets", model, examples, chat=chat)


def _in_turn(
    n: int, seed: int, *, wording: str, per_category: int, categories: Categories, held_out: bool
) -> list[Example]:
    # Categories take turns: drawn at random, one with few held-out sets would hardly ever occur in tests.
    if n < 1 or not categories:
        raise KeyholeError(f"a contrast needs prompts and categories, not {n} of {len(categories)}.")
    columns = [
        lists(
            -(-n // len(categories)),
            seed * len(categories) + order,
            held_out=held_out,
            category=category,
            per_category=per_category,
            categories=categories,
            wording=wording,
        )
        for order, category in enumerate(categories)
    ]
    return list(chain.from_iterable(zip(*columns, strict=True)))[:n]


def _asked_against_others(name: str, model: "Model", examples: Sequence[Example], *, chat: bool) -> Contrast:
    return Contrast.from_roles(
        name,
        [example.in_chat(model) for example in examples] if chat else examples,
        positive=lambda example: f"{example.word('CATEGORY')}_*",
        negative="item_*",
        label="CATEGORY",
        bos=False if chat else None,
    )


# Does a feature's rank grow with the number of entities? The same contrast with two, three, ... of them.


@dataclass(frozen=True)
class RankRow:
    """One head's ranks at one number of entities."""

    head: Head
    entities: int
    energy: int
    null: int
    halves: int


def sweep_ranks(
    model: "Model",
    make: Callable[[int], Contrast],
    counts: Sequence[int],
    heads: Sequence[Head],
    *,
    progress: Progress | None = None,
    **options: Any,
) -> tuple[RankRow, ...]:
    """Ranks of some heads for contrasts with each number of entities; `options` as in `collect` and `find_features`.

    Args:
        model: The model whose heads are looked at.
        make: A function from a number of entities to a contrast with as many.
        counts: The numbers of entities.
        heads: Heads, as (layer, head).
        progress: Called with the number of contrasts done and their total.
        **options: Fields of `CollectSettings` and of `FeatureSettings`.

    >>> import keyhole
    >>> from keyhole.features.contrast import order_contrast
    >>> model = keyhole.load()
    >>> rows = sweep_ranks(model, lambda n: order_contrast(model, 40, n_boxes=n), (2, 3), [(1, 6)], permutations=20)
    >>> [row.entities for row in rows]
    [2, 3]
    """
    if not counts or not heads:
        raise KeyholeError("a sweep needs numbers of entities and heads.")
    passed = {name: options.pop(name) for name in ("frame", "negatives", "seed") if name in options}
    rows = []
    for done, count in enumerate(counts):
        features = find_features(collect(model, make(count), **passed), **options)
        if features.null is None or features.halves is None:
            raise KeyholeError("a sweep finds ranks by permutations: give at least one.")
        for head in heads:
            at = features.at(head)
            ranks = (int(table[at]) for table in (features.energy, features.null, features.halves))
            rows.append(RankRow(head, count, *ranks))
        if progress is not None:
            progress(done + 1, len(counts))
    return tuple(rows)


# Which features and tests make up a built-in study? Of boxes by order, thing or letter; of lists by category.

BuiltIn = Literal["boxes", "lists"]
BoxFeature = Literal["order", "lexical", "both", "reflexive"]


def built_in(
    model: "Model",
    kind: BuiltIn,
    sizes: tuple[int, int],
    *,
    feature: BoxFeature = "both",
    cross: bool = False,
    seed: int = 0,
    how: dict[str, Any] | None = None,
) -> "tuple[dict[str, Contrast], Contrast]":
    """The contrasts that make the features, and the one that tests them; `sizes`: how many prompts each has.

    `how` has options of the contrasts (wording, chat, n_boxes, per_category); `cross`: see `lexical_contrast`.
    """
    require_choice("what", kind, BuiltIn)
    require_choice("feature", feature, BoxFeature)
    options = how or {}
    if kind == "lists":
        fit = lists_contrast(model, sizes[0], seed=2 * seed, **options)
        return {"category": fit}, lists_test(model, sizes[1], seed=2 * seed + 1, **options)
    fits = {}
    if feature in ("order", "both"):
        fits["order"] = order_contrast(model, sizes[0], seed=2 * seed, **options)
    if feature in ("lexical", "both"):
        fits["lexical"] = lexical_contrast(model, sizes[0], cross=cross, seed=2 * seed, **options)
    if feature == "reflexive":
        fits["reflexive"] = reflexive_contrast(model, sizes[0], seed=2 * seed, **options)
    return fits, boxes_test(model, sizes[1], seed=2 * seed + 1, **options)
