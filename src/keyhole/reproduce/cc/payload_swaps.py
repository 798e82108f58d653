"""Does attention follow the latents of a payload head? Key coordinates swapped in their subspaces and random ones."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise

from keyhole.contrast.edits.moves import Effect
from keyhole.figures import intervention_figure, save
from keyhole.lab.payload.features import Swaps, swaps
from keyhole.lab.payload.toy import Payload
from keyhole.reproduce.cc.payload import (
    SEEDS,
    Setting,
    are_trained,
    as_trained,
    attended,
    feature_of,
    heads_of,
    told_training,
    untrained,
)
from keyhole.reproduce.job import Attempt, Job, Numbers
from keyhole.reproduce.outcome import Outcome, Verdict
from keyhole.stats import interval, told

_CONDITIONS = ("null", "z1", "z2", "both", "random_z1", "random_z2", "random_both", "full")
_LEFT = 0.02  # attention that may stay on the original when "all" of it moves
_MOVED = 0.9  # of the attention that the right token can get
_FAR_LESS = 0.6  # of what both latents move

Heads = Mapping[Setting, Sequence[Payload]]
Results = Mapping[Setting, Sequence[Swaps]]


def swapped(job: Job, settings: Sequence[Setting], seeds: int = 3) -> Outcome:
    """Does attention follow swapped latents, and more than swapped random coordinates?"""
    heads = heads_of(job, settings, "discrete", seeds)
    results = {setting: [_swaps(job, head) for head in own] for setting, own in heads.items()}
    numbers: Numbers = {}
    panels, lines = {}, []
    for setting, own in results.items():
        key = "({}, {}) in {}".format(*setting)
        panels[key] = [_pooled([getattr(s, name) for s in own]) for name in _CONDITIONS]
        moved = {name: [getattr(s, name).shift for s in own] for name in _CONDITIONS[1:]}
        numbers |= {f"{key} {name}": values for name, values in moved.items()}
        numbers[f"{key} left"] = left = [s.both.orig for s in own]
        before = [s.null.orig for s in own]
        control = _swaps(job, untrained(heads[setting][:1])[0])
        numbers[f"{key} untrained both"] = control.both.shift
        lines.append(
            f"{key}: both latents move {told(moved['both'])} of attention and leave {told(left)} of {told(before)} on "
            f"the original; whole keys {told(moved['full'])}, z1 {told(moved['z1'])}, z2 {told(moved['z2'])}, random "
            f"of the same rank {told(moved['random_both'])}; in an untrained head both move {control.both.shift:.3f}."
        )
    path = save(intervention_figure(panels, title="Attention after swaps, mean over seeds"), job.folder / "swaps.png")
    every = [head for own in heads.values() for head in own]
    note = (
        "The random control of both latents is small only where r1 + r2 is well below d_head: at d_head it is the "
        f"whole swap. The verdict asks that both leave at most {_LEFT} on the original and move {_MOVED} of what the "
        "right token can get (else not); and, for more than partly, that every head's swap exceeds random ones below "
        f"d_head (95 % over samples), that random ones move less than {_FAR_LESS} of it where the latents fill least, "
        "and that this share grows and never falls the more they fill. Targets differ from the original in both "
        f"latents; {_randoms(job)} random subspaces each. {SEEDS} "
        f"{told_training(every)}"
    )
    return Outcome(as_trained(judged(heads, results), every), "\n".join(lines), numbers, (path,), note)


def judged(heads: Heads, results: Results) -> Verdict:
    """Do trained heads follow both latents, and random coordinates far less?"""
    pairs = [(head, s) for setting in heads for head, s in zip(heads[setting], results[setting], strict=True)]
    follows = all(
        s.both.orig <= _LEFT
        and s.both.shift >= _MOVED * attended(head.settings)
        and s.both.shift >= 0.95 * s.full.shift
        for head, s in pairs
    )
    if not follows or not are_trained([head for head, _ in pairs]):
        return "not"
    shares = _random_shares(results)
    beyond = all(s.both.interval[0] > 0 for (a, b, d_head), own in results.items() if a + b < d_head for s in own)
    return "reproduced" if beyond and shares[0] < _FAR_LESS and grows(shares) else "partly"


def _random_shares(results: Results) -> list[float]:
    """What random coordinates move of what both latents do, the more the latents fill of the head."""
    filled = sorted(results, key=lambda setting: (setting[0] + setting[1]) / setting[2])
    return [sum(s.random_both.shift for s in results[x]) / sum(s.both.shift for s in results[x]) for x in filled]


def grows(values: Sequence[float]) -> bool:
    """Does it rise from first to last and never fall? One value may stand alone.

    >>> grows([0.5, 0.5, 0.9]), grows([0.5, 0.4, 0.9]), grows([0.5, 0.5])
    (True, False, False)
    """
    return len(values) == 1 or (values[-1] > values[0] and all(later >= earlier for earlier, later in pairwise(values)))


def _swaps(job: Job, head: Payload) -> Swaps:
    z1, z2 = feature_of(job, head, "z1"), feature_of(job, head, "z2")
    return swaps(head, z1, z2, samples=1024 if job.quick else 51_200, randoms=_randoms(job), seed=job.seed)


def _randoms(job: Job) -> int:
    return 2 if job.quick else 10


def _pooled(effects: Sequence[Effect]) -> Effect:
    """The mean of an effect over seeds; its intervals are over seeds too."""

    def mean(name: str) -> float:
        return float(sum(getattr(effect, name) for effect in effects) / len(effects))

    normalised, low, high = interval([effect.normalised for effect in effects])
    shift, low_shift, high_shift = interval([effect.shift for effect in effects])
    return Effect(
        name=effects[0].name,
        rank=round(mean("rank")),
        orig=mean("orig"),
        target=mean("target"),
        shift=shift,
        random=mean("random"),
        full=mean("full"),
        normalised=normalised,
        interval=(low, high),
        shift_interval=(low_shift, high_shift),
    )


_SIXTEEN: list[Setting] = [(4, 4, 16), (4, 8, 16), (6, 8, 16), (8, 8, 16)]
_EIGHT: list[Setting] = [(2, 2, 8), (3, 3, 8), (3, 4, 8), (4, 4, 8)]
_runs: dict[str, Callable[[Job], Outcome]] = {
    "cc-fig4": partial(swapped, settings=[(3, 5, 16)], seeds=5),
    "cc-fig14": partial(swapped, settings=_SIXTEEN),
    "cc-fig15": partial(swapped, settings=_EIGHT),
}
RUNS: dict[str, Attempt] = _runs
