"""What can be chosen about tracing, and for what are seeds chosen?

What can be chosen about a trace? Every choice, checked, and as a circuit keeps it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex

from jaxtyping import Float
from torch import Tensor

from keyhole.brief import Head
from keyhole.circuits.records import Accpp, Parameters, Place
from keyhole.errors import KeyholeError, require_choice
from keyhole.qk.channels import check_head
from keyhole.qk.firings import check_tau
from keyhole.tracing.answers import Likeliest
from keyhole.tracing.candidates import Keys
from keyhole.tracing.firing import Tau
from keyhole.tracing.linear import Probe, linear_direction, linear_goal, probe_goal
from keyhole.tracing.mlp_directions import Through
from keyhole.tracing.seeds import Goal, Likely, Probability, Seed, loss_of, prob_directions, prob_goals, seeds_of
from keyhole.tracing.upstream import Writes

if TYPE_CHECKING:
    from keyhole.models.run import Run

Seeds = Literal["prob", "linear"] | Probability | Probe
Sinks = Literal["keep", "mark", "collapse"]


@dataclass(frozen=True)
class Settings:
    """Every choice a trace makes."""

    target_ids: tuple[int, ...] = ()
    against_ids: tuple[int, ...] = ()
    end: int = -1
    likeliest: Likeliest | None = None  # how the targets were chosen, where they were not named
    seeds: Seeds = "prob"
    tau: Tau = "dynamic"
    keys: Keys = "all"
    sinks: Sinks = "keep"
    through: Through | None = None  # None: circuits of heads, which end at MLPs

    def __post_init__(self) -> None:
        if not isinstance(self.seeds, Probability | Probe) and self.seeds not in ("prob", "linear"):
            raise KeyholeError(f"there are no seeds {self.seeds!r}: choose 'prob', 'linear', a Probability or a Probe.")
        if self.against_ids and self.seeds != "linear":
            raise KeyholeError(
                '`against` belongs to seeds "linear", which it implies: "prob" traces the target\'s own probability.'
            )
        if self.tau != "dynamic" and not callable(self.tau):
            check_tau(self.tau)
        require_choice("keys", self.keys, Keys)
        require_choice("sinks", self.sinks, Sinks)

    @property
    def seed_tau(self) -> float:
        """The share of the answer's log-likelihood that seeds "prob" carry."""
        return (self.seeds if isinstance(self.seeds, Probability) else Probability()).tau

    def shared(self) -> dict[str, Any]:
        """What every method keeps with its circuits."""
        kinds = {Probability: "prob", Probe: "probe"}
        return {
            "target_ids": self.target_ids,
            "against_ids": self.against_ids,
            "end": self.end,
            "seeds": kinds.get(type(self.seeds), self.seeds),
            "probe_layer": self.seeds.layer if isinstance(self.seeds, Probe) else None,
            "seed_tau": self.seed_tau,
            "top_p": self.likeliest and self.likeliest.p,
            "top_k": self.likeliest and self.likeliest.k,
        }

    def parameters(self) -> Accpp:
        """As it is kept."""
        tau: Any = "function" if callable(self.tau) else self.tau
        further: dict[str, Any] = {} if self.through is None else {"through": "mlps", **asdict(self.through)}
        return Accpp(**self.shared(), tau=tau, keys=self.keys, sinks=self.sinks, **further)


# What can be chosen about singular vector tracing? One record, for library, command line and stores.

ChannelChoice = Literal["singular", "all"]
Start = Head | tuple[int, int, int | str, int | str]  # layer and head, perhaps with dest and src


