"""How small are circuits that suffice, how faithful are they, and how long does the search for them take?

    python benchmarks/sufficient.py [.cache/smollm2.gguf] [--prompts 16]

Prompts that the model gets right, everything outside the circuit at the mean of 32 prompts like each. Medians of: edges
(token by token), the share of the answer's gap that they keep alone, what is left without them, what they keep on other
prompts of the template, and the time of shares and search in forward passes of the same prompt; then the same time
with the shares and searches of eight prompts at once.
"""

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

import keyhole
from keyhole.faithfulness.baseline import baseline
from keyhole.faithfulness.effects import faithfulness, kept_on_others
from keyhole.faithfulness.shares import question
from keyhole.faithfulness.sufficient import searched
from keyhole.intervene.removal import Metric
from keyhole.settings.measuring import SufficientSettings
from keyhole.tasks import examples, greater_than, induction, ioi
from keyhole.tasks.answers import answer_ids
from keyhole.tasks.catalogue import like
from keyhole.tasks.example import Example

LIKE = 32
MOST = {"ioi": 20, "greater_than": 25, "induction": 40}  # edges on the organism, median
MOST_SMOLLM2 = 45
PASSES, PASSES_TOGETHER = 60, 40
TOGETHER = 8  # prompts


@dataclass(frozen=True)
class Row:
    """One prompt's circuit."""

    edges: int
    kept: float
    cut: float
    others: float  # median over other prompts; nan: none has a gap
    completeness: float
    passes: float  # time of shares and search, in forward passes
    tried: int  # sets of edges


def timed(work: Callable[[], object], times: int = 1) -> float:
    """Seconds of processor time, the best of several."""
    best = float("inf")
    for _ in range(times):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


def measure(model: keyhole.Model, example: Example) -> Row | None:
    """A prompt's row; None: the model prefers the wrong answer."""
    run, answer = model.run(example.text), answer_ids(model, example)
    metric = Metric(len(run) - 1, answer.answers, answer.against)
    if metric.of(run.logits[-1]) <= 0:
        return None
    similar = like(example, model, LIKE)
    mean = baseline(run, like=similar)
    ids = torch.tensor([run.token_ids])
    with torch.no_grad():
        forward = timed(lambda: model.hf(ids), 5)
    start = time.process_time()
    asked, found = searched([question(run, metric, mean)], SufficientSettings())[0]
    took = time.process_time() - start
    if isinstance(found, keyhole.KeyholeError):
        raise found
    measured = faithfulness(found.edges, asked, draws=0)
    others = kept_on_others(found.edges, run, mean, similar)
    return Row(
        edges=len(found.edges),
        kept=found.kept,
        cut=measured.cut,
        others=statistics.median(others) if others else float("nan"),
        completeness=asked.shares.completeness,
        passes=took / forward,
        tried=found.tried,
    )


def together(model: keyhole.Model, prompts: Sequence[Example]) -> float:
    """The time of shares and search of eight equally long prompts at once, in forward passes a prompt."""
    runs = [model.run(example.text) for example in prompts]
    common = Counter(len(run) for run in runs).most_common(1)[0][0]
    asked = []
    for example, run in zip(prompts, runs, strict=True):
        answer = answer_ids(model, example)
        metric = Metric(len(run) - 1, answer.answers, answer.against)
        if len(run) == common and metric.of(run.logits[-1]) > 0 and len(asked) < TOGETHER:
            asked.append((run, metric, baseline(run, like=like(example, model, LIKE))))
    ids = torch.tensor([asked[0][0].token_ids])
    with torch.no_grad():
        forward = timed(lambda: model.hf(ids), 5)
    took = timed(lambda: searched([question(*one) for one in asked], SufficientSettings()))
    alone = sum(timed(lambda one=one: searched([question(*one)], SufficientSettings())) for one in asked)
    print(f"  {len(asked)} prompts of {common} tokens: alone {alone / forward / len(asked):.0f} forward passes each")
    return took / forward / len(asked)


def summary(model: keyhole.Model, asked: Sequence[Example], prompts: int, most: int) -> None:
    """Medians of the first so many prompts that have a row, and which refused."""
    rows, refused = [], 0
    for example in asked:
        if len(rows) == prompts:
            break
        try:
            row = measure(model, example)
        except keyhole.KeyholeError as error:
            refused += 1
            print(f"  {example.text!r}: {error}")
            continue
        if row is not None:
            rows.append(row)
    median = {name: statistics.median(getattr(row, name) for row in rows) for name in Row.__annotations__}
    worst = max(abs(row.completeness - 1) for row in rows)
    fewest, most_edges = min(row.edges for row in rows), max(row.edges for row in rows)
    least, most_kept = min(row.kept for row in rows), max(row.kept for row in rows)
    print(
        f"{model.name}, {asked[0].task}, {len(rows)} prompts ({refused} refused): {median['edges']:.0f} edges (at "
        f"most {most}; {fewest} to {most_edges}), kept {median['kept']:.2f} ({least:.2f} to {most_kept:.2f}), cut "
        f"{median['cut']:.2f}, other prompts {median['others']:.2f}, {median['passes']:.0f} forward passes (at most "
        f"{PASSES}; {median['tried']:.0f} sets tried), together {together(model, asked):.0f} (at most "
        f"{PASSES_TOGETHER}), shares add up within {worst:.1%}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--prompts", type=int, default=16)
    asked = parser.parse_args()
    torch.set_num_threads(1)  # times are ratios of processor time
    organism = keyhole.load()
    for task in (ioi, greater_than, induction):
        summary(organism, task(3 * asked.prompts, 3, held_out=True), asked.prompts, MOST[task.__name__])
    if asked.model:
        model = keyhole.load(asked.model)
        summary(model, examples("ioi", model, 3 * asked.prompts, 3), max(1, asked.prompts // 2), MOST_SMOLLM2)
