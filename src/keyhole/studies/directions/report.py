"""How does it read whether heads share directions? Near-equal pairs and their control, clusters, and tasks."""

from dataclasses import asdict
from typing import Any

import numpy as np

from keyhole.brief import model_label
from keyhole.report import Picture, Report, Section, Table
from keyhole.studies.directions.figure import shared_figure
from keyhole.studies.directions.heard import cluster_text, draws_text, taken_text
from keyhole.studies.directions.record import Shared, SharedSide

_CLUSTERS = 5
_TASKS = (
    *("head", "side", ">prompts", ">prompts there", ">overlap", ">as halves", ">halves", ">halves there"),
    *(">chance", ">p", ">q", "channels"),
)
_READ = (
    "Signals are means per head over the firings of circuits, in residual space; channels are the vectors that a head "
    "uses in a fifth of its prompts or more. Other channels: as many random ones of the same heads. Only heads of "
    "different layers are compared. Numbers above bars: nearly equal pairs."
)


def report(found: Shared) -> Report:
    """What was compared; each side; and, with two stores, each head in both tasks."""
    picture = Picture(lambda: shared_figure(found), "Cosines of heads; near-equal pairs and their control")
    pairs, tasks = _pair_rows(found), _task_rows(found)
    both = [Section("Channels in two tasks", ["\n".join(_task_lines(found)), tasks])] if len(found.stores) > 1 else []
    said = "; ".join(f"{side.side} side: {'yes' if side.coordinate else 'no'}" for side in found.sides)
    asked = "More near-equal signals across layers than with other channels of the same heads, anisotropy apart?"
    return Report(
        f"Do heads coordinate through shared directions? {model_label(found.model)}",
        f"{_opening(found)}.\n\n{asked} {said}.",
        [
            Section("Heads, pairs and tasks", [_READ, picture], page_only=True),
            *(
                Section(f"{side.side} side", ["\n".join(_head_lines(side)), _likeness_table(side)])
                for side in found.sides
            ),
            Section("Near-equal pairs of signals", ["" if pairs.rows else "None.", pairs], page_only=True),
            *both,
        ],
        tasks if found.tasks else pairs,
        picture,
    )


def _opening(found: Shared) -> str:
    """What was compared."""
    return (
        f"{model_label(found.model)}, {found.prompts} prompts of {found.stores[0]}; near-equal: a cosine above "
        f"{found.limit:g}{draws_text(found.settings['draws'])}"
    )


def _head_lines(side: SharedSide) -> list[str]:
    """Do heads share directions, and which are nearly equal?"""
    if not side.signals:
        return [f"{side.side} side: too few heads, or all in one layer: nothing to compare"]
    said = "more" if side.coordinate else "no more"
    groups = [f"near-equal: {cluster_text(group)}" for group in side.clusters[:_CLUSTERS]]
    first = f"{len(side.heads)} heads, {said} near-equal pairs than by other channels or by anisotropy"
    return [f"{side.side} side: {first}; {side.used} channels are used often", *groups]


def _likeness_table(side: SharedSide) -> Table:
    """Near-equal pairs and mean cosines of signals and of channels, beside other channels."""
    columns = (
        *("what", "taken out", ">pairs", ">pairs nearly equal", ">other channels", ">p"),
        *(">mean cosine", ">other channels"),
    )
    rows = [
        (
            *(what, taken_text(one.taken), one.pairs, round(one.near[0] * one.pairs)),
            *(one.shuffled_near[0] * one.pairs, one.p, one.cosine[0], one.shuffled_cosine[0]),
        )
        for what, made in (("signals", side.signals), ("channels", side.channels))
        for one in made
    ]
    return Table(columns, rows)


def _task_lines(found: Shared) -> list[str]:
    """Which heads use the same channels in both tasks?"""
    if not found.tasks:
        return [f"no head fires in ten prompts of both {found.stores[0]} and {found.stores[1]}"]
    lines = [f"{len(found.tasks)} sides of heads fire in both {found.stores[0]} and {found.stores[1]}"]
    for kind in ("same", "in part", "others"):
        own = [one for one in found.tasks if one.found == kind]
        named = ", ".join(f"{one.layer}.{one.head} {one.side} {one.share:.2f}" for one in own[:8])
        more = f" and {len(own) - 8} more" if len(own) > 8 else ""
        what = {"same": "the same channels", "in part": "in part the same", "others": "others"}[kind]
        lines.append(f"  {what}: {len(own)}{': ' if own else ''}{named}{more}")
    every = [(one.between, *one.within, one.chance) for one in found.tasks]
    between, here, there, chance = np.mean(every, axis=0).tolist()
    lines.append(
        f"  overlap of as many prompts: {between:.2f} between tasks, {here:.2f} and {there:.2f} in halves of one, "
        f"{chance:.2f} by chance"
    )
    return lines


def _task_rows(found: Shared) -> Table:
    """A row per head and side in two tasks."""
    rows = [
        (
            *(f"{one.layer}.{one.head}", one.side, *one.prompts, one.overlap, one.between, *one.within),
            *(one.chance, one.p, one.q, one.found),
        )
        for one in found.tasks
    ]
    return Table(_TASKS, rows)


def _pair_rows(found: Shared) -> Table:
    """A row per near-equal pair of heads in different layers, the nearest first."""
    rows = [
        (side.side, f"{a[0]}.{a[1]}", f"{b[0]}.{b[1]}", float(side.cosines[i, j]))
        for side in found.sides
        for i, a in enumerate(side.heads)
        for j, b in enumerate(side.heads[:i])
        if a[0] != b[0] and side.cosines[i, j] > found.limit
    ]
    rows.sort(key=lambda row: -row[3])
    return Table(("side", "head", "other head", ">cosine"), rows)


def shared_data(found: Shared) -> dict[str, Any]:
    """As plain data, with what follows from it."""
    told = asdict(found)
    for plain, side in zip(told["sides"], found.sides, strict=True):
        plain |= {"cosines": np.round(side.cosines, 4).tolist(), "coordinate": side.coordinate}
    for plain, one in zip(told["tasks"], found.tasks, strict=True):
        plain |= {"share": one.share, "found": one.found}
    return told
