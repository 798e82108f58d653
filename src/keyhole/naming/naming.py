"""What do the signals of a circuit, a store or a head mean? They are found in a corpus, named, and names are tested.

    naming = keyhole.name("ioi.store")             # or a circuit, its file, a head (3, 1), features, your own subjects
    print(naming); naming.save("names.html")

Equal directions are one subject, whoever writes them: into one channel of a head every writer writes the same
direction, up to its sign. Random directions of the same heads are looked for in the same pass, as a control.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Unpack

import numpy as np
import torch

from keyhole.brief import brief, head_name
from keyhole.errors import KeyholeError
from keyhole.naming.corpus.corpus import Source
from keyhole.naming.corpus.gather import gather
from keyhole.naming.corpus.state import salt
from keyhole.naming.explain.over_represented import statistics
from keyhole.naming.explain.sentences import Explainer
from keyhole.naming.judge.judge import RULES, Judge
from keyhole.naming.judge.questions import QuestionKind
from keyhole.naming.llm.asking import Price, estimate, with_model
from keyhole.naming.llm.endpoint import KEYS, Endpoint, Patience
from keyhole.naming.llm.post import client
from keyhole.naming.llm.transcript import Talk, open_transcript
from keyhole.naming.record import Naming
from keyhole.naming.signals import name_signals
from keyhole.naming.subjects.operands import Nameable, model_for, open_nameable, subjects_of
from keyhole.naming.subjects.subject import About, Examples, Subject, basis_of, paired
from keyhole.progress import Progress, Stage, part_of, quiet, silent
from keyhole.qk.omega import omega
from keyhole.settings.fields import chosen
from keyhole.settings.naming import Asking, NameOptions, NameSettings, ReadSettings

if TYPE_CHECKING:
    from keyhole.models.model import Model

QUESTIONS = 20  # of either truth: answers by rule cost nothing, and with few questions many names make no mistake
_SUBJECTS, _READ = 0.15, 0.9  # where subjects and reading end, as shares of the whole progress


@dataclass(frozen=True)
class Sought:
    """Signals and random directions of one model with their examples, ready for any explainer."""

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
        """Name the signals and test the names.

        Args:
            explainer: Makes a name from examples and background.
            judges: Who answers which kind of question. Default: a rule.
            questions: How many questions with the answer yes, and as many with no.
            progress: Called with the number of signals named and their total.
        """
        asking = Asking(questions, seed=self.seed, model=self.model)
        naming = name_signals(self.examples, explainer, judges, random=self.random, asking=asking, progress=progress)
        return replace(naming, fingerprint=self.fingerprint)


def name(
    signals: Nameable | Path,
    model: "Model | None" = None,
    *,
    corpus: Source | None = None,
    explainer: Explainer = statistics,
    settings: NameSettings | None = None,
    progress: Progress = silent,
    **options: Unpack[NameOptions],
) -> Naming:
    """Name signals by what their strongest places in a corpus have in common, and test the names on other places.

    Args:
        signals: A circuit, a store, a file of one, a head (layer, head), or features of a contrast or discovery.
        model: Their model. Default: that of the circuit or store; features need it.
        corpus: A file, a dataset or texts (see `keyhole.naming.corpus.corpus`). Default: text that suits the model.
        explainer: Makes a name from examples and background.
        settings: A `NameSettings`, whose fields are the choices below.
        progress: Called with how much of the work is done, and its total.
        **options: Choices by name; beside a record they change it:
            - `most`: How many signals are named: the most frequent ones of a store, else the strongest.
            - `random`: How many random directions of the same heads are named, too, as a control.
            - `tokens`: How many tokens are read, at most.
            - `seed`: Seed of texts, random directions and questions.
            - `folder`: Where examples are kept; the same call continues from there after a stop.

    Returns:
        The names with their evidence, and how many pass, compared with controls.

    >>> import keyhole
    >>> naming = keyhole.name((3, 1), keyhole.load(), most=2, random=2, tokens=3000)
    >>> len(naming.signals), naming.random_directions
    (2, 2)
    """
    reading, naming = part_of(progress, 0, _READ), part_of(progress, _READ, 1)
    sought = seek(signals, model, corpus=corpus, settings=settings, progress=reading, **options)
    return sought.named(explainer, progress=naming)


def seek(
    signals: Nameable | Path,
    model: "Model | None" = None,
    *,
    corpus: Source | None = None,
    settings: NameSettings | None = None,
    progress: Progress = silent,
    **options: Unpack[NameOptions],
) -> Sought:
    """The examples that `name` works from, without names.

    Args:
        signals: A circuit, a store, a file of one, a head (layer, head), or features of a contrast or discovery.
        model: Their model. Default: that of the circuit or store; features need it.
        corpus: A file, a dataset or texts. Default: text that suits the model.
        settings: A `NameSettings`.
        progress: Called with how much of the work is done, and its total.
        **options: Fields of `NameSettings` by name; `name` explains them.

    >>> import keyhole
    >>> sought = seek((3, 1), keyhole.load(), most=2, random=2, tokens=3000)
    >>> [examples.subject.id for examples in sought.examples]
    ['3.1:0', '3.1:0-']
    """
    how = chosen(settings, NameSettings, options)
    opened = open_nameable(signals)
    loaded = model_for(opened, model)
    subjects = subjects_of(opened, loaded, most=how.most, progress=part_of(progress, 0, _SUBJECTS))
    every = [*subjects, *randoms(loaded, subjects, how.random, how.seed)]
    reads = ReadSettings(tokens=how.tokens, seed=how.seed, folder=how.folder)
    examples = gather(loaded, every, corpus, settings=reads, progress=part_of(progress, _SUBJECTS, 1))
    n = len(subjects)
    return Sought(loaded.name, loaded.fingerprint(), how.seed, tuple(examples[:n]), tuple(examples[n:]))


def random_subjects(model: "Model", like: Sequence[Subject], seed: int = 0) -> list[Subject]:
    """One random direction beside each of some subjects: in its head, on its side, paired by Omega as a signal is.

    Its coordinates in u_k (dest) or v_k (src) are those of a uniformly random unit vector in the space that the head
    reads. A random vector in a random subspace has the same distribution, whatever the subspace's rank, so this is a
    control for signals of any rank.

    Args:
        model: The model.
        like: The subjects.
        seed: Seed of the directions.

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
    """`n` different random directions in the heads of some subjects, equally many beside each of them."""
    rng, directions = np.random.default_rng(seed), list[Subject]()
    while len(directions) < n:
        order = rng.permutation(len(like))[: n - len(directions)]
        for drawn in random_subjects(model, [like[i] for i in order], int(rng.integers(1 << 31))):
            directions.append(replace(drawn, id=f"{head_name(drawn.head)} random {len(directions)}"))
    return directions


