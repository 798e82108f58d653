"""Do the printed settings give the printed results? The toy of the contrast paper, trained as its Table 1 says."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from keyhole.lab.payload.store import trained_heads
from keyhole.lab.payload.toy import VALIDATION, PayloadSettings
from keyhole.stats import told
from keyhole_papers.cc import payload
from keyhole_papers.cc.payload import Cell, Grid, Setting
from keyhole_papers.choices import AS_PRINTED
from keyhole_papers.job import Attempt, Job
from keyhole_papers.results import Numbers, Verdict
from keyhole_papers.told import Experiment, Told

_TABLE = {"d": 32, "batch": 256, "lr": 1e-4, "weight_decay": 0.01, "check_every": 200, "patience": 5}
_VALIDATED = (20, 512)
_SETTINGS = [Setting(3, 5, 16), Setting(3, 4, 8)]  # both printed sizes of the head


@dataclass(frozen=True)
class Printed:
    """Heads trained as printed, and whether both ranks of each are the true ones."""

    exact: Grid[bool]


def measure(job: Job) -> Printed:
    """Heads with the printed settings, and their ranks; as printed, on the data of the text too."""
    changes: dict[str, Any] = {"max_steps": 400, "lr": 1e-2, "batch": 64} if job.quick else {}
    preset = PayloadSettings.printed if job.choices.as_printed else PayloadSettings.paper
    grid = {}
    for x in _SETTINGS:
        cells = [preset(*x, seed=job.seed + i, **changes) for i in range(1 if job.quick else 3)]
        heads = trained_heads(cells, job.folder.parent / "heads", job.progress)
        grid[x] = Cell(heads, [payload.ranks_of(job, head) == (x.r1, x.r2) for head in heads])
    return Printed(grid)


def judge(record: Printed) -> Verdict:
    """Trained as printed, and to what was printed?"""
    heads = payload.every(record.exact)
    if not payload.are_trained(heads):
        return "not"
    stopped = all(head.trained < head.settings.max_steps for head in heads)
    exact = all(all(cell.found) for cell in record.exact.values())
    return "reproduced" if stopped and exact and not differ([head.settings for head in heads]) else "partly"


def tell(record: Printed) -> Told:
    """Do heads trained with the printed settings stop by themselves, do their task and show the true ranks?"""
    numbers: Numbers = {}
    lines = []
    for setting, cell in record.exact.items():
        steps, accuracy = [float(head.trained) for head in cell.heads], [head.accuracy for head in cell.heads]
        share, right, of = payload.reached(cell.heads), sum(cell.found), len(cell.heads)
        numbers |= {f"{setting} steps": steps, f"{setting} accuracy": accuracy, f"{setting} reached": share}
        numbers[f"{setting} exact ranks"] = right
        lines.append(
            f"{setting}, {of} heads: stopped after {told(steps, 0)} steps with accuracy {told(accuracy)}, where "
            f"{payload.reachable(cell.heads[0].settings):.3f} can be reached; ranks exact in {right} of {of}."
        )
    changed = ", ".join(differ([head.settings for head in payload.every(record.exact)]))
    heads = payload.every(record.exact)
    least, data = payload.IN_NOISE, "Noise and maps of standard Gaussians, as in the text."
    if not payload.as_printed(heads):
        least, noise = payload.TRAINED, heads[0].settings.noise
        data = (
            f"Noise of {noise:g} and scaled maps as in the authors' code; the text has standard Gaussians for both "
            "(--as-printed)."
        )
    note = (
        f"{f'Not as printed: {changed}. ' if changed else ''}{payload.SEEDS} The verdict asks for the printed "
        f"settings, {100 * least:.0f} % of the accuracy that can be reached without noise (else not), an early stop "
        f"and exact ranks. {data}"
    )
    return Told("\n".join(lines), numbers, note)


def differ(cells: Sequence[PayloadSettings]) -> list[str]:
    """Which settings of these cells, as they were trained, are not the printed ones?"""
    names = [name for name, value in _TABLE.items() if any(getattr(cell, name) != value for cell in cells)]
    return names if VALIDATION == _VALIDATED else [*names, "validation"]


RUNS: dict[str, Attempt] = {"cc-table1": Experiment(measure, judge, tell, heeds=AS_PRINTED)}
