"""Does a model that is told where to look answer better? Features of keys, and simpler edits of the same heads.

    python benchmarks/focus.py .cache/smollm2.gguf --prose .cache/prose.txt [--n 40] [--budget 0.01]

Four tasks: boxes and lists with distractors, a fact in the prompt that contradicts a known one, and an instruction. The
span is what the answer follows from. A prompt counts as right where the answer's first token is likelier than that of
every wrong answer. All edits are in the model's retrieval heads, at the span's keys:

    focus            the features of `keyhole.focus`, times a factor
    constant bias    a constant on the scaled scores
    key projection   the directions in which keys of asked items vary most and others least (the question comes first),
                     as many as the feature has, times a factor
    random subspace  as many random directions, times a factor

Strengths are comparable by their side effects: the mean KL divergence on lines of prose, of which a span is marked in
each. Which of the BUDGETS is used is chosen on one half of prompts and lines, by the mean over all tasks and edits; the
table is of the other half.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import keyhole
from keyhole.edits import At, BiasEdit, Edit, FeatureEdit
from keyhole.features.contrast import Contrast, Sample, Site, collect, last, span
from keyhole.features.focus import retrieval_features
from keyhole.models.tokens import text_ids, token_spans, tokens_in
from keyhole.stats import wilson
from keyhole.tasks.things import boxes, lists

BUDGETS = (0.003, 0.01, 0.03)  # nats of KL divergence on prose
GRID = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # of factor - 1, or of the constant, between which is interpolated
MOST_OF_A_LINE = 60  # tokens
MARKED = range(10, 20)  # of each line of prose

CAPITALS = {
    "France": "Paris",
    "Italy": "Rome",
    "Germany": "Berlin",
    "Spain": "Madrid",
    "Japan": "Tokyo",
    "China": "Beijing",
    "Russia": "Moscow",
    "England": "London",
    "Egypt": "Cairo",
    "Greece": "Athens",
    "Austria": "Vienna",
    "Ireland": "Dublin",
    "Portugal": "Lisbon",
    "Norway": "Oslo",
    "Cuba": "Havana",
    "Sweden": "Stockholm",
    "Poland": "Warsaw",
    "Peru": "Lima",
    "Turkey": "Ankara",
    "Canada": "Ottawa",
}
WORDS = ("table", "river", "yellow", "music", "seven", "garden", "window", "silver", "winter", "bread")


@dataclass(frozen=True)
class Case:
    """One prompt: where to look, the right answer's first token, and the wrong ones'."""

    ids: tuple[int, ...]
    marked: tuple[int, ...]
    right: int
    wrong: tuple[int, ...]


Method = Callable[[float, At], list[Edit]]


def case(model: keyhole.Model, text: str, span: tuple[int, int], answers: Sequence[str]) -> Case:
    """A case of a text; the first of the answers is right."""
    ids = text_ids(model, text)
    right, *wrong = (text_ids(model, f" {answer}")[0] for answer in answers)
    marked = tuple(tokens_in(token_spans(model, text, ids), *span))
    return Case(ids, marked, right, tuple(t for t in wrong if t != right))


def box_cases(model: keyhole.Model, n: int) -> list[Case]:
    """Which box is the thing in? The span is its own statement."""
    found = boxes(n, 11, held_out=None, n_boxes=7)
    spans = [(e.span("ITEM")[0], e.span("BOX")[1]) for e in found]
    return [case(model, e.text, span, (e.answer, *e.against)) for e, span in zip(found, spans, strict=True)]


def list_cases(model: keyhole.Model, n: int) -> list[Case]:
    """Which item is of this kind? The span is that item; wordings and questions are not those of the contrast."""
    found = lists(n, 12, held_out=None, n_items=8, wording="instruct")
    made = []
    for e in found:
        span = next(e.roles[role] for role in e.roles if role.startswith("item_") and e.word(role) == e.answer)
        made.append(case(model, e.text, span, (e.answer, *e.against)))
    return made


def conflict_cases(model: keyhole.Model, n: int) -> list[Case]:
    """The prompt contradicts what the model knows. The span is the sentence that says so."""
    countries, made = list(CAPITALS), []
    for i in range(n):
        country = countries[i % len(countries)]
        false = CAPITALS[countries[(i + 3 + i // len(countries)) % len(countries)]]
        said = f"In this story the capital of {country} is {false}."
        before = "It was a cold morning, and the train was late. "
        after = f" Everybody knew it. Question: What is the capital of {country}? Answer: The capital of {country} is"
        span = (len(before), len(before) + len(said))
        made.append(case(model, before + said + after, span, (false, CAPITALS[country])))
    return made


def instruction_cases(model: keyhole.Model, n: int) -> list[Case]:
    """An instruction says which word to answer with. The span is the instruction."""
    countries, made = list(CAPITALS), []
    for i in range(n):
        word, country = WORDS[i % len(WORDS)], countries[(7 * i + i // len(countries)) % len(countries)]
        said = f"Whatever the question is, answer with the word {word}."
        text = f"{said} Be polite. Question: What is the capital of {country}? Answer:"
        made.append(case(model, text, (0, len(said)), (word, CAPITALS[country], "The")))
    return made


TASKS = {
    "boxes": box_cases,
    "lists": list_cases,
    "conflicting facts": conflict_cases,
    "instructions": instruction_cases,
}


def scaled(features: Sequence[FeatureEdit]) -> Method:
    """Coordinates in these subspaces, times 1 + strength."""
    return lambda strength, at: [replace(feature, factor=1 + strength, src=at) for feature in features]


def biased(features: Sequence[FeatureEdit]) -> Method:
    """A constant on the scores of the same heads."""
    return lambda strength, at: [BiasEdit(head=feature.head, amount=strength, src=at) for feature in features]


def with_basis(feature: FeatureEdit, columns: Tensor) -> FeatureEdit:
    """Another subspace of the same head's keys."""
    basis = torch.linalg.qr(columns.double()).Q.T.tolist()
    return replace(feature, basis=tuple(map(tuple, basis)), name="")


