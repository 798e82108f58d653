"""Does a head do what is claimed of it? It moves a token's value, some channels match, an answer needs a signal.

Every effect is measured by removal in the model's own passes, on the claim's prompts and on their rewrites. Then come
the ways in which a claim can be wrong although the effect is there:

    the head is right, the token is not      the same head's other tokens
    the token is right, the head is not      the other heads of its layer, at the same token
    it is the size of a write, not what      a random direction of the same norm instead of it, and beside it
    any channels would do                    as many others of the same head
    it happens everywhere                    matched negatives; unrelated text
"""

import math
from collections.abc import Sequence
from functools import partial
from itertools import combinations
from random import Random
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from keyhole.brief import Head, head_name
from keyhole.claims.cases import Case, Cases, UntestableError
from keyhole.claims.evidence import ClaimTest, above, at_least, half_on_negatives, more_than_random
from keyhole.claims.measuring import (
    Change,
    EditsOf,
    Written,
    attention,
    attention_predicted,
    attention_with,
    lost,
    lost_to_changes,
    lost_to_random,
    mean_answer,
    moved,
)
from keyhole.claims.records import Matches, Moves, Needs
from keyhole.edits.records import At, ChannelEdit, Edit, SignalEdit, Source, WriteEdit
from keyhole.errors import KeyholeError
from keyhole.qk.firings import dynamic_tau
from keyhole.qk.omega import omega
from keyhole.settings.claims import ClaimSettings
from keyhole.stats import wilson

if TYPE_CHECKING:
    from keyhole.models.model import Model

INSTEAD = 8  # random directions, of which the mean is taken
_NOTHING = 1e-9  # attention that is none
LEAST_CONTROLS = 9  # other sets of channels: fewer say nothing


def moves_tests(
    model: "Model", claim: Moves, claimed: Cases, rewrites: Sequence[Cases], negatives: Cases
) -> list[ClaimTest]:
    """Does a head move what stands at one token to another, and does the answer need it there?"""
    how, whole = claim.settings, mean_answer(claimed)
    written = Written(claim.head, claim.dest, claim.src)
    effects = lost(model, claimed.cases, lambda case: [written.edit(case)]) / whole
    tests = [attends(claimed, claim.head, claim.dest, claim.src, how)]
    tests.append(at_least("the answer loses, without it", effects, how.least, how))
    tests.append(_not_other_tokens(model, claimed, written, effects, how))
    tests.append(_not_other_heads(model, claimed, written, effects, how))
    instead = lost_to_random(model, claimed.cases, written, INSTEAD, how.seed, instead=True).mean(0) / whole
    tests.append(at_least("it loses, with a random direction of the same norm instead", instead, how.least, how))
    beside = lost_to_random(model, claimed.cases, written, how.draws, how.seed + 1, instead=False) / whole
    tests.append(more_than_random("more than random directions of the same norm", effects, beside, how))
    tests += [_on(rewrite, model, lambda case: [written.edit(case)], how.least, how) for rewrite in rewrites]
    others = lost(model, negatives.cases, lambda case: [written.edit(case)]) / whole
    tests.append(half_on_negatives(effects, others, pairs(claimed, negatives), negatives.name, how))
    return tests


def needs_tests(
    model: "Model", claim: Needs, claimed: Cases, rewrites: Sequence[Cases], negatives: Cases
) -> list[ClaimTest]:
    """Is the answer lost without one signal, and not without as many other channels of the same writer?"""
    how, whole = claim.settings, mean_answer(claimed)
    effects = lost(model, claimed.cases, lambda case: [signal(claim, case)]) / whole
    tests = [attends(claimed, claim.head, claim.dest, claim.src, how)]
    tests.append(at_least("the answer loses, without it", effects, claim.least, how))
    if claim.flips:
        tests.append(_flips(claimed, effects * whole, how))
    draws = channel_draws(model, claim.head, claim.channels, how.draws, how.seed)
    random = _lost_in_channels(model, claim, claimed, draws)
    tests.append(more_than_random("more than random channels of the same head", effects, random / whole, how))
    tests += [_on(rewrite, model, lambda case: [signal(claim, case)], claim.least, how) for rewrite in rewrites]
    others = lost(model, negatives.cases, lambda case: [signal(claim, case)]) / whole
    tests.append(half_on_negatives(effects, others, pairs(claimed, negatives), negatives.name, how))
    return tests


