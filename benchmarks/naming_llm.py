"""Does a language model name signals as well as counting does? Both on the same signals, the same held-out questions.

    python -m llama_cpp.server --model qwen.gguf --model_alias qwen --n_ctx 4096 --logits_all true
    python benchmarks/naming_llm.py ioi.store --base-url http://localhost:8000/v1 --model qwen

Signals: the commonest of a store, none along another's direction in the same head. Each is named by the model and by
statistics, of one half of the texts; of the other half 10 pairs that fire and 10 that do not, half of them hard, are
asked about one at a time: the model judges its own names (and with --cross those of statistics), the rule judge those
of statistics. The transcript is kept: a second call asks only for what is missing, and `--signals` may grow.
"""

import argparse
import pickle
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from zlib import crc32

import torch

from keyhole.naming.corpus.gather import gather
from keyhole.naming.explain import statistics
from keyhole.naming.explain.sentences import Explainer, Name
from keyhole.naming.judge.judge import LEVEL, RIGHT, RULES, Judge, Outcome, Tested, ahead, corrected, share, tested
from keyhole.naming.judge.questions import Asking, Halves, QuestionKind, pose, split
from keyhole.naming.llm import Endpoint, Patience, Prompting, Talk, estimate, open_transcript, with_model
from keyhole.naming.subjects import store_subjects
from keyhole.naming.subjects.subject import Examples, Subject
from keyhole.store import open_store
from keyhole.store.model import model_of

ALIKE = 0.9  # cosine of both sides, above which two signals of a head count as one


@dataclass(frozen=True)
class Row:
    """One signal, named and judged in each way."""

    id: str
    names: dict[str, Name]
    tests: dict[str, Tested | None]


def distinct(subjects: list[Subject], most: int) -> list[Subject]:
    kept: list[Subject] = []
    for one in subjects:
        same = [other for other in kept if other.head == one.head]
        if all(min(cosine(o.query, one.query), cosine(o.key, one.key)) < ALIKE for o in same):
            kept.append(one)
    return kept[:most]


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(a.double() @ b.double() / (a.double().norm() * b.double().norm()))


def examples_of(asked: argparse.Namespace) -> list[Examples]:
    kept = Path(asked.examples_file) if asked.examples_file else None
    if kept and kept.exists():
        found: list[Examples] = pickle.loads(kept.read_bytes())
        return found[: asked.signals]
    store = open_store(asked.store)
    model = model_of(store)
    subjects = distinct(store_subjects(store, model, most=3 * asked.signals, each=10), asked.signals)
    found = gather(model, subjects, tokens=asked.tokens)
    if kept:
        kept.write_bytes(pickle.dumps(found))
    return found


def row(
    one: Examples, explainer: Explainer, judges: Mapping[QuestionKind, Judge], *, cross: bool, questions: int
) -> Row:
    seed = crc32(f"0 {one.subject.id}".encode())
    asking, halves = Asking(questions), Halves(*split(one.shown, seed))
    fires, others = halves.fires(asking.high), halves.background
    posed = pose("detection", halves, "top", asking, seed=seed)
    counted, told = statistics(fires, others), explainer(fires, others)
    ways = {"statistics, rule": (counted, RULES["detection"]), "model, model": (told, judges["detection"])}
    if cross:
        ways["statistics, model"] = (counted, judges["detection"])
    tests: dict[str, Tested | None] = {}
    for way, (name, judge) in ways.items():
        text = name.text
        ahead(judge, [(text, x.question) for x in posed if text is not None])
        tests[way] = None if text is None else tested(posed, [judge(text, x.question) for x in posed], "top")
    return Row(one.subject.id, {way: name for way, (name, _) in ways.items()}, tests)


def told(test: Tested | None) -> str:
    if test is None:
        return "no test"
    auc = "none" if test.auc is None else f"{test.auc:.2f}"
    return f"{test.right}/{test.asked} right, {test.unanswered} unanswered, AUC {auc}, p {test.p:.3g}"


def summary(rows: list[Row]) -> None:
    for way in rows[0].tests:
        tests = corrected([one.tests[way] for one in rows])
        outcomes: list[Outcome] = [
            "no valid interpretation"
            if one.names[way].text is None
            else (
                "untested"
                if test is None or test.corrected is None
                else "above chance"
                if test.corrected <= LEVEL
                else "fails"
            )
            for one, test in zip(rows, tests, strict=True)
        ]
        done = [test for test in tests if test is not None]
        middle = f"{median(test.accuracy for test in done):.2f}" if done else "none"
        aucs = [test.auc for test in done if test.auc is not None]
        auc = f"{median(aucs):.2f}" if aucs else "none"
        print(f"{way:<18} {share(way, outcomes, RIGHT)}; median accuracy {middle}, median AUC {auc}", flush=True)


def measure(asked: argparse.Namespace) -> None:
    examples = examples_of(asked)
    much = Prompting(asked.examples, asked.negatives, asked.name_tokens, asked.judge_tokens)
    patience = Patience(timeout=asked.timeout, workers=asked.workers)
    with open_transcript(asked.transcript) as transcript:
        talk = Talk(Endpoint(asked.base_url, asked.model, patience), transcript, much)

        def naming(one: Examples) -> Any:
            return lambda explainer, judges: row(one, explainer, judges, cross=asked.cross, questions=asked.questions)

        def all_rows(explainer: Explainer, judges: Mapping[QuestionKind, Judge]) -> list[Row]:
            return [naming(one)(explainer, judges) for one in examples]

        print(f"{len(examples)} signals: {estimate(talk, all_rows)}", flush=True)
        rows, began = list[Row](), time.time()
        for number, one in enumerate(examples, start=1):  # one after the other, so that a stop leaves whole signals
            rows.append(with_model(talk, naming(one)))
            print(f"{number}. {one.subject.id} ({time.time() - began:.0f} s)")
            for way, test in rows[-1].tests.items():
                print(f"   {way}: {rows[-1].names[way]}\n      {told(test)}", flush=True)
        print(f"answers: {dict(transcript.tally())}")
        summary(rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--signals", type=int, default=20)
    parser.add_argument("--questions", type=int, default=10, help="of either truth")
    parser.add_argument("--tokens", type=int, default=40_000, help="of the corpus")
    parser.add_argument("--examples", type=int, default=20)
    parser.add_argument("--negatives", type=int, default=10)
    parser.add_argument("--name-tokens", type=int, default=400)
    parser.add_argument("--judge-tokens", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("--cross", action="store_true", help="the model judges names by statistics, too")
    parser.add_argument("--transcript", default="naming.jsonl")
    parser.add_argument("--examples-file", help="where the examples are kept between calls")
    torch.set_num_threads(1)
    measure(parser.parse_args())
