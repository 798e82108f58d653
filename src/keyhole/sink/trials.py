"""Which subspaces are taken out, beside which others? The directions that control signals share, and as many others.

The control is drawn from the covariance of the streams after the first token, so that it takes what any large part of
them would; what is the first token's alone is asked about, and no control. Beside it, what the same writers put into
other channels of the same heads has in common: where all heads hear one vector, that is this vector again, whichever
the channels, and the effect is the writers'.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import torch

from keyhole.circuits.writer import SideName
from keyhole.models.model import Model
from keyhole.progress import Progress
from keyhole.shared.alike import directions, shuffled
from keyhole.shared.ambient import TAKEN, Ambient
from keyhole.shared.heard import Heard
from keyhole.sink.firings import StoredQuestion, layers_of
from keyhole.sink.record import HALF, Removal
from keyhole.sink.removal import Basis, Passed, energy, explained, passed
from keyhole.stats import Interval, interval
from keyhole.tracing.firings.firing import Tau

WAYS = (TAKEN[0], TAKEN[-1])  # signals as they are, and with most taken out of them


@dataclass(frozen=True)
class Trial:
    """What removals are tried on."""

    model: Model
    asked: Sequence[StoredQuestion]
    ambient: Ambient
    tau: Tau
    ranks: tuple[int, ...]
    controls: int
    seed: int


@dataclass(frozen=True)
class Done:
    """What came of them, and what there was before."""

    of: Mapping[SideName, tuple[Removal, ...]]
    before: float
    answer: float
    layer: int


@dataclass(frozen=True)
class _Set:
    """One subspace with its controls."""

    side: SideName
    taken: int | None
    rank: int
    own: Basis
    random: tuple[Basis, ...]
    shuffled: tuple[Basis, ...]

    @property
    def cuts(self) -> list[tuple[SideName, Basis]]:
        """All of them, its own first."""
        return [(self.side, basis) for basis in (self.own, *self.random, *self.shuffled)]

    def parted(self, values: Sequence[float]) -> tuple[float, tuple[float, ...], tuple[float, ...]]:
        """A number for each cut: its own, and those of both controls."""
        n = len(self.random)
        return values[0], tuple(values[1 : 1 + n]), tuple(values[1 + n :])


def removals(trial: Trial, own: Mapping[SideName, Sequence[Heard]], progress: Progress) -> Done:
    """Every rank head by head; in the model's own pass, the smallest that takes half of the firings, or the largest."""
    layer = min((one.layer for heard in own.values() for one in heard), default=layers_of(trial.model)[0])
    clean = passed(trial.model, trial.asked, [None], layer)[0]
    sets = [one for side, heard in own.items() for one in _sets(trial, side, heard)]
    found: dict[SideName, list[Removal]] = {side: [] for side in own}
    total, done = 2 * len(sets), 0
    for one in sets:
        found[one.side].append(_alone(trial, one))
        progress(done := done + 1, total)
    for side, made in found.items():
        for taken in WAYS:
            here = [i for i, one in enumerate(made) if one.taken == taken]
            enough = [i for i in here if made[i].explained[0] >= HALF] or here[-1:]
            for i in enough[:1]:
                one = next(s for s in sets if (s.side, s.taken, s.rank) == (side, taken, made[i].rank))
                made[i] = _passing(trial, one, made[i], layer)
            progress(done := min(total, done + max(1, len(here))), total)
    return Done({side: tuple(made) for side, made in found.items()}, fmean(clean.sinks), fmean(clean.answers), layer)


def _sets(trial: Trial, side: SideName, heard: Sequence[Heard]) -> list[_Set]:
    """By what was taken out of the signals, and by rank."""
    generator = torch.Generator().manual_seed(trial.seed)
    found = []
    for way in WAYS if heard else ():
        taken = trial.ambient.taken(way)
        right = _right(directions(heard, taken))
        others = [_right(one.double()) for one in shuffled(heard, taken, trial.controls, generator)]
        for rank in [rank for rank in trial.ranks if rank <= right.shape[1]]:
            random = tuple(trial.ambient.draw(rank, generator) for _ in range(trial.controls))
            found.append(_Set(side, way, rank, right[:, :rank], random, tuple(one[:, :rank] for one in others)))
    return found


def _right(vectors: torch.Tensor) -> Basis:
    """All directions that vectors share, those with most of them first."""
    _, S, Vh = torch.linalg.svd(vectors, full_matrices=False)
    basis: torch.Tensor = Vh[1e-6 * S.max() < S].T
    return basis


def _alone(trial: Trial, one: _Set) -> Removal:
    shares = explained(trial.model, trial.asked, one.cuts, trial.tau)
    means = [fmean(values) if values else 0.0 for values in shares]
    _, random, other = one.parted(means)
    size, *others = energy(trial.model, trial.asked, [(one.side, basis) for basis in (one.own, *one.random)])
    own = interval(shares[0]) if shares[0] else Interval(0.0, float("nan"), float("nan"))
    return Removal(one.taken, one.rank, size, fmean(others), own, random, other)


def _passing(trial: Trial, one: _Set, made: Removal, layer: int) -> Removal:
    """The same removal in the model's own passes."""
    found = passed(trial.model, trial.asked, one.cuts, layer)
    _, random_sinks, shuffled_sinks = one.parted([fmean(own.sinks) for own in found])
    _, random_answers, shuffled_answers = one.parted([fmean(own.answers) for own in found])
    own: Passed = found[0]
    return replace(
        made,
        sinks=interval(own.sinks),
        answer=interval(own.answers),
        random_sinks=random_sinks,
        random_answers=random_answers,
        shuffled_sinks=shuffled_sinks,
        shuffled_answers=shuffled_answers,
    )
