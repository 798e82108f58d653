"""What do signals mean? Examples, names and their test, by rule or by a language model.

What do the signals of a circuit, a store or a head mean? Looked for in a corpus, named, and the names tested.

    naming = keyhole.name("ioi.store")             # or a circuit, its file, a head (3, 1), features, your own subjects
    print(naming); naming.save("names.html")

Directions that are the same are one subject, whoever writes them: into one channel of a head every writer writes the
same direction, up to its sign. Beside them random directions of the same heads are looked for in the same pass.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from keyhole.brief import brief, head_name
from keyhole.errors import KeyholeError
from keyhole.naming.corpus.corpus import Source
from keyhole.naming.corpus.gather import TOKENS, gather
from keyhole.naming.corpus.kept import salt
from keyhole.naming.explain.candidates import Explainer
from keyhole.naming.explain.over_represented import statistics
from keyhole.naming.judge.judge import RULES, Judge
from keyhole.naming.judge.questions import Asking, QuestionKind
from keyhole.naming.llm.asking import Price, estimate, with_model
from keyhole.naming.llm.endpoint import KEYS, Endpoint, Patience
from keyhole.naming.llm.post import client
from keyhole.naming.llm.transcript import Talk, open_transcript
from keyhole.naming.record import Naming, name_signals
from keyhole.naming.subjects.operands import MOST, Nameable, model_for, open_nameable, subjects_of
from keyhole.naming.subjects.subject import About, Examples, Subject, basis_of, paired
from keyhole.progress import Progress, Stage, part_of, quiet, silent
from keyhole.qk.omega import omega

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
    what: Nameable | Path,
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
    what: Nameable | Path,
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
    what = open_nameable(what)
    loaded = model_for(what, model)
    subjects = subjects_of(what, loaded, most=most, progress=part_of(progress, 0, _SUBJECTS))
    every = [*subjects, *randoms(loaded, subjects, random, seed)]
    found = gather(
        loaded, every, corpus, tokens=tokens, seed=seed, folder=folder, progress=part_of(progress, _SUBJECTS, 1)
    )
    n = len(subjects)
    return Sought(loaded.name, loaded.fingerprint(), seed, tuple(found[:n]), tuple(found[n:]))


def random_subjects(model: "Model", like: Sequence[Subject], seed: int = 0) -> list[Subject]:
    """One random direction beside each of some subjects: in its head, on its side, paired by Omega as a signal is.

    Its coordinates in u_k (dest) or v_k (src) are those of a uniformly random unit vector in the space that the head
    reads. A random vector in a random subspace has the same distribution, whatever the subspace's rank, so this is a
    control for signals of any rank.

    >>> import keyhole
    >>> from keyhole.naming.subjects import channel_subjects
    >>> model = keyhole.load()
    >>> [subject.id for subject in random_subjects(model, channel_subjects(model, (3, 1), [4]))]
    ['3.1 random 0', '3.1 random 1']
    """
    subjects = []
    for number, subject in enumerate(like):
        basis = basis_of(subject.about)
        om = omega(model, subject.head[0], basis)
        sigma, rank = om.sigma[subject.head[1]], int(om.rank[subject.head[1]])
        rng = np.random.default_rng(int(salt(seed, subject.id, "random")))
        drawn = torch.from_numpy(rng.standard_normal(rank)).to(sigma.device)
        side = subject.about.get("side", "dest")
        coordinates = drawn * sigma[:rank].double() if side == "dest" else drawn  # a_k / sigma_k is what u_k has
        directions = paired(model, subject.head, side, range(rank), coordinates=coordinates, basis=basis)
        about = About(side=side, like=subject.id)
        name = f"{head_name(subject.head)} random {number}"
        subjects.append(Subject(name, "random", subject.head, *directions, about=about))
    return subjects


def randoms(model: "Model", like: Sequence[Subject], n: int, seed: int = 0) -> list[Subject]:
    """Random directions of the heads of these, each as often as any other, and no two the same."""
    rng, found = np.random.default_rng(seed), list[Subject]()
    while len(found) < n:
        order = rng.permutation(len(like))[: n - len(found)]
        drawn = random_subjects(model, [like[i] for i in order], int(rng.integers(1 << 31)))
        found += [replace(one, id=f"{head_name(one.head)} random {len(found) + i}") for i, one in enumerate(drawn)]
    return found


# Who names signals, and who judges the names? Counts and a rule, or a model behind an endpoint, for either.
#
# namers = Namers(explainer="llm", judge="llm", url="http://localhost:8000/v1", model="qwen") naming =
# name_by(seek("ioi.store"), namers)

ExplainerName = Literal["statistics", "llm"]
JudgeName = Literal["rule", "llm"]
MOST_TOKENS = 1_000_000  # that are asked for without a question
TRANSCRIPT = Path("names.jsonl")


@dataclass(frozen=True, kw_only=True)
class Namers:
    """Who names and who judges. Equal if the same names come of it: where a model is reached does not matter."""

    explainer: ExplainerName = "statistics"
    judge: JudgeName = "rule"  # of detection; other kinds of questions stay a rule's
    questions: int | None = None  # of either truth, to each name; None: 20, of a model 10
    model: str | None = None  # that the server knows by this name
    url: str | None = field(default=None, compare=False)  # of an OpenAI-compatible server
    key: str | None = field(default=None, compare=False)  # the variable that holds the server's key
    transcript: Path = field(default=TRANSCRIPT, compare=False)  # all that was asked and answered
    tries: int = field(default=6, compare=False)  # of each request
    per_minute: float | None = field(default=None, compare=False)  # requests, at most
    price: tuple[float, float] | None = field(default=None, compare=False)  # of a million tokens, in and out
    yes: bool = field(default=False, compare=False)  # ask for more than MOST_TOKENS, too

    @property
    def by_model(self) -> bool:
        """Is a model asked for anything?"""
        return "llm" in (self.explainer, self.judge)

    @property
    def asked(self) -> int:
        """Questions of either truth."""
        return self.questions or (Asking().questions if self.judge == "llm" else QUESTIONS)

    @property
    def endpoint(self) -> Endpoint:
        """Where the model is asked."""
        patience = Patience(tries=self.tries, per_minute=self.per_minute)
        return Endpoint(self.url or "", self.model or "", patience, (self.key,) if self.key else KEYS)

    def __str__(self) -> str:
        names = self.model if self.explainer == "llm" else "statistics"
        judges = self.model if self.judge == "llm" else "a rule"
        return f"Names are by {names} and judged by {judges}."


def require_namers(namers: Namers) -> None:
    """Refuse before any work what could not be asked; options are called as at the command line."""
    if not namers.by_model:
        if namers.url or namers.model:
            raise KeyholeError("--llm is asked with --explainer llm, --judge llm, or both: say which.")
        return
    if not (namers.url and namers.model):
        raise KeyholeError("a model is asked at --llm URL by its name, --llm-model NAME: give both.")
    if namers.key and not os.environ.get(namers.key, "").strip():
        raise KeyholeError(f"--llm-key names the variable {namers.key}, which is not set: export it, or leave it out.")
    _ = namers.endpoint, client()  # refuse a URL that is none, and a missing package


def name_by(
    sought: Sought, namers: Namers, *, stage: Stage = quiet, tell: Callable[[str], None] = lambda text: None
) -> Naming:
    """Names and their tests. What a model costs is told before it is asked, and much is refused unless it is allowed.

    `tell` is given the cost in words. The transcript is gone on from: nothing is asked, or paid for, twice.
    """
    if not namers.by_model:
        with stage("Naming") as progress:
            return sought.named(questions=namers.asked, progress=progress)
    once = cache(statistics)  # the estimate names, too

    def naming(explainer: Explainer, judges: Mapping[QuestionKind, Judge]) -> Naming:
        chosen = explainer if namers.explainer == "llm" else once
        by = {**RULES, "detection": judges["detection"]} if namers.judge == "llm" else RULES
        return sought.named(chosen, by, questions=namers.asked)

    with open_transcript(namers.transcript) as transcript:
        talk = Talk(namers.endpoint, transcript, seed=sought.seed)
        with stage("Estimating the cost"):
            cost = estimate(talk, naming, None if namers.price is None else Price(*namers.price))
        tell(f"{cost}; answers are kept in {namers.transcript}")
        if cost.tokens_in + cost.tokens_out > MOST_TOKENS and not namers.yes:
            raise KeyholeError(
                f"naming would ask for up to {cost.tokens_in + cost.tokens_out:,} tokens, more than {MOST_TOKENS:,}: "
                "say --yes, or ask for fewer signals or questions."
            )
        with stage("Asking") as progress:
            return with_model(talk, naming, progress=progress)
