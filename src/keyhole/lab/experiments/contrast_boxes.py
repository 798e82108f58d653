"""What do order and lexical features of boxes explain, and do their ranks stop growing with the number of boxes?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from keyhole.contrast.attribution import Attribution, attribute
from keyhole.contrast.boxes import boxes_test, lexical_contrast, order_contrast
from keyhole.contrast.features import Feature
from keyhole.contrast.report import label
from keyhole.contrast.resolve import resolve
from keyhole.contrast.sites import Contrast
from keyhole.contrast.study import Head
from keyhole.contrast.subspace import random_bases
from keyhole.contrast.sweep import RankRow, sweep_ranks
from keyhole.figures import attribution_figure, save
from keyhole.figures.ranks import plateau
from keyhole.figures.study import draw_sweep
from keyhole.lab.contrast_studies import CROSSED, boxes_of, named, stand_in, studied, verdict, wording
from keyhole.lab.experiments.contrast import passed_over
from keyhole.lab.intervals import interval, told
from keyhole.lab.job import Experiment, Job, Numbers
from keyhole.lab.outcome import Outcome
from keyhole.models.model import Model
from keyhole.models.prompts import one_token_words
from keyhole.tasks.words import THINGS

_HEAD = (16, 1)  # published
_BOXES = 4  # of its example

# -- attribution ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One row of logits: what features explain, and how they part the right box from the others."""

    explained: float
    differences: float
    order: float  # the right box against the mean of the others
    lexical: float
    wrong: float  # largest lexical part of a wrong box
    random: float  # explained differences of random subspaces of the same ranks
    random_lexical: float  # their gap


def attributions(job: Job) -> Outcome:
    """How much of a row's logits goes through order and lexical features?"""
    study = studied(job, "boxes")
    model, frame = study.test.model, study.test.frame
    head = _HEAD if named(job, "cc-fig10") else study.selected[0]
    features, n = study.of(head), 4 if job.quick else 32
    asked = resolve(model, boxes_test(model, n, seed=2 * job.seed + 1, **_four(model, job)))
    rows: list[Row] = []
    figures: list[Path] = []
    for slot in range(len(asked.slots)):
        prompt, at = asked.slots.query[slot].tolist()
        run = model.run(asked.prompts[prompt].ids)
        split = attribute(run, features, at, frame=frame)
        other = attribute(run, [_random(one, slot) for one in features], at, frame=frame)
        keys, sign = asked.slots.keys[slot][:, 1] - split.first, asked.slots.sign[slot]
        right, wrong = keys[sign == 1].tolist(), keys[sign == -1].tolist()
        rows.append(row(split, other, right, wrong))
        if slot == 0:
            tokens = [token.strip() or "·" for token in run.tokens[split.first : at + 1]]
            title = f"Logits of head {label(head)} of {study.model}"
            names = list(split.names)
            figure = attribution_figure(tokens, split.parts, split.logits, names, marked=right, title=title)
            figures.append(save(figure, job.folder / "attribution.png"))
    numbers: Numbers = {name: [getattr(one, name) for one in rows] for name in vars(rows[0])}
    larger = interval([one.lexical - one.order for one in rows])
    note = (
        f"{passed_over(study)}{n} prompts with {_BOXES} boxes, as in the published example; features of "
        f"{boxes_of(job)} boxes. That parts sum to the logit is exact by design. The verdict asks that features "
        "explain more than random subspaces, that the lexical part parts boxes more than the order (95 % over "
        f"prompts) and that wrong boxes get some of it. {CROSSED} Brackets: smallest and largest of the prompts. "
        f"{stand_in(job, 'cc-fig10')}"
    )
    holds = attributed(rows) and (study.passed or head == _HEAD)
    return Outcome(verdict(job, "cc-fig10", holds), _told(head, rows, larger), numbers, tuple(figures), note)


def attributed(rows: Sequence[Row]) -> bool:
    """Is more explained than at random, most by the thing, and some of that at wrong boxes?"""
    gains = (
        [one.lexical - one.order for one in rows],
        [one.lexical - one.random_lexical for one in rows],
        [one.differences - one.random for one in rows],
        [one.wrong for one in rows],
    )
    return all(interval(gain)[1] > 0 for gain in gains)


def row(split: Attribution, other: Attribution, right: list[int], wrong: list[int]) -> Row:
    """Read one row; parts are order and lexical, in this order."""

    def gap(of: Attribution, part: int) -> float:
        return float(of.parts[part][right].mean() - of.parts[part][wrong].mean())

    return Row(
        explained=split.explained,
        differences=split.explained_differences,
        order=gap(split, 0),
        lexical=gap(split, 1),
        wrong=float(split.parts[1][wrong].max()),
        random=other.explained_differences,
        random_lexical=gap(other, 1),
    )


