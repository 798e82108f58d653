"""Which entries of the latents meet in a payload head's scores? The matrix G: its diagonal, and its symmetry off it."""

from dataclasses import dataclass, field
from functools import partial

from matplotlib.figure import Figure
from torch import Tensor

from keyhole.figures.contrast.interaction import interaction_figure
from keyhole.lab.payload.features import diagonal_share, interaction
from keyhole.lab.payload.task import Latents
from keyhole.stats import told
from keyhole_papers.cc.payload import (
    SEEDS,
    Cell,
    Grid,
    Setting,
    as_trained,
    every,
    measured,
    told_training,
)
from keyhole_papers.choices import AS_PRINTED
from keyhole_papers.job import Attempt, Job
from keyhole_papers.results import Numbers, Verdict
from keyhole_papers.told import Experiment, Told

_SETTINGS = [Setting(3, 4, 8), Setting(6, 6, 8), Setting(4, 8, 16), Setting(10, 10, 16)]
_DIAGONAL = 0.9  # of G's energy where it is called diagonal
_UNRELATED = 0.25  # asymmetry half-way between symmetric (0) and unrelated halves (.5)
_WHAT = "Asymmetry: share of the off-diagonal energy in (G - G^T) / 2; 0 if symmetric, .5 if both halves are unrelated."


@dataclass(frozen=True)
class Interactions:
    """G in the heads of every setting, and beside discrete latents that of continuous ones."""

    latents: Latents
    found: Grid[Tensor]
    continuous: Grid[Tensor] = field(default_factory=dict)


def measure(job: Job, latents: Latents) -> Interactions:
    """Which entries meet, in trained heads and before training?"""
    kinds: tuple[Latents, ...] = (latents, "gaussian") if latents == "discrete" else (latents,)
    return Interactions(latents, *(measured(job, interaction, _SETTINGS, kind) for kind in kinds))


def judge_diagonal(record: Interactions) -> Verdict:
    """Diagonal within capacity, and less so beyond?"""
    within = [diagonal_share(G) for setting, cell in record.found.items() if setting.filled <= 1 for G in cell.found]
    beyond = [diagonal_share(G) for setting, cell in record.found.items() if setting.filled > 1 for G in cell.found]
    if not within or min(within) < _DIAGONAL:
        return "not"
    return as_trained("reproduced" if beyond and max(beyond) < min(within) else "partly", every(record.found))


def judge_symmetry(record: Interactions) -> Verdict:
    """Beyond capacity: less symmetric than continuous latents, and by much?"""
    beyond = [setting for setting in record.found if setting.filled > 1]
    pairs = [(_asymmetries(record.found[x]), _asymmetries(record.continuous[x])) for x in beyond]
    if not pairs or any(min(own) <= max(other) for own, other in pairs):
        return "not"
    least = min(sum(own) / len(own) for own, _ in pairs)
    return as_trained("reproduced" if least >= _UNRELATED else "partly", every(record.found, record.continuous))


def tell_diagonal(record: Interactions) -> Told:
    """Do latents keep to themselves where they fit, and share directions where they do not?"""
    numbers: Numbers = {}
    lines = []
    for setting, cell in record.found.items():
        own, most, raw = [diagonal_share(G) for G in cell.found], bound(setting), diagonal_share(cell.untrained[0])
        numbers |= {f"{setting} diagonal": own, f"{setting} bound": most}
        numbers |= {f"{setting} asymmetry": _asymmetries(cell), f"{setting} untrained diagonal": raw}
        lines.append(
            f"{setting}: {told(own)} of G's energy on the diagonal, where its rank leaves an even one at most "
            f"{most:.3f} and an untrained head has {raw:.3f}."
        )
    note = (
        f"Diagonal: at least {_DIAGONAL}. That entries appear off it beyond capacity is forced: G has rank d_head at "
        "most, and an even diagonal then holds at most d_head / (r1 + r2) of its energy; an uneven one may hold more. "
        f"{SEEDS} {told_training(every(record.found))}"
    )
    return Told("\n".join(lines), numbers, note)


def tell_symmetry(record: Interactions) -> Told:
    """Is G less symmetric than with continuous latents of the same setting?"""
    numbers: Numbers = {}
    lines, opposite = [], []
    for setting, cell in record.found.items():
        own, beside, raw = _asymmetries(cell), _asymmetries(record.continuous[setting]), asymmetry(cell.untrained[0])
        diagonal = [diagonal_share(G) for G in cell.found]
        numbers |= {f"{setting} asymmetry": own, f"{setting} continuous asymmetry": beside}
        numbers |= {f"{setting} diagonal": diagonal, f"{setting} untrained asymmetry": raw}
        lines.append(
            f"{setting}: asymmetry off the diagonal {told(own)}, with continuous latents {told(beside)}, in an "
            f"untrained head {raw:.3f}; {told(diagonal)} of G's energy on the diagonal."
        )
        opposite += [str(setting)] if sum(own) < sum(beside) and setting.filled <= 1 else []
    within = f"Within capacity it is the other way round: {' and '.join(opposite)}. " if opposite else ""
    note = (
        f"{_WHAT} The verdict is about settings beyond capacity, where G has entries off its diagonal: every discrete "
        f"seed must exceed every continuous one (else not), by a mean of at least {_UNRELATED} (else partly: mostly "
        f"symmetric still). {within}{SEEDS} {told_training(every(record.found, record.continuous))}"
    )
    return Told("\n".join(lines), numbers, note)


def draw(record: Interactions) -> dict[str, Figure]:
    """G of every setting's first seed."""
    figures = {}
    for (r1, r2, d_head), cell in record.found.items():
        title = f"G, {record.latents}, ranks {r1} and {r2} in {d_head} dimensions"
        figures[f"interaction-{r1}-{r2}-{d_head}"] = interaction_figure(cell.found[0], (r1, r2), title=title)
    return figures


def bound(setting: Setting) -> float:
    """How much of its energy can G hold on an even diagonal? tr(G)^2 <= rank |G|^2, and |diagonal|^2 = tr(G)^2 / r.

    >>> bound(Setting(6, 6, 8)), bound(Setting(3, 4, 8))
    (0.6666666666666666, 1.0)
    """
    return min(1.0, setting.d_head / (setting.r1 + setting.r2))


def asymmetry(G: Tensor) -> float:
    """How much of G's off-diagonal energy is antisymmetric?

    >>> import torch
    >>> asymmetry(torch.tensor([[5.0, 1.0], [-1.0, 5.0]]))
    1.0
    """
    off = (G - G.diagonal().diag()).double()
    return float(((off - off.T) / 2).square().sum() / off.square().sum().clamp_min(1e-30))


def _asymmetries(cell: Cell[Tensor]) -> list[float]:
    return [asymmetry(G) for G in cell.found]


RUNS: dict[str, Attempt] = {
    "cc-fig5": Experiment(partial(measure, latents="gaussian"), judge_diagonal, tell_diagonal, draw, heeds=AS_PRINTED),
    "cc-fig13": Experiment(partial(measure, latents="discrete"), judge_symmetry, tell_symmetry, draw, heeds=AS_PRINTED),
}
