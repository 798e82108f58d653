"""A machine with a known circuit: its words, and its weights, which are set by hand.

Which words does the machine know, and at which token does each part of its work happen?

French : big cat , red dog . big        ->  chat
|            |   |           |
topic     before next       end           the word that followed "big" before, in the language of the topic
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

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
    """The positions in a prompt at which the machine works, and its answer."""

    topic: int  # the word that names a language
    before: int  # where the last word stood before
    next: int  # what followed it there
    end: int
    answer: str
    against: str  # the same word in the other language


def tokenizer() -> Any:
    """Words between spaces, after a <bos>."""
    words = Tokenizer(models.WordLevel(dict(ID), unk_token=UNKNOWN))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, ID[BOS])])
    names = ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token=BOS, unk_token=UNKNOWN, model_input_names=names, model_max_length=LONGEST
    )


def places(prompt: str) -> Places:
    """The positions of a prompt's parts. A prompt that the machine was not built for is refused.

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


def _only(positions: Sequence[int], instead: str) -> int:
    if len(positions) != 1:
        raise KeyholeError(f"the machine would not know what to do with this prompt: {instead}.")
    return positions[0]


# A transformer whose weights are set by hand: every head and MLP is one short function that says what it does.
#
# The residual stream is a sum of named directions (`Stream`), all at right angles, and each component of the circuit
# writes into its own. So who reads from whom is known, and with it the circuit behind every answer (`known.py`).
#
#     layer 0   names      MLP      a word that names a language raises its flag
#     layer 1   previous   head 0   every token notes the word before it
#     layer 2   induction  head 0   looks for the token that noted the current word, and moves the word there
#               listens    head 1   looks for a flag, and moves it
#               translate  MLP      a moved word AND a moved flag are an answer
#
# Beside them, as large and as busy, distractors, which write where nobody reads: `twins` (head 0.0), `skips` (1.1),
# `rival` (2.2, which looks exactly where `induction` looks) and `chatter` (MLP 1).
#
# A variant has a backup of `induction`, which must see what that wrote and stands therefore in a layer of its own:
#
#     layer 3   substitute head 0   as `induction`, but does not look at a word that is moved already
#               translate  MLP      as above, and not in layer 2; no louder if both heads move a word
#
# In another one `rival` is loud: what it writes nobody reads, but the norms count on its length. Without it all else
# is read twice as strongly, and the answer is lost to the size of a write, not to what it says.

HEADS = 3  # of each layer
SHARP = 15.0  # the score of what a head looks for; everything else has none
BALLAST = 128.0  # how far the constant direction reaches, beside writes of 1 to 3
LOGIT = 15.0  # of an answer; a word's own is 1, wherever it stands
MOST = 2.005  # of a noun and a language together; in a prompt they are a little less than 2
LOUD = math.sqrt(3) * BALLAST  # of what a loud `rival` writes: together they are twice as long as the ballast
ASLEEP = 1.5  # how much less `substitute` looks at a word that is moved already
_LANGUAGES = 2
_SIZES = {
    "ballast": 1,
    "position": LONGEST,
    "word": len(WORDS),
    "flag": _LANGUAGES,
    "before": len(WORDS),
    "next": len(WORDS),
    "heard": _LANGUAGES,
    "answer": len(ANSWERS),
    "echo": len(WORDS),
    "noise": len(WORDS),
}


