"""Where the default finds no feature it says so, and why; other settings are tried, and noise looks like noise."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from commands import keyhole
from contrasts import box_contrast, collected_of
from keyhole import Contrast, Model
from keyhole.features.contrast import (
    Alternative,
    Collected,
    NoFeature,
    Study,
    StudySettings,
    collect,
    find_features,
    lexical_contrast,
    pair_keys,
    rank_heads,
    study,
    swap_effects,
)
from keyhole.features.contrast import no_feature as reading
from keyhole.features.contrast.alternatives import find_alternatives
from keyhole.features.contrast.moves import Effect
from keyhole.features.contrast.report import record
from keyhole.features.contrast.subspace import decompose, permuted_signs
from keyhole.features.contrast.sums import contrast_matrix, query_variance, tally
from keyhole.progress import quiet
from keyhole.report import Report
from keyhole.report.terminal import as_text
from keyhole.tasks import pronouns

HEAD = (1, 5)  # attends to the name that a tag question is about, whatever the adjective
SETTINGS = StudySettings(answers=0, permutations=99, draws=5)


def lines(n: int, *, shuffled: int | None = None) -> str:
    """A user's file: in "..., isn't" the name is right, the adjective wrong; or this is drawn with a seed."""
    rng, made = random.Random(shuffled), []
    for example in pronouns(n):
        sides = [[{"find": example.word(role).strip()}] for role in ("NAME", "ADJ")]
        if shuffled is not None:
            rng.shuffle(sides)
        made.append({"prompt": example.text, "query": "last", "positive": sides[0], "negative": sides[1]})
    return "\n".join(map(json.dumps, made)) + "\n"


def loaded(folder: Path, text: str) -> Contrast:
    (folder / "names.jsonl").write_text(text)
    return Contrast.load(folder / "names.jsonl")


@pytest.fixture(scope="module")
def names(organism: Model, tmp_path_factory: pytest.TempPathFactory) -> Collected:
    return collect(organism, loaded(tmp_path_factory.mktemp("names"), lines(80)))


@pytest.fixture(scope="module")
def named(organism: Model, names: Collected) -> Study:
    return study(organism, {"names": names}, settings=SETTINGS)


def by_setting(case: NoFeature) -> dict[tuple[str, str], Alternative]:
    return {(other.centre, other.rule): other for other in case.alternatives}


def test_a_users_file_is_told_no_why_and_what_other_settings_give(tmp_path: Path) -> None:
    (tmp_path / "names.jsonl").write_text(lines(80))
    done = keyhole("contrast", str(tmp_path / "names.jsonl"), "--answers", "0")
    told = " ".join(done.stdout.split())
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert "No feature of names in 1.5 with --centre each --rank null, the default." in told
    assert "100 % of the uncentred contrast is a difference of mean keys" in told
    assert "of 200 contrasts with permuted labels exceed" in told and "Queries hardly vary" in told
    row = next(line.split() for line in done.stdout.splitlines() if line.startswith("1.5   none "))
    assert row[2] == "null/energy"  # which give the same feature
    rank, share, p, moved, permuted, by_chance, whole = map(float, row[3:10])
    assert rank == 1 and share > 0.95 and p < 0.01 and moved > 0.95 * whole > 0.7
    assert by_chance < 0.1 < permuted < moved
    assert "In 1.5, --centre none --rank null or --centre none --rank energy moves more than random subspaces" in told
    assert "give samples in which the same words are positive for one query and negative for another" in told
    # the default's own verdict is not replaced
    assert "1.5 names 5/0/0 1.00 0.77 4.91 - -" in told and "1.5 names 0 0.77 0.01 0.000 0.000 no feature" in told


