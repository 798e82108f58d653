"""Attempts at published items that processes of their own import: without the tests' hook, which takes them seconds."""

import os

import torch

from keyhole.lab.payload import PayloadSettings, trained_heads
from keyhole_papers.experiment import Job
from keyhole_papers.results import Result


def training(job: Job) -> Result:
    """Trains a head that others want too, and says in which process."""
    cell = PayloadSettings(2, 2, 4, max_steps=3, batch=8)
    reports: list[int] = []
    trained_heads([cell], job.folder.parent / "heads", lambda done, total: reports.append(done))
    numbers = {"trained": int(bool(reports)), "threads": torch.get_num_threads()}
    return Result("", "reproduced", f"process {os.getpid()}", numbers)


def broken(job: Job) -> Result:
    (job.folder / "a.png").write_bytes(b"half a picture")
    raise ZeroDivisionError("by zero")
