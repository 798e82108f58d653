"""Contrasts over random token ids for models without a tokenizer, and collected ones made of plain tensors."""

import random

import torch
from torch import Tensor

from keyhole import Model
from keyhole.features.contrast.collect import Collected
from keyhole.features.contrast.places import Resolved, Slots
from keyhole.features.contrast.sites import Contrast, Sample, Site, role, token
from keyhole.features.contrast.sums import LayerSamples, tally
from keyhole.models.attention import AttentionRule
from keyhole.tasks import boxes
from keyhole.tracing.exactness import random_ids


def random_contrast(model: Model, n: int = 24, *, cross: bool = False, seed: int = 0) -> Contrast:
    """Prompts of different lengths; one to two positives, one to three negatives, some in other prompts."""
    rng = random.Random(seed)
    lengths = [rng.randint(8, 14) for _ in range(n)]
    prompts = tuple(tuple(random_ids(model, length, seed=i)) for i, length in enumerate(lengths))
    samples = []
    for i, length in enumerate(lengths):
        at = length - 1 - rng.randint(0, 1)
        picks = rng.sample(range(1, at), rng.randint(3, 5))
        positive, negative = picks[: len(picks) // 2], picks[len(picks) // 2 :]
        other = (i + 1) % n if cross and i % 3 == 0 else i
        negatives = tuple(Site(token(j if other == i else j % 6), other) for j in negative)
        query = Site(token(lengths[other] - 1), other) if cross and i % 6 == 0 else None
        plus = tuple(Site(token(j), i) for j in positive)
        samples.append(Sample(Site(token(at), i), plus, negatives, query, label="ab"[i % 2], weight=1.0 + i % 2))
    return Contrast("random", prompts, tuple(samples))


def box_contrast(n: int, n_boxes: int = 5, seed: int = 0) -> Contrast:
    """The organism's boxes: the right letter against the others."""
    examples = boxes(n, seed, n_boxes=n_boxes)
    samples = []
    for i, example in enumerate(examples):
        asked = int(example.template.split("-")[1])
        others = tuple(Site(role(example, f"box_{j}"), i) for j in range(n_boxes) if j != asked)
        right = (Site(role(example, "BOX"), i),)
        samples.append(Sample(Site(role(example, "END"), i), right, others, label=str(asked)))
    return Contrast("boxes", tuple(example.text for example in examples), tuple(samples))


def collected_of(
    q: Tensor, k: Tensor, sign: Tensor, *, weight: Tensor | None = None, rest: float = 0.0, seed: int = 0
) -> Collected:
    """Plain tensors as if collected: q [slots, heads, d], k [slots, keys, kv, d]; one layer, no model behind it."""
    n, m = sign.shape
    half = torch.randperm(n, generator=torch.Generator().manual_seed(seed)) % 2
    at = torch.stack([torch.arange(n)[:, None].expand(n, m), torch.arange(m).expand(n, m)], dim=-1)
    query = torch.stack([torch.arange(n), torch.full((n,), m)], dim=-1)
    own, whole = torch.arange(n), torch.zeros(n, dtype=torch.bool)
    weight = torch.ones(n).double() if weight is None else weight
    slots = Slots(own, query, at, sign, weight, half, group=own, twin=own, paired=whole)
    sample = Sample(Site(token(0)), (Site(token(0)),), (Site(token(1)),))
    resolved = Resolved(Contrast("tensors", ((0, 1),), (sample,) * n), (), slots)
    other = torch.full((n, q.shape[1]), rest)
    samples = LayerSamples(q, k, other, other, sign != 0, AttentionRule(1.0))
    sums = {0: tally(q, k, sign, slots.weight, half)}
    return Collected(None, resolved, "post_rope", sums, {0: samples})  # type: ignore[arg-type]
