"""Do published results hold? Every figure and table of the papers: what was claimed, how it is measured, a verdict.

A folder per paper has modules with `RUNS`, a table of experiments by id; a new module there is found by itself, and
there is no list to extend. An experiment takes a Job, puts pictures into its folder, and returns an Outcome; it says in
the note what stood in for what.

reproduce(["svf-fig6a"], "folder")             a published figure, its claim and a verdict
reproduce(["cc-fig2"], "folder", choices=Choices(as_printed=True))
read_results("folder")                         what was measured before
"""

from keyhole.reproduce.choices import Choices
from keyhole.reproduce.results import read_results
from keyhole.reproduce.runner import reproduce

__all__ = ["Choices", "read_results", "reproduce"]
