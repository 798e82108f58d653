"""Which heads fire where? Attention weights well above uniform attention; and a summary of every head in one prompt."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, overload

import torch
from jaxtyping import Float, Int
from torch import Tensor

from keyhole._moved import names_of
from keyhole.brief import Table, as_dataframe, brief
from keyhole.models.numbers import exact_matmul
from keyhole.models.tokens import token_label
from keyhole.progress import Progress, silent
from keyhole.qk.channels import in_channels, sparsity_each
from keyhole.settings.tracing import check_tau as check_tau

if TYPE_CHECKING:
    from keyhole.models.run import AttentionRun, Run

DYNAMIC_SCALE = 2.5  # how many times uniform a weight must be to count as a firing
__getattr__ = names_of("keyhole.qk.firings")
_SHOWN = 30  # rows that are printed


@dataclass(frozen=True)
class Site:
    """One (head, dest, src) that fires, with its attention weight."""

    layer: int
    head: int
    dest: int
    src: int
    attention: float
    visible: int  # number of keys that dest can see

    @property
    def times_uniform(self) -> float:
        """The weight as a multiple of uniform attention: weight x number of visible keys."""
        return self.attention * self.visible


@dataclass(frozen=True)
class FiringTable(Sequence[Site]):
    """The firings of a run: a sequence of `Site`s, most above uniform first, that prints as a table.

    >>> import keyhole
    >>> firings = keyhole.load().run("When Mary and John went to the store, John gave a drink to").firings(0.5)
    >>> firings[0].attention >= 0.5, len(firings[:3]), len(firings.to_dataframe()) == len(firings)
    (True, 3, True)
    """

    tokens: tuple[str, ...]  # texts of the prompt's tokens
    sites: tuple[Site, ...]  # a head, dest and src each

    def __len__(self) -> int:
        return len(self.sites)

    @overload
    def __getitem__(self, index: int) -> Site: ...

    @overload
    def __getitem__(self, index: slice) -> "FiringTable": ...

    def __getitem__(self, index: int | slice) -> "Site | FiringTable":
        return FiringTable(self.tokens, self.sites[index]) if isinstance(index, slice) else self.sites[index]

    def to_dataframe(self) -> Table:
        """A row per firing: a pandas DataFrame, or records without pandas.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> len(run.firings().to_dataframe()) == len(run.firings())
        True
        """
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

    Args:
        run: A run of a model.
        tau: The least weight. Default: the dynamic threshold min(1, 2.5 / visible keys).
        dest: One destination, as a position or a text. Default: all.

    >>> import keyhole
    >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
    >>> all(site.dest == len(run) - 1 for site in find_firings(run, 0.5, dest=-1))
    True
    """
    run._require_fresh()
    if tau is not None:
        check_tau(tau)
    at = None if dest is None else run.position(dest, "dest")
    sites: list[Site] = []
    with exact_matmul():
        for layer in run.model.attention_layers:
            record = run.attention_run(layer)
            for dests in record.blocks if at is None else [range(at, at + 1)]:
                sites += _of_layer(record, layer, dests, tau)
    return sorted(sites, key=lambda s: (-s.times_uniform, s.layer, s.head, s.dest, s.src))


def dynamic_tau(visible: int) -> float:
    """The dynamic threshold of a destination with so many visible keys.

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
    sites = []
    for h, r, s, weight in zip(heads.tolist(), rows.tolist(), sources.tolist(), values, strict=True):
        sites.append(Site(layer, h, dests[r], s, weight, counts[r]))
    return sites


# What does each head do in a prompt? Its strongest firing, how spread its attention is, how much of it rests.


@dataclass(frozen=True)
class HeadGlance:
    """Summary of one head in one prompt."""

    layer: int
    head: int
    dest: int  # of the strongest firing: most above uniform, with a src after the first token where there is one
    src: int
    attention: float  # its weight
    times_uniform: float  # weight x visible keys
    sparsity: float  # S(v) of its score
    entropy: float  # of tokens that see two keys or more, on average, as a share of that of uniform attention
    sink: float  # mean weight of later tokens on the first one


@dataclass(frozen=True)
class HeadMap:
    """Every head of a run, by layer and head, and the firings most above uniform, without those on the first token."""

    __repr__ = brief

    heads: tuple[HeadGlance, ...]
    firings: tuple[Site, ...]


def head_map(run: "Run", *, most: int = 200, progress: Progress = silent) -> HeadMap:
    """A summary of every head, and at most `most` firings. Memory is linear in the prompt's length."""
    run._require_fresh()
    heads, sites, layers = list[HeadGlance](), list[Site](), run.model.attention_layers
    with exact_matmul():
        for done, layer in enumerate(layers):
            progress(done, len(layers))
            totals = _Totals.of(run.attention_run(layer))
            for dests in run.attention_run(layer).blocks:
                sites += totals.add(run.attention_run(layer), layer, dests, most)
            heads += _glances(run, layer, totals)
            sites = sorted(sites, key=lambda s: (-s.times_uniform, s.layer, s.head, s.dest, s.src))[:most]
    return HeadMap(tuple(heads), tuple(sites))


