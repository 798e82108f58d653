"""What do order and lexical features of boxes explain, and do their ranks stop growing with the number of boxes?"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from keyhole.contrast.data.resolve import resolve
from keyhole.contrast.data.sites import Contrast
from keyhole.contrast.edits.attribution import Attribution, attribute
from keyhole.contrast.features.finding import Feature, Features, RankRule, find_features
from keyhole.contrast.features.subspace import random_bases
from keyhole.contrast.onepass.collect import collect
from keyhole.contrast.recipes.boxes import boxes_test, lexical_contrast, order_contrast
from keyhole.contrast.recipes.sweep import RankRow
from keyhole.contrast.report import label
from keyhole.contrast.studies import Head, Study
from keyhole.figures import attribution_figure, save
from keyhole.figures.ranks import plateau
from keyhole.figures.study import draw_sweep
from keyhole.models.model import Model
from keyhole.models.prompts import one_token_words
from keyhole.reproduce.cc.studies import (
    CROSSED,
    MERE_SHIFT,
    boxes_of,
    mere_shifts,
    named,
    stand_in,
    studied,
    told_shifts,
    verdict,
    wording,
)
from keyhole.reproduce.cc.subspaces import passed_over
from keyhole.reproduce.job import Attempt, Job, Numbers
from keyhole.reproduce.outcome import Outcome
from keyhole.stats import interval, told
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
    random_wrong: float  # and their largest part of a wrong box


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
        "explain more than random subspaces, that the lexical part parts boxes more than the order and than those, and "
        "that a wrong box gets some of it, more than of those (all: 95 % over prompts, each with other random "
        f"subspaces); nothing where a contrast is a mere difference of means. {CROSSED} {told_shifts(study)} "
        f"Brackets: smallest and largest of the prompts. {stand_in(job, 'cc-fig10')}"
    )
    holds = attributed(rows) and (study.passed or head == _HEAD) and not mere_shifts(study)
    return Outcome(verdict(job, "cc-fig10", holds), _told(head, rows, larger), numbers, tuple(figures), note)


def attributed(rows: Sequence[Row]) -> bool:
    """Is more explained than at random, most by the thing, and some of that at wrong boxes?"""
    gains = (
        [one.lexical - one.order for one in rows],
        [one.lexical - one.random_lexical for one in rows],
        [one.differences - one.random for one in rows],
        [one.wrong for one in rows],
        [one.wrong - one.random_wrong for one in rows],
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
        random_wrong=float(other.parts[1][wrong].max()),
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
        f"{of('wrong')} (random {of('random_wrong')})."
    )


# -- ranks ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Swept:
    """Ranks of one head's contrast, one for each number of boxes."""

    head: Head
    counts: tuple[int, ...]
    centred: tuple[RankRow, ...]
    uncentred: tuple[int, ...]  # the paper's
    shift: float  # share of the uncentred contrast that is a difference of means, with most boxes

    @property
    def ranks(self) -> list[int]:
        """Singular values that hold 99 % of the centred contrast."""
        return [row.energy for row in self.centred]

    @property
    def start(self) -> int | None:
        """From how many boxes on the rank stays, if it does."""
        return plateau(self.counts, self.ranks)

    @property
    def stops_growing(self) -> bool:
        """Does the rank grow first, beyond what permuted labels give, and then stay?"""
        first, last = self.centred[0], self.centred[-1]
        return self.start is not None and last.energy >= first.energy + _GROWTH and last.null > first.null


