"""`model.contrast`: a short way to what the functions of `keyhole.features.contrast` say, number by number."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

import keyhole
from contrasts import box_contrast
from keyhole import Contrast, Model
from keyhole.errors import KeyholeError
from keyhole.features.contrast import (
    Found,
    StudySettings,
    answer_effects,
    attribute,
    collect,
    find,
    find_features,
    key_bases,
    last,
    lexical_contrast,
    pair_keys,
    rank_heads,
    reflexive_contrast,
    regex,
    span,
    swap_effects,
    token,
)
from keyhole.features.contrast.places import resolve
from keyhole.tasks import boxes, lists

SETTINGS = StudySettings(permutations=40, draws=3)


def same(ours: Sequence[object], theirs: Sequence[object]) -> bool:
    """Equal records, NaN equal to NaN."""
    return list(map(repr, ours)) == list(map(repr, theirs))


def the_right_box(n: int = 120) -> Contrast:
    return Contrast.from_roles("box", boxes(n, n_boxes=4), query="END", positive="BOX", negative="box_*")


@pytest.fixture(scope="module")
def found(organism: Model) -> Found:
    return organism.contrast(the_right_box(), settings=SETTINGS)


def test_heads_swaps_answers_and_attributions_are_those_of_the_functions(organism: Model, found: Found) -> None:
    seen = collect(organism, the_right_box())
    features = find_features(seen, half=0, permutations=40)
    assert same([one.score for one in found.heads], rank_heads(features, seen, half=1))
    best = found.heads[0]
    assert best.head == (1, 6) and best.p < 0.01 and best.share > 0.3
    for one in found.heads:
        assert (one.rank, one.gap, one.p) == (one.score.rank, one.score.gap, one.score.p_corrected)
        assert one.share == one.score.explained / one.score.gap and one.feature.rank == one.rank
    assert any(one.p != one.score.p for one in found.heads)
    bases = {best.head: key_bases([features.of(best.head)])}
    _, swapped, _ = swap_effects(seen, bases, pairing=pair_keys(seen, half=1), draws=3)[best.head]
    assert best.swap() == swapped and swapped.random < swapped.shift < swapped.full
    answers, expected = best.answers(samples=8), answer_effects(seen, bases, half=1, samples=8)
    assert same(answers.heads["1.6"], expected.heads["1.6"]) and answers.largest_miss == expected.largest_miss
    run = organism.run(boxes(1, n_boxes=4)[0].text)
    want = attribute(run, [features.of(best.head)], "Box")
    assert best.attribute(run, "Box").parts.equal(want.parts) and want.error < 1e-5


def test_a_test_contrast_judges_in_place_of_the_other_half(organism: Model) -> None:
    fit, test = lexical_contrast(organism, 60, n_boxes=4), box_contrast(30, n_boxes=4)
    found = organism.contrast(fit, test, settings=SETTINGS)
    want = find_features(collect(organism, fit), permutations=40)
    assert same([one.score for one in found.heads], rank_heads(want, collect(organism, test)))
    assert found.study.answers is None and found.heads[0].swap().name == fit.name
    with pytest.raises(KeyholeError, match=r"give model\.contrast a test whose keys stand together"):
        organism.contrast(fit, settings=SETTINGS).heads[0].swap()


def test_the_letter_is_found_by_itself_only_after_a_head_has_fetched_it(organism: Model) -> None:
    """Heads 1.6 and 1.7 bring the letter to the last token: no query below layer 2 can know it."""
    found = organism.contrast(reflexive_contrast(organism, 120, n_boxes=6), box_contrast(60, 6), settings=SETTINGS)
    sure = [one for one in found.heads if one.p < 0.01]
    assert sure and {one.head[0] for one in sure} <= {2, 3}
    rank = {one.head: one.rank for one in found.heads}
    assert max(rank.values()) >= 2 and rank[1, 6] == rank[1, 7] == 0


def test_what_was_found_is_told_saved_and_drawn(found: Found, tmp_path: Path) -> None:
    lines = str(found).splitlines()
    best = found.heads[0]
    assert "one half makes the feature (60)" in lines[2] and lines[-1] == "16 of 32 heads have no feature (rank 0)."
    assert lines[-2] == "and 8 more heads" and sum(not one.rank for one in found.heads) == 16
    cells = lines[[line[:4] for line in lines].index("head") + 2].split()
    assert cells[:2] == ["1.6", str(best.rank)] and cells[5] == f"{best.swap().normalised:.2f}"
    assert (
        repr(best) == f"<FoundHead 1.6: rank {best.rank}, gap {best.gap:.2f}, share {best.share:.2f}, p {best.p:.3f}>"
    )
    assert len(repr(found)) < 120 and "'box' in organism: 32 heads, the first <FoundHead 1.6" in repr(found)
    found.save(tmp_path / "found.json")
    saved = json.loads((tmp_path / "found.json").read_text())
    row = next(row for row in saved["heads"] if row["head"] == "1.6")
    assert row["features"]["box"]["share"] == best.share and saved["selected"][0] == "1.6"
    drawn = found.draw(tmp_path / "pictures")
    assert {path.name for path in drawn} >= {"interventions.png", "spectrum-box-1.6.png", "attribution-1.6.png"}
    assert all(path.stat().st_size for path in drawn)


# -- contrasts ----------------------------------------------------------------------------------------------------


def test_roles_name_keys_and_a_key_of_both_sides_is_positive(organism: Model) -> None:
    ours, theirs = the_right_box(5), box_contrast(5, n_boxes=4)
    assert ours.prompts == theirs.prompts
    for mine, other in zip(ours.samples, theirs.samples, strict=True):
        assert (mine.query, mine.positive, set(mine.negative)) == (other.query, other.positive, set(other.negative))
    examples = boxes(4, n_boxes=3)
    several = Contrast.from_roles("x", examples, positive=["box_0", "box_2"], negative="box_1", label="QUERY")
    assert [len(sample.positive) for sample in several.samples] == [2] * 4
    assert all(sample.query.place == last() for sample in several.samples)
    assert [sample.label for sample in several.samples] == [example.word("QUERY") for example in examples]
    by_kind = Contrast.from_roles(
        "y", lists(6), positive=lambda e: f"{e.word('CATEGORY')}_*", negative="item_*", label=lambda e: e.template
    )
    for sample, example in zip(by_kind.samples, lists(6), strict=True):
        asked = {spot for name, spot in example.roles.items() if name.startswith(example.word("CATEGORY"))}
        assert {site.place.span for site in sample.positive} == asked and sample.label == example.template
        assert not asked & {site.place.span for site in sample.negative}


def test_texts_and_places_give_the_same_tokens_as_roles(organism: Model) -> None:
    examples = boxes(6, n_boxes=3)
    texts = [example.text for example in examples]
    right = {example.text: example.span("BOX") for example in examples}

    def others(text: str) -> list[keyhole.features.contrast.Place]:
        letters = [regex(r"in box (\w)", nth=i) for i in range(3)]
        at = [text.index("in box ", start) for start in (0, text.index(","), text.rindex(","))]
        return [place for place, start in zip(letters, at, strict=True) if start + len("in box ") != right[text][0]]

    ours = Contrast.from_texts("x", texts, query="Box", positive=lambda text: span(*right[text]), negative=others)
    theirs = Contrast.from_roles("x", examples, query="END", positive="BOX", negative="box_*")
    one, two = (resolve(organism, contrast).slots for contrast in (ours, theirs))
    assert one.query.equal(two.query) and one.keys.equal(two.keys) and one.sign.equal(two.sign)
    plain = Contrast.from_texts("y", texts, positive="box", negative=["The", token(1)], label=lambda text: text[4])
    assert plain.samples[0].positive[0].place == find("box") and len(plain.samples[3].negative) == 2
    assert plain.samples[5].query.place == last() and plain.samples[5].label == texts[5][4]


def test_a_contrast_is_saved_and_loaded(tmp_path: Path) -> None:
    contrast = the_right_box(5)
    contrast.save(tmp_path / "boxes.jsonl")
    assert Contrast.load(tmp_path / "boxes.jsonl") == contrast
    assert repr(contrast) == "<Contrast 'box': 5 samples over 5 prompts>"


def test_bad_input_is_refused() -> None:
    examples = boxes(3, n_boxes=2)
    for name in ("box-*", "RIGHT"):
        with pytest.raises(KeyholeError, match=rf"no role '{name.replace('*', '.')}': it has .*box_0"):
            Contrast.from_roles("x", examples, positive="BOX", negative=name)
    with pytest.raises(KeyholeError, match="no role 'WHO'"):
        Contrast.from_roles("x", examples, positive="BOX", negative="box_*", label="WHO")
    with pytest.raises(KeyholeError, match="no negative key"):
        Contrast.from_roles("x", examples, positive="box_*", negative="BOX")
    with pytest.raises(KeyholeError, match="give a list of them"):
        Contrast.from_texts("x", "The jam", positive="jam", negative="The")
    with pytest.raises(KeyholeError, match="has no samples"):
        Contrast.from_texts("x", [], positive="jam", negative="The")
