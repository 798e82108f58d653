"""What is a published result here? Its place, what it says, and what it takes to check it."""

from dataclasses import dataclass
from typing import Literal

Paper = Literal["svf", "svt", "cc", "talk"]


@dataclass(frozen=True)
class Published:
    """A figure, table or theorem of a paper, or a slide of the talk."""

    id: str
    paper: Paper
    figure: str  # where it stands: "Figure 2a", "Table 1", "Theorem 3"
    title: str
    claim: str  # what it shows, with the published numbers where there are any
    needs: str | None  # the model whose weights it is about; None: a toy, a theorem or a drawing
    command: str  # runs it wherever the hub is reachable
    later: str | None = None  # why it cannot be run yet
    schematic: bool = False  # a drawing: there is nothing to measure
    same_as: str | None = None  # the id of the paper's figure that a slide shows again
    beyond: bool = False  # ours, on a question that the paper leaves open: nothing was published to compare with

    @property
    def counts(self) -> bool:
        """Is it part of a total? A slide's figure is in it already, and what was not published cannot be repeated."""
        return self.same_as is None and not self.beyond


def entry(
    id: str,
    figure: str,
    title: str,
    claim: str,
    *,
    needs: str | None = None,
    later: str | None = None,
    same_as: str | None = None,
    beyond: bool = False,
) -> Published:
    """A result that can be measured; the command names the first model it needs."""
    model = f" --model {needs.split()[0].rstrip(',')}" if needs else ""
    command = f"keyhole reproduce {id}{model}"
    return Published(id, _paper(id), figure, title, claim, needs, command, later, same_as=same_as, beyond=beyond)


def schematic(id: str, figure: str, title: str, claim: str) -> Published:
    """A drawing."""
    return Published(id, _paper(id), figure, title, claim, None, f"keyhole reproduce {id}", schematic=True)


def _paper(id: str) -> Paper:
    papers: dict[str, Paper] = {"svf": "svf", "svt": "svt", "cc": "cc", "talk": "talk"}
    return papers[id.partition("-")[0]]
