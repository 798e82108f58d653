"""Which words do the tasks draw from? Every list is disjoint from the others, so a word has one meaning."""


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

# Plural, as the lists task asks for it -> the items.
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

# Every word of the tasks that carries meaning, by what it is.
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
