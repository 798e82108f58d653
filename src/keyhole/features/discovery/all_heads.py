"""Which heads match queries to keys on a few directions? The label-free contrast of all heads of a model.

    dC = E[q (k_att - k_rest)^T] = U S V^T        over all queries of all prompts, and over two halves of the prompts

Only sums are kept, so memory does not grow with the number or the length of prompts. A direction is real if it recurs
in the other half: held_out_k = u_k^T dC' v_k with u, v from one half and dC' from the other, near S_k.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.brief import brief, head_name, model_label
from keyhole.errors import KeyholeError
from keyhole.features.contrast.places import split_groups
from keyhole.features.contrast.subspace import decompose, energy_rank
from keyhole.features.discovery.discovery import SAMPLES_PER_DIMENSION
from keyhole.features.discovery.keys import View, attended, each_run, groups_of
from keyhole.models.numbers import exact_matmul
from keyhole.models.tokens import Prompt
from keyhole.progress import Progress
from keyhole.report import Report, Reported, Section, Table
from keyhole.settings.fields import chosen as settings_with
from keyhole.settings.fields import option

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.models.run import Run


@dataclass(frozen=True)
class HeadContrast:
    """The label-free contrast of one head."""

    __repr__ = brief

    layer: int
    head: int
    queries: int  # those where the head does not rest
    U: Float[Tensor, "d_head d_head"]
    S: Float[Tensor, "d_head"]
    V: Float[Tensor, "d_head d_head"]
    rank: int | None  # by energy; None: too few queries for a claim
    held_out: Float[Tensor, "d_head"]  # mean over both directions of u_k^T dC' v_k
    agreement: float  # sum of held_out over sum of S of the halves, within the rank: 1 real, 0 noise
    gap: float  # mean score of attended keys minus that of the rest
    subspace_share: float  # of the gap of one half, by the subspaces of the other
    mean_energy: float  # share of |dC|^2 in the averages E[q] E[d]^T, a preference that all queries share


@dataclass(frozen=True)
class Survey(Reported):
    """Every head of a model over the same prompts."""

    __repr__ = brief

    model: str
    view: View
    prompts: int
    heads: tuple[HeadContrast, ...]

    def head(self, layer: int, head: int) -> HeadContrast:
        """The contrast of one head.

        Args:
            layer: Index of the layer.
            head: Index of the head in its layer.
        """
        for contrast in self.heads:
            if (contrast.layer, contrast.head) == (layer, head):
                return contrast
        raise KeyholeError(f"there is no head {layer}.{head} in this survey of {self.model}.")

    @property
    def ranked(self) -> tuple[HeadContrast, ...]:
        """Heads with a rank, by the gap that the other half confirms, largest first."""
        claimed = [head for head in self.heads if head.rank is not None]
        return tuple(sorted(claimed, key=lambda head: -head.gap * head.subspace_share))

    def report(self, most: int = 12) -> Report:
        """The heads with the largest confirmed gaps; as a table, all that have a rank.

        Args:
            most: At most this many heads are shown.
        """
        columns = ("head", ">queries", ">rank", ">of", ">agreement", ">gap", ">in subspace", ">mean")
        rows = [
            (
                *(head_name((h.layer, h.head)), h.queries, h.rank, len(h.S)),
                *(h.agreement, h.gap, h.subspace_share, h.mean_energy),
            )
            for h in self.ranked
        ]
        return Report(
            f"What heads match on: {model_label(self.model)}",
            f"{self.prompts} prompts, frame {self.view.frame}",
            [Section("Heads by the gap their subspace holds", [Table(columns, rows[:most]), _COLUMNS])],
            Table(columns, rows),
        )

    def record(self) -> dict[str, Any]:
        """As plain data, without directions."""
        heads = [
            {**asdict(h), "U": None, "V": None, "S": h.S.tolist(), "held_out": h.held_out.tolist()} for h in self.heads
        ]
        return {"model": self.model, "view": asdict(self.view), "prompts": self.prompts, "heads": heads}


_COLUMNS = (
    "rank: 99 % of the contrast's energy; agreement: directions that come back in the other half\n"
    "gap: score of attended minus other keys; in subspace: the held-out part of it;\n"
    "mean: part of the contrast that all queries prefer."
)


@dataclass(frozen=True)
class _Sums:
    """Everything that the contrast of one half of the prompts needs; its size does not depend on their number."""

    outer: Float[Tensor, "layer head d_head d_head"]
    query: Float[Tensor, "layer head d_head"]
    difference: Float[Tensor, "layer head d_head"]
    count: Float[Tensor, "layer head"]

    def plus(self, other: "_Sums") -> "_Sums":
        return _Sums(
            self.outer + other.outer,
            self.query + other.query,
            self.difference + other.difference,
            self.count + other.count,
        )

    def means(self) -> Tensor:
        """E[q] E[d]^T."""
        n = self.count.clamp_min(1)[..., None]
        return (self.query / n)[..., :, None] * (self.difference / n)[..., None, :]

    def contrast(self, centre: bool) -> Tensor:
        """E[q d^T], or the covariance."""
        plain = self.outer / self.count.clamp_min(1)[..., None, None]
        return plain - self.means() if centre else plain


@dataclass(frozen=True)
class SurveySettings:
    """How all heads of a model are surveyed."""

    view: View = option(View(), "How attention is read: the frame, and which attention counts.")
    centre: bool = option(True, "Leave out of the contrast what the average query prefers.")
    energy: float = option(0.99, "Share of the squared singular values that a rank holds.")
    batch: int = option(16, "Prompts in memory at a time.")
    seed: int = option(0, "Seed of the two halves of the prompts.")


class SurveyOptions(TypedDict, total=False):
    """The fields of `SurveySettings`, as keywords."""

    view: View
    centre: bool
    energy: float
    batch: int
    seed: int


def survey(
    model: "Model",
    prompts: Sequence[Prompt],
    *,
    bos: bool | None = None,
    settings: SurveySettings | None = None,
    progress: Progress | None = None,
    **options: Unpack[SurveyOptions],
) -> Survey:
    """Find the directions on which every head matches queries to keys, in one pass over any prompts.

    Args:
        model: The model whose heads are surveyed.
        prompts: Any texts, or token ids.
        bos: Whether a beginning-of-sequence token is put first. Default: as the model has it.
        settings: How. Default: those of `SurveySettings`.
        progress: Called with the number of prompts done, and their total.
        **options: Fields of `SurveySettings`: `view`, `centre`, `energy`, `batch`, `seed`.

    >>> import keyhole
    >>> from keyhole.tasks import filler
    >>> model = keyhole.load()
    >>> len(survey(model, filler(60, 0)).heads) == len(model.attention_layers) * model.dims.heads
    True
    """
    how = settings_with(settings, SurveySettings, options)
    view = how.view
    half = split_groups(groups_of(model, prompts, bos), how.seed)
    layers = model.attention_layers
    sums = [_nothing(len(layers), model.dims.heads, model.dims.d_head, model.device) for _ in range(2)]
    scaling = torch.zeros(len(layers), dtype=torch.float64)
    with exact_matmul():
        for number, run in each_run(model, prompts, bos=bos, batch=how.batch, progress=progress):
            for i, layer in enumerate(layers):
                scaling[i] = run.attention_run(layer).rule.scaling
                _add(sums[int(half[number])], i, run, layer=layer, view=view)
    need = SAMPLES_PER_DIMENSION * model.dims.d_head
    most = int(sums[0].plus(sums[1]).count.max())
    if most < need:
        raise KeyholeError(
            f"no head has more than {most} queries that it does not rest on, but a rank among {model.dims.d_head} "
            f"dimensions takes {need}: give more or longer prompts."
        )
    heads = _heads(sums[0], sums[1], layers, scaling, centre=how.centre, energy=how.energy, need=need)
    return Survey(model.name, view, len(prompts), heads)


def _nothing(layers: int, heads: int, d: int, device: torch.device) -> _Sums:
    shapes = ((layers, heads, d, d), (layers, heads, d), (layers, heads, d), (layers, heads))
    return _Sums(*(torch.zeros(shape, dtype=torch.float64, device=device) for shape in shapes))


def _add(sums: _Sums, row: int, run: "Run", *, layer: int, view: View) -> None:
    """Add one prompt, in place: accumulators of large models are not copied for every prompt."""
    keys = attended(run.attention_run(layer), range(run.model.dims.heads), view)
    used = keys.used[..., None]
    q, d = keys.q * used, (keys.attended - keys.rest) * used
    sums.outer[row] += (q.transpose(1, 2) @ d).to(sums.outer.device)
    sums.query[row] += q.sum(1).to(sums.query.device)
    sums.difference[row] += d.sum(1).to(sums.difference.device)
    sums.count[row] += keys.used.sum(1).to(sums.count.device)


def _heads(
    a: _Sums, b: _Sums, layers: list[int], scaling: Tensor, *, centre: bool, energy: float, need: int
) -> tuple[HeadContrast, ...]:
    both = a.plus(b)
    contrast, halves = both.contrast(centre).cpu(), [a.contrast(centre).cpu(), b.contrast(centre).cpu()]
    plain, means = both.contrast(False).cpu(), both.means().cpu()
    U, S, V = decompose(contrast)
    rank = energy_rank(S, energy)
    held_out, fitted, share = _crossed(halves, rank, [a.contrast(False).cpu(), b.contrast(False).cpu()])
    gap = scaling[:, None] * _trace(plain)
    mean_energy = means.square().sum((-1, -2)) / plain.square().sum((-1, -2))
    count, within = both.count.cpu(), _within(rank, S.shape[-1])
    agreement = (held_out * within).sum(-1) / (fitted * within).sum(-1)
    return tuple(
        HeadContrast(
            layer=layer,
            head=h,
            queries=int(count[i, h]),
            U=U[i, h],
            S=S[i, h],
            V=V[i, h],
            rank=int(rank[i, h]) if count[i, h] >= need else None,
            held_out=held_out[i, h],
            agreement=float(agreement[i, h]),
            gap=float(gap[i, h]),
            subspace_share=float(share[i, h]),
            mean_energy=float(mean_energy[i, h]),
        )
        for i, layer in enumerate(layers)
        for h in range(S.shape[1])
    )


def _crossed(halves: list[Tensor], rank: Tensor, plain: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Held-out and fitted singular values, and the held-out share of the gap in the subspace; mean over directions."""
    held_out, fitted, share = [], [], []
    for this, other in ((0, 1), (1, 0)):
        U, S, V = decompose(halves[this])
        held_out.append((U * (halves[other] @ V)).sum(-2))
        fitted.append(S)
        within = _within(rank, S.shape[-1])
        U, V = U * within[..., None, :], V * within[..., None, :]
        # E[(U U^T q) . (V V^T d)] = tr(U^T dC V (U^T V)^T), and the whole gap is tr(dC)
        inside = ((U.mT @ plain[other] @ V) * (U.mT @ V)).sum((-1, -2))
        share.append(inside / _trace(plain[other]))
    return torch.stack(held_out).mean(0), torch.stack(fitted).mean(0), torch.stack(share).mean(0)


def _within(rank: Tensor, d: int) -> Tensor:
    return (torch.arange(d) < rank[..., None]).double()


def _trace(x: Tensor) -> Tensor:
    return x.diagonal(dim1=-2, dim2=-1).sum(-1)
