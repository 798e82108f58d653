"""Does a head need fewer channels in the singular basis than in another? Counted by the answer, and not by scores.

The design, written down before any basis was measured (only the size of the gaps was looked at, to choose what is cut):

1. Prompts of the task that the model answers rightly; the answer's logit less that of the wrong name is the metric m.
2. Edges: the 32 token-level edges (writer, reader, token) with the largest |share| among all that end at a query or a
   key (`faithfulness.shares`, baseline: the resting state). Everything else of the model stays as it is, other edges
   into queries and keys too: so every basis ends at the model itself, f = 1 with all channels. The resting state,
   because a mean over prompts of one template leaves attention as it is: there would be no gap to explain.
3. A basis of a head is an invertible G of head space: query coordinates q G, key coordinates k G^-T, the same scores.
       singular     G_d of `qk.omega`: the singular channels of W_Q W_K^T
       refactored   singular channels with both factors scaled by sqrt(sigma), then turned by a random rotation
       raw          the head's coordinates as they are
       rotated      raw, turned by a random rotation
   An edge adds (w - base) W / n to the query or key (n: the scale of the norm, with the edge whole). Keeping some of
   its channels keeps these coordinates of that vector and nothing of the others, in head space before positions are
   turned in, so that all bases are treated alike: no direction needs to be at right angles to another, the norm stays
   the same, and all channels together are the whole edge.
4. Order: each edge's channels by the size of the score they make, not by its sign: the attention-weighted mean over
   scores of |what the channel adds to the score less its attention-weighted mean|. Taken in the model itself.
5. Every edge keeps its first n channels, n = 1 to 16 one by one, then in steps of a quarter octave. Needed is the
   smallest n from which on, up to all, |f(n) - 1| <= 0.1, with f = (m(n) - m(none)) / (m - m(none)). A prompt whose
   gap m - m(none) is below one logit is left out, and reported.
6. Reported: the mean over prompts of n; per prompt the mean over draws of log(n of another basis / n of the singular
   one), averaged over prompts, with a bootstrap interval over prompts.
"""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from keyhole.brief import brief, model_label
from keyhole.errors import KeyholeError
from keyhole.faithfulness.baseline import baseline
from keyhole.faithfulness.shares import MaskedQuestion, question
from keyhole.faithfulness.token_masks import Mask, everything
from keyhole.intervene.removal import Metric
from keyhole.lab.channel_parts import OTHERS, BasisName, EdgeParts, channel_masks, require_plain, top_edges
from keyhole.lab.head_summary import spread
from keyhole.progress import Progress, duration, part_of, silent
from keyhole.report import Report, Reported, Section, Table
from keyhole.stats import Interval, as_text
from keyhole.tasks.answers import answer_ids, answered
from keyhole.tasks.catalogue import examples

if TYPE_CHECKING:
    from keyhole.models.model import Model

_LOG = logging.getLogger(__name__)
RANDOM = ("refactored", "rotated")  # bases that are drawn
EDGES = 32  # into queries and keys, of each prompt
CLOSE = 0.1  # how far f may be from 1
LEAST_GAP = 1.0  # logits
FEWEST = 6  # prompts for a verdict: by a sign test, five that agree are chance in one of 16


@dataclass(frozen=True)
class PromptCounts:
    """One prompt: how many channels each of its edges needs, in every basis and draw."""

    prompt: str
    answer: float  # the metric in the model
    nothing: float  # with no channel of these edges
    needed: Mapping[BasisName, tuple[int, ...]]  # one for each draw
    curves: Mapping[BasisName, tuple[tuple[float, ...], ...]]  # f at every size, for each draw

    def ratio(self, basis: BasisName) -> float:
        """Log of how many times as many channels another basis needs, mean over draws."""
        return float(np.mean(np.log(self.needed[basis]))) - math.log(self.needed["singular"][0])


