"""Which heads fire where? Attention weights well above what uniform attention would give."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, overload

import torch

from keyhole.dataframes import Table, as_dataframe
from keyhole.errors import KeyholeError
from keyhole.models.numbers.precision import exact_matmul
from keyhole.models.tokens.prompts import token_label
from keyhole.strict import quoted

if TYPE_CHECKING:
    from keyhole.models.run import AttentionRun, Run

DYNAMIC_SCALE = 2.5  # how many times uniform a weight must be to count as a firing
_SHOWN = 30  # firings that are printed


@dataclass(frozen=True)
class Site:
    """One (head, dest, src) that fires, with its attention weight."""

    layer: int
    head: int
    dest: int
    src: int
    attention: float
    visible: int  # number of keys that dest sees

    @property
    def times_uniform(self) -> float:
        """How many times more than uniform attention: weight x number of visible keys."""
        return self.attention * self.visible


@dataclass(frozen=True)
class Firings(Sequence[Site]):
    """The firings of a run, as a table: a sequence of sites, most above uniform first."""

    tokens: tuple[str, ...]  # texts of the prompt's tokens
    sites: tuple[Site, ...]  # a head, dest and src each

    def __len__(self) -> int:
        return len(self.sites)

    @overload
    def __getitem__(self, index: int) -> Site: ...

    @overload
    def __getitem__(self, index: slice) -> "Firings": ...

    def __getitem__(self, index: int | slice) -> "Site | Firings":
        return Firings(self.tokens, self.sites[index]) if isinstance(index, slice) else self.sites[index]

    def to_dataframe(self) -> Table:
        """A row per firing: a pandas DataFrame, or records without pandas."""
        rows = []
        for site in self.sites:
            words = {"dest_token": self.tokens[site.dest], "src_token": self.tokens[site.src]}
            rows.append({**asdict(site), "times_uniform": site.times_uniform, **words})
        return as_dataframe(rows)

    def __str__(self) -> str:
        places = [
            (f"{s.layer}.{s.head}", token_label(self.tokens, s.dest), token_label(self.tokens, s.src))
            for s in self.sites[:_SHOWN]
        ]
        rows = [("head", "dest", "src"), *places]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        numbers = ["weight  x uniform", *(f"{s.attention:6.3f}  {s.times_uniform:9.1f}" for s in self.sites[:_SHOWN])]
        lines = [
            "  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=True)), number])
            for row, number in zip(rows, numbers, strict=True)
        ]
        hidden = len(self) - len(places)
        return "\n".join([*lines, f"and {hidden} more"] if hidden else lines)

    def __repr__(self) -> str:
        heads = len({(site.layer, site.head) for site in self.sites})
        return f"<{len(self)} firings of {heads} heads>"


def find_firings(run: "Run", tau: float | None = None, *, dest: int | str | None = None) -> list[Site]:
    """Every firing of a run, most above uniform first.

    `tau=None` is the dynamic threshold min(1, 2.5 / visible keys); `dest` restricts to one destination.
    """
    run.require_fresh()
    if tau is not None:
        check_tau(tau)
    at = None if dest is None else run.position(dest, "dest")
    sites: list[Site] = []
    with exact_matmul():
        for layer in run.model.attention_layers:
            record = run.layer(layer)
            for dests in record.blocks if at is None else [range(at, at + 1)]:
                sites += _of_layer(record, layer, dests, tau)
    return sorted(sites, key=lambda s: (-s.times_uniform, s.layer, s.head, s.dest, s.src))


def check_tau(tau: float) -> float:
    """The threshold as a number, or why it is none: no weight is below 0, and none above 1."""
    try:
        value = float(tau)
    except (TypeError, ValueError, OverflowError) as error:  # the last of whole numbers of hundreds of digits
        raise KeyholeError(f"tau is 'dynamic' or a number such as 0.2, not {quoted(tau)}.") from error
    if not 0 < value <= 1:
        raise KeyholeError(f"tau is {value}, but a threshold lies between 0 and 1 and is not 0: no weight is below 0.")
    return value


def dynamic_tau(visible: int) -> float:
    """The threshold of a destination that sees so many keys.

    >>> dynamic_tau(10), dynamic_tau(2)
    (0.25, 1.0)
    """
    return min(1.0, DYNAMIC_SCALE / visible)


def _of_layer(record: "AttentionRun", layer: int, dests: range, tau: float | None) -> list[Site]:
    weights, visible = record.weights(record.heads, dests), record.visible(dests)
    counts = visible.sum(-1).tolist()
    taus = [dynamic_tau(n) if tau is None else tau for n in counts]
    fires = (weights.double() >= torch.tensor(taus, dtype=torch.float64, device=weights.device)[:, None]) & visible
    heads, rows, sources = fires.nonzero(as_tuple=True)
    values = weights[heads, rows, sources].tolist()
    found = []
    for h, r, s, weight in zip(heads.tolist(), rows.tolist(), sources.tolist(), values, strict=True):
        found.append(Site(layer, h, dests[r], s, weight, counts[r]))
    return found
