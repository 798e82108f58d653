"""How is a contrast summed up? Samples of a layer, in common coordinates, into accumulators over two halves.

How is a contrast summed up in one pass? By accumulators for every head, over two random halves of the samples.

    C+ = sum_+ q k^T / N+,   C- = sum_- q k^T / N-,   dC = C+ - C-                    [d_head, d_head] per head

The keys of a query are summed first, then one outer product per query. Sums of q and of k give the means: uncentred,
any difference of mean keys adds the rank-one term mu_q (mu_k+ - mu_k-)^T, whose share of dC is always reported. Biases
of queries and keys enter dC through these means alone. Everything is summed in float64, because centring takes one
large number from another where biases are large.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from keyhole.brief import brief
from keyhole.errors import KeyholeError
from keyhole.models.attention import AttentionRule
from keyhole.models.facts import Pairing, Rotary, turn

Centre = Literal["none", "each", "pooled"]
Balance = Literal["pairs", "prompts"]


@dataclass(frozen=True)
class Sums:
    """One layer's sums, by side (0 positive, 1 negative) and half."""

    __repr__ = brief

    qk: Float[Tensor, "sides halves heads d_query d_key"]
    q: Float[Tensor, "sides halves heads d_query"]
    k: Float[Tensor, "sides halves kv_heads d_key"]
    qq: Float[Tensor, "sides halves heads"]  # of |q|^2
    kk: Float[Tensor, "sides halves kv_heads"]
    pairs: Float[Tensor, "sides halves"]  # weights of pairs
    queries: Float[Tensor, "halves"]  # weights of samples

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(
            self.qk + other.qk,
            self.q + other.q,
            self.k + other.k,
            self.qq + other.qq,
            self.kk + other.kk,
            self.pairs + other.pairs,
            self.queries + other.queries,
        )

    def of_half(self, half: int) -> "Sums":
        """The sums over one half, as if it were all."""
        keep = torch.arange(2, device=self.pairs.device) == half
        return Sums(
            self.qk * keep[:, None, None, None],
            self.q * keep[:, None, None],
            self.k * keep[:, None, None],
            self.qq * keep[:, None],
            self.kk * keep[:, None],
            self.pairs * keep,
            self.queries * keep,
        )


def tally(
    q: Float[Tensor, "slots heads d_query"],
    k: Float[Tensor, "slots keys kv_heads d_key"],
    sign: Int[Tensor, "slots keys"],
    weight: Float[Tensor, "slots"],
    half: Int[Tensor, "slots"],
) -> Sums:
    """Sum up some slots."""
    sign, weight, half = sign.to(k.device), weight.to(k.device), half.to(k.device)
    q, k = q.double(), k.double()
    grouped = by_kv_head(q, k.shape[2])
    parts: dict[str, list[Tensor]] = {name: [] for name in ("qk", "q", "k", "qq", "kk", "pairs")}
    for side in (1, -1):
        for part in (0, 1):
            mine = (sign == side) * (weight * (half == part)).to(k.dtype)[:, None]
            keys = torch.einsum("nk,nkad->nad", mine, k)
            parts["qk"].append(torch.einsum("nagd,nae->agde", grouped, keys).flatten(0, 1))
            parts["q"].append((mine.sum(1)[:, None, None] * q).sum(0))
            parts["k"].append(keys.sum(0))
            parts["qq"].append((mine.sum(1)[:, None] * q.square().sum(-1)).sum(0))
            parts["kk"].append(torch.einsum("nk,nkad->a", mine, k.square()))
            parts["pairs"].append(mine.sum())
    by_half = torch.stack([_queries(sign, weight * (half == part)) for part in (0, 1)])
    return Sums(queries=by_half, **{name: torch.stack(x).view(2, 2, *x[0].shape) for name, x in parts.items()})


