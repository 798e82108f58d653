"""What can be chosen about a trace? The method, the metric, thresholds, and how circuits go on behind MLPs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, SupportsIndex, TypedDict

from keyhole.brief import Head
from keyhole.errors import KeyholeError, require_choice
from keyhole.settings.fields import option, require_choices, takes_old_names
from keyhole.strict import quoted

Method = Literal["accpp", "svt"]
MetricName = Literal["prob", "linear"]
Tau = Literal["dynamic"] | float | Callable[[int], float]
Keys = Literal["all", "source"]
FirstToken = Literal["keep", "mark", "collapse"]
Why = Literal["here", "not"]  # in files: is it explained why a head attends here, or why it does not?
Constants = Literal["baseline", "causes"]
ChannelChoice = Literal["singular", "all"]
Start = Head | tuple[int, int, int | str, int | str]  # layer and head, perhaps with dest and src
ACCPP, SVT = "Options of --method accpp", "Options of --method svt"  # sections of a command's help
TAU = (
    "Attention weight below which a head counts as not firing: between 0 and 1, or dynamic, which is 2.5 "
    "/ visible keys."
)
KEYS = "Which keys a removal on the src side changes: all keys, or the source alone."


class MetricSettings:
    """An answer read with settings of its own: a `Probability`, or a `Probe` (`keyhole.tracing.linear`)."""


@dataclass(frozen=True)
class Probability(MetricSettings):
    """The metric "prob" with another threshold than usual: the share of the log-likelihood that first writers carry."""

    tau: float = 0.8  # the share, above 0 and up to 1

    def __post_init__(self) -> None:
        if not 0 < self.tau <= 1:
            raise KeyholeError(f"seed_tau is {self.tau}, but a share of the answer lies between 0 and 1, not 0.")


@dataclass(frozen=True)
class Through:
    """How circuits go on behind MLPs: settings of `trace(through=...)`."""

    cover: float = option(0.8, "Share of an MLP's write that its causes account for, above 0 and up to 1.", panel=ACCPP)
    eps: float = option(
        0.01, "Influence on the answer below which a node is not explained: a share, from 0 to below 1.", panel=ACCPP
    )
    values: bool = option(True, "Explain what heads move, too, or only where they attend.", panel=ACCPP)
    constants: Constants = option(
        "baseline", "How the write of biases counts: as the MLPs' baseline, or as causes like others.", panel=ACCPP
    )

    def __post_init__(self) -> None:
        require_choices(self)
        check_cover(self.cover)
        if not 0 <= self.eps < 1:
            raise KeyholeError(f"eps is {self.eps}, but influence lies between 0 and 1.")


@dataclass(frozen=True)
class SvtSettings:
    """How `trace_svt` traces.

    A start is a firing (layer, head, dest, src), or a head (layer, head): its firing from the token that predicts the
    answer on the source it attends to most, the first token aside. In a bulk run dest and src may be roles of the task.

    >>> SvtSettings(threshold=0.4, start=[(9, 6), (9, 9, -1, "Mary")]).start
    ((9, 6), (9, 9, -1, 'Mary'))
    """

    threshold: float = option(
        0.5, "Attention weight from which a head counts as firing, above 0 and up to 1.", panel=SVT
    )
    share: float = option(
        0.7,
        "Follow the heads that make up this share of all contributions to a firing through one token, between 0 and 1.",
        panel=SVT,
    )
    channels: ChannelChoice = option(
        "singular",
        "Which contributions count: those through the channels that make up a firing's score (singular), or "
        "through all.",
        panel=SVT,
    )
    start: Sequence[Start] | None = option(
        None,
        "Begin with this firing instead of the answer. A head alone stands for its firing from the last token "
        "on the token it attends to most, the first token aside. Repeatable. Default: the answer.",
        metavar="L.H[:DEST:SRC]",
        panel=SVT,
    )

    def __post_init__(self) -> None:
        require_choices(self)
        if not 0 < self.share < 1:
            raise KeyholeError(f"share is {self.share}, but a share of all contributions lies above 0 and below 1.")
        if not 0 < self.threshold <= 1:
            raise KeyholeError(
                f"threshold is {self.threshold}, but the attention weight of a firing lies above 0 and up to 1."
            )
        if self.start is not None:
            object.__setattr__(self, "start", _starts(self.start))

    def require_no_metric(self, metric: object) -> None:
        """Refuse a metric where a start is given: the circuit begins there, not with the answer.

        Args:
            metric: What was given as the metric, or None.
        """
        if self.start is not None and metric is not None:
            raise KeyholeError(
                "a circuit begins with given firings (start) or with the answer, as a metric reads it: leave one of "
                "them out."
            )


@takes_old_names
@dataclass(frozen=True)
class TraceSettings:
    """How a circuit is traced. With the method "svt", or a `SvtSettings`, what is of accpp is left as it is.

    >>> TraceSettings(tau=0.2, through="heads").first_token
    'keep'
    """

    method: Method | SvtSettings = option(
        "accpp",
        "How firings are explained. accpp: by removing signals. svt: by singular vector tracing of 2024, for "
        "heads alone.",
    )
    metric: MetricName | MetricSettings | None = option(
        None,
        "How the answer's score is read: prob (its log-likelihood) or linear (its logit). Default: linear "
        "where there is another answer (against) or with the method svt, else prob.",
        was="seeds",
    )
    tau: Tau = option("dynamic", TAU, panel=ACCPP)
    keys: Keys = option("all", KEYS, panel=ACCPP)
    first_token: FirstToken = option(
        "keep",
        "What becomes of firings on the first token: they are explained (keep), explained and marked (mark), "
        "or kept without a further explanation (collapse).",
        panel=ACCPP,
        was="sinks",
    )
    through: Literal["heads", "mlps"] | Through = option(
        "mlps",
        "Trace on through MLPs to the tokens, leaving out parts below --eps (mlps), or end at MLPs (heads).",
        panel=ACCPP,
    )

    def __post_init__(self) -> None:
        require_metric(self.metric)
        if self.tau != "dynamic" and not callable(self.tau):
            check_tau(self.tau)
        require_choices(self)
        if self.svt is None:
            return
        if isinstance(self.through, Through) or (self.tau, self.keys, self.first_token) != ("dynamic", "all", "keep"):
            raise KeyholeError(
                "tau, keys, first_token and how to go through MLPs are settings of the method accpp: leave them out. "
                "Those of svt are threshold, share, channels and start (in Python a keyhole.SvtSettings)."
            )
        self.svt.require_no_metric(self.metric)

    @property
    def svt(self) -> SvtSettings | None:
        """The settings of svt, which "svt" stands for the usual ones of; None: the method is accpp."""
        return SvtSettings() if self.method == "svt" else None if self.method == "accpp" else self.method

    def as_usual(self) -> bool:
        """Is a circuit traced as without any choice?

        >>> TraceSettings().as_usual(), TraceSettings(tau=0.2).as_usual()
        (True, False)
        """
        return all(getattr(self, field.name) == field.default for field in fields(TraceSettings))

    @property
    def mlps(self) -> Through | None:
        """How to go on behind MLPs; None: circuits of heads, which end at MLPs."""
        return Through() if self.through == "mlps" else None if self.through == "heads" else self.through


class TraceOptions(TypedDict, total=False):
    """The fields of `TraceSettings`, for functions that take them as keywords."""

    method: Method | SvtSettings
    metric: MetricName | MetricSettings | None
    tau: Tau
    keys: Keys
    first_token: FirstToken
    through: Literal["heads", "mlps"] | Through


def require_metric(metric: object) -> None:
    """Refuse what is no way to read an answer's score."""
    if not isinstance(metric, MetricSettings) and metric not in (None, "prob", "linear"):
        raise KeyholeError(f"there is no metric {metric!r}: choose 'prob', 'linear', a Probability or a Probe.")


