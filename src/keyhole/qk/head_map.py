"""What does each head do in a prompt, at a glance? Its strongest firing, how spread it is, and how much it rests."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from keyhole.brief import brief
from keyhole.models.numbers.precision import exact_matmul
from keyhole.progress import Progress, silent
from keyhole.qk.coordinates import in_channels
from keyhole.qk.firings import Site, dynamic_tau
from keyhole.qk.sparsity import sparsity_each

if TYPE_CHECKING:
    from keyhole.models.run import AttentionRun, Run


@dataclass(frozen=True)
class HeadGlance:
    """One head in one prompt."""

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
    """All heads at a glance, and at most so many firings. Memory is linear in the prompt's length."""
    run.require_fresh()
    heads, sites, layers = list[HeadGlance](), list[Site](), run.model.attention_layers
    with exact_matmul():
        for done, layer in enumerate(layers):
            progress(done, len(layers))
            looked = _Looked.of(run.layer(layer))
            for dests in run.layer(layer).blocks:
                sites += looked.add(run.layer(layer), layer, dests, most)
            heads += _glances(run, layer, looked)
            sites = sorted(sites, key=lambda s: (-s.times_uniform, s.layer, s.head, s.dest, s.src))[:most]
    return HeadMap(tuple(heads), tuple(sites))


@dataclass
class _Looked:
    """What was seen of a layer so far, of every head."""

    entropy: Float[Tensor, "heads"]  # summed over tokens that see two keys or more
    several: int  # how many these are
    sink: Float[Tensor, "heads"]  # summed over later tokens
    best: Float[Tensor, "heads"] = field(repr=False)  # times uniform of the strongest place
    place: Int[Tensor, "heads 2"] = field(repr=False)  # dest and src

    @classmethod
    def of(cls, record: "AttentionRun") -> "_Looked":
        n = len(record.heads)
        nothing = torch.zeros(n, dtype=torch.float64)
        return cls(nothing, 0, nothing, nothing - 1, torch.zeros(n, 2, dtype=torch.long))

    def add(self, record: "AttentionRun", layer: int, dests: range, most: int) -> list[Site]:
        """Look at some tokens of all heads; the firings among them that may count."""
        weights = record.weights(record.heads, dests).double().cpu()
        counts = record.visible(dests).sum(-1).cpu()
        several = counts > 1
        spread = torch.special.entr(weights[:, several]).sum(-1) / counts[several].double().log()
        self.entropy, self.several = self.entropy + spread.sum(-1), self.several + int(several.sum())
        self.sink = self.sink + weights[:, dests.start == 0 :, 0].sum(-1)
        times = weights * counts[:, None]
        times[..., 0] = -0.5  # the first token is a src only where there is no other
        found, at = times.flatten(1).max(1)
        more, n = found > self.best, weights.shape[-1]
        place = torch.stack([at // n + dests.start, at % n], 1)
        self.best, self.place = torch.where(more, found, self.best), torch.where(more[:, None], place, self.place)
        return _sites(times, counts.tolist(), layer, dests, most)


def _sites(
    times: Float[Tensor, "heads dest pos"], counts: Sequence[int], layer: int, dests: range, most: int
) -> list[Site]:
    """The firings most above uniform, at most so many: of a long prompt there are millions."""
    values, at = times.flatten().topk(min(most, times.numel()))
    heads, rows, sources = torch.unravel_index(at[values > 0], times.shape)
    found = []
    for h, r, s in zip(heads.tolist(), rows.tolist(), sources.tolist(), strict=True):
        weight = float(times[h, r, s]) / counts[r]
        if weight >= dynamic_tau(counts[r]):
            found.append(Site(layer, h, dests[r], s, weight, counts[r]))
    return found


def _glances(run: "Run", layer: int, looked: _Looked) -> list[HeadGlance]:
    record, (dests, srcs) = run.layer(layer), looked.place.T
    with_keys = record.visible(dests.tolist()).sum(-1).cpu()
    weights = [float(record.weights([h], [d])[0, 0, s]) for h, (d, s) in enumerate(looked.place.tolist())]
    sparse = _sparsities(run, layer, dests, srcs)
    entropy = looked.entropy / looked.several if looked.several else looked.entropy * float("nan")
    sink = looked.sink / (len(run) - 1)
    columns = (dests, srcs, torch.tensor(weights), torch.tensor(weights).double() * with_keys, sparse, entropy, sink)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [HeadGlance(layer, head, *numbers) for head, numbers in enumerate(rows)]


def _sparsities(
    run: "Run", layer: int, dests: Int[Tensor, "heads"], srcs: Int[Tensor, "heads"]
) -> Float[Tensor, "heads"]:
    """S(v) of one place of every head: the relative terms of `channels`, of all heads at once."""
    found, record = in_channels(run, layer), run.layer(layer)
    heads = torch.arange(len(dests), device=found.a.device)
    dests, srcs = dests.to(found.a.device), srcs.to(found.a.device)
    sees = record.visible(dests.tolist()).to(found.B.dtype)
    offered = found.B[heads, srcs]
    others = torch.einsum("hk,hkc->hc", sees, found.B) - offered
    terms = found.a[heads, dests] * (offered - others / (sees.sum(-1, keepdim=True) - 1))
    told = [sparsity_each(terms[h, : int(rank)]) for h, rank in enumerate(found.rank.tolist())]
    return torch.stack(told)
