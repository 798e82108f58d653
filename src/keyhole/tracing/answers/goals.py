"""What are a circuit's seeds chosen for, and along which direction do they write?"""

from collections.abc import Callable, Mapping
from functools import partial

from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.parameters import Parameters
from keyhole.errors import KeyholeError
from keyhole.tracing.answers.likelihood import Likely, Probability, loss_of, prob_directions, prob_goals
from keyhole.tracing.answers.linear import Probe, linear_direction, linear_goal, probe_goal
from keyhole.tracing.answers.seeds import Goal, Seed, seeds_of
from keyhole.tracing.settings import Settings
from keyhole.tracing.writes.upstream import Writes


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
