"""Which heads use this feature? Every head's held-out logit gap, and how much of it the feature explains.

    gap        E+[scaling q.k] - E-[scaling q.k], of scores before softcap, ALiBi and windows
    explained  the same with P_U q for q: the part of the gap that goes through the feature

The feature comes from other samples, so under the null the held-out labels may be permuted within each query while the
feature stays: an exact test, without refitting. p-values are corrected over heads by the largest statistic of each
permutation; heads are standardised first, because a loud head would otherwise hide the others.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from keyhole.contrast.data.resolve import Slots
from keyhole.contrast.features.finding import Features, RankRule, choose
from keyhole.contrast.features.nulls import coefficients, permuted_signs
from keyhole.contrast.onepass.collect import Collected
from keyhole.contrast.onepass.samples import LayerSamples
from keyhole.errors import KeyholeError
from keyhole.models.heads import Head
from keyhole.models.numbers.precision import exact_matmul

_BLOCK_BYTES = 256e6  # of permuted coefficients held at once


@dataclass(frozen=True)
class HeadScore:
    """One head on held-out samples."""

    head: Head
    rank: int
    gap: float
    explained: float
    z: float  # explained, in standard deviations of its permutations; NaN for rank 0
    p: float  # one-sided, of this head alone
    p_corrected: float  # over all heads

    @property
    def share(self) -> float:
        """Explained part of the gap."""
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
    """All heads by explained held-out gap, largest first."""
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
    """Mean score of positive minus mean score of negative pairs, for every draw of signs; draws in blocks."""
    made = []
    for block in torch.split(signs, max(1, int(_BLOCK_BYTES / (8 * slots.sign.numel())))):
        plus, minus = coefficients(block, slots.weight, "pairs")
        made.append((plus - minus).flatten(1) @ scores.double())
    return torch.cat(made)


def part_of_query(
    samples: LayerSamples, U: Float[Tensor, "heads d_head columns"], ranks: Tensor
) -> Float[Tensor, "slots heads d_head"]:
    """P_U q of every head, in the scores' own coordinates."""
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
    """Standardise, compare with the largest of every permutation. Row 0 is the observed one and counts as a draw."""
    real = torch.tensor(ranks) > 0
    spread = explained.std(0).clamp_min(1e-300)
    z = torch.where(real, (explained - explained.mean(0)) / spread, float("-inf"))
    largest = z.amax(1)
    p = (explained >= explained[0]).double().mean(0)
    corrected = (largest[:, None] >= z[0]).double().mean(0)
    made = [
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
    return tuple(sorted(made, key=lambda score: -score.explained))
