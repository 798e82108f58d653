"""Do few channels rebuild the attention of heads? GPT-2 on IOI prompts, or what stands in for it."""

from collections.abc import Mapping
from dataclasses import dataclass

from matplotlib.figure import Figure

from keyhole.errors import MissingModelError
from keyhole.lab.heads.figures import n_recon_figure
from keyhole.lab.heads.sparse import SparseStudy
from keyhole.lab.heads.summary import Spread, Summary, pooled, summaries, summarise
from keyhole_papers.job import Attempt, Job
from keyhole_papers.results import Numbers, Verdict
from keyhole_papers.svt.ioi import measured
from keyhole_papers.told import Experiment, Told, judged, measured_on

_FEW = 1 / 3  # of a head's channels


@dataclass(frozen=True)
class Rebuilt:
    """N_recon of heads that fire; shares are of these heads."""

    model: str | None  # that was asked for
    about: str  # which prompts
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
    return Rebuilt(job.model, seen.prompts.about, seen.ioi, channels, len(each), small, fewer, pooled(seen.ioi), roles)


def _judge(found: Rebuilt) -> Verdict:
    differ = any(a.high < b.low for a in found.roles.values() for b in found.roles.values())
    return judged(found, [found.small > 0.5, found.fewer > 0.5, differ], first=found.fewer > 0.5)


def _tell(found: Rebuilt) -> Told:
    own, rotated = found.whole.n_recon, found.whole.n_rotated
    numbers: Numbers = {"heads": found.heads, "N_recon": own.mean, "N_recon, rotated": rotated.mean}
    numbers |= {"share of heads with few": found.small, "share of heads below rotated": found.fewer}
    numbers |= {f"N_recon, {role}": [one.mean, one.low, one.high] for role, one in found.roles.items()}
    by_role = ", ".join(f"{role} {one}" for role, one in found.roles.items()) or "none fires"
    text = (
        f"{found.heads} heads fire on {found.study.prompts} prompts: N_recon {own} of {found.channels} channels, "
        f"in rotated bases {rotated}. Its median is a third of the channels or less in "
        f"{found.small:.0%} of the heads, and it is smaller than in rotated bases beyond doubt in {found.fewer:.0%}. "
        f"By role: {by_role}."
    )
    note = (
        "Asked: few in most heads, fewer than in rotated bases in most (without which nothing is shown), and roles "
        f"that differ beyond doubt. Intervals over prompts. {measured_on(found, roles=True)}"
    )
    return Told(text, numbers, note)


def _draw(found: Rebuilt) -> Mapping[str, Figure]:
    return {"n-recon": n_recon_figure([found.study])}


RUNS: dict[str, Attempt] = {"svf-fig8a": Experiment(measure, _judge, _tell, _draw)}
