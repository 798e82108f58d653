"""Whose best edges carry the answer? CMD and |1 - f| at 100 and 1,000 edges, as MIB measures: patching, all methods.

    python benchmarks/curves.py [.cache/smollm2.gguf] [--prompts 16] [--out curves.jsonl]

Methods are shown some prompts of a task, and edges are cut in as many others; what is cut takes its value from each
prompt's counterfactual. Tokens dropped and kept, ranked by signed and by absolute scores. Scores are taken once: those
of components are the sums over tokens. On the machine whose circuit is written down: the AUROC of true edges.
"""

import argparse
import itertools
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import keyhole
from keyhole.lab.known import build, recovery
from keyhole.progress import silent
from keyhole.store.manifest import spread
from keyhole.studies.curves.cohort import CohortQuestion, StandIn, groups_of, questions_from
from keyhole.studies.curves.cutting import Cutting, Ranked, ranked
from keyhole.studies.curves.record import Curves
from keyhole.studies.curves.settings import METHODS, CurveSettings, EdgeMethod, Ranking, Tokens
from keyhole.tasks import examples
from keyhole.tasks.catalogue import like
from keyhole.tasks.example import Example

TASKS = ("ioi", "greater_than", "induction")  # the organism has no words for facts
TEMPLATES = 2  # with tokens, edges are the same in prompts of one template alone
ALL: tuple[tuple[Tokens, Ranking], ...] = (
    ("dropped", "signed"),
    ("dropped", "absolute"),
    ("kept", "signed"),
    ("kept", "absolute"),
)
DRAWN = 40  # prompts for each that is needed: of few templates, and answered rightly


def questions(model: keyhole.Model, task: str, n: int) -> list[CohortQuestion]:
    """Prompts of few kinds that the model gets right and that have a counterfactual; of each kind an even number."""
    drawn = _drawn(model, task, DRAWN * n)
    templates = sorted({example.template for example in drawn})
    picked: list[CohortQuestion] = []
    for chosen in (templates[:TEMPLATES], templates):
        kinds: dict[object, list[CohortQuestion]] = {}
        for start in range(0, len(drawn), 64):
            some = [example for example in drawn[start : start + 64] if example.template in chosen]
            for question in questions_from(model, some, counterfactuals=True) if some else []:
                if question.counterfactual is not None:
                    kinds.setdefault(question.kind, []).append(question)
            picked = _picked(kinds, n)
            if len(picked) == n:
                return picked
    return picked


def _picked(kinds: Mapping[object, list[CohortQuestion]], n: int) -> list[CohortQuestion]:
    """The largest kinds, at most half of all prompts of each."""
    some = sorted(kinds.values(), key=len, reverse=True)
    if not some:
        return []
    most = n // min(TEMPLATES, len(some))
    pairs = (alike[: min(len(alike), most) // 2 * 2] for alike in some)
    return [question for alike in pairs for question in alike][:n]


def _drawn(model: keyhole.Model, task: str, n: int) -> list[Example]:
    """N prompts of a task, or all that it has, if these are fewer; of facts, capitals of states."""
    if task == "facts":
        first, *_ = examples(task, model, 1, 0)
        return [replace(fact, template=first.template) for fact in (first, *like(first, model, n=n))]
    while True:
        try:
            return examples(task, model, n, 3)
        except keyhole.KeyholeError:
            if n <= 4:
                raise
            n -= max(1, n // 8)


def measure(
    model: keyhole.Model,
    task: str,
    prompts: int,
    methods: Sequence[EdgeMethod],
    *,
    compared: Sequence[tuple[Tokens, Ranking]] = ALL,
    out: Path | None = None,
) -> list[Curves]:
    """The comparisons of one task, printed and added to a file as they are finished."""
    asked = questions(model, task, 2 * prompts)
    shown, tried, stand_in = asked[::2], asked[1::2], StandIn("counterfactual")
    seen, groups = groups_of(shown, stand_in), groups_of(tried, stand_in)
    with_tokens = CurveSettings(methods=tuple(methods), tokens="kept", baseline="counterfactual", draws=1)
    scored = []
    for method in methods:
        start = time.perf_counter()
        scored.append(ranked(method, seen, shown, with_tokens))
        print(
            f"{model.name} {task}: {method} scored {len(shown)} prompts in {time.perf_counter() - start:.0f} s",
            flush=True,
        )
    results = []
    for tokens, ranking in compared:
        settings = CurveSettings(
            methods=tuple(methods), tokens=tokens, ranking=ranking, baseline="counterfactual", draws=1
        )
        start = time.perf_counter()
        without = [_dropped(method) for method in scored]
        result = Cutting(groups, settings, silent).curves(scored if tokens == "kept" else without)
        result = replace(result, task=task, found_on=len(shown))
        took = time.perf_counter() - start
        print(
            f"\n{task}, tokens {tokens}, {ranking} ({len(shown)} + {len(tried)} prompts, {took:.0f} s)\n{result}",
            flush=True,
        )
        if out is not None:
            with out.open("a") as file:
                file.write(json.dumps(result.record()) + "\n")
        results.append(result)
    return results


def machine_prompts() -> list[str]:
    """Prompts of one length for the machine whose circuit is written down."""
    cues, nouns = (list(itertools.permutations(words)) for words in (("big", "red", "old"), ("cat", "dog", "sun")))
    return [
        f"{topic} : {c[0]} {n[0]} , {c[1]} {n[1]} , {c[2]} {n[2]} . {c[k]}"
        for topic, c, n, k in itertools.product(("French", "Berlin", "Paris", "German"), cues, nouns, range(3))
    ]


def _dropped(scored: Ranked) -> Ranked:
    """The same scores without tokens."""
    return Ranked(scored.method, {} if scored.components is None else {(): scored.components}, scored.components)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--tasks", default="")
    parser.add_argument("--methods", default="")
    parser.add_argument("--tokens", choices=get_args(Tokens), help="default: both")
    parser.add_argument("--ranking", choices=get_args(Ranking), help="default: both")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    model = keyhole.load(asked.model)
    methods = asked.methods.split(",") if asked.methods else METHODS
    tasks = asked.tasks.split(",") if asked.tasks else TASKS if asked.model is None else ("ioi",)
    compared = [
        (tokens, ranking)
        for tokens, ranking in ALL
        if asked.tokens in (None, tokens) and asked.ranking in (None, ranking)
    ]
    for task in tasks:
        measure(model, task, asked.prompts, methods, compared=compared, out=asked.out)
    if asked.model is None:
        for row in recovery(build(), spread(machine_prompts(), 23)):
            print(f"known machine, {row.method}: AUROC {row.components:.3f} of components, {row.tokens:.3f} at tokens")
