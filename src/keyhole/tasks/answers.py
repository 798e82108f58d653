"""Was the model right? An example's answers as the tokens that would come next, and what the model makes of them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keyhole.errors import KeyholeError
from keyhole.tasks.example import Example

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
    """Does this run of an example's prompt get it right? `ids` are its `answer_ids`, if they are known already.

    >>> import keyhole
    >>> from keyhole.tasks import ioi
    >>> example = ioi(1, held_out=True)[0]
    >>> told = answered(keyhole.load().run(example.text), example)
    >>> told.correct, told.predicted == example.answer, told.probability > 0.5
    (True, True, True)
    """
    from keyhole.models.tokens.prompts import text_ids, token_texts

    own = text_ids(run.model, example.text)
    if run.token_ids[-len(own) :] != own:
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
    from keyhole.models.tokens.prompts import text_ids

    # Tokenizers cut text at spaces, so the last word is all that the next one can depend on.
    last, goes_on = _LAST_WORD.search(example.text), example.continuation
    before = last[0] if last else example.text
    gap = goes_on[: len(goes_on) - len(goes_on.lstrip())] if goes_on else " "
    start, found = text_ids(model, before), {}
    for word in words:
        whole = text_ids(model, before + gap + word)
        joined = whole[: len(start)] != start or len(whole) == len(start)  # one token: 18 and 00 are 1800
        found[word] = text_ids(model, gap + word) if joined else whole[len(start) :]
        if joined and len(found[word]) != 1:
            raise KeyholeError(
                f"{model.name} cuts {before + gap + word!r} otherwise than {before!r}, so no next token begins "
                f"{word!r}: end the prompt where a token ends."
            )
    return found


def _some(words: Sequence[str], most: int = 4) -> str:
    return ", ".join(words[:most]) + (", ..." if len(words) > most else "")
