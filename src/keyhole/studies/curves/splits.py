"""Does a circuit for each family keep more of held-out answers than one circuit for all? And than a random split?

Edges are scored once in every shown prompt. Under a split, each group's scores are the mean over its own shown prompts,
and its best edges are kept in the group's held-out prompts; "one circuit" is the mean over all shown prompts. The
circuit of a group is a mean over fewer prompts, which changes its fit by itself. So every split is compared with random
splits of the same sizes. All curves are over the same held-out prompts.

Families come from the circuits of all prompts, also of held-out ones. So the family of a held-out prompt is known, as
its template is, but its edges are not used.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

import numpy as np

from keyhole.errors import KeyholeError
from keyhole.progress import Progress, silent
from keyhole.settings.fields import chosen
from keyhole.store.manifest import spread
from keyhole.store.model import model_of
from keyhole.studies.curves.cohort import CohortQuestion, StandIn, groups_of, questions_of, usable
from keyhole.studies.curves.curves import Announce, stand_in_of, with_baseline
from keyhole.studies.curves.cutting import Cutting, Ranked, Scores, ranked
from keyhole.studies.curves.record import Curve
from keyhole.studies.curves.settings import CurveOptions, CurveSettings, EdgeMethod
from keyhole.studies.curves.split_record import ALL, Split, Splits, random_name
from keyhole.studies.families.agreement import labels_of
from keyhole.studies.families.families import families

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.store.store import Store

LEAST = 2  # prompts of a group, shown and held out each
FAMILIES = "families"
Labels = Sequence[Hashable]  # of each prompt: which group it is of


def splits(
    store: "Store",
    by: Sequence[str] = (FAMILIES,),
    model: "Model | None" = None,
    settings: CurveSettings | None = None,
    *,
    announce: Announce | None = None,
    progress: Progress | None = None,
    **options: Unpack[CurveOptions],
) -> Splits:
    """Does a circuit for each group of a store's prompts keep more of held-out answers than one for all of them?

    Args:
        store: From `keyhole.bulk` or `keyhole.open_store`.
        by: How prompts are split: "families" (as `keyhole.families` finds them, or the two best families, where no cut
            is significant), "template", or a label of the prompts.
        model: The model that made the store. Default: it is loaded from where it was.
        settings: How edges are scored and cut: a `keyhole.studies.curves.settings.CurveSettings`, whose fields are the
            choices below.
        announce: Called once with an estimate of the seconds, before the long part of the work.
        progress: Called with the number of passes done and their total; an exception from there stops the work.
        **options: Choices by name; with a record they change it:
            - `prompts`: How many prompts edges are scored in; they are cut in as many others.
            - `baseline`: What stands in for a cut edge: "mean", "counterfactual", "resting" or "zero".
            - `tokens`: Must be "dropped", the default.
            - `ranking`: Whether edges are ordered by "signed" or "absolute" scores.
            - `per`: Must be "task", the default.
            - `methods`: The one method that scores edges. Default: share.
            - `draws`: How many random splits each split is compared with.
            - `seed`: Seed of everything that is drawn at random.

    Returns:
        The faithfulness of one circuit, of every split, and of random splits of the same sizes.

    >>> import keyhole, tempfile
    >>> model = keyhole.load()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = keyhole.bulk("ioi", model, n=8, out=f"{folder}/ioi.store")
    ...     result = splits(store, ["order"], model, prompts=4, baseline="resting", methods=("gradients",), draws=1)
    >>> [curve.method for curve in result.curves.curves]
    ['one circuit', 'order', 'random, as order']
    """
    settings = chosen(settings, CurveSettings, options)
    _method(settings)
    prompts = usable(store)
    numbers = np.array(sorted(with_baseline(prompts, settings)), np.int64)
    given, notes = _groups(store, numbers, by, settings.seed)
    shown, tried = _halves(numbers.tolist(), given, settings)
    model = model_of(store, model)
    with model._steady():
        stand_in = stand_in_of(model, prompts, (*shown, *tried), settings)
        patching = settings.baseline == "counterfactual"
        shown_questions, tried_questions = (
            questions_of(store, model, numbers_of, counterfactuals=patching) for numbers_of in (shown, tried)
        )
        of_half = [{name: [group_of[i] for i in half] for name, group_of in given.items()} for half in (shown, tried)]
        result = compare_splits(
            (shown_questions, tried_questions),
            (of_half[0], of_half[1]),
            settings,
            stand_in=stand_in,
            announce=announce,
            progress=progress,
        )
    named = tuple(replace(split, note=notes.get(split.name, "")) for split in result.splits)
    return replace(result, splits=named, curves=replace(result.curves, task=str(store.manifest.task.get("name"))))


def compare_splits(
    questions: tuple[Sequence[CohortQuestion], Sequence[CohortQuestion]],
    labels: tuple[Mapping[str, Labels], Mapping[str, Labels]],
    settings: CurveSettings,
    *,
    stand_in: StandIn | None = None,
    announce: Announce | None = None,
    progress: Progress | None = None,
) -> Splits:
    """The same for questions at hand, shown and held out, and the groups that each is of under every split."""
    stand_in = stand_in or StandIn()
    method = _method(settings)
    kept = [[i for i, question in enumerate(some) if question in stand_in] for some in questions]
    shown, tried = ([some[i] for i in indices] for some, indices in zip(questions, kept, strict=True))
    groups = [
        {name: [of_prompts[i] for i in half] for name, of_prompts in some.items()}
        for some, half in zip(labels, kept, strict=True)
    ]
    sizes = {name: _sizes(name, groups[0][name], groups[1][name]) for name in groups[0]}
    # Each prompt has an order of edges of its own here: that of its group.
    each = replace(settings, methods=(method,), baseline=stand_in.baseline, per="prompt")
    cutting = Cutting(groups_of(tried, stand_in), each, progress or silent)
    cutting.plan(files=len(sizes) * (1 + settings.draws), shown=len(shown))
    if announce is not None:
        announce(cutting.seconds_left)
    scores = ranked(method, groups_of(shown, stand_in), shown, each, cutting.scored(method)).scores
    plan = [_ranked(ALL, scores, [0] * len(shown), [0] * len(tried))]
    rng = np.random.default_rng(settings.seed)
    for name in sizes:
        shown_labels, tried_labels = list(groups[0][name]), list(groups[1][name])
        plan.append(_ranked(name, scores, shown_labels, tried_labels))
        for _ in range(settings.draws):  # of the same sizes, in both halves
            drawn = ([some[i] for i in rng.permutation(len(some))] for some in (shown_labels, tried_labels))
            plan.append(_ranked(random_name(name), scores, *drawn))
    result = cutting.curves(plan)
    merged = tuple(_merged([curve for curve in result.curves if curve.method == name]) for name in _names(plan))
    return Splits(
        method=method,
        curves=replace(result, curves=merged, settings=replace(each, per="task"), found_on=len(shown)),
        splits=tuple(Split(name, counts) for name, counts in sizes.items()),
    )


def _ranked(name: str, scores: Mapping[Hashable, Scores], shown_labels: Labels, tried_labels: Labels) -> Ranked:
    """For each held-out prompt, the mean scores of shown prompts of its group."""
    members: dict[Hashable, list[Scores]] = {}
    for i, label in enumerate(shown_labels):
        members.setdefault(label, []).append(scores[i])
    means = {label: np.mean(shown, axis=0) for label, shown in members.items()}
    return Ranked(name, {i: means[label] for i, label in enumerate(tried_labels)})


def _merged(draws: Sequence[Curve]) -> Curve:
    """Draws of random splits as one curve."""
    at = [curve.at for curve in draws if curve.at is not None]
    return replace(draws[0], answers=np.concatenate([curve.answers for curve in draws]), at=np.concatenate(at))


def _names(plan: Sequence[Ranked]) -> list[str]:
    return list(dict.fromkeys(method.method for method in plan))


def _sizes(name: str, shown_labels: Labels, tried_labels: Labels) -> tuple[tuple[str, int, int], ...]:
    """Each group, largest first, and its prompts, shown and held out."""
    shown, tried = Counter(shown_labels), Counter(tried_labels)
    if set(shown) != set(tried) or len(shown) < 2:
        raise KeyholeError(
            f"{name} splits the shown prompts in {len(shown)} groups and the held-out ones in {len(tried)}: both need "
            "the same groups, and at least two. Take more prompts, or another split."
        )
    return tuple((str(label), n, tried[label]) for label, n in shown.most_common())


def _method(settings: CurveSettings) -> EdgeMethod:
    """The one method that scores edges."""
    methods = settings.methods or ("share",)
    if len(methods) > 1 or methods[0] == "random":
        raise KeyholeError(
            f"splits are compared by the edges of one method that scores them, not of {', '.join(methods)}: take one, "
            "such as share."
        )
    if settings.tokens == "kept" or settings.per == "prompt":
        raise KeyholeError(
            "circuits of groups are for all of their prompts, which have different tokens: compare splits with tokens "
            "dropped, per task."
        )
    return methods[0]


def _groups(
    store: "Store", numbers: np.ndarray, by: Sequence[str], seed: int
) -> tuple[dict[str, dict[int, Hashable]], dict[str, str]]:
    """The group of each prompt under every split; and a note on a split, where it needs one."""
    known = labels_of(store, numbers)
    groups: dict[str, dict[int, Hashable]] = {}
    notes = {}
    for name in dict.fromkeys(by):
        if name == FAMILIES:
            result = families(store, seed=seed)
            if result.labels.max() < 2:
                result = families(store, k=2, seed=seed)
                notes[name] = "no cut is significant: these are the two best families"
            pairs = zip(result.prompts.tolist(), result.labels.tolist(), strict=True)
            groups[name] = {prompt: label for prompt, label in pairs if label > 0}
        elif name in known:
            groups[name] = {
                i: label for i, label in zip(numbers.tolist(), known[name], strict=True) if label is not None
            }
        else:
            raise KeyholeError(
                f"prompts cannot be split by {name!r}: this store has families, {', '.join(known) or 'no labels'}."
            )
    return groups, notes


def _halves(
    numbers: Sequence[int], groups: Mapping[str, Mapping[int, Hashable]], settings: CurveSettings
) -> tuple[list[int], list[int]]:
    """Prompts to show and prompts to hold out, by turns in each combination of groups; rare groups are left out.

    Which of a combination are shown is drawn by the seed: rankings of another half may differ more than intervals say.
    """
    drawn = np.random.default_rng((settings.seed, 1)).permutation(np.array(numbers)).tolist()
    fit = [i for i in drawn if all(i in group_of for group_of in groups.values())]
    fit.sort(key=lambda i: tuple(str(group_of[i]) for group_of in groups.values()))
    both = spread(fit, 2 * settings.prompts)
    while True:
        shown, tried = both[::2], both[1::2]
        rare = {
            i
            for group_of in groups.values()
            for i in both
            if min(sum(group_of[j] == group_of[i] for j in half) for half in (shown, tried)) < LEAST
        }
        if not rare:
            break
        both = [i for i in both if i not in rare]
    if not both:
        raise KeyholeError(
            f"no group of {', '.join(groups)} has {LEAST} prompts to show and {LEAST} to hold out: take more prompts, "
            "or a split in fewer groups."
        )
    return shown, tried
