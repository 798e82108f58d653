"""What do heads of toys see, and how does it split over channels? Contexts with so many attended pairs present."""

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.lab.svf.alignment import Alignment
from keyhole.lab.svf.toy import SVF, SVFSettings, sample
from keyhole_papers.job import Job

PAIR_SEEDS = 2**40  # seeds from here on place pairs: no other stream is so far up
MATTERS = 0.01  # of the size of terms with one pair present: smaller ones are remains of training, sparse or not
INPUTS = (
    "Features of interest are removed from all tokens and put back, with strengths from U(0, 1), into the query and "
    "one key; all other features are drawn as in training."
)
_SAMPLES, _QUICK_SAMPLES = 400, 50


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


def sides(
    model: SVF, found: Alignment, f: Float[Tensor, "n m N"]
) -> tuple[Float[Tensor, "n channel"], Float[Tensor, "n channel"]]:
    """What the query asks and what key 0 offers beyond the others' mean, per channel, each with the root of sigma."""
    tokens = model.tokens(f)
    relative = tokens[:, 0] - tokens[:, 1:].mean(1)
    root = found.S.sqrt()
    return tokens[:, -1] @ found.U * root, relative @ found.V * root


def samples(job: Job) -> int:
    """How many contexts."""
    return _QUICK_SAMPLES if job.quick else _SAMPLES
