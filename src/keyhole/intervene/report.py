"""How does a verification read? A summary, and the removals that matter most."""

from statistics import median
from typing import TYPE_CHECKING

from keyhole.circuits.text import channels_label, node_label

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
    judged = [row for row in result.rows if row.agrees is not None]
    if judged:
        worst = max(abs(row.after - row.predicted) for row in judged)
        agree = sum(bool(row.agrees) for row in judged)
        lines.append(
            f"{agree} of {len(judged)} measured values equal the predicted ones (largest difference {worst:.0e})"
        )
    return [*lines, result.note] if result.note else lines


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
