"""How does a score split over the channels of its head, and how few channels carry it?

    S_ds = scaling q_d . k_s = a_d . B_s + rest_ds

The rest is zero unless a head's Omega is rank deficient: RoPE can turn a query out of what such a head reads. Queries
and keys come from folded weights and frozen scales, not from the captured ones, so that comparing these scores with
the model's own compares two independent ways to them.
"""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from keyhole.brief import Head, brief, head_name
from keyhole.errors import KeyholeError
from keyhole.models.numbers import exact_matmul, require_exact
from keyhole.models.stacks import attention_of, read_keys, read_queries
from keyhole.models.tokens import token_label, tokens_line
from keyhole.qk.omega import Basis, Omega, blocks, omega
from keyhole.report import Bar, Report, Reported, Section, Table

if TYPE_CHECKING:
    from keyhole.models.run import LayerRun, Run
    from keyhole.models.weights import LayerWeights
    from keyhole.qk.controls import RotationControl


@dataclass(frozen=True)
class InChannels:
    """Queries and keys of some heads in channel coordinates; those beyond a head's rank are zero."""

    __repr__ = brief

    a: Float[Tensor, "*runs heads pos channel"]  # of queries, scaling included
    B: Float[Tensor, "*runs heads pos channel"]  # of keys
    k: Float[Tensor, "*runs heads pos d_head"]
    unread: Float[Tensor, "*runs heads pos d_head"] | None  # of queries, scaling included; None: all is in the channels
    rank: Int[Tensor, "heads"]

    def rest(self, dests: slice = slice(None)) -> Float[Tensor, "*runs heads dest pos"]:
        """What is outside the channels of the scores of some queries.

        Args:
            dests: Which queries. Default: all.
        """
        if self.unread is None:
            n = self.a.shape[-2]
            return self.a.new_zeros(()).expand(*self.a.shape[:-2], len(range(n)[dests]), n)
        return self.unread[..., dests, :] @ self.k.mT

    def scores(self, dests: slice = slice(None)) -> Float[Tensor, "*runs heads dest pos"]:
        """The scaled scores of some queries against every key, visible or not.

        Args:
            dests: Which queries. Default: all.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> in_channels(run, 3, 6).scores(slice(14, 15)).shape
        torch.Size([1, 1, 15])
        """
        inside = self.a[..., dests, :] @ self.B.mT
        return inside if self.unread is None else inside + self.rest(dests)


def in_channels(run: "Run", layer: int, head: int | None = None, *, basis: Basis = "linear") -> InChannels:
    """Queries and keys of all heads of a layer, or of one `head`, in channel coordinates.

    Args:
        run: The run whose queries and keys are read.
        layer: A layer with attention.
        head: One of its heads. Default: all.
        basis: linear: channels of W_Q W_K^T; homogeneous: biases are part of them.

    >>> import keyhole
    >>> in_channels(keyhole.load().run("Mary gave John a book"), 3).a.shape  # heads, positions, channels
    torch.Size([8, 6, 16])
    """
    run.attention_run(layer)  # refuses a layer without heads
    return layer_in_channels(run.layers[layer], run.model.folded(layer), omega(run.model, layer, basis), head)


def layer_in_channels(layer: "LayerRun", w: "LayerWeights", om: Omega, head: int | None = None) -> InChannels:
    """`in_channels` for a layer of one run, or of several side by side."""
    record = attention_of(layer)
    if head is None:
        heads, k = slice(None), read_keys(layer, w).repeat_interleave(record.group, dim=-3)
    else:
        kv = record.kv(head)
        heads, k = slice(head, head + 1), read_keys(layer, w, slice(kv, kv + 1))
    q, G_d, G_s = record.rule.scaling * read_queries(layer, w, heads), om.G_d[heads], om.G_s[heads]
    a, deficient, unread = q @ G_d, om.rank[heads] < k.shape[-1], None
    if bool(deficient.any()):
        unread = torch.where(deficient[:, None, None], q - a @ G_s, 0.0)
    return InChannels(a, k @ G_s.mT, k, unread, om.rank[heads])


# How few terms carry a sum? S(v) and N_recon, of one split and of many at once.


def sparsity(terms: Float[Tensor, "channel"]) -> float:
    """S(v) of one split.

    >>> sparsity(torch.tensor([0.0, 0.0, 5.0, 0.0]))
    0.25
    """
    return float(sparsity_each(terms))


