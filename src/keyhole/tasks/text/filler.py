"""Filler: plain sentences about the same people, places and things, so that the tasks are not everything."""

import random
import string

from keyhole.tasks.example import is_held_out
from keyhole.tasks.ioi import ioi_combination
from keyhole.tasks.text.words import ADJECTIVES, CATEGORIES, NAMES, OBJECTS, PEOPLE, PLACES, PRONOUN, THINGS

# N is a person and "he" their pronoun, M another person.
WORDINGS: tuple[str, ...] = (
    "{N} went to the {place} and bought a {object}.",
    "{N} went to the {place} because {he} wanted a {object}.",
    "{N} and {M} like the {place}.",
    "{N} has a {object} and {M} has a {thing}.",
    "{N} gave the {object} to {M}.",
    "{N} sent a {object} to {M} and {he} was happy.",
    "{N} lost a {object} in the {place}, so {he} looked around.",
    "{N} was in {country} when {M} came to the {place}.",
    "{N} is a {adj} {person} from {country}.",
    "{N} is {adj} and {he} likes {sport}.",
    "{M} is the {person} of {N}.",
    "The {animal} ran to the {place}.",
    "The {color} {thing} was in the {place}.",
    "The {thing} is {color} and the {object} is {other_color}.",
    "The {vehicle} from {country} arrived at the {place}.",
    "The {animal} took the {fruit} from {N}.",
    "The {person} sold the {vehicle} to {N}.",
    "The {adj} {person} played {sport} with {N} and {M}.",
    "Yesterday {N} found a {color} {thing}.",
    "Later, {N} had some {liquid} with the {fruit}.",
    "One day {N} took the {vehicle} to {country}.",
    "After lunch {N} played {sport} with the {animal}.",
    "When {N} was in the {place}, {he} had some {liquid}.",
    "Then {N} showed the {thing} to the {person}.",
    "There was a {adj} {person} at the {place}.",
    "In the {place} {N} talked to {M} about {sport}.",
)
_SLOTS: dict[str, tuple[str, ...]] = {
    "place": PLACES,
    "object": OBJECTS,
    "thing": THINGS,
    "adj": ADJECTIVES,
    "person": PEOPLE,
    "animal": CATEGORIES["animals"],
    "fruit": CATEGORIES["fruits"],
    "liquid": CATEGORIES["liquids"],
    "vehicle": CATEGORIES["vehicles"],
    "country": CATEGORIES["countries"],
    "sport": CATEGORIES["sports"],
}


def filler(n: int, seed: int = 0) -> list[str]:
    """Which n sentences does this seed give?

    >>> len(filler(3))
    3
    """
    rng = random.Random(seed)
    return [_sentence(rng) for _ in range(n)]


def _sentence(rng: random.Random) -> str:
    wording = rng.choice(WORDINGS)
    slots = {slot for _, slot, _, _ in string.Formatter().parse(wording) if slot}
    while True:
        words = {slot: rng.choice(choices) for slot, choices in _SLOTS.items()}
        words["N"], words["M"] = rng.sample(NAMES, 2)
        words["color"], words["other_color"] = rng.sample(CATEGORIES["colors"], 2)
        words["he"] = PRONOUN[words["N"]]
        # Two people and an object held out of ioi must not meet here either.
        together = {"N", "M", "object"} <= slots
        if not (together and is_held_out(*ioi_combination(words["N"], words["M"], words["object"]))):
            return wording.format(**words)
