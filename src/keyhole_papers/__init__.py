"""Do published results hold? Every figure and table of the papers: the claim, how it is measured, a verdict.

A folder per paper has modules with `RUNS`, a table of experiments by id; a new module there is found by itself, and
there is no list to extend. An experiment takes a Job, puts pictures into its folder, and returns a Result, whose note
says what stood in for what.

reproduce(["svf-fig6a"], "folder")             a published figure, its claim and a verdict
reproduce(["cc-fig2"], "folder", as_printed=True)
read_results("folder")                         what was measured before
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from keyhole.cli.options import DTYPE, Dtype
from keyhole.settings.fields import option

if TYPE_CHECKING:
    from keyhole_papers.experiment import Choices as Choices
    from keyhole_papers.results import read_results as read_results
    from keyhole_papers.runner import reproduce as reproduce

__all__ = ["Choices", "read_results", "reproduce"]
_HOMES = {"Choices": "experiment", "read_results": "results", "reproduce": "runner"}

if not TYPE_CHECKING:  # imported when first used: the command line's help loads this package, and not torch

    def __getattr__(name: str) -> Any:
        from importlib import import_module

        if name in _HOMES:
            return getattr(import_module(f"keyhole_papers.{_HOMES[name]}"), name)
        raise AttributeError(f"module 'keyhole_papers' has no attribute {name!r}")


@dataclass(frozen=True, kw_only=True)
class Running:
    """How items are run: the choices that are options of the command, which must not load torch for its help."""

    model: str | None = option(
        None, "Hub name, model folder or .gguf file. Default: the built-in organism.", names=("--model", "-m")
    )
    dtype: Dtype = option("float32", DTYPE)
    device: str | None = option(
        None,
        "Device of models and of trained singular-vector toys, such as cuda; payload heads stay on the CPU. "
        "Default: the CPU.",
    )
    revisions: str | None = option(
        None,
        "Checkpoints of --model for items about training, such as step1000,step8000, or all. Default: those of the "
        "item.",
    )
    as_printed: bool = option(
        False,
        "Take settings as the paper prints them, where the usual ones depart; items of cc may take hours.",
    )
    seed: int = option(0, "The first of the seeds.")
    quick: bool = option(False, "Take seconds per item, to see that it runs; without a verdict.")
