"""What is the superposition toy with a head, and how does one step of its training go?

Do the singular vectors of a head become features? A toy with known features: settings and trained models.

    token  r = W f,   f_i = a_i b_i,  a_i ~ Bernoulli(p),  b_i ~ U(0, 1)
    recon  f' = ReLU(W^T r + b)
    head   l_j = r^T Omega s_j,  Omega = W_Q^T W_K            against the target  l^T_j = f_r^T T f_{s_j}
    loss   L = |f' - f|^2 + lambda CE(softmax l^T, softmax l)

T has one entry per pair (query feature, key feature) that the head should attend for. "Singular Vectors of Attention
Heads Align with Features": u_k should turn to the query feature of the k-th pair, v_k to its key feature.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.errors import KeyholeError
from keyhole.strict import is_number, is_whole, require

Pair = tuple[int, int, float]  # query feature, key feature, what the pair adds to the target logit
_CHOICES = {"recon_reduction": ("sum", "mean"), "query_mode": ("last", "indep"), "cosine": ("quarter", "half")}
_PURPOSES = ("init", "data", "sample")
DEAD = 0.02  # of the longest feature: a shorter one is not represented, and its direction is noise
RECORD = 100  # steps between recorded losses, and between chances to report and save


def declining_pairs(n: int, top: float, step: float = 1.0, *, offset: int | None = None) -> tuple[Pair, ...]:
    """Pairs (i, i + offset) for i < n whose targets fall linearly from `top`; the offset is n unless given.

    Args:
        n: How many pairs.
        top: Target of the first.
        step: By how much each target is below the one before.
        offset: From a query feature to its key feature. Default: n.

    >>> declining_pairs(2, 24.0, 3.0, offset=4)
    ((0, 4, 24.0), (1, 5, 21.0))
    """
    shift = n if offset is None else offset
    return tuple((i, i + shift, top - step * i) for i in range(n))


@dataclass(frozen=True)
class SVFSettings:
    """One toy and how it is trained. The defaults are the `fast` preset."""

    N: int = 20  # features
    D: int = 10  # dimensions of a token
    H: int = 10  # dimensions of the head
    m: int = 4  # tokens in a context
    pairs: tuple[Pair, ...] = declining_pairs(4, 24.0, 3.0)  # of features that the head is to attend to
    p: float = 0.52  # probability that a feature is present
    lam: float = 20.0  # lambda, the weight of attention against reconstruction
    recon_reduction: Literal["sum", "mean"] = (
        "sum"  # of squared errors over features: a sum's lambda is N times a mean's
    )
    query_mode: Literal["last", "indep"] = "last"  # the query is the last token of its context, or one of its own
    steps: int = 15_000  # of training
    lr: float = 1e-3  # learning rate
    weight_decay: float = 0.01
    cosine: Literal["quarter", "half"] = "quarter"  # wave along which lr falls to zero
    batch: int = 1024  # key tokens of a step: batch / m contexts
    attention: bool = True  # without a head only the reconstruction is trained, and W_Q = W_K = 0
    seed: int = 0  # of everything; settings that share it start alike and see the same uniform numbers

    def __post_init__(self) -> None:
        for name in ("N", "D", "H", "m", "steps", "batch", "seed"):
            value, least = getattr(self, name), int(name != "seed")
            reason = f"{name} is {value!r}, but it counts: give a whole number of at least {least}."
            require(is_whole(value) and value >= least, reason)
        for name in ("p", "lam", "lr", "weight_decay"):
            _require_number(name, getattr(self, name))
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                listed = " or ".join(map(repr, known))
                raise KeyholeError(f"there is no {name} {getattr(self, name)!r}: choose {listed}.")
        if self.H > self.D:
            raise KeyholeError(f"H {self.H} > D {self.D}: Omega has rank D at most, so give a head of H <= {self.D}.")
        if not 0 < self.p <= 1:
            raise KeyholeError(f"p is {self.p}, but it is a probability that must occur: give one in (0, 1].")
        if self.batch % self.m:
            raise KeyholeError(f"m {self.m} does not divide the batch of {self.batch} key tokens: change one of them.")
        if self.m == 1 and self.attention:
            raise KeyholeError("m is 1, but attention to a single key is always 1 and teaches nothing: give m >= 2.")
        if self.lr <= 0 or self.weight_decay < 0 or self.lam < 0:
            raise KeyholeError("lr must be positive, weight_decay and lam cannot be negative: correct the settings.")
        object.__setattr__(self, "pairs", tuple(tuple(pair) for pair in self.pairs))
        self._check_pairs()

    def _check_pairs(self) -> None:
        for pair in self.pairs:
            if len(pair) != 3 or not all(isinstance(feature, int) for feature in pair[:2]):
                raise KeyholeError(f"{pair} is no pair: give (query feature, key feature, T), features by number.")
            i, j, T = pair
            if not (0 <= i < self.N and 0 <= j < self.N):
                raise KeyholeError(f"pair ({i}, {j}) is beyond the {self.N} features: use 0 to {self.N - 1}.")
            _require_number(f"T of the pair ({i}, {j})", T)
            if T == 0:
                raise KeyholeError(f"T of the pair ({i}, {j}) is 0, so nothing attends to it: leave it out.")
        if len({pair[:2] for pair in self.pairs}) < len(self.pairs):
            raise KeyholeError("a pair is given twice, but T has one value for each: give every pair once.")

    @classmethod
    def fast(cls, **changes: Any) -> "SVFSettings":
        """The cheapest training that aligns for one pair and for many: summed errors, lambda 20, 15,000 steps.

        Not for p below .1. With 10,000 steps singular values are still up to 8 % below T.

        Args:
            **changes: Other fields by name.

        >>> SVFSettings.fast(seed=1).seed
        1
        """
        return cls(**changes)

    @classmethod
    def paper(cls, **changes: Any) -> "SVFSettings":
        """The published training, as far as outcomes tell: mean errors, lambda 4, 30,000 steps.

        Args:
            **changes: Other fields by name.

        >>> SVFSettings.paper(seed=1).seed
        1
        """
        return cls(**{"recon_reduction": "mean", "lam": 4.0, "steps": 30_000, **changes})

    @property
    def T(self) -> Float[Tensor, "N N"]:
        """The target: what query feature (row) and key feature (column) add to a logit, per unit of each."""
        T = torch.zeros(self.N, self.N)
        for i, j, value in self.pairs:
            T[i, j] = value
        return T


@dataclass(frozen=True)
class SVFWeights:
    """What is trained: one model, or several stacked."""

    W: Float[Tensor, "*model D N"]  # a column is a feature's direction
    b: Float[Tensor, "*model N"]
    W_Q: Float[Tensor, "*model H D"]
    W_K: Float[Tensor, "*model H D"]


@dataclass(frozen=True)
class SVF:
    """A trained toy."""

    settings: SVFSettings
    W: Float[Tensor, "D N"]
    b: Float[Tensor, "N"]
    W_Q: Float[Tensor, "H D"]
    W_K: Float[Tensor, "H D"]
    losses: Float[Tensor, "record 2"]  # (reconstruction, attention) before steps 0, 100, 200, ... and the last one
    snapshots: tuple[tuple[int, SVFWeights], ...] = ()  # after so many steps

    @property
    def Omega(self) -> Float[Tensor, "D D"]:
        """W_Q^T W_K in float64: what the head adds to a logit, from query token (row) and key token (column)."""
        return self.W_Q.double().T @ self.W_K.double()

    @property
    def loss(self) -> float:
        """L on the last batch."""
        recon, attention = self.losses[-1].tolist()
        return cast(float, recon + self.settings.lam * attention)

    def tokens(self, f: Float[Tensor, "*batch N"]) -> Float[Tensor, "*batch D"]:
        """What features look like to the head: r = W f.

        Args:
            f: Values of the features; the last dimension has one per feature.
        """
        return f @ self.W.T.to(f)

    def reconstruct(self, f: Float[Tensor, "*batch N"]) -> Float[Tensor, "*batch N"]:
        """ReLU(W^T W f + b).

        Args:
            f: Values of the features; the last dimension has one per feature.
        """
        return torch.relu(self.tokens(f) @ self.W.to(f) + self.b.to(f))

    def logits(self, query: Float[Tensor, "*batch N"], keys: Float[Tensor, "*batch m N"]) -> Float[Tensor, "*batch m"]:
        """r^T Omega s_j of a query's and its keys' features; without the usual 1/sqrt(H).

        Args:
            query: Features of the query.
            keys: Features of its keys.
        """
        query_tokens = self.tokens(query) @ self.Omega.to(query)
        return (self.tokens(keys) @ query_tokens[..., None])[..., 0]

    def at(self, step: int) -> "SVF":
        """The model as it was after so many steps, one of the snapshots.

        Args:
            step: Number of training steps.
        """
        for taken, w in self.snapshots:
            if taken == step:
                losses = self.losses if step == self.settings.steps else self.losses[: 1 + step // RECORD]
                return dataclasses.replace(self, W=w.W, b=w.b, W_Q=w.W_Q, W_K=w.W_K, losses=losses)
        listed = ", ".join(str(taken) for taken, _ in self.snapshots) or "none"
        raise KeyholeError(f"there is no snapshot of step {step} (kept: {listed}): name it when training.")


def _require_number(name: str, value: object) -> None:
    require(is_number(value), f"{name} is {value!r}: give a finite number.")


def sample(settings: SVFSettings, contexts: int, seed: int = 0) -> Float[Tensor, "context m N"]:
    """Features of fresh contexts; other random numbers than those of training. With "last", the query is [:, -1]."""
    if contexts < 1:
        raise KeyholeError(f"{contexts} contexts were asked for: give a positive number.")
    u = torch.rand(contexts, settings.m, settings.N, generator=generator(seed, "sample"))
    return torch.relu(1 - u / settings.p)


def generator(seed: int, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
    """The random stream of one purpose, so that drawing more for one does not change the others."""
    return torch.Generator(device).manual_seed(seed * len(_PURPOSES) + _PURPOSES.index(purpose))


# What does one training step of many SVF toys compute? Losses and their gradients, written out.
#
# With M = W^T W, A = W^T Omega W, G = 1[z > 0] (z - f) and g = sum_j (p_j - p^T_j) f_j:
#
#     z = f M + b        dM ~ f^T G,   dW = W (dM + dM^T)
#     l_j = f_r^T A f_j  dA ~ f_r^T g, dW = Omega W dA^T + Omega^T W dA,  dOmega = W dA W^T
#
# so that a step multiplies features by N x N matrices only and never forms a token.


@dataclass(frozen=True)
class Constants:
    """What the models of a group differ in, as tensors with the model first."""

    slope: Tensor  # -1/p [model 1 1 1]
    T: Tensor  # [model N key], only the columns of features that some model attends to
    keys: Tensor  # those columns
    recon: Tensor  # weight of a squared error [model 1 1]
    attention: Tensor  # weight of a context's cross-entropy [model 1 1]
    lr: Tensor  # [model 1]
    weight_decay: Tensor  # [model 1]


def constants(configs: Sequence[SVFSettings], device: torch.device) -> Constants:
    """The settings of models of one shape, side by side."""
    N, batch, contexts = configs[0].N, configs[0].batch, configs[0].batch // configs[0].m

    def column(values: list[float], axes: int) -> Tensor:
        return torch.tensor(values, device=device).view(-1, *[1] * axes)

    T = torch.stack([c.T for c in configs])
    keys = T.ne(0).any(0).any(0).nonzero()[:, 0]
    return Constants(
        slope=column([-1 / c.p for c in configs], 3),
        T=T[:, :, keys].to(device),
        keys=keys.to(device),
        recon=column([1 / batch / (N if c.recon_reduction == "mean" else 1) for c in configs], 2),
        attention=column([c.lam / contexts for c in configs], 2),
        lr=column([c.lr for c in configs], 1),
        weight_decay=column([c.weight_decay for c in configs], 1),
    )


def gradients(w: SVFWeights, f: Tensor, query: Tensor | None, c: Constants) -> Tensor:
    """The gradient of every model as flat rows, in the order W, b, W_Q, W_K.

    w: stacked weights; f: key tokens' features [model m context N]; query: [model context N], None without a head.
    """
    flat = f.flatten(1, 2)
    z = torch.baddbmm(w.b[:, None], flat, w.W.mT @ w.W)
    G = torch.ops.aten.threshold_backward(z - flat, z, 0)  # one pass: the difference where z > 0
    dM = 2 * c.recon * (flat.mT @ G)
    dW, db = w.W @ (dM + dM.mT), 2 * c.recon[:, 0] * G.sum(1)
    if query is None:
        return torch.cat([dW.flatten(1), db, torch.zeros_like(w.W_Q.flatten(1)), torch.zeros_like(w.W_K.flatten(1))], 1)
    Omega = w.W_Q.mT @ w.W_K
    read = Omega @ w.W
    logits, target = _logits(f, query, w.W.mT @ read, c)
    off = c.attention * (logits.softmax(1) - target.softmax(1))
    dA = query.mT @ (f * off[..., None]).sum(1)
    dW += read @ dA.mT + Omega.mT @ w.W @ dA
    dOmega = w.W @ dA @ w.W.mT
    parts = (dW, db, w.W_K @ dOmega.mT, w.W_Q @ dOmega)
    return torch.cat([part.flatten(1) for part in parts], 1)


def _logits(f: Tensor, query: Tensor, A: Tensor, c: Constants) -> tuple[Tensor, Tensor]:
    """Learnt and wanted logits [model m context]."""
    # a product with ones is a faster sum over a short last axis
    logits = (f * (query @ A)[:, None]) @ f.new_ones(f.shape[-1])
    return logits, (f[..., c.keys] * (query @ c.T)[:, None]).sum(-1)


def losses(w: SVFWeights, f: Tensor, query: Tensor | None, c: Constants) -> Tensor:
    """(reconstruction, attention) of every model, the latter without lambda."""
    error = torch.relu(torch.baddbmm(w.b[:, None], f.flatten(1, 2), w.W.mT @ w.W)) - f.flatten(1, 2)
    recon = c.recon[:, 0, 0] * error.square().sum((1, 2))
    if query is None:
        return torch.stack([recon, torch.zeros_like(recon)], 1)
    logits, target = _logits(f, query, w.W.mT @ w.W_Q.mT @ w.W_K @ w.W, c)
    return torch.stack([recon, -(target.softmax(1) * logits.log_softmax(1)).sum(1).mean(1)], 1)


def views(flat: Tensor, s: SVFSettings) -> SVFWeights:
    """The weights inside flat rows [*model numbers]."""
    sizes = [s.D * s.N, s.N, s.H * s.D, s.H * s.D]
    W, b, W_Q, W_K = flat.split_with_sizes(sizes, dim=-1)
    lead = flat.shape[:-1]
    return SVFWeights(W.view(*lead, s.D, s.N), b, W_Q.view(*lead, s.H, s.D), W_K.view(*lead, s.H, s.D))


def initial(s: SVFSettings) -> Tensor:
    """Xavier normal, zero bias; no head is a zero head."""
    stream = generator(s.seed, "init")
    W, W_Q, W_K = (
        torch.randn(rows, columns, generator=stream) * math.sqrt(2 / (rows + columns))
        for rows, columns in ((s.D, s.N), (s.H, s.D), (s.H, s.D))
    )
    head = float(s.attention)
    return torch.cat([W.flatten(), torch.zeros(s.N), head * W_Q.flatten(), head * W_K.flatten()])


PAIR_SEEDS = 2**40  # seeds from here on place pairs: no other stream is so far up


def inputs(
    settings: SVFSettings, present: int, n: int, seed: int, *, first: bool = False, full: bool = False
) -> Float[Tensor, "n m N"]:
    """Contexts with so many attended pairs between the query (last) and key 0; of these the `first`, or random ones.

    Their features have strengths from U(0, 1), or 1 if `full`.
    """
    f = sample(settings, n, seed).double()
    queries, keys = (torch.tensor([pair[side] for pair in settings.pairs]) for side in (0, 1))
    f[..., torch.cat([queries, keys])] = 0.0
    g = torch.Generator().manual_seed(PAIR_SEEDS + seed)
    order = torch.rand(n, len(queries), generator=g).argsort(1)
    chosen = torch.arange(len(queries)).expand(n, -1) if first else order
    row = torch.arange(n)
    for pair in chosen[:, :present].T:
        strength = torch.rand(2, n, generator=g, dtype=torch.float64)
        f[row, -1, queries[pair]], f[row, 0, keys[pair]] = torch.ones_like(strength) if full else strength
    return f


# How do features lie to each other, and are they isotropic?


def cosines(W: Float[Tensor, "D N"]) -> Float[Tensor, "N N"]:
    """How do features lie to each other? NaN for those that have vanished."""
    norms = W.double().norm(dim=0)
    unit = torch.where(norms <= DEAD * norms.max(), float("nan"), W.double() / norms)
    return unit.T @ unit


def spread(W: Float[Tensor, "D N"], free: int | None = None) -> float:
    """(largest - smallest) / mean of the eigenvalues of W W^T, or of the `free` largest: 0 if they are isotropic."""
    values = torch.linalg.svdvals(W.double())[:free].square()
    return float((values.max() - values.min()) / values.mean())


def anisotropy(W: Float[Tensor, "D N"]) -> float:
    """|W W^T / mean eigenvalue - I|_2."""
    values = torch.linalg.svdvals(W.double()).square()
    return float((values / values.mean() - 1).abs().max())
