"""Which measure of single words names those that decide an answer? Each against the truth of changed prompts.

    python benchmarks/decisive.py [.cache/smollm2.gguf] [--only story,influence] [--scores scores.json]

The truth is `decisive_data.py`'s: content words are replaced by three of their kind, and decide if the preferred answer
changes in two of three. The measures are `decisive_rankings.py`'s: a score for each token. A content word of several
tokens has the largest of their scores; every other token stands for itself and counts as not decisive. Ties are broken
at random, the same way for all. Per prompt: precision and recall of the three words with the highest scores, whether
the first one is decisive, average precision; and average precision among the content words alone. Means over prompts
with 95 % intervals by 2,000 bootstrap samples of prompts, over all prompts, then over the even ones (to be looked at
while a measure is being chosen) and the odd ones (held out). "best possible" is a ranking by the truth, and |a measure|
ranks by size, whatever the sign.
"""

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
from decisive_data import Question, questions  # of this folder
from decisive_rankings import RANKINGS, SIGNED

import keyhole

TOP = 3
SAMPLES = 2_000


@dataclass(frozen=True)
class Quality:
    """How well a ranking of one prompt's words finds those that decide."""

    precision: float  # at 3
    recall: float  # at 3
    first: float  # is the first word decisive?
    average: float  # average precision
    content: float  # average precision among the content words

    @classmethod
    def of(cls, question: Question, scores: Sequence[float]) -> "Quality":
        """Of a score for each token."""
        every, content = units(question, scores), units(question, scores, content_only=True)
        found = sum(every[:TOP])
        return cls(
            found / TOP, found / sum(every), float(every[0]), average_precision(every), average_precision(content)
        )


def units(question: Question, scores: Sequence[float], *, content_only: bool = False) -> list[bool]:
    """Is each word decisive? The words of a prompt, those with the highest scores first."""
    inside = {token for word in question.words for token in word.tokens}
    found = [(max(scores[token] for token in word.tokens), word.decisive) for word in question.words]
    if not content_only:
        found += [(score, False) for token, score in enumerate(scores) if token not in inside]
    random.Random(str(question.ids)).shuffle(found)
    return [decisive for _, decisive in sorted(found, key=lambda unit: -unit[0])]


def average_precision(ranked: Sequence[bool]) -> float:
    """The mean, over the decisive words, of the precision where each of them stands."""
    at = [place for place, decisive in enumerate(ranked, 1) if decisive]
    return sum(number / place for number, place in enumerate(at, 1)) / len(at)


def perfect(question: Question) -> list[float]:
    """A ranking by the truth."""
    decisive = {token for word in question.words if word.decisive for token in word.tokens}
    return [float(token in decisive) for token in range(len(question.ids))]


def measured(
    model: keyhole.Model, asked: Sequence[Question], names: Sequence[str]
) -> tuple[dict[str, list[list[float]]], dict[str, float]]:
    """The scores of every measure on every prompt, and its seconds per prompt."""
    scores: dict[str, list[list[float]]] = {name: [] for name in names}
    seconds: Counter[str] = Counter()
    for question in asked:
        run = model.run(list(question.ids), bos=False)
        for name in names:
            start = time.perf_counter()
            scores[name].append(RANKINGS[name](run, question))
            seconds[name] += time.perf_counter() - start
    return scores, {name: seconds[name] / len(asked) for name in names}


def row(rows: Sequence[Quality]) -> str:
    """Means with their intervals, a column for each kind of quality."""
    table = np.array([list(asdict(quality).values()) for quality in rows])
    draws = np.random.default_rng(0).integers(len(rows), size=(SAMPLES, len(rows)))
    low, high = np.quantile(table[draws].mean(1), (0.025, 0.975), axis=0)
    return "  ".join(f"{m:.2f} [{a:.2f}, {b:.2f}]" for m, a, b in zip(table.mean(0), low, high, strict=True))


def report(asked: Sequence[Question], scores: dict[str, list[list[float]]], seconds: dict[str, float]) -> None:
    """A table for all prompts, one for each half."""
    sizes = {f"|{name}|": [[abs(score) for score in row] for row in scores[name]] for name in SIGNED if name in scores}
    scores = {"best possible": [perfect(question) for question in asked], **scores, **sizes}
    qualities = {
        name: [Quality.of(question, row) for question, row in zip(asked, rows, strict=True)]
        for name, rows in scores.items()
    }
    halves: dict[str, Callable[[int], bool]] = {
        "all": lambda _: True,
        "even": lambda number: number % 2 == 0,
        "odd (held out)": lambda number: number % 2 == 1,
    }
    heads = "  ".join(f"{field.name:17}" for field in fields(Quality))
    for half, belongs in halves.items():
        numbers = [number for number in range(len(asked)) if belongs(number)]
        print(f"\n{half}: {len(numbers)} prompts\n{'':24}{heads}  seconds")
        ordered = sorted(qualities, key=lambda name: -np.mean([qualities[name][i].average for i in numbers]))
        for name in ordered:
            print(f"{name:24}{row([qualities[name][i] for i in numbers])}  {seconds.get(name, 0):7.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=".cache/smollm2.gguf")
    parser.add_argument("--only", help="measures, with commas between them")
    parser.add_argument("--scores", type=Path, help="a file for all scores, as JSON")
    chosen = parser.parse_args()
    names = chosen.only.split(",") if chosen.only else list(RANKINGS)
    model = keyhole.load(chosen.model)
    every = list(questions(model))
    asked = [question for question in every if question.counts]
    words = [word for question in asked for word in question.words]
    kinds = Counter(question.kind for question in asked)
    print(
        f"{model.name}: {len(asked)} of {len(every)} prompts count (the model prefers the answer, and a word decides), "
        f"of {len(kinds)} kinds; {sum(word.decisive for word in words)} of {len(words)} content words are decisive"
    )
    print(", ".join(f"{kind} {count}" for kind, count in kinds.items()))
    scores, seconds = measured(model, asked, names)
    if chosen.scores:
        chosen.scores.write_text(json.dumps({"questions": [asdict(q) for q in asked], "scores": scores}))
    report(asked, scores, seconds)


if __name__ == "__main__":
    main()
