"""What do the rows of a training say, step by step? Means over heads with 95 % intervals, and changes between steps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.errors import KeyholeError
from keyhole.lab.emergence import Emergence
from keyhole.lab.intervals import interval

Over = Literal["places", "sources"]
MEASURES = (
    *("sparsity", "ambient", "refactor", "attention", "relative_attention"),
    *("n_recon", "n_recon_refactor", "n_recon_tolerant", "n_recon_tolerant_refactor"),
)


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % interval (Student's t) over `count` places; `dropped` rows had no value."""

    mean: float
    low: float
    high: float
    count: int
    dropped: int


def together(several: Sequence[Emergence]) -> Emergence:
    """Several trainings as one: their rows, step by step. Each must have a `source` of its own."""
    if not several or any(one.steps != several[0].steps for one in several):
        raise KeyholeError("trainings go together step by step: give at least one, all with the same steps.")
    sources = [{row.source for rows in one.rows for row in rows} for one in several]
    if len(set().union(*sources)) != sum(map(len, sources)):
        raise KeyholeError("two trainings have the same source, so their heads would be mixed: name each differently.")
    return Emergence(
        several[0].steps,
        tuple(tuple(row for one in several for row in one.rows[i]) for i in range(len(several[0].steps))),
    )


def curve(
    emerged: Emergence, name: str = "sparsity", *, role: str | None = None, window: int = 1, over: Over = "places"
) -> list[Interval]:
    """What is the mean of a measure at every step, and how sure is it?

    Prompts are averaged first. The interval is over heads at their places, or over trainings (`over="sources"`), which
    counts heads of one training as one observation. `window` averages each over that many neighbouring checkpoints
    (the paper: 8), fewer at the ends.
    """
    if window < 1:
        raise KeyholeError(f"a window of {window} checkpoints averages nothing: give 1 (no smoothing) or more.")
    units, dropped = _units(emerged, name, role, over)
    back, ahead = (window - 1) // 2, window // 2
    found = []
    for i in range(len(emerged.steps)):
        near = torch.nanmean(units[:, max(0, i - back) : i + ahead + 1], dim=1)
        found.append(_interval(near, dropped[i]))
    return found


def change(
    emerged: Emergence,
    name: str = "sparsity",
    *,
    against: str | None = None,
    role: str | None = None,
    first: int = 0,
    last: int = -1,
    over: Over = "places",
) -> Interval:
    """By how much did a measure change between two checkpoints (by index), place by place?

    `against` another measure, such as a control: by how much more than that one did it change?
    """
    units, dropped = _units(emerged, name, role, over)
    difference = units[:, last] - units[:, first]
    if against is not None:
        other, _ = _units(emerged, against, role, over)
        difference = difference - (other[:, last] - other[:, first])
    return _interval(difference, dropped[first] + dropped[last])


def _units(emerged: Emergence, name: str, role: str | None, over: Over) -> tuple[Float[Tensor, "unit step"], list[int]]:
    """The measure of every place or training at every step, NaN where no prompt has it, and how many rows had none."""
    if name not in MEASURES:
        raise KeyholeError(f"there is no measure {name!r}: choose one of {', '.join(MEASURES)}.")
    if role is not None and role not in emerged.roles:
        raise KeyholeError(f"no head was measured as {role!r}: there are {', '.join(emerged.roles)}.")
    steps, dropped = range(len(emerged.steps)), [0] * len(emerged.steps)
    values: dict[tuple[str, str, tuple[int, int]], list[list[float]]] = {}
    for i, rows in enumerate(emerged.rows):
        for row in rows:
            if role in (None, row.role):
                value = float(getattr(row, name))
                dropped[i] += math.isnan(value)
                key = (row.source, row.role, row.head)
                values.setdefault(key, [[] for _ in steps])[i].append(value)
    places = {key: [float(torch.tensor(v).nanmean()) for v in series] for key, series in values.items()}
    if over == "places":
        return torch.tensor(list(places.values()), dtype=torch.float64), dropped
    sources = dict.fromkeys(source for source, _, _ in places)
    grouped = [torch.tensor([v for (s, _, _), v in places.items() if s == source]) for source in sources]
    return torch.stack([group.double().nanmean(0) for group in grouped]), dropped


def _interval(values: Float[Tensor, "unit"], dropped: int) -> Interval:
    values = values[values.isfinite()]
    if not len(values):
        return Interval(math.nan, math.nan, math.nan, 0, dropped)
    return Interval(*interval(values.tolist()), len(values), dropped)
