"""What is odd about the name mover 9.6, and what do the top layers of the traced network look like?"""

from dataclasses import replace

from matplotlib.figure import Figure

from keyhole.figures import save
from keyhole.figures.style import BLUE, INK, RED, blank, heading, tidy
from keyhole.lab.experiments.svt import Edge, network_figure, traced
from keyhole.lab.experiments.svt_cuts import falls, single
from keyhole.lab.intervals import interval
from keyhole.lab.ioi_studies import is_gpt2, judged, stood_in, subject
from keyhole.lab.job import Experiment, Job, Numbers
from keyhole.lab.outcome import Outcome
from keyhole.lab.signal_effects import Effect, effects
from keyhole.lab.sparse import Head
from keyhole.tracing.firing import SideName

_ODD = 2  # 9.6 is the third of the name movers
_LEAST = 65 / 256  # in how many prompts an edge must be
_SIDES: tuple[tuple[SideName, str], ...] = (("dest", "END"), ("src", "IO"))


def rises(job: Job) -> Outcome:
    """Does the logit difference rise although attention falls, when signals are removed for this head alone?"""
    found = falls(job, _ODD, "dest", "local")
    attention, answer = _triple(found, "attention"), _triple(found, "logit difference")
    alike = found.numbers["rank correlation of both"]
    assert isinstance(alike, float)
    return replace(found, verdict=judged(job, [attention[2] < 0, answer[1] > 0, alike < 0]))


def inverted(job: Job) -> Outcome:
    """Does global removal lower the logit difference, local removal raise it, and local boosting lower it?"""
    found = single(job, "name mover", _ODD, ("dest",))
    holds, odd = [], ""
    if "END, global: removed" in found.numbers:
        removed, local, boosted = (
            _triple(found, f"END, {what}") for what in ("global: removed", "local: removed", "local: boosted")
        )
        holds = [removed[2] < 0, local[1] > 0, boosted[2] < 0]
        if removed[1] > 0 and local[1] > 0:
            odd = "Global removal raises the logit difference too: here the two do not oppose each other. "
    return replace(found, verdict=judged(job, holds), note=f"{odd}{found.note}")


def _triple(found: Outcome, name: str) -> tuple[float, float, float]:
    value = found.numbers[name]
    assert isinstance(value, list)
    mean, low, high = value
    return mean, low, high


# -- all at once ---------------------------------------------------------------------------------------------------


def all_into(job: Job) -> Outcome:
    """Does the logit difference rise locally and fall globally, when all signals into the head are removed?"""
    found, head = effects(job, "name mover", _ODD)
    numbers: Numbers = {}
    means: dict[str, tuple[float, float, float]] = {}
    lines = []
    for side, token in _SIDES:
        for mode in ("local", "global"):
            own = _all_at_once([one for one in found if (one.side, one.mode) == (side, mode)])
            if len(own) < 2:
                continue
            where = f"{token}, {mode}"
            answer, attention = interval([one.answer for one in own]), interval([one.attention for one in own])
            means[where] = answer
            numbers |= {f"{where}: logit difference": list(answer), f"{where}: attention": list(attention)}
            lines.append(
                f"{where}, {len(own)} prompts: all signals removed together change the logit difference by "
                f"{_text(answer)} and attention by {_text(attention)}."
            )
    both = [token for _, token in _SIDES if f"{token}, local" in means and f"{token}, global" in means]
    holds = [means[f"{token}, local"][1] > 0 and means[f"{token}, global"][2] < 0 for token in both]
    path = save(_means_figure(means, head), job.folder / "together.png")
    note = (
        f"Head {head[0]}.{head[1]} stands where 9.6 is; its signals at END and at IO are removed in turn, as sets. "
        f"{stood_in(job)}"
    )
    return Outcome(judged(job, holds), "\n".join(lines) or "This head has no signals.", numbers, (path,), note)


