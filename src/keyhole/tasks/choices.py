"""What can be chosen of a task? Records of its words and sizes, each field with its default and a line of help."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

from keyhole.settings.fields import option
from keyhole.tasks.words import CATEGORIES, EVENTS, LETTERS, NUMBERS, THINGS

Design = Literal["balanced", "mixed"]
CENTURIES: tuple[str, ...] = tuple(str(century) for century in range(10, 19))
STARTS: tuple[str, ...] = NUMBERS[2:99]  # 99 would leave no valid end


@dataclass(frozen=True)
class BoxesSettings:
    """What prompts about boxes are made of."""

    n_boxes: int | None = option(None, "How many boxes; default: two to nine, drawn for each prompt.")
    things: Sequence[str] = option(THINGS, "What may lie in a box.")
    letters: Sequence[str] = option(LETTERS, "What boxes are called.")
    query: str | None = option(None, "The thing that every prompt asks for; default: any of them.")
    wording: str = option("plain", "plain: as the organism was taught; instruct: for chat models.")


class BoxesOptions(TypedDict, total=False):
    """The fields of `BoxesSettings`, for functions that take them as keywords."""

    n_boxes: int | None
    things: Sequence[str]
    letters: Sequence[str]
    query: str | None
    wording: str


@dataclass(frozen=True)
class ListsSettings:
    """What prompts about lists are made of."""

    n_items: int | None = option(None, "How many items; default: four to ten, drawn for each prompt.")
    category: str | None = option(None, "The category that every prompt asks for; default: any of those in its list.")
    given: int = option(0, "How many items of the category the prompt names already, 0 to 4.")
    per_category: int | None = option(None, "So many items of each category, in place of n_items.")
    categories: Sequence[str] | Mapping[str, Sequence[str]] = option(
        tuple(CATEGORIES), "Names of built-in categories, or names with their items."
    )
    wording: str = option("plain", "plain: as the organism was taught; instruct: for chat models.")


class ListsOptions(TypedDict, total=False):
    """The fields of `ListsSettings`, for functions that take them as keywords."""

    n_items: int | None
    category: str | None
    given: int
    per_category: int | None
    categories: Sequence[str] | Mapping[str, Sequence[str]]
    wording: str


@dataclass(frozen=True)
class YearsSettings:
    """What prompts about years are made of."""

    nouns: Sequence[str] = option(EVENTS, "What lasted.")
    centuries: Sequence[str] = option(CENTURIES, "The first two digits of the years.")
    starts: Sequence[str] = option(STARTS, "The last two digits of the first year.")
    years: Collection[str] | None = option(None, "First years, some of those; default: all of them.")
    digits: bool = option(False, "Ask for the next digit alone, of models that cut numbers into digits.")


class YearsOptions(TypedDict, total=False):
    """The fields of `YearsSettings`, for functions that take them as keywords."""

    nouns: Sequence[str]
    centuries: Sequence[str]
    starts: Sequence[str]
    years: Collection[str] | None
    digits: bool


@dataclass(frozen=True)
class IndirectObjectsSettings:
    """What prompts about indirect objects are made of."""

    published: bool = option(False, "The wordings of Wang et al. in place of the organism's.")
    design: Design = option(
        "balanced", "balanced: as many prompts of each wording and order; mixed: every prompt draws both."
    )
    order: str = option("both", "ABBA names the receiver first, BABA the giver; both: as many of each.")
    held_out: bool | None = option(False, "The organism's held-out prompts; None: those and the others.")
    names: Sequence[str] | None = option(None, "Of people; default: those that belong to the wordings.")
    wordings: Sequence[int] | None = option(None, "Numbers of wordings; default: all of them.")


class IndirectObjectsOptions(TypedDict, total=False):
    """The fields of `IndirectObjectsSettings`, for functions that take them as keywords."""

    published: bool
    design: Design
    order: str
    held_out: bool | None
    names: Sequence[str] | None
    wordings: Sequence[int] | None
