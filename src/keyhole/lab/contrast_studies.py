"""How are published contrasts repeated on a model? One study per task and model, shared by its figures."""

from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor

from keyhole.contrast.boxes import boxes_test, lexical_contrast, order_contrast
from keyhole.contrast.features import choose
from keyhole.contrast.lists import lists_contrast, lists_test
from keyhole.contrast.sites import Contrast
from keyhole.contrast.study import Head, Selection, Study, study
from keyhole.lab.catalogue import CATALOGUE
from keyhole.lab.job import Job, load_model
from keyhole.lab.outcome import Progress, Verdict
from keyhole.models.model import Model

Task = Literal["boxes", "lists"]


@dataclass(frozen=True)
class Asked:
    """What a study depends on; who watches it does not matter."""

    task: Task
    model: str | None
    device: str | None
    quick: bool
    seed: int
    progress: Progress = field(compare=False, repr=False)


def studied(job: Job, task: Task) -> Study:
    """The study of a task on the job's model, made once."""
    return _study(Asked(task, job.model, job.device, job.quick, job.seed, job.progress))


@lru_cache(maxsize=2)  # both tasks of one model
def _study(asked: Asked) -> Study:
    model = load_model(asked.model, asked.device)
    how, sizes = wording(model, asked.model), _sizes(model, asked)
    fits: dict[str, Contrast]
    seeds = 2 * asked.seed, 2 * asked.seed + 1
    # Crossed, as the paper's text says. Two matching pairs, as in its code, also find where the copy's pair is
    # stronger, and there queries and keys of one thing point in opposite directions.
    if asked.task == "boxes":
        how["n_boxes"] = 5 if asked.quick else 9
        fits = {
            "order": order_contrast(model, sizes[0], seed=seeds[0], **how),
            "lexical": lexical_contrast(model, sizes[0], seed=seeds[0], cross=True, **how),
        }
        test, select = boxes_test(model, sizes[1], seed=seeds[1], **how), Selection("accuracy", 0.3)
    else:
        how["per_category"] = 2 if asked.model is None else 5
        fits = {"category": lists_contrast(model, sizes[0], seed=seeds[0], **how)}
        test, select = lists_test(model, sizes[1], seed=seeds[1], **how), Selection("ratio", 0.1, top=3)
    return study(
        model,
        fits,
        test,
        select=select,
        rank="energy",  # the paper's rule
        permutations=20 if asked.quick else 200,
        draws=2 if asked.quick else 10,
        answers=0,
        seed=asked.seed,
        stage=lambda what: nullcontext(asked.progress),
    )


def wording(model: Model, asked: str | None) -> dict[str, Any]:
    """The organism's sentences for the organism, the paper's for all others, in a chat where the model has one."""
    if asked is None:
        return {"wording": "plain", "chat": False}
    return {"wording": "instruct", "chat": bool(getattr(model.tokenizer, "chat_template", None))}


def _sizes(model: Model, asked: Asked) -> tuple[int, int]:
    """Prompts that make features, and that test them; the published numbers for all but the organism."""
    if asked.quick:
        return 160 if asked.model else 60, 40
    if asked.model is None:
        return 400, 200
    return (3000, 1000) if asked.task == "boxes" else (2000, 1000)


def points(study: Study, name: str, head: Head) -> tuple[Tensor, Tensor, list[str]]:
    """Queries, their right keys, and the labels of the samples that made a feature, in one head."""
    fit = study.fits[name]
    chosen = choose(fit)
    positive = fit.slots.sign[chosen] == 1
    chosen, first = chosen[positive.any(1)], positive.long().argmax(1)[positive.any(1)]
    samples = fit.layer(head[0]).of(chosen)
    q = samples.queries[:, head[1]].double().cpu()
    k = samples.keys[torch.arange(len(chosen)), first, head[1] // samples.group].double().cpu()
    return q, k, [fit.resolved.labels[int(i)] or "all" for i in chosen]


def projected(study: Study, name: str, head: Head, rank: int | None = None) -> tuple[Tensor, Tensor, list[str]]:
    """The same in the feature's subspace, of its own rank or the one given."""
    q, k, labels = points(study, name, head)
    features = study.features[name]
    layer, index = features.at(head)
    r = features.rank(head, study.rank) if rank is None else rank
    return q @ features.U[layer, index, :, :r].double(), k @ features.V[layer, index, :, :r].double(), labels


def aligned(q: Tensor, k: Tensor, labels: list[str]) -> float:
    """How many keys point where the queries of their label do, and not where others do? Each side about its own mean.

    >>> x = torch.eye(2).double().repeat(3, 1)
    >>> aligned(x, 5 + 2 * x, ["a", "b"] * 3)
    1.0
    """
    kinds = sorted(set(labels))
    own = torch.tensor([kinds.index(label) for label in labels])
    q, k = q - q.mean(0), k - k.mean(0)
    centres = torch.stack([q[own == i].mean(0) for i in range(len(kinds))])
    cosines = torch.nn.functional.cosine_similarity(k[:, None], centres[None], dim=-1)
    return float((cosines.argmax(1) == own).double().mean())


def verdict(job: Job, id: str, holds: bool) -> Verdict:
    """Reproduced only by the published model; another one with the same pattern is a part of it."""
    if named(job, id):
        return "reproduced" if holds else "not"
    return "partly" if holds else "needs a model"


def stand_in(job: Job, id: str) -> str:
    """Which model stood in for which?"""
    if named(job, id):
        return ""
    model = job.model or "The built-in organism, trained on such prompts,"
    return f"{model} stood in for {CATALOGUE[id].needs}."


def named(job: Job, id: str) -> bool:
    """Is the job's model the published one?"""
    needs = (CATALOGUE[id].needs or "").rpartition("/")[2].lower()
    return job.model is not None and needs in job.model.lower()
