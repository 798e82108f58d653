"""How are all prompts of a bulk run traced? What decides the circuits, to the last digit: a store keeps all of it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
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