@dataclass(frozen=True, eq=False)
class BasisStudy(Reported):
    """How many channels an edge needs in each basis, over prompts."""

    __repr__ = brief

    model: str
    task: str
    d_head: int
    edges: int  # of each prompt
    sizes: tuple[int, ...]  # numbers of channels that were tried
    draws: int  # of random bases
    prompts: tuple[PromptCounts, ...]
    small_gaps: int  # prompts left out: these edges carry less than a logit
    wrong: int  # prompts left out: answered wrongly
    seconds: float

    def channels(self, basis: BasisName) -> Interval:
        """Channels an edge, mean over prompts and draws, with a bootstrap interval over prompts.

        Args:
            basis: One of the study's bases.
        """
        return _over_prompts([float(np.mean(prompt.needed[basis])) for prompt in self.prompts])

    def ratio(self, basis: BasisName) -> Interval:
        """How many times as many channels as the singular basis: a geometric mean, bootstrapped over prompts.

        Args:
            basis: One of the study's bases.
        """
        mean, low, high = _over_prompts([prompt.ratio(basis) for prompt in self.prompts])
        return Interval(math.exp(mean), math.exp(low), math.exp(high))

    @property
    def verdict(self) -> str:
        """Whether the singular basis needs fewer channels, in words."""
        if len(self.prompts) < FEWEST:
            return (
                f"No verdict: {len(self.prompts)} prompts, and resampling fewer than {FEWEST} shows their range alone."
            )
        ratios = {name: self.ratio(name) for name in OTHERS}
        fewer = [name for name, (_, low, _) in ratios.items() if low > 1]
        more = [name for name, (_, _, high) in ratios.items() if high < 1]
        unclear = [name for name in OTHERS if name not in fewer + more]
        parts = []
        if fewer:
            parts.append(f"The singular basis needs fewer channels than {_listed(fewer)}.")
        if more:
            parts.append(f"The singular basis needs more channels than {_listed(more)}.")
        if unclear:
            parts.append(f"No difference is shown from {_listed(unclear)}: the interval holds 1.")
        return " ".join(parts)

    @property
    def summary(self) -> str:
        """What was done, in words."""
        left_out = [
            f"{n} {why}" for n, why in ((self.wrong, "answered wrongly"), (self.small_gaps, "with a small gap")) if n
        ]
        note = f" Left out: {' and '.join(left_out)}." if left_out else ""
        return (
            f"{len(self.prompts)} prompts, the {self.edges} edges into queries and keys "
            f"with the largest shares in each. Channels of every edge, largest score first, until f stays within "
            f"1 +- {CLOSE}. {self.draws} draws of random bases; 95 % bootstrap intervals over prompts.{note}"
        )

    def report(self) -> Report:
        """Channels in each basis, and whether the singular one needs fewer."""
        columns = ("basis", f">channels of {self.d_head}", ">times the singular basis")
        rows = [("singular", as_text(self.channels("singular"), 1), "1")]
        rows += [(name, as_text(self.channels(name), 1), as_text(self.ratio(name), 2)) for name in OTHERS]
        return Report(
            f"Bases: {self.task} on {model_label(self.model)}",
            self.summary,
            [Section("Channels of an edge", [Table(columns, rows), self.verdict])],
            Table(columns, rows),
        )

    def record(self) -> dict[str, Any]:
        """As plain data."""
        names = ("model", "task", "d_head", "edges", "sizes", "draws", "small_gaps", "wrong", "seconds", "verdict")
        rows = [
            {name: getattr(row, name) for name in ("prompt", "answer", "nothing", "needed", "curves")}
            for row in self.prompts
        ]
        bases: dict[str, Any] = {"singular": {"channels": self.channels("singular")}}
        bases |= {name: {"channels": self.channels(name), "ratio": self.ratio(name)} for name in OTHERS}
        return {**{name: getattr(self, name) for name in names}, "bases": bases, "prompts": rows}


