"""Places name the right tokens; files give back what was written; what is wrong is said, with the line."""

from pathlib import Path

import pytest

from contrasts import box_contrast
from keyhole import KeyholeError, Model
from keyhole.features.contrast.places import resolve
from keyhole.features.contrast.sites import (
    Contrast,
    Place,
    Sample,
    Site,
    find,
    last,
    read_contrast,
    regex,
    span,
    token,
    write_contrast,
)

TEXT = "The jam is in box A, the knife is in box B. Which box is the jam in? Box"


def tokens_at(model: Model, *places: Place) -> list[str]:
    sample = Sample(Site(last()), tuple(Site(place) for place in places), (Site(token(0)),))
    resolved = resolve(model, Contrast("x", (TEXT,), (sample,)))
    keys, sign = resolved.slots.keys[0], resolved.slots.sign[0]
    return [
        resolved.prompts[0].tokens[at].strip() for (_, at), s in zip(keys.tolist(), sign.tolist(), strict=True) if s > 0
    ]


@pytest.mark.parametrize("which", ["organism", "smollm2"])
def test_places_name_tokens(which: str, request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue(which)
    assert tokens_at(model, find("jam")) == ["jam"]
    assert tokens_at(model, find("knife"), find("jam", nth=1)) == ["knife", "jam"]
    assert tokens_at(model, find("box", nth=None)) == ["box"] * 3
    assert tokens_at(model, regex(r"[bB]ox ([A-Z])", nth=None)) == ["A", "B"]
    assert tokens_at(model, regex(r"[bB]ox ([A-Z])", nth=-1)) == ["B"]
    assert tokens_at(model, span(4, 7)) == ["jam"]
    assert tokens_at(model, span(0, 10)) == ["is"]  # the last token of a span


def test_the_last_token_and_positions(organism: Model) -> None:
    assert tokens_at(organism, last(), token(1)) == ["Box", "The"]


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (token(99), "outside prompt 0, which has"),
        (token(-99), "outside prompt 0"),
        (span(5, 400), "outside prompt 0, which has 72 characters"),
        (span(7, 7), "outside"),
        (find("zebra"), "'zebra' is not in prompt 0"),
        (find("jam", nth=2), "occurs 2 times"),
        (regex("("), "not a regular expression"),
        (find(""), "at least one character"),
    ],
)
def test_sites_outside_their_prompt_are_refused(organism: Model, place: Place, message: str) -> None:
    with pytest.raises(KeyholeError, match=r"sample 0 of 'x'") as caught:
        tokens_at(organism, place)
    assert message in str(caught.value)


def test_contrasts_that_make_no_sense_are_refused(organism: Model) -> None:
    site, other = Site(token(1)), Site(token(2))
    with pytest.raises(KeyholeError, match="no positive key"):
        Sample(Site(last()), (), (site,))
    with pytest.raises(KeyholeError, match="no negative key"):
        Sample(Site(last()), (site,), ())
    with pytest.raises(KeyholeError, match="exactly one of"):
        Place(token=1, text="a")
    with pytest.raises(KeyholeError, match="no samples"):
        Contrast("x", (TEXT,), ())
    with pytest.raises(KeyholeError, match="names prompt 3"):
        Contrast("x", (TEXT,), (Sample(Site(last(), 3), (site,), (other,)),))
    with pytest.raises(KeyholeError, match="label all or none"):
        pair = (Sample(site, (site,), (other,), label="a"), Sample(site, (site,), (other,)))
        Contrast("x", (TEXT,), pair)
    with pytest.raises(KeyholeError, match="positive and a negative key at once"):
        resolve(organism, Contrast("x", (TEXT,), (Sample(Site(last()), (site,), (site, other)),)))
    with pytest.raises(KeyholeError, match="comes after its query"):
        resolve(organism, Contrast("x", (TEXT,), (Sample(site, (site,), (other,)),)))
    with pytest.raises(KeyholeError, match="token ids"):
        resolve(organism, Contrast("x", ((1, 2, 3),), (Sample(Site(last()), (Site(find("a")),), (site,)),)))


