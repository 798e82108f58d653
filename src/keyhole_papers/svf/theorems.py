"""Do the theorems on singular vectors and features hold? Random instances in float64, with the margins they leave."""

from collections.abc import Callable, Sequence
from functools import partial

from keyhole.lab.svf import theorems
from keyhole.lab.svf.theorems import Check, Measure
from keyhole.lab.svf.theorems_orthogonal import theorem_4
from keyhole_papers.experiment import Experiment
from keyhole_papers.finding import Finding, Findings, rows_of
from keyhole_papers.job import Attempt, Job
from keyhole_papers.provenance import TOY

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


def findings(found: Check, caveat: str) -> Findings:
    """Does every margin stay within its limit?"""
    rows = [Finding("all margins", "hold" if found.holds else "fail", "within their limits", found.holds)]
    rows += [row for one in found.measures for row in _within(one)]
    rows += rows_of({name: list(values) for name, values in found.beside.items()})
    rows += rows_of({"cases": found.applicable, "cases drawn": found.drawn})
    remark = f"Cases are those that meet the assumptions of {found.name}. {caveat} {_SCOPE}"
    return Findings(rows, TOY, remark=remark)


def _within(one: Measure) -> list[Finding]:
    return [Finding(f"worst {one.name}", one.worst), Finding(f"limit of {one.name}", one.limit)]


_CHECKS: dict[str, Callable[[Sequence[int]], Check]] = {
    "svf-thm1": theorems.theorem_1,
    "svf-thm2": theorems.theorem_2,
    "svf-thm3": theorems.theorem_3,
    "svf-thm4": theorem_4,
    "svf-lemma3": theorems.lemma_3,
}
RUNS: dict[str, Attempt] = {
    id: Experiment(partial(measure, check=check), partial(findings, caveat=_CAVEATS.get(id, "")))
    for id, check in _CHECKS.items()
}
