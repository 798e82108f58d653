"""Do circuits name the places that matter, and how do they compare with gradients and patching?

    python benchmarks/compare.py [.cache/smollm2.gguf] [--prompts 14]

Indirect-object prompts that the model answers rightly, by a logit or more; the answer is the logit difference of the
two names. A place is an MLP at a token, or what a head moves from one token to another.

1. Places whose removal costs more than 10 % of the answer, one at a time: how many of them a circuit names, beside as
   many places of the largest gradient times write, or of attribution patching with the names swapped.
2. How much of the answer is left when all other places are removed.
3. How much of a circuit stays when precision, tau, eps or a name changes.

Removed places write nothing, or the mean over prompts of the same wording (both orders, other names and things). On the
organism every place is removed; elsewhere every MLP, heads that look from the end, and all that was chosen.
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from scipy.stats import pearsonr, spearmanr

import keyhole
from keyhole import Circuit, Model, Run
from keyhole.circuits.circuit import Node
from keyhole.circuits.records import Writer
from keyhole.circuits.shown import shown
from keyhole.intervene import Estimates, Metric, all_but, answers_without, estimate, mean_writes, places
from keyhole.models.tokens import encode, one_token_words
from keyhole.studies.stability.stability import varied
from keyhole.studies.stability.variations import Variation, usual, with_names
from keyhole.tasks import ioi
from keyhole.tasks.example import Example
from keyhole.tasks.words import NAMES
from keyhole.tracing.answers import token_ids
from keyhole.tracing.mlp_directions import Through

LEAST = 1.0  # logits by which the model must prefer the answer: shares of less are shares of nothing
COSTLY = 0.1  # share of the answer
LOOKS = 0.05  # attention of a head that looks from the end, where not every place can be removed
DRAWS = 3  # circuits of random places
MEAN_OVER = 32  # prompts
REMOVED = ("zero", "mean")
Removed = Mapping[str, Mapping[Writer, torch.Tensor] | None]  # what is written instead; None: nothing


@dataclass(frozen=True)
class Case:
    """One prompt, its circuits and what is compared with them."""

    example: Example
    run: Run
    metric: Metric
    answer: float
    circuits: Mapping[str, Circuit]  # found, shown, heads only
    estimates: Mapping[str, Estimates]
    instead: Removed


# -- prompts ---------------------------------------------------------------------------------------------------------


def cases(model: Model, n: int) -> Iterable[Case]:
    """The first n prompts that the model answers rightly, with names of one token each."""
    done = 0
    for example in ioi(8 * n, 3, held_out=True, names=one_token_words(model, NAMES)):
        if done == n:
            return
        case = case_of(model, example)
        if case is not None:
            done += 1
            yield case


def case_of(model: Model, example: Example) -> Case | None:
    """None: the model does not tell the names apart, or these are more tokens in each other's place."""
    run, swapped = (model.run(one.text) for one in (example, with_names(example, example.wrong, example.answer)))
    last = len(run) - 1
    metric = Metric(last, *(tuple(token_ids(run, word, last)) for word in (example.answer, example.wrong)))
    if len(run) != len(swapped) or metric.of(run.logits[-1]) < LEAST:
        return None
    found = run.trace(example.answer, against=example.wrong, through="mlps")
    heads = run.trace(example.answer, against=example.wrong, through="heads")
    return Case(
        example=example,
        run=run,
        metric=metric,
        answer=metric.of(run.logits[-1]),
        circuits={"found": found, "shown": shown(found), "heads only": heads},
        estimates={"gradient": estimate(run, metric), "patching": estimate(run, metric, swapped)},
        instead={"zero": None, "mean": mean_writes(alike(model, example, len(run)))},
    )


def alike(model: Model, example: Example, length: int) -> list[Run]:
    """Runs of prompts of the same wording that have as many tokens and none of the names."""
    wording = int(example.template.split("-")[1])
    names = [name for name in one_token_words(model, NAMES) if name not in (example.answer, example.wrong)]
    texts = [one.text for one in ioi(8 * MEAN_OVER, 5, wordings=[wording], names=names)]
    same = [text for text in texts if len(encode(model, text, None).ids) == length]
    return model.run_many(same[:MEAN_OVER])


# -- places ----------------------------------------------------------------------------------------------------------


def named(circuit: Circuit) -> dict[Writer, float]:
    """The places of a circuit, with their influence (nothing, where there is none)."""
    shares = circuit.influence or (0.0,) * len(circuit.nodes)
    return {
        n.writer: share for n, share in zip(circuit.nodes, shares, strict=True) if n.kind in ("head", "mlp", "mixer")
    }


def ranked(case: Case, method: str, *, either_sign: bool = False) -> list[Writer]:
    """All places, those that should cost (or change) most first."""
    of = case.estimates[method].of
    return sorted(places(case.run), key=lambda writer: abs(of(writer)) if either_sign else of(writer), reverse=True)