def sweep(job: Job) -> Outcome:
    """Does the rank stop growing with the number of boxes?"""
    study = studied(job, "boxes")
    n = 60 if job.model is None and job.quick else 400 if job.model is None else 1000
    found = {name: _swept(job, study, make, n) for name, make in _MAKERS.items()}
    numbers: Numbers = {}
    lines = []
    for name, own in found.items():
        for one in own:
            numbers |= {f"{name} {label(one.head)}": [float(rank) for rank in one.ranks]}
            numbers |= {f"{name} {label(one.head)} uncentred": [float(rank) for rank in one.uncentred]}
            numbers[f"{name} {label(one.head)} mean shift"] = one.shift
            lines.append(f"{name} in {label(one.head)}: {_told_ranks(one)}")
    stopped = 2 * sum(all(pair) for pair in _by_head(found)) > len(study.selected[:_SWEPT])
    differ = any(len({one.ranks[-1] for one in own}) > 1 for own in found.values())
    note = (
        f"{passed_over(study)}{n} prompts for each number of boxes instead of 3,000. Contrasts are centred: uncentred "
        "ones, the paper's, are told beside them, and a difference of means is of rank one whatever the number of "
        f"boxes. The verdict asks of most heads that both ranks grow first (by {_GROWTH} or more, and so does the "
        "number of singular values above permuted labels) and end in three or more counts that agree within one and "
        f"do not rise; of the published model also that heads differ in rank. {CROSSED} {stand_in(job, 'cc-fig16')}"
    )
    counts = next(iter(found.values()))[0].counts
    measured = "\n".join([f"Ranks at 99 % energy with {counts[0]} to {counts[-1]} boxes.", *lines])
    holds = stopped and (differ or not named(job, "cc-fig16"))
    given = verdict(job, "cc-fig16", holds and study.passed, part=stopped)
    drawn = {name: [row for one in own for row in one.centred] for name, own in found.items()}
    return Outcome(given, measured, numbers, tuple(draw_sweep(drawn, job.folder)), note)


def _swept(job: Job, study: Study, make: Callable[..., Contrast], n: int) -> list[Swept]:
    model, heads = study.test.model, study.selected[:_SWEPT]
    counts = (2, 3, 4) if job.quick else (2, 3, 4, 5, 6, 7, 8, 9)
    both = []
    for done, count in enumerate(counts):
        seen = collect(model, make(model, n=n, seed=2 * job.seed, n_boxes=count, **wording(model, job.model)))
        centred = find_features(seen, centre="each", permutations=20 if job.quick else 200)
        both.append((centred, find_features(seen, centre="none", permutations=0)))
        job.progress(done + 1, len(counts))
    found = []
    for head in heads:
        rows = tuple(_row(head, count, centred) for count, (centred, _) in zip(counts, both, strict=True))
        plain = tuple(one.rank(head, "energy") for _, one in both)
        last = both[-1][1]
        found.append(Swept(head, counts, rows, plain, float(last.mean_shift[last.at(head)])))
    return found


def _row(head: Head, count: int, features: Features) -> RankRow:
    return RankRow(head, count, *(features.rank(head, rule) for rule in _RULES))


def _by_head(found: Mapping[str, Sequence[Swept]]) -> list[tuple[bool, ...]]:
    """For each head, whether each of its ranks stops growing."""
    return list(zip(*([one.stops_growing for one in own] for own in found.values()), strict=True))


def _told_ranks(one: Swept) -> str:
    last = one.centred[-1]
    grown = last.energy >= one.centred[0].energy + _GROWTH
    how = "still changing" if one.start is None else f"steady from {one.start} boxes" if grown else "never growing"
    above = f"{last.null} above permuted labels with {last.entities} boxes"
    mere = ", a mere difference of means" if one.shift > MERE_SHIFT else ""
    return (
        f"{', '.join(map(str, one.ranks))}, {how} ({above}); uncentred {', '.join(map(str, one.uncentred))}, of which "
        f"{one.shift:.2f} is a difference of means{mere}."
    )


_MAKERS: dict[str, Callable[..., Contrast]] = {
    "order": order_contrast,
    "lexical": partial(lexical_contrast, cross=True),
}
_RULES: tuple[RankRule, ...] = ("energy", "null", "halves")
_GROWTH = 2  # ranks: one is within the slack of a plateau
_SWEPT = 8  # heads


RUNS: dict[str, Attempt] = {"cc-fig10": attributions, "cc-fig16": sweep}
