"""What is the payload-retrieval task? Settings of a cell, the maps behind its data, and samples.

    x_i = A1 z1_i + A2 z2_i + A_y e_{y_i} + noise        T payload tokens
    x_q = B1 z1_{i*} + B2 z2_{i*} + noise                a selector that knows the latents of token i*

The head has to answer y_{i*}. The latents are independent signs ("discrete"), standard Gaussians, or two points of
spheres ("sphere"): entries of z1 depend on each other then, as those of z2 do, so that each is a feature of its rank.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from keyhole.errors import KeyholeError
from keyhole.strict import is_number, is_whole, require

Latents = Literal["discrete", "gaussian", "sphere"]
_PURPOSES = ("maps", "init", "data", "validation", "sample", "contrast", "targets", "bases")
_APART = 1 << 31  # beyond all other seeds: a purpose with several streams cannot meet another (seeds have 32 bits)
_COUNTS = ("r1", "r2", "d_head", "d", "context", "payloads", "batch", "max_steps", "patience")
_SIZES = ("noise", "lr", "weight_decay", "min_gain")


@dataclass(frozen=True)
class PayloadSettings:
    """One cell: a task and how its head is trained. The defaults are the `fast` preset."""

    r1: int  # entries of the latent z1
    r2: int  # entries of the latent z2
    d_head: int  # dimensions of the head
    latents: Latents = "discrete"  # how they are distributed
    seed: int = 0  # of everything; cells that share it start alike
    d: int = 32  # dimensions of a token
    context: int = 16  # payload tokens T
    payloads: int = 10  # classes P
    noise: float = 0.01  # standard deviation; the paper's text says 1
    scaled_maps: bool = True  # A, B over sqrt(r) and A_y over sqrt(d); the paper's text has plain standard Gaussians
    lr: float = 1e-3  # learning rate
    weight_decay: float = 0.01
    batch: int = 256  # contexts of a step
    max_steps: int = 4000  # of training
    check_every: int | None = None  # batches between validations; None trains to the end and keeps the last state
    patience: int = 5  # validations without a gain before a cell stops; its best state is restored
    min_gain: float = 1e-4  # a smaller fall of the validation loss is no gain

    def __post_init__(self) -> None:
        for name in (*_COUNTS, "seed", "check_every"):
            value = getattr(self, name)
            if name == "check_every" and value is None:
                continue
            require(is_whole(value), f"{name} is {value!r}, but it counts something: give a whole number.")
            if name != "seed" and value < 1:
                raise KeyholeError(f"{name} is {value}, but a cell needs at least 1: give a positive {name}.")
        if self.latents not in get_args(Latents):
            raise KeyholeError(f"there are no {self.latents!r} latents: choose one of {', '.join(get_args(Latents))}.")
        for name in _SIZES:
            value = getattr(self, name)
            require(is_number(value), f"{name} is {value!r}, which is no size: give a finite number.")
        if min(self.noise, self.weight_decay, self.min_gain) < 0 or self.lr <= 0:
            raise KeyholeError(
                "noise, weight_decay and min_gain cannot be negative and lr must be positive: correct the settings."
            )

    @classmethod
    def fast(cls, r1: int, r2: int, d_head: int, **changes: Any) -> "PayloadSettings":
        """The cheapest training that reaches the ceiling: lr 1e-3, 4,000 steps.

        Args:
            r1: Entries of the latent z1.
            r2: Entries of the latent z2.
            d_head: Dimensions of the head.
            **changes: Other fields by name.

        >>> PayloadSettings.fast(3, 4, 8, max_steps=100).max_steps
        100
        """
        return cls(r1, r2, d_head, **changes)

    @classmethod
    def paper(cls, r1: int, r2: int, d_head: int, **changes: Any) -> "PayloadSettings":
        """The published training, lr 1e-4 with early stopping, on the data of the authors' code; see `printed`.

        Args:
            r1: Entries of the latent z1.
            r2: Entries of the latent z2.
            d_head: Dimensions of the head.
            **changes: Other fields by name.

        >>> PayloadSettings.paper(3, 4, 8).lr
        0.0001
        """
        return cls(r1, r2, d_head, **{"lr": 1e-4, "max_steps": 50_000, "check_every": 200, **changes})

    @classmethod
    def printed(cls, r1: int, r2: int, d_head: int, **changes: Any) -> "PayloadSettings":
        """All as in the paper's text: the training of `paper`, standard Gaussian noise and maps, and no least gain.

        The text gives no largest number of steps. Twice that of the authors' code lets early stopping decide.

        Args:
            r1: Entries of the latent z1.
            r2: Entries of the latent z2.
            d_head: Dimensions of the head.
            **changes: Other fields by name.

        >>> PayloadSettings.printed(3, 4, 8).noise
        1.0
        """
        data = {"noise": 1.0, "scaled_maps": False, "min_gain": 0.0, "max_steps": 100_000}
        return cls.paper(r1, r2, d_head, **{**data, **changes})


@dataclass(frozen=True)
class Maps:
    """The matrices that generated the data: the truth to be found."""

    A1: Float[Tensor, "d r1"]
    A2: Float[Tensor, "d r2"]
    A_y: Float[Tensor, "d payload"]
    B1: Float[Tensor, "d r1"]
    B2: Float[Tensor, "d r2"]

    @property
    def A(self) -> Float[Tensor, "d r"]:
        """[A1, A2]: both latents into payload tokens."""
        return torch.cat([self.A1, self.A2], dim=1)

    @property
    def B(self) -> Float[Tensor, "d r"]:
        """[B1, B2]: both latents into selectors."""
        return torch.cat([self.B1, self.B2], dim=1)


@dataclass(frozen=True)
class PayloadBatch:
    """Samples of a task with everything that made them."""

    x: Float[Tensor, "sample token d"]
    x_q: Float[Tensor, "sample d"]
    z1: Float[Tensor, "sample token r1"]
    z2: Float[Tensor, "sample token r2"]
    star: Int[Tensor, "sample"]  # i*, the token to retrieve
    y: Int[Tensor, "sample token"]

    @property
    def answer(self) -> Int[Tensor, "sample"]:
        """y_{i*}."""
        return self.y.gather(1, self.star[:, None])[:, 0]


def ceiling(settings: PayloadSettings) -> float:
    """How accurate is a perfect match, given that tokens may repeat the selected latents? NaN where they never do.

    With c = 2^-(r1+r2), the right one of the matching tokens is found with e = (1 - (1-c)^T) / (T c), and a wrong
    one carries the right payload once in P. A head that looks at all matches may answer their most frequent payload
    instead of one at random: with ten payloads and 16 tokens worth .009 at r1 + r2 = 4, .002 at 5, nothing from 6 on.

    >>> round(ceiling(PayloadSettings(3, 4, 8)), 3)
    0.949
    """
    if settings.latents != "discrete":
        return math.nan
    c, T = 2.0 ** -(settings.r1 + settings.r2), settings.context
    e = (1 - (1 - c) ** T) / (T * c)
    return e + (1 - e) / settings.payloads


def reachable(settings: PayloadSettings) -> float:
    """Which accuracy can a head reach whose scores are bilinear?

    Discrete latents: what repeated ones leave (`ceiling`). Gaussian ones: with q . k_i = z . z_i over the
    n = min(r1 + r2, d_head) entries that a head holds, the right token scores |z|^2 and each of the T - 1 others a draw
    of N(0, |z|^2), so that it wins with E[Phi(|z|)^(T - 1)], |z| ~ chi_n; a wrong one has its payload once in P.

    >>> [round(reachable(PayloadSettings(4, 4, 8, latents=kind)), 3) for kind in ("discrete", "gaussian")]
    [0.974, 0.886]
    """
    won = attended(settings)
    return won + (1 - won) / settings.payloads


def attended(settings: PayloadSettings) -> float:
    """How often does the right token win? `reachable` without lucky payloads."""
    if settings.latents == "discrete":
        return (settings.payloads * ceiling(settings) - 1) / (settings.payloads - 1)
    n = min(settings.r1 + settings.r2, settings.d_head)
    x = torch.linspace(1e-6, n**0.5 + 10, 20_001, dtype=torch.float64)
    density = torch.exp((n - 1) * x.log() - x.square() / 2)  # of chi_n, up to a factor
    wins = torch.special.ndtr(x) ** (settings.context - 1)
    return float((density * wins).sum() / density.sum())


def purpose_seed(seed: int, purpose: str) -> int:
    """A seed of its own for every purpose, so that drawing more for one does not change the others.

    "bases" is followed by a few free ones: swaps draw random subspaces of several ranks.
    """
    stream = seed * len(_PURPOSES) + _PURPOSES.index(purpose)
    return stream + _APART if purpose == "bases" else stream


def generator(seed: int, purpose: str) -> torch.Generator:
    """The random stream of one purpose."""
    return torch.Generator().manual_seed(purpose_seed(seed, purpose))


def draw_latents(settings: PayloadSettings, shape: Sequence[int], stream: torch.Generator) -> Float[Tensor, "..."]:
    """Signs, standard Gaussians, or points on spheres: one sphere per latent if the shape has both latents' entries."""
    if settings.latents == "discrete":
        return torch.randint(0, 2, tuple(shape), generator=stream).float().mul_(2).sub_(1)
    z = torch.randn(*shape, generator=stream)
    if settings.latents == "gaussian":
        return z
    parts = torch.tensor_split(z, [settings.r1], dim=-1) if shape[-1] == settings.r1 + settings.r2 else (z,)
    return torch.cat([torch.nn.functional.normalize(x, dim=-1) * math.sqrt(x.shape[-1]) for x in parts], dim=-1)