def basis_study(
    model: "Model",
    task: str = "ioi",
    prompts: int = 16,
    *,
    edges: int = EDGES,
    draws: int = 4,
    seed: int = 0,
    progress: Progress | None = None,
) -> BasisStudy:
    """How many channels an edge into a query or key needs, in the singular basis and in three others.

    Of `task`, so many `prompts` that the model answers rightly; `edges` of each; `draws` of random bases. The design
    is in this module's docstring. After the first prompt the time of the others is estimated and logged.

    Args:
        model: The model.
        task: A task of `keyhole.tasks`.
        prompts: Prompts that it answers rightly.
        edges: Edges of each prompt.
        draws: Random bases of each edge.
        seed: Seed of prompts and bases.
        progress: Called with how many prompts are done, and of how many.

    >>> import keyhole
    >>> basis_study(keyhole.load(), "no task")
    Traceback (most recent call last):
    keyhole.errors.KeyholeError: no task is neither a file nor a task: there are ioi, greater_than, pronouns, facts, \
induction, boxes, lists.
    """
    if prompts < 1 or edges < 1 or draws < 1:
        raise KeyholeError(
            f"{prompts} prompts, {edges} edges and {draws} draws were asked for: at least one of each is needed."
        )
    started, progress = time.monotonic(), progress or silent
    counts: list[PromptCounts] = []
    sizes, wrong, small = sizes_of(model.dims.d_head), 0, 0
    with model._steady():
        for example in examples(task, model, 3 * prompts, seed):
            if len(counts) == prompts:
                break
            run = model.run(example.text)
            ids = answer_ids(model, example)
            if not ids.against:
                raise KeyholeError(f"prompts of {task} have no wrong answer to hold the right one against: take ioi.")
            if not answered(run, example, ids).correct:
                wrong += 1
                continue
            prompt_question = question(
                run, Metric(len(run) - 1, ids.answers, ids.against), baseline(run, like="resting")
            )
            part = part_of(progress, len(counts) / prompts, (len(counts) + 1) / prompts)
            row = prompt_counts(prompt_question, edges=edges, draws=draws, seed=seed, progress=part)
            if row is None:
                small += 1
                continue
            counts.append(row)
            if len(counts) == 1 < prompts:
                seconds = max(1.0, (time.monotonic() - started) * (prompts - 1))
                _LOG.info(f"about {duration(seconds)} for {prompts - 1} more prompts, as long as the first took.")
    if not counts:
        raise KeyholeError(
            f"no prompt of {task} is left: {wrong} are answered wrongly, and in {small} these edges carry less than a "
            "logit. Take another task, or more edges."
        )
    return BasisStudy(
        model=model_label(model.name),
        task=task,
        d_head=model.dims.d_head,
        edges=edges,
        sizes=sizes,
        draws=draws,
        prompts=tuple(counts),
        small_gaps=small,
        wrong=wrong,
        seconds=time.monotonic() - started,
    )


def prompt_counts(
    question: MaskedQuestion, *, edges: int = EDGES, draws: int = 4, seed: int = 0, progress: Progress = silent
) -> PromptCounts | None:
    """One prompt's counts in every basis; None where its edges carry less than a logit."""
    require_plain(question.masked.blocks)
    d_head = question.run.model.dims.d_head
    chosen, sizes = top_edges(question, edges), sizes_of(d_head)
    whole = torch.eye(d_head, dtype=torch.float64)
    answer, nothing = question.answers([everything(), Mask(chosen, 1.0, 1.0, 0, (), (whole,) * len(chosen))])
    if answer - nothing < LEAST_GAP:
        return None
    parts = EdgeParts.of(question, chosen)
    passes = [(name, draw) for name in ("singular", *OTHERS) for draw in range(draws if name in RANDOM else 1)]
    curves: dict[BasisName, tuple[tuple[float, ...], ...]] = {}
    for done, (name, draw) in enumerate(passes):
        progress(done, len(passes))
        f = (question.answers(channel_masks(parts, name, sizes, seed + draw)) - nothing) / (answer - nothing)
        curves[name] = (*curves.get(name, ()), tuple(f.tolist()))
    progress(len(passes), len(passes))
    needed = {name: tuple(stays(sizes, f) for f in drawn) for name, drawn in curves.items()}
    return PromptCounts("".join(question.run.tokens), float(answer), float(nothing), needed, curves)


def sizes_of(d_head: int) -> tuple[int, ...]:
    """Numbers of channels that are tried: one by one up to 16, then in steps of a quarter octave.

    >>> sizes_of(32)[-6:]
    (15, 16, 19, 23, 27, 32)
    """
    steps = {round(2 ** (4 + i / 4)) for i in range(1, 4 * 16)}
    return tuple(sorted({n for n in {*range(1, 17), *steps} if n < d_head} | {d_head}))


def stays(sizes: Sequence[int], f: Sequence[float]) -> int:
    """The smallest size from which on, up to the last, f is close to 1.

    >>> stays([1, 2, 3, 4], [0.95, 0.5, 1.05, 1.0])
    3
    """
    needed = sizes[-1]
    for size, value in zip(reversed(sizes), reversed(f), strict=True):
        if not abs(value - 1) <= CLOSE:
            break
        needed = size
    return needed


def _over_prompts(values: Sequence[float]) -> Interval:
    """A mean with its bootstrap interval; of a single prompt there is none."""
    over = spread(torch.tensor(values, dtype=torch.float64), torch.arange(len(values)))
    return Interval(over.mean, over.low, over.high)


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