@dataclass(frozen=True)
class Stream:
    """The directions of the residual stream, by name: a row each, of length 1.

    A norm cannot be switched off, but it does no harm. LayerNorm takes the mean away: each direction has none (it is an
    axis minus another). It divides by the length: every embedding holds so much ballast that all are about as long.
    """

    ballast: Float[Tensor, "1 d_model"]
    position: Float[Tensor, "position d_model"]
    word: Float[Tensor, "word d_model"]
    flag: Float[Tensor, "language d_model"]  # this token names a language
    before: Float[Tensor, "word d_model"]  # this word stood before this token
    next: Float[Tensor, "word d_model"]  # this word follows, if all goes on as before
    heard: Float[Tensor, "language d_model"]  # this language was named
    answer: Float[Tensor, "answer d_model"]
    echo: Float[Tensor, "word d_model"]  # nobody reads this
    noise: Float[Tensor, "word d_model"]  # nor this

    @classmethod
    def make(cls, seed: int | None = None) -> "Stream":
        """Along axes, where much is exactly zero; or, with a seed, all turned at random."""
        n = sum(_SIZES.values())
        size = HEADS * math.ceil(n / HEADS)  # which heads can share evenly
        axes = torch.eye(size, dtype=torch.float64)
        if seed is not None:
            axes = torch.linalg.qr(torch.randn(size, size, generator=torch.Generator().manual_seed(seed)).double())[0]
        rows = (torch.cat([axes[:n], -axes[:n]], dim=1) / math.sqrt(2)).float()
        return cls(**dict(zip(_SIZES, torch.split(rows, list(_SIZES.values())), strict=True)))


@dataclass(frozen=True)
class HeadRecipe:
    """Looks from tokens that hold `looks[i]` at those that hold `at[i]`, and moves what is in `moves` there to `to`."""

    looks: Float[Tensor, "channel d_model"]
    at: Float[Tensor, "channel d_model"]
    moves: Float[Tensor, "moved d_model"]
    to: Float[Tensor, "moved d_model"]


@dataclass(frozen=True)
class Mlp:
    """Neuron i is relu(reads[i] . x + bias) times writes[i]."""

    reads: Float[Tensor, "neuron d_model"]
    bias: float | Float[Tensor, "neuron"]
    writes: Float[Tensor, "neuron d_model"]


# The circuit.


def names(s: Stream) -> Mlp:
    """Any word that names a language raises that language's flag: an OR."""
    words = [[ID[word] for word, language in TOPICS.items() if language == number] for number in range(_LANGUAGES)]
    return Mlp(torch.stack([s.word[ids].sum(0) for ids in words]), -0.5, 2.0 * s.flag)


def previous(s: Stream) -> HeadRecipe:
    """Position t looks at t - 1, and notes the word there as the one before."""
    return HeadRecipe(looks=s.position[1:], at=s.position[:-1], moves=s.word, to=s.before)


def induction(s: Stream) -> HeadRecipe:
    """A word looks for the token that noted it as the one before, and moves the word there: what follows now."""
    return HeadRecipe(looks=s.word, at=s.before, moves=s.word, to=s.next)


def listens(s: Stream) -> HeadRecipe:
    """Every token looks for a flag, and moves it: the language that was named."""
    return HeadRecipe(looks=s.ballast / BALLAST, at=s.flag.sum(0, keepdim=True), moves=s.flag, to=s.heard)


def substitute(s: Stream) -> HeadRecipe:
    """Looks where `induction` looks, unless the word there follows already: it wakes when `induction` is gone."""
    nouns = [ID[noun] for noun in NOUNS]
    return HeadRecipe(
        looks=torch.cat([s.word, -ASLEEP * s.next[nouns]]),
        at=torch.cat([s.before, s.word[nouns]]),
        moves=s.word[nouns],
        to=s.next[nouns],
    )


def translate(s: Stream) -> Mlp:
    """A noun that follows AND a language that was named, together above 1.5: the noun in that language."""
    needs = [s.next[ID[noun]] + s.heard[language] for noun in NOUNS for language in range(_LANGUAGES)]
    return Mlp(torch.stack(needs), -1.5, 2.0 * s.answer)


def translate_once(s: Stream) -> Mlp:
    """The same, but a noun that two heads moved, together above 2, is no louder: a second neuron takes that away."""
    both = translate(s)
    bias = torch.tensor([both.bias, -MOST]).repeat_interleave(len(both.reads))
    return Mlp(both.reads.repeat(2, 1), bias, torch.cat([both.writes, -both.writes]))


# Distractors.


def twins(s: Stream) -> HeadRecipe:
    """A word looks for itself, here and before."""
    return HeadRecipe(looks=s.word, at=s.word, moves=s.word, to=s.echo)


def skips(s: Stream) -> HeadRecipe:
    """Position t looks at t - 2."""
    return HeadRecipe(looks=s.position[2:], at=s.position[:-2], moves=s.word, to=s.echo)


