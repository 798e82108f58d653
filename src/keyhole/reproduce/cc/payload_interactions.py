"""Which entries of the latents meet in a payload head's scores? The matrix G: its diagonal, and its symmetry off it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from keyhole.figures import interaction_figure, save
from keyhole.lab.payload.features import diagonal_share, interaction
from keyhole.lab.payload.task import Latents
from keyhole.lab.payload.toy import Payload
from keyhole.reproduce.cc.payload import SEEDS, Setting, are_trained, as_trained, heads_of, told_training, untrained
from keyhole.reproduce.job import Attempt, Job, Numbers
from keyhole.reproduce.outcome import Outcome, Verdict
from keyhole.stats import told

_SETTINGS: list[Setting] = [(3, 4, 8), (6, 6, 8), (4, 8, 16), (10, 10, 16)]
_DIAGONAL = 0.9  # of G's energy where it is called diagonal
_UNRELATED = 0.25  # asymmetry half-way between symmetric (0) and unrelated halves (.5)
_WHAT = "Asymmetry: share of the off-diagonal energy in (G - G^T) / 2; 0 if symmetric, .5 if both halves are unrelated."


@dataclass(frozen=True)
class Met:
    """The matrices G of one setting's heads, one per seed."""

    heads: Sequence[Payload]
    matrices: Sequence[Tensor]
    untrained: Tensor

    @property
    def diagonal(self) -> list[float]:
        """Share of G's energy on its diagonal, by seed."""
        return [diagonal_share(G) for G in self.matrices]

    @property
    def asymmetry(self) -> list[float]:
        """How asymmetric G is off its diagonal, by seed."""
        return [asymmetry(G) for G in self.matrices]


Grid = Mapping[Setting, Met]


def continuous(job: Job) -> Outcome:
    """Do latents keep to themselves where they fit, and share directions where they do not?"""
    found = met(job, "gaussian")
    numbers: Numbers = {}
    lines = []
    for setting, own in found.items():
        key, most = _key(setting), bound(setting)
        numbers |= {f"{key} diagonal": own.diagonal, f"{key} bound": most, f"{key} asymmetry": own.asymmetry}
        numbers[f"{key} untrained diagonal"] = diagonal_share(own.untrained)
        lines.append(
            f"{key}: {told(own.diagonal)} of G's energy on the diagonal, where its rank leaves an even one at most "
            f"{most:.3f} and an untrained head has {diagonal_share(own.untrained):.3f}."
        )
    note = (
        f"Diagonal: at least {_DIAGONAL}. That entries appear off it beyond capacity is forced: G has rank d_head at "
        "most, and an even diagonal then holds at most d_head / (r1 + r2) of its energy; an uneven one may hold more. "
        f"{SEEDS} {told_training(_heads(found))}"
    )
    verdict = as_trained(judged_diagonal(found), _heads(found))
    return Outcome(verdict, "\n".join(lines), numbers, _draw(job, found, "gaussian"), note)


def discrete(job: Job) -> Outcome:
    """Is G less symmetric than with continuous latents of the same setting?"""
    found, other = met(job, "discrete"), met(job, "gaussian")
    numbers: Numbers = {}
    lines = []
    for setting, own in found.items():
        key, beside = _key(setting), other[setting]
        numbers |= {f"{key} asymmetry": own.asymmetry, f"{key} continuous asymmetry": beside.asymmetry}
        numbers |= {f"{key} diagonal": own.diagonal, f"{key} untrained asymmetry": asymmetry(own.untrained)}
        lines.append(
            f"{key}: asymmetry off the diagonal {told(own.asymmetry)}, with continuous latents "
            f"{told(beside.asymmetry)}, in an untrained head {asymmetry(own.untrained):.3f}; {told(own.diagonal)} of "
            "G's energy on the diagonal."
        )
    within = [key for key in found if sum(found[key].asymmetry) < sum(other[key].asymmetry) and fits(key)]
    opposite = " and ".join(map(_key, within))
    note = (
        f"{_WHAT} The verdict is about settings beyond capacity, where G has entries off its diagonal: every discrete "
        f"seed must exceed every continuous one (else not), by a mean of at least {_UNRELATED} (else partly: mostly "
        f"symmetric still). {f'Within capacity it is the other way round: {opposite}. ' if within else ''}"
        f"{SEEDS} {told_training([*_heads(found), *_heads(other)])}"
    )
    verdict = as_trained(judged_symmetry(found, other), _heads(found))
    return Outcome(verdict, "\n".join(lines), numbers, _draw(job, found, "discrete"), note)


def judged_diagonal(found: Grid) -> Verdict:
    """Diagonal within capacity, and less so beyond?"""
    within = [value for setting, own in found.items() if fits(setting) for value in own.diagonal]
    beyond = [value for setting, own in found.items() if not fits(setting) for value in own.diagonal]
    if not are_trained(_heads(found)) or not within or min(within) < _DIAGONAL:
        return "not"
    return "reproduced" if beyond and max(beyond) < min(within) else "partly"


def judged_symmetry(found: Grid, other: Grid) -> Verdict:
    """Beyond capacity: less symmetric than continuous latents, and by much?"""
    beyond = [setting for setting in found if not fits(setting)]
    trained = are_trained([*_heads(found), *_heads(other)])
    if not trained or not beyond or any(min(found[s].asymmetry) <= max(other[s].asymmetry) for s in beyond):
        return "not"
    means = [sum(found[s].asymmetry) / len(found[s].asymmetry) for s in beyond]
    return "reproduced" if min(means) >= _UNRELATED else "partly"


def met(job: Job, latents: Latents) -> dict[Setting, Met]:
    """G of the heads of every setting."""
    heads = heads_of(job, _SETTINGS, latents)
    return {
        setting: Met(own, [interaction(head) for head in own], interaction(untrained(own[:1])[0]))
        for setting, own in heads.items()
    }


def fits(setting: Setting) -> bool:
    """Do both latents fit into the head?"""
    return setting[0] + setting[1] <= setting[2]


def bound(setting: Setting) -> float:
    """How much of its energy can G hold on an even diagonal? tr(G)^2 <= rank |G|^2, and |diagonal|^2 = tr(G)^2 / r.

    >>> bound((6, 6, 8)), bound((3, 4, 8))
    (0.6666666666666666, 1.0)
    """
    return min(1.0, setting[2] / (setting[0] + setting[1]))


def asymmetry(G: Tensor) -> float:
    """How much of G's off-diagonal energy is antisymmetric?

    >>> import torch
    >>> asymmetry(torch.tensor([[5.0, 1.0], [-1.0, 5.0]]))
    1.0
    """
    off = (G - G.diagonal().diag()).double()
    return float(((off - off.T) / 2).square().sum() / off.square().sum().clamp_min(1e-30))


def _heads(found: Grid) -> list[Payload]:
    return [head for own in found.values() for head in own.heads]


def _key(setting: Setting) -> str:
    return "({}, {}) in {}".format(*setting)


def _draw(job: Job, found: Grid, latents: Latents) -> tuple[Path, ...]:
    paths = []
    for (r1, r2, d_head), own in found.items():
        title = f"G, {latents}, ranks {r1} and {r2} in {d_head} dimensions"
        figure = interaction_figure(own.matrices[0], (r1, r2), title=title)
        paths.append(save(figure, job.folder / f"interaction-{r1}-{r2}-{d_head}.png"))
    return tuple(paths)


RUNS: dict[str, Attempt] = {"cc-fig5": continuous, "cc-fig13": discrete}