def sparsity_each(terms: Float[Tensor, "*batch channel"]) -> Float[Tensor, "*batch"]:
    """Sparsity S(v) = mean(|v|)^2 / mean(v^2), in [1/n, 1]: small if few terms carry the sum, NaN if all are zero.

    Args:
        terms: A row for each sum, channel by channel.

    >>> sparsity_each(torch.tensor([[0.0, 5.0], [1.0, -1.0]])).tolist()
    [0.5, 1.0]
    """
    terms = terms.double()
    return terms.abs().mean(-1) ** 2 / terms.square().mean(-1)


def n_recon(terms: Float[Tensor, "channel"], tolerance: float = 1.0, total: float | None = None) -> int | None:
    """N_recon: the size of the smallest set of terms that sums to `tolerance` times the total.

    None if the total is not positive, or if the terms cannot reach it.

    Args:
        terms: What each channel adds.
        tolerance: Share of the total that is reached: 1 as in the paper, where tiny negative terms force extra
            channels into the set, which 0.95 or 0.99 ignore.
        total: The sum, where it has a rest outside the terms. Default: the sum of the terms.

    >>> n_recon(torch.tensor([3.0, 1.0, -0.01])), n_recon(torch.tensor([3.0, 1.0, -0.01]), 0.7)
    (2, 1)
    """
    whole = terms.double().sum() if total is None else torch.tensor(total, dtype=torch.float64, device=terms.device)
    count = float(n_recon_each(terms, whole, tolerance))
    return None if math.isnan(count) else int(count)


def n_recon_each(
    terms: Float[Tensor, "*batch channel"], total: Float[Tensor, "*batch"], tolerance: float = 1.0
) -> Float[Tensor, "*batch"]:
    """N_recon of every row of terms, as `n_recon`; NaN where that is None.

    Args:
        terms: A row for each sum.
        total: The sums.
        tolerance: As in `n_recon`.

    >>> n_recon_each(torch.tensor([[3.0, 1.0, -0.01], [-1.0, 0.5, 0.0]]), torch.tensor([3.99, -0.5])).tolist()
    [2.0, nan]
    """
    ordered, total = terms.double().sort(dim=-1, descending=True).values, total.double()[..., None]
    slack = 1e-6 * ordered.abs().sum(-1, keepdim=True)  # float32 terms, summed in another order, fall short by rounding
    reached = ordered.cumsum(-1) >= tolerance * total - slack
    counts = reached.int().argmax(-1).double() + 1
    return torch.where((total[..., 0] > 0) & reached.any(-1), counts, float("nan"))


# How does one attention score split over the head's singular channels?
#
#     S_ds = scaling q_d . k_s = sum_k scaling a_k B_sk (+ rest)
#     relative attention  RA = S_ds - mean over the other visible keys,  with one term per channel
#
# RA is taken on scaled scores before softcap, ALiBi and sinks. Without these, RA > 0 whenever the weight exceeds 1 /
# (number of visible keys).


@dataclass(frozen=True)
class Row:
    """One query of one head against its visible keys first..dest, in channel coordinates."""

    __repr__ = brief

    a: Float[Tensor, "channel"]  # of the query, scaling included
    B: Float[Tensor, "key channel"]  # of each visible key
    rest: Float[Tensor, "key"]  # the part of each score that no channel holds (see Omega)
    scores: Float[Tensor, "key"]  # the model's own scaled scores
    first: int  # position of the first visible key
    error: float  # of the reconstructed scores, relative to the largest

    def relative(self, key: int) -> tuple[Float[Tensor, "channel"], float]:
        """Terms of the relative attention of one visible key, and the share of the rest in it."""
        return self.a * self.relative_key(key), float(_against_others(self.rest, key))

    def relative_key(self, key: int) -> Float[Tensor, "channel"]:
        """Coordinates of one visible key minus the mean of the others'; NaN where there are no others."""
        return _against_others(self.B, key)