def by_kv_head(q: Float[Tensor, "slots heads d"], kv_heads: int) -> Float[Tensor, "slots kv_heads group d"]:
    """Queries by the KV head that they read."""
    return q.view(q.shape[0], kv_heads, q.shape[1] // kv_heads, q.shape[2])


def _queries(sign: Int[Tensor, "slots keys"], weight: Float[Tensor, "slots"]) -> Tensor:
    """Samples counted once: by the slot that has their positives."""
    return (weight * (sign == 1).any(1)).double().sum()


def contrast_matrix(sums: Sums, *, centre: Centre, balance: Balance = "pairs") -> Float[Tensor, "heads d_query d_key"]:
    """The contrast dC of every head of a layer.

    `balance="pairs"` averages each side over its pairs; `prompts` divides both by the number of samples, as the
    authors' filter-head code does, which weights a side by how many keys it has. `centre="each"` takes each side's
    means away, `pooled` the mean of both sides'. The difference is the same: with half sums and differences of means,
    mu_q+ mu_k+ - mu_q- mu_k- = (mu_q+ + mu_q-)/2 (mu_k+ - mu_k-) + (mu_q+ - mu_q-) (mu_k+ + mu_k-)/2.
    """
    check_choices(centre, balance)
    _require_sides(sums)
    qk, q, k, pairs = (part.sum(1) for part in (sums.qk, sums.q, sums.k, sums.pairs))  # both halves: [sides, ...]
    per_key = pairs if balance == "pairs" else sums.queries.sum().expand(2)
    C = qk / per_key[:, None, None, None]
    mu_q = q / pairs[:, None, None]
    mu_k = (k / per_key[:, None, None]).repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    if centre == "each":
        C = C - mu_q[..., None] * mu_k[..., None, :]
    elif centre == "pooled":
        centre_q, centre_k = mu_q.mean(0), mu_k.mean(0)
        C = C - centre_q[:, :, None] * mu_k[..., None, :] - mu_q[..., None] * centre_k[:, None, :]
    return C[0] - C[1]


def mean_shift_share(sums: Sums, *, balance: Balance = "pairs") -> Float[Tensor, "heads"]:
    """Which share of the uncentred dC is the rank-one term of means, mu_q+ mu_k+^T - mu_q- mu_k-^T?

    1 - |dC - M|^2 / |dC|^2: one if the contrast is a mere mean shift, zero or less if means do not explain it.
    """
    whole = contrast_matrix(sums, centre="none", balance=balance)
    left = contrast_matrix(sums, centre="each", balance=balance)
    return 1 - left.square().sum((-1, -2)) / whole.square().sum((-1, -2))


def query_variance(sums: Sums) -> Float[Tensor, "heads"]:
    """Which share of the mean squared length of queries varies over the samples? 0: every query is the same.

    1 - |E[q]|^2 / E[|q|^2] over the pairs of both sides: centred, a contrast has these variations alone to go by.
    """
    pairs = sums.pairs.sum()
    mean = sums.q.sum((0, 1)) / pairs
    return (1 - mean.square().sum(-1) / (sums.qq.sum((0, 1)) / pairs)).clamp_min(0)


def product_size(sums: Sums, *, centre: Centre, balance: Balance = "pairs") -> Float[Tensor, "heads"]:
    """Against which a contrast is large, small, or rounding, both sides together.

    Uncentred |E[q k^T]|. Centred, an error of q meets k - E[k] and an error of k meets q - E[q]: with |q| the root
    mean square and s its deviation from the mean, |q| s_k + s_q |k|.
    """
    per_pair = sums.pairs.sum(1)
    per_key = per_pair if balance == "pairs" else sums.queries.sum().expand(2)
    if centre == "none":
        return (sums.qk.sum(1) / per_key[:, None, None, None]).square().sum((-1, -2)).sqrt().sum(0)
    sizes = []
    for total, squares in ((sums.q, sums.qq), (sums.k, sums.kk)):
        square = squares.sum(1) / per_pair[:, None]
        spread = (square - (total.sum(1) / per_pair[:, None, None]).square().sum(-1)).clamp_min(0)
        heads = sums.q.shape[2] // total.shape[2]
        sizes.append([x.sqrt().repeat_interleave(heads, dim=1) for x in (square, spread)])
    (q, s_q), (k, s_k) = sizes
    return ((q * s_k + s_q * k) * (per_pair / per_key)[:, None]).sum(0)


def check_choices(centre: str, balance: str) -> None:
    """Refuse a centring or a balance that does not exist."""
    if centre not in ("none", "each", "pooled"):
        raise KeyholeError(f"there is no centring {centre!r}: choose none, each or pooled.")
    if balance not in ("pairs", "prompts"):
        raise KeyholeError(f"there is no balance {balance!r}: choose pairs or prompts.")


def _require_sides(sums: Sums) -> None:
    for side, name in enumerate(("positive", "negative")):
        if float(sums.pairs[side].sum()) == 0:
            raise KeyholeError(f"there are no {name} pairs among the chosen samples: choose more of them.")


# In which coordinates are queries and keys compared? All frames are turned by orthogonal maps from the model's own.
#
#     post_rope  q and k as the scores use them (the authors' choice)
#     pre_rope   each turned back by its own position: what was said, not where
#     relative   both turned back by the query's position: scores stay, and queries at different positions compare
#
# With x' = O^T x in the frame, an edit d' there is the edit O d' of the real vector.

Frame = Literal["post_rope", "pre_rope", "relative"]
FRAMES: tuple[Frame, ...] = ("post_rope", "pre_rope", "relative")


@dataclass(frozen=True)
class Turns:
    """One rotation O per site."""

    cos: Float[Tensor, "*sites freq"]
    sin: Float[Tensor, "*sites freq"]
    pairing: Pairing

    def into(self, x: Float[Tensor, "*sites heads d_head"]) -> Float[Tensor, "*sites heads d_head"]:
        """O^T x: from the vectors that the scores use to the frame."""
        return turn(x, self.cos[..., None, :], -self.sin[..., None, :], self.pairing)

    def back(self, x: Float[Tensor, "*sites heads d_head"]) -> Float[Tensor, "*sites heads d_head"]:
        """O x: from the frame to the vectors that the scores use."""
        return turn(x, self.cos[..., None, :], self.sin[..., None, :], self.pairing)

    def of(self, chosen: Tensor | tuple[Tensor, ...]) -> "Turns":
        """Some of the sites."""
        return Turns(self.cos[chosen], self.sin[chosen], self.pairing)


def check_frame(frame: str) -> None:
    """Refuse a frame that does not exist."""
    if frame not in FRAMES:
        raise KeyholeError(f"there is no frame {frame!r}: choose one of {', '.join(FRAMES)}.")


def turns_at(rotary: Rotary, positions: Int[Tensor, "*sites"]) -> Turns:
    """The rotations of these positions alone: YaRN's tables also stretch by a factor, which a frame must not."""
    cos, sin = rotary.cos[positions].double(), rotary.sin[positions].double()  # a bfloat16 table is no rotation
    length = torch.sqrt(cos**2 + sin**2)
    return Turns(cos / length, sin / length, rotary.pairing)


# What did one layer's heads have at the sites of a contrast? Queries, keys, and what else stood in the query's row.
#
# Keys are kept per KV head; query head h reads KV head h // group. The rest of a row (every visible token that is not
# a key of the slot, and attention sinks) enters a softmax only through its logsumexp.


@dataclass(frozen=True)
class LayerSamples:
    """One layer at every slot. q and k are as the scores use them; `queries` and `keys` give them in the frame."""

    __repr__ = brief

    q: Float[Tensor, "slots heads d_head"]
    k: Float[Tensor, "slots keys kv_heads d_head"]
    rest: Float[Tensor, "slots heads"]  # logsumexp of the row's other logits
    top: Float[Tensor, "slots heads"]  # the largest of them
    visible: Bool[Tensor, "slots keys"]  # does the query see this key? (same prompt, inside the window, no padding)
    rule: AttentionRule  # scaling and softcap; sinks are in `rest`
    bias: Float[Tensor, "slots keys heads"] | None = None  # ALiBi
    q_turns: Turns | None = None  # None: the frame is the scores' own
    k_turns: Turns | None = None

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.q.shape[1] // self.k.shape[2]

    @property
    def queries(self) -> Float[Tensor, "slots heads d_head"]:
        """Queries in the frame."""
        return self.q if self.q_turns is None else self.q_turns.into(self.q)

    @property
    def keys(self) -> Float[Tensor, "slots keys kv_heads d_head"]:
        """Keys in the frame."""
        return self.k if self.k_turns is None else self.k_turns.into(self.k)

    def of(self, chosen: Tensor) -> "LayerSamples":
        """Some of the slots."""
        return replace(
            self,
            q=self.q[chosen],
            k=self.k[chosen],
            rest=self.rest[chosen],
            top=self.top[chosen],
            visible=self.visible[chosen],
            bias=None if self.bias is None else self.bias[chosen],
            q_turns=None if self.q_turns is None else self.q_turns.of(chosen),
            k_turns=None if self.k_turns is None else self.k_turns.of(chosen),
        )

    def scores(self, q: Float[Tensor, "slots heads d_head"] | None = None) -> Float[Tensor, "slots keys heads"]:
        """Scaled, uncapped scores; of other queries (parts of them, in the scores' own coordinates) if given."""
        grouped = by_kv_head(self.q if q is None else q, self.k.shape[2])
        return torch.einsum("nagd,nkad->nkag", grouped, self.k).flatten(2) * self.rule.scaling

    def logits(self, scores: Float[Tensor, "slots keys heads"] | None = None) -> Float[Tensor, "slots keys heads"]:
        """What enters the softmax: capped, biased, minus infinity where the query does not see."""
        logits = self.rule.cap(self.scores() if scores is None else scores)
        if self.bias is not None:
            logits = logits + self.bias
        return logits.masked_fill(~self.visible[..., None], float("-inf"))

    def weights(self, logits: Float[Tensor, "slots keys heads"] | None = None) -> Float[Tensor, "slots keys heads"]:
        """Attention of the slots' keys."""
        logits = self.logits() if logits is None else logits
        return torch.cat([logits, self.rest[:, None]], dim=1).softmax(1)[:, :-1]


def frame_turns(frame: Frame, query: Turns, keys: Turns) -> tuple[Turns | None, Turns | None]:
    """Which rotations lead into a frame, given those of the query's and the keys' own positions."""
    if frame == "post_rope":
        return None, None
    if frame == "pre_rope":
        return query, keys
    sites = keys.cos.shape[:-1]
    same = Turns(query.cos[:, None].expand(*sites, -1), query.sin[:, None].expand(*sites, -1), query.pairing)
    return query, same


def joined(parts: Sequence[LayerSamples]) -> LayerSamples:
    """Samples one after the other."""

    def turns(all_: list[Turns | None]) -> Turns | None:
        given = [t for t in all_ if t is not None]
        if not given:
            return None
        return Turns(torch.cat([t.cos for t in given]), torch.cat([t.sin for t in given]), given[0].pairing)

    return LayerSamples(
        q=torch.cat([part.q for part in parts]),
        k=torch.cat([part.k for part in parts]),
        rest=torch.cat([part.rest for part in parts]),
        top=torch.cat([part.top for part in parts]),
        visible=torch.cat([part.visible for part in parts]),
        rule=parts[0].rule,
        bias=None if parts[0].bias is None else torch.cat([part.bias for part in parts if part.bias is not None]),
        q_turns=turns([part.q_turns for part in parts]),
        k_turns=turns([part.k_turns for part in parts]),
    )
