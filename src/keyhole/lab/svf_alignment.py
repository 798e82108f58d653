"""Are singular vectors aligned with features? Three measures, and what holds for orthogonal features.

Did the singular vectors of a toy head become features? Three scores, and what makes them doubtful.

    Omega = U S V^T,   cu[i, k] = w_i . u_k / |w_i|,   cv[j, k] = w_j . v_k / |w_j|

A pair (i, j) is aligned with channel k when |cu[i, k]| = |cv[j, k]| = 1. (u_k, v_k) may both flip, so cosines are
reported without sign, but their product must have the sign of T: a negative one is a pair that the head shuns.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from keyhole.errors import KeyholeError
from keyhole.features.contrast.subspace import decompose, principal_cosines, union
from keyhole.lab.svf import DEAD, SVF, Pair
from keyhole.lab.svf_theorems import Check, D, Measure

_CLOSE = 0.05  # relative gap below which two singular vectors may be mixed or swapped


@dataclass(frozen=True)
class Matching:
    """Which channel belongs to which pair, and how well they agree. A pair without one has -1, NaN and sign 0."""

    channel: Int[Tensor, "pair"]
    u: Float[Tensor, "pair"]  # |cos| of the query feature with u_k
    v: Float[Tensor, "pair"]  # |cos| of the key feature with v_k
    sign: Int[Tensor, "pair"]  # of the product of both cosines: that of T, as it should be; -1 is anti-attention
    gain: Float[Tensor, "pair"]  # S_k |w_i| |w_j|: what the pair adds to a logit if aligned; compare with |T|

    @property
    def worst(self) -> float:
        """The smallest |cos| of any pair on either side; NaN if a pair has no channel."""
        return float(torch.cat([self.u, self.v]).min())


@dataclass(frozen=True)
class Subspace:
    """Cosines of the principal angles between attended features and as many leading singular vectors.

    They do not care how the singular vectors are mixed among themselves. NaN where they would say nothing: if a feature
    is dead, or if the features span the whole space, in which every singular vector lies.
    """

    query: Float[Tensor, "query_angle"]
    key: Float[Tensor, "key_angle"]

    @property
    def worst(self) -> float:
        """The smallest cosine of either side."""
        return float(torch.cat([self.query, self.key]).min())


@dataclass(frozen=True)
class Alignment:
    """A head's singular vectors against the features of its model; pairs are sorted by |T|, largest first."""

    pairs: tuple[Pair, ...]
    T: Float[Tensor, "pair"]
    U: Float[Tensor, "D H"]
    S: Float[Tensor, "H"]
    V: Float[Tensor, "D H"]
    norms: Float[Tensor, "N"]  # |w_i|
    cu: Float[Tensor, "N H"]  # NaN in the rows of dead features
    cv: Float[Tensor, "N H"]
    by_rank: Matching  # the k-th pair with the k-th singular vector, as the paper does
    by_assignment: Matching  # each pair with another singular vector, such that sum |cu cv| is largest
    subspace: Subspace
    gaps: Float[Tensor, "gap"]  # (S_k - S_{k+1}) / S_k of the channels that pairs may take
    warnings: tuple[str, ...]

    @property
    def dead(self) -> tuple[int, ...]:
        """The features without a direction."""
        return tuple(self.cu.isnan().any(1).nonzero()[:, 0].tolist())


def alignment(model: SVF, *, dead: float = DEAD) -> Alignment:
    """Did this model's singular vectors become features? Those below `dead` of the longest have no direction.

    Args:
        model: A trained toy.
        dead: Share of the longest feature below which a feature has no direction.

    >>> from keyhole.lab.svf_train import train
    >>> from keyhole.lab.svf import SVFSettings
    >>> len(alignment(train([SVFSettings.fast(steps=1)])[0]).pairs)
    4
    """
    if not model.settings.attention:
        raise KeyholeError("this model was trained without a head, so nothing could align: train with attention=True.")
    return align(model.W, model.W_Q, model.W_K, model.settings.pairs, dead=dead)


