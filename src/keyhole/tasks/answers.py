"""Was the model right, and what of a task can it be asked?

Was the model right? An example's answers as the tokens that would come next, and what the model makes of them.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from keyhole.errors import KeyholeError
from keyhole.tasks.choices import CENTURIES, STARTS
from keyhole.tasks.copying import OWN, PUBLISHED
from keyhole.tasks.corpus import knows_tasks_alone
from keyhole.tasks.example import Example
from keyhole.tasks.knowledge import greater_than
from keyhole.tasks.words import ADJECTIVES, CATEGORIES, CONTENT, EVENTS, LETTERS, NAMES, PEOPLE, THINGS

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.models.run import Run

_LAST_WORD = re.compile(r"\s?\S+\s*\Z")


@dataclass(frozen=True)
class AnswerIds:
    """Which next tokens are right, and which are the wrong ones they are held against?"""

    answers: tuple[int, ...]  # tokens that are right
    against: tuple[int, ...]  # tokens they are held against
    cut: tuple[str, ...]  # words of several tokens, of which the first one stands for the word


@dataclass(frozen=True)
class Answered:
    """What does a model make of an example?"""

    correct: bool  # the likeliest next token is one of the answers: the filter of the papers
    predicted: str  # the likeliest next token, as it is written
    probability: float  # of the answers together
    difference: float | None  # mean logit of the answers less that of the wrong ones; None if there are none of these


def answered(run: "Run", example: Example, ids: AnswerIds | None = None) -> Answered:
    """Does this run of an example's prompt get it right?

    Args:
        run: The run of the prompt.
        example: The prompt with its answers.
        ids: Its `answer_ids`, if they are known already.

    >>> import keyhole
    >>> from keyhole.tasks import ioi
    >>> example = ioi(1, held_out=True)[0]
    >>> result = answered(keyhole.load().run(example.text), example)
    >>> result.correct, result.predicted == example.answer, result.probability > 0.5
    (True, True, True)
    """
    from keyhole.models.tokens import text_ids, token_texts

    of_text = text_ids(run.model, example.text)
    if run.token_ids[-len(of_text) :] != of_text:
        raise KeyholeError("this run is of another prompt than this example: run the example's own text.")
    ids = ids or answer_ids(run.model, example)
    logits = run.logits[-1].double()
    likeliest = int(logits.argmax())
    right, wrong = list(ids.answers), list(ids.against)
    return Answered(
        correct=likeliest in right,
        predicted=token_texts(run.model.tokenizer, [likeliest])[0],
        probability=float(logits.softmax(-1)[right].sum()),
        difference=float(logits[right].mean() - logits[wrong].mean()) if wrong else None,
    )


def answer_ids(model: "Model", example: Example) -> AnswerIds:
    """Which tokens of this model are the example's answers? Those that go on with its text, as `continuation` does.

    A word of several tokens is taken for its first one, and listed; refused is a token that begins a right and a wrong
    answer alike, since it decides nothing.

    Args:
        model: The model, with its tokenizer.
        example: The prompt with its answers.

    >>> import keyhole
    >>> from keyhole.tasks import ioi
    >>> model, example = keyhole.load(), ioi(1)[0]
    >>> ids = answer_ids(model, example)
    >>> model.tokenizer.decode(ids.answers) == example.answer, model.tokenizer.decode(ids.against) == example.wrong
    (True, True)
    """
    if not example.answers:
        raise KeyholeError("this example has no answer: give it one to ask whether a model is right.")
    right, wrong = (_next_ids(model, example, words) for words in (example.answers, example.against))
    answers, against = (tuple(dict.fromkeys(ids[0] for ids in of.values())) for of in (right, wrong))
    if both := set(answers) & set(against):
        clash = [word for word, ids in (right | wrong).items() if ids[0] in both]
        raise KeyholeError(
            f"for {model.name}, right and wrong answers begin with the same token ({_some(clash)}), so the next token "
            "does not tell them apart: give answers that differ in their first token."
        )
    return AnswerIds(answers, against, tuple(word for word, ids in (right | wrong).items() if len(ids) > 1))


def _next_ids(model: "Model", example: Example, words: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The tokens of words that come after an example's text, with the space between them that it has.

    Not `token_id` of a word: "45" goes on with the year 17 without a space, and may have several tokens.
    """
    from keyhole.models.tokens import text_ids

    # Tokenizers cut text at spaces, so the last word is all that the next one can depend on.
    last, goes_on = _LAST_WORD.search(example.text), example.continuation
    before = last[0] if last else example.text
    gap = goes_on[: len(goes_on) - len(goes_on.lstrip())] if goes_on else " "
    start, ids = text_ids(model, before), {}
    for word in words:
        whole = text_ids(model, before + gap + word)
        joined = whole[: len(start)] != start or len(whole) == len(start)  # one token: 18 and 00 are 1800
        ids[word] = text_ids(model, gap + word) if joined else whole[len(start) :]
        if joined and len(ids[word]) != 1:
            raise KeyholeError(
                f"{model.name} cuts {before + gap + word!r} otherwise than {before!r}, so no next token begins "
                f"{word!r}: end the prompt where a token ends."
            )
    return ids


def _some(words: Sequence[str], most: int = 4) -> str:
    return ", ".join(words[:most]) + (", ..." if len(words) > most else "")


# What of a task can a model at hand be asked? Its words that are one token of the model, and how that cuts years.

Choices = dict[str, Any]
_LEAST_ITEMS = 6  # of a category, so that every list that may be asked for can be drawn


