"""Does the contrast find the latents that a payload head was trained on? Features, swaps, and the truth beside them.

Triplets (q, k+, k-) of one latent: both keys share the other latent, k+ also shares this one with the query, k- has
it drawn anew; payloads and noise are independent. Then

    dC = E[q k+^T] - E[q k-^T] = U S V^T,      for z1:  W_Q B1 (E[z z^T] - E[z z'^T]) A1^T W_K^T

whose rank is that of the latent wherever the head has room for it.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from keyhole.errors import KeyholeError
from keyhole.features.contrast.moves import Effect, Move, effect, move_of
from keyhole.features.contrast.subspace import decompose, energy_rank, overlap, random_bases, union
from keyhole.lab.payload import Payload, PayloadBatch, activations, batches, sample
from keyhole.lab.payload_task import draw_latents, generator, purpose_seed, token

Latent = Literal["z1", "z2"]


@dataclass(frozen=True)
class LatentFeature:
    """The query-key subspaces of one latent."""

    latent: Latent
    contrast: Float[Tensor, "d_head d_head"]
    U: Float[Tensor, "d_head d_head"]
    S: Float[Tensor, "d_head"]
    V: Float[Tensor, "d_head d_head"]
    rank: int  # singular values that hold 99 % of the energy

    @property
    def query_basis(self) -> Float[Tensor, "d_head rank"]:
        """Orthonormal columns: where queries ask for the latent."""
        return self.U[:, : self.rank]

    @property
    def key_basis(self) -> Float[Tensor, "d_head rank"]:
        """Orthonormal columns: where keys offer it."""
        return self.V[:, : self.rank]


@dataclass(frozen=True)
class Swaps:
    """How much attention moves when key coordinates change places; `random_*` average subspaces of the same rank."""

    null: Effect
    z1: Effect
    z2: Effect
    both: Effect
    random_z1: Effect
    random_z2: Effect
    random_both: Effect
    full: Effect
    samples: int  # with a token that differs from the selected one in both latents; the others were dropped


@dataclass(frozen=True)
class _Pairs:
    """What a swap needs of every sample: the query, both keys, their logits, and the logsumexp of the others."""

    q: Float[Tensor, "sample d_head"]
    difference: Float[Tensor, "sample d_head"]  # k_target - k_orig
    logits: tuple[Float[Tensor, "sample"], Float[Tensor, "sample"]]
    rest: Float[Tensor, "sample"]


def latent_feature(
    cell: Payload, latent: Latent, *, triplets: int = 40_960, differ: bool = False, seed: int = 0
) -> LatentFeature:
    """Where in query-key space does the head match this latent, and in how many dimensions?

    The negative latent is drawn anew and may equal the positive one; `differ` forces discrete ones apart.

    Args:
        cell: A payload head.
        latent: "z1" or "z2".
        triplets: Triplets of the contrast.
        differ: Never draw the negative latent equal to the positive one.
        seed: Seed of the triplets.

    >>> from keyhole.lab.payload import PayloadSettings, train
    >>> cell = train([PayloadSettings(2, 2, 4, max_steps=1, batch=8)])[0]
    >>> latent_feature(cell, "z1", triplets=512).U.shape
    torch.Size([4, 4])
    """
    if latent not in ("z1", "z2"):
        raise KeyholeError(f"there is no latent {latent!r}: choose 'z1' or 'z2'.")
    if triplets < 1:
        raise KeyholeError(f"a contrast of {triplets} triplets says nothing: give a positive number.")
    settings, maps = cell.settings, cell.maps
    stream = generator(seed, "contrast")
    z = draw_latents(settings, (triplets, settings.r1 + settings.r2), stream)
    columns = slice(0, settings.r1) if latent == "z1" else slice(settings.r1, None)
    other = z.clone()
    apart = differ and settings.latents == "discrete"
    other[:, columns] = (
        _other_signs(z[:, columns], stream) if apart else draw_latents(settings, z[:, columns].shape, stream)
    )
    x_q = token(maps, z, None, noise=settings.noise, stream=stream)
    tokens = []
    for latents in (z, other):
        y = torch.randint(0, settings.payloads, (triplets,), generator=stream)
        tokens.append(token(maps, latents, y, noise=settings.noise, stream=stream))
    q, k = (x_q @ cell.W_Q.T).double(), ((tokens[0] - tokens[1]) @ cell.W_K.T).double()
    contrast = q.T @ k / triplets
    U, S, V = decompose(contrast)
    return LatentFeature(latent, contrast, U, S, V, int(energy_rank(S)))


def swaps(
    cell: Payload, z1: LatentFeature, z2: LatentFeature, *, samples: int = 51_200, randoms: int = 10, seed: int = 0
) -> Swaps:
    """Does swapping a latent's coordinates between the selected key and another move the attention there?

    The other key is uniform among those that differ in both latents; `randoms` subspaces of each rank are the controls.

    Args:
        cell: A payload head.
        z1: The subspaces of its first latent.
        z2: Those of the second.
        samples: Contexts of which the two keys are swapped.
        randoms: Random subspaces of each rank.
        seed: Seed of all of these.

    >>> from keyhole.lab.payload import PayloadSettings, train
    >>> cell = train([PayloadSettings(2, 2, 4, max_steps=1, batch=8)])[0]
    >>> z1, z2 = (latent_feature(cell, latent, triplets=512) for latent in ("z1", "z2"))
    >>> swaps(cell, z1, z2, samples=64, randoms=1).full.name
    'full'
    """
    if randoms < 1:
        raise KeyholeError("swaps are compared with random subspaces: ask for at least one of them with randoms.")
    pairs, d_head = _pairs(cell, samples, seed), cell.settings.d_head
    full = _move(cell, pairs, torch.eye(d_head, dtype=torch.float64))
    bases = {"z1": z1.key_basis, "z2": z2.key_basis, "both": union([z1.key_basis, z2.key_basis])}
    effects: dict[str, Effect] = {}
    for index, (name, basis) in enumerate(bases.items()):
        rank = basis.shape[1]
        controls = _move(cell, pairs, random_bases(d_head, rank, randoms, purpose_seed(seed, "bases") + index))
        effects[name] = effect(name, rank, _move(cell, pairs, basis), controls, full, seed=seed)
        effects[f"random_{name}"] = effect(f"random {name}", rank, _mean(controls), None, full, seed=seed)
    null = _move(cell, pairs, torch.zeros(d_head, 0, dtype=torch.float64))
    return Swaps(
        null=effect("null", 0, null, None, full, seed=seed),
        full=effect("full", d_head, full, None, full, seed=seed),
        samples=len(pairs.rest),
        **effects,
    )


def interaction(cell: Payload) -> Float[Tensor, "r r"]:
    """Which entry of the query's latents meets which of the key's?

    G = (W_Q B)^T (W_K A), so that q . k = z_q^T G z_k beside what noise and payload add.

    Args:
        cell: A payload head.

    >>> from keyhole.lab.payload import PayloadSettings, train
    >>> interaction(train([PayloadSettings(2, 2, 4, max_steps=1, batch=8)])[0]).shape
    torch.Size([4, 4])
    """
    return (cell.W_Q @ cell.maps.B).T @ (cell.W_K @ cell.maps.A)


def diagonal_share(G: Float[Tensor, "r r"]) -> float:
    """How much of G's energy pairs every entry with itself? 1: features split fully; less: they share directions.

    Args:
        G: What `interaction` returns.

    >>> diagonal_share(torch.tensor([[3.0, 0.0], [4.0, 0.0]]))
    0.36
    """
    energy = G.double().square()
    return float(energy.diagonal().sum() / energy.sum())


def asymmetry(G: Tensor) -> float:
    """How much of G's off-diagonal energy is antisymmetric?

    >>> asymmetry(torch.tensor([[5.0, 1.0], [-1.0, 5.0]]))
    1.0
    """
    off = (G - G.diagonal().diag()).double()
    return float(((off - off.T) / 2).square().sum() / off.square().sum().clamp_min(1e-30))


def key_overlap(z1: LatentFeature, z2: LatentFeature) -> float:
    """Do both latents use the same key directions? 0: apart, 1: one inside the other. A cheap sign of superposition."""
    return overlap(z1.key_basis, z2.key_basis)


def _other_signs(z: Float[Tensor, "n r"], stream: torch.Generator) -> Float[Tensor, "n r"]:
    """Uniform among the sign vectors other than z: flips the bits of a number from 1 to 2^r - 1."""
    n, r = z.shape
    flips = torch.randint(1, 2**r, (n, 1), generator=stream) >> torch.arange(r) & 1
    return z * (1 - 2 * flips)


def _pairs(cell: Payload, samples: int, seed: int) -> _Pairs:
    stream = generator(seed, "targets")
    parts = [part for batch in batches(cell, samples, seed) if (part := _batch_pairs(cell, batch, stream)) is not None]
    if not parts:
        raise KeyholeError(
            f"none of {samples} samples has a token that differs in both latents from the selected one, so there is "
            "nothing to swap with: ask for more samples or a longer context."
        )
    q, difference, orig, target, rest = (torch.cat(column) for column in zip(*parts, strict=True))
    return _Pairs(q, difference, (orig, target), rest)


def _batch_pairs(
    cell: Payload, batch: PayloadBatch, stream: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor] | None:
    candidates = _differs(batch.z1, batch.star) & _differs(batch.z2, batch.star)  # [sample token]
    keep = candidates.any(-1)
    if not bool(keep.any()):
        return None
    heads, star = activations(cell, batch), batch.star[keep]
    target = torch.multinomial(candidates[keep].float(), 1, generator=stream)[:, 0]
    k, logits, row = heads.k[keep].double(), heads.logits[keep].double(), torch.arange(len(star))
    others = logits.clone()
    others[row, star] = others[row, target] = -math.inf
    difference = k[row, target] - k[row, star]
    return heads.q[keep].double(), difference, logits[row, star], logits[row, target], others.logsumexp(-1)


def _differs(z: Float[Tensor, "sample token r"], star: Int[Tensor, "sample"]) -> Tensor:
    return (z != z[torch.arange(len(z)), star][:, None]).any(-1)


def _move(cell: Payload, pairs: _Pairs, basis: Float[Tensor, "*draw d_head rank"]) -> Move:
    """The move when the coordinates in this key subspace, or in each of several, change places."""
    change = ((pairs.q @ basis) * (pairs.difference @ basis)).sum(-1) / math.sqrt(cell.settings.d_head)
    orig, target, rest = (logits.expand_as(change) for logits in (*pairs.logits, pairs.rest))
    return move_of((orig, target), (orig + change, target - change), rest)


def _mean(moves: Move) -> Move:
    """The average over several edits of the same samples."""
    return Move(moves.orig[0], moves.target[0], moves.orig_after.mean(0), moves.target_after.mean(0))


# Do queries and keys take the shape of their latent?


@dataclass(frozen=True)
class Shape:
    """How queries and right keys lie in a subspace; the worse of both sides where a measure has two."""

    nearest: float  # keys nearest to the queries of their own corner (signs of the latent)
    linear: float  # share of the variance that the latent explains
    even: float  # shortest against longest axis of the latent's image; 1: a regular cube or ball
    agree: float  # cosine of a query with its key


@dataclass(frozen=True)
class LatentPoints:
    """Queries and right keys of fresh samples, with the first latent behind them."""

    q: Float[Tensor, "sample d_head"]
    k: Float[Tensor, "sample d_head"]
    z: Float[Tensor, "sample rank"]
    labels: list[str]  # the corner: signs of the latent

    def within(self, U: Float[Tensor, "d_head rank"], V: Float[Tensor, "d_head rank"]) -> "LatentPoints":
        """The same points in a subspace of queries and one of keys."""
        return LatentPoints(self.q @ U, self.k @ V, self.z, self.labels)


def latent_points(cell: Payload, n: int = 4000, seed: int = 0) -> LatentPoints:
    """Fresh samples of a head, with their first latent."""
    batch = sample(cell, n, seed=seed)
    activity, row = activations(cell, batch), torch.arange(len(batch.star))
    z = batch.z1[row, batch.star].double()
    labels = ["".join("+" if x > 0 else "-" for x in latent) for latent in z.tolist()]
    return LatentPoints(activity.q.double(), activity.k[row, batch.star].double(), z, labels)


def shape(points: LatentPoints) -> Shape:
    """Do queries and right keys take the shape of their latent: a cube of signs, a ball of Gaussians?"""
    kinds = sorted(set(points.labels))
    codes = torch.tensor([kinds.index(label) for label in points.labels])
    centres = torch.stack([points.q[codes == i].mean(0) for i in range(len(kinds))])
    nearest = float((torch.cdist(_unit(points.k), _unit(centres)).argmin(1) == codes).double().mean())
    maps = [torch.linalg.lstsq(points.z, side).solution for side in (points.q, points.k)]
    linear = [_explained(side, points.z @ fitted) for side, fitted in zip((points.q, points.k), maps, strict=True)]
    axes = [torch.linalg.svdvals(fitted) for fitted in maps]
    agree = float((_unit(points.q) * _unit(points.k)).sum(1).mean())
    return Shape(nearest, min(linear), min(float(image[-1] / image[0]) for image in axes), agree)


def _explained(x: Tensor, fitted: Tensor) -> float:
    return 1 - float((x - fitted).square().sum() / (x - x.mean(0)).square().sum())


def _unit(x: Tensor) -> Tensor:
    return torch.nn.functional.normalize(x, dim=-1)
