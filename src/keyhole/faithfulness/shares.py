"""What is an edge's share of the answer? A prompt, its answer and its baseline, integrated from the baseline.

Which edges is the answer made of? Shares by integration from the baseline to the prompt; they add up to the gap.

All masks go from 0 to 1 together (m is the answer, w_u(a) what u writes in the pass at a, base_u its baseline):

    share(u, r, t) = integral_0^1 (w_u(a) - base_u)[t] . dm/dx_r[t] da,        sum of all shares = m(1) - m(0)

with x_r what reader r reads. The answer changes quickly in a small part of the way, so the points are placed where it
does. A share ranks edges and is no effect: each of three edges in a chain has a third of what taking any away costs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.brief import brief
from keyhole.errors import KeyholeError
from keyhole.faithfulness.baseline import Baseline
from keyhole.faithfulness.masked import Masked, Writes, masked, rows_at_once
from keyhole.faithfulness.token_masks import EdgeList, Mask, everything
from keyhole.faithfulness.wiring import Reach, Wiring, reach_of
from keyhole.intervene.removal import Metric, Question
from keyhole.models.numbers import exact_matmul
from keyhole.progress import Progress, part_of, silent
from keyhole.qk.omega import omega

if TYPE_CHECKING:
    from keyhole.intervene.removal import Metric
    from keyhole.models.run import Run

LOOK = 17  # points at which the answer is looked at, to place the others
FEWEST, MOST = 8, 32  # points that gradients are taken at
CLOSE = 0.05  # of the gap: how far the sum of shares may be from it
TOGETHER = 48  # readers, at least, whose shares are one product
WITHIN = ((0.4, 0.35), (0.7, 0.25), (0.9, 0.2), (1.0, 0.2))  # points and weights along the edges of a circuit

Cell = tuple[float, float]  # a point of the way, and its weight
Slopes = list[tuple[list[int], Float[Tensor, "_reader row pos d_model"]]]  # of the answer, by what readers read


@dataclass(frozen=True, eq=False)
class Shares:
    """Every token-level edge's part of the answer's gap to its baseline."""

    __repr__ = brief

    values: Float[np.ndarray, "writer reader pos"]
    everything: float  # the answer of the model
    nothing: float  # at the baseline
    points: int  # that gradients were taken at

    @property
    def gap(self) -> float:
        """What the shares should add up to."""
        return self.everything - self.nothing

    @property
    def completeness(self) -> float:
        """The sum of all shares over the gap: 1 if they add up."""
        return float(self.values.sum()) / self.gap if self.gap else float("nan")


def shares(masked: Masked, metric: "Metric", prompt: int = 0, progress: Progress | None = None) -> Shares:
    """Shares of all token-level edges of one prompt; as many points as it takes to add up within 5 %, at most 32."""
    return shares_together(masked, [metric], [prompt], progress)[0]


def shares_together(
    masked: Masked, metrics: Sequence["Metric"], prompts: Sequence[int], progress: Progress | None = None
) -> list[Shares]:
    """The same for several prompts of one pass."""
    looks = np.linspace(0.0, 1.0, LOOK)
    with torch.no_grad(), exact_matmul():
        logits = masked.masked_logits([everything(float(a), prompt) for prompt in prompts for a in looks])
    repeated = [metric for metric in metrics for _ in looks]
    answers = np.array([metric.of(row) for metric, row in zip(repeated, logits, strict=True)]).reshape(-1, LOOK)
    done: dict[int, Shares] = {}
    points, left = FEWEST, list(range(len(prompts)))
    while left:
        cells = [placed(looks, answers[i], points) for i in left]
        part = part_of(progress or silent, 1 - FEWEST / points, 1 - FEWEST / (2 * points))  # more points may follow
        values = integrated(masked, [metrics[i] for i in left], cells, [prompts[i] for i in left], part)
        for i, of_prompt in zip(left, values, strict=True):
            done[i] = Shares(of_prompt, float(answers[i, -1]), float(answers[i, 0]), points)
        left = [i for i in left if points < MOST and abs(done[i].completeness - 1) > CLOSE and done[i].gap]
        points *= 2
    return [done[i] for i in range(len(prompts))]


def placed(looks: Float[np.ndarray, "look"], answers: Float[np.ndarray, "look"], points: int) -> list[Cell]:
    """Middles and widths of cells that hold equal parts of half the way and half the answer's changes.

    >>> placed(np.array([0.0, 0.5, 1.0]), np.array([0.0, 0.0, 1.0]), 2)
    [(0.333..., 0.666...), (0.833..., 0.333...)]
    """
    changes = np.abs(np.diff(answers))
    total = changes.sum()
    mass = 0.5 * np.diff(looks) + (0.5 * changes / total if total > 0 else 0.5 * np.diff(looks))
    ends = np.interp(np.linspace(0.0, 1.0, points + 1), np.concatenate([[0.0], mass.cumsum()]), looks)
    return [(float(a + b) / 2, float(b - a)) for a, b in pairwise(ends)]


def integrated(
    masked: Masked,
    metrics: Sequence["Metric"],
    cells: Sequence[Sequence[Cell]],
    prompts: Sequence[int],
    progress: Progress | None = None,
) -> Float[np.ndarray, "prompt writer reader pos"]:
    """(Write - baseline) . slope of every edge of these prompts, summed over points of the mask with their weights.

    Each prompt has points of its own, all of them equally many.
    """
    writers, readers = masked.wiring.joined.shape
    values = np.empty((len(prompts), writers, readers, masked.words.shape[1]))
    points, size = len(cells[0]), rows_with_slopes(masked)
    together = max(1, size // points)  # prompts
    for first in range(0, len(prompts), together):
        rows = slice(first, first + together)
        total = masked.words.new_zeros(values.shape[-1], len(prompts[rows]), writers, readers)
        for start in range(0, points, size):
            parts = [some[start : start + size] for some in cells[rows]]
            masks = [everything(a, prompt) for prompt, part in zip(prompts[rows], parts, strict=True) for a, _ in part]
            repeated = [metric for metric, part in zip(metrics[rows], parts, strict=True) for _ in part]
            changes, slopes = reader_slopes(masked, repeated, masks)
            widths = total.new_tensor([width for part in parts for _, width in part])[:, None, None]
            add_products(total, changes, [(numbers, slope * widths) for numbers, slope in slopes], masked.wiring)
            (progress or silent)(first * points + start * len(parts) + len(masks), len(prompts) * points)
        values[rows] = by_edge(total, masked.wiring)
    return values


def rows_with_slopes(masked: Masked) -> int:
    """How many copies of a prompt go through side by side if gradients are taken."""
    return max(1, rows_at_once(masked) // 3)  # the way back keeps what readers read, too


def add_products(
    total: Float[Tensor, "pos group writer reader"],
    changes: Float[Tensor, "writer row pos d_model"],
    slopes: Slopes,
    wiring: Wiring,
) -> None:
    """Add change . slope of every writer and reader at every token; a group's neighbouring rows are summed."""
    groups = total.shape[1]
    by_token = _grouped(changes, groups).permute(3, 1, 0, 2, 4).flatten(3)  # one copy for all readers
    for some in _together(slopes):
        first, last = some[0][0][0], some[-1][0][-1]
        into = _grouped(torch.cat([slope for _, slope in some]), groups).permute(3, 1, 2, 4, 0).flatten(2, 3)
        below = int(wiring.joined[:, last].sum())
        total[:, :, :below, first : last + 1] += by_token[:, :, :below] @ into


