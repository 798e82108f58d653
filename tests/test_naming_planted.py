"""Are meanings found that were put into a real model's heads, and none where there are none? From texts to verdicts.

A plant is a direction of a head's queries and one of its keys, made by least squares on what the head reads in other
texts, so that they are positive at tokens of a known kind. Random directions of the same heads are read beside them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import pytest
import torch
from torch import Tensor

import keyhole
from keyhole.brief import Head
from keyhole.models.stacks import Seen, visit
from keyhole.models.tokens import Encoded
from keyhole.naming.corpus.corpus import chunks
from keyhole.naming.corpus.gather import gather
from keyhole.naming.explain.language import holds
from keyhole.naming.explain.over_represented import statistics
from keyhole.naming.explain.sentences import Name, parse
from keyhole.naming.judge import judge
from keyhole.naming.judge.judge import LEVEL, RANDOM, RANDOM_PASS, SHUFFLED, beyond, corrected, rule_judge
from keyhole.naming.judge.questions import Asking, Marked
from keyhole.naming.naming import randoms
from keyhole.naming.record import Naming
from keyhole.naming.signals import name_signals
from keyhole.naming.subjects.subject import Examples, Shown, Subject
from keyhole.stats import at_least

pytestmark = pytest.mark.xdist_group("planted names")  # all look at the same examples
CLEAR: tuple[tuple[Head, str], ...] = (
    ((0, 0), 'dest is ",", and src is "the"'),
    ((0, 1), 'dest is a place, and src is "to"'),
    ((0, 2), 'dest is "to", and src is an object'),
    ((0, 2), 'dest is ".", and src is an object'),
    ((0, 2), 'dest is ".", and src is "to"'),
    ((0, 3), 'dest is "to", and src is an object'),
    ((0, 4), 'dest is "to", and src is ","'),
    ((0, 4), 'dest is ".", and src is ","'),
    ((0, 5), 'dest is ",", and src is "the"'),
    ((0, 5), 'dest is ".", and src is "to"'),
    ((0, 6), 'dest is "the", and src is ","'),
    ((0, 7), 'dest is "the", and src is "and"'),
)
# What is strongest among these texts has something else in common as well: a box is in something, a place comes last.
BLURRED: tuple[tuple[Head, str], ...] = (
    ((0, 0), 'dest is an object, and src is "to"'),
    ((0, 0), 'dest is ".", and src is "the"'),
    ((0, 2), 'dest is ".", and src is a place'),
    ((0, 2), 'dest is ",", and src is an object'),
    ((0, 3), 'dest is ",", and src is "box"'),
    ((0, 3), 'dest is "and", and src is an object'),
    ((0, 5), 'dest is "to", and src is "the"'),
    ((0, 6), 'dest is ",", and src is "box"'),
    ((1, 3), 'dest is a place, and src is "and"'),
    ((1, 5), 'dest is "to", and src is ","'),
)
PLANTS = CLEAR + BLURRED
TEXTS, TOKENS, RANDOMS = 400, 20_000, 200
ASKING = Asking(questions=20)  # fewer are answered rightly to the last by many random directions' names, too
FEW = 4  # random directions among the plants of a family


@cache
def model() -> keyhole.Model:
    return keyhole.load()


# -- planting ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Read:
    """What every head reads at every token of some texts, which examples are not taken from."""

    places: tuple[tuple[tuple[str, ...], int], ...]  # text, token
    queries: dict[int, Tensor]  # by layer: heads, places, d_head
    keys: dict[int, Tensor]


@cache
def read() -> Read:
    texts = list(chunks(model(), limit=TEXTS, seed=1))
    queries: dict[int, list[Tensor]] = {}
    keys: dict[int, list[Tensor]] = {}
    for start in range(0, TEXTS, 100):
        batch = texts[start : start + 100]

        def see(layer: int, seen: Seen, batch: Sequence[tuple[int, ...]] = batch) -> None:
            for found, x in ((queries, seen.q), (keys, seen.k)):
                found.setdefault(layer, []).extend(x[i, :, : len(ids)].double() for i, ids in enumerate(batch))

        visit(model(), [Encoded(ids, (), False) for ids in batch], see)
    words = [tuple(model().tokenizer.convert_ids_to_tokens(list(ids))) for ids in texts]
    places = tuple((text, at) for text in words for at in range(len(text)))
    return Read(places, *({n: torch.cat(x, 1) for n, x in one.items()} for one in (queries, keys)))


def side_of(text: str, spot: str) -> Tensor:
    """At which places is what a sentence says of dest, or of src, true?"""
    [clause] = [one for one in parse(text) if one.spot == spot]
    return torch.tensor([holds(clause, Marked(tokens, at, at)) for tokens, at in read().places])


def line(x: Tensor, true: Tensor) -> tuple[Tensor, float, float]:
    """Direction and offset by least squares, +1 where it is true and -1 elsewhere, both alike; and how well it fits."""
    weights = torch.where(true, 0.5 / true.sum(), 0.5 / (~true).sum()).double().sqrt()
    wanted, with_one = 2.0 * true.double() - 1, torch.cat([x, torch.ones(len(x), 1).double()], 1)
    best = torch.linalg.lstsq(with_one * weights[:, None], (wanted * weights)[:, None]).solution[:, 0]
    missed = float((((with_one @ best - wanted) * weights) ** 2).sum())
    return best[:-1].float(), float(best[-1]), 1 - missed


def plant(head: Head, text: str) -> Subject:
    layer, index = head
    query, asks, fits = line(read().queries[layer][index], side_of(text, "dest"))
    key, offers, also = line(read().keys[layer][index], side_of(text, "src"))
    assert min(fits, also) > 0.8, f"{layer}.{index} does not read whether {text}"
    return Subject(f"{layer}.{index} {text}", "signal", head, query, key, asks, offers)


# -- naming --------------------------------------------------------------------------------------------------------


@cache
def examples() -> tuple[Sequence[Examples], Sequence[Examples]]:
    """Of plants and of random directions of their heads, from one pass over what is at hand."""
    planted = [plant(*one) for one in PLANTS]
    others = randoms(model(), planted, RANDOMS, seed=7)
    found = gather(model(), [*planted, *others], tokens=TOKENS)
    return found[: len(planted)], found[len(planted) :]


@lru_cache(maxsize=1000)
def _explained(fires: tuple[Shown, ...], background: tuple[Shown, ...]) -> Name:
    return statistics(fires, background)


def explainer(fires: Sequence[Shown], background: Sequence[Shown]) -> Name:
    """Each once, although signals are named in several families."""
    return _explained(tuple(fires), tuple(background))


@cache
def naming() -> Naming:
    planted, others = examples()
    return name_signals(planted, explainer, {"detection": rule_judge}, random=others, asking=ASKING)


@cache
def rows() -> tuple[list[judge.Tested | None], list[judge.Tested | None]]:
    """How clear plants and random directions did, each on its own."""
    planted, others = examples()
    every = name_signals([*planted, *others], explainer, {"detection": rule_judge}, asking=ASKING, controls=False)
    tests = [one.test() for one in every.signals]
    return tests[: len(CLEAR)], tests[len(planted) :]


def passes(family: Sequence[judge.Tested | None], nulls: Sequence[judge.Tested | None]) -> list[bool]:
    """By the rule of `Named.outcome`, written out."""
    found = beyond(corrected(family), nulls)
    return [one is not None and max(one.corrected or 0, one.passing or 0) <= LEVEL for one in found]


def true_of(text: str, shown: Sequence[Shown]) -> float:
    """Of how many of these is a sentence true?"""
    rule = parse(text)
    return sum(all(holds(part, Marked(x.tokens, x.dest, x.src)) for part in rule) for x in shown) / len(shown)


def test_plants_fire_where_they_were_told_to() -> None:
    for (_, text), one in zip(PLANTS, examples()[0], strict=True):
        assert len(one.of("top")) == 40 and true_of(text, one.of("top")) >= 0.95, text
        assert true_of(text, one.of("random")) <= 0.1, text


def test_plants_are_named_for_what_they_are_and_pass() -> None:
    for (_, text), one in zip(CLEAR, naming().signals, strict=False):
        assert (one.name.text, one.outcome()) == (text, "passes")


def test_blurred_plants_pass_by_a_name_that_is_true_of_them() -> None:
    """Not always the one that was planted: texts in which something else is true at the same places tell no better."""
    blurred = naming().signals[len(CLEAR) :]
    assert sum(one.outcome() == "passes" for one in blurred) >= 0.8 * len(BLURRED)
    for found, one in zip(examples()[0][len(CLEAR) :], blurred, strict=True):
        assert one.outcome() != "passes" or true_of(str(one.name), found.of("top")) >= 0.9, one


def test_shuffled_names_fail_and_random_directions_do_not_pass() -> None:
    """Random directions' names are above chance as a rule: they read something, too. Few are beyond one another."""
    controls = {one.group: one for one in naming().controls}
    assert controls[SHUFFLED].signals >= 20 and controls[SHUFFLED].passed <= 1
    assert controls[RANDOM].signals == controls[RANDOM_PASS].signals == RANDOMS
    assert controls[RANDOM].share > 0.5 and controls[RANDOM_PASS].share <= LEVEL


def test_random_directions_among_plants_pass_at_no_more_than_the_nominal_rate() -> None:
    """Where plants pass, a family's threshold is within reach of random directions: each of 200 is tried so.

    Half of them are the null of the other half. Of what passes in all families, at most 5 % may be random directions.
    """
    planted, others = rows()
    found, false = 0, 0
    for half in (0, 1):
        tried, nulls = others[half::2], others[1 - half :: 2]
        for start in range(0, len(tried), FEW):
            told = passes([*planted, *tried[start : start + FEW]], nulls)
            found += sum(told)
            false += sum(told[len(planted) :])
    assert found >= 0.9 * len(planted) * RANDOMS / FEW  # there are discoveries: the rate is of something
    assert false / found <= LEVEL


def test_one_random_direction_is_beyond_others_as_often_as_chance() -> None:
    """Without any correction: a p-value is below 5 % in no more than 5 % of random directions, but for chance."""
    _, others = rows()
    ps = []
    for half in (0, 1):
        ps += [one.beyond for one in beyond(others[half::2], others[1 - half :: 2]) if one is not None]
    low = sum(p is not None and p <= LEVEL for p in ps)
    assert len(ps) > 0.9 * RANDOMS and at_least(low, RANDOMS, LEVEL) > 0.01