def _all_at_once(own: list[Effect]) -> list[Effect]:
    """Per prompt, the removal of all signals; where there is but one signal, its own."""
    found: dict[int, Effect] = {}
    for one in sorted(own, key=lambda effect: effect.together):
        found[one.prompt] = one
    return list(found.values())


def _means_figure(means: dict[str, tuple[float, float, float]], head: Head) -> Figure:
    figure = blank(5.4, 3.4)
    heading(figure, f"All signals into {head[0]}.{head[1]} removed together")
    axis = figure.subplots()
    tidy(axis, y="change of the logit difference")
    for at, (where, (mean, low, high)) in enumerate(means.items()):
        axis.bar([at], [mean], color=BLUE if "local" in where else RED, width=0.6)
        axis.plot([at, at], [low, high], color=INK, linewidth=1.2)
    axis.axhline(0, color=INK, linewidth=0.8)
    axis.set_xticks(range(len(means)), list(means))
    return figure


def _text(value: tuple[float, float, float]) -> str:
    mean, low, high = value
    return f"{mean:.3f} [{low:.3f}, {high:.3f}]"


# -- top layers ----------------------------------------------------------------------------------------------------


def top(job: Job) -> Outcome:
    """Are name movers and S-inhibition heads joined by many paths, each to several of the others?"""
    seen, found = subject(job), traced(job)
    movers, inhibitors = set(found.starts), set(seen.roles.get("S-inhibition", ())) - set(found.starts)
    if is_gpt2(job.model):
        inhibitors |= {(7, 3), (7, 9)}  # the heads that the figure names
    lowest = min(layer for layer, _ in movers | inhibitors)
    edges = {edge: share for edge, share in found.frequent(_LEAST).items() if edge[0][0] >= lowest}
    among = {(a, b) for a, b, _ in edges if {a, b} <= movers | inhibitors}
    crossing = {(a, b) for a, b in among if a in inhibitors and b in movers}
    several = sum(len({a for a, b in crossing if b == mover}) > 1 for mover in movers)
    numbers: Numbers = {
        "edges": len(edges),
        "pairs among both roles": len(among),
        "S-inhibition to name mover": len(crossing),
        "name movers with several S-inhibition heads": several,
        "prompts": found.traced,
    }
    text = (
        f"{len(edges)} edges in {_LEAST:.0%} or more of {found.traced} prompts lie in layers {lowest} and above; "
        f"{len(among)} pairs of heads of both roles are joined, {len(crossing)} of them an S-inhibition head with a "
        f"name mover; {several} of {len(movers)} name movers hear several S-inhibition heads."
    )
    title = f"Layers {lowest} and above of the traced network, with numbers of prompts out of {found.traced}"
    figure = network_figure(edges, movers | inhibitors, seen.model.dims.heads, title)
    _count(figure, edges, found.traced)
    path = save(figure, job.folder / "top.png")
    names = "; ".join(
        f"{role}: {', '.join(f'{layer}.{head}' for layer, head in sorted(heads)) or 'none'}"
        for role, heads in (("name movers", movers), ("other heads for S-inhibition", inhibitors))
    )
    holds = [len(among) > len(movers), several >= 2]
    return Outcome(judged(job, holds), text, numbers, (path,), f"{names}. {stood_in(job)}")


def _count(figure: Figure, edges: dict[Edge, float], prompts: int) -> None:
    """Write on each line in how many prompts it was found."""
    axis = figure.axes[0]
    for (a, b, side), share in edges.items():
        part = 0.35 if side == "src" else 0.6  # lines of two sides lie beside each other
        x, y = (a[i] + part * (b[i] - a[i]) for i in range(2))
        box = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}
        shade = BLUE if side == "src" else RED
        axis.text(x, y, f"{share * prompts:.0f}", fontsize=7, color=shade, ha="center", va="center", bbox=box)


RUNS: dict[str, Experiment] = {
    "svt-fig14": top,
    "svt-fig18": rises,
    "svt-fig21": inverted,
    "svt-fig27": all_into,
}
