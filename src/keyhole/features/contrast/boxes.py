"""By what does a head find the box of the thing asked about? By its place in the order told, the thing, or the box.

    order     the same queried thing everywhere: its box against the other boxes of the prompt
    lexical   the same prompt with another thing in the queried box: its box there against its box here
    reflexive the same prompt with another letter on the queried box: the query, having found it, meets either letter

Queries are the last token of a prompt, keys the letters. All things and letters are one token for the model. They are
shared out in the order given, so that three contrasts made with the same `things` and `n_boxes` belong together: the
first `n_boxes` are told, the first half of the others replace the queried one, the second half is asked about in tests.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from keyhole.errors import KeyholeError
from keyhole.features.contrast.sites import Contrast, Sample, Site, last, role
from keyhole.models.tokens import one_token_words
from keyhole.tasks.example import Example
from keyhole.tasks.things import boxes, relettered, with_other_thing
from keyhole.tasks.words import LETTERS, THINGS

if TYPE_CHECKING:
    from keyhole.models.model import Model


class Telling(TypedDict, total=False):
    """How are the prompts told?"""

    things: Sequence[str]  # default: all that the tasks know
    wording: str  # "plain", the default, or "instruct"
    chat: bool  # as messages to a model with a chat template; default: as they are


def order_contrast(
    model: "Model",
    n: int,
    *,
    n_boxes: int = 9,
    seed: int = 0,
    query: str | None = None,
    **how: Unpack[Telling],
) -> Contrast:
    """Is the box found by its place in the order told? One thing, always `query`, at every place among the same others.

    Positive: the box of the queried thing; negative: the other boxes of the prompt. Label: its place, "0" first.

    Args:
        model: The model, whose tokenizer decides which things are told.
        n: How many prompts there are.
        n_boxes: How many boxes a prompt has.
        seed: Decides the things and their boxes.
        query: The thing that is always asked for. Default: one that the seed draws.
        **how: Fields of the wording: `things`, `wording` and `chat`.

    >>> import keyhole
    >>> sorted(order_contrast(keyhole.load(), 6, n_boxes=3).labels)
    ['0', '1', '2']
    """
    words = _share_out(model, n_boxes, how)
    queried = _require_query(words, query) or words.stored[0]
    return _right_against_others("boxes by order", model, words.examples(n, seed, queried), how)


def lexical_contrast(
    model: "Model",
    n: int,
    *,
    cross: bool = False,
    n_boxes: int = 9,
    seed: int = 0,
    query: str | None = None,
    **how: Unpack[Telling],
) -> Contrast:
    """Is the box found by the thing in it? Each prompt beside its copy with another thing in the queried box.

    Positive: the query and the right box of the prompt. Negative: the right box of the copy, which stands at the same
    place and has the same letter, met by the copy's own query or, with `cross`, by the prompt's. The queried thing is
    any of those told, or always `query`. Label: the queried thing. Prompts 2i and 2i + 1 are a pair.

    Args:
        model: A model that knows the things.
        n: Prompts, each with its copy.
        cross: Whether the query of a prompt meets the box of its copy.
        n_boxes: Boxes in each prompt.
        seed: Seed of what is told.
        query: The thing asked for. Default: any of those told.
        **how: Which `things`, in what `wording`, as a `chat` or not.

    >>> import keyhole
    >>> len(lexical_contrast(keyhole.load(), 4, n_boxes=3).prompts)
    8
    """
    words = _share_out(model, n_boxes, how)
    queried = _require_query(words, query)
    if not words.spare:
        raise KeyholeError(_too_few(model, "things", len(words.stored), n_boxes + 1))
    examples = words.examples(n, seed, queried)
    rng = random.Random(seed)
    copies = [with_other_thing(example, rng.choice(words.spare)) for example in examples]
    name = "boxes by thing, crossed" if cross else "boxes by thing"
    return _against_copies(name, model, examples, copies, label="QUERY", cross=cross, how=how)


def reflexive_contrast(
    model: "Model",
    n: int,
    *,
    n_boxes: int = 8,
    seed: int = 0,
    query: str | None = None,
    **how: Unpack[Telling],
) -> Contrast:
    """Is the box found by its own letter? Each prompt beside its copy with another letter on the queried box.

    Positive: the right box of the prompt. Negative: that of the copy, at the same place with the same thing in it, met
    by the prompt's query; only a query that has found the letter before tells them apart. (Met by its own query, as in
    `lexical_contrast`, it would be one more positive.) Label: the letter. Prompts 2i and 2i + 1 are a pair.

    Args:
        model: A model that knows the letters.
        n: Prompts, beside their copies.
        n_boxes: Boxes each prompt tells of.
        seed: Seed of letters and things.
        query: What is asked for. Default: any thing told.
        **how: Other `things`, another `wording`, or a `chat`.

    >>> import keyhole
    >>> reflexive_contrast(keyhole.load(), 4, n_boxes=3).name
    'boxes by letter'
    """
    words = _share_out(model, n_boxes, how)
    if len(words.letters) == n_boxes:
        raise KeyholeError(_too_few(model, "letters", n_boxes, n_boxes + 1))
    examples = words.examples(n, seed, _require_query(words, query))
    rng = random.Random(seed)
    copies = []
    for example in examples:
        used = {example.word(f"box_{i}") for i in range(n_boxes)}
        copies.append(relettered(example, rng.choice([letter for letter in words.letters if letter not in used])))
    return _against_copies("boxes by letter", model, examples, copies, label="BOX", cross=True, how=how)


def _against_copies(
    name: str,
    model: "Model",
    examples: Sequence[Example],
    copies: Sequence[Example],
    *,
    label: str,
    cross: bool,
    how: Telling,
) -> Contrast:
    """The right box of every prompt against that of its copy, met by the copy's own query or the prompt's."""
    prompts, samples, chat = [], [], how.get("chat", False)
    for number, (example, copy) in enumerate(zip(examples, copies, strict=True)):
        number_of_prompt, number_of_copy = 2 * number, 2 * number + 1
        pair = [member.in_chat(model) if chat else member for member in (example, copy)]
        prompts += [member.text for member in pair]
        samples.append(
            Sample(
                Site(last(), number_of_prompt),
                positive=(Site(role(pair[0], "BOX"), number_of_prompt),),
                negative=(Site(role(pair[1], "BOX"), number_of_copy),),
                negative_query=None if cross else Site(last(), number_of_copy),
                label=example.word(label),
                group=str(number),
            )
        )
    return Contrast(name, tuple(prompts), tuple(samples), bos=False if chat else None)


def boxes_test(
    model: "Model",
    n: int,
    *,
    n_boxes: int = 9,
    seed: int = 1,
    **how: Unpack[Telling],
) -> Contrast:
    """Do order and lexical features hold for things they were not made from? Unseen things are asked about.

    Positive: the right box; negative: the other boxes of the prompt. Label: the place of the right box.

    Args:
        model: Prompts are told in words that its tokenizer knows.
        n: Prompts of the test.
        n_boxes: Boxes of a prompt.
        seed: Seed of the prompts.
        **how: The `things`, the `wording` ("plain" or "instruct") and whether it is a `chat`.

    >>> import keyhole
    >>> boxes_test(keyhole.load(), 2, n_boxes=3).samples[0].label in ("0", "1", "2")
    True
    """
    words = _share_out(model, n_boxes, how)
    if not words.unseen:
        raise KeyholeError(_too_few(model, "things", len(words.stored) + len(words.spare), n_boxes + 2))
    rng = random.Random(seed)
    queried = rng.choices(words.unseen, k=n)
    examples = [example for query in queried for example in words.examples(1, rng.getrandbits(48), query)]
    return _right_against_others("boxes of unseen things", model, examples, how)


# -- words and sites ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Words:
    stored: tuple[str, ...]  # in the boxes of every prompt that features are made from
    spare: tuple[str, ...]  # replace the queried one in lexical contrasts
    unseen: tuple[str, ...]  # asked about in tests only
    letters: tuple[str, ...]
    prompts: dict[str, Any]  # how many boxes, in which words

    def examples(self, n: int, seed: int, query: str | None) -> list[Example]:
        return boxes(n, seed, held_out=None, query=query, things=self.stored, letters=self.letters, **self.prompts)


def _share_out(model: "Model", n_boxes: int, how: Telling) -> _Words:
    usable = tuple(dict.fromkeys(one_token_words(model, how.get("things", THINGS))))
    letters = tuple(one_token_words(model, LETTERS))
    for kind, words in (("things", usable), ("letters", letters)):
        if len(words) < n_boxes:
            raise KeyholeError(_too_few(model, kind, len(words), n_boxes))
    middle = n_boxes + (len(usable) - n_boxes + 1) // 2
    prompts = {"n_boxes": n_boxes, "wording": how.get("wording", "plain")}
    return _Words(usable[:n_boxes], usable[n_boxes:middle], usable[middle:], letters, prompts)


def _too_few(model: "Model", kind: str, available: int, needed: int) -> str:
    advice = "give more things, or ask for fewer boxes" if kind == "things" else "ask for fewer boxes"
    return f"only {available} of the {kind} are one token for {model.name}, and this contrast needs {needed}: {advice}."


def _require_query(words: _Words, query: str | None) -> str | None:
    if query is not None and query not in words.stored:
        raise KeyholeError(f"the query is one of the things told ({', '.join(words.stored)}), not {query!r}.")
    return query


def _right_against_others(name: str, model: "Model", examples: Sequence[Example], how: Telling) -> Contrast:
    chat = how.get("chat", False)
    return Contrast.from_roles(
        name,
        [example.in_chat(model) for example in examples] if chat else examples,
        positive="BOX",
        negative="box_*",
        label=_place_told,
        bos=False if chat else None,
    )


def _place_told(example: Example) -> str:
    letters = [spot for name, spot in example.roles.items() if name.startswith("box_")]  # in the order told
    return str(letters.index(example.roles["BOX"]))
