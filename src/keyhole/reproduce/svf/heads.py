"""Do few channels rebuild the attention of heads? GPT-2 on IOI prompts, or what stands in for it."""

from keyhole.errors import MissingModelError
from keyhole.figures import save
from keyhole.lab.heads.figures import n_recon_figure
from keyhole.lab.heads.summary import pooled, summaries, summarise
from keyhole.reproduce.job import Attempt, Job, Numbers
from keyhole.reproduce.outcome import Outcome
from keyhole.reproduce.svt.ioi import judged, measured, stood_in

_FEW = 1 / 3  # of a head's channels


def rebuilt(job: Job) -> Outcome:
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
    whole = pooled(seen.ioi)
    roles = {role: summarise([seen.ioi.of(head) for head in heads]).n_recon for role, heads in seen.roles.items()}
    roles = {role: one for role, one in roles.items() if one.low <= one.high}  # without those that hardly fire
    differ = any(a.high < b.low for a in roles.values() for b in roles.values())
    numbers: Numbers = {"heads": len(each), "N_recon": whole.n_recon.mean, "N_recon, rotated": whole.n_rotated.mean}
    numbers |= {"share of heads with few": small, "share of heads below rotated": fewer}
    numbers |= {f"N_recon, {role}": [one.mean, one.low, one.high] for role, one in roles.items()}
    by_role = ", ".join(f"{role} {one}" for role, one in roles.items()) or "none fires"
    text = (
        f"{len(each)} heads fire on {seen.ioi.prompts} prompts: N_recon {whole.n_recon} of {channels} channels, "
        f"in rotated bases {whole.n_rotated}. Its median is a third of the channels or less in {small:.0%} of "
        f"the heads, and it is smaller than in rotated bases beyond doubt in {fewer:.0%}. By role: {by_role}."
    )
    path = save(n_recon_figure([seen.ioi]), job.folder / "n-recon.png")
    note = (
        "Asked: few in most heads, fewer than in rotated bases in most (without which nothing is shown), and roles "
        f"that differ beyond doubt. Intervals over prompts. {stood_in(job)}"
    )
    verdict = judged(job, [small > 0.5, fewer > 0.5, differ], first=fewer > 0.5)
    return Outcome(verdict, text, numbers, (path,), note)


RUNS: dict[str, Attempt] = {"svf-fig8a": rebuilt}
