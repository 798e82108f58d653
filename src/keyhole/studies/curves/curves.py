"""Which edges carry an answer? Every method's best edges are kept, the rest is cut, and what is left is measured."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import numpy as np

from keyhole.circuits.exports import MibFile, read_mib
from keyhole.errors import KeyholeError
from keyhole.models.numbers import exact_matmul
from keyhole.progress import Progress, silent
from keyhole.settings.fields import chosen
from keyhole.store.manifest import spread
from keyhole.store.model import model_of
from keyhole.studies.curves.cohort import (
    LEAST,
    CohortQuestion,
    Group,
    StandIn,
    groups_of,
    means_of,
    questions_of,
    usable,
)
from keyhole.studies.curves.cutting import Cutting, Ranked, key_of, ranked
from keyhole.studies.curves.record import Curves, OwnCircuits
from keyhole.studies.curves.scores import circuit_scores, file_scores, traced
from keyhole.studies.curves.settings import CurveOptions, CurveSettings

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.store.store import Store

_FEWEST = 2  # prompts of each half
Prompts = Mapping[int, tuple[str, Sequence[int]]]  # template and token ids
Announce = Callable[[float], None]  # is called with the seconds that the work will take


def curves(
    store: "Store",
    model: "Model | None" = None,
    settings: CurveSettings | None = None,
    *,
    files: "Sequence[MibFile | Path | str]" = (),
    announce: Announce | None = None,
    progress: Progress | None = None,
    **options: Unpack[CurveOptions],
) -> Curves:
    """How much of a store's answers do the best edges of each method carry?

    Methods score edges in some prompts of the store, and edges are cut in as many others.

    Args:
        store: From `keyhole.bulk` or `keyhole.open_store`.
        model: The model that made the store. Default: it is loaded from where it was.
        settings: Which methods are compared, and how: a `keyhole.studies.curves.settings.CurveSettings`, whose fields
            are the choices below.
        files: Circuits of EAP-IG or MIB, or paths of their files, which are ranked by their own scores.
        announce: Called once with an estimate of the seconds, before the long part of the work.
        progress: Called with the number of passes done and their total; an exception from there stops the work.
        **options: Choices by name; with a record they change it:
            - `prompts`: How many prompts methods are shown; edges are cut in as many others.
            - `baseline`: What stands in for a cut edge: "mean", "counterfactual", "resting" or "zero".
            - `tokens`: Whether edges at each token differ ("kept") or not ("dropped").
            - `ranking`: Whether edges are ordered by "signed" or "absolute" scores.
            - `per`: Whether edges have one order for the "task", or one in each "prompt".
            - `methods`: The methods. Default: all that the baseline allows.
            - `draws`: How many draws of random edges.
            - `seed`: Seed of everything that is drawn at random.

    Returns:
        The faithfulness of every method over the share of edges, its areas, and a report.

    >>> import keyhole, tempfile
    >>> model = keyhole.load()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = keyhole.bulk("ioi", model, n=4, out=f"{folder}/ioi.store")
    ...     result = curves(store, model, prompts=2, baseline="resting", methods=("gradients",))
    >>> result["gradients"].answers.shape, result.tried_on  # draws, shares of edges, prompts
    ((1, 10, 2), 2)
    """
    settings = chosen(settings, CurveSettings, options)
    given = [file if isinstance(file, MibFile) else read_mib(file) for file in files]
    patching = settings.baseline == "counterfactual"
    prompts = usable(store)
    shown, tried = _halves(prompts, settings)
    model = model_of(store, model)
    with model._steady():
        stand_in = stand_in_of(model, prompts, (*shown, *tried), settings)
        shown_questions, tried_questions = (
            questions_of(store, model, numbers, counterfactuals=patching) for numbers in (shown, tried)
        )
        result = compare_methods(
            shown_questions,
            tried_questions,
            settings,
            stand_in=stand_in,
            files=given,
            announce=announce,
            progress=progress,
        )
    return replace(result, task=str(store.manifest.task.get("name")))


def compare_methods(
    shown: Sequence[CohortQuestion],
    tried: Sequence[CohortQuestion],
    settings: CurveSettings,
    *,
    stand_in: StandIn | None = None,
    files: "Sequence[MibFile]" = (),
    announce: Announce | None = None,
    progress: Progress | None = None,
) -> Curves:
    """The same for questions at hand; `stand_in` (by default nothing) stands in for what is cut."""
    stand_in = stand_in or StandIn()
    settings = replace(settings, baseline=stand_in.baseline)
    _require_no_tokens(files, settings)
    if settings.per == "prompt":
        shown = tried
    shown_groups, groups = (groups_of(questions, stand_in) for questions in (shown, tried))
    if settings.tokens == "kept" and settings.per == "task":  # on other prompts of the same kind
        both = {group.kind for group in shown_groups} & {group.kind for group in groups}
        shown_groups, groups = ([group for group in some if group.kind in both] for some in (shown_groups, groups))
    if not shown_groups or not groups:
        raise KeyholeError(_nothing_left(settings))
    wiring, dims = groups[0].masked.wiring, groups[0].masked.model.dims
    from_files = {Path(file.name).name: file_scores(file, wiring, dims) for file in files}
    if len(from_files) < len(files):
        raise KeyholeError("two files have the same name, and cannot be distinguished: rename one.")
    shown_count = sum(len(group.numbers) for group in shown_groups)
    cutting = Cutting(groups, settings, progress or silent)
    cutting.plan(files=len(files), shown=shown_count)
    if announce is not None:
        announce(cutting.seconds_left)
    scored = (ranked(method, shown_groups, shown, settings, cutting.scored(method)) for method in settings.compared)
    keys = {key_of(group, i, settings) for group in groups for i in range(len(group.numbers))}
    read = (Ranked(name, dict.fromkeys(keys, scores), scores) for name, scores in from_files.items())
    result = cutting.curves(itertools.chain(scored, read))
    with_own = settings.tokens == "dropped" and settings.per == "task" and "accpp" in settings.compared
    return replace(
        result,
        found_on=shown_count,
        own_circuits=own_circuits(groups, tried, np.random.default_rng(settings.seed)) if with_own else None,
    )


def stand_in_of(model: "Model", prompts: Prompts, numbers: Sequence[int], settings: CurveSettings) -> StandIn:
    """What stands in for edges that are cut in these prompts; means are over all prompts of one template and length."""
    if settings.baseline != "mean":
        return StandIn(settings.baseline)
    needed = {(template, len(ids)) for template, ids in (prompts[i] for i in numbers)}
    return StandIn("mean", means_of(model, (pair for pair in prompts.values() if (pair[0], len(pair[1])) in needed)))


def _require_no_tokens(files: Sequence[MibFile], settings: CurveSettings) -> None:
    if files and settings.tokens == "kept":
        raise KeyholeError(
            f"{files[0].name} has edges between components without tokens, as all files of EAP-IG and MIB: compare it "
            "with tokens dropped."
        )


def _nothing_left(settings: CurveSettings) -> str:
    if settings.tokens == "kept" and settings.per == "task":
        return (
            "no template has prompts both to show and to cut edges in, with roles at the same tokens and a baseline: "
            "take more prompts of one template, or tokens dropped."
        )
    if settings.baseline == "counterfactual":
        return "no prompt has a counterfactual with as many tokens: take the baseline mean or resting."
    if settings.baseline == "mean":
        return (
            f"no template has {LEAST} prompts of one length to take a mean over: take more prompts, or the baseline "
            "counterfactual or resting."
        )
    return "there are no prompts to show and to cut edges in."


def own_circuits(groups: Sequence[Group], tried: Sequence[CohortQuestion], rng: np.random.Generator) -> OwnCircuits:
    """What is left of each answer with the edges of its own circuit alone, and with those of another prompt's."""
    parts = [part for group in groups for part in group.parts(1)]
    circuits = []
    for part in parts:
        wiring, question = part.masked.wiring, tried[part.numbers[0]]
        scores = circuit_scores(traced("accpp", question), wiring, len(question.run))
        circuits.append(scores.sum(-1)[tuple(wiring.edges.T)] > 0)
    cycle = rng.permutation(len(parts))  # each is tried with the next one's, so that none meets its own
    places = np.argsort(cycle)
    left = np.empty((2, len(parts)))
    with exact_matmul():
        for i, part in enumerate(parts):
            other = circuits[cycle[(places[i] + 1) % len(parts)]]
            for row, edges in enumerate((circuits[i], other)):
                left[row, i] = float(part.answers(part.masked.kept(np.flatnonzero(edges)))[0])
    return OwnCircuits(left[0], left[1], float(np.mean([edges.sum() for edges in circuits])))


