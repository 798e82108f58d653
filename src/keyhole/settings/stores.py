"""How are all prompts of a bulk run traced? What decides the circuits, to the last digit: a store keeps all of it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args

from keyhole.errors import KeyholeError
from keyhole.settings.fields import option, require_choices, takes_old_names
from keyhole.settings.measuring import LEVEL, PANEL, SUFFICIENT, SUFFICIENT_BOTH_SIGNS, SUFFICIENT_LEVEL, check_level
from keyhole.settings.tracing import ACCPP, TAU, MetricName, Probability, TraceSettings

Wrong = Literal["keep", "skip"]
FixedTau = Literal["dynamic"] | float
BOS = "Put a beginning-of-sequence token first, or do not. Default: as the tokenizer does."
PART = 64  # prompts of a part
MOST = 32  # prompts that a prompt is measured against


@takes_old_names
@dataclass(frozen=True)
class Tracing(TraceSettings):
    """How every prompt is traced: all of `TraceSettings`, and more.

    The tokens of a start of svt may be roles of the task, such as (9, 6, "END", "IO").

    `batch` and `threads` change no more than last digits: sums over a padded batch, or over the shares of threads, are
    added up in another order. They are kept with the others: tables are the same whatever was interrupted.
    """

    metric: MetricName | Probability | None = option(
        None,
        "How the answer's score is read: prob (its log-likelihood) or linear (its logit). Default: linear "
        "where the prompt has wrong answers or with --method svt, else prob.",
        was="seeds",
    )
    tau: FixedTau = option("dynamic", TAU, panel=ACCPP)
    wrong: Wrong = option(
        "keep", "What becomes of prompts that the model answers wrongly: they are traced (keep) or left out (skip)."
    )
    bos: bool | None = option(None, BOS)
    batch: int = option(32, "How many prompts are traced together; memory grows with it.", least=1)
    threads: int = option(1, "CPU threads of each worker.", least=1)
    signals: bool = option(False, "Keep the vector of every signal in the store, too.")
    effects: bool = option(
        False,
        "Measure effects, shares and faithfulness of every circuit, against other prompts of the task or file.",
        panel=PANEL,
    )
    sufficient: bool = option(False, SUFFICIENT, panel=PANEL)
    level: float = option(LEVEL, SUFFICIENT_LEVEL, panel=PANEL)
    both_signs: bool = option(False, SUFFICIENT_BOTH_SIGNS, panel=PANEL)

    def __post_init__(self) -> None:
        if self.metric not in (None, *get_args(MetricName)) and not isinstance(self.metric, Probability):
            raise KeyholeError(f"bulk runs have the metric 'prob', 'linear' or a Probability, not {self.metric!r}.")
        if self.tau != "dynamic" and not isinstance(self.tau, int | float):
            raise KeyholeError(
                f"tau of a bulk run is 'dynamic' or a number, not {self.tau!r}: a store keeps its value."
            )
        require_choices(self)
        if (self.level, self.both_signs) != (LEVEL, False) and not self.sufficient:
            raise KeyholeError("level and both signs are of circuits that suffice: ask for these (sufficient).")
        check_level(self.level)
        if self.sufficient and not self.as_usual():
            raise KeyholeError(
                "circuits that suffice are searched for and not traced: leave out method, metric, tau, keys, "
                "first_token and through."
            )
        super().__post_init__()

    @property
    def measured(self) -> Literal["effects", "sufficient"] | None:
        """What is measured of every prompt, against prompts like it; None: nothing."""
        return "sufficient" if self.sufficient else "effects" if self.effects else None

    @property
    def against(self) -> bool:
        """Are answers held against wrong ones, where there are some?"""
        return self.metric in (None, "linear")

    def plain(self) -> dict[str, Any]:
        """Every choice as plain values, defaults spelled out: what a store keeps and compares.

        Stores of accpp do not name the method, as when there was no other. Two keys are older than their fields'
        names: `seeds` is the metric, and `sinks` what becomes of the first token.
        """
        share = self.metric.tau if isinstance(self.metric, Probability) else Probability().tau
        rule = "prob" if isinstance(self.metric, Probability) else self.metric
        for_all = {name: getattr(self, name) for name in ("wrong", "bos", "batch", "threads")}
        if self.measured is not None:  # stores without it do not name it, as when nothing was measured
            for_all["like"] = MOST
        if self.sufficient:
            return {"method": "sufficient", "level": self.level, "both_signs": self.both_signs, **for_all}
        if self.effects:
            for_all["effects"] = True
        if self.svt is not None:
            usual = "linear" if self.svt.start is None else "given"
            return {"method": "svt", "seeds": rule or usual, "seed_tau": share, **asdict(self.svt), **for_all}
        through = {"through": "mlps", **asdict(self.mlps)} if self.mlps else {"through": "heads"}
        accpp = {"tau": self.tau, "keys": self.keys, "sinks": self.first_token}
        usual = "linear where there are wrong answers"
        return {"seeds": rule or usual, "seed_tau": share, **through, **accpp, **for_all}


@dataclass(frozen=True)
class BulkSettings:
    """Which prompts a store has, and how many of them are written together."""

    n: int | None = option(None, "How many prompts. Default: the task's usual number; of a file, all.")
    seed: int = option(0, "Seed of the task's prompts.")
    choices: Mapping[str, Any] | None = option(None, "Choices of the task, by name.")
    part: int = option(PART, "How many prompts are written together; a stop loses at most these.")


class BulkOptions(TypedDict, total=False):
    """The fields of `BulkSettings`, for functions that take them as keywords."""

    n: int | None
    seed: int
    choices: Mapping[str, Any] | None
    part: int


# What can be chosen about names? How much text is read, how many signals are named, and how the names are tested.

READ = "How many tokens are read, at most."
CHUNK = "How many tokens a chunk of text has."
KEEP = "Folder that keeps the examples; the same call or command continues from there after a stop. Default: none."


@dataclass(frozen=True)
class ReadSettings:
    """How a corpus is read for examples (`gather`)."""

    length: int = option(32, CHUNK, least=4)
    tokens: int = option(250_000, READ, least=1)
    seed: int = option(0, "Seed of the text, if no corpus is given, and of the examples that are drawn.")
    folder: Path | None = option(None, KEEP)

    def __post_init__(self) -> None:
        require_choices(self)


class ReadOptions(TypedDict, total=False):
    """The fields of `ReadSettings`, for functions that take them as keywords."""

    length: int
    tokens: int
    seed: int
    folder: Path | str | None


@dataclass(frozen=True)
class WhereSettings:
    """How the strongest places of a signal or head are looked for (`where`)."""

    top: int = option(12, "How many places are shown.", least=1)
    tokens: int = option(250_000, READ, least=1)
    length: int = option(32, CHUNK, least=4)
    seed: int = option(0, "Seed of the choice of text, if no corpus is given.")

    def __post_init__(self) -> None:
        require_choices(self)


class WhereOptions(TypedDict, total=False):
    """The fields of `WhereSettings`, for functions that take them as keywords."""

    top: int
    tokens: int
    length: int
    seed: int


@dataclass(frozen=True)
class NameSettings:
    """How many signals are named, from how much text (`name`).

    >>> NameSettings(most=0)
    Traceback (most recent call last):
    keyhole.errors.KeyholeError: most is 0, but should be at least 1.
    """

    most: int = option(
        100, "How many signals are named: the most frequent ones of a store, else the strongest.", least=1
    )
    random: int = option(200, "How many random directions of the same heads are named, too, as a control.", least=0)
    tokens: int = option(250_000, READ, least=1)
    seed: int = option(0, "Seed of texts, random directions and questions.")
    folder: Path | None = option(None, KEEP)

    def __post_init__(self) -> None:
        require_choices(self)


class NameOptions(TypedDict, total=False):
    """The fields of `NameSettings`, for functions that take them as keywords."""

    most: int
    random: int
    tokens: int
    seed: int
    folder: Path | str | None


@dataclass(frozen=True)
class Asking:
    """Which questions test a name, and how many (`name_signals`)."""

    questions: int = option(10, "Questions with the answer yes, and as many with no, to each name.")
    hard: float = option(0.5, "Share of hard negatives among the questions with the answer no, at least.")
    high: int = option(8, "Deciles from this one on count as high values.")
    controls: bool = option(True, "Test wrong names, and those of random directions, too.")
    seed: int = option(0, "Seed of the split into halves, of questions and of controls.")
    model: str = option("", "Name of the model, which is stored with the names.")

    def __post_init__(self) -> None:
        if self.questions < 1 or not 0 <= self.hard <= 1 or not 0 <= self.high <= 9:
            raise KeyholeError(
                f"questions is {self.questions}, hard {self.hard} and high {self.high}: ask at least one question, "
                "with a share of hard negatives from 0 to 1, and of deciles up to 9."
            )


class AskingOptions(TypedDict, total=False):
    """The fields of `Asking`, for functions that take them as keywords."""

    questions: int
    hard: float
    high: int
    controls: bool
    seed: int
    model: str
