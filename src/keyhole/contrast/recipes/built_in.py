"""Which features and tests make up a built-in study? Of boxes by order, thing or letter; of lists by category."""

from typing import TYPE_CHECKING, Any, Literal

from keyhole.contrast.recipes.boxes import boxes_test, lexical_contrast, order_contrast, reflexive_contrast
from keyhole.contrast.recipes.lists import lists_contrast, lists_test
from keyhole.errors import require_choice

if TYPE_CHECKING:
    from keyhole.contrast.data.sites import Contrast
    from keyhole.models.model import Model

BuiltIn = Literal["boxes", "lists"]
BoxFeature = Literal["order", "lexical", "both", "reflexive"]


def built_in(
    model: "Model",
    what: BuiltIn,
    sizes: tuple[int, int],
    *,
    feature: BoxFeature = "both",
    cross: bool = False,
    seed: int = 0,
    how: dict[str, Any] | None = None,
) -> "tuple[dict[str, Contrast], Contrast]":
    """The contrasts that make the features, and the one that tests them, of so many prompts each.

    `how` has options of the recipes (wording, chat, n_boxes, per_category); `cross`: see `lexical_contrast`.
    """
    require_choice("what", what, BuiltIn)
    require_choice("feature", feature, BoxFeature)
    own = how or {}
    if what == "lists":
        fit = lists_contrast(model, sizes[0], seed=2 * seed, **own)
        return {"category": fit}, lists_test(model, sizes[1], seed=2 * seed + 1, **own)
    fits = {}
    if feature in ("order", "both"):
        fits["order"] = order_contrast(model, sizes[0], seed=2 * seed, **own)
    if feature in ("lexical", "both"):
        fits["lexical"] = lexical_contrast(model, sizes[0], cross=cross, seed=2 * seed, **own)
    if feature == "reflexive":
        fits["reflexive"] = reflexive_contrast(model, sizes[0], seed=2 * seed, **own)
    return fits, boxes_test(model, sizes[1], seed=2 * seed + 1, **own)