def selections(case: Case) -> dict[str, list[Writer]]:
    """The places of each circuit, and as many of each other ranking."""
    chosen: dict[str, list[Writer]] = {name: list(named(circuit)) for name, circuit in case.circuits.items()}
    sizes = {name: len(members) for name, members in chosen.items()}
    for method in case.estimates:
        order, by_size = ranked(case, method), ranked(case, method, either_sign=True)
        chosen |= {f"{method} as {name}": order[:size] for name, size in sizes.items()}
        chosen |= {f"|{method}| as {name}": by_size[:size] for name, size in sizes.items() if name != "heads only"}
    chosen["gradient 30"] = ranked(case, "gradient")[:30]
    return chosen


def tested(case: Case, chosen: Mapping[str, list[Writer]], *, everything: bool) -> list[Writer]:
    """The places that are removed one at a time: all, or MLPs, heads that look from the end, and what was chosen."""
    every, end = places(case.run), case.metric.end
    if everything:
        return every
    taken = {writer for members in chosen.values() for writer in members}
    looks = [
        None if layer.attention is None else layer.attention.weights(layer.attention.heads, [end])[:, 0]
        for layer in case.run.layers
    ]
    taken |= {w for w in every if w.kind == "head" and w.dest == end and looks[w.layer][w.head, w.src] >= LOOKS}
    return [writer for writer in every if writer.kind != "head" or writer in taken]


# -- measurements ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One prompt's numbers, by how places were removed and which places were chosen."""

    tokens: int
    costly: Mapping[str, int]
    tested: int
    sizes: Mapping[str, int]
    covered: Mapping[tuple[str, str], float]
    useful: Mapping[tuple[str, str], float]  # share of the chosen that cost more than 1 %
    correlations: Mapping[tuple[str, str], tuple[float, ...]]  # all places; their ranks; ranks of the circuit's own
    left: Mapping[tuple[str, str], float]


def measure(case: Case, *, everything: bool) -> Row:
    chosen = selections(case)
    probes = tested(case, chosen, everything=everything)
    costly, covered, useful, correlations, left = {}, {}, {}, {}, {}
    scores: dict[str, Callable[[Writer], float]] = {name: one.of for name, one in case.estimates.items()}
    influence = named(case.circuits["found"])
    scores["influence"] = lambda writer: influence.get(writer, 0.0)
    for how, instead in case.instead.items():
        answers = answers_without(case.run, [[w] for w in probes], case.metric, instead=instead)
        lost = {w: 1 - value / case.answer for w, value in zip(probes, answers, strict=True)}
        matters = {w for w, share in lost.items() if share > COSTLY}
        costly[how] = len(matters)
        for name, members in chosen.items():
            covered[how, name] = len(matters & set(members)) / len(matters) if matters else float("nan")
            useful[how, name] = statistics.mean(lost[w] > 0.01 for w in members) if members else float("nan")
        for name, score in scores.items():
            every, own = ([(score(w), lost[w]) for w in those] for those in (probes, influence))
            found = (
                pearsonr(*zip(*every, strict=True)),
                spearmanr(*zip(*every, strict=True)),
                spearmanr(*zip(*own, strict=True)),
            )
            correlations[how, name] = tuple(float(one[0]) for one in found)
        left |= {(how, name): value for name, value in faithful(case, chosen, how).items()}
    sizes = {name: len(members) for name, members in chosen.items()}
    return Row(len(case.run), costly, len(probes), sizes, covered, useful, correlations, left)


def faithful(case: Case, chosen: Mapping[str, list[Writer]], how: str) -> dict[str, float]:
    """What share of the answer is left when all places but the chosen ones are removed."""
    rng, every = random.Random(0), places(case.run)
    sets = {**chosen, "nothing": []}
    for name in ("found", "shown"):
        sets |= {f"random as {name} {i}": rng.sample(every, len(chosen[name])) for i in range(DRAWS)}
    rest = [all_but(case.run, members) for members in sets.values()]
    answers = answers_without(case.run, rest, case.metric, instead=case.instead[how])
    shares = {name: value / case.answer for name, value in zip(sets, answers, strict=True)}
    for name in ("found", "shown"):
        draws = [shares.pop(f"random as {name} {i}") for i in range(DRAWS)]
        shares[f"random as {name}"] = statistics.mean(draws)
    return shares


# -- stability -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Agreement:
    """How much two circuits have in common, of nodes and edges counted, and of nodes by their influence."""

    nodes: float
    edges: float
    influence: float


def agreement(one: Circuit, other: Circuit) -> Agreement:
    (a, p), (b, q) = ((_edges(c), dict(zip(c.nodes, c.influence, strict=True))) for c in (one, other))
    p, q = ({node: share for node, share in x.items() if node.kind != "target"} for x in (p, q))
    both = sum(min(p[node], q[node]) for node in p.keys() & q.keys())
    return Agreement(_jaccard(set(p), set(q)), _jaccard(a, b), 2 * both / (sum(p.values()) + sum(q.values())))


def _edges(circuit: Circuit) -> set[tuple[Node, Node, str]]:
    return {(circuit.nodes[e.sender], circuit.nodes[e.receiver], e.side) for e in circuit.edges}


def _jaccard(a: set, b: set) -> float:
    return len(a & b) / len(a | b) if a | b else 1.0


