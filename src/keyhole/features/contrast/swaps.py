"""Do attention and the answer follow a feature? Its coordinates swapped, in cached logits and in real passes.

Does attention follow the feature? Its coordinates swapped between two keys, or replaced in the query.

Only two scores of the query's row change under a swap, so every head and condition follows from one pass; see
`moves.py`. In a frame other than the scores' own the edit is made there and turned back: with O_s the rotation of key s
and keys k' in the frame, d_s = scaling (O_s^T q) . P (k_t' - k_o').
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from keyhole.brief import Head, brief, head_name
from keyhole.errors import KeyholeError
from keyhole.features.contrast.collect import Collected
from keyhole.features.contrast.finding import Feature
from keyhole.features.contrast.moves import Effect, Move, Pairing, TwoKeys, effect, pair_keys, two_keys
from keyhole.features.contrast.subspace import random_bases, union
from keyhole.features.contrast.sums import Frame, turns_at
from keyhole.intervene.rerun import Edits, HeadEdit, rerun
from keyhole.models.numbers import exact_matmul
from keyhole.progress import Progress

if TYPE_CHECKING:
    from keyhole.models.run import Run

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
    """What swapping key coordinates does to each head: nothing, each basis beside random ones, the whole keys.

    Args:
        collected: Samples that made no feature.
        bases: Of each head, key bases by name, as `key_bases` returns them.
        pairing: The two keys of every sample. Default: `pair_keys` of all samples.
        draws: Random subspaces of the same rank beside each basis; 0: none.
        seed: Seed of the pairs and of random subspaces.

    >>> import keyhole
    >>> from keyhole.features.contrast import collect, order_contrast
    >>> model = keyhole.load()
    >>> seen = collect(model, order_contrast(model, 20, n_boxes=3))
    >>> [effect.name for effect in swap_effects(seen, {(1, 6): {"one": torch.eye(16)[:, :1]}}, draws=2)[1, 6]]
    ['none', 'one', 'full']
    """
    pairing = pair_keys(collected, seed=seed) if pairing is None else pairing
    effects = {}
    for layer in sorted({head[0] for head in bases}):
        with exact_matmul():
            two = None
            for head in (head for head in bases if head[0] == layer):
                collected.check_head(head)
                two = two_keys(collected.layer(layer).of(pairing.slots), pairing) if two is None else two
                effects[head] = _conditions(swap(two, head[1]), bases[head], two.q.shape[-1], draws=draws, seed=seed)
    return {head: effects[head] for head in bases}


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
    q_o, q_t = two.query[0][:, head], two.query[1][:, head]
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

    Args:
        collected: Samples that made no feature.
        head: Layer and head.
        bases: Query bases by name, as `query_bases` returns them.
        donors: The slot whose query replaces each one of the pairing.
        pairing: The samples, and the two keys of each.
        draws: Random subspaces of the same rank beside each basis; 0: none.
        seed: Seed of random subspaces.

    >>> import keyhole
    >>> from keyhole.features.contrast import collect, order_contrast, pair_keys
    >>> model = keyhole.load()
    >>> seen = collect(model, order_contrast(model, 20, n_boxes=3))
    >>> pairing = pair_keys(seen)
    >>> bases = {"one": torch.eye(16)[:, :1]}
    >>> effects = query_effects(seen, (1, 6), bases, pairing.slots.flip(0), pairing=pairing, draws=2)
    >>> [effect.name for effect in effects]
    ['none', 'one', 'full']
    """
    collected.check_head(head)
    if len(donors) != len(pairing.slots):
        raise KeyholeError(f"{len(donors)} donors for {len(pairing.slots)} samples: give one for each.")
    with exact_matmul():
        layer, h = collected.layer(head[0]), head[1]
        samples = layer.of(pairing.slots)
        two = two_keys(samples, pairing)
        visible = (two.visible[0] & two.visible[1])[:, h].nonzero()[:, 0]  # a window may hide them
        if not len(visible):
            raise KeyholeError(f"head {head[0]}.{h} sees no sample's two keys: they lie outside its window.")
        samples, two = samples.of(visible), two.of(visible)
        change = layer.of(donors[visible.to(donors.device)]).queries[:, h] - samples.queries[:, h]
        # An edit d' of the query in its frame changes a score by scaling (O d') . k = scaling d' . (O^T k).
        keys = [k if samples.q_turns is None else samples.q_turns.into(k) for k in two.k]

        def edit(basis: Tensor | None) -> Move:
            d_o, d_t = (two.rule.scaling * _through(change, k[:, h], basis) for k in keys)
            return two.move(h, (two.scores[0][:, h] + d_o, two.scores[1][:, h] + d_t), pair_only=True)

        return _conditions(edit, bases, change.shape[-1], draws=draws, seed=seed)


