"""What does each method say about the words of a prompt? A score for every token: the higher, the more it decides."""

import random
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from typing import Literal

import torch
from decisive_data import Question, leads  # of this folder
from torch import Tensor
from transformers import DynamicCache

import keyhole
from keyhole.circuits.records import Writer
from keyhole.faithfulness.routes import Story
from keyhole.faithfulness.words import deciding_words
from keyhole.intervene import answers_without, estimate
from keyhole.models.run import Run
from keyhole.models.tokens import token_texts
from keyhole.tasks.corpus import passages

Ranking = Callable[[Run, Question], list[float]]
Source = Literal["replaced", "proposed"]  # other tokens: any frequent ones, or what the model would have said here
FREQUENT = 10_000  # byte pairs are numbered in the order they were joined in, frequent ones first
REPLACEMENTS = 8
_PASSAGES, _LENGTH = 64, 64  # of prose, whose mean embedding stands for no word in particular


def influence(run: Run, question: Question) -> list[float]:
    """The share of the answer that the circuit follows back to the embedding of each token."""
    circuit = run.trace(question.answer, against=question.against)
    found = [0.0] * len(run)
    for node, share in zip(circuit.nodes, circuit.influence, strict=True):
        if node.kind == "embedding":
            found[node.dest] += share
    return found


def story(run: Run, question: Question) -> list[float]:
    """The words in the order of the story: those that decide, those that matter either way, function words."""
    words, answer = deciding_words(run, question.metric, {}), question.metric.of(run.logits[question.metric.end])
    story = Story(None, (), 0.0, 0.0, {}, metric="logit difference", answer=answer, words=words)
    named = sorted((*story.decisive, *story.either_way), key=lambda word: word.minor)
    named += [word for word in words if word not in named]
    order = [token for word in named for token in word.tokens]
    return [1 / (1 + order.index(token)) if token in order else 0.0 for token in range(len(run))]


def changes(run: Run, question: Question) -> list[float]:
    """The same words by how often they change the answer alone, whether the story names them or not."""
    order = [token for word in deciding_words(run, question.metric, {}) for token in word.tokens]
    return [1 / (1 + order.index(token)) if token in order else 0.0 for token in range(len(run))]


def gradient(run: Run, question: Question) -> list[float]:
    """The embedding times the gradient of the lead: what the answer would lose without it, to first order."""
    losses = estimate(run, question.metric)
    return [losses.of(Writer("embedding", 0, None, token, token)) for token in range(len(run))]


def attention(run: Run, question: Question) -> list[float]:
    """The mean attention of all heads from the last token; the first token, where heads rest, has none."""
    weights = torch.stack([run.pattern(layer)[:, -1] for layer in run.model.attention_layers])
    return [0.0, *weights.mean((0, 1))[1:].tolist()]


def rollout(run: Run, question: Question) -> list[float]:
    """Attention rollout (Abnar and Zuidema 2020): attention and identity in equal parts, multiplied over layers."""
    flow = torch.eye(len(run))
    for layer in run.model.attention_layers:
        flow = (run.pattern(layer).float().mean(0) + torch.eye(len(run))) / 2 @ flow
    return [0.0, *flow[-1, 1:].tolist()]


def chance(run: Run, question: Question) -> list[float]:
    """Random scores, the same in every run."""
    rng = random.Random(str(question.ids))
    return [rng.random() for _ in question.ids]


def at_zero(run: Run, question: Question) -> list[float]:
    """The lead less what is left of it when the token's embedding writes nothing; the first token stays."""
    words = [[Writer("embedding", 0, None, token, token)] for token in range(1, len(run))]
    return [0.0, *(question.lead - lead for lead in answers_without(run, words, question.metric))]


def resting(run: Run, question: Question) -> list[float]:
    """The lead less what is left of it when the token's embedding is the mean of all tokens of a text."""
    words = [Writer("embedding", 0, None, token, token) for token in range(len(run))]
    instead = dict.fromkeys(words, _mean_embedding(run.model))
    after = answers_without(run, [[word] for word in words], question.metric, instead=instead)
    return [question.lead - lead for lead in after]


def change(how: Source, run: Run, question: Question) -> list[float]:
    """The lead less its mean with other tokens of the same form in the token's place."""
    return [question.lead - float(row.mean()) for row in _replaced(run, question, how)]