def changes(model: Model, examples: Sequence[Example]) -> list[Variation]:
    """The library's, where tokens stay in their places, and some settings more."""
    usually = [one for one in usual(model, examples) if one.name not in ("nothing: traced again", "another wording")]
    taus = [Variation(f"tau {tau}", settings=lambda how, tau=tau: replace(how, tau=tau)) for tau in (0.1, 0.3)]
    epses = [
        Variation(f"eps {eps}", settings=lambda how, eps=eps: replace(how, through=Through(eps=eps)))
        for eps in (0.02, 0.005)
    ]
    return [*usually, *taus, *epses]


def stays(model: Model, asked: Sequence[tuple[Example, Circuit]]) -> dict[str, list[tuple[Agreement, Agreement]]]:
    """What each change leaves of every circuit, and of what is shown of it."""
    found = {}
    for change in changes(model, [example for example, _ in asked]):
        pairs, refused = varied(model, asked, change, {"through": "mlps"})
        for why, n in refused.items():  # in half precision a run may be too coarse to be rebuilt
            print(f"  {change.name}: {n} refused, {why}", file=sys.stderr)
        if pairs:
            found[change.name] = [
                (agreement(own, other), agreement(shown(own), shown(other))) for (_, own), (_, other) in pairs
            ]
    return found


# -- tables ----------------------------------------------------------------------------------------------------------


def mean(values: Iterable[float]) -> float:
    known = [value for value in values if value == value]
    return statistics.mean(known) if known else float("nan")


def table(title: str, columns: Sequence[str], rows: Mapping[str, Sequence[float]]) -> None:
    """Numbers under short names; what was not measured is a dash."""
    widths = [max(8, len(name) + 2) for name in columns]
    print(f"\n  {title}\n  {'':24s}" + "".join(f"{c:>{w}s}" for c, w in zip(columns, widths, strict=True)))
    for label, cells in rows.items():
        told = ("-" if cell != cell else f"{cell:.2f}" for cell in cells)
        print(f"  {label:24s}" + "".join(f"{cell:>{width}s}" for cell, width in zip(told, widths, strict=True)))


def tell_rows(rows: Sequence[Row]) -> None:
    costly = ", ".join(f"{mean(r.costly[how] for r in rows):.1f} (to {how})" for how in REMOVED)
    print(f"  {mean(r.tested for r in rows):.0f} places of a prompt removed; more than {COSTLY:.0%} cost {costly}")
    title = (
        "share of the costly places named; of the named that cost over 1 %; of the answer left by them alone, its miss"
    )
    columns = ["places", "costly: zero", "mean", "> 1 %: zero", "mean", "left: zero", "mean", "miss: zero", "mean"]
    labels = [label for how, label in rows[0].left if how == "zero"]
    table(title, columns, {label: cells(rows, label) for label in labels})
    found = {
        name: [mean(r.correlations[how, name][i] for r in rows) for how in REMOVED for i in range(3)]
        for name in ("influence", "gradient", "patching")
    }
    columns = ["zero: all", "ranks", "in circuit", "mean: all", "ranks", "in circuit"]
    table("correlation with the effect: all places, their ranks, ranks within the circuit", columns, found)


def cells(rows: Sequence[Row], label: str) -> list[float]:
    """What one way to choose places came to, over all prompts."""
    size = mean(r.sizes.get(label, r.sizes.get(label.removeprefix("random as "), 0)) for r in rows)
    unknown = float("nan")
    covered = [mean(r.covered.get((how, label), unknown) for r in rows) for how in REMOVED]
    useful = [mean(r.useful.get((how, label), unknown) for r in rows) for how in REMOVED]
    left = [mean(r.left[how, label] for r in rows) for how in REMOVED]
    return [size, *covered, *useful, *left, *(mean(abs(1 - r.left[how, label]) for r in rows) for how in REMOVED)]


def tell_stability(found: Mapping[str, list[tuple[Agreement, Agreement]]]) -> None:
    cells = {
        f"{label} ({len(pairs)})": [
            mean(getattr(pair[i], what) for pair in pairs) for i in (0, 1) for what in ("nodes", "edges", "influence")
        ]
        for label, pairs in found.items()
    }
    columns = ["found: nodes", "edges", "influence", "shown: nodes", "edges", "influence"]
    table("in common with the circuit as it is (Jaccard; influence: the share in common)", columns, cells)


def compare(source: str | None, n: int, *, everything: bool) -> None:
    model = keyhole.load(source)
    rows: list[Row] = []
    asked: list[tuple[Example, Circuit]] = []
    start = time.perf_counter()
    for case in cases(model, n):
        asked.append((case.example, replace(case.circuits["found"], run=None)))
        rows.append(measure(case, everything=everything))
        print(f"  {len(rows)} of {n}, {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    print(f"{model.name}: {len(rows)} prompts")
    tell_rows(rows)
    tell_stability(stays(model, asked))
    print(flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--prompts", type=int, default=14)
    asked = parser.parse_args()
    compare(None, asked.prompts, everything=True)
    if asked.model:
        compare(asked.model, min(asked.prompts, 4), everything=False)
