"""Does a head push the answer? What it writes at END does so directly, and the answer without that write in all.

    direct = (sum over src of A_END,src v_src W_O) . (W_U[answer] - W_U[wrong]) / scale of the final norm
    total  = (logit(answer) - logit(wrong)) less the same difference when the head writes nothing at END

Where a head looks does not decide that: one that looks at the answer's token may write against it, and later heads may
make up for what it writes. Hence two numbers, each over prompts with its interval.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from keyhole.circuits.writer import Writer
from keyhole.intervene.remove import Metric
from keyhole.intervene.writers import answers_without
from keyhole.models.heads import Head
from keyhole.models.numbers.precision import exact_matmul
from keyhole.models.run import Run
from keyhole.stats import Interval, as_text, interval
from keyhole.tasks import answer_ids
from keyhole.tasks.example import Example
from keyhole.tracing.answers.linear import linear_direction
from keyhole.tracing.svt import head_outputs
from keyhole.tracing.writes.upstream import Writes


@dataclass(frozen=True)
class Push:
    """What a head does to logit(answer) - logit(wrong) by its write at END."""

    direct: Interval
    total: Interval

    @property
    def directly(self) -> bool:
        """Does its write point to the answer beyond doubt, and does the answer not gain beyond doubt without it?"""
        return self.direct[1] > 0 and not self.total[2] < 0

    @property
    def by_all_paths(self) -> bool:
        """Does the answer lose beyond doubt without it?"""
        return self.total[1] > 0

    def __str__(self) -> str:
        """In words.

        >>> print(Push(Interval(0.5, 0.25, 0.75), Interval(-0.5, -0.75, -0.25)))
        adds 0.500 [0.250, 0.750] to the logit difference directly, which changes by 0.500 [0.250, 0.750] without it
        """
        mean, low, high = self.total
        without = as_text(Interval(-mean, -high, -low))
        return f"adds {as_text(self.direct)} to the logit difference directly, which changes by {without} without it"


def pushes(ran: Sequence[tuple[Example, Run]], heads: Sequence[Head]) -> dict[Head, Push]:
    """What each of these heads does to the answers of some prompts."""
    direct: dict[Head, list[float]] = {head: [] for head in heads}
    total: dict[Head, list[float]] = {head: [] for head in heads}
    for example, run in ran if heads else ():
        metric, written = metric_of(example, run), _direct(example, run)
        end, before = metric.end, metric.of(run.logits[-1])
        silent = [[Writer("head", *head, end, src) for src in range(end + 1)] for head in heads]
        for head, after in zip(heads, answers_without(run, silent, metric), strict=True):
            direct[head].append(written[head])
            total[head].append(before - after)
    return {head: Push(interval(direct[head]), interval(total[head])) for head in heads}


def metric_of(example: Example, run: Run) -> Metric:
    """The logit of an example's answer against those of wrong ones, as the tokens that would follow the prompt."""
    ids = answer_ids(run.model, example)
    return Metric(len(run) - 1, ids.answers, ids.against)


def _direct(example: Example, run: Run) -> dict[Head, float]:
    """What every head's write at END adds to the logit difference."""
    metric, layers = metric_of(example, run), run.model.attention_layers
    with exact_matmul():
        writes = Writes([run])
        along = linear_direction(writes, 0, metric.end, list(metric.targets), list(metric.against))
        written = head_outputs(writes, len(layers), metric.end)
        added = (written @ (along / run.final_scale[metric.end]).to(written)).tolist()
    return {(layer, head): value for layer, row in zip(layers, added, strict=True) for head, value in enumerate(row)}
