"""Do heads coordinate through shared directions, and use the same channels in two tasks? The record of a study."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from keyhole.brief import brief
from keyhole.circuits.writer import SideName
from keyhole.models.heads import Head
from keyhole.shared.alike import Likeness
from keyhole.shared.taken import SURE
from keyhole.shared.tasks import HeadUse

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class SharedSide:
    """One side of all heads of a store's circuits."""

    __repr__ = brief

    side: SideName
    heads: tuple[Head, ...]  # with enough firings
    cosines: Float[np.ndarray, "heads heads"] = field(repr=False)  # of their mean signals
    clusters: tuple[tuple[Head, ...], ...]  # of near-equal ones, largest first; those of several heads
    signals: tuple[Likeness, ...]  # near-equal pairs, with nothing taken out, then more and more
    used: int  # channels that are used often
    channels: tuple[Likeness, ...]  # near-parallel pairs of their vectors u_k or v_k

    @property
    def coordinate(self) -> bool:
        """More near-equal pairs than other channels would give, with and without what all streams have in common?"""
        return bool(self.signals) and all(one.near[0] > 0 and one.p <= SURE for one in self.signals)


@dataclass(frozen=True)
class Shared:
    """Signals and channels of a store's heads; with another store, channels in both tasks."""

    __repr__ = brief

    model: str
    stores: tuple[str, ...]
    prompts: int  # whose signals were compared
    limit: float  # of near-equal: a cosine
    sides: tuple[SharedSide, SharedSide]
    tasks: tuple[HeadUse, ...]  # empty without another store
    settings: dict[str, Any]

    def __str__(self) -> str:
        from keyhole.shared.text import shared_text

        return shared_text(self)

    def record(self) -> dict[str, Any]:
        """As plain data: what JSON has."""
        from keyhole.shared.text import shared_data

        return shared_data(self)

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
        """Columns and rows: of two tasks a row per head and side, else of near-equal pairs."""
        from keyhole.shared.text import pair_rows, task_rows

        return task_rows(self) if self.tasks else pair_rows(self)

    def plot(self) -> "Figure":
        """Cosines of heads, near-equal pairs beside the control, overlaps. See `keyhole.figures.store.shared`."""
        from keyhole.figures.store.shared import shared_figure

        return shared_figure(self)

    def to_html(self) -> str:
        """All of it as one page."""
        from keyhole.figures.store.shared import shared_page

        return shared_page(self)

    def save(self, path: "str | Path") -> Path:
        """Write the study: .json, .html (a page), .csv (a table), or a figure as .png, .svg or .pdf."""
        from keyhole.figures.results import save_result

        return save_result(self, path)