# Who names signals, and who judges the names? Statistics and a rule, or a language model behind an endpoint.
#
#     namers = Namers(explainer="llm", judge="llm", url="http://localhost:8000/v1", model="qwen")
#     naming = name_by(seek("ioi.store"), namers)

ExplainerName = Literal["statistics", "llm"]
JudgeName = Literal["rule", "llm"]
MOST_TOKENS = 1_000_000  # more are refused unless the user allows them
TRANSCRIPT = Path("names.jsonl")


@dataclass(frozen=True, kw_only=True)
class Namers:
    """Who names and who judges. Two are equal if they give the same names, wherever the model is reached."""

    explainer: ExplainerName = "statistics"
    judge: JudgeName = "rule"  # of detection questions; a rule answers the other kinds
    questions: int | None = None  # with the answer yes, and as many with no; None: 20, to a model 10
    model: str | None = None  # its name at the server
    url: str | None = field(default=None, compare=False)  # of an OpenAI-compatible server
    key: str | None = field(default=None, compare=False)  # the environment variable that holds the server's key
    transcript: Path = field(default=TRANSCRIPT, compare=False)  # all requests and answers
    tries: int = field(default=6, compare=False)  # of each request
    per_minute: float | None = field(default=None, compare=False)  # requests, at most
    price: tuple[float, float] | None = field(default=None, compare=False)  # of a million tokens, in and out
    yes: bool = field(default=False, compare=False)  # allow more than MOST_TOKENS

    @property
    def by_model(self) -> bool:
        """Does a language model name or judge?"""
        return "llm" in (self.explainer, self.judge)

    @property
    def questions_each(self) -> int:
        """The number of questions with the answer yes, and as many with no."""
        return self.questions or (Asking().questions if self.judge == "llm" else QUESTIONS)

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint of the model."""
        patience = Patience(tries=self.tries, per_minute=self.per_minute)
        return Endpoint(self.url or "", self.model or "", patience, (self.key,) if self.key else KEYS)

    def __str__(self) -> str:
        names = self.model if self.explainer == "llm" else "statistics"
        judges = self.model if self.judge == "llm" else "a rule"
        return f"Names are by {names} and judged by {judges}."


def require_namers(namers: Namers) -> None:
    """Refuse incomplete settings before any work is done; messages name options as at the command line."""
    if not namers.by_model:
        if namers.url or namers.model:
            raise KeyholeError("--llm has no use without --explainer llm or --judge llm: give one of them or both.")
        return
    if not (namers.url and namers.model):
        raise KeyholeError("a language model needs --llm URL and --llm-model NAME: give both.")
    if namers.key and not os.environ.get(namers.key, "").strip():
        raise KeyholeError(f"--llm-key names the variable {namers.key}, which is not set: export it, or leave it out.")
    _ = namers.endpoint, client()  # a malformed URL or a missing package is refused here


def name_by(
    sought: Sought, namers: Namers, *, stage: Stage = quiet, tell: Callable[[str], None] = lambda text: None
) -> Naming:
    """Name the signals and test the names, by rule or with a language model.

    Answers of an earlier call are taken from the transcript, so that nothing is paid for twice.

    Args:
        sought: Examples of the signals, as `seek` finds them.
        namers: Who names and who judges. A cost above `MOST_TOKENS` is refused unless `yes` allows it.
        stage: Shows the progress of one part of the work.
        tell: Called with the estimated cost before any request is sent.

    >>> import keyhole
    >>> sought = seek((3, 1), keyhole.load(), most=2, random=2, tokens=3000)
    >>> name_by(sought, Namers()).explainer
    'statistics'
    """
    if not namers.by_model:
        with stage("Naming") as progress:
            return sought.named(questions=namers.questions_each, progress=progress)
    once = cache(statistics)  # the estimate needs the same names

    def naming(explainer: Explainer, judges: Mapping[QuestionKind, Judge]) -> Naming:
        chosen = explainer if namers.explainer == "llm" else once
        by = {**RULES, "detection": judges["detection"]} if namers.judge == "llm" else RULES
        return sought.named(chosen, by, questions=namers.questions_each)

    with open_transcript(namers.transcript) as transcript:
        talk = Talk(namers.endpoint, transcript, seed=sought.seed)
        with stage("Estimating the cost"):
            cost = estimate(talk, naming, None if namers.price is None else Price(*namers.price))
        tell(f"{cost}; answers are kept in {namers.transcript}")
        if cost.tokens_in + cost.tokens_out > MOST_TOKENS and not namers.yes:
            raise KeyholeError(
                f"naming would need up to {cost.tokens_in + cost.tokens_out:,} tokens, more than {MOST_TOKENS:,}: "
                "allow it with --yes, or take fewer signals or questions."
            )
        with stage("Asking") as progress:
            return with_model(talk, naming, progress=progress)
