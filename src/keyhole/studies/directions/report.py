"""How does a study of shared directions read? Near-equal pairs and their control, clusters, and channels in tasks."""

from dataclasses import asdict
from typing import Any

import numpy as np

from keyhole.brief import first_few, model_label
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


def report(shared: Shared) -> Report:
    """What was compared; each side; and, with two stores, each head in both tasks."""
    picture = Picture(lambda: shared_figure(shared), "Cosines of heads; near-equal pairs and their control")
    pairs, tasks = _pair_rows(shared), _task_rows(shared)
    both = [Section("Channels in two tasks", ["\n".join(_task_lines(shared)), tasks])] if len(shared.stores) > 1 else []
    said = "; ".join(f"{side.side} side: {'yes' if side.coordinate else 'no'}" for side in shared.sides)
    question = "More near-equal signals across layers than with other channels of the same heads, anisotropy apart?"
    return Report(
        f"Do heads coordinate through shared directions? {model_label(shared.model)}",
        f"{_opening(shared)}.\n\n{question} {said}.",
        [
            Section("Heads, pairs and tasks", [_READ, picture], page_only=True),
            *(
                Section(f"{side.side} side", ["\n".join(_head_lines(side)), _likeness_table(side)])
                for side in shared.sides
            ),
            Section("Near-equal pairs of signals", ["" if pairs.rows else "None.", pairs], page_only=True),
            *both,
        ],
        tasks if shared.tasks else pairs,
        picture,
    )


def _opening(shared: Shared) -> str:
    """What was compared."""
    return (
        f"{model_label(shared.model)}, {shared.prompts} prompts of {shared.stores[0]}; near-equal: a cosine above "
        f"{shared.limit:g}{draws_text(shared.settings['draws'])}"
    )


def _head_lines(side: SharedSide) -> list[str]:
    """Do heads share directions, and which are nearly equal?"""
    if not side.signals:
        return [f"{side.side} side: too few heads, or all in one layer: nothing to compare"]
    said = "more" if side.coordinate else "no more"
    groups = [f"near-equal: {cluster_text(group)}" for group in side.clusters[:_CLUSTERS]]
    first = f"{len(side.heads)} heads, {said} near-equal pairs than other channels or anisotropy give"
    return [f"{side.side} side: {first}; {side.used} channels are used often", *groups]


def _likeness_table(side: SharedSide) -> Table:
    """Near-equal pairs and mean cosines of signals and of channels, compared with other channels."""
    columns = (
        *("what", "taken out", ">pairs", ">pairs nearly equal", ">other channels", ">p"),
        *(">mean cosine", ">other channels"),
    )
    rows = [
        (
            *(kind, taken_text(likeness.taken), likeness.pairs, round(likeness.near[0] * likeness.pairs)),
            *(likeness.shuffled_near[0] * likeness.pairs, likeness.p, likeness.cosine[0], likeness.shuffled_cosine[0]),
        )
        for kind, likenesses in (("signals", side.signals), ("channels", side.channels))
        for likeness in likenesses
    ]
    return Table(columns, rows)


def _task_lines(shared: Shared) -> list[str]:
    """Which heads use the same channels in both tasks?"""
    if not shared.tasks:
        return [f"no head fires in ten prompts of both {shared.stores[0]} and {shared.stores[1]}"]
    lines = [f"{len(shared.tasks)} sides of heads fire in both {shared.stores[0]} and {shared.stores[1]}"]
    for kind in ("same", "in part", "others"):
        heads = [use for use in shared.tasks if use.verdict == kind]
        named = first_few([f"{use.layer}.{use.head} {use.side} {use.share:.2f}" for use in heads], 8)
        name = {"same": "the same channels", "in part": "in part the same", "others": "others"}[kind]
        lines.append(f"  {name}: {len(heads)}{': ' if heads else ''}{named}")
    every = [(use.between, *use.within, use.chance) for use in shared.tasks]
    between, first, second, chance = np.mean(every, axis=0).tolist()
    lines.append(
        f"  overlap of as many prompts: {between:.2f} between tasks, {first:.2f} and {second:.2f} in halves of one, "
        f"{chance:.2f} by chance"
    )
    return lines


def _task_rows(shared: Shared) -> Table:
    """A row per head and side in two tasks."""
    rows = [
        (
            *(f"{use.layer}.{use.head}", use.side, *use.prompts, use.overlap, use.between, *use.within),
            *(use.chance, use.p, use.q, use.verdict),
        )
        for use in shared.tasks
    ]
    return Table(_TASKS, rows)


def _pair_rows(shared: Shared) -> Table:
    """A row per near-equal pair of heads in different layers, the nearest first."""
    rows = [
        (side.side, f"{a[0]}.{a[1]}", f"{b[0]}.{b[1]}", float(side.cosines[i, j]))
        for side in shared.sides
        for i, a in enumerate(side.heads)
        for j, b in enumerate(side.heads[:i])
        if a[0] != b[0] and side.cosines[i, j] > shared.limit
    ]
    rows.sort(key=lambda row: -row[3])
    return Table(("side", "head", "other head", ">cosine"), rows)


def shared_data(shared: Shared) -> dict[str, Any]:
    """As plain data, with what follows from it."""
    data = asdict(shared)
    for plain, side in zip(data["sides"], shared.sides, strict=True):
        plain |= {"cosines": np.round(side.cosines, 4).tolist(), "coordinate": side.coordinate}
    for plain, use in zip(data["tasks"], shared.tasks, strict=True):
        plain |= {"share": use.share, "found": use.verdict}
    return data
