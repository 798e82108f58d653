"""The result of one contrast: every head, by the share of the held-out gap that its feature explains.

    found = model.contrast(Contrast.from_roles("box", boxes(160), positive="BOX", negative="box_*"))
    best = found.heads[0]      best.share of the gap, best.p, best.rank
    best.swap()                does attention follow the feature? best.answers(): does the answer?

A thin layer over `study`, which compares several features and selects heads.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keyhole.brief import Head, head_name
from keyhole.errors import KeyholeError
from keyhole.features.contrast import report as reading
from keyhole.features.contrast.alternatives import NoFeature
from keyhole.features.contrast.attribution import Attribution, attribute
from keyhole.features.contrast.finding import Feature
from keyhole.features.contrast.moves import Effect
from keyhole.features.contrast.ranking import HeadScore
from keyhole.features.contrast.sites import Contrast
from keyhole.features.contrast.studies import Study, StudySettings, study
from keyhole.features.contrast.swaps import AnswerEffects, answer_effects, key_bases
from keyhole.report import Report, Reported

if TYPE_CHECKING:
    from keyhole.claims.making import Prompts
    from keyhole.claims.records import Matches
    from keyhole.models.model import Model
    from keyhole.models.run import Run

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class FoundHead:
    """One head with the contrast's feature there. Numbers are of held-out samples."""

    score: HeadScore  # how much of the gap its feature explains
    study: Study = field(repr=False)  # where it was measured

    @property
    def head(self) -> Head:
        """Layer and head."""
        return self.score.head

    @property
    def rank(self) -> int:
        """The number of dimensions of the feature; 0: nothing exceeds the null of permuted labels."""
        return self.score.rank

    @property
    def gap(self) -> float:
        """Held-out logits of positive keys minus those of negative ones."""
        return self.score.gap

    @property
    def share(self) -> float:
        """The share of the gap that passes through the feature."""
        return self.score.share

    @property
    def p(self) -> float:
        """The p-value of the explained gap, corrected over all heads."""
        return self.score.p_corrected

    @property
    def feature(self) -> Feature:
        """The feature's subspaces of query and key space."""
        return self.study.of(self.head)[0]

    def swap(self) -> Effect:
        """Does attention follow the feature when its coordinates are swapped between two keys?"""
        if self.head not in self.study.swaps:
            raise KeyholeError(
                "positive and negative keys stand in different prompts, so nothing can be swapped: give "
                "model.contrast a test whose keys stand together."
            )
        return next(effect for effect in self.study.swaps[self.head] if effect.name == self.feature.name)

    def answers(self, samples: int = 32) -> AnswerEffects:
        """Does the answer follow it? The same swap in the model's own forward pass, on test prompts.

        Args:
            samples: How many test prompts are run.
        """
        bases = {self.head: key_bases([self.feature])}
        study = self.study
        return answer_effects(study.test, bases, half=study.half, samples=samples, seed=study.settings.seed)

    def attribute(self, run: "Run", dest: int | str = -1) -> Attribution:
        """Split a row of this head's logits, that of the query at `dest`, into the feature's part and the rest.

        Args:
            run: The run of a prompt.
            dest: The attending token: a position or the text of one token.
        """
        return attribute(run, [self.feature], dest, frame=self.study.test.frame)

    def claim(self, src: str, *, prompts: "Prompts", dest: str = "END", channels: int | None = None) -> "Matches":
        """What it says, as a claim: the channels that its feature lies in most are why the head looks at `src`.

        Args:
            src: The role of the token that is found.
            prompts: A task, or prompts with roles.
            dest: The role of the token that looks.
            channels: How many; as many as the feature has dimensions unless given.
        """
        from keyhole.claims.making import contrast_claim

        return contrast_claim(self, src, dest=dest, prompts=prompts, channels=channels)

    def __repr__(self) -> str:
        numbers = f"gap {self.gap:.2f}, share {self.share:.2f}, p {self.p:.3f}"
        return f"<FoundHead {head_name(self.head)}: rank {self.rank}, {numbers}>"


@dataclass(frozen=True, eq=False)
class Found(Reported):
    """The features of one contrast in a model, as `model.contrast` returns them."""

    study: Study  # everything that was measured

    @property
    def name(self) -> str:
        """The name of the contrast."""
        return next(iter(self.study.features))

    @cached_property
    def heads(self) -> tuple[FoundHead, ...]:
        """Every head, by the part of the held-out gap that its feature explains, largest first."""
        return tuple(FoundHead(score, self.study) for score in self.study.ranking[self.name])

    @property
    def no_feature(self) -> tuple[NoFeature, ...]:
        """Selected heads without a feature: why, and what other settings give there."""
        return self.study.no_feature

    def report(self) -> Report:
        """The heads whose feature explains most; and why selected heads have none."""
        return reading.ranking(self.study, self.name)

    def record(self) -> dict[str, Any]:
        """Every head and every number, as `keyhole contrast --out` writes them."""
        return reading.record(self.study)

    def draw(self, folder: str | Path, kinds: Sequence[str] = ("png",)) -> list[Path]:
        """Draw interventions, and spectra, embeddings and attributions of the heads that look at the right keys.

        A picture that cannot be drawn (of a head without a feature) is left out, and the log says why.

        Args:
            folder: Where the pictures go.
            kinds: The file types of each: "png", "svg", "pdf".
        """
        from keyhole.features.contrast.study_figures import draw_study

        written, notes = draw_study(self.study, Path(folder), kinds=kinds)
        for note in notes:
            _log.warning("no picture: %s", note)
        return written

    def __repr__(self) -> str:
        first = f"the first {self.heads[0]!r}" if any(head.rank for head in self.heads) else "none with a feature"
        return f"<Found {self.name!r} in {self.study.model}: {len(self.heads)} heads, {first}>"


def find_heads(
    model: "Model", contrast: Contrast, test: Contrast | None = None, settings: StudySettings | None = None
) -> Found:
    """Study one contrast. No edited prompts are run here: `FoundHead.answers` does that."""
    settings = replace(settings or StudySettings(), answers=0)
    return Found(study(model, {contrast.name: contrast}, test, settings=settings))
