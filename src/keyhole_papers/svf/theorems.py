"""Do the theorems on singular vectors and features hold? Random instances in float64, with the margins they leave."""

from collections.abc import Callable, Sequence
from functools import partial

from keyhole.lab.svf import theorems
from keyhole.lab.svf.theorems import Check
from keyhole.lab.svf.theorems_orthogonal import theorem_4
from keyhole.stats import told
from keyhole_papers.job import Attempt, Job
from keyhole_papers.results import Numbers, Verdict
from keyhole_papers.told import Experiment, Told

_SEEDS = 5
_SCOPE = (
    "The theorems take fixed features, one pair, strengths of 0 or 1 and a query independent of its keys; nothing is "
    "proved about features that are trained too."
)
_CAVEATS = {
    "svf-thm1": "Singular vectors lie along the detectors Sigma^-1 x: along features only if isotropic.",
    "svf-thm3": "The two sharper bounds, each side by itself, are ours; the verdict asks for them too.",
    "svf-thm4": "The bound is printed without an absolute value; it is measured with an orthogonal comparison pair.",
}


def measure(job: Job, check: Callable[[Sequence[int]], Check]) -> Check:
    """Does the theorem hold on random instances, and with what margin?"""
    return check(range(job.seed, job.seed + (1 if job.quick else _SEEDS)))


def _judge(found: Check) -> Verdict:
    return "reproduced" if found.holds else "not"


def _tell(found: Check, caveat: str) -> Told:
    numbers: Numbers = {f"worst {one.name}": one.worst for one in found.measures}
    numbers |= {f"limit of {one.name}": one.limit for one in found.measures}
    numbers |= {name: list(values) for name, values in found.beside.items()}
    numbers |= {"cases": found.applicable, "cases drawn": found.drawn}
    parts = [f"{one.name} at most {one.worst:.2g} (limit {one.limit:g})" for one in found.measures]
    parts += [f"{name} {told(values, 2)}" for name, values in found.beside.items()]
    applies = f"{found.applicable:,} of {found.drawn:,} cases meet its assumptions"
    measured = f"{found.name}: {'; '.join(parts)}; {applies}."
    return Told(measured, numbers, f"{caveat} {_SCOPE}".strip())


_CHECKS: dict[str, Callable[[Sequence[int]], Check]] = {
    "svf-thm1": theorems.theorem_1,
    "svf-thm2": theorems.theorem_2,
    "svf-thm3": theorems.theorem_3,
    "svf-thm4": theorem_4,
    "svf-lemma3": theorems.lemma_3,
}
RUNS: dict[str, Attempt] = {
    id: Experiment(partial(measure, check=check), _judge, partial(_tell, caveat=_CAVEATS.get(id, "")))
    for id, check in _CHECKS.items()
}