def _random(feature: Feature, seed: int) -> Feature:
    (basis,) = random_bases(len(feature.U), feature.rank, 1, 2 * seed + (feature.name == "order"))
    return Feature(feature.name, feature.head, basis, basis, feature.S)


def _four(model: Model, job: Job) -> dict[str, Any]:
    """Fewer boxes that ask about the same unseen things as the study's test."""
    usable = one_token_words(model, THINGS)
    things = (*usable[:_BOXES], *usable[boxes_of(job) :])
    return {"n_boxes": _BOXES, "things": things, **wording(model, job.model)}


def _told(head: Head, rows: Sequence[Row], larger: tuple[float, float, float]) -> str:
    def of(name: str) -> str:
        return told([getattr(one, name) for one in rows], 2)

    return (
        f"Head {label(head)}, {len(rows)} prompts: features explain {of('explained')} of the logits and "
        f"{of('differences')} of their differences, random subspaces of the same ranks {of('random')}. Right box "
        f"against others: order {of('order')}, lexical {of('lexical')} (random {of('random_lexical')}), more by "
        f"{larger[0]:.2f} (95 % interval {larger[1]:.2f} to {larger[2]:.2f}); largest lexical part of a wrong box "
        f"{of('wrong')}."
    )


# -- ranks ---------------------------------------------------------------------------------------------------------


def sweep(job: Job) -> Outcome:
    """Does the rank stop growing with the number of boxes?"""
    study = studied(job, "boxes")
    model, heads = study.test.model, study.selected[:8]
    counts = (2, 3, 4) if job.quick else (2, 3, 4, 5, 6, 7, 8, 9)
    n = 60 if job.model is None and job.quick else 400 if job.model is None else 1000
    how = {"n": n, "seed": 2 * job.seed, **wording(model, job.model)}
    makers: dict[str, Callable[..., Contrast]] = {
        "order": order_contrast,
        "lexical": partial(lexical_contrast, cross=True),
    }
    options: dict[str, Any] = {"centre": "none", "permutations": 20 if job.quick else 200}  # the paper's contrast
    rows = {
        name: sweep_ranks(
            model, partial(_with_boxes, make, model, how), counts, heads, progress=job.progress, **options
        )
        for name, make in makers.items()
    }
    numbers: Numbers = {}
    lines = []
    for name, found in rows.items():
        for head in heads:
            own = [one for one in found if one.head == head]
            ranks, start = [one.energy for one in own], plateau(counts, [one.energy for one in own])
            numbers[f"{name} {label(head)}"] = [float(rank) for rank in ranks]
            never = "the same from the first on" if start == counts[0] else f"steady from {start} boxes"
            steady = never if start else "still changing"
            null = "" if own[-1].null else ", though no more than with permuted labels"
            lines.append(f"{name} in {label(head)}: {', '.join(map(str, ranks))}, {steady}{null}.")
    flat = 2 * sum(is_flat(head, rows, counts) for head in heads) > len(heads)
    ends = [len({one.energy for one in found if one.entities == counts[-1]}) for found in rows.values()]
    note = (
        f"{passed_over(study)}{n} prompts for each number of boxes instead of 3,000. The verdict asks of most heads "
        "that both ranks end in three or more counts that agree within one and do not rise, and that both contrasts "
        "exceed permuted labels; of the published model also that heads differ in rank. "
        f"{CROSSED} {stand_in(job, 'cc-fig16')}"
    )
    measured = "\n".join([f"Ranks at 99 % energy with {counts[0]} to {counts[-1]} boxes.", *lines])
    holds = flat and (max(ends) > 1 or not named(job, "cc-fig16"))
    given = verdict(job, "cc-fig16", holds and study.passed, part=flat)
    return Outcome(given, measured, numbers, tuple(draw_sweep(rows, job.folder)), note)


def is_flat(head: Head, rows: dict[str, tuple[RankRow, ...]], counts: Sequence[int]) -> bool:
    """Do all ranks of a head stop growing, and is each more than permuted labels give?"""
    own = [[one for one in found if one.head == head] for found in rows.values()]
    return all(plateau(counts, [one.energy for one in one_feature]) for one_feature in own) and all(
        one_feature[-1].null > 0 for one_feature in own
    )


def _with_boxes(make: Callable[..., Contrast], model: Model, how: dict[str, Any], count: int) -> Contrast:
    return make(model, n_boxes=count, **how)


RUNS: dict[str, Experiment] = {"cc-fig10": attributions, "cc-fig16": sweep}
