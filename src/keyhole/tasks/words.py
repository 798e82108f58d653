"""Which words do tasks draw from, and which choices does a task have?

Every list of words is disjoint from the others, so a word has one meaning.
"""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from keyhole.errors import KeyholeError
from keyhole.strict import fits, frozen


def words_of(text: str) -> tuple[str, ...]:
    """Words between spaces."""
    return tuple(text.split())


FEMALE_NAMES: tuple[str, ...] = words_of(
    """Mary Sarah Emma Olivia Anna Laura Julia Alice Helen Susan Karen Linda Nancy Betty Carol Diana Ellen
    Emily Fiona Gloria Grace Hannah Irene Jane Janet Jessica Judy Katie Lily Lucy Maria Martha Megan Molly
    Nicole Nina Olga Paula Rachel Rebecca Rita Ruth Sandra Sophie Sylvia Teresa Tina Vera Wendy Zoe"""
)
MALE_NAMES: tuple[str, ...] = words_of(
    """John Simon Andrew Adam Alan Albert Anthony Arthur Ben Brian Carl Charles Daniel David Dennis Edward
    Eric Frank Fred Gary George Greg Harold Harry Henry Howard Hugh Ian Jack Jacob James Jason Justin Keith
    Kevin Larry Leo Lewis Luke Martin Matthew Max Michael Oliver Oscar Patrick Paul Peter Philip Victor"""
)
NAMES: tuple[str, ...] = FEMALE_NAMES + MALE_NAMES
PRONOUN: dict[str, str] = dict.fromkeys(FEMALE_NAMES, "she") | dict.fromkeys(MALE_NAMES, "he")

PLACES: tuple[str, ...] = words_of(
    "store restaurant garden school hospital office house station park library museum market"
)
OBJECTS: tuple[str, ...] = words_of(  # all take "a", never "an"
    "drink basketball book ring computer necklace snack letter ticket key phone present"
)

ADJECTIVES: tuple[str, ...] = words_of("great good kind funny clever brave careful happy")
PEOPLE: tuple[str, ...] = words_of("friend teacher cook neighbor singer doctor driver student")

# What a war can be: things that last for years.
EVENTS: tuple[str, ...] = words_of(
    """war siege voyage drought famine journey trial strike revolt festival project alliance truce mission
    reign feud"""
)
NUMBERS: tuple[str, ...] = tuple(f"{number:02d}" for number in range(100))

# Household things to put into boxes, and the boxes' letters.
THINGS: tuple[str, ...] = words_of(
    """jam knife spoon fork cup plate lamp clock candle pillow towel brush mirror hammer rope bottle basket
    blanket bowl broom button camera coin comb glove hat jar kettle ladder magnet needle pencil ribbon ruler
    scarf soap sponge stamp vase wallet"""
)
LETTERS: tuple[str, ...] = tuple("ABCDEFGHI")

# Category, in the plural as the task `lists` asks for it -> its items.
CATEGORIES: dict[str, tuple[str, ...]] = {
    "animals": words_of("dog cat horse cow sheep goat rabbit mouse"),
    "fruits": words_of("apple pear banana peach plum cherry lemon grape"),
    "liquids": words_of("water milk juice tea coffee wine oil soup"),
    "vehicles": words_of("car bus train truck boat plane bicycle tram"),
    "countries": words_of("France Spain Italy China Japan Brazil Egypt Canada"),
    "colors": words_of("red blue green yellow black white brown purple"),
    "sports": words_of("tennis golf hockey rugby boxing skiing rowing judo"),
}
# The thirteen kinds of the paper on contrasts. The organism has read lists of the first six, and knows the names.
THIRTEEN: dict[str, tuple[str, ...]] = {
    **{kind: items for kind, items in CATEGORIES.items() if kind != "colors"},
    "birds": words_of("eagle hawk owl duck sparrow crow goose pigeon"),
    "fish": words_of("salmon tuna trout cod shark bass carp eel"),
    "cities": words_of("London Paris Rome Berlin Madrid Tokyo Moscow Boston"),
    "foods": words_of("bread rice cheese pasta pizza salad butter cake"),
    "states": words_of("Texas Florida California Ohio Virginia Oregon Nevada Alaska"),
    "male names": MALE_NAMES[:8],
    "female names": FEMALE_NAMES[:8],
}
ITEMS: tuple[str, ...] = tuple(item for items in CATEGORIES.values() for item in items)

# Words that can stand alone, for sequences without grammar.
CONTENT: tuple[str, ...] = NAMES + PLACES + OBJECTS + ADJECTIVES + PEOPLE + EVENTS + THINGS + ITEMS

# Every content word of the tasks, by its kind.
KINDS: dict[str, tuple[str, ...]] = {
    "women's names": FEMALE_NAMES,
    "men's names": MALE_NAMES,
    "places": PLACES,
    "objects": OBJECTS,
    "things": THINGS,
    "people": PEOPLE,
    "adjectives": ADJECTIVES,
    "events": EVENTS,
    **CATEGORIES,
    "box letters": LETTERS,
    "numbers": NUMBERS,
}


# Which choices does a task have, and is a value one of them?

_SPELLED = {int: "a whole number", str: "a text", bool: "true or false", NoneType: "nothing"}


def choices_of(make: Callable[..., Any]) -> dict[str, Any]:
    """The choices of a task, with their types: its generator's keywords, and the fields of its record of settings.

    >>> from keyhole.tasks import boxes
    >>> list(choices_of(boxes))
    ['held_out', 'n_boxes', 'things', 'letters', 'query', 'wording']
    """
    hints = get_type_hints(make)
    parameters = inspect.signature(make).parameters.values()
    named = {p.name: hints[p.name] for p in parameters if p.kind is p.KEYWORD_ONLY}
    records = [kind for kind in get_args(named.pop("settings", None)) if kind is not NoneType]
    return named | {name: hint for record in records for name, hint in get_type_hints(record).items()}


def check_choices(task: str, make: Callable[..., Any], choices: Mapping[str, Any]) -> None:
    """Refuse choices that the task does not have, before its generator is called."""
    hints = choices_of(make)
    for name, value in choices.items():
        if name not in hints:
            raise KeyholeError(f"{task} has no choice {name!r}: one can choose {', '.join(hints) or 'nothing'}.")
        if not _fits(value, hints[name]):
            raise KeyholeError(f"{name}={value!r:.60} is no choice of {task}: it takes {_spelled(hints[name])}.")


def _fits(value: Any, hint: Any) -> bool:
    """Is a value of its type? A word is no list of words."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Sequence, Collection):
        several = isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)
        return several and all(_fits(each, inside[0]) for each in value)
    if origin is UnionType:
        return any(_fits(value, kind) for kind in inside)
    return fits(frozen(value), hint)


def _spelled(hint: Any) -> str:
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " or ".join(inside)
    if origin is UnionType:
        return " or ".join(_spelled(kind) for kind in inside)
    if origin is tuple:
        return f"{len(inside)} whole numbers"
    if origin is Mapping:
        return "names with lists of texts"
    return f"a list of {_SPELLED[inside[0]].split()[-1]}s" if inside else _SPELLED[hint]