def random_subspaces(features: Sequence[FeatureEdit], seed: int) -> list[FeatureEdit]:
    """As many random directions."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(len(feature.basis[0]), len(feature.basis)) for feature in features]
    drawn = [torch.randn(*shape, generator=generator) for shape in shapes]
    return [with_basis(feature, columns) for feature, columns in zip(features, drawn, strict=True)]


def key_projections(model: keyhole.Model, features: Sequence[FeatureEdit]) -> list[FeatureEdit]:
    """Directions of keys of what was asked for before they came: the top of K+^T K+ / n+  -  K-^T K- / n-."""
    examples = lists(100, 13, held_out=None, per_category=2, categories=("animals", "fruits", "vehicles", "countries"))
    texts, places = [], []
    for e in examples:
        head = f"Find the {e.word('CATEGORY')} in the list. "
        texts.append(head + e.text[: e.text.rindex(".") + 1])
        asked = {e.roles[f"{e.word('CATEGORY')}_{i}"] for i in range(2)}
        spots = [spot for role, spot in e.roles.items() if role.startswith("item_")]
        move = len(head)
        places.append([[(a + move, b + move) for a, b in spots if ((a, b) in asked) == side] for side in (True, False)])
    samples = [
        Sample(Site(last(), i), *(tuple(Site(span(*spot), i) for spot in side) for side in sides))
        for i, sides in enumerate(places)
    ]
    seen = collect(model, Contrast("asked before", tuple(texts), tuple(samples)), frame="pre_rope")
    sign, found = seen.slots.sign, []
    for feature in features:
        layer, head = feature.head
        keys = seen.layer(layer).keys[:, :, model.folded(layer).kv(head)].double()
        plus, minus = keys[sign == 1], keys[sign == -1]
        difference = plus.T @ plus / len(plus) - minus.T @ minus / len(minus)
        found.append(with_basis(feature, torch.linalg.eigh(difference).eigenvectors[:, -len(feature.basis) :]))
    return found


def logits_of(model: keyhole.Model, ids: Sequence[int], edits: Sequence[Edit]) -> Tensor:
    """Logits at every token."""
    tokens = torch.tensor([ids])
    if not edits:
        return model.hf(tokens, use_cache=False).logits[0]
    with model.edited(edits):
        return model.hf(tokens, use_cache=False).logits[0]


def lead(model: keyhole.Model, c: Case, edits: Sequence[Edit]) -> float:
    """The right answer's logit minus the best wrong one's."""
    row = logits_of(model, c.ids, edits)[-1]
    return float(row[c.right] - row[list(c.wrong)].max())


def divergence(
    model: keyhole.Model, lines: Sequence[tuple[int, ...]], before: Sequence[Tensor], how: Method, strength: float
) -> float:
    """Mean KL divergence over all tokens of the lines."""
    total, n = 0.0, 0
    for ids, plain in zip(lines, before, strict=True):
        after = logits_of(model, ids, how(strength, At(tuple(MARKED)))).double().log_softmax(-1)
        total += float((plain.exp() * (plain - after)).sum())
        n += len(ids)
    return total / n


def at_budget(grid: Sequence[float], budget: float) -> float:
    """The strength with this KL divergence, between two of the grid; the strongest where none reaches it."""
    reached = np.maximum.accumulate(np.maximum(grid, 1e-12))
    return math.exp(np.interp(math.log(budget), np.log(reached), np.log(GRID)))


def main() -> None:
    """Print a table: how many answers are right, by task and edit."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?")
    parser.add_argument("--prose", type=Path, required=True)
    parser.add_argument("--n", type=int, default=40)
    parser.add_argument("--lines", type=int, default=6)
    parser.add_argument("--budget", type=float, help="Use this one, in nats, and choose none.")
    args = parser.parse_args()
    budgets = BUDGETS if args.budget is None else (args.budget,)
    model = keyhole.load(args.model) if args.model else keyhole.load()
    features = retrieval_features(model)
    heads = ", ".join(f"{f.head[0]}.{f.head[1]} ({len(f.basis)})" for f in features)
    print(f"{model.name}: retrieval heads (rank) {heads}", flush=True)
    methods = {
        "focus": scaled(features),
        "constant bias": biased(features),
        "key projection": scaled(key_projections(model, features)),
        "random subspace": scaled(random_subspaces(features, 0)),
    }
    prose = [text_ids(model, line)[:MOST_OF_A_LINE] for line in args.prose.read_text().splitlines() if len(line) > 300]
    lines = prose[100 :: len(prose) // (2 * args.lines)][: 2 * args.lines]
    plain = [logits_of(model, ids, []).double().log_softmax(-1) for ids in lines]
    strengths = {}
    for name, how in methods.items():
        grid = [divergence(model, lines[::2], plain[::2], how, s) for s in GRID]
        strengths[name] = [at_budget(grid, budget) for budget in budgets]
        print(f"{name}: KL at {GRID} {np.round(grid, 5)}; strengths {np.round(strengths[name], 2)}", flush=True)
    cases = {task: make(model, args.n) for task, make in TASKS.items()}
    without = {task: [lead(model, c, []) for c in made] for task, made in cases.items()}
    print("plain", {task: float(np.mean(np.array(v) > 0)) for task, v in without.items()}, flush=True)
    halves = {
        (name, i, task): [lead(model, c, how(strengths[name][i], At(c.marked))) for c in made[::2]]
        for task, made in cases.items()
        for name, how in methods.items()
        for i in range(len(budgets))
        if len(budgets) > 1
    }
    shares = {key: float(np.mean(np.array(v) > 0)) for key, v in halves.items()}
    for (name, i, task), share in shares.items():
        print(f"  chosen on: {task:18} {name:16} KL {budgets[i]:<6} right {share:.2f}", flush=True)
    best = max(range(len(budgets)), key=lambda i: sum(share for (_, j, _), share in shares.items() if i == j))
    print(f"budget {budgets[best]} nats")
    report(model, methods, {name: s[best] for name, s in strengths.items()}, cases=cases, without=without)
    for name, how in methods.items():
        kl = divergence(model, lines[1::2], plain[1::2], how, strengths[name][best])
        print(f"{name}: strength {strengths[name][best]:.2f}, KL on the other lines {kl:.4f}", flush=True)


def report(
    model: keyhole.Model,
    methods: dict[str, Method],
    strengths: dict[str, float],
    *,
    cases: dict[str, list[Case]],
    without: dict[str, list[float]],
) -> None:
    """The other half of the prompts: right answers with Wilson's intervals, and how much the lead grew."""
    generator = np.random.default_rng(0)
    for task, made in cases.items():
        before = np.array(without[task][1::2])
        rows = {"plain": before}
        for name, how in methods.items():
            rows[name] = np.array([lead(model, c, how(strengths[name], At(c.marked))) for c in made[1::2]])
        for name, values in rows.items():
            share, low, high = wilson(int((values > 0).sum()), len(values))
            gained = values - before
            drawn = [generator.choice(gained, len(gained)).mean() for _ in range(2000)]
            span = np.quantile(drawn, [0.025, 0.975])
            print(
                f"{task:18} {name:16} {share:.2f} [{low:.2f}, {high:.2f}] lead {gained.mean():+.2f} "
                f"[{span[0]:+.2f}, {span[1]:+.2f}]",
                flush=True,
            )


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
