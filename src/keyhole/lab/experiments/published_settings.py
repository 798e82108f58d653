"""Do the printed settings give the printed results? The toy of the contrast paper, trained as its Table 1 says."""

from dataclasses import replace

from keyhole.lab.experiments.payload import feature_of
from keyhole.lab.intervals import told
from keyhole.lab.job import Experiment, Job, Numbers
from keyhole.lab.outcome import Outcome, Verdict
from keyhole.lab.payload import PayloadSettings
from keyhole.lab.payload_store import trained_heads

_TABLE = {"d": 32, "batch": 256, "lr": 1e-4, "weight_decay": 0.01, "check_every": 200, "patience": 5}


def table1(job: Job) -> Outcome:
    """Does a head trained with the printed settings reach its ceiling and the true ranks? (3, 5) in 16 dimensions."""
    cells = [PayloadSettings.paper(3, 5, 16, seed=job.seed + seed) for seed in range(1 if job.quick else 3)]
    differ = [name for name, value in _TABLE.items() if getattr(cells[0], name) != value]
    if job.quick:
        cells = [replace(cell, max_steps=400, lr=1e-2, batch=64) for cell in cells]
    heads = trained_heads(cells, job.folder.parent / "heads", job.progress)
    ranks = [(feature_of(job, head, "z1").rank, feature_of(job, head, "z2").rank) for head in heads]
    numbers: Numbers = {
        "steps": [float(head.trained) for head in heads],
        "accuracy": [head.accuracy for head in heads],
        "accuracy of ceiling": [head.accuracy / head.ceiling for head in heads],
        "exact ranks": sum(pair == (3, 5) for pair in ranks),
    }
    steps = [float(head.trained) for head in heads]
    measured = (
        f"(3, 5) in 16, {len(heads)} heads: stopped after {told(steps, 0)} steps with accuracy "
        f"{told([head.accuracy for head in heads])}, where repeated latents leave {heads[0].ceiling:.3f}; ranks (3, 5) "
        f"in {numbers['exact ranks']} of {len(heads)}."
    )
    good = not differ and all(pair == (3, 5) for pair in ranks)
    good &= min(head.accuracy / head.ceiling for head in heads) > 0.98
    verdict: Verdict = "reproduced" if good else "partly"
    note = (
        "Brackets: smallest and largest of the seeds. Noise of .01 and scaled maps as in the authors' code; the text "
        "has standard Gaussians for both."
    )
    return Outcome(verdict, measured, numbers, (), note)


RUNS: dict[str, Experiment] = {"cc-table1": table1}
