"""Does attention follow the feature? Its coordinates swapped between two keys, or replaced in the query.

Only two scores of the query's row change under a swap, so every head and condition follows from one pass; see
`moves.py`. In a frame other than the scores' own the edit is made there and turned back: with O_s the rotation of key s
and keys k' in the frame, d_s = scaling (O_s^T q) . P (k_t' - k_o').
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from keyhole.contrast.edits.moves import Effect, Move, effect
from keyhole.contrast.edits.pairing import Pairing, TwoKeys, pair_keys, two_keys
from keyhole.contrast.features.finding import Feature
from keyhole.contrast.features.subspace import random_bases, union
from keyhole.contrast.onepass.collect import Collected
from keyhole.errors import KeyholeError
from keyhole.models.heads import Head
from keyhole.models.numbers.precision import exact_matmul

Bases = Mapping[str, Float[Tensor, "d_head _"]]
Edit = Callable[[Tensor | None], Move]  # a basis (random draws in front), or None for the whole space


def swap_effects(
    collected: Collected,
    bases: Mapping[Head, Bases],
    *,
    pairing: Pairing | None = None,
    draws: int = 10,
    seed: int = 0,
) -> dict[Head, tuple[Effect, ...]]:
    """What swapping key coordinates does to each head: nothing, each basis beside random ones, the whole keys."""
    pairing = pair_keys(collected, seed=seed) if pairing is None else pairing
    made = {}
    for layer in sorted({head[0] for head in bases}):
        with exact_matmul():
            two = None
            for head in (head for head in bases if head[0] == layer):
                collected.check_head(head)
                two = two_keys(collected.layer(layer).of(pairing.slots), pairing) if two is None else two
                made[head] = _conditions(swap(two, head[1]), bases[head], two.q.shape[-1], draws=draws, seed=seed)
    return {head: made[head] for head in bases}


def mean_shifts(
    collected: Collected, head: Head, bases: Float[Tensor, "draws d_head rank"], pairing: Pairing
) -> Float[Tensor, "draws"]:
    """How much attention moves, on average over samples, when each of several subspaces is swapped in one head."""
    with exact_matmul():
        two = two_keys(collected.layer(head[0]).of(pairing.slots), pairing)
        return swap(two, head[1])(bases).shift.double().mean(-1).cpu()


def swap(two: TwoKeys, head: int) -> Edit:
    """The edit that swaps coordinates of one head's two keys."""
    difference = two.framed[1][:, head] - two.framed[0][:, head]
    q_o, q_t = two.seen[0][:, head], two.seen[1][:, head]
    score_o, score_t = two.scores[0][:, head], two.scores[1][:, head]

    def edit(basis: Tensor | None) -> Move:
        d_o, d_t = (two.rule.scaling * _through(q, difference, basis) for q in (q_o, q_t))
        return two.move(head, (score_o + d_o, score_t - d_t))

    return edit


def query_effects(
    collected: Collected,
    head: Head,
    bases: Bases,
    donors: Int[Tensor, "samples"],
    *,
    pairing: Pairing,
    draws: int = 10,
    seed: int = 0,
) -> tuple[Effect, ...]:
    """What the query's coordinates do: replaced by those of another sample's query, its donor (a collected slot).

    All logits of the row change, so attention is told between the two keys alone, where it is exact: orig + target = 1.
    """
    collected.check_head(head)
    if len(donors) != len(pairing.slots):
        raise KeyholeError(f"{len(donors)} donors for {len(pairing.slots)} samples: give one for each.")
    with exact_matmul():
        layer, h = collected.layer(head[0]), head[1]
        samples = layer.of(pairing.slots)
        two = two_keys(samples, pairing)
        seen = (two.visible[0] & two.visible[1])[:, h].nonzero()[:, 0]  # a window may hide them
        if not len(seen):
            raise KeyholeError(f"head {head[0]}.{h} sees no sample's two keys: they lie outside its window.")
        samples, two = samples.of(seen), two.of(seen)
        change = layer.of(donors[seen.to(donors.device)]).queries[:, h] - samples.queries[:, h]
        # An edit d' of the query in its frame changes a score by scaling (O d') . k = scaling d' . (O^T k).
        keys = [k if samples.q_turns is None else samples.q_turns.into(k) for k in two.k]

        def edit(basis: Tensor | None) -> Move:
            d_o, d_t = (two.rule.scaling * _through(change, k[:, h], basis) for k in keys)
            return two.move(h, (two.scores[0][:, h] + d_o, two.scores[1][:, h] + d_t), pair_only=True)

        return _conditions(edit, bases, change.shape[-1], draws=draws, seed=seed)


def key_bases(features: Sequence[Feature]) -> dict[str, Float[Tensor, "d_head _"]]:
    """Each feature's key basis by its name, and, of several, their orthonormalised union."""
    return _bases([(feature.name, feature.V) for feature in features])


def query_bases(features: Sequence[Feature]) -> dict[str, Float[Tensor, "d_head _"]]:
    """Each feature's query basis by its name, and, of several, their orthonormalised union."""
    return _bases([(feature.name, feature.U) for feature in features])


def _bases(named: Sequence[tuple[str, Tensor]]) -> dict[str, Tensor]:
    bases = dict(named)
    if len(bases) < len(named):
        raise KeyholeError(f"two features have the same name: {', '.join(name for name, _ in named)}.")
    if len(named) > 1:
        bases["both" if len(named) == 2 else "together"] = union([basis for _, basis in named])
    return bases


def _conditions(edit: Edit, bases: Bases, d_head: int, *, draws: int, seed: int) -> tuple[Effect, ...]:
    full = edit(None)
    made = [effect("none", 0, edit(torch.zeros(d_head, 0)), [], full)]
    for name, basis in bases.items():
        random = edit(random_bases(d_head, basis.shape[1], draws, seed)) if draws else None
        made.append(effect(name, basis.shape[1], edit(basis), random, full, seed=seed))
    made.append(effect("full", d_head, full, [], full))
    return tuple(made)


def _through(a: Tensor, b: Tensor, basis: Tensor | None) -> Tensor:
    """a^T P b per sample, P = V V^T."""
    if basis is None:
        return (a * b).sum(-1)
    basis = basis.to(a)
    return ((a @ basis) * (b @ basis)).sum(-1)