def key_bases(features: Sequence[Feature]) -> dict[str, Float[Tensor, "d_head _"]]:
    """Each feature's key basis by its name, and, of several, their orthonormalised union.

    Args:
        features: Features of one head, each with a name of its own.

    >>> axes = {"a": torch.eye(3)[:, :1], "b": torch.eye(3)[:, 1:2]}
    >>> one, other = (Feature(name, (0, 0), axis, axis, torch.ones(1)) for name, axis in axes.items())
    >>> {name: tuple(basis.shape) for name, basis in key_bases([one, other]).items()}
    {'a': (3, 1), 'b': (3, 1), 'both': (3, 2)}
    """
    return _bases([(feature.name, feature.V) for feature in features])


def query_bases(features: Sequence[Feature]) -> dict[str, Float[Tensor, "d_head _"]]:
    """Each feature's query basis by its name, and, of several, their orthonormalised union.

    Args:
        features: Features of one head, each with a name of its own.

    >>> axes = {"a": torch.eye(3)[:, :1], "b": torch.eye(3)[:, 1:2]}
    >>> one, other = (Feature(name, (0, 0), axis, axis, torch.ones(1)) for name, axis in axes.items())
    >>> {name: tuple(basis.shape) for name, basis in query_bases([one, other]).items()}
    {'a': (3, 1), 'b': (3, 1), 'both': (3, 2)}
    """
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
    effects = [effect("none", 0, edit(torch.zeros(d_head, 0)), [], full)]
    for name, basis in bases.items():
        random = edit(random_bases(d_head, basis.shape[1], draws, seed)) if draws else None
        effects.append(effect(name, basis.shape[1], edit(basis), random, full, seed=seed))
    effects.append(effect("full", d_head, full, [], full))
    return tuple(effects)


def _through(a: Tensor, b: Tensor, basis: Tensor | None) -> Tensor:
    """a^T P b per sample, P = V V^T."""
    if basis is None:
        return (a * b).sum(-1)
    basis = basis.to(a)
    return ((a @ basis) * (b @ basis)).sum(-1)


# Does the answer follow the feature? Swapped keys inside the model's own forward pass, for some of the samples.
#
# A head's keys at two tokens are edited as in `swaps.py`, for this query head alone; everything downstream is
# computed anew. The answer is told between the two keys' own tokens. Attention in these passes must be the analytic
# one, so the largest miss is reported.

Condition = Mapping[Head, Tensor | None]  # each head's basis; None: the whole key


@dataclass(frozen=True)
class AnswerEffects:
    """What the answer does when heads are edited, alone and all together."""

    __repr__ = brief

    heads: dict[str, tuple[Effect, ...]]  # by head ("1.6"), and "all"; told as P(orig token) + P(target token) = 1
    samples: int
    right: float  # share of samples whose answer, of the two, was the original's to begin with
    mass: float  # mean probability of the two tokens together: small where the model would say it otherwise
    largest_miss: float  # between measured and analytic attention


def answer_effects(
    collected: Collected,
    bases: Mapping[Head, Bases],
    *,
    half: int | None = None,
    samples: int = 32,
    draws: int = 3,
    seed: int = 0,
    progress: Progress | None = None,
) -> AnswerEffects:
    """Run edited copies of some samples' prompts: each head alone, and all of them at once.

    Args:
        collected: Samples that made no feature.
        bases: Of each head, key bases by name, as `key_bases` returns them.
        half: The half of the samples that is taken, 0 or 1. Default: both.
        samples: Prompts that are run at most.
        draws: Random subspaces beside each basis.
        seed: Seed of the pairs of keys and of random subspaces.
        progress: Called with how many prompts are done, and of how many.

    >>> import keyhole
    >>> from keyhole.features.contrast import collect, order_contrast
    >>> model = keyhole.load()
    >>> seen = collect(model, order_contrast(model, 20, n_boxes=3))
    >>> answer_effects(seen, {(1, 6): {"one": torch.eye(16)[:, :1]}}, samples=2, draws=1).samples
    2
    """
    names = _names(collected, bases)
    d_head = collected.model.dims.d_head
    pairing = pair_keys(collected, half=half, orig="first", seed=seed).first(samples)
    conditions = _answer_conditions(bases, names, d_head, draws=draws, seed=seed)
    units = [(head,) for head in bases] + ([tuple(bases)] if len(bases) > 1 else [])
    expected = {head: _analytic_attention(collected, pairing, head, conditions) for head in bases}
    before, after, miss, mass = [], [], 0.0, 0.0
    for i in range(len(pairing.slots)):
        run, two = _sample(collected, pairing, i)
        with exact_matmul():
            edits = {h: [_edit(run, h, two, c[h], frame=collected.frame) for c in conditions] for h in bases}
            copies = [Edits(tuple(edits[h][c] for h in unit)) for unit in units for c in range(len(conditions))]
            out = rerun(run, copies, all_logits=False)
        tokens = [run.token_ids[at] for at in two]
        before.append(run.logits[-1, tokens].double().softmax(-1).cpu())
        mass += float(run.logits[-1].double().softmax(-1)[tokens].sum()) / len(pairing.slots)
        after.append(out.captured.logits[:, -1, tokens].double().softmax(-1).cpu())
        for number, head in enumerate(bases):
            for c in range(len(conditions)):
                measured = out.attention[number * len(conditions) + c, *head][-1, list(two)].cpu()
                miss = max(miss, float((measured - expected[head][i, c]).abs().max()))
        if progress is not None:
            progress(i + 1, len(pairing.slots))
    was, became = torch.stack(before), torch.stack(after).view(len(before), len(units), len(conditions), 2)
    effects = {}
    for column, unit in enumerate(units):
        ranks = [bases[unit[0]][name].shape[1] if len(unit) == 1 else 0 for name in names]
        effects[_label(unit)] = _effects(names, ranks, was, became[:, column], draws=draws)
    right = float((was[:, 0] > was[:, 1]).double().mean())
    return AnswerEffects(effects, len(before), right, mass, miss)


