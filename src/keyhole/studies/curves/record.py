"""How much of an answer do a method's best edges carry? Faithfulness over the share of edges kept, and its areas.

    f(C) = (m(C) - m(nothing)) / (m(everything) - m(nothing)),      m: means over prompts

CPR is the area under f, CMD the area between f and 1, both by trapezoids over the shares themselves, not their
logarithms, as in MIB (Mueller and others, 2025). A perfect method has CPR about 1 and CMD 0. Intervals are over
prompts, which are resampled (bootstrap); a method's ranking stays as it is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from keyhole._moved import attributes_of
from keyhole.brief import brief
from keyhole.errors import KeyholeError
from keyhole.faithfulness.wiring import Wiring
from keyhole.models.weights import Dims
from keyhole.report import Cell, Report, Reported, Table
from keyhole.stats import Interval, as_text
from keyhole.studies.curves.settings import CurveSettings

if TYPE_CHECKING:
    from keyhole.brief import Table as DataFrame

COUNTS = (100, 1000)  # edges, for distances at fixed numbers
_REPLACED = {
    "mean": "its mean over prompts of the same template and length, token by token",
    "counterfactual": "what stands there in the prompt's counterfactual",
    "resting": "the resting state",
    "zero": "nothing, which under a norm is no valid baseline",
}
SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # MIB's
RESAMPLED = 1000


@dataclass(frozen=True, eq=False)
class Curve:
    """One method: what is left of each answer with its best edges."""

    __repr__ = brief

    method: str
    found: int | None  # number of edges that it found; None: edges are drawn at random
    answers: Float[np.ndarray, "draw share prompt"]  # one draw, or several of random edges
    alone: Float[np.ndarray, "prompt"] | None  # with all edges that it found, and no others
    counts: tuple[int, ...] = ()  # fixed numbers of edges
    at: Float[np.ndarray, "draw count prompt"] | None = None  # with so many edges
    scores: Float[np.ndarray, "edge"] | None = None  # of edges between components, over tokens and shown prompts


@dataclass(frozen=True, eq=False)
class OwnCircuits:
    """What is left of each answer with the edges of the prompt's own circuit (ACC++), and with another prompt's."""

    __repr__ = brief

    with_own: Float[np.ndarray, "prompt"]
    with_other: Float[np.ndarray, "prompt"]
    edges: float  # of a circuit, on average


@dataclass(frozen=True, eq=False)
class Curves(Reported):
    """Faithfulness of several methods on the same prompts."""

    __repr__ = brief

    model: str
    task: str
    settings: CurveSettings
    edges: int  # of the model; with tokens, of a prompt on average
    shares: tuple[float, ...]
    found_on: int  # prompts in which methods scored edges
    tried_on: int  # other prompts, in which edges were cut
    everything: Float[np.ndarray, "prompt"]
    nothing: Float[np.ndarray, "prompt"]
    error: float  # of the pass with all edges, against the model's own logits
    curves: tuple[Curve, ...]
    own_circuits: OwnCircuits | None = None
    wiring: Wiring | None = None  # which edges there are
    dims: Dims | None = None  # of the model

    @property
    def name(self) -> str:
        """The model and the task."""
        return f"{self.model}, {self.task}" if self.task else self.model

    @property
    def baseline(self) -> str:
        """What stands in for what is cut."""
        return self.settings.baseline

    def __getitem__(self, method: str) -> Curve:
        for curve in self.curves:
            if curve.method == method:
                return curve
        raise KeyholeError(f"there is no curve of {method!r}: there are {', '.join(c.method for c in self.curves)}.")

    def faithfulness(self, method: str) -> list[Interval]:
        """F at every share, with its interval; the mean over draws."""
        drawn = self._drawn(self[method].answers).mean(1)  # resample share
        return [with_interval(column) for column in drawn.T]

    def alone(self, method: str) -> Interval | None:
        """F with all edges that a method found, and no others."""
        answers = self[method].alone
        return None if answers is None else self._of(answers)

    def of_own_circuits(self) -> tuple[Interval, Interval] | None:
        """F with each prompt's own circuit, and with another prompt's."""
        circuits = self.own_circuits
        return None if circuits is None else (self._of(circuits.with_own), self._of(circuits.with_other))

    def _of(self, answers: Float[np.ndarray, "prompt"]) -> Interval:
        return with_interval(self._drawn(answers[None, None])[:, 0, 0])

    def cpr(self, method: str) -> Interval:
        """The area under f: the larger, the better."""
        return with_interval(area(self.shares, self._drawn(self[method].answers)).mean(1))

    def cmd(self, method: str) -> Interval:
        """The area between f and 1: the smaller, the better."""
        return with_interval(self.resampled_cmd(method).mean(1))

    def resampled_cmd(self, method: str, *, each: bool = False) -> Float[np.ndarray, "resample draw"]:
        """CMD in every resample of the prompts; the first has all of them, once.

        `each`: by the distance of every prompt's answer from its full answer, so that answers above the full one do not
        make up for others below.
        """
        if not each:
            return area(self.shares, np.abs(1 - self._drawn(self[method].answers)))
        return area(self.shares, self._drawn(self.nothing + np.abs(self.everything - self[method].answers)))

    def distances(self, method: str) -> dict[int, Interval]:
        """|1 - f| with fixed numbers of edges: the smaller, the better; f above 1 is no success."""
        return self._at_counts(method, lambda f: np.abs(1 - f))

    def kept(self, method: str) -> dict[int, Interval]:
        """F with fixed numbers of edges."""
        return self._at_counts(method, lambda f: f)

    def _at_counts(self, method: str, measure: Callable[[np.ndarray], np.ndarray]) -> dict[int, Interval]:
        curve = self[method]
        if curve.at is None or not curve.counts:
            return {}
        drawn = measure(self._drawn(curve.at)).mean(1)  # resample count
        return {n: with_interval(column) for n, column in zip(curve.counts, drawn.T, strict=True)}

    def per_prompt(self, method: str) -> Float[np.ndarray, "share prompt"]:
        """F of every prompt by itself; NaN where the answer is no larger with all edges than with none."""
        gap = self.everything - self.nothing
        gained = self[method].answers.mean(0) - self.nothing
        return np.asarray(np.divide(gained, gap, out=np.full_like(gained, np.nan), where=gap > 0))

    @cached_property
    def _resamples(self) -> Int[np.ndarray, "resample prompt"]:
        """Which prompts each resample has; the first has all of them, once."""
        rng, n = np.random.default_rng(0), len(self.everything)
        return np.concatenate([np.arange(n)[None], rng.integers(0, n, (RESAMPLED, n))])

    def _drawn(self, answers: Float[np.ndarray, "draw share prompt"]) -> Float[np.ndarray, "resample draw share"]:
        gained = (answers - self.nothing)[..., self._resamples].mean(-1)
        whole = (self.everything - self.nothing)[self._resamples].mean(-1)
        return np.moveaxis(gained / whole, -1, 0)

    def rows(self) -> list[dict[str, Any]]:
        """One row for each method, best CMD first: its areas, how many edges it found, and f with these alone."""
        rows = []
        for curve in self.curves:
            name = curve.method
            row: dict[str, Any] = {"method": name, "cpr": self.cpr(name), "cmd": self.cmd(name)}
            rows.append({**row, "at": self.distances(name), "found": curve.found, "alone": self.alone(name)})
        return sorted(rows, key=lambda row: row["cmd"][0])

    def record(self) -> dict[str, Any]:
        """As plain data."""
        names = ("model", "task", "edges", "shares", "found_on", "tried_on", "error")
        methods = [
            {
                **row,
                "at": {str(n): distance for n, distance in row["at"].items()},
                "faithfulness": self.faithfulness(row["method"]),
                "per_prompt": self.per_prompt(row["method"]).tolist(),
                "draws": len(self[row["method"]].answers),
            }
            for row in self.rows()
        ]
        means = {"everything": float(self.everything.mean()), "nothing": float(self.nothing.mean())}
        chosen = {name: getattr(self.settings, name) for name in ("baseline", "tokens", "ranking", "per", "seed")}
        kept_own, plain = self.of_own_circuits(), {name: getattr(self, name) for name in names} | chosen | means
        if kept_own is not None and self.own_circuits is not None:
            plain["own_circuits"] = {"own": kept_own[0], "other": kept_own[1], "edges": self.own_circuits.edges}
        return {**plain, "methods": methods}

    def to_dataframe(self) -> "DataFrame":
        """A row for each method and share."""
        from keyhole.brief import as_dataframe

        columns, rows = self.table()
        names = [name.removeprefix(">") for name in columns]
        return as_dataframe([dict(zip(names, row, strict=True)) for row in rows])

    @property
    def cells(self) -> Table:
        """Columns and rows of a table."""
        counts = self.curves[0].counts
        fixed = [f">|1 - f|, {n:,} edges" for n in counts]
        columns = ("method", ">CPR", ">CMD", *fixed, ">edges found", ">f of these alone")
        rows: list[tuple[Cell, ...]] = []
        for row in self.rows():
            alone = None if row["alone"] is None else as_text(row["alone"], 2)
            areas = as_text(row["cpr"], 3), as_text(row["cmd"], 3)
            rows.append((row["method"], *areas, *(as_text(row["at"][n], 2) for n in counts), row["found"], alone))
        return Table(columns, rows)

    @property
    def summary(self) -> str:
        """What was done, in words."""
        change, kept = _REPLACED[self.baseline], self.settings.tokens == "kept"
        edges = f"about {self.edges:,} edges at tokens" if kept else f"{self.edges:,} edges between components"
        if self.settings.per == "prompt":
            where = f"ranked in each of {self.tried_on} prompts and cut in the same prompt, which is a fit"
        else:
            others = "others of the same template" if kept else "others"
            where = f"ranked on {self.found_on} prompts and cut in {self.tried_on} {others}"
        return (
            f"{self.name}: {edges}, {where}, by {self.settings.ranking} scores; what is cut is replaced by {change}. "
            f"Logit difference: {self.everything.mean():.2f} with all edges, {self.nothing.mean():.2f} with none. "
            "Edges that a method did not find come last, in random order; f above 1 is no success. 95 % intervals over "
            "prompts."
        )

    @property
    def own_text(self) -> str:
        """F with each prompt's own circuit, in words; empty where it was not measured."""
        both = self.of_own_circuits()
        if both is None or self.own_circuits is None:
            return ""
        with_own, with_other = (as_text(interval, 2) for interval in both)
        return (
            f"With the edges of its own ACC++ circuit alone ({self.own_circuits.edges:.0f} of {self.edges:,}), each "
            f"prompt keeps f = {with_own}; with those of another prompt's, {with_other}."
        )

    def report(self) -> Report:
        """The areas of every method, and what is left of the answer at every share of edges."""
        from keyhole.studies.curves.figure import curves_report

        return curves_report(self)

    def save_scores(self, folder: str | Path) -> list[Path]:
        """Every method's signed scores of edges between components as a file of MIB, `METHOD.json`, in this folder.

        `curves(..., files=...)` and `keyhole curves --file` read them back to the same curves.
        """
        from keyhole.files import require_folder
        from keyhole.studies.curves.scores import write_mib_scores

        if self.wiring is None or self.dims is None:
            raise KeyholeError("these curves do not know their model's edges: measure them again.")
        place = require_folder(folder)
        paths = []
        for curve in self.curves:
            if curve.scores is not None:
                scores = np.zeros(self.wiring.joined.shape)
                scores[tuple(self.wiring.edges.T)] = curve.scores
                name = f"{curve.method.removesuffix('.json')}.json"
                paths.append(write_mib_scores(place / name, scores, self.wiring, self.dims))
        return paths

    if not TYPE_CHECKING:  # a type checker would take it for a promise that every attribute exists
        __getattr__ = attributes_of("Curves")


def area(shares: tuple[float, ...], f: Float[np.ndarray, "*any share"]) -> Float[np.ndarray, "*any"]:
    """The area under f over the shares, by trapezoids.

    >>> float(area((0.0, 0.5, 1.0), np.array([0.0, 1.0, 1.0])))
    0.75
    """
    return np.asarray(np.trapezoid(f, np.array(shares), axis=-1))


def with_interval(resampled: Float[np.ndarray, "resample"]) -> Interval:
    """A value with its 95 % interval. The first resample is the value itself, the others give the interval."""
    low, high = np.quantile(resampled[1:], [0.025, 0.975])
    return Interval(float(resampled[0]), float(low), float(high))


def require_gap(everything: Float[np.ndarray, "prompt"], nothing: Float[np.ndarray, "prompt"]) -> None:
    """Refuse prompts whose answer is no larger with all edges than with none."""
    if not everything.mean() > nothing.mean():
        raise KeyholeError(
            f"with all edges the answers are at {everything.mean():.2f}, with none at {nothing.mean():.2f}: there is "
            "nothing that edges could carry. Take another baseline, or prompts that the model gets right."
        )