def align(
    W: Float[Tensor, "D N"],
    W_Q: Float[Tensor, "H D"],
    W_K: Float[Tensor, "H D"],
    pairs: Sequence[Pair],
    *,
    dead: float = DEAD,
) -> Alignment:
    """The same for any features (the columns of W) and head.

    Args:
        W: Features, a column each.
        W_Q: The query matrix of the head.
        W_K: Its key matrix.
        pairs: Which query feature attends to which key feature, and how strongly.
        dead: As in `alignment`.

    >>> found = align(torch.eye(2), torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 2.0]]), [(0, 1, 6.0)])
    >>> found.S.tolist(), round(found.by_assignment.worst, 3)
    ([6.0], 1.0)
    """
    if not pairs:
        raise KeyholeError("there are no pairs whose alignment could be asked for: give at least one.")
    ordered = tuple(sorted(pairs, key=lambda pair: -abs(pair[2])))  # singular values know sizes only
    U, S, V = (part[..., : len(W_Q)] for part in decompose(W_Q.double().T @ W_K.double()))  # the rest is no channel
    norms = W.double().norm(dim=0)
    unit = torch.where(norms <= dead * norms.max(), float("nan"), W.double() / norms)
    cu, cv = unit.T @ U, unit.T @ V
    gaps = ((S[:-1] - S[1:]) / S[:-1]).nan_to_num(0.0)[: len(ordered)]  # 0/0: zero is not told from zero

    def match(channels: Int[Tensor, "pair"]) -> Matching:
        return _matching(channels, ordered, cu=cu, cv=cv, S=S, norms=norms)

    assigned = match(_assigned(ordered, cu, cv))
    return Alignment(
        pairs=ordered,
        T=torch.tensor([value for _, _, value in ordered], dtype=torch.float64),
        U=U,
        S=S,
        V=V,
        norms=norms,
        cu=cu,
        cv=cv,
        by_rank=match(_ranks(len(ordered), len(S))),
        by_assignment=assigned,
        subspace=Subspace(
            _angles(unit[:, sorted({i for i, _, _ in ordered})], U),
            _angles(unit[:, sorted({j for _, j, _ in ordered})], V),
        ),
        gaps=gaps,
        warnings=_warnings(ordered, S, gaps, cu, assigned),
    )


def _ranks(pairs: int, channels: int) -> Int[Tensor, "pair"]:
    """0, 1, 2, ... and -1 where the head has no more channels."""
    return torch.tensor([k if k < channels else -1 for k in range(pairs)])


def _assigned(pairs: Sequence[Pair], cu: Tensor, cv: Tensor) -> Int[Tensor, "pair"]:
    """The Hungarian matching on |cu cv|; a dead feature is matched with nothing."""
    from scipy.optimize import linear_sum_assignment  # slow to import, and only needed here

    products = torch.stack([cu[i] * cv[j] for i, j, _ in pairs]).abs()
    rows, columns = linear_sum_assignment(products.nan_to_num(0.0).numpy(), maximize=True)
    channels = torch.full((len(pairs),), -1)
    channels[torch.as_tensor(rows)] = torch.as_tensor(columns)
    return torch.where(products.isnan().any(1), -1, channels)


def _matching(
    channels: Int[Tensor, "pair"], pairs: Sequence[Pair], *, cu: Tensor, cv: Tensor, S: Tensor, norms: Tensor
) -> Matching:
    query, key = (torch.tensor([pair[side] for pair in pairs]) for side in (0, 1))
    matched = (channels >= 0) & ~cu[query, 0].isnan() & ~cv[key, 0].isnan()
    k = channels.clamp_min(0)
    u, v, gain = (
        torch.where(matched, values, float("nan"))
        for values in (cu[query, k], cv[key, k], S[k] * norms[query] * norms[key])
    )
    return Matching(
        channel=torch.where(matched, channels, -1),
        u=u.abs(),
        v=v.abs(),
        sign=(u * v).sign().nan_to_num(0.0).long(),
        gain=gain,
    )


def _angles(features: Float[Tensor, "D n"], singular: Float[Tensor, "D H"]) -> Float[Tensor, "angle"]:
    """The features' span against as many leading singular vectors, or all if there are fewer."""
    nothing = torch.full((1,), float("nan"), dtype=torch.float64)
    if not bool(features.isfinite().all()):
        return nothing
    span = union([features])
    return nothing if span.shape[1] == len(span) else principal_cosines(span, singular[:, : span.shape[1]])


def _warnings(pairs: Sequence[Pair], S: Tensor, gaps: Tensor, cu: Tensor, matched: Matching) -> tuple[str, ...]:
    close = [
        f"singular values {k} and {k + 1} ({float(S[k]):.4g}, {float(S[k + 1]):.4g}) are within {_CLOSE:.0%}: their "
        "vectors may be swapped or mixed, so trust by_assignment or subspace over by_rank."
        for k, gap in enumerate(gaps.tolist())
        if gap < _CLOSE
    ]
    attended = sorted({feature for i, j, _ in pairs for feature in (i, j)})
    dead = [f"feature {n} is attended but dead: its pair has no alignment." for n in attended if cu[n].isnan().any()]
    return (*close, *dead, *_wrong(pairs, matched))


def _wrong(pairs: Sequence[Pair], matched: Matching) -> list[str]:
    """Pairs that the head treats the other way round: shunned though T is positive, or attended though it is not."""
    return [
        f"pair ({i}, {j}) has T {T:g}, but the head {'shuns' if T > 0 else 'attends to'} it."
        for (i, j, T), sign in zip(pairs, matched.sign.tolist(), strict=True)
        if sign * T < 0
    ]


