"""Do few channels rebuild the attention of heads? GPT-2 on IOI prompts, or what stands in for it."""

from collections.abc import Mapping
from dataclasses import dataclass

from matplotlib.figure import Figure

from keyhole.errors import MissingModelError
from keyhole.lab.heads.figures import n_recon_figure
from keyhole.lab.heads.sparse import SparseStudy
from keyhole.lab.heads.summary import Spread, Summary, pooled, summaries, summarise
from keyhole_papers.experiment import Experiment
from keyhole_papers.finding import Finding, Findings, Interval, rows_of
from keyhole_papers.job import Attempt, Job
from keyhole_papers.provenance import Provenance
from keyhole_papers.svt.ioi import measured

_FEW = 1 / 3  # of a head's channels


@dataclass(frozen=True)
class Rebuilt:
    """N_recon of heads that fire; shares are of these heads."""

    of: Provenance
    study: SparseStudy
    channels: int
    heads: int
    small: float  # with a median of few channels
    fewer: float  # with fewer than in rotated bases beyond doubt
    whole: Summary  # all pairs together
    roles: Mapping[str, Spread]


def measure(job: Job) -> Rebuilt:
    """Is N_recon small for most heads, below that of rotated bases, and different between roles?"""
    seen = measured(job)
    each = summaries(seen.ioi)
    if not each:
        raise MissingModelError(
            f"no head of {seen.model.name} fires in five of {seen.ioi.prompts} prompts, so none can be counted: give "
            "another model."
        )
    channels = max(table.channels for table in seen.ioi.tables)
    small = sum(one.n_recon.median <= channels * _FEW for one in each) / len(each)
    fewer = sum(one.fewer.high < 0 for one in each) / len(each)
    roles = {role: summarise([seen.ioi.of(head) for head in heads]).n_recon for role, heads in seen.roles.items()}
    roles = {role: one for role, one in roles.items() if one.low <= one.high}  # without those that hardly fire
    return Rebuilt(seen.of, seen.ioi, channels, len(each), small, fewer, pooled(seen.ioi), roles)


def findings(found: Rebuilt) -> Findings:
    """Is N_recon small for most heads, below that of rotated bases, and different between roles?"""
    differ = any(a.high < b.low for a in found.roles.values() for b in found.roles.values())
    fewer = found.fewer > 0.5
    whole, roles = found.whole, {f"N_recon, {role}": Interval.of(one) for role, one in found.roles.items()}
    rows = [
        *rows_of({"heads": found.heads, "channels": found.channels, "N_recon": Interval.of(whole.n_recon)}),
        Finding("N_recon, rotated", Interval.of(whole.n_rotated)),
        Finding("share of heads with few", found.small, "most", found.small > 0.5, percent=True),
        Finding("share of heads below rotated", found.fewer, "most", fewer, percent=True),
        Finding("roles", ", ".join(found.roles) or "none fires", "two that differ beyond doubt", differ),
        *rows_of(roles),
    ]
    unless = "N_recon is below that of rotated bases in most heads"
    remark = "Few: a median of a third of the channels or less. Below: beyond doubt. Intervals over prompts."
    return Findings(rows, found.of, first=fewer, unless=unless, remark=remark)


def _draw(found: Rebuilt) -> Mapping[str, Figure]:
    return {"n-recon": n_recon_figure([found.study])}


RUNS: dict[str, Attempt] = {"svf-fig8a": Experiment(measure, findings, _draw)}
