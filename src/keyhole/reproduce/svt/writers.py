"""Who writes to name movers? What upstream heads contribute in the slices of a firing, and in all slices."""

import torch
from matplotlib.figure import Figure
from torch import Tensor

from keyhole.figures import save
from keyhole.figures.network import name_of
from keyhole.figures.style import blank, heading, tidy
from keyhole.lab.heads.sparse import Head
from keyhole.reproduce.job import Attempt, Job, Numbers
from keyhole.reproduce.outcome import Outcome
from keyhole.reproduce.svt.ioi import LEAST, Subject, is_gpt2, judged, subject
from keyhole.reproduce.svt.network import known_here
from keyhole.stats import interval
from keyhole.tracing.svt import ChannelChoice, contributions, significant

_KINDS: tuple[ChannelChoice, ChannelChoice] = ("singular", "all")
_OTHERS: dict[Head, tuple[Head, ...]] = {(9, 9): ((7, 3), (7, 9))}  # published beside 8.6


def filtered(job: Job) -> Outcome:
    """Do the slices of a firing single out the heads that matter, where the whole residual shows many?"""
    seen = subject(job)
    movers, inhibits = seen.role("name mover")[:2], seen.role("S-inhibition")
    numbers: Numbers = {}
    lines, fewer, stands_out = [], [], []
    panels: dict[str, Tensor] = {}
    for head in movers:
        (values, some), (whole, every) = (_contributed(seen, head, kind) for kind in _KINDS)
        panels |= {f"{name_of(head)}, all slices": whole, f"{name_of(head)}, slices of the firing": values}
        less = interval([float(a - b) for a, b in zip(some, every, strict=True)])
        fewer.append(less[2] < 0)
        top = [divmod(int(i), values.shape[1]) for i in values.flatten().argsort(descending=True)[:3]]
        named = [(seen.model.attention_layers[row], column) for row, column in top]
        wanted = _OTHERS.get(head, ()) if is_gpt2(job.model) else ()
        stands_out.append(named[0] in inhibits and set(wanted) <= set(named))
        means = [sum(counts) / len(counts) for counts in (some, every)]
        numbers |= {f"{name_of(head)} singular: heads": means[0], f"{name_of(head)} all: heads": means[1]}
        numbers[f"{name_of(head)} fewer"] = list(less)
        lines.append(
            f"{name_of(head)} at END: 70 % of all contributions come from {means[0]:.1f} heads in the slices of the "
            f"firing, and from {means[1]:.1f} in all slices (difference {less[0]:.1f} [{less[1]:.1f}, {less[2]:.1f}]); "
            f"the largest are {', '.join(map(name_of, named))}."
        )
    path = save(_heat_figure(panels), job.folder / "contributions.png")
    note = (
        "Asked of each: fewer heads in the slices of the firing (an interval over prompts below 0), and an "
        f"S-inhibition head as the largest, in GPT-2 also 7.3 and 7.9 next to it for 9.9; nothing if no S-inhibition "
        f"head is the largest. Means over {len(seen.examples)} prompts. S-inhibition heads: "
        f"{', '.join(map(name_of, inhibits))}. {known_here(job)}"
    )
    verdict = judged(job, [*fewer, *stands_out], first=any(stands_out) and len(seen.examples) >= LEAST)
    return Outcome(verdict, "\n".join(lines), numbers, (path,), note)


def _contributed(seen: Subject, head: Head, kind: ChannelChoice) -> tuple[Tensor, list[int]]:
    """Mean contribution of every upstream head at END, each prompt's scaled to its largest, and how many matter."""
    total, chosen = [], []
    for example, run in seen.runs():
        found = contributions(run, head, example.position(run, "END"), example.position(run, "IO"), channels=kind)
        values = found.at_dest.double().cpu()
        total.append(values / values.abs().max().clamp_min(1e-30))
        chosen.append(int(significant(values).sum()))
    return torch.stack(total).mean(0), chosen


def _heat_figure(panels: dict[str, Tensor]) -> Figure:
    layers, heads = next(iter(panels.values())).shape
    figure = blank(0.9 + len(panels) * (0.28 * heads + 1.0), 1.8 + 0.3 * layers)
    heading(figure, "What upstream heads contribute at END, mean over prompts")
    for axis, (name, values) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        tidy(axis, name, x="head", y="layer" if name == next(iter(panels)) else "")
        axis.imshow(values.tolist(), cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto", origin="lower")
        axis.set_yticks(range(values.shape[0]))
    return figure


RUNS: dict[str, Attempt] = {"svt-fig4": filtered}
