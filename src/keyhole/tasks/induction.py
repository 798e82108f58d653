"""Induction: random words, then some of them again; what followed last time?"""

import random
from collections.abc import Sequence

from keyhole.errors import KeyholeError
from keyhole.tasks.example import Example, collect, fill
from keyhole.tasks.words import CONTENT


def induction(
    n: int,
    seed: int = 0,
    *,
    held_out: bool | None = False,
    words: Sequence[str] = CONTENT,
    length: tuple[int, int] = (4, 30),
    first_again: bool = True,
) -> list[Example]:
    """What came after this word the first time? "... A B ... A" is followed by B.

    Distinct random words, then the same words again from a random one of them onwards (to the last, so that
    the next word is never in doubt). `first_again=False` never repeats the very first word, which many tokenizers cut
    otherwise than the same word after a space. Roles: A (the earlier copy of the last word), B (what followed it), END.
    Held out: whole word sequences.

    >>> induction(1, words=("cup", "jam"), length=(2, 2))[0].text in ("cup jam cup", "jam cup jam")
    True
    """
    shortest, longest = length
    earliest = 0 if first_again else 1
    if not 2 + earliest <= shortest <= longest <= len(set(words)):
        raise KeyholeError(
            f"length is two numbers from {2 + earliest} to {len(set(words))} distinct words, not {length}"
        )

    def draw(rng: random.Random) -> tuple[tuple[str, ...], Example]:
        first = rng.sample(list(words), rng.randint(shortest, longest))
        start = rng.randrange(earliest, len(first) - 1)
        # Most prompts stop early in the repeat, where nothing but the one word can be matched.
        shown = min(1 + int(rng.expovariate(0.5)), len(first) - 1 - start)
        return ("induction", *first), _example(first, start, shown)

    return collect(n, seed, held_out, draw)


def _example(first: list[str], start: int, shown: int) -> Example:
    """The words, then `shown` of them again from `start` on."""
    before = start + shown - 1  # where the last word shown stood the first time
    slots = {f"w{i}": (f"word_{i}", word) for i, word in enumerate(first)}
    slots |= {f"r{i}": (f"again_{i}", first[i]) for i in range(start, before + 1)}
    text, roles = fill(" ".join(f"{{{slot}}}" for slot in slots), slots)
    roles["A"], roles["B"] = roles[f"word_{before}"], roles[f"word_{before + 1}"]
    rest = first[before + 1 :]
    # Every other word; what preceded A first, for a head that looks one off.
    against = tuple(dict.fromkeys([*first[before - 1 : before], *(word for word in first if word != rest[0])]))
    labels = {"words": str(len(first)), "repeated": str(shown)}
    template, continuation = f"{len(first)}-{start}", " " + " ".join(rest) + "."
    return Example("induction", text, rest[0], against, (rest[0],), roles, template, continuation, labels)