@dataclass(frozen=True)
class Channels(Reported):
    """How one score splits over the channels of its head."""

    __repr__ = brief

    layer: int  # of the head
    head: int  # in its layer
    dest: int  # the token that attends
    src: int  # the token attended to
    basis: Basis
    attention: float  # the weight after the softmax
    score: float  # scaled, before softcap
    terms: Float[Tensor, "channel"]  # what each channel adds to the score
    rest: float  # the part of the score that no channel holds
    relative_attention: float  # the score beyond the mean of the other visible keys
    relative_terms: Float[Tensor, "channel"]  # what each channel adds to that
    relative_rest: float  # and what no channel holds of it
    sigma: Float[Tensor, "channel"]  # singular values of the head
    visible: int  # number of visible keys
    error: float  # of the row's reconstructed scores, relative to the largest

    @property
    def sparsity(self) -> float:
        """S(v) of the relative terms: 1/channels when one carries all, 1 when all are equal."""
        return sparsity(self.relative_terms)

    def n_recon(self, tolerance: float = 1.0) -> int | None:
        """How many channels make up the relative attention? None when it is not positive.

        Args:
            tolerance: The share of it that the channels add up to at least; 1 as in the paper.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> run.channels((1, 6), src="Mary").n_recon()
        5
        """
        return n_recon(self.relative_terms, tolerance, self.relative_attention)

    def strongest(self, n: int = 3) -> tuple[tuple[int, float], ...]:
        """The channels that add most to the relative attention, each with its share; none when that is not positive.

        Args:
            n: How many channels at most.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> [channel for channel, _ in run.channels((3, 6), src="gave").strongest(2)]
        [3, 1]
        """
        if self.relative_attention <= 0:
            return ()
        values, order = self.relative_terms.sort(descending=True)
        pairs = zip(order.tolist()[:n], values.tolist()[:n], strict=True)
        return tuple((k, value / self.relative_attention) for k, value in pairs if value > 0)

    def report(self, tokens: Sequence[str] = (), controls: "Sequence[RotationControl]" = (), most: int = 16) -> Report:
        """What each channel adds to the relative attention, the largest first.

        Args:
            tokens: Texts of the prompt's tokens; without them, positions are shown.
            controls: Rotation controls of this score, whose sparsity is shown beside it.
            most: At most this many channels are shown.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> run.channels((3, 6), src="Mary").report(run.tokens).title
        'Head 3.6: 14:to <- 2:Mary'
        """
        dest, src = (token_label(tokens, at) if tokens else str(at) for at in (self.dest, self.src))
        rotated = "".join(f", {control.kind} rotation {control.mean_rotated:.3f}" for control in controls)
        counts = " / ".join(str(self.n_recon(tolerance) or "-") for tolerance in (1.0, 0.99, 0.95))
        same = blocks(self.sigma).tolist()
        alike = "~ shares its singular value with a neighbour: only their plane is determined, not each channel"
        terms = enumerate(zip(self.sigma.tolist(), self.relative_terms.tolist(), strict=True))
        summary = (
            f"attention {self.attention:.3f}, score {self.score:.2f}, "
            f"relative attention {self.relative_attention:.2f}\n"
            f"S(v) {self.sparsity:.3f} of {len(self.sigma)} channels{rotated}\n"
            f"N_recon {counts} (for 100 / 99 / 95 % of the relative attention), error {self.error:.0e}"
        )
        return Report(
            f"Head {head_name((self.layer, self.head))}: {dest} <- {src}",
            f"{tokens_line(tokens)}\n\n{summary}" if tokens else summary,
            [
                Section(
                    "What each channel adds to the relative attention",
                    [self._bars(same, most), alike if len({*same}) < len(same) else ""],
                )
            ],
            Table(("channel", ">sigma", ">term"), [(str(k), *numbers) for k, numbers in terms]),
        )

    def _bars(self, same: Sequence[int], most: int) -> Table:
        """The largest terms, and the sum of the others; `same` numbers the blocks of channels."""
        terms, order = self.relative_terms, self.relative_terms.abs().argsort(descending=True).tolist()
        rows = [
            (f"channel {k}{'~' * (same.count(same[k]) > 1)}", f"{float(self.sigma[k]):.2f}", float(terms[k]))
            for k in order[:most]
        ]
        rows += [(f"{len(order) - most} others", "", float(terms[order[most:]].sum()))] * (len(order) > most)
        rows += [("rest", "", self.relative_rest)] * bool(self.relative_rest)
        longest = max([1e-12, *(abs(term) for *_, term in rows if term == term)])  # NaN: dest sees one key alone
        return Table(
            ("", ">sigma", ">term", ""), [(*named, f"{term:+.3f}", Bar(term / longest)) for *named, term in rows]
        )

    def _repr_html_(self) -> str:
        from keyhole.web.reprs import report_html

        return report_html(self.report())

    def record(self) -> dict[str, Any]:
        """As plain data.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> run.channels((1, 6), src="Mary").record()["src"]
        2
        """
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        values |= {"sparsity": self.sparsity, "n_recon": self.n_recon(), "n_recon_99": self.n_recon(0.99)}
        return {name: value.tolist() if isinstance(value, Tensor) else value for name, value in values.items()}


