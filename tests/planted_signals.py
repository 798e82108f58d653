"""Signals whose meaning is known: a head fires where a rule holds, with noise, or at random, over real English."""

import random
import re
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import torch

from keyhole.naming.judge.questions import Marked
from keyhole.naming.subjects.subject import Examples, Pick, Shown, Subject, SubjectKind
from keyhole.tasks.copying import ioi

PROSE = Path(__file__).parents[1] / ".cache" / "prose.txt"
LENGTH, CHUNKS = 24, 240
Holds = Callable[[Marked], bool]


@cache
def corpus() -> tuple[tuple[str, ...], ...]:
    """Chunks of prose and of prompts, as a tokenizer with spaces would cut them."""
    prose = PROSE.read_text(encoding="utf-8")[:200_000]
    prompts = " ".join(one.text + one.continuation for one in ioi(400, seed=3))
    found = []
    for text, n in ((prose, CHUNKS // 2), (prompts, CHUNKS // 2)):
        tokens = re.findall(r" ?\w+| ?[^\w\s]|\n", text)
        starts = random.Random(5).sample(range(0, len(tokens) - LENGTH, LENGTH), n)
        found += [tuple(tokens[i : i + LENGTH]) for i in starts]
    return tuple(dict.fromkeys(found))


@cache
def pairs() -> tuple[tuple[int, int, int], ...]:
    """Every visible pair: chunk, dest, src."""
    return tuple((c, d, s) for c in range(len(corpus())) for d in range(LENGTH) for s in range(d + 1))


@cache
def attention() -> np.ndarray:
    """A head that likes the first token, the token before, and some others."""
    rng = np.random.default_rng(1)
    near = np.array([3.0 * (s == 0) + 2.0 * (s == d - 1) for _, d, s in pairs()])
    return near + rng.normal(size=len(near))


def signal(
    values: np.ndarray, *, id: str, head: tuple[int, int], kind: SubjectKind = "signal", seed: int = 0
) -> Examples:
    """What would be kept of a signal with these values, by a slow and plain look at all pairs."""
    every, rng = pairs(), random.Random(seed)
    order = np.argsort(-values, kind="stable")
    top = [int(i) for i in order[:40]]
    tenths = np.array_split(order[values[order] > 0][::-1], 10)
    picked: list[tuple[int, Pick, int | None]] = [(i, "top", None) for i in top]
    for tenth, own in enumerate(tenths):
        picked += [(int(i), "decile", tenth) for i in rng.sample(list(own), min(4, len(own))) if int(i) not in top]
    picked += [(i, "random", None) for i in rng.sample(range(len(every)), 40)]
    silent = values == 0
    alike = [i for words in sorted({_words(i) for i in top}) for i in _same_words()[words] if silent[i]]
    picked += [(i, "same pair", None) for i in rng.sample(alike, min(20, len(alike)))]
    loud = _loudest()[silent[_loudest()]][:400].tolist()
    picked += [(i, "other channels", None) for i in rng.sample(loud, 20)]
    for i in rng.sample(top, 20):
        wrong = [j for j in range(i - every[i][2], i - every[i][2] + every[i][1] + 1) if silent[j]]
        picked += [(rng.choice(wrong), "wrong src", None)] if wrong else []
    subject = Subject(id, kind, head, torch.zeros(2), torch.zeros(2))
    shown = tuple(_shown(i, float(values[i]), pick, tenth) for i, pick, tenth in picked)
    return Examples(subject, shown, len(corpus()), len(corpus()) * LENGTH, float((values > 0).mean()))


def planted(
    holds: Holds, *, id: str, head: tuple[int, int], noise: float = 0.1, deaf: float = 0.03, seed: int = 0
) -> Examples:
    """Fires where the rule holds, but for a few; and a tenth as many others fire as loudly. Elsewhere, faint noise."""
    rng = np.random.default_rng(seed)
    true = np.array([holds(Marked(corpus()[c], d, s)) for c, d, s in pairs()])
    faint = np.where(rng.random(len(true)) < 0.3, rng.exponential(0.1, len(true)), 0.0)
    loud = rng.lognormal(1.0, 0.3, len(true))
    fires = true & (rng.random(len(true)) >= deaf)
    stray = rng.choice(len(true), max(1, int(noise * fires.sum())), replace=False)
    fires[stray] = True
    return signal(np.where(fires, loud, faint), id=id, head=head, seed=seed)


def noise(number: int, *, kind: SubjectKind = "signal") -> Examples:
    """Fires at random: there is nothing to name."""
    rng = np.random.default_rng([7, number])
    values = np.where(rng.random(len(pairs())) < 0.3, rng.exponential(1.0, len(pairs())), 0.0)
    return signal(values, id=f"noise {number}", head=(number % 7, number % 3), kind=kind, seed=number)


@cache
def _same_words() -> dict[tuple[str, str], list[int]]:
    found = defaultdict(list)
    for i in range(len(pairs())):
        found[_words(i)].append(i)
    return dict(found)


@cache
def _loudest() -> np.ndarray:
    return np.argsort(-attention(), kind="stable")


def _words(i: int) -> tuple[str, str]:
    chunk, dest, src = pairs()[i]
    return corpus()[chunk][dest], corpus()[chunk][src]


def _shown(i: int, value: float, pick: Pick, tenth: int | None) -> Shown:
    chunk, dest, src = pairs()[i]
    return Shown(chunk, corpus()[chunk], dest, src, value, float(attention()[i]), pick, tenth)
