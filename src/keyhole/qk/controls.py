"""Is a sparse split due to the singular basis? The same score in rotated bases; and the channels used over prompts.

`ambient`   U -> R1 U, V -> R2 V with Haar rotations of residual space: same spectrum, other directions. The score
            itself changes, so compare only scale-free numbers such as S(v). This is the paper's control.
`refactor`  Omega = (U Sigma^1/2 R)(V Sigma^1/2 R)^T with a Haar rotation R of the channels: Omega and every score
            stay as they are; only the choice of rank-one pieces differs. The stronger control.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from keyhole.brief import Head, brief, head_name
from keyhole.errors import KeyholeError
from keyhole.models.numbers import exact_matmul, require_exact
from keyhole.qk.channels import check_head, check_place, in_channels, score_row, sparsity, sparsity_each
from keyhole.qk.omega import Basis, omega
from keyhole.settings.fields import chosen as settings_with
from keyhole.settings.fields import option

if TYPE_CHECKING:
    from keyhole.models.run import Run

Rotation = Literal["ambient", "refactor"]
_AMBIENT_DRAWS = 2_000


@dataclass(frozen=True)
class RotationSettings:
    """How a split is compared with splits in rotated bases."""

    kind: Rotation = option("refactor", "ambient: rotations of residual space; refactor: of the channels.")
    draws: int = option(20, "Random rotations to average over.")
    seed: int = option(0, "Seed of the rotations.")
    basis: Basis = option("linear", "linear: biases apart; homogeneous: biases are part of the channels.")

    def __post_init__(self) -> None:
        if self.draws < 1:
            raise KeyholeError("a rotation control needs at least one draw.")
        if self.kind not in ("ambient", "refactor"):
            raise KeyholeError(f"there is no rotation {self.kind!r}: choose 'ambient' or 'refactor'.")


class RotationOptions(TypedDict, total=False):
    """The fields of `RotationSettings`, as keywords."""

    kind: Rotation
    draws: int
    seed: int
    basis: Basis


@dataclass(frozen=True)
class RotationControl:
    """S(v) of a firing's relative terms in the singular basis and in rotated ones."""

    __repr__ = brief

    kind: Rotation
    sparsity: float
    rotated: tuple[float, ...]  # one per draw
    error: float  # of the reconstructed scores, relative to the largest

    @property
    def mean_rotated(self) -> float:
        """The mean S(v) over draws."""
        return sum(self.rotated) / len(self.rotated)


def rotation_control(
    run: "Run",
    head: Head,
    dest: int | str = -1,
    src: int | str | None = None,
    *,
    settings: RotationSettings | None = None,
    **options: Unpack[RotationOptions],
) -> RotationControl:
    """Compare the sparsity S(v) of one split with that of the same score in randomly rotated bases.

    Args:
        run: A run of the model.
        head: Layer and head.
        dest: The query, by position or text. Default: the last token.
        src: The key, by position or text. Default: the token that dest attends to most.
        settings: How bases are rotated. Default: those of `RotationSettings`.
        **options: Fields of `RotationSettings`: `kind`, `draws`, `seed`, `basis`.

    >>> import keyhole
    >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
    >>> control = rotation_control(run, (3, 1), src="Mary", draws=50)
    >>> control.sparsity < control.mean_rotated
    True
    """
    how = settings_with(settings, RotationSettings, options)
    layer, index, d, s = check_place(run, head, dest, src)
    with exact_matmul():
        row = score_row(run, layer, index, d, basis=how.basis)
        b, sigma = row.relative_key(s - row.first), omega(run.model, layer, how.basis).sigma[index, : len(row.a)]
        if how.kind == "refactor":
            rotated = refactored(row.a[None], b[None], sigma, rotations(len(b), how.draws, how.seed))[:, 0]
        else:
            rotated = ambient_draws(sigma, how.draws, torch.Generator().manual_seed(how.seed))
    singular, each = sparsity(row.a * b), sparsity_each(rotated).tolist()
    return RotationControl(
        how.kind, singular, tuple(math.nan if math.isnan(singular) else value for value in each), row.error
    )