@dataclass(frozen=True)
class SvtSettings:
    """How `trace_svt` traces.

    A start is a firing (layer, head, dest, src), or a head (layer, head): its firing from the token that predicts the
    answer on the source it attends to most, the first token aside. In a bulk run dest and src may be roles of the task.

    >>> SvtSettings(threshold=0.4, start=[(9, 6), (9, 9, -1, "Mary")]).start
    ((9, 6), (9, 9, -1, 'Mary'))
    """

    threshold: float = 0.5  # the attention weight from which a head fires
    share: float = 0.7  # of all contributions to a firing through one token: the largest that exceed it are followed
    channels: ChannelChoice = "singular"  # those that make up a firing's score, or all (the paper's baseline)
    start: Sequence[Start] | None = None  # where to begin; None: at the heads that push towards the answer

    def __post_init__(self) -> None:
        require_choice("channels", self.channels, ChannelChoice)
        if not 0 < self.share < 1:
            raise KeyholeError(f"share is {self.share}, but a share of all contributions lies above 0 and below 1.")
        if not 0 < self.threshold <= 1:
            raise KeyholeError(
                f"threshold is {self.threshold}, but the attention weight of a firing lies above 0 and up to 1."
            )
        if self.start is not None:
            object.__setattr__(self, "start", _starts(self.start))

    def require_no_seeds(self, seeds: object) -> None:
        """Refuse seeds where a start is given: the circuit begins there."""
        if self.start is not None and seeds is not None:
            raise KeyholeError(
                "a circuit begins with given firings (start) or with seeds of the answer: leave one of them out."
            )

    def places(self, run: "Run", end: int) -> tuple[Place, ...]:
        """The firings that tracing begins with, in a run whose answer is predicted at `end`; none without `start`."""
        return tuple(_place(run, each, end) for each in self.start or ())


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


def _place(run: "Run", start: Start, end: int) -> Place:
    """A start in a run; of a head alone, what it attends to most from `end`."""
    layer, head = check_head(run, start[:2])
    record = run.layer(layer)
    if len(start) == 2:
        row = record.weights([head], [end])[0, 0].clone()
        row[0] = -1.0  # attention rests on the first token when there is nothing to move
        src = int(row.argmax())
        if src == 0 or src > end:
            raise KeyholeError(f"head {layer}.{head} sees nothing but the first token from token {end}: give its dest.")
        return layer, head, end, src
    dest, src = run.position(start[2], "dest"), run.position(start[3], "src")
    first = int(record.first[dest])
    if not first <= src <= dest:
        raise KeyholeError(f"src {src} is not visible from dest {dest}, which sees tokens {first} to {dest}.")
    return layer, head, dest, src


# What are a circuit's seeds chosen for, and along which direction do they write?


def goals_of(writes: Writes, settings: Mapping[int, Settings]) -> dict[int, Callable[[], Goal]]:
    """What the seeds of each run are chosen for, or why there is nothing to choose for: told when it is asked."""
    likely = {row: own for row, own in settings.items() if own.seeds == "prob" or isinstance(own.seeds, Probability)}
    asked = [Likely(row, own.end, own.target_ids, own.seed_tau) for row, own in likely.items()]
    goals = dict(zip(likely, prob_goals(writes, asked), strict=True))
    for row, own in settings.items():
        if isinstance(own.seeds, Probe):
            goals[row] = partial(probe_goal, writes, row, own.end, own.seeds)
        elif own.seeds == "linear":
            goals[row] = partial(linear_goal, writes, row, own.end, list(own.target_ids), list(own.against_ids))
    return goals


def find_seeds(writes: Writes, settings: Settings) -> list[Seed]:
    """The writers at the end that the answer of a single run rests on."""
    (choose,) = seeds_of(writes, [goals_of(writes, {0: settings})[0]()])
    return choose()


def answer_direction(writes: Writes, told: Parameters, probe: Tensor | None = None) -> Float[Tensor, "d_model"]:
    """Along which direction at the end did the seeds of a circuit write? `weight` of a seed is its write along it."""
    end, targets = told.end, list(told.target_ids)
    if told.seeds == "probe":
        if probe is None:
            raise KeyholeError("a circuit file keeps no probe's direction: trace again from the probe to verify MLPs.")
        return probe.to(writes.local)
    if told.seeds == "prob":
        asked = [Likely(0, end, tuple(targets))]
        return prob_directions(writes, asked, *loss_of(writes, asked))[0]
    return linear_direction(writes, 0, end, targets, list(told.against_ids)) / writes.runs[0].final_scale[end]