def why_not_of(why: Why) -> bool:
    """The parameter `why_not`, from the word that was given when it was called `why`."""
    require_choice("why", why, Why)
    return why == "not"


def check_tau(tau: Any) -> float:
    """The threshold as a number, or why it is none: no weight is below 0, and none above 1."""
    try:
        value = float(tau)
    except (TypeError, ValueError, OverflowError) as error:  # the last of whole numbers of hundreds of digits
        raise KeyholeError(f"tau is 'dynamic' or a number such as 0.2, not {quoted(tau)}.") from error
    if not 0 < value <= 1:
        raise KeyholeError(f"tau is {value}, but a threshold lies between 0 and 1 and is not 0: no weight is below 0.")
    return value


def check_cover(cover: float) -> None:
    """Refuse what is no share."""
    if not 0 < cover <= 1:
        raise KeyholeError(f"cover is {cover}, but the share that causes account for lies between 0 and 1.")


def _starts(given: Sequence[Start]) -> tuple[Start, ...]:
    """The starts as tuples, refused unless each has the form of a head or of a firing."""
    if len(given) == 0:
        raise KeyholeError("start is empty: name a head or a firing to begin with, or leave it out.")
    for each in given:
        fits = isinstance(each, Sequence) and not isinstance(each, str) and len(each) in (2, 4)
        if not (fits and all(isinstance(part, SupportsIndex | str) for part in each)):
            raise KeyholeError(
                f"start is a list of heads such as (9, 6) or firings such as (9, 6, -1, 'Mary'), and {each!r} is "
                "neither."
            )
    return tuple(tuple(each) for each in given)  # type: ignore[misc]