def test_groups_stay_in_one_half_and_negatives_can_be_sampled(organism: Model) -> None:
    contrast = box_contrast(40)
    samples = tuple(Sample(s.query, s.positive, s.negative, group=str(i // 4)) for i, s in enumerate(contrast.samples))
    resolved = resolve(organism, Contrast("x", contrast.prompts, samples), negatives=2)
    halves = resolved.slots.half.view(-1, 4)
    assert bool((halves == halves[:, :1]).all()) and set(halves.flatten().tolist()) == {0, 1}
    assert (resolved.slots.sign == -1).sum(1).tolist() == [2] * 40


def test_files_give_back_what_was_written(tmp_path: Path, organism: Model) -> None:
    site = Site(token(3))
    mixed = Sample(Site(last()), (site, Site(find("jam", nth=None))), (Site(regex("B", nth=-1), 1),), Site(last(), 1))
    for contrast in (box_contrast(5), Contrast("mixed", (TEXT, TEXT + " A."), (mixed,), bos=True)):
        write_contrast(contrast, tmp_path / "x.jsonl")
        assert read_contrast(tmp_path / "x.jsonl") == contrast


def test_a_file_without_a_header_is_named_after_itself(tmp_path: Path) -> None:
    path = tmp_path / "plurals.jsonl"
    path.write_text('{"prompt": "a b c d", "query": "last", "positive": [1], "negative": [{"find": "c"}]}\n\n')
    contrast = read_contrast(path)
    assert contrast.name == "plurals" and contrast.samples[0].negative[0].place == find("c")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not valid JSON"),
        ('{"prompt": NaN}', "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[1]", "one JSON object"),
        ('{"prompt": "a b", "query": 1, "positive": [0]}', 'no "negative"'),
        ('{"prompt": "a b", "query": 1, "positive": [], "negative": [0]}', "no positive key"),
        ('{"prompt": "a b", "query": 1, "positive": [0], "negative": [1], "lable": "x"}', "unknown keys: lable"),
        ('{"prompt": "a b", "prompts": ["a"], "query": 1, "positive": [0], "negative": [1]}', "not both"),
        ('{"prompt": 3, "query": 1, "positive": [0], "negative": [1]}', "prompt is 3, which is no text"),
        (
            '{"prompt": "a b", "query": {"find": 3}, "positive": [0], "negative": [1]}',
            "query.find is 3, which is",
        ),
        ('{"prompt": "a b", "query": {"token": 1, "prompt": 2}, "positive": [0], "negative": [1]}', "no prompt 2"),
        ('{"prompt": "a b", "query": true, "positive": [0], "negative": [1]}', "query is True, which is no whole"),
        (
            '{"prompt": "a b", "query": 1, "positive": [0], "negative": [1], "weight": "2"}',
            "weight is '2', which",
        ),
        ('{"prompt": "a b", "query": 1, "positive": [0], "negative": [1], "weight": 1e999}', "larger than any number"),
        (
            f'{{"prompt": "a b", "query": 1, "positive": [0], "negative": [1], "weight": 1{"0" * 400}}}',
            "which is no number",
        ),
        ('{"prompt": "a b", "query": 1, "positive": [0], "negative": [1], "label": 3}', "label is 3, which is no text"),
        ('{"prompt": "a b", "query": 1, "positive": 0, "negative": [1]}', "positive is 0, which is no list"),
        ('{"contrast": "x", "bos": 3}', "bos is 3, which is neither true nor false"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("\n" + line + "\n")
    with pytest.raises(KeyholeError, match="line 2") as caught:
        read_contrast(path)
    assert message in str(caught.value)


def test_files_that_are_not_there_or_empty(tmp_path: Path) -> None:
    with pytest.raises(KeyholeError, match="there is no file"):
        read_contrast(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(KeyholeError, match="no samples"):
        read_contrast(tmp_path / "empty.jsonl")
