"""Which heads use these features, and does attention follow them? A whole study, from contrasts to interventions.

Features come from the `fits`, everything else from separate `test` samples: the heads that attend to the right keys,
the explained logit gap, swaps in every head, and how the answer reacts when some heads are edited.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import torch

from keyhole.brief import Head, brief
from keyhole.errors import KeyholeError
from keyhole.features.contrast.alternatives import NoFeature, find_alternatives, find_spans
from keyhole.features.contrast.attribution import Angles, angles
from keyhole.features.contrast.collect import Collected, CollectSettings, collect
from keyhole.features.contrast.finding import (
    Feature,
    Features,
    FeatureSettings,
    RankRule,
    choose,
    find_features,
)
from keyhole.features.contrast.moves import Effect, can_swap, pair_keys
from keyhole.features.contrast.ranking import (
    ChannelShares,
    HeadAttention,
    HeadScore,
    Rule,
    channel_shares,
    head_attention,
    rank_heads,
    select_heads,
)
from keyhole.features.contrast.sites import Contrast
from keyhole.features.contrast.sums import Balance, Centre, Frame
from keyhole.features.contrast.swaps import AnswerEffects, Bases, answer_effects, key_bases, swap_effects
from keyhole.progress import Stage, quiet

if TYPE_CHECKING:
    from keyhole.models.model import Model

RESERVED = frozenset(("none", "both", "together", "full"))  # conditions of interventions


@dataclass(frozen=True)
class Selection:
    """How heads are chosen; see `select_heads`."""

    by: Rule = "accuracy"
    at_least: float = 0.3
    top: int | None = None


@dataclass(frozen=True)
class StudySettings:
    """Settings of a study: those of `collect`, `find_features`, `swap_effects` and `answer_effects`.

    `rank` is how many dimensions a feature has, by a rule ("energy" where labels span it) or a number. `draws` counts
    the random subspaces beside each feature, `answers` the prompts that are run again with edits (0: none). `seed` is
    that of halves, permutations and controls.
    """

    select: Selection = Selection()  # which heads are studied in detail
    rank: RankRule | int = "null"  # of features: by a rule, or so many dimensions
    frame: Frame = "post_rope"  # coordinates of queries and keys
    centre: Centre = "each"  # means that are removed
    balance: Balance = "pairs"
    negatives: int | None = None
    permutations: int = 200  # of labels, for the null
    span: Literal["pooled", "labels"] = "pooled"  # of the contrast of all samples, or of those of single labels
    draws: int = 10  # random subspaces beside each feature
    answers: int = 32  # prompts that are run again with edits
    seed: int = 0  # of halves, permutations and controls


@dataclass(frozen=True, eq=False)
class Study:
    """The results of a study."""

    __repr__ = brief

    model: str
    settings: StudySettings  # that it was made with
    half: int | None  # of the test samples: 1 if features come from the other half of the same contrast
    features: dict[str, Features] = field(repr=False)  # of each contrast
    fits: dict[str, Collected] = field(repr=False)
    test: Collected = field(repr=False)
    attention: tuple[HeadAttention, ...] = field(repr=False)  # every head
    selected: tuple[Head, ...]  # heads that were studied in detail
    passed: bool  # did the selected heads pass the selection, or are they only the best of those that did not?
    ranking: dict[str, tuple[HeadScore, ...]] = field(repr=False)
    swaps: dict[Head, tuple[Effect, ...]] = field(repr=False)  # every head; none if a query's keys are in other prompts
    answers: AnswerEffects | None = field(repr=False)
    angles: dict[Head, tuple[Angles, ...]] = field(repr=False)  # between the features of the selected heads
    shares: dict[Head, tuple[ChannelShares, ...]] = field(repr=False)  # empty where RoPE hides the channels
    no_feature: tuple[NoFeature, ...] = field(repr=False, default=())  # selected heads of rank 0, and other settings

    def of(self, head: Head) -> list[Feature]:
        """The features of one head, in the order given, at the study's rank.

        Args:
            head: Layer and head.
        """
        return [features.of(head, self.settings.rank) for features in self.features.values()]

    @property
    def tested(self) -> int:
        """The number of samples that tested the features, none of which made one."""
        return len(torch.unique(self.test.slots.sample[choose(self.test, half=self.half)]))


def study(
    model: "Model",
    fits: Mapping[str, Contrast | Collected],
    test: Contrast | Collected | None = None,
    *,
    heads: Sequence[Head] | None = None,
    settings: StudySettings | None = None,
    stage: Stage = quiet,
) -> Study:
    """Find features and test them.

    Contrasts that are already collected are
    not run again, and keep their `frame`, `negatives` and `seed`.

    Args:
        model: The model that is studied.
        fits: Contrasts, by the names of their features.
        test: Samples that make no feature. Default: one half of the only contrast, whose other half makes it.
        heads: The heads that are studied. Default: those that the settings select.
        settings: How. Default: those of `StudySettings`.
        stage: Shows how far each part is.

    >>> import keyhole
    >>> from keyhole.features.contrast import order_contrast
    >>> model = keyhole.load()
    >>> settings = StudySettings(permutations=20, draws=2, answers=0)
    >>> study(model, {"order": order_contrast(model, 60, n_boxes=4)}, settings=settings).tested
    30
    """
    if not fits or (test is None and len(fits) > 1):
        raise KeyholeError("give one contrast, or several and a test: each needs samples it was not made from.")
    if taken := set(fits) & RESERVED:
        raise KeyholeError(f"a feature cannot be called {min(taken)!r}, as a condition of every intervention is.")
    settings = settings or StudySettings()
    rank, seed = settings.rank, settings.seed
    collecting = CollectSettings(frame=settings.frame, negatives=settings.negatives, seed=seed)
    collected = {
        name: _collected(model, contrast, f"Running {name}", stage, collecting) for name, contrast in fits.items()
    }
    half = 1 if test is None else None
    tested = next(iter(collected.values()))
    if test is not None:
        tested = _collected(model, test, "Running the test", stage, collecting)
    for head in heads or ():
        tested.check_head(head)
    fitting = FeatureSettings(
        centre=settings.centre, balance=settings.balance, permutations=settings.permutations, seed=seed
    )
    fit_half = None if half is None else 1 - half
    find = find_spans if settings.span == "labels" else find_features
    features = {
        name: _decomposed(find, fit, name, stage, half=fit_half, settings=fitting) for name, fit in collected.items()
    }
    table = head_attention(tested, half=half)
    chosen, passed = _choose(table, heads, settings.select)
    ranking = {name: rank_heads(f, tested, half=half, rank=rank, seed=seed) for name, f in features.items()}
    bases = {row.head: key_bases([f.of(row.head, rank) for f in features.values()]) for row in table}
    swaps, reaction = _edited(tested, bases, chosen, half=half, settings=settings, stage=stage)
    nonempty = {head: [f for f in (f.of(head, rank) for f in features.values()) if f.rank] for head in chosen}
    readable = model.family.rotary is None or tested.frame == "pre_rope"  # channels are directions before rotation
    result = Study(
        model=model.name,
        settings=settings,
        half=half,
        features=features,
        fits=collected,
        test=tested,
        attention=table,
        selected=chosen,
        passed=passed,
        ranking=ranking,
        swaps=swaps,
        answers=reaction,
        angles={head: angles(features) for head, features in nonempty.items()},
        shares={h: tuple(channel_shares(model, f) for f in features) for h, features in nonempty.items() if readable},
    )
    return replace(result, no_feature=find_alternatives(result, stage))


def _collected(
    model: "Model", contrast: Contrast | Collected, title: str, stage: Stage, settings: CollectSettings
) -> Collected:
    if isinstance(contrast, Collected):
        return contrast
    with stage(title) as progress:
        return collect(model, contrast, settings=settings, progress=progress)


def _decomposed(
    find: Callable[..., Features],
    collected: Collected,
    name: str,
    stage: Stage,
    *,
    half: int | None,
    settings: FeatureSettings,
) -> Features:
    with stage(f"Decomposing {name}") as progress:
        return replace(find(collected, half=half, settings=settings, progress=progress), name=name)


def _edited(
    tested: Collected,
    bases: Mapping[Head, Bases],
    chosen: Sequence[Head],
    *,
    half: int | None,
    settings: StudySettings,
    stage: Stage,
) -> tuple[dict[Head, tuple[Effect, ...]], AnswerEffects | None]:
    """Swaps in every head, and the answer's reaction to those of the chosen heads; none without two keys to swap."""
    reaction, seed = None, settings.seed
    if not can_swap(tested):
        return {}, None
    with stage("Swapping keys in every head"):
        pairing = pair_keys(tested, half=half, seed=seed)
        swaps = swap_effects(tested, bases, pairing=pairing, draws=settings.draws, seed=seed)
    if settings.answers:
        with stage("Running edited prompts") as progress:
            edited = {head: bases[head] for head in chosen}
            reaction = answer_effects(tested, edited, half=half, samples=settings.answers, seed=seed, progress=progress)
    return swaps, reaction


def _choose(
    table: Sequence[HeadAttention], heads: Sequence[Head] | None, select: Selection
) -> tuple[tuple[Head, ...], bool]:
    """The given heads, else those that pass the selection, else the three that attend most to the right keys."""
    if heads:
        return tuple(heads), True
    passed = select_heads(tuple(table), by=select.by, at_least=select.at_least, top=select.top)
    if passed:
        return tuple(row.head for row in passed), True
    best = sorted(table, key=lambda row: -row.positive)
    return tuple(row.head for row in best[:3]), False