# Does a second pair of features become orthogonal to the first? Theorem 4, measured in float64.
#
#     J(x_2, y_2) = CE(d_A*, d_A) + CE(d_B*, d_B) + lambda/2 (y_2 . y_1)^2,   |x_2| = |y_2| = 1
#     d_A = x_1^T Omega (y_1 - y_2),  d_B = x_2^T Omega (y_1 - y_2)
#     Omega = s_1 u_1 v_1^T + s_2 u_2 v_2^T,  (x_1, y_1) = (u_1, v_1)
#
#     |y_2 . y_1| <= sqrt(2/lambda (J(x', y') - inf CE))   for every unit pair
#
# The paper prints the bound without the absolute value. It is measured with an orthogonal comparison pair, y' . y_1 =
# 0, for which J is CE. (CE instead of J with any other pair would be no bound.) With the teacher Omega itself (d_A* =
# s_1, d_B* = -s_2) an orthogonal pair is optimal, the bound is zero, and cross-entropy alone, lambda = 0, already
# orthogonalises. A teacher that Omega cannot meet orthogonally (d_A* = .6 s_1) leaves an overlap, and the bound is
# put to work.

S_1, S_2 = 4.0, 2.0
MISMATCH = 0.6  # d_A* / s_1 of the teacher that no orthogonal pair meets
PENALTIES = (0.1, 1.0, 10.0, 100.0)  # lambda
_RESTARTS, _STEPS, _LR = 64, 1_500, 0.1


@dataclass(frozen=True)
class Overlap:
    """The best of many restarts for one teacher, penalty and seed."""

    realisable: bool
    penalty: float
    seed: int
    overlap: float  # |y_2 . y_1| at the minimum
    bound: float  # infinite where the penalty is zero and a comparison pair is not optimal
    excess: float  # cross-entropy at the minimum, above its infimum


def theorem_4(seeds: Sequence[int] = range(3)) -> Check:
    """Does the second key feature leave the first, within the bound? Every case is the best of 64 restarts.

    Args:
        seeds: Seeds of the random instances.

    >>> theorem_4(range(1)).holds  # doctest: +SKIP
    True
    """
    cases = overlaps(seeds)
    exact, mismatched = [o for o in cases if o.realisable], [o for o in cases if not o.realisable]
    bounded = [o for o in mismatched if o.penalty > 0]
    measures = (
        Measure("overlap, realisable teacher", tuple(o.overlap for o in exact), 1e-6),
        Measure("overlap / bound, other teacher", tuple(o.overlap / o.bound for o in bounded), 1.0),
        Measure("cross-entropy above its infimum, no penalty", tuple(o.excess for o in cases if o.penalty == 0), 1e-9),
    )
    return Check("Theorem 4", "the second pair becomes orthogonal to the first", measures, len(cases), len(cases))


def overlaps(seeds: Sequence[int] = range(3)) -> tuple[Overlap, ...]:
    """What overlap remains for both teachers, without and with penalties? One batch of restarts for all of them."""
    if not seeds:
        raise KeyholeError("a theorem is measured over seeds, and none was given: pass at least one.")
    cases = [(real, penalty, seed) for real in (True, False) for penalty in (0.0, *PENALTIES) for seed in seeds]
    gaps = torch.tensor([[S_1 if real else MISMATCH * S_1, -S_2] for real, _, _ in cases], dtype=torch.float64)
    penalties = torch.tensor([penalty for _, penalty, _ in cases], dtype=torch.float64)
    start = torch.stack([_start(seed) for _, _, seed in cases])
    entropy, overlap = _minimise(start, gaps, penalties)
    # Both gaps can be met at once, so the infimum is the teachers' entropy.
    least = _cross_entropy(gaps, gaps)
    # Orthogonal pairs meet every d_B* but only d_A = s_1: the best of them misses by that alone.
    orthogonal = torch.stack([torch.full_like(gaps[:, 0], S_1), gaps[:, 1]], dim=-1)
    gap = (_cross_entropy(gaps, orthogonal) - least).clamp_min(0)
    bound = torch.where(gap > 0, (2 / penalties * gap).sqrt(), 0.0)
    numbers = zip(cases, overlap.tolist(), bound.tolist(), (entropy - least).tolist(), strict=True)
    return tuple(Overlap(*case, *rest) for case, *rest in numbers)