def flips(how: Source, run: Run, question: Question) -> list[float]:
    """How many of these replacements change the preferred answer."""
    return [float((row < 0).double().mean()) for row in _replaced(run, question, how)]


def size(how: Source, run: Run, question: Question) -> list[float]:
    """The mean size of the change by these replacements, in either direction."""
    return [float((question.lead - row).abs().mean()) for row in _replaced(run, question, how)]


@lru_cache(maxsize=2)
def _replaced(run: Run, question: Question, how: Source) -> list[Tensor]:
    """The leads with each token replaced; what stands before it is computed once."""
    found = []
    with torch.inference_mode():
        past = run.model.hf(torch.tensor([question.ids]), use_cache=True).past_key_values
        for token in range(len(question.ids)):
            chosen = _others(run, question, token, how)
            if not chosen:  # of special tokens there are no others
                found.append(torch.full((1,), question.lead))
                continue
            ids = [[other, *question.ids[token + 1 :]] for other in chosen]
            found.append(_leads_after(run.model, past, token, ids, question))
    return found


def _others(run: Run, question: Question, token: int, how: Source) -> list[int]:
    """Tokens of the same form: drawn from the frequent ones, or those that the model finds likeliest here."""
    own = question.ids[token]
    others = [other for other in _forms(run.model).alike(own) if other != own]
    if how == "proposed" and token > 0:
        likely = run.logits[token - 1]
        return sorted(others, key=lambda other: -float(likely[other]))[:REPLACEMENTS]
    return random.Random(f"{question.ids} {token}").sample(others, min(REPLACEMENTS, len(others)))


def _leads_after(
    model: keyhole.Model, past: DynamicCache, start: int, ids: Sequence[Sequence[int]], question: Question
) -> Tensor:
    if start == 0:
        return torch.tensor(leads(model, ids, question.answer, question.against))
    before = DynamicCache()
    for layer, record in enumerate(past.layers):
        keys, values = (kept[:, :, :start].expand(len(ids), -1, -1, -1) for kept in (record.keys, record.values))
        before.update(keys, values, layer)
    logits = model.hf(torch.tensor(ids), past_key_values=before, logits_to_keep=1).logits[:, -1]
    return logits[:, question.answer] - logits[:, question.against]


class Forms:
    """Frequent tokens by how they look: with a space before or not, capitals, digits, marks."""

    def __init__(self, model: keyhole.Model) -> None:
        self.tokenizer = model.tokenizer
        self.by_form: dict[tuple[bool, str], list[int]] = {}
        for token in range(FREQUENT):
            if (form := self.form(token)) is not None:
                self.by_form.setdefault(form, []).append(token)

    def form(self, token: int) -> tuple[bool, str] | None:
        """How a token looks; special ones are like no other."""
        if token in self.tokenizer.all_special_ids:
            return None
        [text] = token_texts(self.tokenizer, [token])
        word = text.strip()
        looks = {
            "space": not word,
            "digits": word.isdigit(),
            "capital": word.isalpha() and word[:1].isupper(),
            "lower": word.isalpha(),
            "marks": not any(letter.isalnum() for letter in word),
        }
        return text.startswith(" "), next((look for look, is_so in looks.items() if is_so), "mixed")

    def alike(self, token: int) -> list[int]:
        """Frequent tokens that look like this one."""
        form = self.form(token)
        return [] if form is None else self.by_form.get(form, [])


@cache
def _forms(model: keyhole.Model) -> Forms:
    return Forms(model)


@cache
def _mean_embedding(model: keyhole.Model) -> Tensor:
    ids = torch.tensor(passages(model, [_LENGTH] * _PASSAGES))
    with torch.inference_mode():
        return model.hf.get_input_embeddings()(ids).mean((0, 1))


# What is measured. To add one: a function from a run and its question to a score for each token.
RANKINGS: dict[str, Ranking] = {
    "story": story,
    "story: changes": changes,
    "influence": influence,
    "gradient x embedding": gradient,
    "attention": attention,
    "rollout": rollout,
    "random": chance,
    "zero": at_zero,
    "resting": resting,
    "replaced": partial(change, "replaced"),
    "replaced: flips": partial(flips, "replaced"),
    "replaced: size": partial(size, "replaced"),
    "proposed": partial(change, "proposed"),
    "proposed: flips": partial(flips, "proposed"),
    "proposed: size": partial(size, "proposed"),
}
SIGNED = ("gradient x embedding", "zero", "resting", "replaced", "proposed")
