"""What are a circuit's seeds chosen for, and along which direction do they write?"""

from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.parameters import Parameters
from keyhole.errors import KeyholeError
from keyhole.tracing.assemble import Settings
from keyhole.tracing.likelihood import loss_of, prob_direction, prob_goal
from keyhole.tracing.linear import Probe, linear_direction, linear_goal, probe_goal
from keyhole.tracing.seeds import Goal, Seed, seeds_of
from keyhole.tracing.upstream import Writes


def goal_of(writes: Writes, row: int, settings: Settings) -> Goal:
    """What the seeds of a run are chosen for."""
    end, targets = settings.end, list(settings.target_ids)
    if isinstance(settings.seeds, Probe):
        return probe_goal(writes, row, end, settings.seeds)
    if settings.seeds == "linear":
        return linear_goal(writes, row, end, targets, list(settings.against_ids))
    return prob_goal(writes, row, end, targets, seed_tau=settings.seed_tau)


def find_seeds(writes: Writes, settings: Settings) -> list[Seed]:
    """The writers at the end that the answer of a single run rests on."""
    (choose,) = seeds_of(writes, [goal_of(writes, 0, settings)])
    return choose()


def answer_direction(writes: Writes, told: Parameters, probe: Tensor | None = None) -> Float[Tensor, "d_model"]:
    """Along which direction at the end did the seeds of a circuit write? `weight` of a seed is its write along it."""
    end, targets = told.end, list(told.target_ids)
    if told.seeds == "probe":
        if probe is None:
            raise KeyholeError("a circuit file keeps no probe's direction: trace again from the probe to verify MLPs.")
        return probe.to(writes.local)
    if told.seeds == "prob":
        along = prob_direction(*loss_of(writes, 0, end, targets))
    else:
        along = linear_direction(writes, 0, end, targets, list(told.against_ids))
    return along / writes.runs[0].final_scale[end]