def refactored(
    a: Float[Tensor, "pair channel"],
    b: Float[Tensor, "pair channel"],
    sigma: Float[Tensor, "channel"],
    R: Float[Tensor, "draw channel channel"],
) -> Float[Tensor, "draw pair channel"]:
    """The terms a_k b_k in other rank-one pieces of the same Omega: every draw has the same sums."""
    root = sigma.double().cpu().sqrt()
    left, right = (a.double().cpu() / root) @ R, (b.double().cpu() * root) @ R
    return left * right


def refactor_draws(
    left: Float[Tensor, "channel"], right: Float[Tensor, "channel"], draws: int, stream: torch.Generator
) -> Float[Tensor, "draw channel"]:
    """(left R) * (right R) for Haar R and a single pair, which needs only a random plane: that of left and right.

    As `refactored` with `rotations`, but draws only the part of R that a single pair depends on.
    """
    n, length = len(left), left.norm()
    along = (left @ right) / length
    across = (right - along * left / length).norm()
    Q, R = torch.linalg.qr(torch.randn(draws, n, min(2, n), generator=stream, dtype=torch.float64))
    frame = (
        Q * R.diagonal(dim1=-2, dim2=-1).sign()[:, None]
    )  # without this, QR's own choice of signs would bias the frame
    p, q = frame[..., 0], frame[..., -1]
    return cast(Tensor, length * p * (along * p + across * q if n > 1 else along * p))


def ambient_draws(
    sigma: Float[Tensor, "channel"], draws: int, stream: torch.Generator
) -> Float[Tensor, "draw channel"]:
    """The terms (x . R1 u_k) sigma_k (R2 v_k . y) for Haar R1, R2, up to a factor: sigma_k g_k h_k.

    R1 U is a uniform orthonormal frame whatever U is, and what it reads of any x is proportional to independent
    Gaussians. So the control depends on a token only through its length, which S(v) ignores: it is one number per head.
    """
    g, h = torch.randn(2, draws, len(sigma), generator=stream, dtype=torch.float64)
    return cast(Tensor, sigma.double().cpu() * g * h)


def ambient_sparsity(sigma: Float[Tensor, "channel"], seed: int = 0) -> float:
    """How sparse are the terms of a head with this spectrum and random directions, on average?

    >>> 0.3 < ambient_sparsity(torch.ones(64)) < 0.5
    True
    """
    return float(sparsity_each(ambient_draws(sigma, _AMBIENT_DRAWS, torch.Generator().manual_seed(seed))).mean())


def rotations(n: int, draws: int, seed: int = 0) -> Float[Tensor, "draw n n"]:
    """Haar rotations of n channels."""
    g = torch.Generator().manual_seed(seed)
    return torch.stack([haar(n, n, g) for _ in range(draws)])


def haar(n: int, columns: int, generator: torch.Generator) -> Float[Tensor, "n columns"]:
    """The first columns of a uniformly random rotation: QR of a Gaussian, with the signs of R's diagonal undone."""
    Q, R = torch.linalg.qr(torch.randn(n, columns, generator=generator, dtype=torch.float64))
    return cast(Tensor, Q * R.diagonal().sign())


# Which channels does a head use when it fires, and which when it does not? The 2024 paper's slice sets, over prompts.
#
# For one pair (dest, src) with terms f_k, S is the shortest prefix of the terms in descending order whose sum exceeds
# the total, so that what is left out sums to at most zero; for a negative score, in ascending order.


@dataclass(frozen=True)
class SliceUse:
    """Which channels one head used, pair by pair."""

    __repr__ = brief

    layer: int
    head: int
    firing: bool
    basis: Basis
    pairs: Int[Tensor, "pair 3"]  # prompt, dest, src
    terms: Float[Tensor, "pair channel"]
    used: Bool[Tensor, "pair channel"]
    error: float  # of the reconstructed scores, relative to the largest

    @property
    def sizes(self) -> Int[Tensor, "pair"]:
        """|S| of each pair."""
        return self.used.sum(-1)

    @property
    def counts(self) -> Int[Tensor, "channel"]:
        """How many pairs used each channel."""
        return self.used.sum(0)


