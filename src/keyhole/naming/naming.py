"""What do the signals of a circuit, a store or a head mean? Looked for in a corpus, named, and the names tested.

    naming = keyhole.name("ioi.store")             # or a circuit, its file, a head (3, 1), features, your own subjects
    print(naming); naming.save("names.html")

Directions that are the same are one subject, whoever writes them: into one channel of a head every writer writes the
same direction, up to its sign. Beside them random directions of the same heads are looked for in the same pass.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from keyhole.brief import brief
from keyhole.errors import KeyholeError
from keyhole.models.heads import head_name
from keyhole.naming.explain.over_represented import statistics
from keyhole.naming.gathering.gather import TOKENS, gather
from keyhole.naming.judging.judge import RULES, Judge
from keyhole.naming.judging.pose import Asking
from keyhole.naming.judging.questions import QuestionKind
from keyhole.naming.name import Explainer
from keyhole.naming.named import Naming
from keyhole.naming.reading.texts import Source
from keyhole.naming.shown import Examples
from keyhole.naming.signals import name_signals
from keyhole.naming.subject import Subject
from keyhole.naming.subjects import random_subjects
from keyhole.naming.what import MOST, What, model_for, read, subjects_of
from keyhole.progress import Progress, part_of, silent

if TYPE_CHECKING:
    from keyhole.models.model import Model

RANDOM = 200
QUESTIONS = 20  # of either truth: answers by rule cost nothing, and few questions many names answer without a fault
_SUBJECTS, _READ = 0.15, 0.9  # how far subjects and reading are, of the whole


@dataclass(frozen=True)
class Sought:
    """Signals and random directions of one model with their examples, ready to be named by anybody."""

    __repr__ = brief

    model: str
    fingerprint: str
    seed: int
    examples: tuple[Examples, ...]
    random: tuple[Examples, ...]

    def named(
        self,
        explainer: Explainer = statistics,
        judges: Mapping[QuestionKind, Judge] = RULES,
        *,
        questions: int = QUESTIONS,
        progress: Progress = silent,
    ) -> Naming:
        """Name them and test the names, with so many questions of either truth."""
        found = name_signals(
            self.examples,
            explainer,
            judges,
            random=self.random,
            model=self.model,
            asking=Asking(questions),
            seed=self.seed,
            progress=progress,
        )
        return replace(found, fingerprint=self.fingerprint)


def name(
    what: What,
    model: "Model | None" = None,
    *,
    corpus: Source | None = None,
    most: int = MOST,
    random: int = RANDOM,
    tokens: int = TOKENS,
    explainer: Explainer = statistics,
    seed: int = 0,
    folder: Path | str | None = None,
    progress: Progress = silent,
) -> Naming:
    """Name the signals of a circuit (the strongest), of a store (the most frequent), the channels of a head, features.

    At most so many; beside as many `random` directions of their heads. Examples are from so many tokens of a corpus
    (see `texts`); with a `folder` they are kept there, and a call that was stopped goes on. Features of a contrast
    (`Study`, `Found`, `FoundHead`) and discovered ones (`HeadFeatures`) need the model.
    """
    found = seek(
        what,
        model,
        corpus=corpus,
        most=most,
        random=random,
        tokens=tokens,
        seed=seed,
        folder=folder,
        progress=part_of(progress, 0, _READ),
    )
    return found.named(explainer, progress=part_of(progress, _READ, 1))


def seek(
    what: What,
    model: "Model | None" = None,
    *,
    corpus: Source | None = None,
    most: int = MOST,
    random: int = RANDOM,
    tokens: int = TOKENS,
    seed: int = 0,
    folder: Path | str | None = None,
    progress: Progress = silent,
) -> Sought:
    """The same without names: what is to be named, and where it fires."""
    if most < 1 or random < 0:
        raise KeyholeError(f"{most} signals and {random} random directions were asked for: give 1 and 0 or more.")
    what = read(what)
    loaded = model_for(what, model)
    subjects = subjects_of(what, loaded, most=most, progress=part_of(progress, 0, _SUBJECTS))
    every = [*subjects, *randoms(loaded, subjects, random, seed)]
    found = gather(
        loaded, every, corpus, tokens=tokens, seed=seed, folder=folder, progress=part_of(progress, _SUBJECTS, 1)
    )
    n = len(subjects)
    return Sought(loaded.name, loaded.fingerprint(), seed, tuple(found[:n]), tuple(found[n:]))


def randoms(model: "Model", like: Sequence[Subject], n: int, seed: int = 0) -> list[Subject]:
    """Random directions of the heads of these, each as often as any other, and no two the same."""
    rng, found = np.random.default_rng(seed), list[Subject]()
    while len(found) < n:
        order = rng.permutation(len(like))[: n - len(found)]
        drawn = random_subjects(model, [like[i] for i in order], int(rng.integers(1 << 31)))
        found += [replace(one, id=f"{head_name(one.head)} random {len(found) + i}") for i, one in enumerate(drawn)]
    return found
