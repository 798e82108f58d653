"""Does the answer follow the feature? Swapped keys inside the model's own forward pass, for some of the samples.

A head's keys at two tokens are edited as in `swaps.py`, for this query head alone; everything downstream is computed
anew. The answer is told between the two keys' own tokens. Attention in these passes must be the analytic one, so the
largest miss is reported.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.brief import brief
from keyhole.contrast.edits.moves import Effect, Move, effect
from keyhole.contrast.edits.pairing import Pairing, pair_keys, two_keys
from keyhole.contrast.edits.swaps import Bases, swap
from keyhole.contrast.features.subspace import random_bases
from keyhole.contrast.onepass.collect import Collected
from keyhole.contrast.onepass.frames import Frame, turns_at
from keyhole.errors import KeyholeError
from keyhole.intervene.rerun import Edits, HeadEdit, rerun
from keyhole.models.heads import Head, head_name
from keyhole.models.numbers.precision import exact_matmul
from keyhole.progress import Progress

if TYPE_CHECKING:
    from keyhole.models.run import Run

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
    """Run edited copies of some samples' prompts: each head alone, and all of them at once."""
    names = _names(collected, bases)
    d_head = collected.model.dims.d_head
    pairing = pair_keys(collected, half=half, orig="first", seed=seed).first(samples)
    conditions = _conditions(bases, names, d_head, draws=draws, seed=seed)
    units = [(head,) for head in bases] + ([tuple(bases)] if len(bases) > 1 else [])
    expected = {head: _expected(collected, pairing, head, conditions) for head in bases}
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
    told = {}
    for column, unit in enumerate(units):
        ranks = [bases[unit[0]][name].shape[1] if len(unit) == 1 else 0 for name in names]
        told[_label(unit)] = _effects(names, ranks, was, became[:, column], draws=draws)
    right = float((was[:, 0] > was[:, 1]).double().mean())
    return AnswerEffects(told, len(before), right, mass, miss)


def _names(collected: Collected, bases: Mapping[Head, Bases]) -> list[str]:
    if not bases:
        raise KeyholeError("there are no heads to edit: give at least one with its bases.")
    for head in bases:
        collected.check_head(head)
    names = list(next(iter(bases.values())))
    if any(list(own) != names for own in bases.values()):
        raise KeyholeError("every head must have the same conditions, in the same order.")
    return names


def _conditions(
    bases: Mapping[Head, Bases], names: Sequence[str], d_head: int, *, draws: int, seed: int
) -> list[Condition]:
    """Every feature, then random subspaces of each one's rank, then the whole keys."""
    made: list[Condition] = [{head: own[name] for head, own in bases.items()} for name in names]
    for name in names:
        drawn = {head: random_bases(d_head, own[name].shape[1], draws, seed) for head, own in bases.items()}
        made += [{head: drawn[head][i] for head in bases} for i in range(draws)]
    return [*made, dict.fromkeys(bases)]


def _expected(
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
    record = run.layer(head[0])
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

    def one(c: int) -> Move:
        many = move(slice(c, c + 1))
        return Move(many.orig[0], many.target[0], many.orig_after[0], many.target_after[0])

    full = one(after.shape[1] - 1)
    made = []
    for i, name in enumerate(names):
        start = len(names) + i * draws
        random = move(slice(start, start + draws)) if draws else None
        made.append(effect(name, ranks[i], one(i), random, full))
    return (*made, effect("full", 0, full, None, full))


def _label(unit: Sequence[Head]) -> str:
    return "all" if len(unit) > 1 else head_name(unit[0])
