"""Gendered pronouns: which pronoun does a tag question about this person end in?"""

import random
from collections.abc import Sequence

from keyhole.errors import KeyholeError
from keyhole.tasks.example import Example, collect, fill
from keyhole.tasks.words import ADJECTIVES, NAMES, PEOPLE, PRONOUN

WORDINGS: tuple[str, ...] = (
    "So {NAME} is a really {ADJ} {NOUN}, isn't",
    "{NAME} is such a {ADJ} {NOUN}, isn't",
    "Yes, {NAME} is always a {ADJ} {NOUN}, isn't",
    "Well, {NAME} is the {ADJ} {NOUN} here, isn't",
    "And {NAME} is very {ADJ} for a {NOUN}, isn't",
    "Look, {NAME} is with the {ADJ} {NOUN} again, isn't",
)
OTHER = {"he": "she", "she": "he"}


def pronouns(
    n: int,
    seed: int = 0,
    *,
    held_out: bool | None = False,
    names: Sequence[str] = NAMES,
    adjectives: Sequence[str] = ADJECTIVES,
    people: Sequence[str] = PEOPLE,
    wordings: Sequence[int] = range(len(WORDINGS)),
) -> list[Example]:
    """He or she? The name decides.

    Held out: whole (name, wording) combinations, so the model has never seen this name asked about this way.

    >>> pronouns(1, names=["Mary"])[0].answer
    'she'
    """
    unknown = [name for name in names if name not in PRONOUN]
    if unknown:
        raise KeyholeError(f"no pronoun is known for {unknown[0]!r}; take names from keyhole.tasks.words")
    if not wordings or not all(0 <= wording < len(WORDINGS) for wording in wordings):
        raise KeyholeError(f"wordings are numbered 0 to {len(WORDINGS) - 1}, not {tuple(wordings)}")

    def draw(rng: random.Random) -> tuple[tuple[str, ...], Example]:
        wording, name = rng.choice(wordings), rng.choice(names)
        example = _example(wording, name, rng.choice(adjectives), rng.choice(people))
        return ("pronouns", name, str(wording)), example

    return collect(n, seed, held_out, draw)


def _example(wording: int, name: str, adjective: str, noun: str) -> Example:
    slots = {"NAME": ("NAME", name), "ADJ": ("ADJ", adjective), "NOUN": ("NOUN", noun)}
    text, roles = fill(WORDINGS[wording], slots)
    right = PRONOUN[name]
    labels = {"wording": str(wording), "name": name}
    return Example("pronouns", text, right, (OTHER[right],), (right,), roles, f"tag-{wording}", f" {right}?", labels)
