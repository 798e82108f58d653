"""How does a verification read? A summary, and the removals that matter most."""

import math
from collections.abc import Sequence
from itertools import chain, islice, zip_longest
from statistics import median
from typing import TYPE_CHECKING

from keyhole.circuits.text import channels_label, node_label
from keyhole.intervene.rows import AGREES

if TYPE_CHECKING:
    from keyhole.circuits.circuit import Circuit
    from keyhole.intervene.rows import Row, Verification


def summary_lines(result: "Verification") -> list[str]:
    """What a verification says as a whole."""
    groups = (
        ("whole sides of firings removed", "attention", result.sides),
        ("single signals removed", "attention", result.edges),
        ("MLPs without their causes", "what they write", result.causes),
        ("readings by firings of MLPs without their causes", "attention", result.chains()),
        ("readings by MLPs of MLPs without their causes", "what they write", result.chains("mlp")),
        ("readings by the answer of MLPs without causes", "the answer", result.chains("target")),
    )
    lines = []
    for name, lost, rows in groups:
        if not rows:
            continue
        drops = median(row.drop for row in rows)
        controls = [abs(d) for row in rows for d in row.control_drops]
        line = f"{len(rows)} {name} ({result.mode}): median drop of {lost} {drops:.3f}"
        if controls:
            line += f", controls {median(controls):.4f}, ratio {result.ratio(rows):.1f}"
        lines.append(line)
    lines += answer_lines(result)
    judged = [row for row in result.rows if row.agrees is not None]
    if judged:
        worst = max(abs(row.after - row.predicted) for row in judged)
        agree = sum(bool(row.agrees) for row in judged)
        lines.append(
            f"{agree} of {len(judged)} measured values equal the predicted ones (largest difference {worst:.0e})"
        )
    return [*lines, result.note] if result.note else lines


def answer_lines(result: "Verification") -> list[str]:
    """Does the answer need what was removed, each alone? What became of it, beside controls."""
    groups = (
        ("a whole side of a firing", result.sides),
        ("a single signal", result.edges),
        ("the causes of an MLP", result.causes),
    )
    lines = []
    for name, rows in groups:
        before = rows[0].metric_before if rows else math.nan
        if math.isnan(before):
            continue  # a direction has no answer
        controls = [metric - before for row in rows for metric in row.control_metrics]
        beside = f"; controls: {_fallen(controls)}" if controls else ""
        own = _fallen([row.metric_after - before for row in rows])
        lines.append(f"the answer ({before:+.2f}) without {name}: {own}{beside}")
    return lines


def _fallen(changes: Sequence[float]) -> str:
    """How often an answer is lower, by more than rounding, and by how much it changes."""
    return f"lower in {sum(one < -AGREES for one in changes)} of {len(changes)}, median change {median(changes):+.3f}"


def shown_rows(result: "Verification", most: int) -> list["Row"]:
    """The largest removals of every kind, as many of each as there is room for; by kind, the largest first."""
    kinds: dict[tuple[str, bool, bool], list[Row]] = {}
    for row in sorted(result.rows, key=lambda row: row.side == "target"):  # firings, MLPs, answers have their own units
        kinds.setdefault((row.what, row.side == "mlp", row.side == "target"), []).append(row)
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
    told = f"before, after: {', or '.join(units)}; "
    told += "control: how far it moves when random channels, or other writers, are removed instead"
    if not circuit.parameters.target_ids:
        return f"{told}."
    unit = "logit difference to the other answer" if circuit.parameters.against_ids else "log-probability"
    return f"{told}; answer: by how much its {unit} changes."


def verification_text(result: "Verification") -> str:
    """The summary as text."""
    return "\n".join(summary_lines(result))


def row_cells(circuit: "Circuit", row: "Row") -> tuple[str, ...]:
    """One removal as the cells of a table."""
    control = f"{row.control:.3f}" if row.control_drops else "-"
    claim = {True: "as predicted", False: "DIFFERS", None: "no promise"}[row.agrees]
    predicted = "-" if row.predicted != row.predicted else f"{row.predicted:.3f}"
    return (
        node_label(circuit.nodes[row.node], circuit.tokens).removeprefix("head "),
        _removed(circuit, row),
        f"{row.before:.3f}",
        f"{row.after:.3f}",
        predicted,
        control,
        f"{row.metric_after - row.metric_before:+.3f}",
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


CELLS = ("of", "removed", ">before", ">after", ">pred.", ">control", ">answer", "claim")
