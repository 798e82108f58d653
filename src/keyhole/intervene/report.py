"""How does a verification read? Arithmetic in a line or two; causes as a table and a line per kind of removal."""

import math
from collections.abc import Sequence
from itertools import chain, islice, zip_longest
from statistics import median
from typing import TYPE_CHECKING

from keyhole.circuits.text import channels_label, node_label
from keyhole.intervene.parts import CHANCE, LEAST, kind_of

if TYPE_CHECKING:
    from keyhole.circuits.circuit import Circuit
    from keyhole.intervene.parts import Group
    from keyhole.intervene.rows import Row, Verification

_LOST = {"dest": "attention", "src": "attention", "mlp": "MLPs' writes", "target": "the answer"}


def verification_text(result: "Verification") -> str:
    """Both parts as text, each under its name."""
    return "\n".join([*arithmetic_lines(result), "", *causes_lines(result)])


def arithmetic_lines(result: "Verification") -> list[str]:
    """Do measured values equal the predicted ones?"""
    lines = [f"{result.stopped}"] if result.stopped else []
    lines.append("Arithmetic: do measured values equal the predicted ones?")
    part = result.arithmetic
    if part.of:
        allowed = f"largest difference {part.largest:.0e}, tolerance {part.tolerance:.0e}"
        lines.append(f"{part.agree} of {part.of} measured values equal the predicted ones ({allowed})")
    elif result.rows:
        lines.append("nothing is predicted: everything downstream is free")
    else:
        lines.append("nothing was removed")
    return [*lines, *_drops_line(result), *([result.note] if result.note else [])]


def _drops_line(result: "Verification") -> list[str]:
    """By how much attention and writes fall, with that of controls in brackets."""
    kinds: dict[tuple[str, str], list[Row]] = {}
    for row in result.rows:
        kinds.setdefault((_LOST[row.side], kind_of(row)), []).append(row)
    drops = []
    for (lost, kind), rows in kinds.items():
        controls = [abs(drop) for row in rows for drop in row.control_drops]
        beside = f" ({median(controls):.4f})" if controls else ""
        drops.append(f"{lost} without {kind} {median(row.drop for row in rows):.3f}{beside}")
    return [f"median drops (controls): {'; '.join(drops)}"] if drops else []


def causes_lines(result: "Verification") -> list[str]:
    """Does the answer need what was removed? A line per kind, compared with controls."""
    part = result.causes
    lines = ["Causes: does the answer need what is removed?"]
    if part.ranked:
        lines.append(
            f"the answer is {part.answer:+.2f}; effect: what it loses without a part. A part matters if its effect is "
            f"larger than each of its own controls', than those of {1 - CHANCE:.0%} of all controls of its kind, and "
            f"than {LEAST}"
        )
    elif result.rows:
        lines.append("this circuit has no answer, so there are no effects on it")
    return lines + [_group_line(group) for group in part.groups]


def _group_line(group: "Group") -> str:
    n = len(group.causes)
    sizes = f"median size {median(abs(cause.effect) for cause in group.causes):.3f}"
    if not group.controls:
        return f"{n} {group.kind}: {sizes}, no controls to compare with"
    sizes += f", controls {median(group.controls):.3f}"
    if math.isnan(group.bar):
        return f"{n} {group.kind}: {len(group.controls)} controls are too few to tell which matter; {sizes}"
    matter = group.supporting + group.holding_back
    signs = f"{group.supporting} support the answer, {group.holding_back} hold it back"
    chance = f"by chance at most {CHANCE * n:.1f}"
    return f"{n} {group.kind}: {matter} matter, by more than {group.bar:.3f} ({chance}): {signs}; {sizes}"


def shown_rows(result: "Verification", most: int) -> list["Row"]:
    """The removals with the largest effects on the answer, of either sign.

    Where there is no answer, the largest of every kind, as many of each as there is room for; by kind.
    """
    if result.causes.ranked:
        return [cause.row for cause in result.causes.ranked[:most]]
    kinds: dict[tuple[str, bool], list[Row]] = {}
    for row in result.rows:
        kinds.setdefault((row.what, row.side == "mlp"), []).append(row)
    ranked = [sorted(rows, key=lambda row: -row.drop) for rows in kinds.values()]
    in_turn = (row for row in chain.from_iterable(zip_longest(*ranked)) if row is not None)
    chosen = {id(row) for row in islice(in_turn, most)}
    return [row for rows in ranked for row in rows if id(row) in chosen]


def units_line(circuit: "Circuit", rows: Sequence["Row"]) -> str:
    """What the numbers of a table of these removals are."""
    units = ["a firing's attention"] * any(row.side in ("dest", "src") for row in rows)
    units += ["the share of an MLP's write that is left (below 0: it writes the opposite)"] * any(
        row.side == "mlp" for row in rows
    )
    units += ["the answer"] * any(row.side == "target" for row in rows)
    weights = f"before, after, predicted: {', or '.join(units)}."
    if not circuit.parameters.target_ids:
        return weights
    unit = "logit difference to the other answer" if circuit.parameters.against_ids else "log-probability"
    effects = f"effect: what the answer's {unit} loses without it; control: the same for as many random channels, or "
    return f"{effects}other writers, the largest of its draws. {weights}"


CELLS = ("of", "removed", ">effect", ">control", "the answer", ">before", ">after", ">predicted", "arithmetic")


def table_cells(circuit: "Circuit", result: "Verification", rows: Sequence["Row"]) -> list[tuple[str, ...]]:
    """Removals as rows of a table."""
    verdicts = {id(cause.row): (f"{cause.control:+.3f}", cause.verdict) for cause in result.causes.ranked}
    return [_cells(circuit, row, *verdicts.get(id(row), ("-", ""))) for row in rows]


def _cells(circuit: "Circuit", row: "Row", control: str, verdict: str) -> tuple[str, ...]:
    claim = {True: "as predicted", False: "DIFFERS", None: "no promise"}[row.agrees]
    predicted = "-" if math.isnan(row.predicted) else f"{row.predicted:.3f}"
    return (
        node_label(circuit.nodes[row.node], circuit.tokens).removeprefix("head "),
        _removed(circuit, row),
        "-" if math.isnan(row.effect) else f"{row.effect:+.3f}",
        control if row.control_effects else "-",
        verdict,
        f"{row.before:.3f}",
        f"{row.after:.3f}",
        predicted,
        claim,
    )


def _removed(circuit: "Circuit", row: "Row") -> str:
    """What was taken away."""
    if row.what == "side":
        return f"all {row.side} signals"
    if row.what == "causes":
        return "its causes"
    assert row.edge is not None
    edge = circuit.edges[row.edge]
    source = node_label(circuit.nodes[edge.source], circuit.tokens)
    if row.what == "chain":
        return f"causes of {source}"
    return f"{row.side} {source} {channels_label(edge.channels, 3)}"