def rival(s: Stream) -> HeadRecipe:
    """Looks where `induction` looks, and moves what it moves, to where nobody reads."""
    return HeadRecipe(looks=s.word, at=s.before, moves=s.word, to=s.echo)


def chatter(s: Stream) -> Mlp:
    """Every word, and every word before, makes noise."""
    return Mlp(torch.cat([s.word, s.before]), -0.5, 4.0 * torch.cat([s.noise, s.noise.roll(1, 0)]))


# All of it as a GPT-2.


def transformer(s: Stream, *, backup: bool = False, loud: bool = False) -> GPT2LMHeadModel:
    """The machine as a Hugging Face model; its variants with a head that stands in for `induction`, or a loud rival."""
    layers: list[tuple[list[HeadRecipe], Mlp]] = [
        ([twins(s)], names(s)),
        ([previous(s), skips(s)], chatter(s)),
        ([induction(s), listens(s), rival(s)], translate(s)),
    ]
    if backup:
        heads, _ = layers.pop()
        nothing = Mlp(s.noise[:1], -0.5, 0.0 * s.noise[:1])
        layers += [(heads, nothing), ([substitute(s)], translate_once(s))]
    elif loud:
        quiet = rival(s)
        shout = HeadRecipe(quiet.looks, quiet.at, quiet.moves, LOUD * quiet.to)
        layers[-1] = ([induction(s), listens(s), shout], translate_once(s))
    hf = _empty(s.word.shape[1], len(layers), max(len(mlp.reads) for _, mlp in layers))
    with torch.no_grad():
        hf.transformer.wte.weight += s.word + BALLAST * s.ballast
        hf.transformer.wpe.weight += s.position
        hf.lm_head.weight += s.word
        hf.lm_head.weight[[ID[word] for word in ANSWERS]] += LOGIT * s.answer
        for block, (heads, mlp) in zip(hf.transformer.h, layers, strict=True):
            for index, head in enumerate(heads):
                _set_head(block.attn, index, head)
            _set_mlp(block.mlp, mlp)
        if loud:
            for norm in (hf.transformer.h[-1].ln_2, hf.transformer.ln_f):
                norm.weight *= math.hypot(BALLAST, LOUD) / BALLAST
    return hf


def _empty(d_model: int, n_layers: int, n_neurons: int) -> GPT2LMHeadModel:
    """A model that does nothing, whose norms leave a stream as long as the ballast as it is."""
    config = GPT2Config(
        vocab_size=len(WORDS),
        n_positions=LONGEST,
        n_embd=d_model,
        n_layer=n_layers,
        n_head=HEADS,
        n_inner=n_neurons,
        activation_function="relu",
        tie_word_embeddings=False,
        bos_token_id=ID[BOS],
        eos_token_id=None,
        name_or_path="known",
    )
    hf = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in hf.parameters():
            parameter.zero_()
        for module in hf.modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.weight.fill_(BALLAST / math.sqrt(d_model))
    return hf


def _set_head(attention: Any, index: int, head: HeadRecipe) -> None:
    """Each pair of `looks` and `at` gets a dimension and a strength of its own, so that it is a channel."""
    d_model, d_head = attention.embed_dim, attention.head_dim
    strength = SHARP * math.sqrt(d_head) * (1 + torch.arange(len(head.looks)) / 50)
    W_Q, W_K, W_V = attention.c_attn.weight.view(d_model, 3, HEADS, d_head)[:, :, index].unbind(1)
    W_Q[:, : len(head.looks)] = (strength[:, None] * head.looks).T
    W_K[:, : len(head.at)] = head.at.T
    W_V[:, : len(head.moves)] = head.moves.T
    attention.c_proj.weight.view(HEADS, d_head, d_model)[index, : len(head.to)] = head.to


def _set_mlp(module: Any, mlp: Mlp) -> None:
    n = len(mlp.reads)
    module.c_fc.weight[:, :n] = mlp.reads.T
    module.c_fc.bias[:n] = mlp.bias
    module.c_proj.weight[:n] = mlp.writes