def channels(
    run: "Run", head: Head, dest: int | str = -1, src: int | str | None = None, *, basis: Basis = "linear"
) -> Channels:
    """How does this score split over the head's singular channels?

    `dest` is the last token unless it is given, and `src` the token that dest attends to most.
    """
    layer, index, d, s = check_place(run, head, dest, src)
    record = run.attention_run(layer)
    with exact_matmul():
        row = score_row(run, layer, index, d, basis=basis)
        key = s - row.first
        relative_terms, relative_rest = row.relative(key)
        return Channels(
            layer=layer,
            head=index,
            dest=d,
            src=s,
            basis=basis,
            attention=float(record.weights([index], [d])[0, 0, s]),
            score=float(row.scores[key]),
            terms=row.a * row.B[key],
            rest=float(row.rest[key]),
            relative_attention=float(relative_terms.sum()) + relative_rest,
            relative_terms=relative_terms,
            relative_rest=relative_rest,
            sigma=omega(run.model, layer, basis).sigma[index, : len(row.a)],
            visible=len(row.B),
            error=row.error,
        )


def score_row(run: "Run", layer: int, head: int, dest: int, *, basis: Basis = "linear") -> Row:
    """Channel coordinates of one query and its visible keys; a row whose scores are not reconstructed is refused.

    The parts of a score, per visible key, are `a * B` and `rest`.

    Args:
        run: The run that has the row.
        layer: Its layer.
        head: Its head.
        dest: The position of its query, as a number.
        basis: Channels without biases (linear) or with them (homogeneous).

    >>> import keyhole
    >>> row = score_row(keyhole.load().run("Mary gave John a book"), 3, 1, 5)
    >>> torch.allclose(row.B @ row.a + row.rest, row.scores, atol=1e-4)
    True
    """
    record, coordinates = run.attention_run(layer), in_channels(run, layer, head, basis=basis)
    first, n = int(record.first[dest]), int(coordinates.rank[0])
    keys, row = slice(first, dest + 1), slice(dest, dest + 1)
    scores = record.scores([head], [dest])[0, 0, keys]
    error = float((coordinates.scores(row)[0, 0, keys] - scores).abs().max() / scores.abs().max().clamp_min(1e-30))
    require_exact(error, record.q.dtype, f"the scores of head {layer}.{head}")
    return Row(
        coordinates.a[0, dest, :n], coordinates.B[0, keys, :n], coordinates.rest(row)[0, 0, keys], scores, first, error
    )


def _against_others(x: Float[Tensor, "key *rest"], key: int) -> Float[Tensor, "*rest"]:
    return x[key] - (x.sum(0) - x[key]) / (len(x) - 1) if len(x) > 1 else torch.full_like(x[key], float("nan"))


def check_place(run: "Run", head: Head, dest: int | str, src: int | str | None) -> tuple[int, int, int, int]:
    """(layer, head, dest, src) as numbers, or an error that says why there is no such attention weight.

    Without a src: the token that dest attends to most.
    """
    run._require_fresh()
    layer, index = check_head(run, head)
    d = run.position(dest, "dest")
    if src is None:
        with exact_matmul():
            return layer, index, d, int(run.attention_run(layer).weights([index], [d])[0, 0].argmax())
    s, first = run.position(src, "src"), int(run.attention_run(layer).first[d])
    if s > d:
        raise KeyholeError(f"src {s} comes after dest {d}: a token attends only to itself and to earlier ones.")
    if s < first:
        raise KeyholeError(f"src {s} is outside the attention window of dest {d}, which starts at {first}.")
    return layer, index, d, s


def check_head(run: "Run", head: Head) -> tuple[int, int]:
    """A head as (layer, head), or an error that says which exist."""
    try:
        layer, index = (operator.index(part) for part in head)
    except (TypeError, ValueError) as error:
        raise KeyholeError(f"a head is a pair (layer, head) such as (3, 1), not {head!r}.") from error
    run.attention_run(layer)
    if not 0 <= index < run.model.dims.heads:
        raise KeyholeError(f"there is no head {layer}.{index}: a layer has heads 0 to {run.model.dims.heads - 1}.")
    return layer, index