def _minimise(
    start: Float[Tensor, "case restart 2 d"], gaps: Float[Tensor, "case 2"], penalties: Float[Tensor, "case"]
) -> tuple[Float[Tensor, "case"], Float[Tensor, "case"]]:
    """Cross-entropy and |y_2 . y_1| at the best restart of every case, by Adam with a falling step."""
    free = start.clone().requires_grad_()
    optimiser = torch.optim.Adam([free], lr=_LR)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimiser, gamma=1e-7 ** (1 / _STEPS))
    for _ in range(_STEPS):
        entropy, overlap = _parts(free, gaps)
        optimiser.zero_grad()
        # restarts and cases are summed, and Adam acts on every number by itself: none feels another
        (entropy + penalties[:, None] / 2 * overlap**2).sum().backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
    with torch.no_grad():
        entropy, overlap = _parts(free, gaps)
        best = (entropy + penalties[:, None] / 2 * overlap**2).argmin(-1, keepdim=True)
        return entropy.gather(-1, best)[:, 0], overlap.gather(-1, best)[:, 0].abs()


def _parts(free: Tensor, gaps: Tensor) -> tuple[Float[Tensor, "case restart"], Float[Tensor, "case restart"]]:
    """Cross-entropy and y_2 . y_1, in coordinates where u_k and v_k are the first axes."""
    x, y = (free / free.norm(dim=-1, keepdim=True)).unbind(-2)
    met_a = S_1 * (1 - y[..., 0])
    met_b = S_1 * x[..., 0] * (1 - y[..., 0]) - S_2 * x[..., 1] * y[..., 1]
    return _cross_entropy(gaps[:, None], torch.stack([met_a, met_b], dim=-1)), y[..., 0]


def _cross_entropy(wanted: Float[Tensor, "*#case 2"], met: Float[Tensor, "*#case 2"]) -> Float[Tensor, "*#case"]:
    """CE(sigmoid(d*), sigmoid(d)), summed over the two contexts."""
    p = wanted.sigmoid()
    log = torch.nn.functional.logsigmoid
    return -(p * log(met) + (1 - p) * log(-met)).sum(-1)


def _start(seed: int) -> Float[Tensor, "restart 2 d"]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(_RESTARTS, 2, D, generator=g, dtype=torch.float64)


def sides(
    model: SVF, aligned: Alignment, f: Float[Tensor, "n m N"]
) -> tuple[Float[Tensor, "n channel"], Float[Tensor, "n channel"]]:
    """What the query asks and what key 0 offers beyond the others' mean, per channel, each with the root of sigma."""
    tokens = model.tokens(f)
    relative = tokens[:, 0] - tokens[:, 1:].mean(1)
    root = aligned.S.sqrt()
    return tokens[:, -1] @ aligned.U * root, relative @ aligned.V * root


# When do pairs align, and for good?


@dataclass(frozen=True)
class Course:
    """One training: cosines at every snapshot, a row per pair (largest T first)."""

    steps: tuple[int, ...]
    aligned: Float[Tensor, "pair step"]  # the worse |cos| of a pair's two features with the singular pair it takes
    vectors: Float[Tensor, "pair step"]  # the worse |cos| of that singular pair with the one that the pair ends with
    features: Float[Tensor, "pair step"]  # the worse cosine of the two features with what they end as

    @property
    def worst(self) -> Float[Tensor, "step"]:
        """Of all pairs."""
        return self.aligned.amin(0)


def course_of(model: SVF) -> Course:
    """When do pairs align, and what moves first? Singular vectors are followed by the pair they are matched with."""
    final = alignment(model)
    channels = final.by_assignment.channel.clamp_min(0)
    query, key = (torch.tensor([pair[side] for pair in final.pairs]) for side in (0, 1))
    unit = torch.nn.functional.normalize(model.W.double(), dim=0)
    rows = []
    for step, weights in model.snapshots:
        now = alignment(model.at(step))
        moved = (unit * torch.nn.functional.normalize(weights.W.double(), dim=0)).sum(0)
        taken = now.by_assignment.channel.clamp_min(0)
        turned = torch.minimum(_cosines(now.U, taken, final.U, channels), _cosines(now.V, taken, final.V, channels))
        matched = torch.minimum(now.by_assignment.u, now.by_assignment.v).nan_to_num(0.0)
        rows.append((matched, turned, torch.minimum(moved[query], moved[key])))
    aligned, vectors, features = (torch.stack(part, dim=1) for part in zip(*rows, strict=True))
    return Course(tuple(step for step, _ in model.snapshots), aligned, vectors, features)


def _cosines(now: Tensor, taken: Tensor, end: Tensor, channels: Tensor) -> Float[Tensor, "pair"]:
    return (now[:, taken] * end[:, channels]).sum(0).abs()


def settled(holds: Bool[Tensor, "*batch step"]) -> Tensor:
    """From which snapshot on does it always hold? Its index, or the number of snapshots if never.

    >>> import torch
    >>> settled(torch.tensor([[True, False, True, True], [True, True, True, False]])).tolist()
    [2, 4]
    """
    held = holds.flip(-1).int().cumprod(-1).sum(-1)
    return holds.shape[-1] - held
