"""How does it read whether heads share directions? Near-equal pairs beside their control, clusters, and tasks."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from keyhole.brief import model_label
from keyhole.shared.taken import cluster_text, draws_text, taken_text

if TYPE_CHECKING:
    from keyhole.shared.alike import Likeness
    from keyhole.shared.record import Shared, SharedSide

_CLUSTERS = 5
TASK_COLUMNS = (
    *("head", "side", ">prompts", ">prompts there", ">overlap", ">as halves", ">halves", ">halves there"),
    *(">chance", ">p", ">q", "channels"),
)
PAIR_COLUMNS = ("side", "head", "other head", ">cosine")


def shared_text(found: "Shared") -> str:
    """A few lines for each side, and the tasks."""
    lines = [opening(found)]
    for side in found.sides:
        lines += ["", *side_lines(side)]
    if len(found.stores) > 1:
        lines += ["", *task_lines(found)]
    return "\n".join(lines)


def opening(found: "Shared") -> str:
    """What was compared."""
    return (
        f"{model_label(found.model)}, {found.prompts} prompts of {found.stores[0]}; near-equal: a cosine above "
        f"{found.limit:g}{draws_text(found.settings['draws'])}"
    )


def side_lines(side: "SharedSide") -> list[str]:
    """One side: signals, clusters, channels."""
    first, *groups = head_lines(side)
    lines = [first, *[f"  signals {_line(one)}" for one in side.signals], *[f"  {line}" for line in groups]]
    ends = side.channels[:: max(1, len(side.channels) - 1)]
    return lines + [f"  {side.used} channels {_line(one)}" for one in ends]


def head_lines(side: "SharedSide") -> list[str]:
    """Do heads share directions, and which are nearly equal?"""
    if not side.signals:
        return [f"{side.side} side: too few heads, or all in one layer: nothing to compare"]
    said = "more" if side.coordinate else "no more"
    groups = [f"near-equal: {cluster_text(group)}" for group in side.clusters[:_CLUSTERS]]
    first = (
        f"{side.side} side: {len(side.heads)} heads, {said} near-equal pairs than by other channels or by anisotropy"
    )
    return [first, *groups]


def likeness_table(side: "SharedSide") -> tuple[tuple[str, ...], list[tuple[str | float | int, ...]]]:
    """Near-equal pairs and mean cosines of signals and of channels, beside other channels."""
    columns = (
        "what",
        "taken out",
        ">pairs",
        ">nearly equal",
        ">other channels",
        ">p",
        ">mean cosine",
        ">other channels",
    )
    rows: list[tuple[str | float | int, ...]] = [
        (
            *(what, taken_text(one.taken), one.pairs, round(one.near[0] * one.pairs)),
            *(one.shuffled_near[0] * one.pairs, one.p, one.cosine[0], one.shuffled_cosine[0]),
        )
        for what, made in (("signals", side.signals), ("channels", side.channels))
        for one in made
    ]
    return columns, rows


def _line(one: "Likeness") -> str:
    count, other = round(one.near[0] * one.pairs), one.shuffled_near[0] * one.pairs
    return (
        f"{taken_text(one.taken)}: {count} of {one.pairs:,} pairs nearly equal (other channels {other:.1f}, p "
        f"{one.p:.2g}), mean cosine {one.cosine[0]:.3f} (other channels {one.shuffled_cosine[0]:.3f})"
    )


def task_lines(found: "Shared") -> list[str]:
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


def task_rows(found: "Shared") -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """A row per head and side in two tasks."""
    rows = [
        (
            f"{one.layer}.{one.head}",
            one.side,
            *one.prompts,
            one.overlap,
            one.between,
            *one.within,
            one.chance,
            one.p,
            one.q,
            one.found,
        )
        for one in found.tasks
    ]
    return TASK_COLUMNS, rows


def pair_rows(found: "Shared") -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """A row per near-equal pair of heads in different layers, the nearest first."""
    rows = [
        (side.side, f"{a[0]}.{a[1]}", f"{b[0]}.{b[1]}", float(side.cosines[i, j]))
        for side in found.sides
        for i, a in enumerate(side.heads)
        for j, b in enumerate(side.heads[:i])
        if a[0] != b[0] and side.cosines[i, j] > found.limit
    ]
    return PAIR_COLUMNS, sorted(rows, key=lambda row: -row[3])


def shared_data(found: "Shared") -> dict[str, Any]:
    """As plain data, with what follows from it."""
    told = asdict(found)
    for plain, side in zip(told["sides"], found.sides, strict=True):
        plain |= {"cosines": np.round(side.cosines, 4).tolist(), "coordinate": side.coordinate}
    for plain, one in zip(told["tasks"], found.tasks, strict=True):
        plain |= {"share": one.share, "found": one.found}
    return told