def draw_maps(settings: PayloadSettings) -> Maps:
    """The fixed random maps of a cell."""
    stream, d = generator(settings.seed, "maps"), settings.d
    r1, r2 = settings.r1, settings.r2
    A1, A2, B1, B2 = (
        torch.randn(d, r, generator=stream) / (math.sqrt(r) if settings.scaled_maps else 1) for r in (r1, r2, r1, r2)
    )
    A_y = torch.randn(d, settings.payloads, generator=stream) / (math.sqrt(d) if settings.scaled_maps else 1)
    return Maps(A1, A2, A_y, B1, B2)


def token(
    maps: Maps, z: Float[Tensor, "*batch r"], y: Int[Tensor, "*batch"] | None, *, noise: float, stream: torch.Generator
) -> Float[Tensor, "*batch d"]:
    """The token of latents z = [z1, z2] with payload y, or their selector where y is None."""
    x = z @ (maps.B if y is None else maps.A).T
    if y is not None:
        x += torch.nn.functional.embedding(y, maps.A_y.T.contiguous())  # many times faster than from a view
    return x.add_(torch.randn(*x.shape, generator=stream), alpha=noise)


def draw(settings: PayloadSettings, maps: Maps, n: int, stream: torch.Generator) -> PayloadBatch:
    """The next n samples of a stream."""
    T = settings.context
    z = draw_latents(settings, (n, T, settings.r1 + settings.r2), stream)
    y = torch.randint(0, settings.payloads, (n, T), generator=stream)
    star = torch.randint(0, T, (n,), generator=stream)
    x = token(maps, z, y, noise=settings.noise, stream=stream)
    x_q = token(maps, z[torch.arange(n), star], None, noise=settings.noise, stream=stream)
    return PayloadBatch(x, x_q, z[..., : settings.r1], z[..., settings.r1 :], star, y)
