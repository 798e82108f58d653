"""Which words of a prompt decide its answer? The truth, by changing the prompt: every content word is replaced.

`decisive_prompts.jsonl` has a prompt a line. «word|other|another|third» is a content word with three of its kind that
are as many tokens for SmolLM2; the first one stands in the prompt. A word is decisive if in at least two of the three
changed prompts the model no longer prefers `answer` to `against`.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

import keyhole
from keyhole.intervene import Metric
from keyhole.models.chat import in_chat
from keyhole.models.tokens import text_ids, token_spans, tokens_in

PROMPTS = Path(__file__).with_name("decisive_prompts.jsonl")
_WORD = re.compile("«([^«»]+)»")
_ENOUGH = 2  # of three replacements


@dataclass(frozen=True)
class Word:
    """A content word of a prompt: its tokens, and the lead of the answer with each of the other words in its place."""

    text: str
    tokens: tuple[int, ...]
    leads: tuple[float, ...]

    @property
    def decisive(self) -> bool:
        """Is another answer preferred in most of the changed prompts?"""
        return sum(lead < 0 for lead in self.leads) >= _ENOUGH


@dataclass(frozen=True)
class Question:
    """A prompt, two next tokens, how far the first leads, and which words decide that."""

    kind: str
    ids: tuple[int, ...]
    answer: int
    against: int
    lead: float
    words: tuple[Word, ...]

    @property
    def metric(self) -> Metric:
        """The lead of the answer, as interventions measure it."""
        return Metric(len(self.ids) - 1, (self.answer,), (self.against,))

    @property
    def counts(self) -> bool:
        """Does the model prefer the answer, and does a word decide that?"""
        return self.lead > 0 and any(word.decisive for word in self.words)


def questions(model: keyhole.Model) -> Iterator[Question]:
    """Every prompt of the file with its truth; a replacement of another length is an error."""
    for line in PROMPTS.read_text().splitlines():
        record = json.loads(line)
        texts, slots = _texts(record["prompt"])
        if record["kind"] == "chat":
            texts = [in_chat(model, text, {})[0] for text in texts]
            slots = [in_chat(model, "", {"slot": slot})[1]["slot"] for slot in slots]
        ids = [text_ids(model, text) for text in texts]
        if len({len(row) for row in ids}) > 1:
            raise keyhole.KeyholeError(f"the words of {record['prompt']!r} have unequal numbers of tokens.")
        [answer], [against] = (text_ids(model, record[key]) for key in ("answer", "against"))
        lead, *others = leads(model, ids, answer, against)
        spans = token_spans(model, texts[0], ids[0])
        words = []
        for number, slot in enumerate(slots):
            changed = tuple(others[3 * number : 3 * number + 3])
            words.append(Word(texts[0][slice(*slot)], tuple(tokens_in(spans, *slot)), changed))
        yield Question(record["kind"], ids[0], answer, against, lead, tuple(words))


def leads(model: keyhole.Model, ids: Sequence[Sequence[int]], answer: int, against: int) -> list[float]:
    """By how many logits an answer leads after each of some prompts of one length."""
    with torch.inference_mode():
        logits = model.hf(torch.tensor(ids), logits_to_keep=1).logits[:, -1]
    return (logits[:, answer] - logits[:, against]).tolist()


def _texts(marked: str) -> tuple[list[str], list[tuple[int, int]]]:
    """The prompt, then with each word replaced three times; and where its words stand."""
    choices = [word[1].split("|") for word in _WORD.finditer(marked)]
    frame = _WORD.sub("«»", marked)
    own = [words[0] for words in choices]
    texts = [_filled(frame, own)]
    slots = []
    for number, words in enumerate(choices):
        start = len(_filled("«»".join(frame.split("«»")[: number + 1]), own))
        slots.append((start, start + len(words[0])))
        texts += [_filled(frame, [*own[:number], other, *own[number + 1 :]]) for other in words[1:]]
    assert all(len(words) == 4 for words in choices), f"{marked!r}: three replacements for every word"
    return texts, slots


def _filled(frame: str, words: Sequence[str]) -> str:
    following = iter(words)
    return re.sub("«»", partial(lambda words, _: next(words), following), frame)