def with_baseline(prompts: Prompts, settings: CurveSettings) -> list[int]:
    """The prompts of templates and lengths that are frequent enough for a mean, if a mean is the baseline."""
    count = Counter((template, len(ids)) for template, ids in prompts.values())
    least = LEAST if settings.baseline == "mean" else 1
    return [i for i, (template, ids) in prompts.items() if count[template, len(ids)] >= least]


def _halves(prompts: Prompts, settings: CurveSettings) -> tuple[list[int], list[int]]:
    """Prompts in which edges are scored, and prompts in which they are cut, from all parts of the store."""
    fit = with_baseline(prompts, settings)
    if settings.tokens == "kept" and settings.per == "task":  # few templates, so that both halves have each
        kinds: dict[tuple[str, int], list[int]] = defaultdict(list)
        for i in fit:
            kinds[prompts[i][0], len(prompts[i][1])].append(i)
        pairs = (alike[: len(alike) // 2 * 2] for alike in sorted(kinds.values(), key=len, reverse=True))
        both = list(itertools.chain.from_iterable(pairs))[: 2 * settings.prompts]
    else:
        both = spread(fit, 2 * settings.prompts)
    if len(both) < 2 * _FEWEST:
        raise KeyholeError(
            f"only {len(fit)} prompts of this store have a circuit, a right answer that the model prefers, and, for "
            f"means, {LEAST} of their template and length: {2 * _FEWEST} are needed. Trace more, or take the baseline "
            "counterfactual or resting."
        )
    return both[::2], both[1::2]
