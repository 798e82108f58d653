"""What is asked of the pass with masks? A prompt, its answer and its baseline, ready to be run in copies."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float

from keyhole.errors import KeyholeError
from keyhole.faithfulness.baseline import Baseline
from keyhole.faithfulness.connected import Reach, reach_of
from keyhole.faithfulness.masked import Masked, masked, rows_at_once
from keyhole.faithfulness.shares import Shares, shares
from keyhole.faithfulness.token_masks import Mask, everything
from keyhole.intervene.remove import Metric, Question
from keyhole.models.numbers.precision import exact_matmul
from keyhole.progress import Progress, silent

if TYPE_CHECKING:
    from keyhole.models.run import Run


@dataclass(frozen=True, eq=False)
class MaskedQuestion(Question):
    """The same with what stands in for writers; the prompt ends at the token that predicts the answer."""

    baseline: Baseline
    masked: Masked
    precomputed: Shares | None = None  # where they were computed together with others'

    @cached_property
    def shares(self) -> Shares:
        """Shares of all edges; computed when first asked for."""
        return shares(self.masked, self.metric) if self.precomputed is None else self.precomputed

    @cached_property
    def reach(self) -> Reach:
        """What joins edges."""
        return reach_of(self.run, self.masked.wiring)

    @cached_property
    def ends(self) -> tuple[float, float]:
        """The answer in the prompt, and with every writer at its baseline."""
        nothing, whole = self.answers([everything(0.0), everything(1.0)])
        return float(whole), float(nothing)

    def answers(self, masks: Sequence[Mask], progress: Progress | None = None) -> Float[np.ndarray, "mask"]:
        """The answer in copies with these masks."""
        logits = self.logits(masks, progress)
        return np.array([self.metric.of(row) for row in logits])

    def logits(self, masks: Sequence[Mask], progress: Progress | None = None) -> list[torch.Tensor]:
        """The logits at the last token in copies with these masks."""
        rows: list[torch.Tensor] = []
        size = rows_at_once(self.masked, masks)
        with torch.no_grad(), exact_matmul():
            for start in range(0, len(masks), size):
                rows += self.masked.masked_logits(masks[start : start + size]).unbind(0)
                (progress or silent)(len(rows), len(masks))
        return rows


def until_answer(run: "Run", end: int) -> "Run":
    """The run, or the same prompt cut after the token that predicts the answer: later tokens cannot matter."""
    return run if end == len(run) - 1 else run.model.run(list(run.token_ids[: end + 1]), bos=False)


def question(run: "Run", metric: Metric, baseline: Baseline) -> MaskedQuestion:
    """A prompt and an answer to ask about; `run` ends at the token that predicts it."""
    if not metric.targets:
        raise KeyholeError(
            "effects are changes of an answer, and this circuit was traced from a direction or from given firings: "
            "trace it with a target."
        )
    if metric.end != len(run) - 1:
        raise KeyholeError("the run goes on after the token that predicts the answer: cut it there.")
    with run.model.steady():
        return MaskedQuestion(run, metric, baseline, replace(masked([run]), baseline=baseline.writes))


def joined(questions: Sequence[MaskedQuestion]) -> Masked:
    """One pass for the prompts of all questions, which are of one model and equally long."""
    words = torch.cat([question.masked.words for question in questions])
    baselines = torch.stack([question.baseline.writes for question in questions], dim=1)
    return replace(questions[0].masked, words=words, baseline=baselines)
