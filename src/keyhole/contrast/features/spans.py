"""Which subspace do the contrasts of single labels span together? The paper's features of filter heads.

Within one category the query hardly varies, so that its contrast has one direction in queries and one in keys; the
feature is the span of all of them, which has a dimension more than the contrast of all categories together. Columns of
both sides are orthonormalised in the same order, so that the k-th of one still belongs to the k-th of the other.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.contrast.features.finding import FEWEST, Features, find_features
from keyhole.contrast.onepass.collect import Collected
from keyhole.errors import KeyholeError

_DEPENDENT = 1e-6  # of a unit column, what is left of it outside the columns before: less belongs to these
_Column = tuple[Tensor, Tensor, float]  # directions in queries and in keys, and their singular value


def find_spans(collected: Collected, **how: Any) -> Features:
    """The span of every label's contrast, in every head; `how` is that of `find_features`, with the energy rank alone.

    Its share of a difference of means is that of the contrast of all labels together: a single label's is one by
    nature. Labels with too few samples for a rank are left out.
    """
    whole = find_features(collected, **how)
    labels = sorted({name for name in collected.resolved.labels if name})
    least = max(FEWEST, whole.U.shape[-2])
    enough = [name for name in labels if collected.resolved.labels.count(name) >= least]
    if not enough:
        raise KeyholeError(
            f"no label of {collected.name!r} has the {least} samples that its own contrast needs: give more prompts."
        )
    single = [find_features(collected, label=name, **{**how, "permutations": 0}) for name in enough]
    U, S, V = (torch.zeros_like(part) for part in (whole.U, whole.S, whole.V))
    energy = torch.zeros_like(whole.energy)
    for layer, head in torch.cartesian_prod(*(torch.arange(n) for n in whole.energy.shape)).tolist():
        columns = [column for one in single for column in _columns(one, layer, head)]
        if not columns:
            continue
        u, v, s = paired_span(columns)
        rank = len(s)
        U[layer, head, :, :rank], V[layer, head, :, :rank], S[layer, head, :rank] = u, v, s
        energy[layer, head] = rank
    return replace(whole, U=U, S=S, V=V, energy=energy, null=None, null_range=None, halves=None, threshold=None)


def _columns(features: Features, layer: int, head: int) -> Iterable[_Column]:
    """The directions that hold 99 % of a contrast, strongest first."""
    for i in range(int(features.energy[layer, head])):
        yield features.U[layer, head, :, i], features.V[layer, head, :, i], float(features.S[layer, head, i])


def paired_span(
    columns: Sequence[_Column],
) -> tuple[Float[Tensor, "d_query rank"], Float[Tensor, "d_key rank"], Float[Tensor, "rank"]]:
    """Orthonormal bases of both sides by Gram-Schmidt, in the order given; a pair must be new to both of them.

    >>> x, y = torch.eye(2, dtype=torch.float64)
    >>> U, V, S = paired_span([(x, y, 3.0), ((x + y) / 2**0.5, x, 2.0), (x, x, 1.0)])
    >>> U.tolist(), V.tolist(), S.tolist()
    ([[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]], [3.0, 2.0])
    """
    d_query, d_key = len(columns[0][0]), len(columns[0][1])
    U, V = columns[0][0].new_zeros(d_query, 0), columns[0][1].new_zeros(d_key, 0)
    kept: list[float] = []
    for u, v, s in columns:
        new = [_outside(u, U), _outside(v, V)]
        if min(float(one.norm()) for one in new) > _DEPENDENT:
            U, V = (torch.cat([basis, (one / one.norm())[:, None]], 1) for basis, one in zip((U, V), new, strict=True))
            kept.append(s)
    return U, V, torch.tensor(kept, dtype=U.dtype)


def _outside(x: Float[Tensor, "d"], basis: Float[Tensor, "d rank"]) -> Float[Tensor, "d"]:
    for _ in range(2):  # once more, for what rounding has left
        x = x - basis @ (basis.T @ x)
    return x