def matches_tests(
    model: "Model", claim: Matches, claimed: Cases, rewrites: Sequence[Cases], negatives: Cases
) -> list[ClaimTest]:
    """Do these channels make a head look from one token at another, and not as many others of the same head?"""
    how = claim.settings
    drops = _drops(model, claim, claimed)
    at = [float(drop[case.at(claim.src)]) for drop, case in zip(drops, claimed, strict=True)]
    weights = _weights_at(claimed, claim.head, claim.dest, claim.src)
    before = max(float(np.mean(weights)), _NOTHING)
    effects = np.array(at) / before
    tests = [attends(claimed, claim.head, claim.dest, claim.src, how)]
    tests.append(at_least("attention falls, without them", effects, how.least, how))
    elsewhere = [_largest(drop, case, claim) for drop, case in zip(drops, claimed, strict=True)]
    tests.append(above("more than at any other token", effects - np.array(elsewhere) / before, how))
    random, clean = [], np.array(weights)
    for ks in channel_draws(model, claim.head, claim.channels, how.draws, how.seed):
        rows = attention_predicted(claimed.cases, claim.head, claim.dest, partial(_channel_edits, claim, ks))
        without = [float(row[case.at(claim.src)]) for row, case in zip(rows, claimed, strict=True)]
        random.append((clean - without) / before)
    tests.append(more_than_random("more than random channels of the same head", effects, np.stack(random), how))
    for rewrite in rewrites:
        tests.append(_matches_on(model, claim, rewrite))
    others = [
        float(drop[case.at(claim.src)]) / before
        for drop, case in zip(_drops(model, claim, negatives), negatives, strict=True)
    ]
    name = negatives.name
    tests.append(half_on_negatives(effects, np.array(others), pairs(claimed, negatives), name, how))
    return tests


def attends(claimed: Cases, head: Head, dest: str, src: str, how: ClaimSettings) -> ClaimTest:
    """Does the head look there, by the threshold of a firing?"""
    weights = _weights_at(claimed, head, dest, src)
    times = [weight / dynamic_tau(case.at(dest) + 1) for weight, case in zip(weights, claimed, strict=True)]
    note = f"attention {np.mean(weights):.3f}; as a multiple of the weight that counts as a firing"
    return at_least("the head attends there", times, 1.0, how, note)


def pairs(claimed: Cases, negatives: Cases) -> list[int | None]:
    """The prompt, by its place among those that are tested, that each negative was made from."""
    places = {case.number: i for i, case in enumerate(claimed)}
    return [places.get(case.number) for case in negatives]


def everywhere(claim: Moves | Matches | Needs) -> list[Edit]:
    """What is removed, at all tokens of a text."""
    if isinstance(claim, Moves):
        return [WriteEdit(writer=Source("head", *claim.head))]
    if isinstance(claim, Matches):
        return [ChannelEdit(head=claim.head, channels=claim.channels)]
    writer = Source(claim.sender.kind, claim.sender.layer, claim.sender.head)
    return [SignalEdit(head=claim.head, side=claim.side, channels=claim.channels, writer=writer)]


def signal(claim: Needs, case: Case, channels: tuple[int, ...] | None = None) -> SignalEdit:
    """The signal of a claim at the tokens of a prompt, or the same into other channels."""
    who, dest = claim.sender, At((case.at(claim.dest),))
    moved = At((case.at(who.src),)) if who.src is not None else At()
    return SignalEdit(
        head=claim.head,
        side=claim.side,
        channels=channels or claim.channels,
        writer=Source(who.kind, who.layer, who.head, moved),
        dest=dest,
        src=At((case.at(claim.src),)) if claim.side == "src" else At(),
    )


def channel_draws(
    model: "Model", head: Head, channels: tuple[int, ...], draws: int, seed: int
) -> list[tuple[int, ...]]:
    """As many other channels of a head: each set once, all of them where there are few, none twice."""
    rank = int(omega(model, head[0]).rank[head[1]])
    if max(channels) >= rank:
        raise KeyholeError(f"there is no channel {max(channels)}: head {head_name(head)} has channels 0 to {rank - 1}.")
    free = [k for k in range(rank) if k not in channels]
    free = free if len(free) >= len(channels) else list(range(rank))
    sets = math.comb(len(free), len(channels))
    if sets <= draws + 1:
        every = [ks for ks in combinations(free, len(channels)) if set(ks) != set(channels)]
    else:
        random, drawn = Random(seed), dict[tuple[int, ...], None]()
        while len(drawn) < draws:
            ks = tuple(sorted(random.sample(free, len(channels))))
            if set(ks) != set(channels):
                drawn[ks] = None
        every = list(drawn)
    if len(every) < LEAST_CONTROLS:
        raise UntestableError(
            f"head {head_name(head)} has {rank} channels, so that there are only {len(every)} other sets of "
            f"{len(channels)}: too few to compare with."
        )
    return every


def _lost_in_channels(
    model: "Model", claim: Needs, claimed: Cases, draws: Sequence[tuple[int, ...]]
) -> Float[np.ndarray, "draw case"]:
    """What the answer loses without what the same writer puts into other channels."""
    if model.family.post_attn_norm:  # it sees the whole layer's write, so that a change of it is not one vector
        return np.stack([lost(model, claimed.cases, partial(_signal_edits, claim, ks)) for ks in draws])
    changes = []
    for ks in draws:
        rows = attention_predicted(claimed.cases, claim.head, claim.dest, partial(_signal_edits, claim, ks))
        for i, (case, row) in enumerate(zip(claimed, rows, strict=True)):
            dest = case.at(claim.dest)
            changes.append(Change(i, dest, moved(case, claim.head, dest, row)))
    return lost_to_changes(model, claimed.cases, claim.head[0], changes).reshape(len(draws), len(claimed))


