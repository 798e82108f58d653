"""Which edges carry an answer? Every method's best edges are kept, the rest is cut, and what is left is measured."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import numpy as np
from jaxtyping import Float

from keyhole.brief import model_label
from keyhole.circuits.mib import MibFile, read_mib
from keyhole.errors import KeyholeError, require_choice
from keyhole.faithful.cohort import (
    LEAST,
    Baseline,
    Group,
    Means,
    Question,
    groups_of,
    means_of,
    questions_of,
    usable,
)
from keyhole.faithful.edge_scores import EdgeMethod, circuit_scores, file_scores, ranking, scores, traced
from keyhole.faithful.faithfulness import SHARES, Curve, Curves, OwnCircuits, require_gap
from keyhole.models.numbers.precision import exact_matmul
from keyhole.progress import Progress, silent
from keyhole.store.chosen import spread
from keyhole.store.model import model_of

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.store.store import Store

METHODS: tuple[EdgeMethod, ...] = get_args(EdgeMethod)
_FEWEST = 2  # prompts of each half


def curves(
    store: "Store",
    model: "Model | None" = None,
    *,
    methods: Sequence[EdgeMethod] | None = None,
    files: "Sequence[MibFile | Path | str]" = (),
    prompts: int = 32,
    baseline: Baseline = "mean",
    draws: int = 3,
    seed: int = 0,
    progress: Progress | None = None,
) -> Curves:
    """How much of a store's answers do the best edges of each method carry?

    All methods, unless some are named. They are shown so many `prompts` of the store, and edges are cut in as many
    others. `files` are circuits of EAP-IG or MIB, which are scored beside them as they are: best edges by their signed
    scores. `draws` of random edges; `seed` is that of random orders. `progress` is told masks done.
    """
    given = [file if isinstance(file, MibFile) else read_mib(file) for file in files]
    require_choice("baseline", baseline, Baseline)
    prompts_there = usable(store)
    shown, tried = _halves(prompts_there, prompts, baseline)
    model = model_of(store, model)
    with model.steady():
        asked = {len(prompts_there[i]) for i in (*shown, *tried)}
        alike = (ids for ids in prompts_there.values() if len(ids) in asked)
        means = None if baseline == "zero" else means_of(model, alike)
        found, cut = (questions_of(store, model, numbers) for numbers in (shown, tried))
        name = str(store.manifest.task.get("name"))
        return compare_methods(
            found,
            cut,
            methods or METHODS,
            files=given,
            means=means,
            task=name,
            draws=draws,
            seed=seed,
            progress=progress,
        )


def compare_methods(
    shown: Sequence[Question],
    tried: Sequence[Question],
    methods: Sequence[EdgeMethod],
    *,
    files: "Sequence[MibFile]" = (),
    means: Means | None = None,
    task: str = "",
    draws: int = 3,
    seed: int = 0,
    progress: Progress | None = None,
) -> Curves:
    """The same for questions at hand; what is cut is replaced by `means`, or by nothing."""
    _check(methods, draws)
    seen, groups = (groups_of(questions, means) for questions in (shown, tried))
    shown = [shown[i] for group in seen for i in sorted(group.numbers)]
    if not seen or not groups:
        raise KeyholeError(
            f"no length has {LEAST} prompts to take a mean over: take the baseline zero, or more prompts."
        )
    wiring, rng = groups[0].masked.wiring, np.random.default_rng(seed)
    ranked: dict[str, Float[np.ndarray, "edge"] | None] = {
        _named(file): file_scores(file, wiring, groups[0].masked.model.dims) for file in files
    }
    if len(ranked) < len(files):
        raise KeyholeError("two files have the same name, and could not be told apart: rename one.")
    ranked = {method: scores(method, wiring, shown, seen) for method in dict.fromkeys(methods)} | ranked
    orders = {
        method: [ranking(found, len(wiring), rng) for _ in range(draws if found is None else 1)]
        for method, found in ranked.items()
    }
    answers = _Answers(groups, orders, progress or silent)
    every = np.arange(len(wiring))
    whole, none = answers(every), answers(every[:0])
    require_gap(whole, none)
    made = [_curve(method, found, orders[method], answers, whole) for method, found in ranked.items()]
    return Curves(
        model=model_label(groups[0].masked.model.name),
        task=task,
        baseline="zero" if means is None else "mean",
        edges=len(wiring),
        shares=SHARES,
        found_on=len(shown),
        tried_on=len(whole),
        everything=whole,
        nothing=none,
        error=max(group.masked.error for group in groups),
        curves=tuple(made),
        own=own_circuits(groups, tried, rng) if "accpp" in ranked else None,
    )


def _named(file: MibFile) -> str:
    return Path(file.name).name


def _check(methods: Sequence[EdgeMethod], draws: int) -> None:
    for method in methods:
        require_choice("method", method, EdgeMethod)
    if not methods or draws < 1:
        raise KeyholeError("give at least one method, and one draw of random edges.")


def _curve(
    method: str,
    found: Float[np.ndarray, "edge"] | None,
    orders: Sequence[np.ndarray],
    answers: "_Answers",
    whole: Float[np.ndarray, "prompt"],
) -> Curve:
    """What is left with each share of a method's edges, and with all that it found."""
    left = [[answers(order[: kept(share, len(order))]) for share in SHARES[:-1]] + [whole] for order in orders]
    if found is None:
        return Curve(method, None, np.array(left), None)
    n = int((found > 0).sum())
    return Curve(method, n, np.array(left), answers(orders[0][:n]))


