"""What do order and lexical features of boxes explain? One row of logits, split over both, for each of some prompts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from keyhole.contrast.data.resolve import resolve
from keyhole.contrast.edits.attribution import Attribution, attribute
from keyhole.contrast.features.finding import Feature
from keyhole.contrast.features.subspace import random_bases
from keyhole.contrast.recipes.boxes import boxes_test
from keyhole.figures.contrast.attribution import attribution_figure
from keyhole.models.heads import Head, head_name
from keyhole.models.model import Model
from keyhole.models.tokens.prompts import one_token_words
from keyhole.stats import interval, told
from keyhole.tasks.text.words import THINGS
from keyhole_papers.cc.studies import boxes_of, studied, wording
from keyhole_papers.cc.subject import CROSSED, Subject, subject
from keyhole_papers.choices import AS_PRINTED
from keyhole_papers.job import Attempt, Job
from keyhole_papers.results import Verdict
from keyhole_papers.told import Experiment, Told

_HEAD = (16, 1)  # published
_BOXES = 4  # of its example


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


@dataclass(frozen=True)
class Attributed:
    """The rows of one head, one per prompt, and the first as it is drawn."""

    subject: Subject
    head: Head
    boxes: int  # of the prompts that made the features
    rows: Sequence[Row]
    tokens: Sequence[str]
    split: Attribution
    right: Sequence[int]  # boxes, by position


def measure(job: Job) -> Attributed:
    """Split rows of logits over the features of the published head, or of the best one."""
    about, study = subject(job, "boxes", "cc-fig10"), studied(job.asked, "boxes")
    model, frame = study.test.model, study.test.frame
    head = _HEAD if about.published else about.heads[0]
    features = study.of(head)
    asked = resolve(model, boxes_test(model, 4 if job.quick else 32, seed=2 * job.seed + 1, **_four(model, job)))
    rows, drawn = [], []
    for slot in range(len(asked.slots)):
        prompt, at = asked.slots.query[slot].tolist()
        run = model.run(asked.prompts[prompt].ids)
        split = attribute(run, features, at, frame=frame)
        other = attribute(run, [_random(one, slot) for one in features], at, frame=frame)
        keys, sign = asked.slots.keys[slot][:, 1] - split.first, asked.slots.sign[slot]
        right, wrong = keys[sign == 1].tolist(), keys[sign == -1].tolist()
        rows.append(_row(split, other, right, wrong))
        drawn.append(([token.strip() or "·" for token in run.tokens[split.first : at + 1]], split, right))
    return Attributed(about, head, boxes_of(job.asked), rows, *drawn[0])


def _row(split: Attribution, other: Attribution, right: list[int], wrong: list[int]) -> Row:
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
    things = (*usable[:_BOXES], *usable[boxes_of(job.asked) :])
    return {"n_boxes": _BOXES, "things": things, **wording(model, job.model)}


def judge(record: Attributed) -> Verdict:
    """Is more explained than at random, most by the thing, and some of that at wrong boxes?"""
    about = record.subject
    gains = (
        [one.lexical - one.order for one in record.rows],
        [one.lexical - one.random_lexical for one in record.rows],
        [one.differences - one.random for one in record.rows],
        [one.wrong for one in record.rows],
        [one.wrong - one.random_wrong for one in record.rows],
    )
    attributed = all(interval(gain)[1] > 0 for gain in gains)
    return about.verdict(attributed and (about.passed or record.head == _HEAD) and not about.mere)


def tell(record: Attributed) -> Told:
    """How much of a row's logits goes through order and lexical features?"""
    about, rows = record.subject, record.rows
    numbers = {name: [getattr(one, name) for one in rows] for name in vars(rows[0])}
    of = {name: told(values, 2) for name, values in numbers.items()}
    more, low, high = interval([one.lexical - one.order for one in rows])
    measured = (
        f"Head {head_name(record.head)}, {len(rows)} prompts: features explain {of['explained']} of the logits and "
        f"{of['differences']} of their differences, random subspaces of the same ranks {of['random']}. Right box "
        f"against others: order {of['order']}, lexical {of['lexical']} (random {of['random_lexical']}), more by "
        f"{more:.2f} (95 % interval {low:.2f} to {high:.2f}); largest lexical part of a wrong box {of['wrong']} "
        f"(random {of['random_wrong']})."
    )
    note = (
        f"{about.selection}{len(rows)} prompts with {_BOXES} boxes, as in the published example; features of "
        f"{record.boxes} boxes. That parts sum to the logit is exact by design. The verdict asks that features "
        "explain more than random subspaces, that the lexical part parts boxes more than the order and than those, and "
        "that a wrong box gets some of it, more than of those (all: 95 % over prompts, each with other random "
        f"subspaces); nothing where a contrast is a mere difference of means. {CROSSED} {about.means} "
        f"Brackets: smallest and largest of the prompts. {about.stand_in}"
    )
    return Told(measured, numbers, note)


def draw(record: Attributed) -> dict[str, Figure]:
    """The first row."""
    split, title = record.split, f"Logits of head {head_name(record.head)} of {record.subject.model}"
    figure = attribution_figure(
        record.tokens, split.parts, split.logits, list(split.names), marked=record.right, title=title
    )
    return {"attribution": figure}


RUNS: dict[str, Attempt] = {"cc-fig10": Experiment(measure, judge, tell, draw, heeds=AS_PRINTED)}