def _on(rewrite: Cases, model: "Model", edits_of: EditsOf, least: float, how: ClaimSettings) -> ClaimTest:
    """The effect on prompts in other words."""
    name = f"on rewrites: {rewrite.name}"
    if len(rewrite) < 2:
        return at_least(name, [], least, how, f"{len(rewrite)} of {rewrite.of} answered rightly")
    effects = lost(model, rewrite.cases, edits_of) / mean_answer(rewrite)
    return at_least(name, effects, least, how, f"{len(rewrite)} of {rewrite.of} answered rightly")


def _not_other_tokens(
    model: "Model", claimed: Cases, written: Written, effects: Float[np.ndarray, "case"], how: ClaimSettings
) -> ClaimTest:
    """The token against the most costly of the head's others in each prompt."""
    rows = attention(claimed.cases, written.head, written.dest)
    changes = []
    for i, (case, row) in enumerate(zip(claimed, rows, strict=True)):
        dest, src = case.at(written.dest), case.at(written.src)
        likely = [int(t) for t in np.argsort(-row) if t != src and t <= dest]
        changes += [Change(i, dest, -written.vector(case, src=t)) for t in likely[: how.others]]
    most = np.zeros(len(claimed))  # a token that would help, were it gone, is no rival
    for change, loss in zip(changes, lost_to_changes(model, claimed.cases, written.head[0], changes), strict=True):
        most[change.case] = max(most[change.case], loss / mean_answer(claimed))
    note = f"the most costly of the others: {most.mean():.3f}"
    return above("more than any other token of the head", effects - most, how, note)


def _not_other_heads(
    model: "Model", claimed: Cases, written: Written, effects: Float[np.ndarray, "case"], how: ClaimSettings
) -> ClaimTest:
    """The head against the mean of its layer's others, at the same token: two heads may both move it."""
    layer, index = written.head
    others = [(layer, h) for h in range(model.dims.heads) if h != index]
    name = "more than other heads of its layer, at this token"
    if not others:
        raise UntestableError(f"layer {layer} has no other head to compare with.")
    changes = [
        Change(i, case.at(written.dest), -written.vector(case, head))
        for head in others
        for i, case in enumerate(claimed)
    ]
    losses = lost_to_changes(model, claimed.cases, layer, changes).reshape(len(others), len(claimed)) / mean_answer(
        claimed
    )
    most = int(losses.mean(1).argmax())
    note = f"others: mean {losses.mean():.3f}, most {losses.mean(1)[most]:.3f} (head {head_name(others[most])})"
    return above(name, effects - losses.mean(0), how, note)


def _flips(claimed: Cases, losses: Float[np.ndarray, "case"], how: ClaimSettings) -> ClaimTest:
    if not all(case.metric.against for case in claimed):
        raise KeyholeError('an answer flips to one that it is held against: give each prompt "against".')
    flipped = int(sum(case.answer < loss for case, loss in zip(claimed, losses, strict=True)))
    share, low, high = wilson(flipped, len(claimed))
    return ClaimTest("the answer flips", "lower bound above 0.5", share, low, high, low > 0.5, len(claimed))


def _weights_at(cases: Cases, head: Head, dest: str, src: str) -> list[float]:
    rows = attention(cases.cases, head, dest)
    return [float(row[case.at(src)]) for row, case in zip(rows, cases, strict=True)]


def _channel_edits(claim: Matches, channels: tuple[int, ...], case: Case) -> list[Edit]:
    return [ChannelEdit(head=claim.head, channels=channels, dest=At((case.at(claim.dest),)))]


def _signal_edits(claim: Needs, channels: tuple[int, ...], case: Case) -> list[Edit]:
    return [signal(claim, case, channels)]


def _drops(model: "Model", claim: Matches, cases: Cases) -> list[Float[np.ndarray, "pos"]]:
    """By how much the attention to every token falls without the channels, in the model's own passes."""
    edits_of = partial(_channel_edits, claim, claim.channels)
    after = attention_with(model, cases.cases, claim.head, claim.dest, edits_of)
    before = attention(cases.cases, claim.head, claim.dest)
    return [clean - edited for clean, edited in zip(before, after, strict=True)]


def _largest(drop: Float[np.ndarray, "pos"], case: Case, claim: Matches) -> float:
    """The largest fall of attention to another token."""
    others = [float(d) for t, d in enumerate(drop) if t != case.at(claim.src)]
    return max(others, default=0.0)


def _matches_on(model: "Model", claim: Matches, rewrite: Cases) -> ClaimTest:
    name = f"on rewrites: {rewrite.name}"
    if len(rewrite) < 2:
        return at_least(name, [], claim.settings.least, claim.settings)
    drops = [float(d[case.at(claim.src)]) for d, case in zip(_drops(model, claim, rewrite), rewrite, strict=True)]
    before = max(float(np.mean(_weights_at(rewrite, claim.head, claim.dest, claim.src))), _NOTHING)
    return at_least(name, np.array(drops) / before, claim.settings.least, claim.settings)
