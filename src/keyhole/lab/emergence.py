"""When do heads become sparse, and when do they begin to push the answer?

When does a head's attention become sparse? S(v) and N_recon of chosen heads over the checkpoints of a training.

S(v) is compared with both rotation controls (see `keyhole.qk.controls`), N_recon with `refactor` alone, which keeps
every score. Neither control needs a rotation of the whole space. With p, q two random orthonormal vectors of n numbers
and g, h Gaussian ones, terms of the same distribution are

    refactor   |l| p * |r| (cos p + sin q)      of l = a / sqrt(sigma), r = b sqrt(sigma) and the angle between them
    ambient    sigma * g * h                    up to a factor, which S(v) does not see

so that the ambient control knows the spectrum alone, and the refactor control the angle alone.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypedDict, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.brief import Head
from keyhole.circuits.records import Writer
from keyhole.errors import KeyholeError
from keyhole.intervene.removal import Metric
from keyhole.intervene.writers import answers_without
from keyhole.models.model import Model
from keyhole.models.numbers import exact_matmul
from keyhole.models.run import Run
from keyhole.qk.channels import Row, check_place, n_recon, score_row, sparsity
from keyhole.qk.controls import ambient_draws, refactor_draws
from keyhole.qk.omega import Basis, omega
from keyhole.stats import Interval, as_text, interval
from keyhole.tasks.answers import answer_ids
from keyhole.tasks.example import Example
from keyhole.tracing.linear import linear_direction
from keyhole.tracing.svt import head_outputs
from keyhole.tracing.upstream import Writes


@dataclass(frozen=True)
class Place:
    """Where one head is looked at: dest and src are roles of an Example, or positions, or texts of tokens."""

    role: str
    head: Head
    dest: str | int
    src: str | int
    task: str | None = None  # measured in examples of this task; None: in every prompt


@dataclass(frozen=True)
class EmergenceRow:
    """One place in one prompt at one checkpoint. NaN: not defined there."""

    role: str
    head: Head
    prompt: int  # which of the prompts
    dest: int
    src: int
    channels: int  # n; S(v) lies between 1/n and 1
    visible: int  # keys that dest sees
    attention: float
    relative_attention: float
    sparsity: float  # S(v); NaN where all terms are zero, or where dest sees one key
    ambient: float  # the same in rotated bases, mean over draws
    refactor: float
    n_recon: float  # channels that reach the relative attention; NaN where it is not positive
    n_recon_refactor: float
    n_recon_tolerant: float  # that reach `tolerance` of it
    n_recon_tolerant_refactor: float
    source: str = ""  # which training, where several are put together


@dataclass(frozen=True)
class Emergence:
    """All rows of a training, checkpoint after checkpoint."""

    steps: tuple[int, ...]
    rows: tuple[tuple[EmergenceRow, ...], ...]  # one tuple per step

    @property
    def roles(self) -> tuple[str, ...]:
        """Which roles were measured?"""
        return tuple(dict.fromkeys(row.role for row in self.rows[0]))

    @property
    def channels(self) -> int:
        """How many channels have the measured heads? The n of the first, where they differ."""
        return self.rows[0][0].channels


@dataclass(frozen=True)
class _Chance:
    draws: int
    tolerance: float
    stream: torch.Generator


class Measuring(TypedDict, total=False):
    """What `measure` takes beside places and prompts."""

    draws: int
    tolerance: float
    seed: int
    basis: Basis
    source: str


def measure(
    model: Model,
    places: Sequence[Place],
    prompts: Example | str | Sequence[Example | str],
    *,
    draws: int = 20,
    tolerance: float = 0.95,
    seed: int = 0,
    basis: Basis = "linear",
    source: str = "",
) -> list[EmergenceRow]:
    """How sparse is the attention at these places of one model? One row for every place and prompt of its task.

    The same seed gives every checkpoint the same random draws, so that a control moves only with the model.
    """
    prompts = [prompts] if isinstance(prompts, Example | str) else list(prompts)
    _check_request(places, prompts, draws=draws, tolerance=tolerance)
    runs = model.run_many([p.text if isinstance(p, Example) else p for p in prompts])
    stream, rows = torch.Generator().manual_seed(seed), []
    for place in places:
        for index, (prompt, run) in enumerate(zip(prompts, runs, strict=True)):
            if place.task is None or (isinstance(prompt, Example) and prompt.task == place.task):
                dest, src = (_position(run, prompt, where) for where in (place.dest, place.src))
                chance = _Chance(draws, tolerance, stream)
                rows.append(_row(run, place, (index, dest, src), chance, basis=basis, source=source))
    return rows


def emergence(
    checkpoints: Iterable[tuple[int, Model]],
    places: Sequence[Place],
    prompts: Example | str | Sequence[Example | str],
    **options: Unpack[Measuring],
) -> Emergence:
    """Does attention become sparse as the model is trained? `measure` at every checkpoint; one model at a time.

    Args:
        checkpoints: Steps with their models, one at a time.
        places: Heads, and the tokens between which each is measured.
        prompts: Texts, or examples of a task with roles.
        **options: What `measure` takes: `draws`, `tolerance`, `seed`, `basis`, `source`.

    >>> import keyhole
    >>> from keyhole.tasks import ioi
    >>> place = Place("name mover", (3, 1), "END", "IO")
    >>> emergence([(0, keyhole.load())], [place], ioi(1, 0), draws=1).roles
    ('name mover',)
    """
    measured: dict[int, tuple[EmergenceRow, ...]] = {}
    for step, model in checkpoints:
        if step in measured:
            raise KeyholeError(f"there are two checkpoints of step {step}, and their order is unclear: give one.")
        measured[step] = tuple(measure(model, places, prompts, **options))
        del model  # a generator of checkpoints frees each before it loads the next, if nobody else holds it
    if not measured:
        raise KeyholeError("there are no checkpoints, so nothing can emerge: give pairs (step, model).")
    return Emergence(tuple(sorted(measured)), tuple(measured[step] for step in sorted(measured)))


def _check_request(places: Sequence[Place], prompts: Sequence[Example | str], *, draws: int, tolerance: float) -> None:
    if not places or not prompts:
        raise KeyholeError("nothing is to be measured: give at least one place and one prompt.")
    if draws < 1 or not 0 < tolerance <= 1:
        raise KeyholeError(
            f"draws is {draws} and tolerance {tolerance}: give one draw or more, and 0 < tolerance <= 1."
        )
    tasks = {prompt.task for prompt in prompts if isinstance(prompt, Example)}
    for place in places:
        if place.task is not None and place.task not in tasks:
            raise KeyholeError(f"the role {place.role!r} needs a prompt of the task {place.task!r}, but there is none.")


def _position(run: Run, prompt: Example | str, where: str | int) -> int:
    if isinstance(prompt, Example) and isinstance(where, str):
        return prompt.position(run, where)
    return run.position(where)


def _row(
    run: Run,
    place: Place,
    where: tuple[int, int, int],
    chance: _Chance,
    *,
    basis: Basis,
    source: str,
) -> EmergenceRow:
    prompt, d, s = where
    layer, head, _, _ = check_place(run, place.head, d, s)
    with exact_matmul():
        row = score_row(run, layer, head, d, basis=basis)
        sigma = _spectrum(run, row, (layer, head), basis)
        terms, rest = row.relative(s - row.first)
        refactored = _refactored(row, s, sigma, chance)
        ambient = ambient_draws(sigma, chance.draws, chance.stream)
    singular, total = sparsity(terms), float(terms.sum()) + rest
    counts = [(_count([terms], t, total), _count(refactored, t, total)) for t in (1.0, chance.tolerance)]
    return EmergenceRow(
        role=place.role,
        head=(layer, head),
        prompt=prompt,
        dest=d,
        src=s,
        channels=len(terms),
        visible=len(row.B),
        attention=float(run.attention_run(layer).weights([head], [d])[0, 0, s]),
        relative_attention=total,
        sparsity=singular,
        ambient=math.nan if math.isnan(singular) else _mean([sparsity(drawn) for drawn in ambient]),
        refactor=_mean([sparsity(drawn) for drawn in refactored]),
        n_recon=counts[0][0],
        n_recon_refactor=counts[0][1],
        n_recon_tolerant=counts[1][0],
        n_recon_tolerant_refactor=counts[1][1],
        source=source,
    )


def rotated_terms(
    run: Run, head: Head, dest: int, src: int, *, draws: int = 20, seed: int = 0, basis: Basis = "linear"
) -> Float[Tensor, "draw channel"]:
    """The terms of one relative attention in refactored channels: other terms with the same sum, draw by draw."""
    layer, index, d, s = check_place(run, head, dest, src)
    chance = _Chance(draws, 1.0, torch.Generator().manual_seed(seed))
    with exact_matmul():
        row = score_row(run, layer, index, d, basis=basis)
        return _refactored(row, s, _spectrum(run, row, (layer, index), basis), chance)


def _spectrum(run: Run, row: Row, head: Head, basis: Basis) -> Float[Tensor, "channel"]:
    return omega(run.model, head[0], basis).sigma[head[1], : len(row.a)].double().cpu()


def _refactored(row: Row, src: int, sigma: Float[Tensor, "channel"], chance: _Chance) -> Float[Tensor, "draw channel"]:
    root, b = sigma.sqrt(), row.relative_key(src - row.first).double().cpu()
    return refactor_draws(row.a.double().cpu() / root, b * root, chance.draws, chance.stream)


def _count(drawn: Iterable[Tensor], tolerance: float, total: float) -> float:
    counts = [n_recon(terms, tolerance, total) for terms in drawn] if total > 0 else []
    return _mean([float(count) for count in counts if count is not None])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


# Does a head push the answer? What it writes at END does so directly, and the answer without that write in all.
#
#     direct = (sum over src of A_END,src v_src W_O) . (W_U[answer] - W_U[wrong]) / scale of the final norm
#     total  = (logit(answer) - logit(wrong)) less the same difference when the head writes nothing at END
#
# Where a head looks does not decide that: one that looks at the answer's token may write against it, and later heads
# may make up for what it writes. Hence two numbers, each over prompts with its interval.


@dataclass(frozen=True)
class Push:
    """What a head does to logit(answer) - logit(wrong) by its write at END."""

    direct: Interval
    total: Interval

    @property
    def directly(self) -> bool:
        """Does its write point to the answer beyond doubt, and does the answer not gain beyond doubt without it?"""
        return self.direct[1] > 0 and not self.total[2] < 0

    @property
    def by_all_paths(self) -> bool:
        """Does the answer lose beyond doubt without it?"""
        return self.total[1] > 0

    def __str__(self) -> str:
        """In words.

        >>> print(Push(Interval(0.5, 0.25, 0.75), Interval(-0.5, -0.75, -0.25)))
        adds 0.500 [0.250, 0.750] to the logit difference directly, which changes by 0.500 [0.250, 0.750] without it
        """
        mean, low, high = self.total
        without = as_text(Interval(-mean, -high, -low))
        return f"adds {as_text(self.direct)} to the logit difference directly, which changes by {without} without it"


def pushes(ran: Sequence[tuple[Example, Run]], heads: Sequence[Head]) -> dict[Head, Push]:
    """What each of these heads does to the answers of some prompts."""
    direct: dict[Head, list[float]] = {head: [] for head in heads}
    total: dict[Head, list[float]] = {head: [] for head in heads}
    for example, run in ran if heads else ():
        metric, written = metric_of(example, run), _direct(example, run)
        end, before = metric.end, metric.of(run.logits[-1])
        silent = [[Writer("head", *head, end, src) for src in range(end + 1)] for head in heads]
        for head, after in zip(heads, answers_without(run, silent, metric), strict=True):
            direct[head].append(written[head])
            total[head].append(before - after)
    return {head: Push(interval(direct[head]), interval(total[head])) for head in heads}


def metric_of(example: Example, run: Run) -> Metric:
    """The logit of an example's answer against those of wrong ones, as the tokens that would follow the prompt."""
    ids = answer_ids(run.model, example)
    return Metric(len(run) - 1, ids.answers, ids.against)


def _direct(example: Example, run: Run) -> dict[Head, float]:
    """What every head's write at END adds to the logit difference."""
    metric, layers = metric_of(example, run), run.model.attention_layers
    with exact_matmul():
        writes = Writes([run])
        along = linear_direction(writes, 0, metric.end, list(metric.targets), list(metric.against))
        written = head_outputs(writes, len(layers), metric.end)
        added = (written @ (along / run.final_scale[metric.end]).to(written)).tolist()
    return {(layer, head): value for layer, row in zip(layers, added, strict=True) for head, value in enumerate(row)}
