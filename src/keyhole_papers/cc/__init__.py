"""How are published contrasts repeated on a model? One study per task and model, shared by its figures.

Which model, heads and contrasts were measured decides what a verdict can say.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import median
from typing import Any, Literal, NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor

from keyhole.brief import Head
from keyhole.features.contrast.boxes import boxes_test, lexical_contrast, order_contrast
from keyhole.features.contrast.clouds import pca_figure
from keyhole.features.contrast.collect import Collected, collect
from keyhole.features.contrast.finding import FEWEST, Features, choose
from keyhole.features.contrast.lists import FIVE, lists_contrast, lists_test
from keyhole.features.contrast.ranking import head_attention, select_heads
from keyhole.features.contrast.sites import Contrast
from keyhole.features.contrast.studies import Selection, Study, StudySettings, study
from keyhole.features.contrast.subspace import random_bases
from keyhole.models.model import Model
from keyhole_papers.catalogue import CATALOGUE
from keyhole_papers.experiment import Job, loaded
from keyhole_papers.finding import Finding, Findings, Provenance, holds_of, last_name
from keyhole_papers.results import Verdict

Task = Literal["boxes", "lists"]
DRAWS = 20  # random subspaces beside each feature: to exceed all of them by chance is a matter of 1 in 21
CROSSED = "The lexical contrast is crossed: a prompt's query meets the copy's box."
MERE_SHIFT = 0.95  # of a contrast: beyond that it is but a difference of means, whatever it is called
MOST = 0.5  # of keys, where a claim says that they lie with their queries
_SELECTION = 1_000_000  # added to the seed of the prompts that select heads, which are not those that measure them


def boxes_of(job: Job) -> int:
    """How many boxes the prompts of a study have."""
    return 5 if job.quick else 9


@lru_cache(maxsize=2)  # both tasks of one model
def studied(job: Job, task: Task) -> Study:
    """The study of a task on a model, made once."""
    model = loaded(job.model, job.device, job.dtype)
    how, sizes = _how(model, task, job), _sizes(model, task, job)
    fits: dict[str, Contrast]
    make: Callable[..., Contrast]
    seeds = 2 * job.seed, 2 * job.seed + 1
    # Crossed, as the paper's text says. Two matching pairs, as in its code, also find where the copy's pair is
    # stronger, and there queries and keys of one thing point in opposite directions.
    if task == "boxes":
        fits = {
            "order": order_contrast(model, sizes[0], seed=seeds[0], **how),
            "lexical": lexical_contrast(model, sizes[0], seed=seeds[0], cross=True, **how),
        }
        make, rule = boxes_test, Selection("accuracy", 0.3)
    else:
        fits = {"category": lists_contrast(model, sizes[0], seed=seeds[0], **how)}
        make, rule = lists_test, Selection("ratio", 0.1, top=3)
    heads, passed = _selected(model, make(model, sizes[1], seed=seeds[1] + _SELECTION, **how), rule)
    settings = StudySettings(
        rank="energy",  # the paper's rule
        centre="none",  # and its contrast
        span="labels" if job.as_printed and task == "lists" else "pooled",
        permutations=20 if job.quick else 200,
        draws=2 if job.quick else 10,
        answers=0,
        seed=job.seed,
    )
    test = make(model, sizes[1], seed=seeds[1], **how)
    measured = study(model, fits, test, heads=heads, settings=settings, stage=lambda name: nullcontext(job.progress))
    return replace(measured, passed=passed)


def _selected(model: Model, contrast: Contrast, rule: Selection) -> tuple[tuple[Head, ...], bool]:
    """The heads that pass on these prompts, or (none passing) the three that look most at the right keys."""
    table = head_attention(collect(model, contrast))
    passed = select_heads(table, by=rule.by, at_least=rule.at_least, top=rule.top)
    best = passed or sorted(table, key=lambda row: -row.positive)[:3]
    return tuple(row.head for row in best), bool(passed)


@lru_cache(maxsize=2)
def held_out(job: Job, task: Task) -> dict[str, Collected]:
    """Samples by feature that made none: the study's test, and new prompts for things in boxes, which it lacks."""
    test = studied(job, task).test
    if task == "lists":
        return {"category": test}
    how, n = _how(test.model, task, job), _sizes(test.model, task, job)[1]
    others = lexical_contrast(test.model, n, seed=2 * job.seed + 1, cross=True, **how)
    return {"order": test, "lexical": collect(test.model, others)}


def _how(model: Model, task: Task, job: Job) -> dict[str, Any]:
    size = {"n_boxes": boxes_of(job)} if task == "boxes" else {"per_category": 2 if job.model is None else 5}
    return wording(model, job.model) | size


def wording(model: Model, source: str | None) -> dict[str, Any]:
    """The organism's sentences for the organism, the paper's for all others, in a chat where the model has one."""
    if source is None:
        return {"wording": "plain", "chat": False}
    return {"wording": "instruct", "chat": bool(getattr(model.tokenizer, "chat_template", None))}


def _sizes(model: Model, task: Task, job: Job) -> tuple[int, int]:
    """Prompts that make features, and that test them; the published numbers for all but the organism, or as printed."""
    if job.quick:
        several = job.as_printed and task == "lists"  # a contrast of its own for each category
        return len(FIVE) * max(FEWEST, model.dims.d_head) if several else 160 if job.model else 60, 40
    if job.model is None and not job.as_printed:
        return 400, 200
    return (3000, 1000) if task == "boxes" else (2000, 1000)