@dataclass
class _Totals:
    """What the blocks of a layer read so far add up to, for every head."""

    entropy: Float[Tensor, "heads"]  # summed over tokens that see two keys or more
    several: int  # how many these are
    sink: Float[Tensor, "heads"]  # summed over later tokens
    best: Float[Tensor, "heads"] = field(repr=False)  # times uniform of the strongest place
    place: Int[Tensor, "heads 2"] = field(repr=False)  # dest and src

    @classmethod
    def of(cls, record: "AttentionRun") -> "_Totals":
        n = len(record.heads)
        nothing = torch.zeros(n, dtype=torch.float64)
        return cls(nothing, 0, nothing, nothing - 1, torch.zeros(n, 2, dtype=torch.long))

    def add(self, record: "AttentionRun", layer: int, dests: range, most: int) -> list[Site]:
        """Add some destinations of all heads; returns the strongest firings among them."""
        weights = record.weights(record.heads, dests).double().cpu()
        counts = record.visible(dests).sum(-1).cpu()
        several = counts > 1
        spread = torch.special.entr(weights[:, several]).sum(-1) / counts[several].double().log()
        self.entropy, self.several = self.entropy + spread.sum(-1), self.several + int(several.sum())
        self.sink = self.sink + weights[:, dests.start == 0 :, 0].sum(-1)
        times = weights * counts[:, None]
        times[..., 0] = -0.5  # the first token is a src only where there is no other
        strongest, at = times.flatten(1).max(1)
        more, n = strongest > self.best, weights.shape[-1]
        place = torch.stack([at // n + dests.start, at % n], 1)
        self.best, self.place = torch.where(more, strongest, self.best), torch.where(more[:, None], place, self.place)
        return _sites(times, counts.tolist(), layer, dests, most)


def _sites(
    times: Float[Tensor, "heads dest pos"], counts: Sequence[int], layer: int, dests: range, most: int
) -> list[Site]:
    """The firings most above uniform, at most `most` of them: a long prompt has millions."""
    values, at = times.flatten().topk(min(most, times.numel()))
    heads, rows, sources = torch.unravel_index(at[values > 0], times.shape)
    sites = []
    for h, r, s in zip(heads.tolist(), rows.tolist(), sources.tolist(), strict=True):
        weight = float(times[h, r, s]) / counts[r]
        if weight >= dynamic_tau(counts[r]):
            sites.append(Site(layer, h, dests[r], s, weight, counts[r]))
    return sites


def _glances(run: "Run", layer: int, totals: _Totals) -> list[HeadGlance]:
    record, (dests, srcs) = run.attention_run(layer), totals.place.T
    with_keys = record.visible(dests.tolist()).sum(-1).cpu()
    weights = [float(record.weights([h], [d])[0, 0, s]) for h, (d, s) in enumerate(totals.place.tolist())]
    sparse = _sparsities(run, layer, dests, srcs)
    entropy = totals.entropy / totals.several if totals.several else totals.entropy * float("nan")
    sink = totals.sink / (len(run) - 1)
    columns = (dests, srcs, torch.tensor(weights), torch.tensor(weights).double() * with_keys, sparse, entropy, sink)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [HeadGlance(layer, head, *numbers) for head, numbers in enumerate(rows)]


def _sparsities(
    run: "Run", layer: int, dests: Int[Tensor, "heads"], srcs: Int[Tensor, "heads"]
) -> Float[Tensor, "heads"]:
    """S(v) of one place of every head: the relative terms of `channels`, of all heads at once."""
    coordinates, record = in_channels(run, layer), run.attention_run(layer)
    heads = torch.arange(len(dests), device=coordinates.a.device)
    dests, srcs = dests.to(coordinates.a.device), srcs.to(coordinates.a.device)
    sees = record.visible(dests.tolist()).to(coordinates.B.dtype)
    offered = coordinates.B[heads, srcs]
    others = torch.einsum("hk,hkc->hc", sees, coordinates.B) - offered
    terms = coordinates.a[heads, dests] * (offered - others / (sees.sum(-1, keepdim=True) - 1))
    sparsities = [sparsity_each(terms[h, : int(rank)]) for h, rank in enumerate(coordinates.rank.tolist())]
    return torch.stack(sparsities)