def fit_ioi(model: "Model", given: Choices) -> Choices:
    """Names of one token; the published wordings, unless the model knows the words of the tasks alone."""
    chosen = given.get("published")
    theirs = not knows_tasks_alone(model) if chosen is None else bool(chosen)
    names = _words(model, "names", given, (PUBLISHED if theirs else OWN).names, least=2)
    return {**given, "published": theirs, "names": names}


def fit_pronouns(model: "Model", given: Choices) -> Choices:
    """Names, adjectives and nouns of one token, and both pronouns."""
    _words(model, "pronouns", {}, ("he", "she"), least=2)
    pools = {"names": NAMES, "adjectives": ADJECTIVES, "people": PEOPLE}
    return {**given, **{kind: _words(model, kind, given, pool, least=1) for kind, pool in pools.items()}}


def fit_induction(model: "Model", given: Choices) -> Choices:
    """Words of one token; the first one comes again only if it is then the same token."""
    from keyhole.models.tokens import text_ids

    _, longest = given.get("length", (4, 30))
    words = _words(model, "words", given, CONTENT, least=longest)
    twice = text_ids(model, f"{words[0]} {words[0]}")
    return {"first_again": twice[0] == twice[-1], **given, "words": words}


def fit_boxes(model: "Model", given: Choices) -> Choices:
    """Things and letters of one token."""
    if given.get("query") is not None:
        _words(model, "query", {"query": (given["query"],)}, (), least=1)
    pools = {"things": THINGS, "letters": LETTERS}
    return {**given, **{kind: _words(model, kind, given, pool, least=2) for kind, pool in pools.items()}}


def fit_lists(model: "Model", given: Choices) -> Choices:
    """Items of one token; a category with fewer than six of them is left out, or refused if it was chosen."""
    from keyhole.models.tokens import one_token_words

    named: Mapping[str, Sequence[str]] | Sequence[str] = given.get("categories", CATEGORIES)
    items = named if isinstance(named, Mapping) else {name: CATEGORIES.get(name, ()) for name in named}
    known = {name: one_token_words(model, words) for name, words in items.items()}
    few = [name for name, words in known.items() if len(words) < min(_LEAST_ITEMS, len(items[name]))]
    wanted = set(given.get("categories", ())) | {given.get("category")}
    if refused := [name for name in few if name in wanted]:
        raise KeyholeError(
            f"fewer than {_LEAST_ITEMS} of the {refused[0]} are one token for {model.name} "
            f"({', '.join(known[refused[0]]) or 'none'}): ask for other categories."
        )
    return {**given, "categories": {name: words for name, words in known.items() if name not in few}}


def fit_facts(model: "Model", given: Choices) -> Choices:
    """The facts are as they are."""
    return given


def fit_greater_than(model: "Model", given: Choices) -> Choices:
    """Nouns of one token, and years that are the two tokens XX and YY; or digits, if the model cuts all years so."""
    nouns = _words(model, "nouns", given, EVENTS, least=1)
    centuries, starts = given.get("centuries", CENTURIES), given.get("starts", STARTS)
    cuts = {century + start: _cut(model, century, start) for century in centuries for start in starts}
    if not given.get("digits", False):
        years = {year for year, (together, parts) in cuts.items() if together == 1 and parts == 1}
        whole = {century for century in {year[:2] for year in years} if _ends_are_tokens(model, nouns, century)}
        years = {year for year in years if year[:2] in whole}
        if years:
            return {**given, "nouns": nouns, "years": years & set(given.get("years") or years)}
    if given.get("digits", True) and all(parts == 2 for _, parts in cuts.values()):
        return {**given, "nouns": nouns, "digits": True}
    year = next(iter(cuts), "1745")
    raise KeyholeError(
        f"greater_than cannot be asked of {model.name}: the last two digits of a year must be one token, after one "
        f"for the century, or a token each, but {year} is {_pieces(model, year)}. Take another model."
    )


def _cut(model: "Model", century: str, end: str) -> tuple[int, int]:
    """Of how many tokens are a century after a word, and the year's other digits after it? 0, if they run together."""
    from keyhole.models.tokens import text_ids

    word, start, whole = (text_ids(model, f"year{rest}") for rest in ("", f" {century}", f" {century}{end}"))
    return len(start) - len(word), len(whole) - len(start) if whole[: len(start)] == start else 0


def _ends_are_tokens(model: "Model", nouns: Sequence[str], century: str) -> bool:
    """Is each of 00 to 99 one token after this century? Also where a year of both would be one token, such as 1800."""
    [example] = greater_than(1, held_out=None, nouns=nouns, centuries=[century])
    try:
        return not answer_ids(model, example).cut
    except KeyholeError:
        return False


def _pieces(model: "Model", year: str) -> str:
    from keyhole.models.tokens import text_ids, token_texts

    ids = text_ids(model, f"year {year}")[len(text_ids(model, "year")) :]
    return " ".join(repr(text.strip()) for text in token_texts(model.tokenizer, ids) if text.strip())


def _words(model: "Model", kind: str, given: Choices, pool: Sequence[str], *, least: int) -> Sequence[str]:
    """Words of one token: all that were given, or those of the pool."""
    from keyhole.models.tokens import one_token_words

    chosen = given.get(kind)
    words = list(pool if chosen is None else chosen)
    known = one_token_words(model, words)
    if chosen is not None and len(known) < len(words):
        several = [word for word in words if word not in known]
        raise KeyholeError(f"{kind}: {', '.join(several)} are not one token each for {model.name}: give other words.")
    if len(known) < least:
        raise KeyholeError(
            f"only {len(known)} of {len(words)} {kind} are one token for {model.name}, and {least} are needed: give "
            f"{kind}= that are, or take another model (`keyhole words --model` lists what it knows)."
        )
    return known
