"""What is known of the families of a store's circuits? One frozen record, with its text, figure, page and files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from keyhole.brief import brief
from keyhole.family.agreement import Agreement
from keyhole.family.averages import Average
from keyhole.family.clusters import Clustering
from keyhole.family.columns import Granularity
from keyhole.family.representatives import Representative

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Family:
    """Circuits that belong together."""

    number: int  # 1 for the largest
    members: tuple[int, ...]  # prompts
    representative: int  # the prompt whose circuit is nearest to all others
    stability: float  # mean Jaccard with the nearest family of resampled circuits; NaN: there is but one
    silhouette: float  # mean over its members in the sample
    mean_distance: float  # of two members
    mean_size: float  # terms of a member
    common: Mapping[str, tuple[str, float]]  # by label: the most frequent value, and its share of the members

    __repr__ = brief

    @property
    def size(self) -> int:
        """How many circuits belong to it."""
        return len(self.members)


@dataclass(frozen=True, repr=False)
class Level:
    """What one granularity gives."""

    granularity: Granularity
    terms: int
    mean_size: float  # terms of a circuit
    mean_distance: float
    clustering: Clustering
    agreement: tuple[Agreement, ...]

    __repr__ = brief


@dataclass(frozen=True)
class Rest:
    """Circuits beyond the sample that was cut: each went to the family of least mean distance, if near enough."""

    circuits: int
    outside: int  # too far from every family
    held_out: int  # circuits of the sample that were cut without, and then assigned in the same way
    agreement: float  # ARI of their families with those they have in the cut of the whole sample


@dataclass(frozen=True)
class About:
    """What was asked, and of what."""

    store: str
    model: str
    task: str
    granularity: Granularity
    side: bool
    role: bool
    weighted: bool
    where: str
    seed: int
    prompts: int  # in the store
    circuits: int  # that have a circuit
    asked: int  # and are as `where` wants them
    sampled: int  # and were cut


@dataclass(frozen=True, repr=False)
class Families:
    """Families of circuits; `str()` reads as a report."""

    about: About  # what was asked: store, sets, settings
    prompts: Int[np.ndarray, "circuits"]  # numbers of the prompts whose circuits these are
    labels: Int[np.ndarray, "circuits"]  # which family each is of; 0: outside of all
    families: tuple[Family, ...]
    levels: tuple[Level, ...]  # the one that was asked for first
    representatives: tuple[Representative, ...]  # of each family
    averages: tuple[Average, ...]  # of all circuits and of families, beside circuits
    rest: Rest | None
    sample: Int[np.ndarray, "sampled"] = field(repr=False)  # prompts that were cut
    distances: Float[np.ndarray, "sampled sampled"] = field(repr=False)  # between the circuits that were cut
    values: Mapping[str, tuple[str | None, ...]] = field(repr=False)  # labels of the sample's prompts

    __repr__ = brief

    @property
    def clustering(self) -> Clustering:
        """Tree, cuts and nulls at the granularity that was asked for."""
        return self.levels[0].clustering

    def record(self) -> dict[str, Any]:
        """All of it as plain values, without distances and trees."""
        from keyhole.family.report import record

        return record(self)

    def plot(self) -> "Figure":
        """Dendrogram, distances in its order, and labels beside them. See `keyhole.figures.store.families`."""
        from keyhole.figures.store.families import families_figure

        return families_figure(self)

    def to_html(self) -> str:
        """One self-contained page."""
        from keyhole.figures.store.family_page import families_page

        return families_page(self)

    def save(self, path: "str | Path") -> "Path":
        """Write it: .json (numbers), .csv (a row per circuit), .html (a page), or .png, .svg, .pdf (the figure)."""
        from keyhole.figures.results import save_result

        return save_result(self, path)

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[int]]]:
        """Columns and rows: a row per circuit, with its family and whether it represents it."""
        chosen = {one.representative for one in self.families}
        rows = zip(self.prompts.tolist(), self.labels.tolist(), strict=True)
        return ("prompt", "family", "representative"), [(i, own, int(i in chosen)) for i, own in rows]

    def _repr_html_(self) -> str:
        from keyhole.web.reprs import families_html

        return families_html(self)

    def __str__(self) -> str:
        from keyhole.family.report import report

        return report(self)
