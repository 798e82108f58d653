"""Does a circuit carry the answer by itself? Everything else at the mean of the claim's prompts, in other words too.

    carried = 1 - |m(everything) - m(the circuit alone)| / gap,   gap: the mean of m(everything) - m(nothing)

More than the whole answer is no success, and counts as what is missing. The gap is that of all prompts: a single one
may have hardly any, and a share of it would say nothing. A circuit's edges stand at tokens, so that its claim is tested
on prompts of its own template: as many tokens, and every role at the same one.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from keyhole.claims.cases import Case, Cases, UntestableError
from keyhole.claims.evidence import ClaimTest, at_least, half_on_negatives, more_than_random
from keyhole.claims.heads import pairs
from keyhole.claims.records import Suffices
from keyhole.errors import KeyholeError
from keyhole.faithfulness.baseline import LEAST, Baseline, exchanged, mean_of
from keyhole.faithfulness.effects import circuit_edges, random_edges
from keyhole.faithfulness.search import LEAST_GAP
from keyhole.faithfulness.shares import MaskedQuestion, question
from keyhole.faithfulness.token_masks import EdgeList, all_but, only

if TYPE_CHECKING:
    from keyhole.models.model import Model


def suffices_tests(
    model: "Model", claim: Suffices, claimed: Cases, rewrites: Sequence[Cases], negatives: Cases
) -> list[ClaimTest]:
    """Does the circuit carry the stated share, does the answer need it, and would a random one do?"""
    how = claim.settings
    mean = _mean(claimed.cases)
    posed = [_question(case, _own_baseline(claimed.cases[0], mean, case)) for case in claimed]
    edges = circuit_edges(claim.circuit, posed[0])
    if not len(edges):
        raise KeyholeError("the circuit has no edges that can be kept alone: trace it with an answer.")
    gap = _gap(posed)
    if gap < LEAST_GAP:
        raise UntestableError(
            f"with everything cut, the prompts' answers are only {gap:.2f} lower: there is nothing to carry."
        )
    carried = _carried(posed, [edges], gap)[0]
    tests = [at_least("the circuit alone carries", carried, claim.keeps, how)]
    needed = np.array([_lost_without(each, edges) for each in posed]) / gap
    tests.append(at_least("the answer loses, without it", needed, how.least, how))
    rng = np.random.default_rng(how.seed)
    drawn = [random_edges(posed[0], len(edges), rng) for _ in range(how.draws)]
    random = _carried(posed, drawn, gap)
    tests.append(more_than_random("more than random circuits of its size", carried, random, how))
    for rewrite in rewrites:
        others = [_question(case, mean) for case in like_first(rewrite, claimed.cases[0])]
        fair = len(others) > 1 and _gap(others) >= LEAST_GAP
        values = _carried(others, [edges], _gap(others))[0] if fair else []
        tests.append(at_least(f"on rewrites: {rewrite.name}", values, claim.keeps, how))
    unlike = like_first(negatives, claimed.cases[0])
    if not unlike:
        raise UntestableError("no negative has the circuit's tokens and roles: give some that have.")
    elsewhere = np.array([_of_answer(_question(case, mean), edges, gap) for case in unlike])
    found = pairs(claimed, replace(negatives, cases=tuple(unlike)))
    tests.append(half_on_negatives(carried, elsewhere, found, negatives.name, how))
    return tests


def of_template(claim: Suffices, cases: Cases) -> Cases:
    """The prompts that have the circuit's tokens and roles: of those of its length, the wording most like its own."""
    tokens = claim.circuit.token_ids
    long = [case for case in cases if len(case.run) == len(tokens)]
    patterns = {_pattern(case): 0.0 for case in long}
    for case in long:
        same = sum(a == b for a, b in zip(case.run.token_ids, tokens, strict=True))
        patterns[_pattern(case)] = max(patterns[_pattern(case)], same / len(tokens))
    chosen = max(patterns, key=lambda pattern: patterns[pattern], default=None)
    fitting = tuple(case for case in long if _pattern(case) == chosen)
    if len(fitting) <= LEAST:
        raise UntestableError(
            f"{len(fitting)} of {cases.of} prompts have the circuit's {len(tokens)} tokens with every role at the same "
            f"ones, and {LEAST + 1} are needed: give more, or the task's choices that make such (order, wordings)."
        )
    return replace(cases, cases=fitting, of=len(fitting))


def like_first(cases: Cases, first: Case) -> list[Case]:
    """Prompts whose roles stand at the same tokens."""
    return [case for case in cases if _pattern(case) == _pattern(first)]


def _pattern(case: Case) -> tuple[int, frozenset[tuple[str, int]]]:
    return len(case.run), frozenset(case.roles.items())


def _mean(cases: Sequence[Case]) -> Baseline:
    """For the first prompt: the mean of the others."""
    return mean_of(cases[0].run, [list(case.run.token_ids) for case in cases])


def _own_baseline(first: Case, mean: Baseline, case: Case) -> Baseline:
    """For another of the prompts: the mean of all but itself."""
    return mean if case is first else exchanged(first.run, mean, case.run)


def _question(case: Case, baseline: Baseline) -> MaskedQuestion:
    return question(case.run, case.metric, baseline)


def _gap(posed: Sequence[MaskedQuestion]) -> float:
    """How much of the answer there is to carry, in the mean over prompts."""
    return float(np.mean([everything - nothing for everything, nothing in (each.ends for each in posed)]))


def _carried(
    posed: Sequence[MaskedQuestion], circuits: Sequence[EdgeList], gap: float
) -> Float[np.ndarray, "circuit case"]:
    """What each of these circuits carries by itself, prompt by prompt."""
    missing = [np.abs(each.ends[0] - each.answers([only(edges) for edges in circuits])) for each in posed]
    return 1.0 - np.stack(missing, axis=1) / gap


def _of_answer(posed: MaskedQuestion, edges: EdgeList, gap: float) -> float:
    """How much of an answer as large as the claim's the circuit makes where that answer is not right."""
    _, nothing = posed.ends
    return 1.0 - abs(1.0 - (float(posed.answers([only(edges)])[0]) - nothing) / gap)


def _lost_without(posed: MaskedQuestion, edges: EdgeList) -> float:
    everything, _ = posed.ends
    return everything - float(posed.answers([all_but(edges)])[0])
