"""Does a second pair of features become orthogonal to the first? Theorem 4, measured in float64.

    J(x_2, y_2) = CE(d_A*, d_A) + CE(d_B*, d_B) + lambda/2 (y_2 . y_1)^2,   |x_2| = |y_2| = 1
    d_A = x_1^T Omega (y_1 - y_2),  d_B = x_2^T Omega (y_1 - y_2)
    Omega = s_1 u_1 v_1^T + s_2 u_2 v_2^T,  (x_1, y_1) = (u_1, v_1)

    |y_2 . y_1| <= sqrt(2/lambda (J(x', y') - inf CE))   for every unit pair

The paper prints the bound without the absolute value. It is measured with an orthogonal comparison pair, y' . y_1 = 0,
for which J is CE. (CE instead of J with any other pair would be no bound.)
With the teacher Omega itself (d_A* = s_1, d_B* = -s_2) an orthogonal pair is optimal, the bound is zero, and
cross-entropy alone, lambda = 0, already orthogonalises. A teacher that Omega cannot meet orthogonally
(d_A* = .6 s_1) leaves an overlap, and the bound is put to work.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.errors import KeyholeError
from keyhole.lab.svf.theorems import Check, D, Measure

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
    """Does the second key feature leave the first, within the bound? Every case is the best of 64 restarts."""
    found = overlaps(seeds)
    exact, mismatched = [o for o in found if o.realisable], [o for o in found if not o.realisable]
    bounded = [o for o in mismatched if o.penalty > 0]
    measures = (
        Measure("overlap, realisable teacher", tuple(o.overlap for o in exact), 1e-6),
        Measure("overlap / bound, other teacher", tuple(o.overlap / o.bound for o in bounded), 1.0),
        Measure("cross-entropy above its infimum, no penalty", tuple(o.excess for o in found if o.penalty == 0), 1e-9),
    )
    return Check("Theorem 4", "the second pair becomes orthogonal to the first", measures, len(found), len(found))


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