def slice_sets(terms: Float[Tensor, "pair channel"]) -> Bool[Tensor, "pair channel"]:
    """Slice sets S of the 2024 paper: which channels each pair uses, given its terms.

    Args:
        terms: What each channel adds to a score, a pair a row.

    >>> slice_sets(torch.tensor([[4.0, 2.0, -1.0], [-3.0, 1.0, -0.5]])).tolist()
    [[True, True, False], [True, False, False]]
    """
    total = terms.sum(-1, keepdim=True)
    towards = torch.where(total < 0, -terms, terms)
    ordered, order = towards.sort(dim=-1, descending=True)
    # A prefix ends with the term at which its sum first exceeds the total; that term belongs to S.
    before = ordered.cumsum(-1) - ordered
    inside = before <= total.abs()
    return torch.zeros_like(inside).scatter(-1, order, inside)


def slice_use(
    runs: Sequence["Run"],
    head: Head,
    *,
    firing: bool = True,
    threshold: float = 0.5,
    basis: Basis = "homogeneous",
    seed: int = 0,
) -> SliceUse:
    """Which channels does this head use over many prompts?

    With `firing`, pairs are those with weight >= threshold, score >= 0 and a src that is not the first token. Without,
    one pair per prompt is drawn at random (`seed`) among those that do not fire nor attend to the first token. The
    paper's figures use the homogeneous basis, in which biases are part of the channels.

    Args:
        runs: Runs of one model.
        head: The head, as (layer, head).
        firing: Take pairs that fire. False: one pair per prompt that does not.
        threshold: The weight from which a pair fires.
        basis: "homogeneous": biases are part of the channels, as in the paper. "linear": they are apart.
        seed: Seed of the pairs that do not fire.

    >>> import keyhole
    >>> runs = keyhole.load().run_many(["When Mary and John went to the store, John gave a drink to"])
    >>> use = slice_use(runs, (3, 1))
    >>> use.sizes.shape == (len(use.pairs),) and use.counts.sum() == use.sizes.sum()
    tensor(True)
    """
    generator = torch.Generator().manual_seed(seed)
    pairs, terms, worst = [], [], 0.0
    with exact_matmul():
        for prompt, run in enumerate(runs):
            layer, index = check_head(run, head)
            run._require_fresh()
            dests, sources = _pairs(run, layer, index, firing=firing, threshold=threshold, generator=generator)
            pair_terms, error = _terms(run, layer, index, dests=dests, sources=sources, basis=basis)
            terms.append(pair_terms)
            worst = max(worst, error)
            pairs.append(torch.stack([torch.full_like(dests, prompt), dests, sources], dim=-1))
    if not pairs or not any(len(p) for p in pairs):
        kind = "fires" if firing else "fails to fire"
        raise KeyholeError(f"head {head_name(head)} {kind} nowhere in these {len(runs)} prompts.")
    stacked = torch.cat(terms)
    return SliceUse(*head, firing, basis, torch.cat(pairs), stacked, slice_sets(stacked), worst)


def _pairs(
    run: "Run", layer: int, head: int, *, firing: bool, threshold: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    record, n = run.attention_run(layer), len(run)
    weights, scores = record.weights([head], range(n))[0], record.scores([head], range(n))[0]
    visible = record.visible()
    fires = (weights >= threshold) & (scores >= 0) & visible
    fires[:, 0] = False
    if firing:
        dests, sources = fires.nonzero(as_tuple=True)
        return dests, sources
    quiet = visible & (weights < threshold)
    quiet[:, 0] = False  # as above; otherwise firing and other pairs would differ by the sink
    dests, sources = quiet.nonzero(as_tuple=True)
    chosen = torch.randint(len(dests), (1,), generator=generator).to(dests.device) if len(dests) else dests[:0]
    return dests[chosen], sources[chosen]


def _terms(run: "Run", layer: int, head: int, *, dests: Tensor, sources: Tensor, basis: Basis) -> tuple[Tensor, float]:
    """Terms of chosen pairs, and how far their sums miss the model's own scores."""
    record, coordinates = run.attention_run(layer), in_channels(run, layer, head, basis=basis)
    n = int(coordinates.rank[0])
    terms = coordinates.a[0, dests, :n] * coordinates.B[0, sources, :n]
    if not len(dests):
        return terms, 0.0
    scores, rest = record.scores([head], range(len(run)))[0], coordinates.rest()[0, dests, sources]
    error = float((terms.sum(-1) + rest - scores[dests, sources]).abs().max() / scores.abs().max().clamp_min(1e-30))
    require_exact(error, record.q.dtype, f"the scores of head {layer}.{head}")
    return terms, error
