"""Which channels does a head use when it fires, and which when it does not? The 2024 paper's slice sets, over prompts.

For one pair (dest, src) with terms f_k, S is the shortest prefix of the terms in descending order whose sum
exceeds the total, so that what is left out sums to at most zero; for a negative score, in ascending order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from keyhole.brief import brief
from keyhole.errors import KeyholeError
from keyhole.models.heads import Head, head_name
from keyhole.models.numbers.precision import exact_matmul
from keyhole.models.numbers.tolerance import require_exact
from keyhole.qk.channels import check_head
from keyhole.qk.coordinates import in_channels
from keyhole.qk.omega import Basis

if TYPE_CHECKING:
    from keyhole.models.run import Run


@dataclass(frozen=True)
class SliceUse:
    """Which channels one head used, pair by pair."""

    __repr__ = brief

    layer: int
    head: int
    firing: bool
    basis: Basis
    pairs: Int[Tensor, "pair 3"]  # prompt, dest, src
    terms: Float[Tensor, "pair channel"]
    used: Bool[Tensor, "pair channel"]
    error: float  # of the rebuilt scores, relative to the largest

    @property
    def sizes(self) -> Int[Tensor, "pair"]:
        """|S| of each pair."""
        return self.used.sum(-1)

    @property
    def counts(self) -> Int[Tensor, "channel"]:
        """How many pairs used each channel."""
        return self.used.sum(0)


def slice_sets(terms: Float[Tensor, "pair channel"]) -> Bool[Tensor, "pair channel"]:
    """The set S of each pair, by the paper's rule.

    >>> slice_sets(torch.tensor([[4.0, 2.0, -1.0], [-3.0, 1.0, -0.5]])).tolist()
    [[True, True, False], [True, False, False]]
    """
    total = terms.sum(-1, keepdim=True)
    towards = torch.where(total < 0, -terms, terms)
    ordered, order = towards.sort(dim=-1, descending=True)
    # A prefix ends where its sum first exceeds the total: all before that, and that one, belong to S.
    before = ordered.cumsum(-1) - ordered
    inside = before <= total.abs()
    return torch.zeros_like(inside).scatter(-1, order, inside)


def slice_use(
    runs: Sequence["Run"],
    head: Head,
    *,
    firing: bool = True,
    threshold: float = 0.5,
    basis: Basis = "homogeneous",
    seed: int = 0,
) -> SliceUse:
    """Which channels does this head use over many prompts?

    Firing pairs: weight >= threshold, score >= 0, src not the first token. Otherwise one pair per prompt is drawn
    at random among those that do not fire, nor look at the first token. The paper's figures use the homogeneous basis.
    """
    generator = torch.Generator().manual_seed(seed)
    pairs, terms, worst = [], [], 0.0
    with exact_matmul():
        for prompt, run in enumerate(runs):
            layer, index = check_head(run, head)
            run.require_fresh()
            dests, sources = _pairs(run, layer, index, firing=firing, threshold=threshold, generator=generator)
            found, error = _terms(run, layer, index, dests=dests, sources=sources, basis=basis)
            terms.append(found)
            worst = max(worst, error)
            pairs.append(torch.stack([torch.full_like(dests, prompt), dests, sources], dim=-1))
    if not pairs or not any(len(p) for p in pairs):
        kind = "fires" if firing else "fails to fire"
        raise KeyholeError(f"head {head_name(head)} {kind} nowhere in these {len(runs)} prompts.")
    stacked = torch.cat(terms)
    return SliceUse(*head, firing, basis, torch.cat(pairs), stacked, slice_sets(stacked), worst)


def _pairs(
    run: "Run", layer: int, head: int, *, firing: bool, threshold: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    record, n = run.layer(layer), len(run)
    weights, scores = record.weights([head], range(n))[0], record.scores([head], range(n))[0]
    visible = record.visible()
    fires = (weights >= threshold) & (scores >= 0) & visible
    fires[:, 0] = False
    if firing:
        dests, sources = fires.nonzero(as_tuple=True)
        return dests, sources
    quiet = visible & (weights < threshold)
    quiet[:, 0] = False  # as above: the contrast is not to be between the sink and other tokens
    dests, sources = quiet.nonzero(as_tuple=True)
    chosen = torch.randint(len(dests), (1,), generator=generator).to(dests.device) if len(dests) else dests[:0]
    return dests[chosen], sources[chosen]


def _terms(run: "Run", layer: int, head: int, *, dests: Tensor, sources: Tensor, basis: Basis) -> tuple[Tensor, float]:
    """Terms of chosen pairs, and how far their sums miss the model's own scores."""
    record, found = run.layer(layer), in_channels(run, layer, head, basis=basis)
    n = int(found.rank[0])
    terms = found.a[0, dests, :n] * found.B[0, sources, :n]
    if not len(dests):
        return terms, 0.0
    own, rest = record.scores([head], range(len(run)))[0], found.rest()[0, dests, sources]
    error = float((terms.sum(-1) + rest - own[dests, sources]).abs().max() / own.abs().max().clamp_min(1e-30))
    require_exact(error, record.q.dtype, f"the scores of head {layer}.{head}")
    return terms, error