def _grouped(x: Float[Tensor, "any row pos d_model"], groups: int) -> Float[Tensor, "any group point pos d_model"]:
    return x.reshape(x.shape[0], groups, -1, *x.shape[2:])


def by_edge(
    total: Float[Tensor, "pos prompt writer reader"], wiring: Wiring
) -> Float[np.ndarray, "prompt writer reader pos"]:
    """The same as an array without what is no edge: readers taken together do not all read the same writers."""
    values = total.permute(1, 2, 3, 0).cpu().double().numpy()
    return np.asarray(values * wiring.joined[:, :, None])


def _together(slopes: Slopes) -> Iterator[Slopes]:
    """Slopes by some neighbouring readers at a time: one product of many is much faster than many of one."""
    some: Slopes = []
    for numbers, slope in slopes:
        some.append((numbers, slope))
        if sum(len(numbers) for numbers, _ in some) >= TOGETHER:
            yield some
            some = []
    if some:
        yield some


def along(
    masked: Masked, metrics: Sequence["Metric"], sets: Sequence[EdgeList], prompts: Sequence[int]
) -> list[Float[np.ndarray, "_edge"]]:
    """Shares of the edges of circuits along the way on which these alone come in: what each is worth among them."""
    size, n = max(1, rows_with_slopes(masked) // len(WITHIN)), len(WITHIN)
    if len(sets) > size:
        some = (metrics[:size], sets[:size], prompts[:size]), (metrics[size:], sets[size:], prompts[size:])
        return [values for part in some for values in along(masked, *part)]
    masks = [Mask(edges, a, 0.0, prompt) for edges, prompt in zip(sets, prompts, strict=True) for a, _ in WITHIN]
    changes, slopes = reader_slopes(masked, [metric for metric in metrics for _ in WITHIN], masks)
    widths = changes.new_tensor([width for _, width in WITHIN])
    edges, which = np.concatenate(sets), np.repeat(np.arange(len(sets)), [len(edges) for edges in sets])
    rows = torch.from_numpy(n * which[:, None] + np.arange(n)).to(changes.device)
    values = np.zeros(len(edges))
    slot = np.empty(len(masked.wiring.readers), dtype=np.int64)
    for readers, slope in slopes:
        slot[:] = -1
        slot[readers] = np.arange(len(readers))
        here = np.flatnonzero(slot[edges[:, 1]] >= 0)
        writer, _, token = torch.from_numpy(edges[here]).to(changes.device)[:, :, None].unbind(1)
        reader, row = torch.from_numpy(slot[edges[here, 1]]).to(changes.device)[:, None], rows[here]
        parts = (changes[writer, row, token] * slope[reader, row, token]).sum(-1)
        values[here] = (parts * widths).sum(-1).cpu().numpy()
    return np.split(values, np.cumsum([len(edges) for edges in sets])[:-1])


def channel_shares(
    masked: Masked, metric: "Metric", edges: EdgeList, cells: Sequence[Cell], prompt: int = 0
) -> list[Float[np.ndarray, "channel_and_rest"]]:
    """Shares of edges into queries and keys by singular channel; the last is the rest, which no channel reads.

    The rest is what the edge does through the norm before attention. Channels and rest add up to the edge's share.
    """
    masks = [everything(point, prompt) for point, _ in cells]
    changes, slopes = reader_slopes(masked, [metric] * len(masks), masks)
    widths = changes.new_tensor([width for _, width in cells])[:, None]
    by_reader = {reader: slope[i] for readers, slope in slopes for i, reader in enumerate(readers)}
    parts = []
    for writer, reader, token in edges.tolist():
        change, slope = changes[writer, :, token], by_reader[reader][:, token] * widths
        basis = basis_of(masked, reader).to(change)
        by_channel = ((change @ basis) * (slope @ basis)).sum(0)
        rest = (change * slope).sum() - by_channel.sum()
        parts.append(torch.cat([by_channel, rest[None]]).cpu().double().numpy())
    return parts


def basis_of(masked: Masked, reader: int) -> Float[Tensor, "d_model channel"]:
    """The singular directions that a query (dest) or key (src) reads, in the order of a head's channels."""
    place = masked.wiring.readers[reader]
    assert place.layer is not None and place.head is not None and place.side in ("dest", "src")
    channels = omega(masked.model, place.layer)
    return channels.u(place.head) if place.side == "dest" else channels.v(place.head)


def reader_slopes(masked: Masked, metrics: Sequence["Metric"], masks: Sequence[Mask]) -> tuple[Writes, Slopes]:
    """Writes less baselines in a pass of these copies, and the slope of each copy's answer by what readers read."""
    with exact_matmul(), torch.inference_mode(False), torch.enable_grad():
        logits, stream = masked.read(masks)
        assert stream.reads is not None
        answers = torch.stack([metric.value(row) for metric, row in zip(metrics, logits, strict=True)]).sum()
        reads = [read for _, read in stream.reads]
        slopes = torch.autograd.grad(answers, reads, materialize_grads=True, allow_unused=True)
    return stream.changes, [(readers, slope) for (readers, _), slope in zip(stream.reads, slopes, strict=True)]


# What is asked of the pass with masks? A prompt, its answer and its baseline, ready to be run in copies.


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

    def with_shares(self, progress: Progress | None = None) -> "MaskedQuestion":
        """The same with its shares computed; as it is, if they are."""
        known = self.precomputed is not None or "shares" in vars(self)
        return self if known else replace(self, precomputed=shares(self.masked, self.metric, progress=progress))

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
        """The logits at the answer in copies with these masks."""
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
    with run.model._steady():
        answers = metric.at if metric.continuation else -1
        return MaskedQuestion(run, metric, baseline, replace(masked([run]), baseline=baseline.writes, answers=answers))


def joined(questions: Sequence[MaskedQuestion]) -> Masked:
    """One pass for the prompts of all questions, which are of one model and equally long."""
    words = torch.cat([question.masked.words for question in questions])
    baselines = torch.stack([question.baseline.writes for question in questions], dim=1)
    return replace(questions[0].masked, words=words, baseline=baselines)
