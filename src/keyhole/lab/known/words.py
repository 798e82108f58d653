"""Which words does the machine know, and where in a prompt does each part of its work happen?

French : big cat , red dog . big        ->  chat
|            |   |           |
topic     before next       end           the word that followed "big" before, in the language of the topic
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from keyhole.errors import KeyholeError

BOS, UNKNOWN = "<bos>", "<unk>"
TOPICS: Mapping[str, int] = {"French": 0, "Paris": 0, "German": 1, "Berlin": 1}  # which language a word names
NOUNS: Mapping[str, tuple[str, str]] = {  # in each language
    "cat": ("chat", "Katze"),
    "dog": ("chien", "Hund"),
    "sun": ("soleil", "Sonne"),
}
CUES, MARKS = ("big", "red", "old", "new"), (":", ",", ".")
ANSWERS = tuple(word for both in NOUNS.values() for word in both)
WORDS = (BOS, UNKNOWN, *MARKS, *TOPICS, *CUES, *NOUNS, *ANSWERS)  # the vocabulary, in the order of ids
ID: Mapping[str, int] = {word: i for i, word in enumerate(WORDS)}
LONGEST = 24  # tokens of a prompt


@dataclass(frozen=True)
class Places:
    """The tokens of a prompt at which something is done, and what is the answer there."""

    topic: int  # the word that names a language
    before: int  # where the last word stood before
    next: int  # what followed it there
    end: int
    answer: str
    against: str  # the same word in the other language


def tokenizer() -> Any:
    """Words between spaces, behind a <bos>."""
    made = Tokenizer(models.WordLevel(dict(ID), unk_token=UNKNOWN))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, ID[BOS])])
    names = ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token=BOS, unk_token=UNKNOWN, model_input_names=names, model_max_length=LONGEST
    )


def places(prompt: str) -> Places:
    """Where is what in a prompt? Refuses one that the machine was not made for.

    >>> places("French : big cat , red dog . big")
    Places(topic=1, before=3, next=4, end=9, answer='chat', against='Katze')
    """
    words = (BOS, *prompt.split())
    end, last = len(words) - 1, words[-1]
    if unknown := [word for word in words if word not in WORDS]:
        raise KeyholeError(f"the machine does not know {unknown[0]!r}: its words are {' '.join(WORDS[2:])}.")
    if len(words) > LONGEST:
        raise KeyholeError(f"the prompt has {len(words)} tokens, but the machine counts to {LONGEST}: leave some out.")
    topic = _only([t for t, word in enumerate(words) if word in TOPICS], f"name one of {', '.join(TOPICS)}, once")
    before = _only(
        [t for t, word in enumerate(words[:-1]) if word == last], f"let {last!r}, its end, stand once before"
    )
    noun, language = words[before + 1], TOPICS[words[topic]]
    if noun not in NOUNS:
        raise KeyholeError(
            f"{noun!r} follows {last!r}, and cannot be translated: let one of {', '.join(NOUNS)} follow."
        )
    return Places(topic, before, before + 1, end, NOUNS[noun][language], NOUNS[noun][1 - language])


def _only(found: Sequence[int], instead: str) -> int:
    if len(found) != 1:
        raise KeyholeError(f"the machine would not know what to do with this prompt: {instead}.")
    return found[0]
