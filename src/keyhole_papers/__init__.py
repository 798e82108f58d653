"""Do published results hold? Every figure and table of the papers: what was claimed, how it is measured, a verdict.

A folder per paper has modules with `RUNS`, a table of experiments by id; a new module there is found by itself, and
there is no list to extend. An experiment takes a Job, puts pictures into its folder, and returns a Result, whose note
says what stood in for what.

reproduce(["svf-fig6a"], "folder")             a published figure, its claim and a verdict
reproduce(["cc-fig2"], "folder", choices=Choices(as_printed=True))
read_results("folder")                         what was measured before
"""

from typing import TYPE_CHECKING, Any

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
