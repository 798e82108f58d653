"""For what is one run traced, and for what are its seeds chosen?

What is traced in one run: its answer, and how. Every choice, as a circuit keeps it.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.records import Accpp, Parameters
from keyhole.errors import KeyholeError
from keyhole.settings.tracing import ChannelChoice as ChannelChoice
from keyhole.settings.tracing import FirstToken as FirstToken
from keyhole.settings.tracing import MetricName, MetricSettings, Probability, TraceSettings, require_metric
from keyhole.settings.tracing import Start as Start
from keyhole.settings.tracing import SvtSettings as SvtSettings
from keyhole.tracing.answers import Likeliest
from keyhole.tracing.linear import Probe, linear_direction, linear_goal, probe_goal
from keyhole.tracing.seeds import Goal, Likely, Seed, loss_of, prob_directions, prob_goals, seeds_of
from keyhole.tracing.upstream import Writes

AnswerMetric = MetricName | MetricSettings  # how the answer's score is read


@dataclass(frozen=True)
class Settings:
    """What one run is traced for, and how."""

    target_ids: tuple[int, ...] = ()
    against_ids: tuple[int, ...] = ()
    end: int = -1
    likeliest: Likeliest | None = None  # how the targets were chosen, where they were not named
    metric: AnswerMetric = "prob"  # as it is for this answer, where `how` leaves it open
    how: TraceSettings = field(default_factory=TraceSettings)

    def __post_init__(self) -> None:
        require_metric(self.metric)
        if self.against_ids and self.metric != "linear":
            raise KeyholeError(
                '`against` belongs to the metric "linear", which it implies: "prob" traces the target\'s own '
                "probability."
            )

    @property
    def seed_tau(self) -> float:
        """The share of the answer's log-likelihood that first writers carry, with the metric "prob"."""
        return (self.metric if isinstance(self.metric, Probability) else Probability()).tau

    def shared(self) -> dict[str, Any]:
        """What every method keeps with its circuits."""
        kinds = {Probability: "prob", Probe: "probe"}
        return {
            "target_ids": self.target_ids,
            "against_ids": self.against_ids,
            "end": self.end,
            "seeds": kinds.get(type(self.metric), self.metric),
            "probe_layer": self.metric.layer if isinstance(self.metric, Probe) else None,
            "seed_tau": self.seed_tau,
            "top_p": self.likeliest and self.likeliest.p,
            "top_k": self.likeliest and self.likeliest.k,
        }

    def parameters(self) -> Accpp:
        """As it is kept."""
        tau: Any = "function" if callable(self.how.tau) else self.how.tau
        further: dict[str, Any] = {} if self.how.mlps is None else {"through": "mlps", **asdict(self.how.mlps)}
        return Accpp(**self.shared(), tau=tau, keys=self.how.keys, sinks=self.how.first_token, **further)


# What are a circuit's seeds chosen for, and along which direction do they write?


def goals_of(writes: Writes, settings: Mapping[int, Settings]) -> dict[int, Callable[[], Goal]]:
    """What the seeds of each run are chosen for; whoever calls one is refused where there is nothing to choose for."""
    likely = {
        row: chosen
        for row, chosen in settings.items()
        if chosen.metric == "prob" or isinstance(chosen.metric, Probability)
    }
    answers = [Likely(row, chosen.end, chosen.target_ids, chosen.seed_tau) for row, chosen in likely.items()]
    goals = dict(zip(likely, prob_goals(writes, answers), strict=True))
    for row, chosen in settings.items():
        if isinstance(chosen.metric, Probe):
            goals[row] = partial(probe_goal, writes, row, chosen.end, chosen.metric)
        elif chosen.metric == "linear":
            goals[row] = partial(
                linear_goal, writes, row, chosen.end, list(chosen.target_ids), list(chosen.against_ids)
            )
    return goals


def find_seeds(writes: Writes, settings: Settings) -> list[Seed]:
    """The writers at the end that the answer of a single run rests on."""
    (choose,) = seeds_of(writes, [goals_of(writes, {0: settings})[0]()])
    return choose()


def answer_direction(writes: Writes, parameters: Parameters, probe: Tensor | None = None) -> Float[Tensor, "d_model"]:
    """Along which direction at the end did the seeds of a circuit write? `weight` of a seed is its write along it."""
    end, targets = parameters.end, list(parameters.target_ids)
    if parameters.seeds == "probe":
        if probe is None:
            raise KeyholeError("this circuit keeps neither its probe nor directions of its MLPs: trace again.")
        return probe.to(writes.local)
    if parameters.seeds == "prob":
        answers = [Likely(0, end, tuple(targets))]
        return prob_directions(writes, answers, *loss_of(writes, answers))[0]
    return linear_direction(writes, 0, end, targets, list(parameters.against_ids)) / writes.runs[0].final_scale[end]
