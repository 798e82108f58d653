"""What has been published, and what does each item need? Every figure and table of three papers and a talk.

A file per paper has an item for each, in the order in which a report shows them; see `Published` for its fields.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from keyhole.errors import KeyholeError
from keyhole.strict import read, read_text, require

Paper = Literal["svf", "svt", "cc", "talk"]
PAPERS: dict[Paper, str] = {
    "svf": "Singular Vectors of Attention Heads Align with Features",
    "svt": "Sparse Attention Decomposition Applied to Circuit Tracing",
    "cc": "Decomposing Query-Key Feature Interactions Using Contrastive Covariances",
    "talk": "Understanding Attention from First Principles (talk)",
}


@dataclass(frozen=True, kw_only=True)
class Published:
    """A figure, table or theorem of a paper, or a slide of the talk."""

    id: str  # begins with its paper
    figure: str  # where it stands: "Figure 2a", "Table 1", "Theorem 3"
    title: str
    claim: str  # what it shows, with the published numbers where there are any
    needs: str | None = None  # the model whose weights it is about; None: a toy, a theorem or a drawing
    later: str | None = None  # why it cannot be run yet
    schematic: bool = False  # a drawing: there is nothing to measure
    same_as: str | None = None  # the id of the paper's figure that a slide shows again
    beyond: bool = False  # ours, on a question that the paper leaves open: nothing was published to compare with

    @property
    def paper(self) -> Paper:
        """The paper, or the talk, that it stands in."""
        return next(paper for paper in PAPERS if paper == self.id.partition("-")[0])

    @property
    def command(self) -> str:
        """Runs it wherever the hub is reachable, on the first model that it needs."""
        model = f" --model {self.needs.split()[0].rstrip(',')}" if self.needs else ""
        return f"keyhole reproduce {self.id}{model}"

    @property
    def counts(self) -> bool:
        """Is it part of a total? A slide's figure is in it already, and what was not published cannot be repeated."""
        return self.same_as is None and not self.beyond


def published(paper: Paper) -> list[Published]:
    """All items of one paper."""
    rows = tomllib.loads(read_text(Path(__file__).with_name(f"{paper}.toml")))["item"]
    usual = {each.name: each.default for each in fields(Published) if each.default is not MISSING}
    items = [read(Published, {**usual, **row}, row.get("id", "an item")) for row in rows]
    for item in items:
        require(item.id.startswith(f"{paper}-"), f"{item.id} does not belong to {paper}.")
    return items


CATALOGUE: dict[str, Published] = {item.id: item for paper in PAPERS for item in published(paper)}


def resolve(ids: Sequence[str] | str, paper: Paper | None = None) -> list[str]:
    """The ids meant, in the catalogue's order: "all", or each by name; of one paper only, if it is given."""
    ids = [ids] if isinstance(ids, str) else ids
    for id in ids:
        if id not in CATALOGUE and id != "all":
            near = get_close_matches(id, CATALOGUE, 5) or [other for other in CATALOGUE if other.startswith(id)][:5]
            hint = f"do you mean {', '.join(near)}?" if near else "`keyhole reproduce --list` shows all ids."
            raise KeyholeError(f"there is no published item {id!r}: {hint}")
    wanted = set(CATALOGUE) if "all" in ids else set(ids)
    chosen = [id for id, item in CATALOGUE.items() if id in wanted and paper in (None, item.paper)]
    if wanted and not chosen:
        raise KeyholeError(f"none of {', '.join(ids)} is of {paper!r}: leave the paper out, or name its own items.")
    return chosen
