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

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from keyhole.brief import brief, model_label
from keyhole.errors import KeyholeError
from keyhole.faithfulness.baseline import baseline
from keyhole.faithfulness.blocks import Block
from keyhole.faithfulness.question import Question, question
from keyhole.faithfulness.token_masks import EdgeList, Mask, everything
from keyhole.intervene.remove import Metric
from keyhole.models.numbers.precision import exact_matmul
from keyhole.progress import Progress, silent
from keyhole.qk.controls import haar
from keyhole.qk.omega import omega
from keyhole.stats import as_text
from keyhole.tasks import examples
from keyhole.tasks.answers import answer_ids, answered

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.models.run import Run

BasisName = Literal["singular", "refactored", "raw", "rotated"]
OTHERS: tuple[BasisName, ...] = ("refactored", "raw", "rotated")
EDGES = 32  # into queries and keys, of each prompt
CLOSE = 0.1  # how far f may be from 1
LEAST_GAP = 1.0  # logits
RESAMPLED = 2000
Interval = tuple[float, float, float]
Matrix = Float[Tensor, "d_head d_head"]


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
class BasisStudy:
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
        """Channels an edge, mean over prompts and draws, with a bootstrap interval over prompts."""
        return bootstrap([float(np.mean(prompt.needed[basis])) for prompt in self.prompts])

    def ratio(self, basis: BasisName) -> Interval:
        """How many times as many channels as the singular basis: a geometric mean, bootstrapped over prompts."""
        mean, low, high = bootstrap([prompt.ratio(basis) for prompt in self.prompts])
        return math.exp(mean), math.exp(low), math.exp(high)

    @property
    def cells(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Columns and rows of a table."""
        rows = [("singular", as_text(self.channels("singular"), 1), "1")]
        rows += [(name, as_text(self.channels(name), 1), as_text(self.ratio(name), 2)) for name in OTHERS]
        return ("basis", f">channels of {self.d_head}", ">times the singular basis"), rows

    @property
    def verdict(self) -> str:
        """Whether the singular basis needs fewer channels, in words."""
        fewer, more, open_ = [], [], []
        for name in OTHERS:
            _, low, high = self.ratio(name)
            (fewer if low > 1 else more if high < 1 else open_).append(name)
        parts = []
        if fewer:
            parts.append(f"The singular basis needs fewer channels than {_listed(fewer)}.")
        if more:
            parts.append(f"The singular basis needs more channels than {_listed(more)}.")
        if open_:
            parts.append(f"No difference is shown from {_listed(open_)}: the interval holds 1.")
        return " ".join(parts)

    @property
    def summary(self) -> str:
        """What was done, in words."""
        left_out = [
            f"{n} {why}" for n, why in ((self.wrong, "answered wrongly"), (self.small_gaps, "with a small gap")) if n
        ]
        note = f" Left out: {' and '.join(left_out)}." if left_out else ""
        return (
            f"{self.model}, {self.task}: {len(self.prompts)} prompts, the {self.edges} edges into queries and keys "
            f"with the largest shares in each. Channels of every edge, largest score first, until f stays within "
            f"1 +- {CLOSE}. {self.draws} draws of random bases; 95 % bootstrap intervals over prompts.{note}"
        )

    def __str__(self) -> str:
        _, rows = self.cells
        return "\n".join([self.summary, *(f"{a:<11} {b:<18} {c}" for a, b, c in rows), self.verdict])

    def record(self) -> dict[str, Any]:
        """As plain data."""
        names = ("model", "task", "d_head", "edges", "sizes", "draws", "small_gaps", "wrong", "seconds", "verdict")
        rows = [
            {**{name: getattr(row, name) for name in ("prompt", "answer", "nothing")}}
            | {"needed": dict(row.needed), "curves": dict(row.curves)}
            for row in self.prompts
        ]
        bases: dict[str, Any] = {"singular": {"channels": self.channels("singular")}}
        bases |= {name: {"channels": self.channels(name), "ratio": self.ratio(name)} for name in OTHERS}
        return {**{name: getattr(self, name) for name in names}, "bases": bases, "prompts": rows}


@dataclass(frozen=True)
class _Space:
    """A basis of one side of a head: coordinates of what it reads are y @ into, and y = coordinates @ back."""

    into: Matrix
    back: Matrix


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
    is in this module's docstring.
    """
    if prompts < 1 or edges < 1 or draws < 1:
        raise KeyholeError(
            f"{prompts} prompts, {edges} edges and {draws} draws were asked for: at least one of each is needed."
        )
    started, progress = time.monotonic(), progress or silent
    counts: list[PromptCounts] = []
    sizes, wrong, small = sizes_of(model.dims.d_head), 0, 0
    with model.steady():
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
            asked = question(run, Metric(len(run) - 1, ids.answers, ids.against), baseline(run, like="resting"))
            row = prompt_counts(asked, edges=edges, draws=draws, seed=seed)
            if row is None:
                small += 1
                continue
            counts.append(row)
            progress(len(counts), prompts)
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


def prompt_counts(asked: Question, *, edges: int = EDGES, draws: int = 4, seed: int = 0) -> PromptCounts | None:
    """One prompt's counts in every basis; None where its edges carry less than a logit."""
    _require_plain(asked.masked.blocks)
    chosen = top_edges(asked, edges)
    everywhere = torch.eye(asked.run.model.dims.d_head, dtype=torch.float64)
    answer, nothing = asked.answers([everything(), Mask(chosen, 1.0, 1.0, 0, (), (everywhere,) * len(chosen))])
    if answer - nothing < LEAST_GAP:
        return None
    parts = EdgeParts.of(asked, chosen)
    sizes = sizes_of(asked.run.model.dims.d_head)
    needed: dict[BasisName, tuple[int, ...]] = {}
    curves: dict[BasisName, tuple[tuple[float, ...], ...]] = {}
    for name in ("singular", *OTHERS):
        drawn = [
            (np.array(asked.answers(channel_masks(parts, name, sizes, seed + draw))) - nothing) / (answer - nothing)
            for draw in range(draws if name in ("refactored", "rotated") else 1)
        ]
        curves[name] = tuple(tuple(float(f) for f in row) for row in drawn)
        needed[name] = tuple(stays(sizes, row) for row in curves[name])
    text = "".join(asked.run.tokens)
    return PromptCounts(text, float(answer), float(nothing), needed, curves)


def top_edges(asked: Question, n: int) -> EdgeList:
    """The n token-level edges into queries and keys with the largest |share|."""
    values = np.abs(asked.shares.values)
    values[:, [reader.side not in ("dest", "src") for reader in asked.masked.wiring.readers]] = 0.0
    first = np.argsort(-values, axis=None, kind="stable")[:n]
    return np.stack(np.unravel_index(first, values.shape), 1)


@dataclass(frozen=True, eq=False)
class EdgeParts:
    """What each edge adds to the query or key it ends at, in head space, and the scores that this makes."""

    asked: Question
    edges: EdgeList
    added: Float[Tensor, "edge d_head"]  # (w - base) W / n
    # Of every edge, how a change y of its query or key changes scores (y @ effect), and with which weights these count.
    effect: tuple[Float[Tensor, "d_head _score"], ...]
    weights: tuple[Float[Tensor, "_score"], ...]
    groups: tuple[Int[np.ndarray, "_score"], ...]  # which scores are of one softmax: differences within it matter

    @classmethod
    def of(cls, asked: Question, edges: EdgeList) -> "EdgeParts":
        """Read off the model's own run."""
        made, run = asked.masked, asked.run
        with exact_matmul(), torch.no_grad():
            written = made.written()[:, 0]
        added, effects, weights, groups = [], [], [], []
        for writer, reader, token in edges.tolist():
            place = made.wiring.readers[reader]
            assert place.layer is not None and place.head is not None
            block, query = made.blocks[place.layer], place.side == "dest"
            side = block.query if query else block.key
            change = (written[writer, token] - asked.baseline.writes[writer, token]).double()
            stream = run.layers[place.layer].resid[token][None].to(side.W)
            scale = 1.0 if side.norm is None else float(side.norm.scale(stream)[0])
            added.append(change @ side.W[place.head].double() / scale)
            effect, weight, group = _scores(run, block, (place.layer, place.head), token, query=query)
            effects.append(effect)
            weights.append(weight)
            groups.append(group)
        return cls(asked, edges, torch.stack(added), tuple(effects), tuple(weights), tuple(groups))

    def sizes(self, edge: int, space: _Space) -> Float[Tensor, "channel"]:
        """How much each channel of an edge changes attention: the mean |change of a score|, by attention.

        Only differences between the scores of one query count, so their mean by attention is taken off.
        """
        coordinates = self.added[edge] @ space.into
        scores = coordinates[:, None] * (space.back @ self.effect[edge])  # channel score
        weights, groups = self.weights[edge], torch.from_numpy(self.groups[edge])
        if (groups == groups[0]).all():  # a query: one softmax
            scores = scores - (scores * weights).sum(1, keepdim=True)
            return (scores.abs() * weights).sum(1)
        return (scores.abs() * weights * (1 - weights)).sum(1)  # a key: one score in each of several


def _scores(
    run: "Run", block: Block, head: tuple[int, int], token: int, *, query: bool
) -> tuple[Float[Tensor, "d_head score"], Float[Tensor, "score"], Int[np.ndarray, "score"]]:
    """How a change of a query (or key) at a token changes scores, the attention there, and whose softmax each is of."""
    record = run.layer(head[0])
    q, k = record.q[head[1]].double(), record.k[record.kv(head[1])].double()
    n = len(run)
    A = record.weights([head[1]], list(range(n)))[0].double()  # dest src
    others = k[: token + 1] if query else q[token:]
    turned = others
    if block.rotary is not None:  # the change is turned by its own position: take that off the other side instead
        at = block.rotary.at(torch.full((len(others),), token))
        turned = at.transpose(others)
    factor = block.rule.scaling
    if query and block.factor is not None:
        factor = factor * float(block.factor[token])
    if query:
        return (turned * factor).T, A[token, : token + 1], np.zeros(token + 1, dtype=np.int64)
    return (turned * factor).T, A[token:, token], np.arange(n - token)


def channel_masks(parts: EdgeParts, name: BasisName, sizes: Sequence[int], seed: int) -> list[Mask]:
    """Masks that keep the first channels of every edge in one basis, so many each."""
    spaces = _spaces(parts.asked.run.model, name, seed)
    withheld: list[list[Matrix]] = [[] for _ in sizes]
    for i, (_, reader, _) in enumerate(parts.edges.tolist()):
        place = parts.asked.masked.wiring.readers[reader]
        assert place.layer is not None and place.head is not None
        space = spaces(place.layer, place.head, place.side == "dest")
        order = parts.sizes(i, space).argsort(descending=True)
        for row, n in zip(withheld, sizes, strict=True):
            rest = order[n:]
            row.append(space.into[:, rest] @ space.back[rest])
    return [Mask(parts.edges, 1.0, 1.0, 0, (), tuple(row)) for row in withheld]


def _spaces(model: "Model", name: BasisName, seed: int) -> Callable[[int, int, bool], _Space]:
    """The basis of each head's query or key; random ones are drawn anew for every head."""
    made: dict[tuple[int, int], Matrix] = {}

    def space(layer: int, head: int, query: bool) -> _Space:
        if (layer, head) not in made:
            made[layer, head] = head_basis(model, layer, head, name, seed)
        G = made[layer, head]
        inverse = torch.linalg.inv(G)
        return _Space(G, inverse) if query else _Space(inverse.T, G.T)

    return space


def head_basis(model: "Model", layer: int, head: int, name: BasisName, seed: int = 0) -> Matrix:
    """G: query coordinates are q G, key coordinates k G^-T, and (q G) . (k G^-T) = q . k.

    Channels beyond the rank of W_Q W_K^T complete the singular basis; they carry no score but through positions.
    """
    d_head = model.dims.d_head
    generator = torch.Generator().manual_seed(1_000_003 * seed + 1_009 * layer + head)
    if name == "raw":
        return torch.eye(d_head, dtype=torch.float64)
    if name == "rotated":
        return haar(d_head, d_head, generator)
    channels = omega(model, layer)
    r = int(channels.rank[head])
    sigma = channels.sigma[head, :r].double().cpu()
    lifted, G_s = channels.lift_d[head, :, :r].double().cpu(), channels.lift_s[head, :, :r].double().cpu().T
    G = lifted * sigma  # G_d, in float64
    if name == "refactored":
        G = (G / sigma.sqrt()) @ haar(r, r, generator)
    if r < d_head:
        rest = torch.eye(d_head, dtype=torch.float64) - lifted * sigma @ G_s
        G = torch.cat([G, torch.linalg.svd(rest)[0][:, : d_head - r]], 1)
    return G


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


def bootstrap(values: Sequence[float]) -> Interval:
    """A mean with its bootstrap interval over the values; a single one has none."""
    if len(values) < 2:
        return values[0], math.nan, math.nan
    rng, array = np.random.default_rng(0), np.array(values)
    means = array[rng.integers(0, len(array), (RESAMPLED, len(array)))].mean(1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(array.mean()), float(low), float(high)


def _require_plain(blocks: Sequence[Block]) -> None:
    if any(block.query.own is not None for block in blocks):
        raise KeyholeError(
            "this model has a norm on queries and keys, under which they are not sums of coordinates: the test of the "
            "singular basis needs one without."
        )


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
