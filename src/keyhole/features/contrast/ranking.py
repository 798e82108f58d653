"""Which heads use a feature, which attend to the right keys, and is the feature already a singular channel?

Heads are ranked by how much of their gap on held-out samples the feature explains:

    gap        E+[scaling q.k] - E-[scaling q.k], with scores before softcap, ALiBi and windows
    explained  the same with P_U q for q: the part of the gap that goes through the feature

The feature was fitted on other samples. Under the null hypothesis the held-out labels can therefore be permuted within
each query while the feature stays fixed: the test is exact and needs no refitting. p-values are corrected for multiple
heads with the maximum statistic of each permutation. Heads are standardised first, because a head with large scores
would otherwise dominate the maximum.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from keyhole.brief import Head
from keyhole.errors import KeyholeError
from keyhole.features.contrast.collect import Collected
from keyhole.features.contrast.finding import Feature, Features, RankRule, choose
from keyhole.features.contrast.places import Slots
from keyhole.features.contrast.subspace import coefficients, permuted_signs, random_bases
from keyhole.features.contrast.sums import LayerSamples
from keyhole.models.numbers import exact_matmul
from keyhole.qk.omega import omega

if TYPE_CHECKING:
    from keyhole.models.model import Model

_BLOCK_BYTES = 256e6  # limit on permuted coefficients in memory at once


@dataclass(frozen=True)
class HeadScore:
    """The gap of one head on held-out samples, and the part that the feature explains."""

    head: Head
    rank: int
    gap: float
    explained: float
    z: float  # explained, in standard deviations of its permutations; NaN for rank 0
    p: float  # one-sided, for this head alone
    p_corrected: float  # corrected for the number of heads

    @property
    def share(self) -> float:
        """Explained share of the gap."""
        return self.explained / self.gap if self.gap else float("nan")


def rank_heads(
    features: Features,
    test: Collected,
    *,
    half: int | None = None,
    rank: RankRule | int = "null",
    permutations: int = 1000,
    seed: int = 0,
) -> tuple[HeadScore, ...]:
    """All heads, sorted by the held-out gap that their feature explains, largest first.

    Args:
        features: The features of every head.
        test: Samples on which the features were not fitted.
        half: Which half of the test samples to use, 0 or 1. Default: both.
        rank: The rule that chooses the rank of each feature, or a fixed rank.
        permutations: How many permutations of the labels the explained gap is tested against.
        seed: Seed of the permutations.

    >>> import keyhole
    >>> from keyhole.features.contrast import collect, find_features, order_contrast
    >>> model = keyhole.load()
    >>> seen = collect(model, order_contrast(model, 40, n_boxes=3))
    >>> len(rank_heads(find_features(seen, half=0, permutations=20), seen, half=1, permutations=20))
    32
    """
    if permutations < 1:
        raise KeyholeError("a ranking needs at least one permutation for its p-values.")
    if test.frame != features.frame:
        raise KeyholeError(f"the features are in the frame {features.frame}, the test samples in {test.frame}.")
    chosen = choose(test, half=half)
    slots = test.slots.of(chosen)
    heads, ranks, gaps, through = [], [], [], []
    for row, layer in enumerate(features.layers):
        with exact_matmul():
            kept = test.layer(layer).of(chosen)
            mine = [features.rank((layer, h), rank) for h in range(kept.q.shape[1])]
            part = kept.scores(part_of_query(kept, features.U[row], torch.tensor(mine)))
            gaps.append(kept.scores().flatten(0, 1).cpu())
            through.append(part.flatten(0, 1).cpu())
        heads += [(layer, h) for h in range(kept.q.shape[1])]
        ranks += mine
    observed = _weighted(slots, slots.sign[None], torch.cat(gaps, dim=1))[0]
    signs = torch.cat([slots.sign[None], permuted_signs(slots, permutations, seed)])
    return _scores(heads, ranks, observed, _weighted(slots, signs, torch.cat(through, dim=1)))


def _weighted(
    slots: Slots, signs: Int[Tensor, "draws slots keys"], scores: Float[Tensor, "pairs heads"]
) -> Float[Tensor, "draws heads"]:
    """Mean score of positive pairs minus that of negative pairs, for every draw of signs. Draws go in blocks."""
    blocks = []
    for block in torch.split(signs, max(1, int(_BLOCK_BYTES / (8 * slots.sign.numel())))):
        plus, minus = coefficients(block, slots.weight, "pairs")
        blocks.append((plus - minus).flatten(1) @ scores.double())
    return torch.cat(blocks)


def part_of_query(
    samples: LayerSamples, U: Float[Tensor, "heads d_head columns"], ranks: Tensor
) -> Float[Tensor, "slots heads d_head"]:
    """P_U q of every head, in the coordinates in which scores are computed (after RoPE)."""
    kept = torch.arange(U.shape[-1]) < ranks[:, None]
    basis = (U * kept[:, None, :]).to(samples.q)
    part = torch.einsum("nhd,hdr,her->nhe", samples.queries, basis, basis)
    return part if samples.q_turns is None else samples.q_turns.back(part)


def _scores(
    heads: list[Head],
    ranks: list[int],
    gaps: Float[Tensor, "heads"],
    explained: Float[Tensor, "draws heads"],
) -> tuple[HeadScore, ...]:
    """Standardise, then compare with the maximum of each permutation. Row 0 is observed, and counts as a draw too."""
    real = torch.tensor(ranks) > 0
    spread = explained.std(0).clamp_min(1e-300)
    z = torch.where(real, (explained - explained.mean(0)) / spread, float("-inf"))
    largest = z.amax(1)
    p = (explained >= explained[0]).double().mean(0)
    corrected = (largest[:, None] >= z[0]).double().mean(0)
    scores = [
        HeadScore(
            head=head,
            rank=ranks[i],
            gap=float(gaps[i]),
            explained=float(explained[0, i]),
            z=float(z[0, i]) if real[i] else float("nan"),
            p=float(p[i]) if real[i] else 1.0,
            p_corrected=float(corrected[i]) if real[i] else 1.0,
        )
        for i, head in enumerate(heads)
    ]
    return tuple(sorted(scores, key=lambda score: -score.explained))


# Is the feature already a singular channel of its head? The feature's directions in the basis of the channels.
#
# A query reads u as x . (W_Q u), a key reads v as x . (W_K v), so the feature spans W_Q U and W_K V in the residual
# stream. The orthonormal u_k and v_k of the head's channels span everything that the head can read there. The share of
# channel k is the mean squared cosine between u_k (or v_k) and the feature's span. Shares sum to one; a feature that
# lies in one channel has a single nonzero share.


@dataclass(frozen=True)
class ChannelShares:
    """Which channels of its head a feature lies in, on the query (dest) and on the key (src) side."""

    feature: str
    head: Head
    rank: int
    dest: tuple[float, ...]  # one share per channel, strongest channel first
    src: tuple[float, ...]
    dest_random: float  # how many channels hold 90 % of a random subspace of the same rank, mean over draws
    src_random: float

    @property
    def dest_channels(self) -> int:
        """How many channels hold 90 % of the feature on the query side?"""
        return _needed(torch.tensor(self.dest))

    @property
    def src_channels(self) -> int:
        """How many channels hold 90 % of the feature on the key side?"""
        return _needed(torch.tensor(self.src))


def channel_shares(model: "Model", feature: Feature, *, draws: int = 20, seed: int = 0) -> ChannelShares:
    """Over which channels is a feature spread, compared with random subspaces of query and key space?

    With RoPE, use features found in the frame `pre_rope`: channels are directions before rotation.

    Args:
        model: The model of the feature.
        feature: One head's feature.
        draws: Random subspaces of the same rank.
        seed: Seed of the random subspaces.

    >>> import keyhole, torch
    >>> one = Feature("one", (1, 6), torch.eye(16)[:, :1], torch.eye(16)[:, :1], torch.ones(1))
    >>> channel_shares(keyhole.load(), one, draws=2).rank
    1
    """
    layer, head = feature.head
    om = omega(model, layer)
    with exact_matmul():
        W_Q, W_K = om.factors()
        kv = model.folded(layer).kv(head)
        sides = ((W_Q[head], om.u(head), feature.U), (W_K[kv], om.v(head), feature.V))
        shares = [_shares(W, channels, basis) for W, channels, basis in sides]
        random = []
        for W, channels, basis in sides:
            drawn = random_bases(basis.shape[0], basis.shape[1], draws, seed)
            random.append(sum(_needed(_shares(W, channels, drawn_basis)) for drawn_basis in drawn) / draws)
    dest, src = (tuple(share.tolist()) for share in shares)
    return ChannelShares(feature.name, feature.head, feature.rank, dest, src, *random)


def _shares(
    W: Float[Tensor, "reads d_head"], channels: Float[Tensor, "reads channel"], basis: Float[Tensor, "d_head rank"]
) -> Float[Tensor, "channel"]:
    """Mean squared cosine between span(W basis) and each channel."""
    Q, _ = torch.linalg.qr(W.double() @ basis.to(W.device).double())
    cosines: Tensor = Q.T @ channels.double()
    return cosines.square().sum(0) / max(basis.shape[1], 1)


def _needed(shares: Float[Tensor, "channel"], share: float = 0.9) -> int:
    ordered = shares.sort(descending=True).values.cumsum(0)
    return int((ordered < share * ordered[-1]).sum()) + 1


# Which heads attend to the right keys? Attention on positive and negative keys, for all heads from one pass.

Rule = Literal["accuracy", "attention", "ratio"]


@dataclass(frozen=True)
class HeadAttention:
    """Attention of one head, averaged over queries that have a positive key in their own prompt."""

    head: Head
    accuracy: float  # share of queries whose most attended token, of all visible ones, is a positive key
    # Share of queries that attend to a positive key more than to every negative one. Queries without a negative key in
    # their own prompt do not count; NaN if no query has one.
    among: float
    positive: float  # mean attention on all positive keys together
    negative: float

    @property
    def ratio(self) -> float:
        """Attention on positive keys divided by attention on negative keys; NaN without attention on negative keys."""
        return self.positive / self.negative if self.negative > 0 else float("nan")


def head_attention(collected: Collected, *, half: int | None = None) -> tuple[HeadAttention, ...]:
    """Every head's attention on the contrast's keys.

    Args:
        collected: Samples of a contrast.
        half: Which half of the samples to use, 0 or 1. Default: both.

    >>> import keyhole
    >>> from keyhole.features.contrast import collect, order_contrast
    >>> model = keyhole.load()
    >>> len(head_attention(collect(model, order_contrast(model, 10, n_boxes=3))))
    32
    """
    chosen = choose(collected, half=half)
    usable = (collected.slots.together & (collected.slots.sign == 1)).any(1)[chosen]
    chosen = chosen[usable]
    if not len(chosen):
        raise KeyholeError("no query has its positive keys in its own prompt, so there is no attention to measure.")
    sign = collected.slots.sign[chosen]
    contested = (collected.slots.together[chosen] & (sign == -1)).any(1)  # queries with a negative key, too
    rows = []
    for layer in collected.sums:
        with exact_matmul():
            kept = collected.layer(layer).of(chosen)
            logits = kept.logits()
            weights = kept.weights(logits)
            right = (sign == 1).to(logits.device)[..., None]
            wrong = (sign == -1).to(logits.device)[..., None]
            best = logits.masked_fill(~right, float("-inf")).amax(1)
            other = logits.masked_fill(~wrong, float("-inf")).amax(1)
            columns = (
                (best > torch.maximum(other, kept.top)).double().mean(0),
                (best > other)[contested.to(best.device)].double().mean(0),  # NaN where there is no such query
                (weights * right).sum(1).double().mean(0),
                (weights * wrong).sum(1).double().mean(0),
            )
        for head, values in enumerate(torch.stack(columns, dim=1).tolist()):
            rows.append(HeadAttention((layer, head), *values))
    return tuple(rows)


def select_heads(
    table: tuple[HeadAttention, ...], *, by: Rule = "accuracy", at_least: float = 0.3, top: int | None = None
) -> tuple[HeadAttention, ...]:
    """The heads that pass a threshold, best first.

    `accuracy` (the paper's binding heads, at 30 %) and `attention` (mean attention on positive keys) keep heads at or
    above the threshold. `ratio` (the paper's filter heads) ranks heads by attention on positive over negative keys; its
    threshold is on their total attention on both.

    Args:
        table: The result of `head_attention`.
        by: The rule: accuracy, attention or ratio.
        at_least: The threshold of the rule.
        top: The most heads to return. Default: all that pass.

    >>> select_heads((), by="attention")
    ()
    """
    if by == "accuracy":
        passed = sorted((row for row in table if row.accuracy >= at_least), key=lambda row: -row.accuracy)
    elif by == "attention":
        passed = sorted((row for row in table if row.positive >= at_least), key=lambda row: -row.positive)
    elif by == "ratio":
        awake = [row for row in table if row.positive + row.negative >= at_least and row.negative > 0]
        passed = sorted(awake, key=lambda row: -row.ratio)
    else:
        raise KeyholeError(f"heads are selected by accuracy, attention or ratio, not by {by!r}.")
    return tuple(passed[:top])
