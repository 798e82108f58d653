"""In which order are removals made, how long will they take, and what is left of them when they are stopped?

Each removal runs with its own controls. Those with the largest influence come first, so that a part of them is worth
reading: they are taken in portions of a few batches, and only within a portion by layer, which saves the layers below
the first change. After the first batch the time of all of them is estimated and logged. Ctrl-C ends the work, and what
was finished is returned.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from keyhole.intervene.rerun import Edits, Rerun, batch_size, batches, rerun
from keyhole.intervene.rows import Row, Stopped
from keyhole.progress import Progress, duration, silent

if TYPE_CHECKING:
    from keyhole.models.run import Run

_LOG = logging.getLogger("keyhole")
_PORTION = 4  # batches that are sorted by layer: with more of them, what matters most comes later


@dataclass(frozen=True)
class Removal:
    """One removal with its controls: the copies of the prompt that it needs, and what they come to."""

    influence: float  # the largest first
    copies: Callable[[], Sequence[Edits]]  # itself, then its controls; made when their turn comes, for they are large
    see: Callable[[int, Rerun, int], Any]  # which of the copies, the batch that it ran in, and its place there
    rows: Callable[[Sequence[Any]], Sequence[Row]]  # from what was seen of all copies


def _work(run: "Run", copies: Sequence[Edits]) -> int:
    """How much a batch takes: the layers that its copies go through, and the answer."""
    layers = len(run.layers)
    return len(copies) * (layers + 1 - min(min(edits.first_layer for edits in copies), layers - 1))


def rows_of(
    run: "Run", removals: Sequence[Removal], end: int, progress: Progress | None
) -> tuple[list[Row], Stopped | None]:
    """Make all removals: their rows in the order given, and after how many it was stopped, if it was.

    `end`: the token whose logits are looked at.
    """
    progress, finished = progress or silent, dict[int, Sequence[Row]]()
    order = sorted(range(len(removals)), key=lambda i: -removals[i].influence)
    stopped = None
    try:
        while len(finished) < len(order):
            progress(len(finished), len(order))
            _portion(run, removals, order, end=end, finished=finished, progress=progress)
        progress(len(order), len(order))
    except KeyboardInterrupt:
        stopped = Stopped(len(finished), len(order))
    return [row for i in sorted(finished) for row in finished[i]], stopped


def _portion(
    run: "Run",
    removals: Sequence[Removal],
    order: Sequence[int],
    *,
    end: int,
    finished: dict[int, Sequence[Row]],
    progress: Progress,
) -> None:
    """The next few batches; `finished` grows with every batch."""
    began, first, most = time.monotonic(), not finished, _PORTION * batch_size(run)
    copies, owners = list[Edits](), list[tuple[int, int]]()  # whose copy it is, and which
    needed: dict[int, int] = {}
    for number in order[len(finished) :]:
        made = removals[number].copies()
        owners += [(number, k) for k in range(len(made))]
        copies += made
        needed[number] = len(made)
        if len(copies) >= most:
            break
    seen: dict[int, dict[int, Any]] = {number: {} for number in needed}
    groups = batches(run, copies)
    ready = time.monotonic()
    for group in groups:
        result = rerun(run, [copies[i] for i in group], all_logits=end != len(run) - 1)
        for place, i in enumerate(group):
            number, k = owners[i]
            seen[number][k] = removals[number].see(k, result, place)
            if len(seen[number]) == needed[number]:
                finished[number] = removals[number].rows([seen[number][k] for k in range(needed[number])])
        if first:
            work = [_work(run, [copies[i] for i in members]) for members in groups]
            portion = ready - began + (time.monotonic() - ready) * sum(work) / work[0]
            seconds = max(1.0, portion * len(order) / len(needed))
            _LOG.info(f"about {duration(seconds)} for {len(order)} removals; Ctrl-C shows those that are finished.")
            first = False
        progress(len(finished), len(order))
