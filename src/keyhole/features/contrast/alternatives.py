"""Why does a head have no feature, and what do other settings give? Computed where a study's rank is zero.

The verdict of the study's settings stays. The other centring and the rank rules are listed with it, each with its rank,
its share of the held-out gap, and the attention that a swap moves compared with three controls:

    whole     the two keys change places entirely: the ceiling
    random    uniformly random subspaces of the same rank
    permuted  as many leading directions of contrasts whose labels were permuted within each query

Random subspaces are not enough: a contrast of meaningless labels still points where queries and keys vary most, so its
swap moves attention too. The permuted control has the same advantage.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from jaxtyping import Float
from torch import Tensor

from keyhole.brief import Head, brief
from keyhole.features.contrast.finding import Features, RankRule, choose, find_features
from keyhole.features.contrast.moves import Effect, pair_keys
from keyhole.features.contrast.ranking import rank_heads
from keyhole.features.contrast.subspace import coefficients, contrasts, decompose, permuted_signs
from keyhole.features.contrast.sums import Centre, query_variance
from keyhole.features.contrast.swaps import mean_shifts, swap_effects
from keyhole.models.numbers import exact_matmul
from keyhole.progress import Progress, Stage

if TYPE_CHECKING:
    from keyhole.features.contrast.studies import Study

Control = Literal["rank", "gap", "swap", "whole", "random", "permuted"]
LEVEL = 0.05  # of p-values
MOST_HEADS = 8  # whose alternatives are swapped: each needs the singular vectors of all its permuted contrasts
_RULES: tuple[RankRule, ...] = ("null", "energy")
_DRAWS = 99  # contrasts with permuted labels, whose directions are swapped


@dataclass(frozen=True)
class Alternative:
    """What other settings give in a head."""

    __repr__ = brief

    centre: Centre
    rule: RankRule
    rank: int
    share: float  # of the held-out gap that passes through the feature
    p: float  # of the explained gap, corrected over all heads and over the settings tried
    swap: Effect | None = None  # compared with random subspaces and whole keys; None: rank 0, or not swapped
    permuted: float = float("nan")  # attention moved by as many directions of contrasts with permuted labels, mean
    p_permuted: float = float("nan")  # how often these move as much, in this head and setting alone

    @property
    def fails(self) -> Control | None:
        """The first control that it does not exceed ("swap": none was made); None: it exceeds them all.

        Labels are tested by the gap, which has a sign: held-out labels are permuted. A swap has none, so that where
        keys differ along few directions, permuted labels find the same subspace: `permuted` comes last.
        """
        if self.rank == 0:
            return "rank"
        if self.p > LEVEL:
            return "gap"
        if self.swap is None:
            return "swap"
        if self.swap.still:
            return "whole"
        if not self.swap.interval[0] > 0:  # NaN where whole keys do not exceed random subspaces
            return "random"
        return "permuted" if self.p_permuted > LEVEL else None


@dataclass(frozen=True)
class NoFeature:
    """A selected head in which a contrast has no feature at the study's settings: why, and what others give."""

    __repr__ = brief

    head: Head
    feature: str
    gap: float  # held-out logits of positive keys minus those of negative ones
    samples: int  # that made the contrast
    permutations: int
    largest: float  # singular value of the contrast; 0: it is rounding
    threshold: float  # that 5 % of permuted contrasts exceed; NaN without permutations
    p: float  # how often permuted contrasts are as large, in this head
    undecided: bool  # could more permutations give a null rank above zero?
    mean_shift: float  # share of the uncentred contrast that is a difference of mean keys
    query_variance: float  # share of the squared length of queries that varies over samples
    alternatives: tuple[Alternative, ...]


def find_alternatives(study: "Study", stage: Stage) -> tuple[NoFeature, ...]:
    """Every selected head with a feature of rank zero, and what other settings give there. No prompt is run again."""
    if isinstance(study.settings.rank, int):  # a given rank is no verdict
        return ()
    cases: list[NoFeature] = []
    for name, features in study.features.items():
        empty = [head for head in study.selected if features.rank(head, study.settings.rank) == 0]
        if empty:
            with stage(f"Trying other settings for {name}") as progress:
                cases += _tried(study, name, empty, progress)
    return tuple(cases)


