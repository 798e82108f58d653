"""Are features named as signals are? Of contrasts, discovered, planted ones; through files, at the command line."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import keyhole
from commands import keyhole as command
from conftest import tiny_model
from keyhole import KeyholeError
from keyhole.features.contrast.finding import Feature
from keyhole.features.contrast.found import FoundHead
from keyhole.naming.record import load_naming
from keyhole.naming.subjects import contrast_subjects
from keyhole.naming.subjects.operands import (
    feature_subjects,
    load_subjects,
    made_by,
    open_nameable,
    read_what,
    save_subjects,
    subjects_of,
)
from keyhole.naming.subjects.subject import Subject
from test_naming_planted import line, side_of
from test_naming_planted import read as read_texts

RULE = 'dest is "to", and src is an object'
FEW = {"random": 0, "tokens": 6000}


@cache
def model() -> keyhole.Model:
    return keyhole.load()


@cache
def planted() -> Subject:
    """A direction that was put there; with offsets, as a discovered feature has them."""
    x = read_texts()
    query, asks, _ = line(x.queries[0][2], side_of(RULE, "dest"))
    key, offers, _ = line(x.keys[0][2], side_of(RULE, "src"))
    return Subject("0.2 discovered 0", "discovered", (0, 2), query, key, asks, offers, {"feature": 0})


class OneHead(FoundHead):
    """A head in which a contrast found this feature."""

    def __init__(self, feature: Feature, frame: str) -> None:
        object.__setattr__(self, "study", SimpleNamespace(settings=SimpleNamespace(frame=frame)))
        object.__setattr__(self, "_feature", feature)

    feature = property(lambda self: self._feature)  # type: ignore[assignment]


def test_a_feature_of_a_contrast_is_named_in_both_signs() -> None:
    """Its directions have no offsets: what a head reads of one word has none either, once means are taken away."""
    one = planted()
    feature = Feature("receiver", (0, 2), one.query[:, None], one.key[:, None], torch.ones(1))
    found = keyhole.name(OneHead(feature, "post_rope"), model(), **FEW)
    assert [(s.id, s.kind, s.about["sign"]) for s in found.signals] == [
        ("0.2 receiver 0", "contrast", "both positive"),
        ("0.2 receiver 0 (opposite)", "contrast", "both negative"),
    ]
    direct = keyhole.name(contrast_subjects(model(), [feature], "post_rope"), model(), **FEW)
    assert found == direct and str(found.signals[0].name) == RULE


def test_a_planted_feature_goes_through_a_file_and_is_named_there(tmp_path: Path) -> None:
    path = tmp_path / "features.json"
    save_subjects([planted(), replace(planted(), id="turned", key=-planted().key)], model(), path)
    stored = load_subjects(path)
    for a, b in zip(stored.subjects, (planted(), None), strict=True):
        if b is not None:
            assert torch.equal(a.query, b.query) and torch.equal(a.key, b.key)
            assert (a.id, a.kind, a.head, a.query_offset, a.key_offset, a.about) == (
                *(b.id, b.kind, b.head, b.query_offset, b.key_offset),
                b.about,
            )
    assert made_by(f"{path}#1") == made_by(open_nameable(path)) == stored.model
    told = command("name", str(path), "--random", "0", "--tokens", "6000", "--out", "n.json", folder=tmp_path)
    assert told.returncode == 0, told.stderr
    named = load_naming(tmp_path / "n.json").signals[0]
    assert named.name.text == RULE and named.outcome() == "above chance" and named.kind == "discovered"
    assert keyhole.name(path, **FEW) == load_naming(tmp_path / "n.json")
    places = json.loads(
        command("where", "features.json#0", "--tokens", "3000", "--json", "--lens", folder=tmp_path, timeout=60).stdout
    )
    assert places["id"] == planted().id and places["shown"] and places["lens"]["dest"]["tokens"][0][0] == "to"
    assert all(one["tokens"][one["dest"]].strip() == "to" for one in places["shown"])


def test_found_features_of_a_study_and_of_a_head_are_subjects() -> None:
    contrast = keyhole.Contrast.from_roles("box", keyhole.tasks.boxes(60), positive="BOX", negative="box_*")
    found = model().contrast(contrast)
    best = found.heads[0]
    one = feature_subjects(model(), best)
    assert len(one) == 2 * best.rank > 0 and {s.head for s in one} == {best.head}
    assert torch.equal(one[0].query, best.feature.U[:, 0].float())
    every = feature_subjects(model(), found)
    assert {s.head for s in every} <= set(found.study.selected) and len(every) == len(
        feature_subjects(model(), found.study)
    )
    assert len(subjects_of(best, model())) == len(one)
    with pytest.raises(KeyholeError, match="give the model"):
        keyhole.name(best)


def test_commands_write_features_that_name_reads(tmp_path: Path) -> None:
    made = command("discover", "--head", "3.1", "--prompts", "60", "--features", "f.json", folder=tmp_path)
    assert made.returncode == 0 and "wrote f.json" in made.stdout, made.stderr
    stored = load_subjects(tmp_path / "f.json")
    assert {one.kind for one in stored.subjects} == {"discovered"} and stored.model["name"] == "organism"
    study = ["boxes", "--feature", "lexical", "--prompts", "40", "--tests", "20", "--boxes", "4", "--answers", "0"]
    made = command("contrast", *study, "--permutations", "19", "--features", "c.json", "--json", folder=tmp_path)
    assert made.returncode == 0 and json.loads(made.stdout)
    kinds = {(one.kind, one.about["contrast"]) for one in load_subjects(tmp_path / "c.json").subjects}
    assert kinds == {("contrast", "lexical")}


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["discover", "--features", "f.json"], "give --head"),
        (["discover", "--head", "3.1", "--features", "f.txt"], "should end in"),
        (["contrast", "boxes", "--features", "no/f.json"], "no folder"),
        (["where", "f.json#9"], "f.json"),
        (["where", "3.1", "--lens"], "not for a whole head"),
    ],
)
def test_bad_requests_are_one_line(args: list[str], says: str, tmp_path: Path) -> None:
    told = command(*args, folder=tmp_path)
    assert told.returncode == 2 and says in " ".join(told.stderr.split()) and "Traceback" not in told.stderr


def test_files_of_schema_1_had_numbers_as_text(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    save_subjects([planted()], model(), path)
    document = json.loads(path.read_text())
    about = {"channels": "2,5", "coordinates": "+0.6000,-0.8000", "side": "dest", "prompts": "7", "also": "a; b"}
    document["schema"], document["subjects"][0]["about"] = 1, about
    path.write_text(json.dumps(document))
    numbers = {"channels": (2, 5), "coordinates": (0.6, -0.8), "side": "dest", "prompts": 7, "also": ("a", "b")}
    assert load_subjects(path).subjects[0].about == numbers
    document["subjects"][0]["about"] = {**about, "prompts": "many"}
    path.write_text(json.dumps(document))
    with pytest.raises(KeyholeError, match="holds no features that can be read"):
        load_subjects(path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema": 9}, "schema is 9"),
        ({"subjects": []}, "no features"),
        ({"model": {"name": "a"}}, "the model should have"),
        ({"more": 1}, "should have exactly"),
        ({"query": ["a"]}, r"subjects\[0\].query\[0\] is 'a', which is no number"),
        ({"key_offset": None}, "key_offset is None, which is no number"),
        ({"head": [0]}, r"subjects\[0\].head is \[0\], which is no list of 2"),
        ({"kind": "thing"}, "kind is 'thing', which is none of signal"),
        ({"about": {"a": 1}}, "about is .*should have exactly the keys also"),
        ({"id": "turned"}, "same id"),
    ],
)
def test_damaged_files_are_refused_with_the_reason(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    save_subjects([planted(), replace(planted(), id="turned", key=-planted().key)], model(), path)
    document = json.loads(path.read_text())
    inside = document["subjects"][0]
    for key, value in change.items():
        (inside if key in inside else document)[key] = value
    path.write_text(json.dumps(document))
    with pytest.raises(KeyholeError, match=says):
        load_subjects(path)


def test_features_of_other_weights_and_numbers_that_are_none_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    save_subjects([planted()], model(), path)
    with pytest.raises(KeyholeError, match="#0 to #0, and not #1"):
        read_what(model(), f"{path}#1")
    with pytest.raises(KeyholeError, match="other weights"):
        load_subjects(path).of(tiny_model("gpt2"))