def own_circuits(groups: Sequence[Group], tried: Sequence[Question], rng: np.random.Generator) -> OwnCircuits:
    """What is left of each answer with the edges of its own circuit alone, and with those of another prompt's."""
    parts = [part for group in groups for part in group.parts(1)]
    found = [circuit_scores([traced("accpp", tried[part.numbers[0]])], part.masked.wiring) > 0 for part in parts]
    cycle = rng.permutation(len(parts))  # each is tried with the next one's, so that none meets its own
    places = np.argsort(cycle)
    left = np.empty((2, len(parts)))
    with exact_matmul():
        for i, part in enumerate(parts):
            other = found[cycle[(places[i] + 1) % len(parts)]]
            for row, edges in enumerate((found[i], other)):
                left[row, i] = float(part.answers(part.masked.kept(np.flatnonzero(edges)))[0])
    return OwnCircuits(left[0], left[1], float(np.mean([edges.sum() for edges in found])))


def kept(share: float, edges: int) -> int:
    """How many edges are a share of them? At least one."""
    return max(1, round(share * edges))


class _Answers:
    """What is left of all answers with some edges; how often that was asked is told."""

    def __init__(self, groups: Sequence[Group], orders: Mapping[str, Sequence[np.ndarray]], progress: Progress) -> None:
        self._groups, self._progress, self._done = groups, progress, 0
        alone = sum(method != "random" for method in orders)
        self._total = 2 + alone + (len(SHARES) - 1) * sum(len(own) for own in orders.values())

    def __call__(self, edges: np.ndarray) -> Float[np.ndarray, "prompt"]:
        with exact_matmul():
            found = [group.answers(group.masked.kept(edges)).cpu().numpy() for group in self._groups]
        self._done += 1
        self._progress(self._done, self._total)
        return np.concatenate(found)


def _halves(there: Mapping[int, Sequence[int]], prompts: int, baseline: Baseline) -> tuple[list[int], list[int]]:
    """Prompts to show and prompts to try, from all over the store; lengths too rare for a mean are left out."""
    count = Counter(len(ids) for ids in there.values())
    least = LEAST if baseline == "mean" else 1
    fit = [i for i, ids in there.items() if count[len(ids)] >= least]
    both = spread(fit, 2 * prompts)
    if len(both) < 2 * _FEWEST:
        raise KeyholeError(
            f"only {len(fit)} prompts of this store have a circuit, an answer that the model tells from the wrong one, "
            f"and, for means, {LEAST} of their length: {2 * _FEWEST} are needed. Trace more, or take the baseline zero."
        )
    return both[::2], both[1::2]
