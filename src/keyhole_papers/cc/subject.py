"""On what was a published contrast measured? The model, its heads and contrasts, and what that makes of a verdict."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from keyhole.models.heads import Head
from keyhole_papers.catalogue import CATALOGUE
from keyhole_papers.cc.studies import Task, studied
from keyhole_papers.job import Job
from keyhole_papers.results import Verdict

CROSSED = "The lexical contrast is crossed: a prompt's query meets the copy's box."
MERE_SHIFT = 0.95  # of a contrast: beyond that it is but a difference of means, whatever it is called
MOST = 0.5  # of keys, where a claim says that they lie with their queries


@dataclass(frozen=True)
class Subject:
    """What a reader must know of the model and heads behind an item."""

    id: str
    asked: str | None  # None: the organism
    model: str
    heads: tuple[Head, ...]
    passed: bool  # the published selection; if not, these look most at the right keys
    shifts: Mapping[str, float]  # of each contrast, in the median head: one product of means, of rank one by nature
    spans: bool = False  # is a feature the span of single labels' contrasts, as printed?

    @property
    def published(self) -> bool:
        """Is the model the published one?"""
        return self.asked is not None and _last(self.asked) == _last(CATALOGUE[self.id].needs or "")

    @property
    def mere(self) -> list[str]:
        """Contrasts that are but a difference of means: what all queries prefer, and no feature that they match."""
        return [name for name, share in self.shifts.items() if share > MERE_SHIFT]

    def verdict(self, holds: bool, *, part: bool = False) -> Verdict:
        """Reproduced only by the published model, which may also show a part; another that shows all is a part."""
        if self.published:
            return "reproduced" if holds else "partly" if part else "not"
        return "partly" if holds else "needs a model"

    @property
    def selection(self) -> str:
        """Whether heads passed, before all else that is told."""
        return "" if self.passed else "No head passed the published selection; these look most at the right keys. "

    @property
    def means(self) -> str:
        """That contrasts are the paper's, and where a difference of means is the whole story."""
        shares = ", ".join(f"{name} {share:.2f}" for name, share in self.shifts.items())
        told = f"Contrasts are uncentred, as in the paper; share that is a difference of means (median head): {shares}."
        told += " Features are the span of every category's own contrast, as printed." if self.spans else ""
        mere = f"The contrast of {' and '.join(self.mere)} is a mere difference of means"
        return f"{told} {mere}, which all queries prefer alike." if self.mere else told

    @property
    def stand_in(self) -> str:
        """Which model stood in for which?"""
        model = self.asked or "The built-in organism, trained on such prompts,"
        return "" if self.published else f"{model} stood in for {CATALOGUE[self.id].needs}."


def subject(job: Job, task: Task, id: str) -> Subject:
    """The subject of an item: the model of the job, and the heads selected for its task."""
    study = studied(job.asked, task)
    shifts = {
        name: median(float(features.mean_shift[features.at(head)]) for head in study.selected)
        for name, features in study.features.items()
    }
    spans = study.settings.span == "labels"
    return Subject(id, job.model, study.model, study.selected, study.passed, shifts, spans)


def _last(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].lower()
