"""What would the model say, were a word another? Words exchanged for others that the model finds likely there.

A prompt alone says nothing of the prompts that are like it. But the model itself knows which other words could stand in
the place of each, and those that look alike (a space before it or none, capital, letters, digits, punctuation) make a
text of the same shape. Two things come of it, both from real text:

    the effect of a word    the answer less its mean over copies in which this word alone is another
    a baseline              the mean over copies in which all words but function words are others, equal ones alike
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int

from keyhole.circuits.records import Writer
from keyhole.faithfulness.template import template_tokens
from keyhole.intervene.removal import Metric
from keyhole.intervene.writers import estimate
from keyhole.models.effective import embedded
from keyhole.models.numbers import exact_matmul
from keyhole.progress import Progress, part_of, silent

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.models.run import Run

COPIES = 8  # in which a word is another
MORE = 24  # of words of which these leave open whether they matter
OPEN = 2.0  # standard errors between the mean effect and the smallest that matters: less leaves it open
WORDS = 48  # of long prompts, so many are tried: those that the answer hangs on most, to first order
LIKELY = 64  # other words to draw from
FOLLOWS = 16  # tokens by which others are chosen for the first one, itself among them
SCORED = 16  # such texts in one batch, of which every token's logits are needed
TOKENS = 2048  # in one batch
_FUNCTION_WORDS = """
a about above after again against all also am an and any are as at be because been before being below between both
but by can could did do does doing down during each few for from further had has have having he her here hers him
his how i if in into is it its just me more most my no nor not of off on once only or other our out over own same
she should so some such than that the their them then there these they this those through to too under until up upon
us very was we were what when where which while who whom why will with would you your
"""
FUNCTION = frozenset(_FUNCTION_WORDS.split())
Form = tuple[bool, str]  # is there a space before it? and what is it made of


def form_of(text: str) -> Form | None:
    """What a token looks like; None for white space and mixtures.

    >>> form_of(" Mary"), form_of("ing"), form_of("2"), form_of("("), form_of(" ")
    ((True, 'Capital'), (False, 'letters'), (False, '1 digits'), (False, 'punctuation'), None)
    """
    body = text.strip()
    if not body or body != text.lstrip() or not body.isprintable():
        return None
    space = text[:1].isspace()
    if body.isascii() and body.isdigit():
        return space, f"{len(body)} digits"
    if body.isalpha():
        return space, "Capital" if body[0].isupper() and body[1:] == body[1:].lower() else "letters"
    return (space, "punctuation") if not any(c.isalnum() for c in body) else None


def is_function_word(text: str) -> bool:
    """Is it a function word of English, or no word at all?"""
    body = text.strip().lower()
    return body in FUNCTION or not any(c.isalnum() for c in body)


def is_minor(text: str) -> bool:
    """Is it a function word of English, a mark between clauses, or space? Brackets, signs and numbers are not.

    >>> is_minor(" the"), is_minor(","), is_minor(" "), is_minor("("), is_minor(" Mary")
    (True, True, True, False, False)
    """
    return text.strip().lower() in FUNCTION or set(text.strip()) <= set(".,;:!?")


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """All tokens of a model by their form."""

    forms: Mapping[Form, Int[np.ndarray, "token"]]  # without special ones, function words and single letters
    every: Mapping[Form, Int[np.ndarray, "token"]]  # with function words and single letters
    words: Sequence[str]  # the text of each token, without space and capital
    spaced: bool  # do words begin with a space?


def vocabulary_of(model: "Model") -> Vocabulary:
    """The vocabulary, looked through once."""
    return model._cached(("words",), lambda: (), lambda: _vocabulary(model))


def _vocabulary(model: "Model") -> Vocabulary:
    special = set(model.tokenizer.all_special_ids)
    texts = [model.tokenizer.decode([i]) for i in range(min(len(model.tokenizer), model.dims.vocab))]
    every, content = defaultdict[Form, list[int]](list), defaultdict[Form, list[int]](list)
    for token, text in enumerate(texts):
        form = form_of(text)
        if token in special or form is None:
            continue
        every[form].append(token)
        letter = text.strip().isalpha() and len(text.strip()) == 1
        if form[1] == "punctuation" or not (letter or is_function_word(text)):
            content[form].append(token)
    forms, both = ({form: np.array(ids) for form, ids in kind.items() if len(ids) > 1} for kind in (content, every))
    return Vocabulary(forms, both, [text.strip().lower() for text in texts], any(form[0] for form in forms))


@dataclass(frozen=True, eq=False)
class Words:
    """A prompt's words that can be exchanged, and for what."""

    run: "Run"
    words: tuple[tuple[int, ...], ...]  # tokens of each

    @property
    def content(self) -> tuple[tuple[int, ...], ...]:
        """Those that are no function words, no punctuation, and nothing that the chat template wrote."""
        template = template_tokens(self.run)
        texts = ["".join(self.run.tokens[t] for t in word) for word in self.words]
        pairs = zip(self.words, texts, strict=True)
        return tuple(word for word, text in pairs if not is_function_word(text) and not template.issuperset(word))

    def copies(self, chosen: Sequence[Sequence[int]], n: int, *, seed: int | None = None) -> list[tuple[int, ...]]:
        """The prompt n times with these words exchanged; tokens that are equal become equal ones.

        With a `seed` others are drawn by how likely the model finds them; without, the likeliest are taken in turn.
        """
        rng = None if seed is None else np.random.default_rng(seed)
        places = {self.run.token_ids[t]: t for word in reversed(chosen) for t in reversed(word)}  # first of equal ones
        drawn = {old: self._others(t, n, rng) for old, t in places.items()}
        copies = []
        for i in range(n):
            ids = list(self.run.token_ids)
            for t in (t for word in chosen for t in word):
                ids[t] = int(drawn[ids[t]][i])
            copies.append(tuple(ids))
        return copies

    def _others(self, token: int, n: int, rng: np.random.Generator | None) -> Int[np.ndarray, "n"]:
        """Tokens of the same form, by how likely the model finds each of them here."""
        run, pool = self.run, self._alike(token)
        likely = self._first if token == 0 else run.logits[token - 1].double().cpu().numpy()[pool]
        best = np.argsort(-likely)[:LIKELY]
        if rng is None:
            return np.asarray(pool[np.resize(best, n)])
        weights = np.exp(likely[best] - likely[best].max())
        weights = weights / weights.sum() + 1e-6
        return np.asarray(pool[rng.choice(best, n, replace=len(best) < n, p=weights / weights.sum())])

    def _alike(self, token: int) -> Int[np.ndarray, "alike"]:
        """Other tokens of the same form; function words and single letters only for one of them."""
        known = vocabulary_of(self.run.model)
        form, text = form_of(self.run.tokens[token]), known.words[self.run.token_ids[token]]
        assert form is not None
        small = is_function_word(text) or len(text) == 1
        pool = known.every[form] if small or form not in known.forms else known.forms[form]
        return pool[[known.words[i] != text for i in pool]]

    @cached_property
    def _first(self) -> Float[np.ndarray, "alike"]:
        """How likely others are in the place of the first token."""
        return likely_first(self.run, self._alike(0))


