"""Are signals named rightly, and are names tested honestly? Planted meanings, noise, and slow obvious oracles."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cache, partial
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, fisher_exact, mannwhitneyu

from keyhole import KeyholeError, Model
from keyhole.naming.explain import lens, statistics, tokens_alone
from keyhole.naming.explain.language import (
    AFTER,
    KINDS,
    ORDERED,
    RELATIONS,
    SAME,
    SPOTS,
    WHICH,
    Clause,
    Distance,
    Kind,
    Order,
    Relation,
    Word,
    holds,
    kinds,
    true_of,
)
from keyhole.naming.explain.over_represented import pairs_of
from keyhole.naming.explain.sentences import Name, parse, render, rule
from keyhole.naming.judge import judge as scores
from keyhole.naming.judge.judge import RULES, Answer, beyond, by_embedding, nearest, odd_one_out, rule_judge, shuffled
from keyhole.naming.judge.questions import Asking, Halves, Marked, Posed, Question, mixed, pose, split
from keyhole.naming.record import Naming, by_model, from_json, load_naming, save_naming, to_json
from keyhole.naming.signals import name_signals
from keyhole.naming.subjects.subject import HARD, Examples, Shown, Subject
from keyhole.stats import at_least, benjamini_hochberg, fisher
from planted_signals import corpus, noise, pairs, planted

PLANTED = {  # id -> what it fires on
    "a word and a kind": 'dest is "to", and src is a name',
    "induction": f"src is {AFTER}",
    "the token before a kind": "dest is a name, and src is the token just before dest",
    "repetition": f"src is {SAME}",
    "the first token": "dest is a punctuation mark, and src is the first token of the text",
    "two kinds": "dest is a place, and src is an article",
    "order": "dest is a preposition, and src is the first name so far",
    "itself": "dest is a pronoun, and src is dest itself",
    "distance": "dest is a conjunction, and src is a comma, 2 to 7 tokens before dest",
}
TEXT = (
    "When",
    " Mary",
    " and",
    " John",
    " went",
    " to",
    " the",
    " store",
    ",",
    " John",
    " gave",
    " a",
    " drink",
    " to",
)


def agrees(text: str, pair: Marked) -> bool:
    return all(holds(clause, pair) for clause in read(text))


read = cache(parse)


RANDOM = 40


@cache
def plants() -> tuple[Examples, ...]:
    return tuple(
        planted(partial(agrees, text), id=id, head=(number % 4, number), seed=number)
        for number, (id, text) in enumerate(PLANTED.items())
    )


@cache
def named() -> Naming:
    return name_signals(plants(), model="planted", random=[noise(i, kind="random") for i in range(500, 500 + RANDOM)])


@cache
def nothing() -> tuple[Examples, ...]:
    return tuple(noise(number) for number in range(200))


# -- sentences -------------------------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ['"', ", and src is ", "\\", " or "]
)
anywhere = st.one_of(
    st.builds(Word, st.lists(texts, min_size=1, max_size=4).map(tuple)), st.builds(Kind, st.sampled_from(KINDS))
)
of_src = st.one_of(
    st.builds(Order, st.sampled_from(WHICH), st.sampled_from(ORDERED)),
    st.builds(
        lambda low, more: Distance(low, None if more is None else low + more),
        st.integers(0, 40),
        st.none() | st.integers(0, 9),
    ),
)
relations = st.sampled_from([(spot, text) for text, spots in RELATIONS.items() for spot in spots])
clauses = st.one_of(
    st.builds(Clause, st.sampled_from(SPOTS), anywhere),
    st.builds(Clause, st.just("src"), of_src),
    relations.map(lambda one: Clause(one[0], Relation(one[1]))),
)


@given(st.lists(clauses, min_size=1, max_size=5))
def test_a_sentence_is_read_back_as_the_rule_it_tells(some: list[Clause]) -> None:
    assert parse(render(some)) == rule(some)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "dest",
            'dest is "to',
            "dest is to",
            'dest is "to", ',
            'dest is "to" and src is a name',
            "dest is an name",
        ),
        *("src is a name, and dest is a name", "dest is 3 tokens before dest", "dest is the first name so far"),
        *(
            "dest is the same token as dest",
            'dest is "\\u0074o"',
            "src is 1 tokens before dest",
            "no valid interpretation",
        ),
    ],
)
def test_what_is_no_sentence_is_refused(text: str) -> None:
    with pytest.raises(KeyholeError):
        parse(text)
    assert rule_judge(text, Question("detection", (Marked(TEXT, 3, 1),))) == Answer()


@pytest.mark.parametrize(
    ("dest", "src", "text", "truth"),
    [
        (13, 1, 'dest is "to" or "for", and src is a name, the first name so far, 5 to 12 tokens before dest', True),
        (13, 1, "src is 5 to 11 tokens before dest", False),
        (13, 1, "src is at least 12 tokens before dest, a token that occurs only once so far", True),
        (13, 9, "src is the latest name so far, a token that occurs more than once so far", True),
        (13, 3, "src is the second name so far", True),
        (13, 9, "src is the second name so far", False),  # it is the third
        (9, 4, "src is the token after an earlier occurrence of dest", True),
        (9, 5, "src is the token after an earlier occurrence of dest", False),
        (9, 3, "src is the same token as dest", True),
        (9, 9, "src is the same token as dest", False),  # a token is not its own repetition
        (9, 9, "src is dest itself", True),
        (9, 3, "dest is a token that has occurred before, and the token before src is a conjunction", True),
        (3, 3, "the token after src is a content word", False),  # dest does not see it
        (3, 0, "the token before src is a name, and the token after src is a name", False),
        (13, 0, "dest is the last token of the text, and src is the first token of the text", True),
        (12, 0, "dest is the last token of the text", False),
        (8, 7, "dest is a comma, and the token before dest is a place, and src is the token just before dest", True),
    ],
)
def test_what_sentences_mean(dest: int, src: int, text: str, truth: bool) -> None:
    assert rule_judge(text, Question("detection", (Marked(TEXT, dest, src),))).yes is truth


def test_everything_true_is_told_and_nothing_else() -> None:
    some = [Marked(corpus()[c], d, s) for c, d, s in pairs()[::997]]
    told = {clause for pair in some for clause in true_of(pair)}
    assert len(told) > 300 and {type(one.says) for one in told} == {Word, Kind, Relation, Order}
    for pair in some:
        own = list(true_of(pair))
        assert len(set(own)) == len(own)
        assert set(own) == {clause for clause in told if holds(clause, pair)}


def test_kinds_of_tokens() -> None:
    tokens = (
        " The",
        " un",
        "happy",
        " Mr",
        ".",
        " Darcy",
        " walked",
        " 12",
        "\n",
        "<|endoftext|>",
        "\u201c",
        " quickly",
        " I",
    )
    found = kinds(tokens)
    expected = ["article", "content word", "word piece", "title", "sentence end", "name", "word in -ed", "number"]
    expected += ["line break", "special token", "quotation mark", "word in -ly", "pronoun"]
    assert all(kind in own for kind, own in zip(expected, found, strict=True))
    assert "name" not in found[0] | found[3] | found[12] and "function word" in found[0] & found[12]
    assert "word piece" not in frozenset().union(*kinds(("the", "store")))  # without spaces, nobody knows


# -- statistics ------------------------------------------------------------------------------------------------------


@given(st.integers(0, 12), st.integers(0, 12), st.data())
def test_fisher_and_binomial_against_scipy(n: int, m: int, data: Any) -> None:
    a, b = data.draw(st.integers(0, n)), data.draw(st.integers(0, m))
    slow = fisher_exact([[a, n - a], [b, m - b]], alternative="greater").pvalue
    assert fisher(a, n, b, m) == pytest.approx(slow, rel=1e-9)
    assert at_least(a, n, 0.2) == pytest.approx(binom.sf(a - 1, n, 0.2), rel=1e-9)


@given(st.lists(st.floats(0, 1), max_size=20))
def test_correction_by_hand(ps: list[float]) -> None:
    n, ordered = len(ps), sorted(ps)
    by_hand = [min([1.0, *(ordered[j] * n / (j + 1) for j in range(n) if ordered[j] >= p)]) for p in ps]
    assert benjamini_hochberg(ps) == pytest.approx(by_hand, abs=1e-12)


def test_scores_against_slow_ones() -> None:
    rng = np.random.default_rng(0)
    posed = [Posed(Question("detection", (Marked(TEXT, 3, 1),)), bool(i < 9), "top") for i in range(20)]
    answers = [Answer(bool(p > 0.4), float(p)) for p in np.round(rng.random(20) + 0.3 * (np.arange(20) < 9), 1)]
    answers[4] = answers[15] = Answer()
    found = scores.tested(posed, answers, "top")
    assert found is not None
    table = Counter((one.truth, a.yes) for one, a in zip(posed, answers, strict=True))
    hits, misses, alarms, rest = (table[t, y] for t, y in ((True, True), (True, False), (False, True), (False, False)))
    assert (found.questions, found.unanswered, found.right) == (20, 2, hits + rest)
    assert found.accuracy == (hits + rest) / 20
    assert (found.precision, found.recall) == (hits / (hits + alarms), hits / (hits + misses))
    assert found.p == pytest.approx(fisher_exact([[hits, misses], [alarms, rest]], alternative="greater").pvalue)
    both = [
        [a.probability for one, a in zip(posed, answers, strict=True) if one.truth is t and a.yes is not None]
        for t in (True, False)
    ]
    u = mannwhitneyu(*both).statistic
    assert found.auc == pytest.approx(u / (len(both[0]) * len(both[1])))


def test_intruders_are_judged_against_one_in_five() -> None:
    posed = [Posed(Question("intruder", (Marked(TEXT, 3, 1),) * 5), i % 5, "random") for i in range(6)]
    found = scores.tested(posed, [Answer(choice=0)] * 5 + [Answer()], "top")
    assert found is not None and (found.questions, found.unanswered, found.right) == (6, 1, 1)
    assert found.p == pytest.approx(1 - 0.8**5) and found.auc is found.precision is found.recall is None


# -- what is asked, and who sees what --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_no_text_is_seen_by_both(seed: int) -> None:
    one = plants()[seed]
    again = tuple(replace(shown, chunk=shown.chunk + 10_000) for shown in one.shown[:5])  # the same texts once more
    seen, held = split((*one.shown, *again), seed)
    assert not {shown.chunk for shown in seen} & {shown.chunk for shown in held}
    assert not {shown.tokens for shown in seen} & {shown.tokens for shown in held}
    assert Counter(chain(seen, held)) == Counter((*one.shown, *again))
    tops = [len({shown.tokens for shown in half if shown.pick == "top"}) for half in (seen, held)]
    assert abs(tops[0] - tops[1]) <= 1 and split((*one.shown, *again), seed) == (seen, held)
    assert split(one.shown, seed) != split(one.shown, seed + 1)


@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize("of", ["top", "all"])
def test_questions_are_fair(kind: Any, of: Any) -> None:
    for examples in (*plants()[:4], noise(3)):
        halves = Halves(*split(examples.shown))
        posed = pose(kind, halves, of, Asking())
        assert posed == pose(kind, halves, of, Asking())
        if not posed and (kind, of) == ("fuzzing", "all"):  # few texts of any decile have a wrong src, too
            continue
        assert posed != pose(kind, halves, of, Asking(), seed=1)
        seen = {one.tokens for one in halves.explained}
        asked = [one.question for one in posed]
        assert all(text.tokens not in seen for question in asked for text in question.texts)
        assert all(pair.tokens in seen for question in asked for pair, _ in question.known)
        assert bool(asked[0].known) is (kind == "examples")
        if kind == "intruder":
            shown = [text.tokens for question in asked for text in question.texts]
            assert len(set(shown)) == len(shown) == 5 * len(asked) and len(asked) >= 3
            assert len({one.truth for one in posed}) > 1
            continue
        fire, others = ([one for one in posed if one.truth is truth] for truth in (True, False))
        assert len(fire) == len(others) == (10 if of == "top" or kind != "fuzzing" else len(fire))
        assert sum(one.pick in HARD for one in others) * 2 >= len(others)
        texts = [one.question.texts[0].tokens for one in fire]
        assert len(set(texts)) == len(texts)
        _check_picks(kind, of, halves, posed)


def _check_picks(kind: str, of: str, halves: Halves, posed: Sequence[Posed]) -> None:
    kept = {Marked(one.tokens, one.dest, one.src): one for one in halves.held_out if one.pick in ("top", "decile")}
    firing = {(one.tokens, one.dest) for one in kept.values()}
    for one in posed:
        pair = one.question.texts[0]
        if one.truth:
            deciles = {
                s.decile for s in halves.held_out if (s.tokens, s.dest, s.src) == (pair.tokens, pair.dest, pair.src)
            }
            assert one.pick == "decile" if of == "all" else (one.pick == "top" or deciles & {8, 9})
        elif kind == "fuzzing":
            assert pair.tokens in {text for text, _ in firing}
            assert (pair.tokens, pair.dest) not in firing if one.pick is None else one.pick == "wrong src"
        else:
            assert one.pick in (*HARD, "random")


def test_fewer_examples_make_fewer_questions_of_the_same_kind() -> None:
    one = plants()[0]
    few = [shown for shown in one.shown if shown.pick not in HARD]
    hard = [shown for shown in one.shown if shown.pick == "other channels"][:3]
    posed = pose("detection", Halves((), (*few, *hard)), "top", Asking())
    assert Counter(one.truth for one in posed) == {True: 6, False: 6} and sum(one.pick in HARD for one in posed) == 3
    odd = mixed(posed[:5], posed[6:], [replace(one, pick="random") for one in posed[6:]], Asking())
    assert Counter(one.truth for one in odd) == {True: 5, False: 5} and odd[5:8] == posed[6:9]  # three of five, not two
    assert pose("detection", Halves((), tuple(few)), "top", Asking()) == ()
    assert len(pose("detection", Halves((), tuple(few)), "top", Asking(hard=0.0))) == 20


def test_a_random_pair_that_fires_like_the_top_is_no_negative() -> None:
    held = [replace(one, value=99.0) if one.pick == "random" else one for one in plants()[0].shown]
    assert {one.pick for one in pose("detection", Halves((), tuple(held)), "top", Asking()) if not one.truth} == set(
        HARD
    )


def test_neither_explainer_nor_judge_sees_the_others_texts() -> None:
    explained, judged = set[Any](), set[Any]()

    def explainer(examples: Sequence[Shown], background: Sequence[Shown]) -> Name:
        explained.update(one.tokens for one in (*examples, *background))
        assert {one.pick for one in examples} == {"top", "decile"} and {one.pick for one in background} >= {
            "random",
            *HARD,
        }
        assert all(one.decile is None or one.decile >= 8 for one in examples)
        return Name('dest is "to"', "spy")

    def judge(text: str, question: Question) -> Answer:
        assert text == 'dest is "to"' and len(question.texts) == 1 and not question.known
        judged.update(one.tokens for one in question.texts)
        return Answer(True, 1.0)

    naming = name_signals(plants()[:1], explainer, {"detection": judge, "fuzzing": judge}, controls=False)
    assert explained and judged and not explained & judged
    assert {(one.kind, one.of) for one in naming.signals[0].tests} == set(naming.question_kinds())
    assert {one.name for one in fields(Marked)} == {"tokens", "dest", "src"}  # no value, no pick, no chunk
    assert {one.name for one in fields(Question)} == {"kind", "texts", "known"}  # no truth


def test_the_background_is_drawn_from_its_own_texts_and_every_pair_is_as_likely() -> None:
    tokens = ("a", "b", "c")
    one = Shown(0, tokens, 1, 0, 0.0, 0.0, "random")
    drawn = Counter((pair.dest, pair.src) for seed in range(400) for pair in pairs_of([], [one], seed).drawn[1:])
    assert set(drawn) == {(d, s) for d in range(3) for s in range(d + 1)}
    assert max(drawn.values()) / min(drawn.values()) < 1.2
    assert pairs_of([one, replace(one, dest=2)], [one], 0).fires == (Marked(tokens, 1, 0),)  # one of each text


# -- bars ------------------------------------------------------------------------------------------------------------


def test_planted_signals_are_named_rightly_and_pass() -> None:
    everywhere = [Marked(corpus()[c], d, s) for c, d, s in pairs()[::7]]
    for one in named().signals:
        truth = [agrees(PLANTED[one.id], pair) for pair in everywhere]
        told = [agrees(str(one.name), pair) for pair in everywhere]
        both = sum(a and b for a, b in zip(truth, told, strict=True))
        assert both / sum(truth) > 0.75 and both / sum(told) > 0.75, str(one)
        assert one.outcome() == "passes" and one.outcome("fuzzing") == "passes", str(one)
    exact = [one.name.text == PLANTED[one.id] for one in named().signals]
    assert sum(exact) >= 6, [str(one) for one in named().signals]
    assert named().share().passed == len(PLANTED)


def test_claims_carry_their_evidence() -> None:
    for one in named().signals:
        assert render(rule(chain.from_iterable(parse(claim.text) for claim in one.name.claims))) == one.name.text
        for claim in one.name.claims:
            assert claim.corrected <= 0.05 and claim.p <= claim.corrected and claim.log_odds > 0
            assert claim.background is not None and claim.examples > claim.background and claim.hard is not None
        assert all(shown.pick == "top" for shown in one.examples) and len(one.examples) == 5


def test_what_separates_two_signals_is_told() -> None:
    """Both fire from a preposition; the one at the first name, the other at the second."""
    first, second = (
        planted(
            partial(agrees, f"dest is a preposition, and src is the {which} name so far"),
            id=which,
            head=(0, 0),
            noise=0,
        )
        for which in ("first", "second")
    )
    name = statistics(first.of("top"), second.of("top"))
    assert name.text is not None and "the first name so far" in name.text and "preposition" not in name.text
    assert name.claims[0].background is None and name.claims[0].hard is not None
    assert statistics(first.of("top")[::2], first.of("top")[1::2]).text is None


def test_controls_fail_where_the_names_pass() -> None:
    controls = {one.group: one for one in named().controls}
    assert set(controls) == {"shuffled names", "tokens alone", "random directions", "random that pass"}
    assert controls["shuffled names"].passed == 0 and controls["shuffled names"].signals == len(PLANTED)
    assert controls["random directions"].passed == 0 and controls["random directions"].signals == RANDOM
    assert controls["random that pass"].passed == 0 and controls["random that pass"].signals == RANDOM
    assert controls["tokens alone"].passed <= len(PLANTED) // 3


def test_a_name_that_two_signals_share_is_not_another_signals() -> None:
    def same(examples: Sequence[Shown], background: Sequence[Shown]) -> Name:
        return Name(PLANTED["induction"], "same")

    groups = {one.group for one in name_signals(plants()[1:3], same, {"detection": rule_judge}).controls}
    assert groups == {"tokens alone"}


def test_signals_without_meaning_are_rarely_named_and_never_pass() -> None:
    naming = name_signals(nothing(), judges={"detection": rule_judge}, controls=False)
    assert naming.above_chance().passed == 0
    assert naming.share().nameless >= 0.95 * 200  # what the corrected tests allow the explainer


def test_names_of_noise_pass_no_more_often_than_chance_allows() -> None:
    """Without its own threshold the explainer names nearly everything; the judge alone must see that it is nothing."""
    naming = name_signals(nothing(), partial(statistics, level=1.0), {"detection": rule_judge}, controls=False)
    ps = [test.p for one in naming.signals if (test := one.test()) is not None]
    assert len(ps) > 100
    assert sum(p <= 0.05 for p in ps) <= 0.05 * len(ps)
    assert naming.above_chance().passed == 0


def test_a_wrong_sentence_fails() -> None:
    wrong = "dest is a number, and src is a number"
    naming = name_signals(plants(), lambda examples, background: Name(wrong, "wrong"), controls=False)
    assert {one.outcome() for one in naming.signals} == {one.outcome("fuzzing") for one in naming.signals} == {"fails"}
    assert all(test.p == 1.0 and test.recall == 0.0 for one in naming.signals if (test := one.test()))


def test_a_right_sentence_of_another_signal_fails() -> None:
    naming = name_signals(plants()[:2], lambda examples, background: Name(PLANTED["itself"], "other"), controls=False)
    assert {one.outcome() for one in naming.signals} == {"fails"}


def test_no_name_is_an_outcome_of_its_own() -> None:
    naming = name_signals(plants()[:3], lambda examples, background: Name(None, "nobody"))
    assert {one.outcome() for one in naming.signals} == {"no valid interpretation"}
    assert all(one.test() is None and one.test("examples") is not None for one in naming.signals)  # needs no name
    share = naming.share()
    assert (share.passed, share.nameless, share.signals, share.share) == (0, 3, 3, 0.0)
    assert "3 without a name" in str(naming) and str(naming.signals[0].name) == "no valid interpretation"
    nothing = Examples(plants()[0].subject, (), 0, 0, 0.0)
    assert name_signals([nothing]).signals[0].outcome() == "no valid interpretation"
    sure = name_signals([nothing], lambda examples, background: Name('dest is "to"', "sure")).signals[0]
    assert sure.outcome() == "untested" and sure.tests == ()


def test_judges_without_names_see_what_is_alike() -> None:
    like, unlike = [Marked(TEXT, 13, i) for i in (1, 3, 9)], [Marked(TEXT, i, i) for i in (2, 4, 6)]
    known = (*((pair, True) for pair in like[:2]), *((pair, False) for pair in unlike))
    answer = nearest("", Question("examples", (like[2],), (*known, (Marked(TEXT, 13, 1), True))))
    assert answer.yes and answer.probability == pytest.approx(0.6)
    assert odd_one_out("", Question("intruder", (*like, unlike[0], Marked(TEXT, 5, 1)))).choice == 3
    assert named().share("examples").passed >= 3


def test_another_embedding_may_tell_what_is_alike() -> None:
    def by_src(some: Sequence[Marked]) -> Any:
        return np.array([[1.0, 0.0] if one.src == 2 else [0.0, 1.0] for one in some])

    judges, known = by_embedding(by_src), tuple((Marked(TEXT, 13, 2 - i % 2), i % 2 == 0) for i in range(10))
    assert judges["examples"]("", Question("examples", (Marked(TEXT, 2, 2),), known)) == Answer(True, 1.0)
    assert judges["examples"]("", Question("examples", (Marked(TEXT, 2, 1),), known)) == Answer(False, 0.0)
    five = tuple(Marked(TEXT, 13, src) for src in (1, 2, 1, 1, 1))
    assert judges["intruder"]("", Question("intruder", five)).choice == 1 and judges["detection"] is rule_judge


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=12), st.integers(0, 5))
def test_shuffled_names_go_to_other_heads(heads: list[tuple[int, int]], seed: int) -> None:
    given_to = shuffled(heads, seed)
    taken = [i for i in given_to if i is not None]
    assert len(set(taken)) == len(taken)
    assert all(i is None or heads[i] != heads[own] for own, i in enumerate(given_to))
    if heads and max(Counter(heads).values()) * 2 <= len(heads):
        assert None not in given_to


def test_what_is_like_random_directions_is_beyond_them_at_the_nominal_rate() -> None:
    rng, rates = np.random.default_rng(2), []
    for nameless in (0.0, 0.5):  # whatever the names of random directions are worth, and however many have none
        rows = [_scored(a, b) if rng.random() >= nameless else None for a, b in rng.integers(8, 21, (4000, 2)) / 20]
        found = [one for i in range(0, 4000, 40) for one in beyond(rows[i : i + 10], rows[i + 10 : i + 40])]
        rates.append(sum(one is not None and (one.beyond or 0) <= 0.05 for one in found) / len(found))
    assert all(0.005 < rate <= 0.05 for rate in rates), rates


def test_the_rank_among_random_directions() -> None:
    others = [_scored(0.9, 0.8), _scored(0.5, 0.9), None]
    own = [_scored(0.95, 0.1), _scored(0.9, 0.8), _scored(0.9, 0.7), _scored(0.9, 0.9), _scored(0.4, 1.0), None]
    assert [one and one.beyond for one in beyond(own, others)] == [1 / 4, 2 / 4, 2 / 4, 1 / 4, 3 / 4, None]
    assert beyond(own, []) == own
    sure = [one and replace(one, p=1e-6) for one in own]
    assert [one and one.passing for one in beyond(sure, others)] == pytest.approx(
        [3 / 4, 3 / 4, 3 / 4, 3 / 4, 9 / 10, None]  # of six: the one without a name counts, too
    )
    assert [one and one.passing for one in beyond(own, others)] == [1.0] * 5 + [None]  # not above chance


def test_where_most_have_no_name_chance_passes_no_more_often() -> None:
    """Signals like random directions, four of five of both without a name: a family with any that passes is a fault."""
    rng, faults = np.random.default_rng(3), 0
    for _ in range(400):
        named, right = rng.random(240) < 0.2, rng.random(240)
        rows = [replace(_scored(a, 0.5), p=1e-9) if n else None for n, a in zip(named, right, strict=True)]
        found = beyond(rows[:40], rows[40:])
        faults += any(one is not None and one.passing is not None and one.passing <= 0.05 for one in found)
    assert faults / 400 <= 0.05


def test_random_directions_are_held_against_one_another() -> None:
    """Every other one means something, the rest nothing: one half passes beside the other, and not the other way."""
    like = [replace(one, subject=replace(one.subject, id=f"like {i}")) for i, one in enumerate(plants()[:1] * 24)]
    mixed = [one for pair in zip(like, nothing()[:24], strict=True) for one in pair]
    found = name_signals(plants()[:1], random=mixed, judges={"detection": rule_judge})
    shares = {one.group: one for one in found.controls}
    assert shares["random that pass"].signals == 48 and 20 <= shares["random that pass"].passed <= 24
    assert found.above_chance().passed == 1


def test_a_name_passes_if_it_is_above_chance_and_beyond_random_directions() -> None:
    only = {"detection": rule_judge}
    few = name_signals(plants()[:2], random=nothing()[:18], judges=only)  # 19 in all: none can be beyond 95 % of them
    assert [one.outcome() for one in few.signals] == ["above chance"] * 2 and few.share().passed == 0
    assert few.above_chance().passed == 2 and few.signals[0].test().beyond == 1 / 19  # type: ignore[union-attr]
    assert [one.outcome() for one in name_signals(plants()[:2], random=nothing()[:20], judges=only).signals] == [
        "passes"
    ] * 2
    assert name_signals(plants()[:1], judges=only).signals[0].outcome() == "above chance"
    like = [replace(one, subject=replace(one.subject, id=f"like {i}")) for i, one in enumerate(plants()[:1] * 40)]
    equal = name_signals(plants()[:1], random=like, judges=only)  # random directions that mean as much
    assert equal.signals[0].outcome() == "above chance"
    shares = {one.group: one.passed for one in equal.controls}
    assert shares["random directions"] >= 38 and shares["random that pass"] == 0


def _scored(accuracy: float, auc: float) -> scores.Tested:
    return scores.Tested("detection", "top", 20, 0, 0, accuracy, None, None, auc, 1.0)


def test_signals_are_corrected_together() -> None:
    rows = [scores.Tested("detection", "top", 20, 0, 15, 0.75, None, None, None, p) for p in (0.03, 0.04, 0.9)]
    found = scores.corrected([rows[0], None, *rows[1:]])
    assert found[1] is None and [one.corrected for one in found if one] == pytest.approx([0.06, 0.06, 0.9])
    assert [one.test().corrected for one in named().signals] == benjamini_hochberg(  # type: ignore[union-attr]
        [one.test().p for one in named().signals]  # type: ignore[union-attr]
    )


# -- records ---------------------------------------------------------------------------------------------------------


def test_names_are_stored_and_read_back(tmp_path: Any) -> None:
    save_naming(named(), tmp_path / "names.json")
    assert load_naming(tmp_path / "names.json") == named()
    again = name_signals(plants(), model="planted", random=[noise(i, kind="random") for i in range(500, 500 + RANDOM)])
    assert to_json(again) == to_json(named())  # deterministic
    alone = name_signals(plants()[:1], controls=False).signals[0]  # whichever signals it is named with
    assert alone.name == named().signals[0].name and len(named().table()) == len(PLANTED)
    assert [one.p for one in alone.tests] == [one.p for one in named().signals[0].tests]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema",), 3),
        (("naming", "seed"), "0"),
        (("naming", "signals", 0, "kind"), "guess"),
        (("naming", "signals", 0, "name", "text"), 3),
        (("naming", "signals", 0, "name", "claims", 0, "p"), None),
        (("naming", "signals", 0, "tests", 0, "right"), 1.5),
        (("naming", "signals", 0, "examples", 0, "src"), 99),
        (("naming", "signals", 0, "about"), {"side": 3}),
        (("naming", "signals", 0, "more"), 1),
        (("naming", "signals", 0, "id"), "induction"),
        (("naming", "controls"), {}),
    ],
)
def test_damaged_names_are_refused(path: tuple[Any, ...], value: Any) -> None:
    document = json.loads(to_json(named()))
    inside = document
    for step in path[:-1]:
        inside = inside[step]
    inside[path[-1]] = value
    with pytest.raises(KeyholeError):
        from_json(json.dumps(document))


def test_shares_by_layer_and_model_and_as_text() -> None:
    naming = named()
    layers = naming.by_layer()
    assert [one.group for one in layers] == [f"layer {i}" for i in range(4)]
    assert sum(one.signals for one in layers) == len(PLANTED) == sum(one.passed for one in layers)
    other = replace(naming, model="other", signals=naming.signals[:2])
    assert [(one.group, one.signals) for one in by_model([naming, other])] == [("planted", 9), ("other", 2)]
    assert str(naming).count("9 of 9: 100% [70%, 100%]") >= 2 and "shuffled names" in str(naming)
    assert "dest is" in str(naming.signals[0]) and "[passes]" in str(naming.signals[0])


def test_two_signals_of_one_id_and_unknown_questions_are_refused() -> None:
    with pytest.raises(KeyholeError, match="same id"):
        name_signals([plants()[0], plants()[0]])
    with pytest.raises(KeyholeError, match="no questions of kind"):
        name_signals(plants()[:1], judges={"guessing": rule_judge})  # type: ignore[dict-item]
    for wrong in ({"questions": 0}, {"hard": 1.5}, {"high": 10}):
        with pytest.raises(KeyholeError, match="ask at least one"):
            Asking(**wrong)


def test_tokens_alone_are_the_commonest() -> None:
    some = [Shown(0, TEXT, dest, src, 1.0, 1.0, "top") for dest, src in ((13, 3), (5, 3), (9, 1), (13, 1), (13, 9))]
    assert tokens_alone(some, words=1).text == 'dest is "to", and src is "john"'
    assert tokens_alone([]).text is None


# -- the lens --------------------------------------------------------------------------------------------------------


def test_the_lens_finds_the_tokens_that_a_direction_was_made_of(organism: Model) -> None:
    w = organism.folded(1)
    embedding = organism.hf.get_input_embeddings().weight.detach()
    # Of all tokens the one that this head reads best, and of all directions the one that is nearest to it.
    solved = torch.linalg.lstsq(w.W_Q[2], embedding.T).solution
    cosines = torch.nn.functional.cosine_similarity(w.W_Q[2] @ solved, embedding.T, dim=0)
    most = organism.tokenizer.decode([int(cosines.argmax())])
    query = solved[:, int(cosines.argmax())]
    subject = Subject(
        "planted", "random", (1, 2), query, torch.randn(len(query), generator=torch.Generator().manual_seed(1))
    )
    found = lens(organism, subject, tokens=5, draws=50)
    lifted = w.W_Q[2] @ query
    for text, cosine in found.dest.tokens:
        row = embedding[organism.tokenizer.get_vocab()[text]]
        assert cosine == pytest.approx(float(lifted @ row / (lifted.norm() * row.norm())), abs=1e-5)
    assert [c for _, c in found.dest.tokens] == sorted((c for _, c in found.dest.tokens), reverse=True)
    assert found.dest.tokens[0][1] > found.dest.chance and found.dest.tokens[0][0] == most
    rows = organism.head_out().W_U.T
    v = w.W_K[w.kv(2)] @ subject.key
    best = float((torch.nn.functional.normalize(rows, dim=1) @ (v / v.norm())).max())
    assert found.src_predicts.tokens[0][1] <= best + 1e-5 and "random:" in str(found)
    assert lens(organism, subject, tokens=5, draws=50) == found


def test_random_directions_reach_their_chance_as_often_as_they_should(organism: Model) -> None:
    above = 0
    for seed in range(60):
        query, key = torch.randn(2, organism.dims.d_head, generator=torch.Generator().manual_seed(seed + 1000))
        found = lens(organism, Subject(str(seed), "random", (2, 1), query, key), tokens=1, draws=100)
        above += found.dest.tokens[0][1] > found.dest.chance
    assert above <= 9  # of 60 at 5 %: more than 9 are one in a thousand
