"""Models whose sinks are known: small GPT-2s in which many heads rest on the first token, for a reason written here.

`shared_sinks`: MLP 0 writes one large direction at the first token, which all heads above look for; half of the words
carry another one, at which all of them look from there. Beside it three directions vary more than either.

`common_mean`: all streams share a vector that is far longer than the rest of them, and every head's keys are read
mostly along it; but it is the same in all keys. What makes each head rest on the first token is a direction of its own.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

import keyhole
from keyhole.intervene.removal import Metric
from keyhole.studies.sinks.firings import StoredQuestion

D, LAYERS, HEADS, D_HEAD, WORDS, POSITIONS = 64, 4, 4, 16, 40, 16
LISTENERS = (LAYERS - 1) * HEADS  # heads above the first layer
MASSIVE = 400.0
LONG = 200.0  # the common vector, beside writes of 1 to 4
COORDINATES = (0, 1)  # of the massive direction


@dataclass(frozen=True)
class Stream:
    """Directions at right angles, of length 1 and without a mean (LayerNorm takes it away)."""

    sink: Tensor  # along two coordinates
    first: Tensor
    rest: Tensor  # of words that rest
    mean: Tensor
    rogue: Tensor  # three
    word: Tensor  # ten
    own_key: Tensor  # one per head above the first layer
    own_query: Tensor


def stream(seed: int = 0) -> Stream:
    sizes = (1, 1, 1, 1, 3, 10, LISTENERS, LISTENERS)
    axis = torch.zeros(D, dtype=torch.float64)
    axis[list(COORDINATES)] = torch.tensor([1.0, -1.0], dtype=torch.float64)
    random = torch.randn(D, sum(sizes) - 1, generator=torch.Generator().manual_seed(seed)).double()
    columns = torch.cat([torch.ones(D, 1).double(), axis[:, None], random], dim=1)
    basis = torch.linalg.qr(columns)[0].T[1:].float()
    basis[0] *= torch.sign(basis[0, COORDINATES[0]])
    sink, first, rest, mean, *others = torch.split(basis, sizes)
    return Stream(sink[0], first[0], rest[0], mean[0], *others)


def shared_sinks(seed: int = 0) -> keyhole.Model:
    """All heads above the first layer look from one direction at another one."""
    s = stream(seed)
    hf = _words(s, torch.zeros(D))
    gain = MASSIVE / 5.0
    with torch.no_grad():
        _mlp(hf, s.first, gain * s.sink)
        for number, (block, head) in enumerate(_listeners(hf)):
            looks = 0.9 * s.rest + 0.19**0.5 * s.own_query[number]
            at = 0.9 * s.sink + 0.19**0.5 * s.own_key[number]
            _head(block, head, [(looks, at, 3.0)], s, number)
    return _model(hf, "shared")


def common_mean(seed: int = 0) -> keyhole.Model:
    """Every head reads its keys along the common vector, and rests for a reason of its own."""
    s = stream(seed)
    hf = _words(s, LONG * s.mean)
    with torch.no_grad():
        for module in hf.modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.weight.fill_(LONG / D**0.5)  # the stream is read as it is
        hf.transformer.wte.weight[1::2] += 1.5 * s.own_query.sum(0)
        hf.transformer.wte.weight[2::2] -= 1.5 * s.own_query.sum(0)
        _mlp(hf, s.first, 0.8 * s.own_key.sum(0))
        for number, (block, head) in enumerate(_listeners(hf)):
            at = 0.8 * s.mean + 0.6 * s.own_key[number]
            _head(block, head, [(s.own_query[number], at, 16.0)], s, number)
    return _model(hf, "mean")


def prompts(n: int = 18, pairs: int = 6, seed: int = 0) -> list[StoredQuestion]:
    """A word, and then pairs that differ in who rests alone: what rests is then no part of the mean."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for number in range(n):
        chosen = torch.randint(1, WORDS // 2, (pairs,), generator=generator)
        ids = torch.cat([2 * chosen, 2 * chosen + 1])[torch.randperm(2 * pairs, generator=generator)].tolist()
        found.append(StoredQuestion(number, (number % (WORDS - 1) + 1, *ids), Metric(2 * pairs, (5,), (6,))))
    return found


def _words(s: Stream, common: Tensor) -> GPT2LMHeadModel:
    """A model whose words have a meaning, vary most in three directions, and rest or do not; its heads do nothing."""
    sizes: dict[str, Any] = {"n_embd": D, "n_layer": LAYERS, "n_head": HEADS, "n_inner": 8}
    ends: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": None, "tie_word_embeddings": False}
    hf = GPT2LMHeadModel(
        GPT2Config(vocab_size=WORDS, n_positions=POSITIONS, activation_function="relu", **sizes, **ends)
    ).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in hf.named_parameters():
            if ".ln_" not in name or "bias" in name:
                parameter.zero_()
        bits = torch.arange(WORDS)[:, None] // torch.tensor([2, 4, 8]) % 2  # which say nothing of who rests
        signs = 8.0 * bits - 4.0
        meaning = 0.7 * torch.randn(WORDS, 10, generator=generator)
        rests = torch.where(torch.arange(WORDS) % 2 == 1, 2.0, -2.0)[:, None]
        hf.transformer.wte.weight += signs @ s.rogue + meaning @ s.word + rests * s.rest + common
        hf.transformer.wpe.weight[0] += 4.0 * s.first
        hf.lm_head.weight += torch.randn(WORDS, D, generator=generator)
    return hf


def _listeners(hf: GPT2LMHeadModel) -> list[tuple[Any, int]]:
    return [(block, head) for block in hf.transformer.h[1:] for head in range(HEADS)]


def _mlp(hf: GPT2LMHeadModel, reads: Tensor, writes: Tensor) -> None:
    """MLP 0 writes where the first token is."""
    mlp = hf.transformer.h[0].mlp
    mlp.c_fc.weight[:, 0], mlp.c_fc.bias[0], mlp.c_proj.weight[0] = reads, -1.0, writes


def _head(block: Any, head: int, pairs: list[tuple[Tensor, Tensor, float]], s: Stream, number: int) -> None:
    """Looks from one direction at another; at its own word through two directions of meaning; moves some meaning."""
    generator = torch.Generator().manual_seed(10 + number)
    two = s.word[[2 * number % 10, (2 * number + 1) % 10]]
    rows = [*pairs, *[(row, row, 20.0) for row in two]]
    W_Q, W_K, W_V = block.attn.c_attn.weight.view(D, 3, HEADS, D_HEAD)[:, :, head].unbind(1)
    for channel, (looks, at, strength) in enumerate(rows):
        W_Q[:, channel], W_K[:, channel] = strength * looks, at
    rest = slice(len(rows), None)
    W_Q[:, rest] = 0.02 * torch.randn(D, D_HEAD - len(rows), generator=generator)
    W_K[:, rest] = 0.02 * torch.randn(D, D_HEAD - len(rows), generator=generator)
    W_V += s.word.T @ torch.randn(10, D_HEAD, generator=generator) / 10
    block.attn.c_proj.weight.view(HEADS, D_HEAD, D)[head] += torch.randn(D_HEAD, 10, generator=generator) @ s.word / 10


def _model(hf: GPT2LMHeadModel, name: str) -> keyhole.Model:
    hf.config.name_or_path = name
    return keyhole.load((hf, None))
