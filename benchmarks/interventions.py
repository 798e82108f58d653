"""Do removed signals take the attention away, and do random ones leave it? Over indirect-object prompts.

    python benchmarks/interventions.py [.cache/smollm2.gguf] [--prompts 30] [--draws 3]

For every prompt that the model answers rightly, its circuit is traced (prob seeds; linear seeds, against the subject,
for the organism, whose answer rests on one MLP) and verified by exact removal: all signals of one side of a firing at
once, and (in the first third of the prompts) every signal alone, each beside controls that remove as many other
channels of the same writers.
"""

import argparse
from statistics import median

import keyhole
from keyhole.faithfulness.removals import Row
from keyhole.faithfulness.verification import verify
from keyhole.models.tokens import one_token_words, token_id
from keyhole.tasks import ioi
from keyhole.tasks.words import NAMES
from keyhole.tracing.trace import trace


def rows_of(model: keyhole.Model, n: int, draws: int, *, linear: bool) -> tuple[int, list[Row]]:
    """All removals of n rightly answered prompts."""
    rows: list[Row] = []
    done = 0
    for example in ioi(8 * n, seed=11, held_out=True, names=one_token_words(model, NAMES)):
        run = model.run(example.text)
        if int(run.logits[-1].argmax()) != token_id(model, example.answer):
            continue
        options = {"against": example.wrong, "seeds": "linear"} if linear else {}
        circuit = trace(run, example.answer, through="heads", **options)
        if not circuit.firings:
            continue
        rows += verify(circuit, mode="exact", draws=draws, seed=done, edges=done < n // 3).rows
        done += 1
        if done == n:
            break
    return done, rows


def line(name: str, what: str, rows: list[Row]) -> str:
    drop = median(row.drop for row in rows)
    control = median(abs(d) for row in rows for d in row.control_drops)
    answer = median(abs(row.metric_after - row.metric_before) for row in rows)
    other = median(abs(m - row.metric_before) for row in rows for m in row.control_metrics)
    worst = max(abs(row.after - row.predicted) for row in rows)
    return (
        f"| {name} | {what} | {len(rows)} | {drop:.3f} | {control:.4f} | {drop / max(control, 1e-12):.0f} | "
        f"{answer:.4f} | {other:.4f} | {worst:.0e} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?")
    parser.add_argument("--prompts", type=int, default=30)
    parser.add_argument("--draws", type=int, default=3)
    arguments = parser.parse_args()
    print("| model | removed | n | median drop | controls | ratio | answer | controls | largest miss |")
    print("|---|---|---|---|---|---|---|---|---|")
    good = True
    sources = [("organism", None)] + ([("SmolLM2-135M", arguments.model)] if arguments.model else [])
    for name, source in sources:
        done, rows = rows_of(keyhole.load(source), arguments.prompts, arguments.draws, linear=source is None)
        sides, edges = [r for r in rows if r.edge is None], [r for r in rows if r.edge is not None]
        print(line(f"{name}, {done} prompts", "all signals of one side", sides), flush=True)
        print(line(f"{name}, {done} prompts", "one signal", edges), flush=True)
        controls = median(abs(d) for row in sides for d in row.control_drops)
        good &= median(row.drop for row in sides) >= 5 * controls and done >= arguments.prompts
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
