"""How does a verification read? A summary, and the removals that matter most."""

from statistics import median
from typing import TYPE_CHECKING

from keyhole.circuits.text import channels_label, node_label

if TYPE_CHECKING:
    from keyhole.circuits.circuit import Circuit
    from keyhole.intervene.verification import Row, Verification


def summary_lines(result: "Verification") -> list[str]:
    """What a verification says as a whole."""
    lines = []
    for name, rows in (("whole sides of firings", result.sides), ("single signals", result.edges)):
        if not rows:
            continue
        drops = median(row.drop for row in rows)
        controls = [abs(d) for row in rows for d in row.control_drops]
        line = f"{len(rows)} {name} removed ({result.mode}): median drop of attention {drops:.3f}"
        if controls:
            line += f", controls {median(controls):.4f}, ratio {result.ratio(rows):.1f}"
        lines.append(line)
    judged = [row for row in result.rows if row.agrees is not None]
    if judged:
        worst = max(abs(row.after - row.predicted) for row in judged)
        agree = sum(bool(row.agrees) for row in judged)
        lines.append(
            f"{agree} of {len(judged)} measured weights equal the predicted ones (largest difference {worst:.0e})"
        )
    return lines


def verification_text(result: "Verification") -> str:
    """The summary as text."""
    return "\n".join(summary_lines(result))


def row_cells(circuit: "Circuit", row: "Row") -> tuple[str, ...]:
    """One removal as the cells of a table."""
    if row.edge is None:
        what = f"all {row.side} signals"
    else:
        edge = circuit.edges[row.edge]
        what = f"{row.side} {node_label(circuit.nodes[edge.source], circuit.tokens)} {channels_label(edge.channels, 3)}"
    differs = " !" if row.agrees is False else ""
    return (
        node_label(circuit.nodes[row.node], circuit.tokens).removeprefix("head "),
        what,
        f"{row.before:.3f}",
        f"{row.after:.3f}",
        f"{row.predicted:.3f}{differs}",
        f"{row.control:.3f}" if row.control_drops else "-",
        f"{row.metric_after - row.metric_before:+.3f}",
    )


CELLS = ("firing", "removed", ">before", ">after", ">pred.", ">control", ">answer")