def likely_first(run: "Run", pool: Int[np.ndarray, "token"]) -> Float[np.ndarray, "token"]:
    """Which of these tokens could stand first? Nothing stands before it: those of its kind, by what follows.

    log P(what follows | the token) of those whose embeddings are nearest to its own; the others are at -inf.
    """
    follows, embedding = run.token_ids[1:FOLLOWS], run.model.hf.get_input_embeddings()
    with torch.no_grad(), exact_matmul():
        first, others = (embedded(embedding, ids).float() for ids in (run.token_ids[0], torch.as_tensor(pool)))
        middle = others.mean(0)  # which all have in common, and which says nothing of any
        near = (
            torch.cosine_similarity(others - middle, first - middle, dim=1).argsort(descending=True)[:LIKELY].tolist()
        )
        texts = torch.tensor([[int(pool[i]), *follows] for i in near], device=run.model.device)
        said = [_said(run.model, texts[start : start + SCORED]) for start in range(0, len(near), SCORED)]
    scores = np.full(len(pool), -np.inf)
    scores[near] = torch.cat(said).cpu().numpy()
    return scores


def _said(model: "Model", texts: Int[torch.Tensor, "text pos"]) -> Float[torch.Tensor, "text"]:
    """The log-probability of texts after their first tokens."""
    logits: torch.Tensor = model.hf(texts).logits[:, :-1].double()
    return (logits.gather(2, texts[:, 1:, None])[..., 0] - logits.logsumexp(2)).sum(1)


