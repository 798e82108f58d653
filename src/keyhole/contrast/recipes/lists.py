"""By what does a head find the items of the kind asked for? A contrast per category: its items against the others."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from keyhole.contrast.data.sites import Contrast
from keyhole.errors import KeyholeError
from keyhole.tasks.example import Example
from keyhole.tasks.lists import lists

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
    """Do category features hold for lists they were not made from? The asked items never stood together there."""
    examples = _in_turn(n, seed, wording=wording, per_category=per_category, categories=categories, held_out=True)
    return _asked_against_others("lists of unseen sets", model, examples, chat=chat)


def _in_turn(
    n: int, seed: int, *, wording: str, per_category: int, categories: Categories, held_out: bool
) -> list[Example]:
    # Asked at random, a category with few held-out sets would hardly ever be asked about in tests.
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
