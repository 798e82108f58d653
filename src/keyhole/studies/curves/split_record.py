"""Is a circuit per group of prompts better than one circuit for all? The result, with differences of CMD."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from keyhole.brief import brief, first_few
from keyhole.report import Cell, Report, Reported, Table
from keyhole.stats import Interval, as_text
from keyhole.studies.curves.record import Curves, with_interval

ALL = "one circuit"


def random_name(split: str) -> str:
    """The name of the curve of random splits with the group sizes of `split`."""
    return f"random, as {split}"


@dataclass(frozen=True)
class Split:
    """A division of the prompts into groups."""

    name: str
    groups: tuple[tuple[str, int, int], ...]  # name, prompts used for scoring, held-out prompts; largest first
    note: str = ""


@dataclass(frozen=True, eq=False)
class Splits(Reported):
    """Results for one circuit for all prompts, for a circuit per group, and for a circuit per random group."""

    __repr__ = brief

    method: str  # how edges are scored
    curves: Curves  # a curve for the one circuit, and two for each split: its own, and that of random splits
    splits: tuple[Split, ...]

    def cmd(self, name: str, *, each: bool = False) -> Interval:
        """CMD (area between the curve and full faithfulness) of a split; random splits are averaged over draws.

        `each`: from each prompt's distance to its full answer, so answers above it do not make up for others below.
        """
        return with_interval(self._cmd(name, each))

    def gain(self, name: str, over: str = ALL, *, each: bool = False) -> Interval:
        """CMD of `over` minus CMD of `name`, on the same resamples of prompts. Above 0, `name` is better."""
        return with_interval(self._cmd(over, each) - self._cmd(name, each))

    def draws_beaten(self, name: str, *, each: bool = False) -> tuple[int, int]:
        """How many random splits of the same sizes have a larger CMD, and how many were drawn."""
        drawn = self.curves.resampled_cmd(random_name(name), each=each)[0]
        return int((drawn > self.cmd(name, each=each)[0]).sum()), len(drawn)

    def kept(self, name: str) -> dict[int, Interval]:
        """Faithfulness f at fixed numbers of edges."""
        return self.curves.kept(name)

    def _cmd(self, name: str, each: bool) -> Float[np.ndarray, "resample"]:
        return np.asarray(self.curves.resampled_cmd(name, each=each).mean(1))

    def rows(self) -> list[dict[str, Any]]:
        """A row each for the one circuit, every split, and its random splits of the same sizes."""
        names: list[tuple[str, Split | None]] = [(ALL, None)]
        for each in self.splits:
            names += [(each.name, each), (random_name(each.name), None)]
        rows = []
        for name, split in names:
            row: dict[str, Any] = {"split": name, "f": self.kept(name), "cmd": self.cmd(name)}
            row["cmd_each"] = self.cmd(name, each=True)
            row["gain"] = None if name == ALL else self.gain(name, each=True)
            row["over_random"] = None if split is None else self.gain(name, random_name(name), each=True)
            row["draws_beaten"] = None if split is None else self.draws_beaten(name, each=True)
            rows.append(row)
        return rows

    def record(self) -> dict[str, Any]:
        """As plain data."""
        names = ("model", "task", "edges", "found_on", "tried_on", "shares")
        settings = self.curves.settings
        chosen = {name: getattr(settings, name) for name in ("baseline", "ranking", "draws", "seed")}
        rows = [{**row, "f": {str(n): value for n, value in row["f"].items()}} for row in self.rows()]
        for row in rows:
            row["faithfulness"] = self.curves.faithfulness(row["split"])
        splits = [{"name": split.name, "groups": split.groups, "note": split.note} for split in self.splits]
        about = {name: getattr(self.curves, name) for name in names}
        return {"method": self.method, **about, **chosen, "splits": splits, "rows": rows}

    @property
    def cells(self) -> Table:
        """The rows as a table."""
        counts = self.curves.curves[0].counts
        fixed = [f">f, {n:,} edges" for n in counts]
        columns = ("circuits", *fixed, ">CMD", ">CMD, each prompt", ">less than one circuit's by", ">than random by")
        rows: list[tuple[Cell, ...]] = []
        for row in self.rows():
            gains = (None if row[name] is None else as_text(row[name], 3) for name in ("gain", "over_random"))
            f = (as_text(row["f"][n], 2) for n in counts)
            rows.append((row["split"], *f, as_text(row["cmd"], 3), as_text(row["cmd_each"], 3), *gains))
        return Table(columns, rows)

    @property
    def summary(self) -> str:
        """What was measured and how, in a few sentences."""
        curves, settings = self.curves, self.curves.settings
        return (
            f"{curves.name}: {curves.edges:,} edges between components, scored by {self.method} on {curves.found_on} "
            f"prompts (the mean over each group's) and cut in {curves.tried_on} others, by {settings.ranking} scores; "
            f"baseline {settings.baseline}. Random splits have the same sizes, {settings.draws} draws. CMD, each "
            "prompt: by the distance of every answer from its own, so that overshot answers do not make up for others. "
            "95 % intervals over held-out prompts; rankings stay: another --seed shows other prompts."
        )

    @property
    def notes(self) -> list[str]:
        """For every split a sentence: its groups, and how many random splits it is better than."""
        lines = []
        for split in self.splits:
            sizes = first_few([f"{shown} + {tried}" for _, shown, tried in split.groups], 6)
            beaten, draws = self.draws_beaten(split.name, each=True)
            note = f"; {split.note}" if split.note else ""
            lines.append(
                f"{split.name}: {len(split.groups)} groups of {sizes} prompts (shown + held out){note}. Better "
                f"than {beaten} of {draws} random splits."
            )
        return lines

    def report(self) -> Report:
        """The report on one circuit, circuits per group, and circuits per random group."""
        from keyhole.studies.curves.figure import splits_report

        return splits_report(self)