def words_of(run: "Run") -> Words:
    """The words of a prompt that can be exchanged: pieces of one word together, digits one by one.

    A first token that the tokenizer puts there is none. Any other one is: where heads rest on it, they rest on the
    token that stands there instead.
    """
    known, special = vocabulary_of(run.model), set(run.model.tokenizer.all_special_ids)
    words: list[list[int]] = []
    for t, (token, text) in enumerate(zip(run.token_ids, run.tokens, strict=True)):
        form = form_of(text)
        if form not in known.every or token in special:
            continue
        goes_on = t > 0 and known.spaced and form == (False, "letters") and run.tokens[t - 1].strip().isalpha()
        if goes_on and words and words[-1][-1] == t - 1:
            words[-1].append(t)
        else:
            words.append([t])
    return Words(run, tuple(map(tuple, words)))


def effects_of_words(
    run: "Run",
    metric: Metric,
    *,
    copies: int = COPIES,
    least: float | None = None,
    progress: Progress | None = None,
) -> dict[tuple[int, ...], Float[np.ndarray, "copy"]]:
    """By how much the answer is less in every copy with one word exchanged, word by word.

    With `least`, the smallest effect that matters, words of which the copies leave open whether they do get more.
    """
    words = words_of(run)
    chosen = [word for word in words.words if word[0] <= metric.end]
    if len(chosen) > WORDS:
        losses = estimate(run, metric)
        slopes = {word: sum(abs(losses.of(Writer("embedding", 0, None, t, t))) for t in word) for word in chosen}
        chosen = sorted(sorted(chosen, key=lambda word: -slopes[word])[:WORDS])
    first = _lost(words, chosen, range(copies), metric, part_of(progress or silent, 0.0, 0.5))
    unsure = [] if least is None else [word for word, lost in first.items() if _is_open(lost, least)]
    more = _lost(words, unsure, range(copies, MORE), metric, part_of(progress or silent, 0.5, 1.0))
    return {word: np.concatenate([lost, more.get(word, lost[:0])]) for word, lost in first.items()}


def _is_open(lost: Float[np.ndarray, "copy"], least: float) -> bool:
    """May the mean effect of a word as well be above as below the smallest one that matters?"""
    error = float(lost.std(ddof=1)) / len(lost) ** 0.5
    return bool(abs(abs(float(lost.mean())) - least) < OPEN * error)


def _lost(
    words: Words, chosen: Sequence[tuple[int, ...]], which: range, metric: Metric, progress: Progress
) -> dict[tuple[int, ...], Float[np.ndarray, "copy"]]:
    """By how much the answer is less in some of the copies of each word."""
    run, before = words.run, metric.of(words.run.logits[metric.at])
    texts = [copy for word in chosen for copy in words.copies([word], which.stop)[which.start :]]
    answers = np.array(answers_of(run.model, texts, metric, progress))
    return dict(zip(chosen, (before - answers).reshape(len(chosen), len(which)), strict=True))


def answers_of(
    model: "Model", texts: Sequence[Sequence[int]], metric: Metric, progress: Progress | None = None
) -> list[float]:
    """The answer's metric in prompts of one length, in plain forward passes."""
    size = max(1, TOKENS // max(1, len(texts[0]))) if texts else 1
    answers: list[float] = []
    with torch.no_grad(), exact_matmul():
        for start in range(0, len(texts), size):
            ids = torch.tensor([list(text) for text in texts[start : start + size]], device=model.device)
            answers += [metric.of(row) for row in model.hf(ids).logits[:, metric.at]]
            (progress or silent)(len(answers), len(texts))
    return answers