def test_the_record_says_the_same_as_json(tmp_path: Path) -> None:
    (tmp_path / "names.jsonl").write_text(lines(80))
    said = json.loads(keyhole("contrast", str(tmp_path / "names.jsonl"), "--answers", "0", "--json").stdout)
    (case,) = said["no_feature"]
    assert case["head"] == "1.5" and case["feature"] == "names" and case["samples"] == 40
    assert case["mean_shift"] > 0.99 and 0 < case["largest"] < case["threshold"] and case["p"] > 0.5
    assert [other["options"] for other in case["alternatives"]] == [
        "--centre each --rank energy",
        "--centre none --rank null",
        "--centre none --rank energy",
    ]
    assert case["alternatives"][1]["swap"]["shift"] > 0.7 and case["why"][0].startswith("100 % of the uncentred")
    head = next(row for row in said["heads"] if row["head"] == "1.5")
    assert head["features"]["names"]["rank"] == 0 and head["swaps"][1]["shift"] == 0


def test_alternatives_are_what_those_settings_give(organism: Model, names: Collected, named: Study) -> None:
    (case,) = named.no_feature
    assert case.head == HEAD and set(by_setting(case)) == {("each", "energy"), ("none", "null"), ("none", "energy")}
    for (centre, rule), other in by_setting(case).items():
        asked = replace(SETTINGS, centre=centre, rank=rule)  # type: ignore[arg-type]
        own = study(organism, {"names": names}, heads=[HEAD], settings=asked)
        score = next(score for score in own.ranking["names"] if score.head == HEAD)
        assert (other.rank, other.share) == (score.rank, score.share)
        assert other.p == min(1, 3 * score.p_corrected)  # three settings were tried
        assert other.swap == own.swaps[HEAD][1]
    assert named.features["names"].rank(HEAD) == 0 and named.swaps[HEAD][1].shift == 0


def test_the_permuted_control_is_of_features_with_permuted_labels(names: Collected, named: Study) -> None:
    """One contrast after the other, by the sums of their samples."""
    other = by_setting(named.no_feature[0])["none", "energy"]
    chosen = (names.slots.half == 0).nonzero()[:, 0]
    slots, kept = names.slots.of(chosen), names.layer(1).of(chosen)
    pairing, shifts = pair_keys(names, half=1), []
    for sign in permuted_signs(slots, 99, seed=0):
        sums = tally(kept.queries, kept.keys, sign, slots.weight, slots.half)
        V = decompose(contrast_matrix(sums, centre="none"))[2][HEAD[1], :, : other.rank]
        shifts.append(swap_effects(names, {HEAD: {"x": V}}, pairing=pairing, draws=1)[HEAD][1].shift)
    assert other.swap is not None
    assert other.permuted == pytest.approx(sum(shifts) / 99, abs=1e-5)
    assert other.p_permuted == (1 + sum(shift >= other.swap.shift for shift in shifts)) / 100


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_random_labels_look_like_nothing_in_any_settings(organism: Model, tmp_path: Path, seed: int) -> None:
    contrast = loaded(tmp_path, lines(80, shuffled=seed))
    found = study(organism, {"names": contrast}, heads=[HEAD], settings=SETTINGS)
    (case,) = found.no_feature
    assert max(other.rank for other in case.alternatives) >= 2
    assert {other.fails for other in case.alternatives} <= {"rank", "gap"}
    said = text(found, "names")
    assert "No other settings exceed their controls: they show no feature either." in said
    assert "exceeds its controls" not in said and "share may be chance" in said


def test_random_subspaces_alone_would_not_show_the_noise(organism: Model, tmp_path: Path) -> None:
    """A rank by energy points where keys vary, whatever the labels: its swap exceeds random subspaces by far."""
    contrast = loaded(tmp_path, lines(80, shuffled=1))
    (case,) = study(organism, {"names": contrast}, heads=[HEAD], settings=SETTINGS).no_feature
    energy = by_setting(case)["each", "energy"]
    assert energy.swap is not None and energy.swap.shift > 0.9 * energy.swap.full > 0.1
    assert energy.swap.shift > 3 * energy.swap.random
    assert energy.permuted > 0.9 * energy.swap.shift and energy.p_permuted > 0.1  # as any labels would