def _names(collected: Collected, bases: Mapping[Head, Bases]) -> list[str]:
    if not bases:
        raise KeyholeError("there are no heads to edit: give at least one with its bases.")
    for head in bases:
        collected.check_head(head)
    names = list(next(iter(bases.values())))
    if any(list(conditions) != names for conditions in bases.values()):
        raise KeyholeError("every head must have the same conditions, in the same order.")
    return names


def _answer_conditions(
    bases: Mapping[Head, Bases], names: Sequence[str], d_head: int, *, draws: int, seed: int
) -> list[Condition]:
    """Every feature, then random subspaces of each one's rank, then the whole keys."""
    conditions: list[Condition] = [{head: by_name[name] for head, by_name in bases.items()} for name in names]
    for name in names:
        drawn = {head: random_bases(d_head, by_name[name].shape[1], draws, seed) for head, by_name in bases.items()}
        conditions += [{head: drawn[head][i] for head in bases} for i in range(draws)]
    return [*conditions, dict.fromkeys(bases)]


def _analytic_attention(
    collected: Collected, pairing: Pairing, head: Head, conditions: Sequence[Condition]
) -> Float[Tensor, "samples conditions 2"]:
    """The analytic attention on the two keys."""
    with exact_matmul():
        edit = swap(two_keys(collected.layer(head[0]).of(pairing.slots), pairing), head[1])
        moves = [edit(condition[head]) for condition in conditions]
    return torch.stack([torch.stack([m.orig_after, m.target_after], dim=-1) for m in moves], dim=1).cpu()


def _sample(collected: Collected, pairing: Pairing, i: int) -> tuple["Run", tuple[int, int]]:
    """The prompt up to its query, run, and the positions of the two keys."""
    slots, slot = collected.slots, int(pairing.slots[i])
    prompt, at = slots.query[slot].tolist()
    assert pairing.orig is not None
    keys = [int(slots.keys[slot, int(key[i]), 1]) for key in (pairing.orig, pairing.target)]
    run = collected.model.run(collected.resolved.prompts[prompt].ids[: at + 1])
    return run, (keys[0], keys[1])


def _edit(run: "Run", head: Head, two: tuple[int, int], basis: Tensor | None, *, frame: Frame) -> HeadEdit:
    """Keys of one head with the coordinates in `basis` changed over, as an edit of the rotated keys."""
    record = run.attention_run(head[0])
    k = record.k[head[1] // (record.q.shape[0] // record.k.shape[0])]
    both = k[list(two)].double()
    turns = None
    if record.rotary is not None and frame != "post_rope":
        places = list(two) if frame == "pre_rope" else [len(run) - 1] * 2
        turns = turns_at(record.rotary, torch.tensor(places, device=k.device))
    framed = both if turns is None else turns.into(both[:, None])[:, 0]
    change = framed.flip(0) - framed
    if basis is not None:
        P = basis.to(change)
        change = change @ P @ P.T
    delta = torch.zeros_like(k)
    delta[list(two)] = (change if turns is None else turns.back(change[:, None])[:, 0]).to(k.dtype)
    return HeadEdit(*head, keys=delta)


def _effects(
    names: Sequence[str],
    ranks: Sequence[int],
    before: Float[Tensor, "samples 2"],
    after: Float[Tensor, "samples conditions 2"],
    *,
    draws: int,
) -> tuple[Effect, ...]:
    def move(conditions: slice) -> Move:
        orig, target = after[:, conditions].permute(2, 1, 0)
        return Move(before[:, 0].expand_as(orig), before[:, 1].expand_as(target), orig, target)

    def single(c: int) -> Move:
        many = move(slice(c, c + 1))
        return Move(many.orig[0], many.target[0], many.orig_after[0], many.target_after[0])

    full = single(after.shape[1] - 1)
    effects = []
    for i, name in enumerate(names):
        start = len(names) + i * draws
        random = move(slice(start, start + draws)) if draws else None
        effects.append(effect(name, ranks[i], single(i), random, full))
    return (*effects, effect("full", 0, full, None, full))


def _label(unit: Sequence[Head]) -> str:
    return "all" if len(unit) > 1 else head_name(unit[0])
