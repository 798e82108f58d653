"""Who writes to name movers? What upstream heads contribute in the slices of a firing, and in all slices."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from matplotlib.figure import Figure
from torch import Tensor

from keyhole.models.heads import Head, head_name
from keyhole.stats import Interval
from keyhole.tracing.svt import contributions, significant
from keyhole.tracing.svt_settings import ChannelChoice
from keyhole_papers.experiment import Experiment
from keyhole_papers.finding import Finding, Findings, of_part
from keyhole_papers.job import Attempt, Job
from keyhole_papers.provenance import Provenance
from keyhole_papers.svt.ioi import LEAST, Subject, listed, subject
from keyhole_papers.svt.known import known_here
from keyhole_papers.svt.panels import panels

_KINDS: tuple[ChannelChoice, ChannelChoice] = ("singular", "all")
_OTHERS: dict[Head, tuple[Head, ...]] = {(9, 9): ((7, 3), (7, 9))}  # published beside 8.6


@dataclass(frozen=True)
class Heard:
    """What upstream heads contribute to a name mover at END."""

    head: Head
    singular: Tensor  # layer x head, in the slices of the firing, mean over prompts
    whole: Tensor  # in all slices
    some: tuple[int, ...]  # heads that matter in each prompt, in the slices of the firing
    every: tuple[int, ...]  # in all slices
    largest: tuple[Head, ...]  # three, in the slices of the firing

    @property
    def fewer(self) -> Interval:
        """How many more heads matter in the slices of the firing than in all?"""
        return Interval.over(float(a - b) for a, b in zip(self.some, self.every, strict=True))


@dataclass(frozen=True)
class Filtered:
    """Two name movers."""

    of: Provenance
    prompts: int
    inhibits: tuple[Head, ...]
    movers: tuple[Heard, ...]


def measure(job: Job) -> Filtered:
    """What upstream heads contribute, with and without the choice of slices."""
    seen = subject(job)
    movers, inhibits = seen.role("name mover")[:2], seen.role("S-inhibition")
    heard = tuple(_heard(seen, head) for head in movers)
    return Filtered(seen.of, len(seen.examples), inhibits, heard)


def _heard(seen: Subject, head: Head) -> Heard:
    (values, some), (whole, every) = (_contributed(seen, head, kind) for kind in _KINDS)
    top = [divmod(int(i), values.shape[1]) for i in values.flatten().argsort(descending=True)[:3]]
    largest = tuple((seen.model.attention_layers[row], column) for row, column in top)
    return Heard(head, values, whole, some, every, largest)


def _contributed(seen: Subject, head: Head, kind: ChannelChoice) -> tuple[Tensor, tuple[int, ...]]:
    """Mean contribution of every upstream head at END, each prompt's scaled to its largest, and how many matter."""
    total, chosen = [], []
    for example, run in seen.runs():
        found = contributions(run, head, example.position(run, "END"), example.position(run, "IO"), channels=kind)
        values = found.at_dest.double().cpu()
        total.append(values / values.abs().max().clamp_min(1e-30))
        chosen.append(int(significant(values).sum()))
    return torch.stack(total).mean(0), tuple(chosen)


def findings(record: Filtered) -> Findings:
    """Do the slices of a firing single out the heads that matter, where the whole residual shows many?"""
    rows, stands_out = list[Finding](), list[bool]()
    for one in record.movers:
        wanted = _OTHERS.get(one.head, ()) if record.of.real else ()
        stands_out.append(one.largest[0] in record.inhibits and set(wanted) <= set(one.largest))
        some, every = (sum(counts) / len(counts) for counts in (one.some, one.every))
        beside = f", with {listed(wanted)} next to it" if wanted else ""
        rows += of_part(
            f"{head_name(one.head)} at END",
            Finding("heads, singular", some, digits=1),
            Finding("heads, all", every, digits=1),
            Finding("fewer", one.fewer, "an interval below 0", one.fewer.high < 0, digits=1),
            Finding("largest", listed(one.largest), f"an S-inhibition head first{beside}", stands_out[-1]),
        )
    remark = (
        "Heads: those that 70 % of all contributions come from, in the slices of the firing (singular) and in all "
        f"slices; means over {record.prompts} prompts. S-inhibition heads: {listed(record.inhibits)}. "
        f"{known_here(record.of)}"
    )
    first = any(stands_out) and record.prompts >= LEAST
    unless = "an S-inhibition head is the largest of one of them"
    return Findings(rows, record.of, first=first, unless=unless, remark=remark)


def _draw(record: Filtered) -> Mapping[str, Figure]:
    maps: dict[str, Tensor] = {}
    for one in record.movers:
        name = head_name(one.head)
        maps |= {f"{name}, all slices": one.whole, f"{name}, slices of the firing": one.singular}
    layers, heads = record.movers[0].whole.shape
    size = 0.9 + len(maps) * (0.28 * heads + 1.0), 1.8 + 0.3 * layers
    title = "What upstream heads contribute at END, mean over prompts"
    figure, axes = panels(maps, title, size, x="head", y="layer", sharey=False)
    for axis, values in zip(axes, maps.values(), strict=True):
        axis.imshow(values.tolist(), cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto", origin="lower")
        axis.set_yticks(range(values.shape[0]))
    return {"contributions": figure}


RUNS: dict[str, Attempt] = {"svt-fig4": Experiment(measure, findings, _draw)}