class Points(NamedTuple):
    """Queries, their right keys, and the labels of a contrast's samples, in one head."""

    q: Tensor
    k: Tensor
    labels: list[str]


def points(fit: Collected, head: Head) -> Points:
    """Where a head has the samples of a contrast."""
    chosen = choose(fit)
    positive = fit.slots.sign[chosen] == 1
    chosen, first = chosen[positive.any(1)], positive.long().argmax(1)[positive.any(1)]
    samples = fit.layer(head[0]).of(chosen)
    q = samples.queries[:, head[1]].double().cpu()
    k = samples.keys[torch.arange(len(chosen)), first, head[1] // samples.group].double().cpu()
    labels = fit.resolved.labels
    return Points(q, k, [labels[int(i)] or "all" for i in chosen])


def projected(features: Features, head: Head, fit: Collected, least: int = 0) -> Points:
    """The same in the feature's subspace, of its own rank (the paper's rule) or at least the one given."""
    q, k, labels = points(fit, head)
    layer, index = features.at(head)
    r = max(least, features.rank(head, "energy"))
    return Points(q @ features.U[layer, index, :, :r].double(), k @ features.V[layer, index, :, :r].double(), labels)


def aligned(q: Tensor, k: Tensor, labels: list[str]) -> float:
    """How many keys point where the queries of their label do, and not where others do? Each side about its own mean.

    >>> x = torch.eye(2).double().repeat(3, 1)
    >>> aligned(x, 5 + 2 * x, ["a", "b"] * 3)
    1.0
    """
    kinds = sorted(set(labels))
    codes = torch.tensor([kinds.index(label) for label in labels])
    q, k = q - q.mean(0), k - k.mean(0)
    centres = torch.stack([q[codes == i].mean(0) for i in range(len(kinds))])
    cosines = torch.nn.functional.cosine_similarity(k[:, None], centres[None], dim=-1)
    return float((cosines.argmax(1) == codes).double().mean())


def aligned_at_random(q: Tensor, k: Tensor, labels: list[str], rank: int, *, seed: int = 0) -> list[float]:
    """The same in random subspaces of this rank, each one for queries and keys alike."""
    return [aligned(q @ basis, k @ basis, labels) for basis in random_bases(q.shape[1], rank, DRAWS, seed)]


def cloud(shown: Points, title: str, *, ordered: bool = False) -> Figure:
    """Queries and keys in their first components."""
    return pca_figure(shown.q, shown.k, shown.labels, shown.labels, title=title, ordered=ordered)


@dataclass(frozen=True)
class Subject:
    """What a reader must know of the model and heads behind an item."""

    id: str
    source: str | None  # None: the organism
    model: str
    heads: tuple[Head, ...]
    passed: bool  # the published selection; if not, these look most at the right keys
    shifts: Mapping[str, float]  # of each contrast, in the median head: one product of means, of rank one by nature
    spans: bool = False  # is a feature the span of single labels' contrasts, as printed?

    @property
    def published(self) -> bool:
        """Is the model the published one?"""
        return self.source is not None and last_name(self.source) == last_name(CATALOGUE[self.id].needs)

    @property
    def mere(self) -> list[str]:
        """Contrasts that are but a difference of means: what all queries prefer, and no feature that they match."""
        return [name for name, share in self.shifts.items() if share > MERE_SHIFT]

    def verdict(self, holds: bool, *, part: bool = False) -> Verdict:
        """Reproduced only by the published model, which may also show a part; another that shows all is a part."""
        if self.published:
            return "reproduced" if holds else "partly" if part else "not"
        return "partly" if holds else "needs a model"

    def findings(
        self, rows: Sequence[Finding], *, holds: bool | None = None, part: bool = False, remark: str
    ) -> Findings:
        """The verdict if all of it `holds` (None: every claim of the rows, in selected heads), or a part."""
        every = all(holds_of(rows)) and self.passed if holds is None else holds
        of = Provenance(self.source, self.published, CATALOGUE[self.id].needs or "")
        failed = "No head passed the published selection; these look most at the right keys. "
        remark = f"{'' if self.passed else failed}{remark}"
        return Findings(rows, of, remark=remark, judged=self.verdict(every, part=part))

    @property
    def means(self) -> str:
        """That contrasts are the paper's, and where a difference of means is the whole story."""
        shares = ", ".join(f"{name} {share:.2f}" for name, share in self.shifts.items())
        text = f"Contrasts are uncentred, as in the paper; share that is a difference of means (median head): {shares}."
        text += " Features are the span of every category's own contrast, as printed." if self.spans else ""
        mere = f"The contrast of {' and '.join(self.mere)} is a mere difference of means"
        return f"{text} {mere}, which all queries prefer alike." if self.mere else text


def subject(job: Job, task: Task, id: str) -> Subject:
    """The subject of an item: the model of the job, and the heads selected for its task."""
    study = studied(job, task)
    shifts = {
        name: median(float(features.mean_shift[features.at(head)]) for head in study.selected)
        for name, features in study.features.items()
    }
    spans = study.settings.span == "labels"
    return Subject(id, job.model, study.model, study.selected, study.passed, shifts, spans)