def _tried(study: "Study", name: str, heads: Sequence[Head], progress: Progress) -> list[NoFeature]:
    settings = study.settings
    by_centre = _by_centre(study, name, progress)
    tried: list[tuple[Centre, RankRule]] = [
        (centre, rule)
        for centre, features in by_centre.items()
        for rule in _RULES
        if (centre, rule) != (settings.centre, settings.rank) and (rule == "energy" or features.null is not None)
    ]
    rows: dict[Head, list[Alternative]] = {head: [] for head in heads}
    for centre, rule in tried:
        for score in rank_heads(by_centre[centre], study.test, half=study.half, rank=rule, seed=settings.seed):
            if score.head in rows:
                p = min(1.0, score.p_corrected * len(tried))
                rows[score.head].append(Alternative(centre, rule, score.rank, score.share, p))
    for head in heads[:MOST_HEADS] if study.swaps else ():
        rows[head] = _swapped(study, name, by_centre, head, rows[head])
    return [_no_feature(study, name, head, by_centre["none"], tuple(rows[head])) for head in heads]


def _by_centre(study: "Study", name: str, progress: Progress) -> dict[Centre, Features]:
    """The features with centring and without: the study's, and the others from the same sums."""
    settings = study.settings
    other: Centre = "each" if settings.centre == "none" else "none"  # pooled is each, see `contrast_matrix`
    features = find_features(
        study.fits[name],
        half=_fitted(study),
        centre=other,
        balance=settings.balance,
        permutations=settings.permutations,
        seed=settings.seed,
        progress=progress,
    )
    return {settings.centre: study.features[name], other: features}


def _fitted(study: "Study") -> int | None:
    """The half of the samples that made the features."""
    return None if study.half is None else 1 - study.half


def _swapped(
    study: "Study", name: str, by_centre: Mapping[Centre, Features], head: Head, rows: Sequence[Alternative]
) -> list[Alternative]:
    """The alternatives with their swaps, which follow from the logits of the one pass."""
    settings, test = study.settings, study.test
    pairing = pair_keys(test, half=study.half, seed=settings.seed)
    bases = {f"{row.centre} {row.rule}": by_centre[row.centre].of(head, row.rule).V for row in rows if row.rank}
    if not bases:
        return list(rows)
    effects = swap_effects(test, {head: bases}, pairing=pairing, draws=settings.draws, seed=settings.seed)[head]
    by_setting = {effect.name: effect for effect in effects}
    chance: dict[Centre, Tensor] = {}
    swapped = []
    for row in rows:
        if row.rank:
            effect = by_setting[f"{row.centre} {row.rule}"]
            if row.centre not in chance:
                chance[row.centre] = _permuted_bases(study, name, head, row.centre)
            shifts = mean_shifts(test, head, chance[row.centre][..., : row.rank], pairing)
            p = float(1 + (shifts >= effect.shift).sum()) / (1 + len(shifts))
            row = replace(row, swap=replace(effect, name=name), permuted=float(shifts.mean()), p_permuted=p)
        swapped.append(row)
    return swapped


def _permuted_bases(study: "Study", name: str, head: Head, centre: Centre) -> Float[Tensor, "draws d_head rank"]:
    """Key directions of contrasts with permuted labels, largest first."""
    fit, settings = study.fits[name], study.settings
    chosen = choose(fit, half=_fitted(study))
    slots, kept = fit.slots.of(chosen), fit.layer(head[0]).of(chosen)
    signs = permuted_signs(slots, _DRAWS, settings.seed)
    with exact_matmul():
        q, k = kept.queries[:, [head[1]]], kept.keys[:, :, [head[1] // kept.group]]
        drawn = contrasts(q, k, coefficients(signs, slots.weight, settings.balance), centre)
        return decompose(drawn[:, 0])[2]


def _no_feature(
    study: "Study", name: str, head: Head, uncentred: Features, alternatives: tuple[Alternative, ...]
) -> NoFeature:
    features, half, fit = study.features[name], _fitted(study), study.fits[name]
    at = features.at(head)
    sums = fit.sums[head[0]] if half is None else fit.sums[head[0]].of_half(half)
    unknown = float("nan")
    return NoFeature(
        head=head,
        feature=name,
        gap=next(score.gap for score in study.ranking[name] if score.head == head),
        samples=features.samples,
        permutations=0 if features.null is None else study.settings.permutations,
        largest=float(features.S[at][0]),
        threshold=unknown if features.threshold is None else float(features.threshold[at]),
        p=unknown if features.p is None else float(features.p[at]),
        undecided=features.null_range is not None and int(features.null_range[at][1]) > 0,
        mean_shift=float(uncentred.mean_shift[at]),
        query_variance=float(query_variance(sums)[head[1]]),
        alternatives=alternatives,
    )
