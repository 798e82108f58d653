"""Do circuits fall into families, and what do these follow: the order of names, or the wording?"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Int
from matplotlib.figure import Figure

from keyhole.family import Agreement, Families, Level
from keyhole.family.agreement import Beside
from keyhole.family.clusters import LEVEL
from keyhole_papers.job import Attempt
from keyhole_papers.results import Numbers, Verdict
from keyhole_papers.talk.signals import published_name
from keyhole_papers.talk.study import Prompts, Study, of_study, sets_apart
from keyhole_papers.told import Experiment, Told, judged, stood_in

LABELS = ("order", "wording")
_CLEAR = 0.5  # of an agreement that is 0 by chance and 1 at most: what families follow, they follow for the most part
_DRAWS = 199


@dataclass(frozen=True)
class Split:
    """Families of circuits at all granularities, and how well labels tell to which a circuit belongs."""

    of: Prompts
    levels: tuple[Level, ...]  # edges with channels first, as published
    tells: Mapping[str, Beside]  # by label, of the first level's cut; empty: there is none
    found: Families | None = None  # to be drawn

    @property
    def believed(self) -> bool:
        """Are there families at all?"""
        return self.levels[0].clustering.separate

    def agreement(self, label: str) -> Agreement | None:
        """None: the right answers have one value of it alone."""
        return next((one for one in self.levels[0].agreement if one.label == label), None)


def split_of(seen: Study) -> Split:
    """The cut beside order and wording."""
    found = seen.families
    cut = found.clustering.cut
    tells = {} if cut is None else {name: tells_of(found.values[name], cut.labels) for name in _known(found.values)}
    return Split(seen.of, found.levels, tells, found)


def tells_of(
    values: tuple[str | None, ...], labels: Int[np.ndarray, "circuits"], *, draws: int = _DRAWS, seed: int = 0
) -> Beside:
    """How well do a label and the cut tell each other? Of both, the one with more groups tells the other.

    The share of circuits that are in the commonest group of the other one, above that of shuffled labels: 0 by chance,
    1 if groups of the finer one lie within those of the other. So families may be few wordings each, or an order may
    have two families, and labels of 2 and of 15 values can be held against each other, as by ARI they cannot.

    >>> told = tells_of(("a", "a", "b", "b", "c", "c") * 5, np.array([1, 1, 2, 2, 2, 2] * 5))
    >>> told.value, told.p
    (1.0, 0.005)
    """
    rng = np.random.default_rng(seed)
    inside = np.array([value is not None for value in values]) & (labels > 0)
    codes = np.unique(np.array([str(value) for value in values])[inside], return_inverse=True)[1]
    own = np.unique(labels[inside], return_inverse=True)[1]
    if len(np.unique(own)) > len(np.unique(codes)):
        codes, own = own, codes
    share = _purity(codes, own)
    null = np.array([_purity(rng.permutation(codes), own) for _ in range(draws)])
    room = 1 - float(null.mean())
    if room <= 0:
        return Beside(0.0, 0.0, 0.0, 1.0)
    above = (null - null.mean()) / room
    p = (1 + int((null >= share - 1e-12).sum())) / (draws + 1)
    return Beside((share - float(null.mean())) / room, 0.0, float(np.quantile(above, 0.95)), p)


def judge_order(record: Split) -> Verdict:
    """Do families follow the order of names? More families than two orders are a part of it."""
    one = record.agreement("order")
    two = one is not None and one.ari is not None and one.ari.p <= LEVEL and one.ari.value >= _CLEAR
    return judged(record.of, [True, two], first=_follows(record, "order", "wording"))


def judge_wording(record: Split) -> Verdict:
    """Do families follow the wording?"""
    return judged(record.of, [True], first=_follows(record, "wording", "order"), real=is_pythia)


def is_pythia(model: str | None) -> bool:
    """Is this the published model of talk-15?"""
    return published_name(model) == "Pythia-160M"


def _follows(record: Split, label: str, other: str) -> bool:
    """There are families; a label tells them, for the most part and better than another; and sets circuits apart."""
    one, tells, its = record.agreement(label), record.tells.get(label), record.tells.get(other)
    if not record.believed or one is None or tells is None:
        return False
    clear = tells.p <= LEVEL and tells.value >= _CLEAR
    return clear and (its is None or tells.value > its.value) and sets_apart(one)


def _tell(record: Split, *, wording: bool) -> Told:
    level = record.levels[0]
    cut, numbers = level.clustering.cut, _numbers(record)
    if cut is None:
        return Told(f"{record.of.right} circuits: no cut leaves two families.", numbers, _note(record, wording))
    steady = float(level.clustering.stability[level.clustering.best or 0].mean())
    worst = max((null.p for null in level.clustering.nulls), default=1.0)
    lines = [
        f"{record.of.right} circuits, as sets of edges with channels: the best cut is into {cut.families} families "
        f"(silhouette {cut.silhouette:.3f}, stability {steady:.2f}, p {worst:.2g} beside worlds without families) and "
        f"{'is believed' if record.believed else 'is not believed'}."
    ]
    for label in LABELS:
        one, tells = record.agreement(label), record.tells.get(label)
        if one is None or one.ari is None or tells is None:
            continue
        lines.append(
            f"{label} ({one.values} values): ARI {one.ari.value:.2f} (95 % of shuffled labels: {one.ari.high:.2f}); "
            f"families told {tells.value:.2f} ({tells.high:.2f}); explains {one.explained.value:.3f} of the squared "
            f"distances ({one.explained.high:.3f}); nearest circuit alike {one.nearest.value:.0%} "
            f"({one.nearest.high:.0%})."
        )
    return Told("\n".join(lines), numbers, _note(record, wording))


def _numbers(record: Split) -> Numbers:
    numbers: Numbers = {"circuits": record.of.right, "believed": int(record.believed)}
    for level in record.levels:
        cut = level.clustering.cut
        numbers |= {f"{level.granularity}: mean distance": level.mean_distance}
        if cut is None:
            continue
        numbers |= {f"{level.granularity}: families": cut.families, f"{level.granularity}: silhouette": cut.silhouette}
        numbers |= {f"{level.granularity}: believed": int(level.clustering.separate)}
        for one in level.agreement:
            if one.label in LABELS and one.ari is not None:
                numbers |= {f"{level.granularity}: ARI with {one.label}": one.ari.value}
                numbers |= {f"{level.granularity}: explained by {one.label}": one.explained.value}
                numbers |= {f"{level.granularity}: nearest alike in {one.label}": one.nearest.value}
    return numbers | {f"{label} and families": tells.value for label, tells in record.tells.items()}


def _note(record: Split, wording: bool) -> str:
    label, other = ("wording", "order") if wording else ("order", "wording")
    ari = "" if wording else f" For all of the claim, an ARI of {_CLEAR:g} or more: families are the two orders."
    stood = stood_in(record.of, "Pythia-160M", real=is_pythia) if wording else stood_in(record.of)
    return (
        "Asked: a cut by average linkage that is stable under resampling and better than cuts of two worlds without "
        f"families; {label} and families tell each other, the finer the coarser ({_CLEAR:g} or more on a scale where "
        f"chance is 0 and certainty 1), better than {other} and families do; circuits of the same {label} are nearer "
        f"than others, and so is the nearest one. All against shuffled labels, p {LEVEL:g}.{ari} {record.of.note} "
        f"{stood}"
    )


def _draw(record: Split) -> Mapping[str, Figure]:
    return {} if record.found is None else {"families": record.found.plot()}


def _known(values: Mapping[str, object]) -> list[str]:
    return [label for label in LABELS if label in values]


def _purity(codes: Int[np.ndarray, "circuits"], told: Int[np.ndarray, "circuits"]) -> float:
    table = np.zeros((int(codes.max(initial=0)) + 1, int(told.max(initial=0)) + 1))
    np.add.at(table, (codes, told), 1)
    return float(table.max(1).sum() / max(len(codes), 1))


RUNS: dict[str, Attempt] = {
    "talk-14": Experiment(partial(of_study, split_of), judge_order, partial(_tell, wording=False), _draw),
    "talk-15": Experiment(partial(of_study, split_of), judge_wording, partial(_tell, wording=True), _draw),
}