def test_what_was_found_says_so_in_python(organism: Model, names: Collected, tmp_path: Path) -> None:
    found = organism.contrast(loaded(tmp_path, lines(80)), settings=SETTINGS)
    said = str(found)
    assert "32 of 32 heads have no feature (rank 0)." in said and "swapped" not in said
    assert 'No feature of names in 1.5 with centre="each", rank="null", the default.' in said
    assert 'Ask for one by settings=StudySettings(centre="none", rank="energy").' in said
    assert found.no_feature == found.study.no_feature and repr(found).endswith("32 heads, none with a feature>")


def test_heads_with_a_feature_cost_nothing_more(organism: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("other settings were tried")

    monkeypatch.setattr("keyhole.features.contrast.alternatives.find_features", refuse)
    found = study(organism, {"boxes": box_contrast(120, 4)}, heads=[(1, 6)], settings=SETTINGS)
    assert found.no_feature == () and record(found)["no_feature"] == [] and reading.by_feature(found) == {}
    of_rank_zero = study(organism, {"boxes": box_contrast(40, 4)}, settings=replace(SETTINGS, rank=0))
    assert of_rank_zero.no_feature == ()  # a rank that was asked for is no verdict


def test_pooled_is_the_same_contrast_as_each(organism: Model) -> None:
    """Even where sides have queries of their own, so that it is not tried beside it."""
    seen = collect(organism, lexical_contrast(organism, 40, n_boxes=4))
    for sums in seen.sums.values():
        for balance in ("pairs", "prompts"):
            each, pooled, none = (contrast_matrix(sums, centre=c, balance=balance) for c in ("each", "pooled", "none"))
            assert (each - pooled).abs().max() < 1e-12 * none.abs().max().clamp_min(1)
    assert (sums.q[0] - sums.q[1]).norm() > 0.01 * sums.q[0].norm() and (each - none).norm() > 0.1 * none.norm()


def test_keys_in_other_prompts_are_not_swapped(organism: Model) -> None:
    contrast, heads = lexical_contrast(organism, 60, n_boxes=4), [(2, head) for head in range(8)]
    found = study(organism, {"lexical": contrast}, heads=heads, settings=replace(SETTINGS, permutations=40))
    empty = [head for head in heads if found.features["lexical"].rank(head) == 0]
    assert empty and [case.head for case in found.no_feature] == empty
    for case in found.no_feature:
        assert len(case.alternatives) == 3 and all(other.swap is None for other in case.alternatives)
        assert {other.fails for other in case.alternatives} <= {"rank", "gap", "swap"}
    said = text(found, "lexical")
    assert "exceeds its controls" not in said and "in the JSON record" not in said


@pytest.mark.parametrize(("centre", "others"), [("none", {"none", "each"}), ("pooled", {"pooled", "none"})])
def test_the_study_s_own_settings_are_not_an_alternative(
    organism: Model, tmp_path: Path, centre: Literal["none", "pooled"], others: set[str]
) -> None:
    contrast = loaded(tmp_path, lines(80, shuffled=1))
    found = study(organism, {"names": contrast}, heads=[HEAD, (0, 2)], settings=replace(SETTINGS, centre=centre))
    assert found.no_feature
    for case in found.no_feature:
        settings = set(by_setting(case))
        assert settings == {(name, rule) for name in others for rule in ("null", "energy")} - {(centre, "null")}


def test_of_many_heads_the_first_are_swapped(organism: Model, names: Collected) -> None:
    heads = [(layer, head) for layer in (0, 1) for head in range(8)]
    found = study(organism, {"names": names}, heads=heads, settings=replace(SETTINGS, permutations=19))
    swapped = [any(other.swap for other in case.alternatives) for case in found.no_feature]
    assert len(swapped) > 8 and sum(swapped) <= 8 and not any(swapped[8:])
    assert all(other.fails != "swap" for case in found.no_feature[:8] for other in case.alternatives)
    said = text(found, "names")
    assert f"{len(swapped) - 8} more heads without a feature are in the JSON record, unswapped." in said
    rows = reading.other_rows(found.no_feature)
    assert len({row[0] for row in rows}) == 8


def text(found: Study, name: str) -> str:
    """What a study of one contrast says of heads without a feature, in Python."""
    section = reading.section(found, reading.by_feature(found)[name], reading.as_python)
    return as_text(Report("", "", [section]))


def some(**changes: Any) -> Alternative:
    swap = Effect("x", 2, 0.1, 0.5, 0.2, 0.01, 0.22, 0.9, (0.8, 1.0), (0.19, 0.21))
    return replace(Alternative("none", "energy", 2, 0.9, 0.003, swap, 0.1, 0.01), **changes)


def test_an_alternative_must_exceed_every_control() -> None:
    good = some()
    assert good.swap is not None and good.fails is None and reading.result(good) == "exceeds its controls"
    assert some(rank=0).fails == "rank" and some(p=0.06).fails == "gap" and some(swap=None).fails == "swap"
    assert some(swap=replace(good.swap, full=1e-4)).fails == "whole"
    for low in (-0.1, 0.0, float("nan")):
        assert some(swap=replace(good.swap, interval=(low, 1.0))).fails == "random"
    near = some(p_permuted=0.09)
    assert near.fails == "permuted" and reading.result(near) == "9 % of permuted do as much"
    assert some(rank=0, p=1.0, swap=None).fails == "rank" and some(p=0.06, swap=None).fails == "gap"


def reasons_of(found: Study, case: NoFeature, **changes: Any) -> str:
    return " ".join(reading.reasons(found, [replace(case, **changes)]))


def test_every_reason_has_its_sentence(named: Study) -> None:
    (case,) = named.no_feature
    plain = {"mean_shift": 0.1, "query_variance": 0.5, "largest": 0.2, "threshold": 0.4, "p": 0.3}
    assert reasons_of(named, case, **plain) == (
        "The contrast is 0.50 times as large as its null, which 5 % of 99 contrasts with permuted labels exceed; 30 % "
        "of them are as large as it. 40 samples are few: four times as many would halve the null."
    )
    assert "so few permutations leave open" in reasons_of(named, case, undecided=True).lower()
    assert "both kinds of keys on both sides" in reasons_of(named, case)
    assert "both kinds of keys" not in reasons_of(named, case, **plain)
    zero = reasons_of(named, case, largest=0.0, query_variance=0.0, threshold=0.0)
    assert "nothing but rounding: the query is the same" in zero and "times as large" not in zero
    assert "the key is the same" in reasons_of(named, case, largest=0.0, query_variance=0.3, threshold=0.0)
    uncentred = replace(named, settings=replace(SETTINGS, centre="none"))
    said = reasons_of(uncentred, case, **plain)
    assert "because it is uncentred" in said and "difference of mean keys" not in reasons_of(uncentred, case)
    assert "do not confirm each other" in reasons_of(named, case, largest=1.0)
    two = [case, replace(case, head=(2, 0), mean_shift=0.6), replace(case, head=(2, 1), mean_shift=0.2)]
    assert reading.reasons(named, two)[0].startswith("In 1.5, 2.0: 60 to 100 % of the uncentred contrast")


def test_a_query_that_never_varies_is_named_as_the_reason(organism: Model, names: Collected) -> None:
    """Centred, its contrast is zero by construction, and the mean shift is all of the uncentred one."""
    stream = torch.Generator().manual_seed(0)
    n, d = 60, 8
    q = torch.randn(1, 1, d, generator=stream).expand(n, 1, d).clone()
    k = 0.1 * torch.randn(n, 2, 1, d, generator=stream)
    k[:, 0, 0] += q[:, 0]
    fit = collected_of(q, k, torch.tensor([[1, -1]]).expand(n, 2).clone())
    features = find_features(fit, half=0, permutations=99)
    found = Study(
        model="tensors",
        settings=SETTINGS,
        half=1,
        features={"x": features},
        fits={"x": fit},
        test=fit,
        attention=(),
        selected=((0, 0),),
        passed=True,
        ranking={"x": rank_heads(features, fit, half=1)},
        swaps=swap_effects(fit, {(0, 0): {}}, pairing=pair_keys(fit, half=1)),
        answers=None,
        angles={},
        shares={},
    )
    (case,) = find_alternatives(found, quiet)
    assert case.largest == 0 and case.query_variance < 1e-6 and case.mean_shift == pytest.approx(1, abs=1e-6)
    assert query_variance(fit.sums[0]).item() < 1e-6
    none = by_setting(case)["none", "energy"]
    assert none.rank >= 1 and none.swap is not None and none.swap.shift > 0.9 * none.swap.full > 0
    assert by_setting(case)["each", "energy"].fails == "rank"
    assert "the query is the same in all samples" in " ".join(reading.reasons(found, [case]))


def test_the_share_of_queries_that_varies() -> None:
    stream = torch.Generator().manual_seed(1)
    q, k = torch.randn(30, 1, 4, generator=stream) + 2, torch.randn(30, 2, 1, 4, generator=stream)
    fit = collected_of(q, k, torch.tensor([[1, -1]]).expand(30, 2).clone())
    flat = q[:, 0].double()
    expected = (flat - flat.mean(0)).square().sum() / flat.square().sum()
    assert query_variance(fit.sums[0]).item() == pytest.approx(expected.item(), rel=1e-6)


def test_several_contrasts_have_their_own_verdicts(organism: Model) -> None:
    from keyhole.features.contrast import boxes_test, order_contrast

    fits = {
        "order": order_contrast(organism, 60, n_boxes=4),
        "lexical": lexical_contrast(organism, 120, n_boxes=4),
    }
    test = boxes_test(organism, 40, n_boxes=4)
    found = study(organism, fits, test, heads=[(1, 6)], settings=replace(SETTINGS, permutations=40))
    assert found.features["lexical"].rank((1, 6)) > 0 == found.features["order"].rank((1, 6))
    assert [(case.head, case.feature) for case in found.no_feature] == [((1, 6), "order")]
    none = by_setting(found.no_feature[0])["none", "null"]
    assert none.rank == 1 and none.fails is not None  # a pure mean shift, which moves no more than its controls


def sentences(n: int) -> str:
    """Plain English: an animal, which "it" is, and the thing that it slept under."""
    rng = random.Random(0)
    animals = ("cat", "dog", "horse", "bird", "mouse", "lion", "bear", "wolf", "fox", "rabbit")
    things, looks = ("table", "chair", "bed", "tree", "car", "wall"), ("old", "big", "red", "white", "young", "quiet")
    samples = []
    for _ in range(n):
        look, animal, thing = (rng.choice(words) for words in (looks, animals, things))
        text = f"The {look} {animal} slept under the {thing} because it"
        samples.append({"prompt": text, "query": "last", "positive": [{"find": animal}], "negative": [{"find": thing}]})
    return "\n".join(map(json.dumps, samples))


@pytest.mark.slow
def test_a_real_model_and_plain_english(smollm2: Model, tmp_path: Path) -> None:
    contrast = loaded(tmp_path, sentences(150))
    heads = [(13, 8), (16, 5)]
    found = study(smollm2, {"it": contrast}, heads=heads, settings=replace(SETTINGS, permutations=40))
    assert [case.head for case in found.no_feature] == heads
    for case in found.no_feature:
        none = by_setting(case)["none", "energy"]
        assert none.swap is not None and none.p < 0.05 and none.swap.shift > 0.9 * none.swap.full > 0.1
        assert case.mean_shift > 0.95 and case.query_variance < 0.05 and case.threshold > case.largest
